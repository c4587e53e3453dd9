//! Segments that wait for the end of a claim.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use protocol::pool::{Claim, ClaimKind};
use wire::FlowKey;

use crate::claims::{Addressed, Claims, Outcome};

/// Most segments that wait for the end of a claim.
const WAITING_MAX: usize = 16_384;

/// A segment whose claim has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided<T> {
    /// The segment.
    pub segment: T,
    /// Membership of the member that has the connection; `None`: this member goes on.
    pub other: Option<u64>,
}

/// Results of a datagram.
#[derive(Debug)]
pub struct Reception<T> {
    /// The answer to the sender.
    pub answer: Option<Addressed>,
    /// A claim of this member has ended.
    pub decided: Option<Decided<T>>,
}

/// The claims of a member, and the newest segment of each claimed connection.
#[derive(Debug)]
pub struct Claiming<T> {
    claims: Claims,
    waiting: BTreeMap<FlowKey, T>,
}

impl<T> Claiming<T> {
    /// See [`Claims::new`].
    #[must_use]
    pub const fn new(own: u64, first_number: u64) -> Self {
        Self {
            claims: Claims::new(own, first_number),
            waiting: BTreeMap::new(),
        }
    }

    /// Whether connections may begin at this member.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.claims.is_known()
    }

    /// When [`Claiming::due`] has something to send.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.claims.deadline()
    }

    /// The memberships of the newest table. Claims that waited for members that are gone have ended.
    pub fn set_members(&mut self, members: impl IntoIterator<Item = u64>) -> Vec<Decided<T>> {
        let won = self.claims.set_members(members);
        won.into_iter()
            .filter_map(|key| self.decided(&key, Outcome::Won))
            .collect()
    }

    /// A segment of an unknown connection. `Some` if nobody has to be asked.
    pub fn begin(&mut self, key: FlowKey, segment: T, now: Duration) -> Option<Decided<T>> {
        if self.claims.begin(key, now).is_some() {
            return Some(Decided {
                segment,
                other: None,
            });
        }
        if self.waiting.len() < WAITING_MAX || self.waiting.contains_key(&key) {
            self.waiting.insert(key, segment);
        }
        None
    }

    /// Questions that are due. Segments of claims that nobody answers are given up.
    pub fn due(&mut self, now: Duration) -> Vec<Addressed> {
        let due = self.claims.due(now);
        let claims = &self.claims;
        self.waiting.retain(|key, _| claims.is_underway(key));
        due
    }

    /// Takes a datagram of another member. `knows`: this member serves the connection, or goes on with it. `speaks`:
    /// this member has a lease.
    ///
    /// A member without a lease that knows the connection gives no answer: the lease may come back. The other member
    /// repeats the question, until this member has a lease, or is in no table.
    pub fn on_datagram(&mut self, claim: &Claim, knows: bool, speaks: bool) -> Reception<T> {
        let (mut answer, mut decided) = (None, None);
        match claim.kind {
            ClaimKind::Greet => answer = self.claims.answer_greeting(claim),
            ClaimKind::Ask if knows && !speaks => {}
            ClaimKind::Ask => answer = Some(self.claims.answer(claim, knows)),
            ClaimKind::Has | ClaimKind::HasNot | ClaimKind::Knows => {
                let outcome = self.claims.on_answer(claim);
                decided = outcome.and_then(|outcome| self.decided(&claim.key, outcome));
            }
        }
        Reception { answer, decided }
    }

    fn decided(&mut self, key: &FlowKey, outcome: Outcome) -> Option<Decided<T>> {
        let segment = self.waiting.remove(key)?;
        let other = match outcome {
            Outcome::Won => None,
            Outcome::Lost(other) => Some(other),
        };
        Some(Decided { segment, other })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Claim {
        Claim {
            kind: ClaimKind::Ask,
            membership: 2,
            number: 7,
            key: FlowKey::new(([10, 0, 0, 1], 4000).into(), ([10, 0, 9, 9], 80).into()),
        }
    }

    fn answer(knows: bool, speaks: bool) -> Option<ClaimKind> {
        let mut claiming: Claiming<()> = Claiming::new(1, 0);
        claiming.set_members([1, 2]);
        let reception = claiming.on_datagram(&asked(), knows, speaks);
        reception.answer.map(|answer| answer.claim.kind)
    }

    #[test]
    fn member_without_lease_does_not_disown_its_connection() {
        assert_eq!(answer(true, false), None);
        assert_eq!(answer(true, true), Some(ClaimKind::Has));
        assert_eq!(answer(false, false), Some(ClaimKind::HasNot));
    }

    #[test]
    fn newest_segment_waits_for_the_decision() {
        let mut claiming = Claiming::new(1, 0);
        claiming.set_members([1, 2]);
        let key = asked().key;
        assert_eq!(claiming.begin(key, "first", Duration::ZERO), None);
        assert_eq!(claiming.begin(key, "second", Duration::ZERO), None);
        let decided = claiming.set_members([1]);
        let (segment, other) = ("second", None);
        assert_eq!(decided, [Decided { segment, other }]);
    }
}
