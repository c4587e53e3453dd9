//! A requested command: the program with arguments, environment and streams.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    path::PathBuf,
};

use rustix::termios::Winsize;
use serde::{Deserialize, Serialize};

use crate::{environment::Environment, jobserver};

/// Variables that say where something is: another value makes no other command.
const WITHOUT_MEANING: [&str; 3] = ["_", "MAKE_TERMOUT", "MAKE_TERMERR"];
/// Variables of a user's place: shell, window, session and the directory before. Another value matters only to a
/// command that asks for the variable.
const OF_THE_PLACE: [&str; 22] = [
    "OLDPWD",
    "SHLVL",
    "WINDOWID",
    "TMUX",
    "TMUX_PANE",
    "STY",
    "WINDOW",
    "ZELLIJ_PANE_ID",
    "TERM_SESSION_ID",
    "ITERM_SESSION_ID",
    "KITTY_PID",
    "KITTY_WINDOW_ID",
    "WEZTERM_PANE",
    "ALACRITTY_WINDOW_ID",
    "KONSOLE_DBUS_SESSION",
    "KONSOLE_DBUS_WINDOW",
    "GNOME_TERMINAL_SCREEN",
    "XDG_SESSION_ID",
    "INVOCATION_ID",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_TTY",
];

/// A command with arguments, environment and streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The executable file.
    pub program: OsString,
    /// The arguments, with the name of the program first.
    pub arguments: Vec<OsString>,
    /// The environment.
    pub environment: Environment,
    /// The working directory.
    pub directory: PathBuf,
    /// The file mode creation mask (umask).
    pub umask: u32,
    /// Whether standard input, output and errors are a terminal.
    pub terminal: [bool; 3],
    /// Whether output and errors go to the same place, which is no terminal: the order of both counts.
    pub is_joined: bool,
    /// The size of the terminal: rows and columns.
    pub size: Option<(u16, u16)>,
    /// Whether standard input is empty for good.
    pub reads_nothing: bool,
    /// The descriptors of a jobserver.
    pub jobserver: Option<jobserver::Ends>,
    /// Other descriptors that the command can name. A concealed command has none of these.
    pub others: Vec<i32>,
}

impl Command {
    /// Do both commands have the same effect on equal inputs, whatever [the user's place](Self::placed)?
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        self.arguments == other.arguments && self.differs(other).is_empty()
    }

    /// The differences from `other` in a user's words, without the arguments.
    #[must_use]
    pub fn differs(&self, other: &Self) -> Vec<String> {
        let streams = |it: &Self| (it.terminal, it.is_joined, it.reads_nothing);
        let others = [
            ("program", self.program == other.program),
            ("directory", self.directory == other.directory),
            ("umask", self.umask == other.umask),
            ("kind of streams", streams(self) == streams(other)),
            (
                "jobserver",
                self.jobserver.is_some() == other.jobserver.is_some(),
            ),
        ];
        let others = others.into_iter().filter(|(_, is_same)| !is_same);
        let mut all: Vec<_> = others.map(|(what, _)| what.to_owned()).collect();
        all.extend(differing(&self.meant(), &other.meant()));
        all
    }

    /// The differences between the places of both users: variables and the terminal's size.
    #[must_use]
    pub fn placed(&self, other: &Self) -> (Vec<String>, bool) {
        let variables = differing(&self.place(), &other.place());
        (variables, self.size != other.size)
    }

    /// Do the arguments allow parallel jobs (`-j`)?
    #[must_use]
    pub fn is_parallel(&self) -> bool {
        let flags = jobserver::JOBSERVER_VARIABLES.map(|name| self.environment.get(name));
        let arguments = self.arguments.iter().map(OsString::as_os_str);
        let mut all = arguments.chain(flags.into_iter().flatten());
        self.jobserver.is_some()
            || all.any(|words| {
                let words = words.to_string_lossy();
                let mut words = words.split_ascii_whitespace();
                words.any(|word| word.starts_with("-j") || word.starts_with("--jobs"))
            })
    }

    /// The size of the terminal.
    pub fn size(&self) -> Option<Winsize> {
        self.size.map(|(ws_row, ws_col)| Winsize {
            ws_row,
            ws_col,
            ws_xpixel: 0,
            ws_ypixel: 0,
        })
    }

    /// Variables with their values in any order; of variables that do not matter, the names alone.
    fn meant(&self) -> BTreeMap<&OsStr, Option<Cow<'_, OsStr>>> {
        let all = self
            .environment
            .iter()
            .filter(|(name, _)| !is_one(name, &OF_THE_PLACE));
        let meant = |(name, value)| {
            let meant = if is_one(name, &WITHOUT_MEANING) {
                None
            } else if is_one(name, &jobserver::JOBSERVER_VARIABLES) {
                Some(jobserver::without(value).into())
            } else {
                Some(value.into())
            };
            (name, meant)
        };
        all.map(meant).collect()
    }

    fn place(&self) -> BTreeMap<&OsStr, &OsStr> {
        let all = self.environment.iter();
        all.filter(|(name, _)| is_one(name, &OF_THE_PLACE))
            .collect()
    }
}

fn is_one(name: &OsStr, others: &[&str]) -> bool {
    others.iter().any(|other| name == *other)
}

/// Names of variables with different values, or with a value on one side alone.
fn differing<V: PartialEq>(one: &BTreeMap<&OsStr, V>, other: &BTreeMap<&OsStr, V>) -> Vec<String> {
    let names: BTreeSet<_> = one.keys().chain(other.keys()).collect();
    let differ = |name: &&&OsStr| one.get(**name) != other.get(**name);
    let names = names.iter().filter(|name| differ(name));
    names.map(|name| name.display().to_string()).collect()
}

/// The end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// An exit with this status.
    Exited(i32),
    /// A death by this signal.
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
    fn changed_field_makes_unlike_command() {
        let one = command();
        assert!(one.is_like(&one.clone()));
        let others: [fn(&mut Command); 10] = [
            |c| c.program.push("x"),
            |c| c.arguments.push("x".into()),
            |c| c.directory.push("x"),
            |c| c.umask = 0o077,
            |c| c.terminal[1] = true,
            |c| c.is_joined = true,
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
    fn parallel_make_is_recognized() {
        let mut one = command();
        assert!(!one.is_parallel());
        one.environment
            .set("MAKEFLAGS", "k -j4 --jobserver-auth=3,4");
        assert!(one.is_parallel());
        let mut other = command();
        other.arguments.push("cd sub && make --jobs=2".into());
        assert!(other.is_parallel());
    }

    #[test]
    fn command_round_trip() {
        use std::os::unix::ffi::OsStringExt as _;
        let mut odd = command();
        let name = OsString::from_vec(b"NO\xffTEXT".to_vec());
        odd.environment.set(name, "1");
        let told = postcard::to_allocvec(&odd).expect("it can be told");
        assert_eq!(postcard::from_bytes(&told), Ok(odd));
    }

    #[test]
    fn terminal_name_is_irrelevant() {
        let mut other = command();
        other.environment.set("MAKE_TERMOUT", "/dev/pts/2");
        assert!(command().is_like(&other));
    }

    #[test]
    fn user_context_matters_to_dependent_commands() {
        let (one, mut other) = (command(), command());
        other.environment.set("OLDPWD", "/before");
        other.environment.set("SHLVL", "3");
        other.size = Some((25, 80));
        assert!(one.is_like(&other) && other.is_like(&one));
        let variables = ["OLDPWD", "SHLVL"].map(str::to_owned);
        assert_eq!(one.placed(&other), (variables.to_vec(), true));
        assert_eq!(one.differs(&other), [""; 0]);
        other.environment.set("CC", "clang");
        other.umask = 0o077;
        assert_eq!(one.differs(&other).join(", "), "umask, CC");
    }

    #[test]
    fn variable_order_is_irrelevant() {
        let mut other = command();
        other.environment = [("MAKE_TERMOUT", "/dev/pts/1"), ("PATH", "/bin")]
            .into_iter()
            .collect();
        assert!(command().is_like(&other));
    }
}
