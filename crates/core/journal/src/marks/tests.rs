use super::{Mark, Marks};
use crate::error::Unprotected;
use crate::len64;
use crate::pool::{Budget, Pool};
use wire::SeqNumber;

struct Case {
    pool: Pool,
    held: u64,
    limit: u64,
    marks: Marks,
}

fn mark(next: u32, digest: u64) -> Mark {
    Mark {
        base: SeqNumber(1),
        next: SeqNumber(next),
        digest: [digest; 2],
    }
}

impl Case {
    fn new(limit: u64) -> Self {
        Self {
            pool: Pool::new(u64::MAX),
            held: 0,
            limit,
            marks: Marks::NONE,
        }
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Marks, &mut Budget<'_>) -> T) -> T {
        let mut budget = Budget {
            pool: &mut self.pool,
            held: &mut self.held,
            limit: self.limit,
        };
        let done = act(&mut self.marks, &mut budget);
        assert_eq!(self.held, len64(self.marks.really_held()));
        done
    }

    fn push(&mut self, position: u32, digest: u64) -> Result<bool, Unprotected> {
        let at = (position.into(), true);
        self.with(|marks, budget| marks.push(at, mark(position, digest), budget))
    }

    fn push_unkept(&mut self, position: u32) {
        let at = (position.into(), false);
        let pushed = self.with(|marks, budget| marks.push(at, mark(position, 1), budget));
        assert_eq!(pushed, Ok(true));
    }

    fn places(&self) -> Vec<u32> {
        self.all().iter().map(|(at, _)| *at).collect()
    }

    fn all(&self) -> Vec<(u32, u64)> {
        let numbers = |mark: Mark| (mark.next.0, mark.digest[1]);
        self.marks.iter().map(numbers).collect()
    }
}

#[test]
fn marks_are_ordered_and_unique() {
    let mut case = Case::new(u64::MAX);
    for (position, digest, is_new) in [(9, 1, true), (5, 2, true), (9, 1, false), (9, 3, true)] {
        assert_eq!(case.push(position, digest), Ok(is_new));
    }
    assert_eq!(case.all(), [(5, 2), (9, 3)]);
}

/// The place at which a replay begins is kept.
#[test]
fn unrepeated_output_has_no_mark() {
    let mut case = Case::new(u64::MAX);
    for position in [5, 9, 12] {
        assert_eq!(case.push(position, 1), Ok(true));
    }
    case.with(|marks, budget| marks.drop_before(9, budget));
    assert_eq!(case.all(), [(9, 1), (12, 1)]);
    case.with(|marks, budget| marks.drop_before(13, budget));
    assert_eq!((case.all(), case.held), (vec![], 0));
}

#[test]
fn memory_is_reserved() {
    let mut case = Case::new(50);
    assert_eq!(case.push(5, 1), Ok(true));
    assert_eq!(case.push(7, 1), Err(Unprotected::ConnectionLimit));
    case.with(Marks::clear);
    assert_eq!(case.held, 0);
}

#[test]
fn newest_received_mark_is_kept() {
    let mut case = Case::new(u64::MAX);
    for (position, is_beginning) in [
        (5, true),
        (6, false),
        (9, false),
        (12, true),
        (15, false),
        (19, false),
    ] {
        let at = (position.into(), is_beginning);
        let pushed = case.with(|marks, budget| marks.push(at, mark(position, 1), budget));
        assert_eq!(pushed, Ok(true));
    }
    for (heard, left) in [
        (5, &[5, 6, 9, 12, 15, 19][..]),
        (6, &[5, 6, 9, 12, 15, 19]),
        (14, &[5, 12, 15, 19]),
        (19, &[5, 12, 19]),
        (30, &[5, 12, 19]),
    ] {
        case.with(|marks, budget| marks.on_ack(heard, 0, budget));
        assert_eq!(case.places(), left, "{heard}");
    }
}

#[test]
fn mark_at_the_beginning_of_the_record_stays() {
    let mut case = Case::new(u64::MAX);
    for position in [5, 9, 12] {
        case.push_unkept(position);
    }
    case.with(|marks, budget| marks.on_ack(30, 5, budget));
    assert_eq!(case.places(), [5, 12]);
}

#[test]
fn unused_mark_stays_until_newer_is_received() {
    let mut case = Case::new(u64::MAX);
    assert_eq!(case.push(5, 1), Ok(true));
    case.with(|marks, _| marks.forget(5));
    case.with(|marks, budget| marks.on_ack(9, 0, budget));
    assert_eq!(case.places(), [5]);
    case.push_unkept(9);
    case.with(|marks, budget| marks.on_ack(9, 0, budget));
    assert_eq!(case.places(), [9]);
}

#[test]
fn memory_of_marks_is_freed() {
    let mut case = Case::new(u64::MAX);
    for position in 1..1000 {
        case.push_unkept(position);
    }
    let before = case.held;
    case.with(|marks, budget| marks.on_ack(2000, 0, budget));
    assert_eq!(case.places(), [999]);
    assert!(case.held * 100 < before, "{} of {before}", case.held);
}
