//! What is asked for: a program with all that it is given.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::PathBuf,
};

use rustix::termios::Winsize;
use serde::{Deserialize, Serialize};

use crate::{environment::Environment, jobserver};

/// Variables that say where something is, and not what: another value makes no other command of it.
const WITHOUT_MEANING: [&str; 3] = ["_", "MAKE_TERMOUT", "MAKE_TERMERR"];

/// A command, and what it is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The file that is run.
    pub program: OsString,
    /// Its arguments, the first of which is what it is called.
    pub arguments: Vec<OsString>,
    /// Its environment.
    pub environment: Environment,
    /// Where it runs.
    pub directory: PathBuf,
    /// The bits that files it makes do not have.
    pub umask: u32,
    /// Whether it is given a terminal to read from, to write to, and for errors.
    pub terminal: [bool; 3],
    /// Whether what it says and its errors go to the same place, in the order in which they are said, which is no terminal.
    pub is_joined: bool,
    /// The size of that terminal: rows and columns.
    pub size: Option<(u16, u16)>,
    /// Whether there is nothing to be read from standard input, ever.
    pub reads_nothing: bool,
    /// The descriptors of a jobserver that it is given.
    pub jobserver: Option<jobserver::Ends>,
    /// Other descriptors that it is given and can name. It has none of them where it is done concealed.
    pub others: Vec<i32>,
}

impl Command {
    /// Whether it would do what `other` does, if it reads the same.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        self.program == other.program
            && self.arguments == other.arguments
            && self.directory == other.directory
            && self.umask == other.umask
            && self.terminal == other.terminal
            && self.is_joined == other.is_joined
            && self.size == other.size
            && self.reads_nothing == other.reads_nothing
            && self.jobserver.is_some() == other.jobserver.is_some()
            && self.meant() == other.meant()
    }

    /// The size of its terminal.
    pub(crate) fn size(&self) -> Option<Winsize> {
        self.size.map(|(ws_row, ws_col)| Winsize {
            ws_row,
            ws_col,
            ws_xpixel: 0,
            ws_ypixel: 0,
        })
    }

    /// Variables that matter, whatever their order; of those that do not only that they are there.
    fn meant(&self) -> BTreeMap<&OsStr, Option<Cow<'_, OsStr>>> {
        let meant = |(name, value)| {
            let is_one = |others: &[&str]| others.iter().any(|other| name == *other);
            let meant = if is_one(&WITHOUT_MEANING) {
                None
            } else if is_one(&jobserver::TOLD_IN) {
                Some(jobserver::without(value).into())
            } else {
                Some(value.into())
            };
            (name, meant)
        };
        self.environment.iter().map(meant).collect()
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// By itself, with this exit status.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        let word = OsString::from;
        Command {
            program: word("/bin/cc"),
            arguments: vec![word("cc"), word("-c"), word("a.c")],
            environment: [("PATH", "/bin"), ("MAKE_TERMOUT", "/dev/pts/1")]
                .into_iter()
                .collect(),
            directory: "/src".into(),
            umask: 0o022,
            terminal: [false; 3],
            is_joined: false,
            size: None,
            reads_nothing: false,
            jobserver: None,
            others: Vec::new(),
        }
    }

    #[test]
    fn whatever_a_command_is_given_makes_another_one_of_it() {
        let one = command();
        assert!(one.is_like(&one.clone()));
        let others: [fn(&mut Command); 11] = [
            |c| c.program.push("x"),
            |c| c.arguments.push("x".into()),
            |c| c.directory.push("x"),
            |c| c.umask = 0o077,
            |c| c.terminal[1] = true,
            |c| c.is_joined = true,
            |c| c.size = Some((25, 80)),
            |c| c.reads_nothing = true,
            |c| c.jobserver = Some([3, 4]),
            |c| c.environment.set("PATH", "/usr/bin"),
            |c| c.environment.remove("MAKE_TERMOUT"),
        ];
        for change in others {
            let mut other = command();
            change(&mut other);
            assert!(!one.is_like(&other), "{other:?}");
        }
    }

    #[test]
    fn it_is_told_as_it_is() {
        use std::os::unix::ffi::OsStringExt as _;
        let mut odd = command();
        let name = OsString::from_vec(b"NO\xffTEXT".to_vec());
        odd.environment.set(name, "1");
        let told = postcard::to_allocvec(&odd).expect("it can be told");
        assert_eq!(postcard::from_bytes(&told), Ok(odd));
    }

    #[test]
    fn which_terminal_it_is_does_not_matter() {
        let mut other = command();
        other.environment.set("MAKE_TERMOUT", "/dev/pts/2");
        assert!(command().is_like(&other));
    }

    #[test]
    fn in_which_order_its_variables_are_does_not_matter() {
        let mut other = command();
        other.environment = [("MAKE_TERMOUT", "/dev/pts/1"), ("PATH", "/bin")]
            .into_iter()
            .collect();
        assert!(command().is_like(&other));
    }
}
