use super::Beginnings;
use crate::error::Unprotected;
use crate::len64;
use crate::pool::{Budget, Pool};
use crate::request::Request;
use crate::summary::Position;
use wire::SeqNumber;

struct Case {
    pool: Pool,
    held: u64,
    limit: u64,
    beginnings: Beginnings,
}

impl Case {
    fn new(limit: u64) -> Self {
        Self {
            pool: Pool::new(u64::MAX),
            held: 0,
            limit,
            beginnings: Beginnings::from(1),
        }
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Beginnings, &mut Budget<'_>) -> T) -> T {
        let mut budget = Budget {
            pool: &mut self.pool,
            held: &mut self.held,
            limit: self.limit,
        };
        let done = act(&mut self.beginnings, &mut budget);
        assert_eq!(self.held, len64(self.beginnings.really_held()));
        done
    }

    fn push(&mut self, instream: u64, outstream: u64) -> Result<Option<u64>, Unprotected> {
        let turn = Request {
            instream,
            outstream,
        };
        self.with(|beginnings, budget| beginnings.push(turn, budget))
    }

    fn all(&self) -> Vec<(u32, u32)> {
        let numbers = |at: Position| (at.instream.0, at.outstream.0);
        self.beginnings.iter().map(numbers).collect()
    }
}

#[test]
fn input_without_output_is_no_beginning() {
    let mut case = Case::new(u64::MAX);
    for (instream, outstream) in [(1, 1), (10, 21), (12, 21), (14, 30)] {
        assert_eq!(case.push(instream, outstream), Ok(None));
    }
    assert_eq!(case.all(), [(10, 21), (14, 30)]);
}

/// A client that receives more output before the next byte had not sent there before.
#[test]
fn last_output_before_input_counts() {
    let mut case = Case::new(u64::MAX);
    for (instream, outstream, before) in [
        (10, 21, None),
        (10, 30, Some(21)),
        (10, 25, None),
        (12, 40, None),
        (12, 50, Some(40)),
    ] {
        assert_eq!(case.push(instream, outstream), Ok(before));
    }
    assert_eq!(case.all(), [(10, 30), (12, 50)]);
}

/// Also where the numbers come round.
#[test]
fn unrecorded_input_has_no_beginning() {
    let mut case = Case::new(u64::MAX);
    let far = (1 << 32) - 5;
    for at in [far, far + 4, far + 9, far + 20] {
        assert_eq!(case.push(at, at), Ok(None));
    }
    case.with(|beginnings, budget| beginnings.drop_before(far + 4, budget));
    assert_eq!(case.all(), [(4, 4), (15, 15)]);
    case.with(|beginnings, budget| beginnings.drop_before(far + 30, budget));
    assert_eq!((case.all(), case.held), (vec![], 0));
    assert_eq!(case.push(far + 31, far + 25), Ok(None));
    assert_eq!(SeqNumber(26), SeqNumber(case.all()[0].0));
}

#[test]
fn memory_is_reserved() {
    let mut case = Case::new(20);
    assert_eq!(case.push(2, 2), Ok(None));
    assert_eq!(case.push(3, 3), Ok(None));
    assert_eq!(case.push(4, 4), Err(Unprotected::ConnectionLimit));
    case.with(Beginnings::clear);
    assert_eq!(case.held, 0);
}
