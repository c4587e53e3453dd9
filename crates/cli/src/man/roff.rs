//! Parts of man pages that are made from tables: the synopsis with values, outlive.toml(5) and outlive-events(7).

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};
use serve::{COMMON, Code, KINDS};

/// Text for roff(7): a reader sees the text unchanged.
pub(super) fn plain(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let lines = text
        .lines()
        .map(|line| match line.starts_with(['.', '\'']) {
            true => format!("\\&{line}"),
            false => line.to_owned(),
        });
    lines.collect::<Vec<_>>().join("\n")
}

/// The value of an option: its possible values, or the name of the value.
fn names(argument: &Arg) -> String {
    let possible = argument.get_possible_values();
    let possible = possible.iter().filter(|value| !value.is_hide_set());
    let possible: Vec<&str> = possible.map(|value| value.get_name()).collect();
    if !possible.is_empty() {
        return possible.join("|");
    }
    let names = argument.get_value_names().unwrap_or_default();
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    names.join(" ")
}

/// An argument as a user types the argument: `[--logger ADDRESS:PORT]...`
fn typed(argument: &Arg) -> String {
    let takes = argument.get_action().takes_values();
    let value = names(argument);
    let word = match argument.get_long() {
        Some(long) if takes => format!(
            "\\fB{}\\fR \\fI{}\\fR",
            plain(&format!("--{long}")),
            plain(&value)
        ),
        Some(long) => format!("\\fB{}\\fR", plain(&format!("--{long}"))),
        None if argument.is_last_set() => format!("\\fB\\-\\-\\fR \\fI{}\\fR...", plain(&value)),
        None => format!("\\fI{}\\fR", plain(&value)),
    };
    let word = match argument.is_required_set() {
        true => word,
        false => format!("[{word}]"),
    };
    match argument.get_action() {
        ArgAction::Append if !argument.is_last_set() => format!("{word}..."),
        _ => word,
    }
}

/// The section SYNOPSIS, with all options and their values.
pub(super) fn synopsis(command: &Command, name: &str) -> String {
    let mut section = format!(
        ".SH SYNOPSIS\n\\fB{}\\fR",
        plain(&name.replace("outlive-", "outlive "))
    );
    let shown = command.get_arguments().filter(|argument| {
        let is_help = matches!(argument.get_id().as_str(), "help" | "version");
        !argument.is_hide_set() && !is_help
    });
    let (positional, options): (Vec<_>, Vec<_>) =
        shown.partition(|argument| argument.is_positional());
    for argument in options.into_iter().chain(positional) {
        let _ = write!(section, " {}", typed(argument));
    }
    if command.has_subcommands() {
        section += " [\\fISUBCOMMAND\\fR]";
    }
    section + "\n"
}

/// The section OPTIONS: the heading of a group of options is a subsection.
pub(super) fn options(section: &str) -> String {
    let lines = section.lines().map(|line| match line.strip_prefix(".SH ") {
        None | Some("OPTIONS") => format!("{line}\n"),
        Some(heading) => {
            let heading = heading.trim_matches('"').to_lowercase();
            let mut letters = heading.chars();
            let first: String = letters.next().into_iter().collect();
            format!(".SS \"{}{}\"\n", first.to_uppercase(), letters.as_str())
        }
    });
    lines.collect()
}

/// The beginning of a page that belongs to no command.
fn page(name: &str, section: &str, about: &str) -> String {
    let title = name.to_uppercase();
    format!(
        ".TH {title} {section} \"\" \"outlive {}\"\n.SH NAME\n{} \\- {about}\n",
        env!("CARGO_PKG_VERSION"),
        plain(name)
    )
}

fn item(name: &str, value: &str, text: &str) -> String {
    let value = match value {
        "" => String::new(),
        value => format!(" \\fI{}\\fR", plain(value)),
    };
    format!(".TP\n\\fB{}\\fR{value}\n{}\n", plain(name), plain(text))
}

/// The page of options in a file: outlive.toml(5).
pub(super) fn toml(program: &Command) -> String {
    let mut page = page(
        "outlive.toml",
        "5",
        "options of outlive serve, logger and balance in a file",
    );
    page += ".SH DESCRIPTION\n";
    page += &plain(
        "outlive serve, standby, check, logger, balance and objects read options from a TOML file (--config). The keys are the long names of the options. A value is the value that the option takes: text, with the unit, or a number where a bare number would do. An option that can be repeated takes a list. An option without a value takes true or false. The command of the server is a list of words. The command line wins over the file. For an unknown key or a wrong value, the message names file and line, and the exit status is 78.",
    );
    page += "\n.SH EXAMPLE\n.nf\n";
    page += &plain(
        "address = [\"10.0.0.10:80\", \"[fd00::10]:80\"]\ncommand = [\"nginx\", \"-g\", \"daemon off;\"]\nlimit-total = \"4GiB\"",
    );
    page += "\n.fi\n";
    for verb in ["serve", "logger", "balance", "objects"] {
        let Some(command) = program.find_subcommand(verb) else {
            continue;
        };
        let _ = writeln!(page, ".SH \"KEYS OF {}\"", verb.to_uppercase());
        for argument in command.get_arguments().filter(|one| !one.is_hide_set()) {
            let key = match argument.get_long() {
                Some("config" | "help") => continue,
                Some(long) => long,
                None if argument.is_last_set() => argument.get_id().as_str(),
                None => continue,
            };
            let value = match argument.get_action() {
                ArgAction::SetTrue => "true | false".to_owned(),
                ArgAction::Append => format!("list of {}", names(argument)),
                _ => names(argument),
            };
            let help = argument.get_long_help().or(argument.get_help());
            let mut text = help.map(ToString::to_string).unwrap_or_default();
            let usual: Vec<_> = argument
                .get_default_values()
                .iter()
                .map(|value| value.to_string_lossy())
                .collect();
            if argument.get_action().takes_values() && !usual.is_empty() {
                let _ = write!(text, " [default: {}]", usual.join(","));
            }
            page += &item(key, &value, &text);
        }
    }
    page + ".SH \"SEE ALSO\"\n.BR outlive\\-serve (8),\n.BR outlive\\-logger (8),\n.BR outlive\\-check (8)\n"
}

/// The page of kinds, fields and codes of events: outlive-events(7).
pub(super) fn events() -> String {
    let mut page = page(
        "outlive-events",
        "7",
        "events of outlive serve, as outlive events and outlive history show them",
    );
    page += ".SH DESCRIPTION\n";
    page += &plain(
        "With --json each event is one line of JSON. Times since 1970 are integers, in microseconds. Durations are in milliseconds, and their names end with _ms. Sizes are in bytes. The field version is raised when a field changes or disappears.",
    );
    page += "\n.SH \"FIELDS OF EVERY EVENT\"\n";
    for (name, means) in COMMON {
        page += &item(name, "", means);
    }
    page += ".SH KINDS\nEach kind has the fields above, and the fields beside its name.\n";
    for kind in KINDS {
        page += &item(kind.name, kind.fields, kind.means);
    }
    page += ".SH CODES\nValues of the field code of the kind warning. A warning does not end the service.\n";
    for (word, means) in Code::ALL {
        page += &item(word, "", means);
    }
    page + ".SH \"SEE ALSO\"\n.BR outlive\\-events (8),\n.BR outlive\\-history (8)\n"
}
