//! The results of a run: steps, seconds, counts.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Counts of passed and failed checks. A step that is a single command counts as a single check.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Counts {
    pub(crate) fn one(passed: bool) -> Self {
        Self {
            passed: passed.into(),
            failed: (!passed).into(),
        }
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

struct Line {
    name: String,
    took: Duration,
    counts: Counts,
}

/// The finished steps of a run.
#[derive(Default)]
pub(crate) struct Report(Vec<Line>);

impl Report {
    /// Runs a step and notes the seconds and counts. A step that cannot be started has failed.
    pub(crate) fn step(&mut self, name: &str, run: impl FnOnce() -> Result<Counts>) -> Counts {
        println!("==> {name}");
        let start = Instant::now();
        let counts = run().unwrap_or_else(|error| {
            println!("{name}: {error:#}");
            Counts::one(false)
        });
        self.0.push(Line {
            name: name.to_owned(),
            took: start.elapsed(),
            counts,
        });
        counts
    }

    fn total(&self) -> Counts {
        let counts = self.0.iter().map(|line| line.counts);
        counts.fold(Counts::default(), Counts::and)
    }

    /// Prints the table, the way to repeat the run, and the last line. Returns whether all passed.
    pub(crate) fn finish(&self, repeat: &str) -> bool {
        let whole: Duration = self.0.iter().map(|line| line.took).sum();
        println!("\n  seconds  step");
        for Line { name, took, counts } in &self.0 {
            println!("{:>9}  {name}: {counts}", took.as_secs());
        }
        println!("{:>9}  in all", whole.as_secs());
        println!("repeat: {repeat}");
        let total = self.total();
        println!("{total}");
        total.failed == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_with_a_failing_step_goes_on_and_fails() {
        let mut report = Report::default();
        report.step("one", || Ok(Counts::one(false)));
        report.step("two", || anyhow::bail!("no such program"));
        report.step("three", || {
            Ok(Counts {
                passed: 5,
                failed: 0,
            })
        });
        assert_eq!(
            report.total(),
            Counts {
                passed: 5,
                failed: 2
            }
        );
        assert!(!report.finish("again"));
    }

    #[test]
    fn report_without_failures_succeeds() {
        let mut report = Report::default();
        report.step("one", || Ok(Counts::one(true)));
        assert!(report.finish("again"));
    }
}
