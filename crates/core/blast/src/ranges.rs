/// Blasts of a transfer that are whole: ranges, ascending, with gaps between.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlastRanges {
    ranges: Vec<(u32, u32)>,
}

impl BlastRanges {
    /// No blast.
    #[must_use]
    pub const fn new() -> Self {
        Self { ranges: Vec::new() }
    }

    /// Adds the blasts from `start` to `end` (not included).
    pub fn insert(&mut self, start: u32, end: u32) {
        if start >= end {
            return;
        }
        let first = self.ranges.partition_point(|range| range.1 < start);
        let after = self.ranges.partition_point(|range| range.0 <= end);
        let joined = self.ranges[first..after]
            .iter()
            .fold((start, end), |all, range| {
                (all.0.min(range.0), all.1.max(range.1))
            });
        self.ranges.splice(first..after, [joined]);
    }

    /// Whether the blast is in a range.
    #[must_use]
    pub fn contains(&self, blast: u32) -> bool {
        let after = self.ranges.partition_point(|range| range.0 <= blast);
        self.ranges[..after]
            .last()
            .is_some_and(|range| blast < range.1)
    }

    /// The first blast from `blast` on that is in no range.
    #[must_use]
    pub fn first_gap(&self, blast: u32) -> u32 {
        let after = self.ranges.partition_point(|range| range.0 <= blast);
        match self.ranges[..after].last() {
            Some(range) if blast < range.1 => range.1,
            _ => blast,
        }
    }

    /// The ranges: the first blast, and the first blast behind.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.ranges.iter().copied()
    }

    /// Number of blasts.
    #[must_use]
    pub fn count(&self) -> u64 {
        let lengths = self.ranges.iter().map(|range| u64::from(range.1 - range.0));
        lengths.sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_are_a_set_of_blasts(inserted in prop::collection::vec((0..60_u32, 0..12_u32), 0..12)) {
            let (mut ranges, mut model) = (BlastRanges::new(), BTreeSet::new());
            for (start, len) in inserted {
                ranges.insert(start, start + len);
                model.extend(start..start + len);
            }
            prop_assert_eq!(ranges.count(), model.len() as u64);
            for blast in 0..80 {
                prop_assert_eq!(ranges.contains(blast), model.contains(&blast));
                let gap = (blast..).find(|it| !model.contains(it));
                prop_assert_eq!(Some(ranges.first_gap(blast)), gap);
            }
            let all: Vec<_> = ranges.iter().collect();
            prop_assert!(all.windows(2).all(|pair| pair[0].1 < pair[1].0));
        }
    }
}
