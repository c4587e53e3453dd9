//! Draws a run's share of the long matrices from the seed.

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// The number of parts of the simulator's schedules.
pub(crate) const PARTS: u32 = 12;

/// Draws from a seed. Two runs with the same seed, and the same tests, draw the same.
pub(crate) struct Share(SmallRng);

impl Share {
    pub(crate) fn of(seed: u64) -> Self {
        Self(SmallRng::seed_from_u64(seed))
    }

    /// Draws a share, one in `one_of`, of the given names; at least one name, in sorted order.
    pub(crate) fn draw(&mut self, mut names: Vec<String>, one_of: usize) -> Vec<String> {
        names.sort();
        let count = names.len().div_ceil(one_of);
        let mut drawn: Vec<_> = names.choose_multiple(&mut self.0, count).cloned().collect();
        drawn.sort();
        drawn
    }

    /// A part of the simulator's schedules, in the form of `OUTLIVE_SIM_PART`: `3/8`.
    pub(crate) fn schedules(&mut self) -> String {
        format!("{}/{PARTS}", self.0.random_range(0..PARTS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("row {number}")).collect()
    }

    #[test]
    fn share_with_equal_seeds_is_equal() {
        let draw = |seed| Share::of(seed).draw(names(40), 2);
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn share_of_a_half_has_half_of_the_names() {
        let drawn = Share::of(1).draw(names(41), 2);
        assert_eq!(drawn.len(), 21);
        assert!(drawn.iter().all(|name| names(41).contains(name)));
    }

    #[test]
    fn share_of_few_names_is_not_empty() {
        assert_eq!(Share::of(1).draw(names(1), 4).len(), 1);
        assert!(Share::of(1).draw(names(0), 4).is_empty());
    }

    #[test]
    fn every_name_is_drawn_by_some_seed() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..64 {
            seen.extend(Share::of(seed).draw(names(20), 4));
        }
        assert_eq!(seen.len(), 20);
    }
}
