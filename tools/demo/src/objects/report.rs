//! The result of a scene.

use std::time::Duration;

use super::clients::Client;
use crate::timeline::say;

/// A client that got every byte.
pub(super) struct Outcome {
    pub(super) bytes: u64,
    /// The longest time without a byte, if the client passes bytes on at once; otherwise zero.
    pub(super) pause: Duration,
}

pub(super) struct Report {
    /// Of each client; an error: why the client failed.
    pub(super) outcomes: Vec<(Client, Result<Outcome, String>)>,
}

impl Report {
    /// Prints the last line. `true` if no client was broken.
    pub(super) fn print(&self, scene: &str) -> bool {
        for (client, outcome) in &self.outcomes {
            if let Err(error) = outcome {
                say(&format!("  BROKEN: {client:?}: {error}"));
            }
        }
        let whole = || self.outcomes.iter().flat_map(|(_, outcome)| outcome);
        let bytes: u64 = whole().map(|outcome| outcome.bytes).sum();
        let pause = whole().map(|outcome| outcome.pause).max();
        let broken = self.broken();
        say(&format!(
            "{scene}: {} clients, {broken} broken, {bytes} bytes identical, longest pause {} ms",
            self.outcomes.len(),
            pause.unwrap_or_default().as_millis()
        ));
        broken == 0
    }

    /// Prints how many clients were broken, and of which kinds.
    pub(super) fn print_broken(&self) {
        let kinds = Client::ALL.map(|(kind, count)| {
            let broken = { self.outcomes.iter() }
                .filter(|(client, outcome)| *client == kind && outcome.is_err());
            format!("{kind:?} {} of {count}", broken.count())
        });
        say(&format!("  broken: {}", kinds.join(", ")));
        say(&format!(
            "nftables: {} of {} clients broken",
            self.broken(),
            self.outcomes.len()
        ));
    }

    fn broken(&self) -> usize {
        let broken = { self.outcomes.iter() }.filter(|(_, outcome)| outcome.is_err());
        broken.count()
    }
}
