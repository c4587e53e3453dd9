//! Makes that the user is expected to request.

use std::{cmp::Reverse, collections::VecDeque, ffi::OsString};

use crate::command::Command;

/// Number of remembered requests.
const HISTORY_LENGTH: usize = 8;
/// Most expected makes.
const EXPECTED_LIMIT: usize = 2;
/// Least number of requests for the second expected make.
const SECOND_TARGET_REQUESTS: usize = 2;

/// The latest requests.
#[derive(Debug, Clone)]
pub struct ExpectedTargets {
    /// With the oldest first.
    lately: VecDeque<Command>,
}

impl ExpectedTargets {
    /// Begins with an expected command, which counts twice: a single `make clean` does not change the expectation.
    #[must_use]
    pub fn expecting(command: Command) -> Self {
        let lately = [command.clone(), command].into();
        Self { lately }
    }

    /// Adds a request.
    pub fn add(&mut self, command: Command) {
        if self.lately.len() == HISTORY_LENGTH {
            self.lately.pop_front();
        }
        self.lately.push_back(command);
    }

    /// The most frequent of the latest requests; the latest of equally frequent requests comes first. Then the next
    /// request, if that request came more than once. Both have the environment of the last request.
    ///
    /// # Panics
    /// Never: there is always a request.
    #[must_use]
    pub fn expected(&self) -> Vec<Command> {
        let mut each: Vec<(&[OsString], usize)> = Vec::new();
        // The latest requests come last.
        for command in &self.lately {
            let before = each
                .iter()
                .position(|(known, _)| *known == command.arguments);
            let count = before.map_or(0, |before| each.remove(before).1);
            each.push((&command.arguments, count + 1));
        }
        each.reverse();
        // A stable sort keeps the order of equally frequent requests.
        each.sort_by_key(|(_, count)| Reverse(*count));
        let last = self.lately.back().expect("never empty");
        let expected = each.iter().enumerate();
        let expected =
            expected.filter(|(place, (_, count))| *place == 0 || *count >= SECOND_TARGET_REQUESTS);
        let expected = expected.map(|(_, (arguments, _))| Command {
            arguments: arguments.to_vec(),
            ..last.clone()
        });
        expected.take(EXPECTED_LIMIT).collect()
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
    fn frequent_targets_are_expected() {
        let mut asked = ExpectedTargets::expecting(make("all", "/a"));
        assert_eq!(asked.expected(), [make("all", "/a")]);
        asked.add(make("clean", "/b"));
        assert_eq!(
            asked.expected(),
            [make("all", "/b")],
            "as it was asked for last"
        );
        asked.add(make("test", "/b"));
        assert_eq!(asked.expected(), [make("all", "/b")]);
        asked.add(make("test", "/b"));
        assert_eq!(
            asked.expected(),
            [make("test", "/b"), make("all", "/b")],
            "the last of those that are as frequent"
        );
        for _ in 0..6 {
            asked.add(make("all", "/b"));
        }
        assert_eq!(asked.expected(), [make("all", "/b"), make("test", "/b")]);
        for _ in 0..100 {
            asked.add(make("all", "/b"));
        }
        assert_eq!(asked.expected(), [make("all", "/b")]);
        assert_eq!(asked.lately.len(), HISTORY_LENGTH);
    }
}
