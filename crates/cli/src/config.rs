//! Options from a file.
//!
//! `--config FILE` reads TOML. The keys are the long names of the verb's options, and `command`, the server's command.
//! There is no list of keys: the file's table becomes arguments, which are parsed before the arguments of the command
//! line. Options from the command line or the environment are left out of the file, and so are options that contradict
//! these options.

use std::{
    any::TypeId,
    error::Error as _,
    ffi::OsString,
    fmt, fs, io,
    path::{Path, PathBuf},
};

use clap::{
    Arg, ArgAction, ArgMatches, Command, CommandFactory,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};
use toml::de::{DeTable, DeValue};

use crate::arguments::Arguments;

/// The option that names the file.
const OPTION: &str = "config";

/// A mistake in a file, with its position.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    path: PathBuf,
    line: Option<usize>,
    what: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", self.what)
    }
}

/// The arguments, together with the arguments of the file if an option names a file, and the path of the file.
pub(crate) fn resolve(given: Vec<OsString>) -> Result<(Vec<OsString>, Option<PathBuf>), Mistake> {
    // Errors of the command line are reported after the merge.
    let known = Arguments::command()
        .ignore_errors(true)
        .try_get_matches_from(&given);
    let known = known.ok().and_then(|mut known| known.remove_subcommand());
    let Some((verb, known)) = known else {
        return Ok((given, None));
    };
    let Ok(Some(path)) = known.try_get_one::<PathBuf>(OPTION) else {
        return Ok((given, None));
    };
    let path = path.clone();
    let text = fs::read_to_string(&path).map_err(|error| Mistake {
        path: path.clone(),
        line: None,
        what: unreadable(&error),
    })?;
    let program = Arguments::command();
    let Some(command) = program.find_subcommand(&verb) else {
        return Ok((given, None));
    };
    let file = File {
        path: &path,
        text: &text,
        command,
    };
    let (options, words) = file.arguments(&known)?;
    let mut arguments = given;
    let behind = arguments.iter().position(|word| *word == *verb);
    let behind = behind.map_or(arguments.len(), |at| at + 1);
    arguments.splice(behind..behind, options);
    if !words.is_empty() {
        arguments.push("--".into());
        arguments.extend(words);
    }
    Ok((arguments, Some(path)))
}

fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::InvalidData => "this is no text".to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}

struct File<'a> {
    path: &'a Path,
    text: &'a str,
    command: &'a Command,
}

impl File<'_> {
    /// A mistake at this byte of the file.
    fn mistake(&self, at: usize, what: String) -> Mistake {
        let before = self.text.get(..at).unwrap_or_default();
        Mistake {
            path: self.path.to_owned(),
            line: Some(before.matches('\n').count() + 1),
            what,
        }
    }

    /// The options of the file, and the words of the server's command.
    fn arguments(&self, given: &ArgMatches) -> Result<(Vec<OsString>, Vec<OsString>), Mistake> {
        let table = DeTable::parse(self.text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            self.mistake(at, error.message().to_owned())
        })?;
        let (mut options, mut command) = (Vec::new(), Vec::new());
        for (key, value) in table.get_ref() {
            let name: &str = key.get_ref();
            let argument = self.find(name);
            let argument =
                argument.ok_or_else(|| self.mistake(key.span().start, self.unknown(name)))?;
            let words = words(argument, value.get_ref())
                .and_then(|words| self.check(argument, words))
                .map_err(|what| self.mistake(value.span().start, format!("{name}: {what}")))?;
            if self.is_given(argument, given) {
                continue;
            }
            if argument.is_positional() {
                command = words;
            } else {
                options.extend(words);
            }
        }
        Ok((options, command))
    }

    /// All that may be in a file, and by which name.
    fn keys(&self) -> impl Iterator<Item = (&str, &Arg)> {
        self.command.get_arguments().filter_map(|argument| {
            let name = match argument.get_long() {
                Some(long) => long,
                None if argument.is_last_set() => argument.get_id().as_str(),
                None => return None,
            };
            (name != OPTION).then_some((name, argument))
        })
    }

    fn find(&self, name: &str) -> Option<&Arg> {
        let mut keys = self.keys();
        keys.find(|(key, _)| *key == name).map(|(_, key)| key)
    }

    fn unknown(&self, name: &str) -> String {
        let likeness = |key: &str| strsim::jaro_winkler(key, name);
        let nearest = self
            .keys()
            .map(|(key, _)| key)
            .max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        let nearest = nearest.map_or_else(String::new, |key| format!("; the nearest is {key:?}"));
        let verb = self.command.get_name();
        format!(
            "{name:?} is no option of outlive {verb}{nearest} (all of them: outlive {verb} --help)"
        )
    }

    /// Whether the option was given elsewhere, or contradicts a given option.
    fn is_given(&self, argument: &Arg, given: &ArgMatches) -> bool {
        let is = |argument: &Arg| {
            let source = given.value_source(argument.get_id().as_str());
            matches!(
                source,
                Some(ValueSource::CommandLine | ValueSource::EnvVariable)
            )
        };
        let others = self.command.get_arguments();
        let mut rivals = others.filter(|other| {
            let both = [(argument, *other), (*other, argument)];
            both.iter().any(|(one, other)| {
                let rivals = self.command.get_arg_conflicts_with(one);
                rivals.iter().any(|rival| rival.get_id() == other.get_id())
            })
        });
        is(argument) || rivals.any(is)
    }

    /// The option's own parser checks the value. A later parse finds missing options.
    fn check(&self, argument: &Arg, words: Vec<OsString>) -> Result<Vec<OsString>, String> {
        if argument.is_positional() {
            return Ok(words);
        }
        let verb = [self.command.get_name().into()];
        let parsed = self
            .command
            .clone()
            .try_get_matches_from(verb.iter().chain(&words));
        match parsed.err().as_ref().and_then(why) {
            Some(why) => Err(why),
            None => Ok(words),
        }
    }
}

/// The reason why a value is wrong; `None` for other errors.
fn why(error: &clap::Error) -> Option<String> {
    match error.kind() {
        ErrorKind::ValueValidation => {
            let said = error.source().map(ToString::to_string);
            Some(said.unwrap_or_else(|| "this is not what is needed".to_owned()))
        }
        ErrorKind::InvalidValue => match error.get(ContextKind::ValidValue) {
            Some(ContextValue::Strings(values)) if !values.is_empty() => {
                Some(format!("use {}", values.join(", ")))
            }
            _ => Some("there is nothing".to_owned()),
        },
        _ => None,
    }
}

/// A value as words of a command line.
fn words(argument: &Arg, value: &DeValue<'_>) -> Result<Vec<OsString>, String> {
    let wanted = |what: &str| {
        let kind = value.type_str();
        Err(format!("{what} is needed, and this is of type {kind}"))
    };
    if argument.is_positional() {
        let DeValue::Array(list) = value else {
            return wanted("a list, with each word by itself,");
        };
        let words = list.iter().map(|word| text(argument, word.get_ref()));
        return words.collect();
    }
    let option = format!("--{}", argument.get_long().unwrap_or_default());
    let option = |value: OsString| {
        let mut word = OsString::from(format!("{option}="));
        word.push(value);
        word
    };
    match (argument.get_action(), value) {
        (ArgAction::SetTrue, DeValue::Boolean(false)) => Ok(Vec::new()),
        (ArgAction::SetTrue, DeValue::Boolean(true)) => Ok(vec![
            format!("--{}", argument.get_long().unwrap_or_default()).into(),
        ]),
        (ArgAction::SetTrue, _) => wanted("true or false"),
        (ArgAction::Append, DeValue::Array(list)) if list.is_empty() => {
            Err("an empty list says nothing: leave it out".to_owned())
        }
        (ArgAction::Append, DeValue::Array(list)) => {
            let words = list.iter().map(|item| text(argument, item.get_ref()));
            words.map(|word| word.map(option)).collect()
        }
        (_, value) => text(argument, value).map(|word| vec![option(word)]),
    }
}

/// A value as text. A number is accepted if the command line would accept the number.
fn text(argument: &Arg, value: &DeValue<'_>) -> Result<OsString, String> {
    let kind = argument.get_value_parser().type_id();
    let is_text = [
        TypeId::of::<String>(),
        TypeId::of::<OsString>(),
        TypeId::of::<PathBuf>(),
    ]
    .iter()
    .any(|text| kind == *text);
    match value {
        DeValue::String(text) => Ok(OsString::from(&**text)),
        DeValue::Integer(number) if !is_text => {
            let digits = number.as_str();
            let number = i64::from_str_radix(digits, number.radix());
            let number = number.map_err(|_| format!("{digits} is too much"))?;
            Ok(number.to_string().into())
        }
        other => {
            let kind = other.type_str();
            Err(format!("text is needed, and this is of type {kind}"))
        }
    }
}

#[cfg(test)]
mod tests;
