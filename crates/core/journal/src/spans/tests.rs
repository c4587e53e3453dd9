use super::{MAX_RANGES, Part, Ranges, first_part};
use crate::error::Unprotected;
use crate::len64;
use crate::pool::{Budget, Pool};
use proptest::collection::vec;
use proptest::prelude::proptest;
use proptest::{prop_assert, prop_assert_eq};

/// Ranges with a separate pool.
struct Case {
    pool: Pool,
    held: u64,
    ranges: Ranges,
}

impl Case {
    fn new() -> Self {
        Self {
            pool: Pool::new(u64::MAX),
            held: 0,
            ranges: Ranges::EMPTY,
        }
    }

    fn parts(&mut self) -> (&mut Ranges, Budget<'_>) {
        let budget = Budget {
            pool: &mut self.pool,
            held: &mut self.held,
            limit: u64::MAX,
        };
        (&mut self.ranges, budget)
    }

    fn insert(&mut self, start: u64, end: u64) -> Result<(), Unprotected> {
        let (ranges, mut budget) = self.parts();
        ranges.insert(start..end, &mut budget)
    }

    fn absorb(&mut self, stable: u64) -> u64 {
        let (ranges, mut budget) = self.parts();
        ranges.absorb(stable, &mut budget)
    }
}

proptest! {
    /// Against a set of positions: the same positions are covered, the ranges neither overlap nor touch, and the first
    /// part of any stretch is the longest part that is all in or all out.
    #[test]
    fn ranges_equal_position_set(
        inserted in vec((0usize..300, 1usize..20), 0..40),
        (from, length) in (0usize..320, 1usize..40),
        stable in 0usize..320,
    ) {
        let mut case = Case::new();
        let mut set = [false; 400];
        for (start, length) in inserted {
            case.insert(len64(start), len64(start + length)).expect("few ranges");
            set[start..start + length].fill(true);
        }
        let ranges = case.ranges.as_slice();
        prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
        let covered: Vec<u64> = ranges.iter().cloned().flatten().collect();
        let expected: Vec<u64> = (0..400).filter(|at| set[*at]).map(len64).collect();
        prop_assert_eq!(&covered, &expected);
        prop_assert_eq!(case.ranges.covered(), len64(expected.len()));
        prop_assert_eq!(case.held, len64(case.ranges.really_held()));

        let same = (from..from + length).take_while(|at| set[*at] == set[from]).count();
        let Part { known, end, .. } = first_part(ranges, len64(from), len64(from + length));
        prop_assert_eq!((known, end), (set[from], len64(from + same)));

        let reached = (stable..400).take_while(|at| set[*at]).count();
        prop_assert_eq!(case.absorb(len64(stable)), len64(stable + reached));
        let left: Vec<u64> = case.ranges.as_slice().iter().cloned().flatten().collect();
        let expected: Vec<u64> = expected.into_iter().filter(|at| *at > len64(stable + reached)).collect();
        prop_assert_eq!(left, expected);
    }
}

#[test]
fn too_many_ranges_are_refused_and_freed() {
    let mut case = Case::new();
    for hole in 0..len64(MAX_RANGES) {
        case.insert(2 * hole + 1, 2 * hole + 2).expect("allowed");
    }
    let end = 2 * len64(MAX_RANGES);
    assert_eq!(case.insert(end + 1, end + 2), Err(Unprotected::Fragmented));
    // A range that closes a gap is still accepted.
    case.insert(2, 3).expect("no range more");
    assert_eq!(case.absorb(end), end);
    assert!(case.ranges.is_empty());
    assert_eq!((case.held, case.pool.in_use()), (0, 0));
}
