//! What the user is expected to ask for.

use std::collections::VecDeque;

use crate::command::Command;

/// How many of the last ones count.
const COUNT: usize = 8;

/// What was asked for lately.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The oldest first.
    lately: VecDeque<Command>,
}

impl Asked {
    /// Nothing, and this is expected: it counts twice, so that one `make clean` does not change that.
    #[must_use]
    pub fn expecting(command: Command) -> Self {
        let lately = [command.clone(), command].into();
        Self { lately }
    }

    /// This was asked for.
    pub fn add(&mut self, command: Command) {
        if self.lately.len() == COUNT {
            self.lately.pop_front();
        }
        self.lately.push_back(command);
    }

    /// What was asked for most often lately, and last of those; as the shell that has asked last would give it.
    ///
    /// # Panics
    /// Never: something is always expected.
    #[must_use]
    pub fn expected(&self) -> Command {
        let count = |command: &Command| {
            let alike = |other: &&Command| other.arguments == command.arguments;
            self.lately.iter().filter(alike).count()
        };
        let most = self.lately.iter().max_by_key(|command| count(command));
        let (most, last) = (most.expect("never empty"), self.lately.back());
        let last = last.expect("never empty");
        Command {
            arguments: most.arguments.clone(),
            ..last.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(target: &str, directory: &str) -> Command {
        Command {
            program: "/usr/bin/make".into(),
            arguments: vec!["make".into(), target.into()],
            environment: crate::environment::Environment::default(),
            directory: directory.into(),
            umask: 0o022,
            terminal: [false; 3],
            is_joined: false,
            size: None,
            reads_nothing: true,
            jobserver: None,
            others: Vec::new(),
        }
    }

    #[test]
    fn what_is_asked_for_often_is_expected() {
        let mut asked = Asked::expecting(make("all", "/a"));
        assert_eq!(asked.expected(), make("all", "/a"));
        asked.add(make("clean", "/b"));
        assert_eq!(
            asked.expected(),
            make("all", "/b"),
            "as it was asked for last"
        );
        asked.add(make("test", "/b"));
        assert_eq!(asked.expected(), make("all", "/b"));
        asked.add(make("test", "/b"));
        assert_eq!(
            asked.expected(),
            make("test", "/b"),
            "the last of those that are as frequent"
        );
        for _ in 0..100 {
            asked.add(make("all", "/b"));
        }
        assert_eq!(asked.expected(), make("all", "/b"));
        assert_eq!(asked.lately.len(), COUNT);
    }
}
