//! Does a command depend on the user's place (shell, window, size of the terminal)? Most commands do the same in each.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

use conceal::syscall_gate::SizeReaders;

use crate::{command::Command, job::Job};

/// Name of the terminal's size in messages.
const TERMINAL_SIZE_NAME: &str = "size of the terminal";
/// Commands that print all variables.
const PRINTS_ALL_VARIABLES: [&[u8]; 7] = [
    b"printenv",
    b"export -p",
    b"declare -p",
    b"declare -x",
    b"compgen -e",
    b"/proc/self/environ",
    b".VARIABLES",
];
/// Commands that print all variables if the command has no arguments.
const PRINTS_ALL_ALONE: &[u8] = b"env";

impl Job {
    /// Values of another place that change the result of a command, or of the commands that the command has taken over.
    #[must_use]
    pub fn context_differences(&self, command: &Command) -> Vec<String> {
        let (mut variables, is_resized) = self.command.placed(command);
        if variables.is_empty() && !is_resized {
            return Vec::new();
        }
        let parts = self.all_parts();
        let all = || parts.iter().map(|part| &**part).chain([self]);
        variables.retain(|variable| all().any(|job| job.names(variable)));
        let has_size = is_resized && all().any(Self::depends_on_size);
        variables.extend(has_size.then(|| TERMINAL_SIZE_NAME.to_owned()));
        variables
    }

    /// Compilers ask for the terminal's size to format messages.
    fn depends_on_size(&self) -> bool {
        match self.sized() {
            SizeReaders::None => false,
            SizeReaders::Compilers => self.output.has_output(),
            SizeReaders::Others => true,
        }
    }

    /// Do the arguments, scripts or makefiles of the command name the variable?
    fn names(&self, variable: &str) -> bool {
        let program = std::path::Path::new(&self.command.program).file_name();
        let is_alone = program == Some(OsStr::from_bytes(PRINTS_ALL_ALONE))
            && self.command.arguments.len() < 2;
        let mut arguments = self.command.arguments.iter();
        let texts = || self.concealment.texts();
        is_alone
            || arguments.any(|argument| names(argument.as_bytes(), variable))
            || texts()
                .into_iter()
                .any(|text| text.is_none_or(|text| names(&text, variable)))
    }
}

/// Does the text name the variable, or print all variables?
fn names(text: &[u8], variable: &str) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    // As a whole word: the characters before and behind the match.
    let found = |what: &'static [u8]| places(text, what);
    let is_apart = |(before, after): (&[u8], &[u8])| {
        !before.last().is_some_and(is_word) && !after.first().is_some_and(is_word)
    };
    let ends = |after: &[u8]| {
        let next = after.iter().find(|byte| !matches!(byte, b' ' | b'\t'));
        next.is_none_or(|next| b"|;&>)`\n".contains(next))
    };
    places(text, variable.as_bytes()).any(is_apart)
        || PRINTS_ALL_VARIABLES
            .iter()
            .any(|all| found(all).any(is_apart))
        || found(PRINTS_ALL_ALONE).any(|(before, after)| is_apart((before, after)) && ends(after))
}

/// The text before and behind each match.
fn places<'a>(text: &'a [u8], what: &'a [u8]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    let all = text.windows(what.len()).enumerate();
    let all = all.filter(move |(_, window)| *window == what);
    all.map(move |(at, _)| (&text[..at], &text[at + what.len()..]))
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn text_with_variable_name_depends_on_it() {
        for text in [
            "cd $OLDPWD",
            "OLDPWD",
            "x=${OLDPWD}",
            "env",
            "/usr/bin/env | sort",
            "env >all; true",
            "(env)",
            "printenv",
            "export -p >all",
            "$(info $(.VARIABLES))",
        ] {
            assert!(names(text.as_bytes(), "OLDPWD"), "{text}");
        }
        for text in [
            "",
            "cd ..",
            "MY_OLDPWD=1 OLDPWDS=2",
            "env CC=gcc ./configure",
            "#!/usr/bin/env python3",
            "environment",
            "export PATH",
            "SHLVL",
        ] {
            assert!(!names(text.as_bytes(), "OLDPWD"), "{text}");
        }
    }
}
