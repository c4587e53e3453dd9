//! What was expected, beside what is asked for.

use std::sync::Arc;

use super::Engine;
use crate::{command::Command, job::Job};

/// Of how many names each is told.
const TOLD: usize = 3;

impl Engine {
    /// What is told to who asks for a make that was not expected so; `None`: it was, or none is done unasked.
    pub(super) fn unexpected(&self, command: &Command) -> Option<String> {
        let is_concealed = |job: &&Arc<Job>| {
            let progress = job.progress();
            job.is_make && !progress.is_mandated && !progress.is_aborted
        };
        let jobs = self.jobs();
        let mut makes: Vec<_> = jobs.values().rev().filter(is_concealed).cloned().collect();
        drop(jobs);
        let first = makes.first()?.command.clone();
        makes.retain(|make| make.command.arguments == command.arguments);
        if makes.is_empty() {
            let [asked, expected] = [command, &first].map(words);
            return Some(format!(
                "asked for `{asked}`, and `{expected}` was expected"
            ));
        }
        let differences = makes.iter().map(|make| {
            let mut all = make.command.differs(command);
            all.extend(make.minds(command));
            all
        });
        let least = differences.min_by_key(Vec::len)?;
        (!least.is_empty())
            .then(|| format!("asked for with another {} than expected", told(&least)))
    }
}

/// As a shell would be told.
fn words(command: &Command) -> String {
    let words = command.arguments.iter();
    let words: Vec<_> = words.map(|word| word.display().to_string()).collect();
    words.join(" ")
}

fn told(names: &[String]) -> String {
    let first = names[..names.len().min(TOLD)].join(", ");
    match names.len().saturating_sub(TOLD) {
        0 => first,
        more => format!("{first} (and {more} more)"),
    }
}

#[cfg(test)]
mod tests {
    use super::told;

    #[test]
    fn few_names_are_told() {
        let names = ["A", "B", "C", "D", "E"].map(str::to_owned);
        assert_eq!(told(&names[..1]), "A");
        assert_eq!(told(&names[..3]), "A, B, C");
        assert_eq!(told(&names), "A, B, C (and 2 more)");
    }
}
