//! Claims of unknown connections: of several members, one goes on with a connection.
//!
//! A member that gets a segment of an unknown connection asks every other member of the newest table. Only when all
//! have denied, the member goes on ([`Outcome::Won`]). A member that serves the connection, or goes on with it, says
//! so, and gets the segments ([`Outcome::Lost`]). A dead member is in no table. Of two members that ask at the same
//! time, the lower membership wins.
//!
//! A claim asks the members of the newest table that the claiming member knows. A connection at a member that is in no
//! such table would be revived although it lives. So a new member begins no connection before all members of its first
//! table have said that they know it ([`Claims::is_known`]). Later members have it in their first table.
//!
//! Questions and answers may be lost, late and doubled. Time is an argument.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use protocol::pool::{Claim, ClaimKind};
use wire::FlowKey;

/// A question is asked again after this time.
const REPEAT_INTERVAL: Duration = Duration::from_millis(5);
/// A claim is given up after this time: the client's next segment begins a new claim.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(1);
/// Most claims at a time.
const CLAIMS_MAX: usize = 16_384;

/// In the place of the connection of a greeting.
const NO_CONNECTION: FlowKey = FlowKey::new(
    SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
);

/// A datagram for a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addressed {
    /// Membership of the receiver.
    pub to: u64,
    /// The datagram.
    pub claim: Claim,
}

/// The end of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The member goes on with the connection.
    Won,
    /// The member with this membership has the connection.
    Lost(u64),
}

#[derive(Debug)]
struct Underway {
    number: u64,
    waiting: BTreeSet<u64>,
    repeat_at: Duration,
    give_up_at: Duration,
}

/// The claims of a member.
#[derive(Debug)]
pub struct Claims {
    own: u64,
    others: BTreeSet<u64>,
    next_number: u64,
    /// Members that have not said yet that they know this member; `None` before the first table with this member.
    unaware: Option<BTreeSet<u64>>,
    greet_at: Duration,
    underway: BTreeMap<FlowKey, Underway>,
}

impl Claims {
    /// `own`: the membership of this member. `first_number`: larger than the numbers of an earlier process.
    #[must_use]
    pub const fn new(own: u64, first_number: u64) -> Self {
        Self {
            own,
            others: BTreeSet::new(),
            next_number: first_number,
            unaware: None,
            greet_at: Duration::ZERO,
            underway: BTreeMap::new(),
        }
    }

    /// The memberships of the newest table. Claims that wait only for members that are gone are won.
    pub fn set_members(&mut self, members: impl IntoIterator<Item = u64>) -> Vec<FlowKey> {
        let members: BTreeSet<u64> = members.into_iter().collect();
        let is_member = members.contains(&self.own);
        self.others = members;
        self.others.remove(&self.own);
        match &mut self.unaware {
            Some(unaware) => unaware.retain(|other| self.others.contains(other)),
            None if is_member => self.unaware = Some(self.others.clone()),
            None => {}
        }
        let others = &self.others;
        for claim in self.underway.values_mut() {
            claim.waiting.retain(|it| others.contains(it));
        }
        let won = self.underway.iter().filter(|(_, it)| it.waiting.is_empty());
        let won: Vec<FlowKey> = won.map(|(key, _)| *key).collect();
        for key in &won {
            self.underway.remove(key);
        }
        won
    }

    /// Whether connections may begin at this member.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.unaware.as_ref().is_some_and(BTreeSet::is_empty)
    }

    /// Begins a claim. `Some` if nobody has to be asked.
    pub fn begin(&mut self, key: FlowKey, now: Duration) -> Option<Outcome> {
        if self.others.is_empty() {
            return Some(Outcome::Won);
        }
        if self.underway.len() < CLAIMS_MAX && !self.underway.contains_key(&key) {
            let claim = Underway {
                number: self.next_number,
                waiting: self.others.clone(),
                repeat_at: now,
                give_up_at: now + CLAIM_TIMEOUT,
            };
            self.next_number += 1;
            self.underway.insert(key, claim);
        }
        None
    }

    /// Whether a claim of the connection is under way.
    #[must_use]
    pub fn is_underway(&self, key: &FlowKey) -> bool {
        self.underway.contains_key(key)
    }

    /// When [`Claims::due`] has something to send.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let greets = self
            .unaware
            .as_ref()
            .is_some_and(|unaware| !unaware.is_empty());
        let repeats = self.underway.values().map(|it| it.repeat_at);
        repeats.chain(greets.then_some(self.greet_at)).min()
    }

    /// Questions that are due. Claims that nobody answers are given up.
    pub fn due(&mut self, now: Duration) -> Vec<Addressed> {
        self.underway.retain(|_, it| it.give_up_at > now);
        let own = self.own;
        let greetings = self.greetings(now);
        let due = self
            .underway
            .iter_mut()
            .filter(|(_, it)| it.repeat_at <= now);
        let questions = due.flat_map(|(key, it)| {
            it.repeat_at = now + REPEAT_INTERVAL;
            let claim = Claim {
                kind: ClaimKind::Ask,
                membership: own,
                number: it.number,
                key: *key,
            };
            it.waiting
                .iter()
                .map(move |to| Addressed { to: *to, claim })
        });
        questions.chain(greetings).collect()
    }

    fn greetings(&mut self, now: Duration) -> Vec<Addressed> {
        let Some(unaware) = self.unaware.as_ref().filter(|_| self.greet_at <= now) else {
            return Vec::new();
        };
        self.greet_at = now + REPEAT_INTERVAL;
        let claim = Claim {
            kind: ClaimKind::Greet,
            membership: self.own,
            number: 0,
            key: NO_CONNECTION,
        };
        let to = unaware.iter();
        to.map(|to| Addressed { to: *to, claim }).collect()
    }

    /// Answers a greeting. `None`: this member does not know the sender yet, who will greet a second time.
    #[must_use]
    pub fn answer_greeting(&self, greeting: &Claim) -> Option<Addressed> {
        let sender = greeting.membership;
        self.others.contains(&sender).then_some(Addressed {
            to: sender,
            claim: Claim {
                kind: ClaimKind::Knows,
                membership: self.own,
                ..*greeting
            },
        })
    }

    /// Answers a question. `has`: this member serves the connection, or goes on with it.
    pub fn answer(&mut self, question: &Claim, has: bool) -> Addressed {
        let prevails = self.own < question.membership && self.is_underway(&question.key);
        if !has && !prevails {
            // The other member wins: of two claims, the question's claim is left.
            self.underway.remove(&question.key);
        }
        let kind = if has || prevails {
            ClaimKind::Has
        } else {
            ClaimKind::HasNot
        };
        Addressed {
            to: question.membership,
            claim: Claim {
                kind,
                membership: self.own,
                ..*question
            },
        }
    }

    /// Takes an answer. `Some` if the claim has ended.
    pub fn on_answer(&mut self, answer: &Claim) -> Option<Outcome> {
        if answer.kind == ClaimKind::Knows {
            if let Some(unaware) = &mut self.unaware {
                unaware.remove(&answer.membership);
            }
            return None;
        }
        let claim = self.underway.get_mut(&answer.key)?;
        if claim.number != answer.number {
            return None;
        }
        match answer.kind {
            ClaimKind::Ask | ClaimKind::Greet | ClaimKind::Knows => None,
            ClaimKind::Has => {
                self.underway.remove(&answer.key);
                Some(Outcome::Lost(answer.membership))
            }
            ClaimKind::HasNot => {
                claim.waiting.remove(&answer.membership);
                if !claim.waiting.is_empty() {
                    return None;
                }
                self.underway.remove(&answer.key);
                Some(Outcome::Won)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    fn key() -> FlowKey {
        FlowKey::new(([10, 0, 0, 1], 4000).into(), ([10, 0, 9, 9], 80).into())
    }

    struct Pool {
        members: Vec<Claims>,
        /// Members that serve the connection, or go on with it.
        serving: Vec<bool>,
        wire: Vec<Addressed>,
    }

    impl Pool {
        fn of(count: u64) -> Self {
            let members = (0..count).map(|own| {
                let mut claims = Claims::new(own, own << 32);
                claims.set_members(0..count);
                claims
            });
            Self {
                members: members.collect(),
                serving: (0..count).map(|_| false).collect(),
                wire: Vec::new(),
            }
        }

        /// A segment of the client arrives at a member.
        fn arrives(&mut self, at: usize, now: Duration) {
            if !self.serving[at] && self.members[at].begin(key(), now) == Some(Outcome::Won) {
                self.serving[at] = true;
            }
        }

        fn deliver(&mut self, index: usize) {
            let datagram = self.wire[index];
            let to = usize::try_from(datagram.to).unwrap();
            let member = &mut self.members[to];
            if datagram.claim.kind == ClaimKind::Greet {
                let answer = member.answer_greeting(&datagram.claim);
                self.wire.extend(answer);
            } else if datagram.claim.kind == ClaimKind::Ask {
                let answer = member.answer(&datagram.claim, self.serving[to]);
                self.wire.push(answer);
            } else if member.on_answer(&datagram.claim) == Some(Outcome::Won) {
                self.serving[to] = true;
            }
        }
    }

    #[test]
    fn lone_member_wins_at_once() {
        let mut alone = Claims::new(7, 0);
        assert_eq!(alone.begin(key(), Duration::ZERO), Some(Outcome::Won));
    }

    #[test]
    fn member_that_has_the_connection_keeps_it() {
        let mut pool = Pool::of(3);
        pool.serving[2] = true;
        assert_eq!(pool.members[0].begin(key(), Duration::ZERO), None);
        pool.wire = pool.members[0].due(Duration::ZERO);
        pool.wire.retain(|sent| sent.claim.kind == ClaimKind::Ask);
        for index in 0..2 {
            pool.deliver(index);
        }
        let outcomes: Vec<_> = (2..4)
            .filter_map(|index| pool.members[0].on_answer(&pool.wire[index].claim))
            .collect();
        assert_eq!(outcomes, [Outcome::Lost(2)]);
    }

    #[test]
    fn claim_is_won_when_the_last_other_member_is_dead() {
        let mut claims = Claims::new(1, 0);
        claims.set_members([1, 2]);
        claims.begin(key(), Duration::ZERO);
        assert_eq!(claims.set_members([1]), vec![key()]);
        assert!(!claims.is_underway(&key()));
    }

    #[test]
    fn new_member_is_known_when_its_first_table_is_aware() {
        let mut new = Claims::new(3, 0);
        new.set_members([1, 2]);
        assert!(!new.is_known(), "the table does not have it");
        new.set_members([1, 2, 3]);
        let greetings = new.due(Duration::ZERO);
        assert_eq!(greetings.len(), 2);
        let mut member = Claims::new(1, 0);
        member.set_members([1, 2]);
        assert_eq!(member.answer_greeting(&greetings[0].claim), None);
        member.set_members([1, 2, 3]);
        let known = member.answer_greeting(&greetings[0].claim).unwrap();
        new.on_answer(&known.claim);
        assert!(!new.is_known(), "the member 2 is silent");
        new.set_members([1, 3]);
        assert!(new.is_known(), "the member 2 is dead");
        new.set_members([1, 3, 4]);
        assert!(new.is_known(), "a later member has it in its first table");
    }

    proptest! {
        /// Whatever is lost, late, doubled and out of order: never two members go on.
        #[test]
        fn one_member_wins(steps in prop::collection::vec((0..5_u8, any::<usize>()), 0..200)) {
            let mut pool = Pool::of(3);
            let mut now = Duration::ZERO;
            for (step, choice) in steps {
                match step {
                    0 => pool.arrives(choice % 3, now),
                    1 => now += Duration::from_millis(u64::try_from(choice % 7).unwrap()),
                    2 => {
                        let sent = pool.members[choice % 3].due(now);
                        pool.wire.extend(sent);
                    }
                    // A datagram stays on the wire, and may come twice, or never.
                    _ if !pool.wire.is_empty() => pool.deliver(choice % pool.wire.len()),
                    _ => {}
                }
                let count = pool.serving.iter().filter(|it| **it).count();
                prop_assert!(count <= 1, "{count} members go on");
            }
        }
    }
}
