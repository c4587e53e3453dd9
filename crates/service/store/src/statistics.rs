//! Counts and times of a store, for metrics.

use std::{collections::BTreeMap, time::Duration};

use metrics::Histogram;

use crate::{Failure, OperationKind, Outcome};

/// Counts and times since the beginning.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Statistics {
    operations: BTreeMap<(OperationKind, &'static str), u64>,
    times: BTreeMap<OperationKind, Histogram>,
    /// Connections that the store has accepted.
    pub connections: u64,
    /// Connections and attempts to connect that have failed.
    pub disconnections: u64,
    /// Outcomes that came after the time limit.
    pub late_replies: u64,
}

impl Statistics {
    /// Counts of operations by kind and outcome.
    pub fn operations(&self) -> impl Iterator<Item = (OperationKind, &'static str, u64)> {
        self.operations
            .iter()
            .map(|((kind, outcome), count)| (*kind, *outcome, *count))
    }

    /// How often operations of this kind had this outcome.
    #[must_use]
    pub fn count(&self, kind: OperationKind, outcome: &str) -> u64 {
        let counts = self
            .operations()
            .filter(|(other, label, _)| (*other, *label) == (kind, outcome));
        counts.map(|(_, _, count)| count).sum()
    }

    /// Times from the submission to the answer of the store, seconds. Operations without an answer are left out.
    #[must_use]
    pub fn times(&self, kind: OperationKind) -> Option<&Histogram> {
        self.times.get(&kind)
    }

    pub(crate) fn observe(
        &mut self,
        kind: OperationKind,
        result: &Result<Outcome, Failure>,
        time: Duration,
    ) {
        *self.operations.entry((kind, label(result))).or_default() += 1;
        let has_answer = !matches!(
            result,
            Err(Failure::Unreachable(_)
                | Failure::ConnectionLost(_)
                | Failure::TimedOut
                | Failure::Unsupported)
        );
        if has_answer {
            self.times
                .entry(kind)
                .or_default()
                .observe(time.as_secs_f64());
        }
    }
}

fn label(result: &Result<Outcome, Failure>) -> &'static str {
    match result {
        Ok(Outcome::Found(values)) if values.is_empty() => "missing",
        Ok(Outcome::Deleted { existed: false } | Outcome::Renewed { exists: false }) => "missing",
        Ok(_) => "ok",
        Err(failure) => failure.label(),
    }
}
