//! The result of a scene.

use std::time::Duration;

use crate::timeline::say;

/// A client that got every byte.
pub(super) struct Outcome {
    pub(super) bytes: u64,
    /// The longest time without a byte.
    pub(super) pause: Duration,
}

pub(super) struct Report {
    /// Of each client; an error: why the client failed.
    pub(super) outcomes: Vec<Result<Outcome, String>>,
}

impl Report {
    /// Prints the last line. `true` if no connection was broken.
    pub(super) fn print(&self, scene: &str) -> bool {
        let whole = || self.outcomes.iter().flatten();
        for error in self
            .outcomes
            .iter()
            .filter_map(|outcome| outcome.as_ref().err())
        {
            say(&format!("  BROKEN: {error}"));
        }
        let broken = self.outcomes.len() - whole().count();
        let bytes: u64 = whole().map(|outcome| outcome.bytes).sum();
        let pause = whole().map(|outcome| outcome.pause).max();
        say(&format!(
            "{scene}: {} connections, {broken} broken, {bytes} bytes identical, longest pause {} ms",
            self.outcomes.len(),
            pause.unwrap_or_default().as_millis()
        ));
        broken == 0
    }

    /// Prints how many connections were broken, and nothing else.
    pub(super) fn print_broken(&self) {
        let broken = self
            .outcomes
            .iter()
            .filter(|outcome| outcome.is_err())
            .count();
        say(&format!(
            "nftables: {broken} of {} connections broken",
            self.outcomes.len()
        ));
    }
}
