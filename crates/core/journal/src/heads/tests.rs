use super::Heads;
use crate::error::Unprotected;
use crate::len64;
use crate::pool::{Budget, Pool};
use crate::statistics::ByteCounts;

/// Heads with a separate pool.
struct Case {
    pool: Pool,
    held: u64,
    limit: u64,
    heads: Heads,
    counts: ByteCounts,
}

impl Case {
    fn new() -> Self {
        Self {
            pool: Pool::new(u64::MAX),
            held: 0,
            limit: u64::MAX,
            heads: Heads::new(),
            counts: ByteCounts::default(),
        }
    }

    fn budget(&mut self) -> (&mut Heads, &mut ByteCounts, Budget<'_>) {
        let budget = Budget {
            pool: &mut self.pool,
            held: &mut self.held,
            limit: self.limit,
        };
        (&mut self.heads, &mut self.counts, budget)
    }

    fn record(&mut self, position: u64, bytes: &[u8]) -> Result<(), Unprotected> {
        let (heads, counts, mut budget) = self.budget();
        let done = heads.record(position, bytes, counts, &mut budget);
        assert_eq!(self.held, len64(self.heads.really_held()));
        done
    }

    fn all(&self) -> Vec<(u64, &[u8])> {
        self.heads.iter().collect()
    }
}

#[test]
fn adjacent_parts_are_joined() {
    for order in [[0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 0, 2]] {
        let parts: [(u64, &[u8]); 3] = [(10, b"abc"), (13, b"def"), (16, b"ghi")];
        let mut case = Case::new();
        for part in order {
            case.record(parts[part].0, parts[part].1).expect("no limit");
        }
        assert_eq!(case.all(), [(10, &b"abcdefghi"[..])]);
    }
}

#[test]
fn first_write_wins_and_gaps_stay() {
    let mut case = Case::new();
    case.record(10, b"cd").expect("no limit");
    case.record(20, b"xyz").expect("no limit");
    case.record(8, b"abXdef").expect("no limit");
    assert_eq!(case.all(), [(8, &b"abcdef"[..]), (20, &b"xyz"[..])]);
    let ByteCounts {
        recorded,
        duplicate,
        conflicting,
        ..
    } = case.counts;
    assert_eq!((recorded, duplicate, conflicting), (9, 2, 1));
    assert_eq!(case.heads.at(10), b"cdef");
    assert_eq!(case.heads.at(14), b"");
    assert_eq!(case.heads.at(99), b"");
}

#[test]
fn bytes_before_position_end_at_gap() {
    let mut case = Case::new();
    case.record(5, b"abc").expect("no limit");
    case.record(10, b"defgh").expect("no limit");
    for (position, floor, expected) in [
        (15, 0, &b"defgh"[..]),
        (13, 0, b"def"),
        (13, 11, b"ef"),
        (8, 7, b"c"),
        (8, 8, b""),
        (8, 20, b""),
        (9, 0, b""),
        (10, 0, b""),
        (16, 0, b""),
        (5, 0, b""),
        (1, 0, b""),
    ] {
        assert_eq!(case.heads.until(position, floor), expected, "{position}");
    }
}

#[test]
fn dropped_bytes_stay_dropped() {
    let mut case = Case::new();
    case.record(1, b"first").expect("no limit");
    case.record(10, b"second").expect("no limit");
    let (heads, _, mut budget) = case.budget();
    heads.drop_before(12, &mut budget);
    assert_eq!(case.all(), [(12, &b"cond"[..])]);
    case.record(8, b"late: an longer").expect("no limit");
    assert_eq!(case.all(), [(12, &b"cond longer"[..])]);
    assert_eq!(case.counts.outside, 4);
    case.record(1, b"late").expect("no limit");
    assert_eq!(case.counts.outside, 8);

    let (heads, _, mut budget) = case.budget();
    heads.clear(&mut budget);
    assert_eq!((case.held, case.pool.in_use()), (0, 0));
}

#[test]
fn limit_during_join_keeps_accounting() {
    let mut case = Case::new();
    case.record(1, &[1; 100]).expect("no limit");
    case.record(201, &[2; 100]).expect("no limit");
    case.limit = case.held + 100;
    // The gap closes, but there is no memory for a third vector of 300 bytes beside both.
    assert_eq!(
        case.record(101, &[3; 100]),
        Err(Unprotected::ConnectionLimit)
    );
    let (heads, _, mut budget) = case.budget();
    heads.clear(&mut budget);
    assert_eq!((case.held, case.pool.in_use()), (0, 0));
}
