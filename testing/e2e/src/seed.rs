//! Randomness that can be had again.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Source of a test's random choices: `OUTLIVE_SEED` if set, else fresh.
#[derive(Debug, Clone)]
pub struct Seed {
    value: u64,
    rng: SmallRng,
}

impl Seed {
    /// Chooses a seed and prints how to repeat the choice; the test harness shows that when the test fails.
    ///
    /// # Panics
    /// When `OUTLIVE_SEED` is no number.
    #[must_use]
    pub fn choose(case: &str) -> Self {
        let value: u64 = match std::env::var("OUTLIVE_SEED") {
            Ok(text) => text.parse().expect("OUTLIVE_SEED is a number"),
            Err(_) => SmallRng::from_os_rng().random(),
        };
        eprintln!("{case}: repeat with OUTLIVE_SEED={value}");
        // All tests of a run share a seed, but each test makes different choices.
        let mut own = DefaultHasher::new(); // SipHash with fixed keys: the same in every process
        (value, case).hash(&mut own);
        Self {
            value,
            rng: SmallRng::seed_from_u64(own.finish()),
        }
    }

    /// The number to give again.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.value
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        self.rng.random_range(low..=high)
    }
}

impl From<u64> for Seed {
    fn from(value: u64) -> Self {
        Self {
            value,
            rng: SmallRng::seed_from_u64(value),
        }
    }
}
