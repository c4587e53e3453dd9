//! How often something took how long.

use serde::{Deserialize, Serialize};

/// Upper bounds of the classes, seconds; a further class has no bound. From the commit of a fast disk to the usual
/// longest wait of a connection for a server.
const BUCKET_BOUNDS: [f64; 16] = [
    0.000_1, 0.000_25, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 60.0,
];

/// Times in classes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Counts in the order of the bounds; missing counts at the end are 0.
    classes: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// Counts a duration, seconds.
    pub fn observe(&mut self, seconds: f64) {
        let class = BUCKET_BOUNDS.iter().position(|bound| seconds <= *bound);
        self.classes.resize(BUCKET_BOUNDS.len() + 1, 0);
        self.classes[class.unwrap_or(BUCKET_BOUNDS.len())] += 1;
        self.sum += seconds;
    }

    /// Sum of all durations, seconds.
    pub(crate) const fn sum(&self) -> f64 {
        self.sum
    }

    /// How often.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// Each class with its upper bound, the last with infinity.
    pub(crate) fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = BUCKET_BOUNDS.into_iter().chain([f64::INFINITY]);
        let counts = self.classes.iter().copied().chain(std::iter::repeat(0));
        bounds.zip(counts).collect()
    }
}
