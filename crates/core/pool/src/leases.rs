//! The leases of a member: of one balancer, or of several balancers with a common register.
//!
//! With several balancers, the member sends by the leases of all granters of the newest table, and only if it is in
//! this table: see the rules of the [`Monitor`](crate::Monitor).
//!
//! The caller enforces [`Leases::speech`] **before** sending [`Leases::due`]: a message tells a balancer by which table
//! the member sends.

use alloc::vec::Vec;
use core::time::Duration;

use lease::{Speech, Terms, pool::MemberLease};
use protocol::pool::{BalancerId, Granter, MemberMessage, MembershipState, Table};

/// Time in which a granter may answer for the first time. The member tells nothing until then: the lack of a lease
/// would look like the death of the granter.
const FIRST_LEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// The way to a balancer: a position in the list of balancers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link(
    /// 0 for the first.
    pub usize,
);

#[derive(Debug, Clone)]
struct LinkState {
    balancer: Option<BalancerId>,
    lease: MemberLease,
    is_connected: bool,
    /// The newest statement on the stream.
    told: Option<(u64, Vec<BalancerId>)>,
}

/// The leases of this member. Times are those of the member's clock.
#[derive(Debug, Clone)]
pub struct Leases {
    membership: u64,
    links: Vec<LinkState>,
    table: Table,
    /// The member is, or was, in a table.
    was_in_table: bool,
    is_over: bool,
    /// Since when the table has these granters.
    granters_since: Duration,
}

impl Leases {
    /// A silent member with this many balancers.
    #[must_use]
    pub fn new(membership: u64, terms: Terms, balancers: usize, now: Duration) -> Self {
        let link = LinkState {
            balancer: None,
            lease: MemberLease::new(terms),
            is_connected: false,
            told: None,
        };
        Self {
            membership,
            links: alloc::vec![link; balancers],
            table: Table {
                epoch: 0,
                kind: types::TableKind::Maglev,
                members: Vec::new(),
                granters: Vec::new(),
            },
            was_in_table: false,
            is_over: false,
            granters_since: now,
        }
    }

    /// The newest table.
    #[must_use]
    pub const fn table(&self) -> &Table {
        &self.table
    }

    /// State of the membership, for the first message of a stream.
    #[must_use]
    pub fn state(&self, now: Duration) -> MembershipState {
        let is_shared = self.links.iter().any(|link| link.balancer.is_some());
        match self.speech().at(now) {
            true => MembershipState::Speaks,
            // In a table of several balancers, or admitted by the only balancer.
            false if self.was_in_table || !is_shared => MembershipState::Silent,
            false => MembershipState::New,
        }
    }

    /// The balancer of the link has admitted the member. The next request is due at once.
    pub fn on_connect(&mut self, link: Link) {
        if let Some(state) = self.links.get_mut(link.0) {
            state.is_connected = true;
            state.told = None;
            state.lease.on_reconnect();
        }
    }

    /// The stream is lost.
    pub fn on_lost(&mut self, link: Link) {
        if let Some(state) = self.links.get_mut(link.0) {
            state.is_connected = false;
        }
    }

    /// The balancer of the link.
    pub fn on_granter(&mut self, link: Link, balancer: BalancerId) {
        if let Some(state) = self.links.get_mut(link.0) {
            state.balancer = Some(balancer);
        }
    }

    /// Whether the balancer of the link shares a register with other balancers.
    #[must_use]
    pub fn is_granter(&self, link: Link) -> bool {
        let state = self.links.get(link.0);
        state.is_some_and(|state| state.balancer.is_some())
    }

    /// Takes a table. Returns whether this is the newest table.
    pub fn on_table(&mut self, table: Table, now: Duration) -> bool {
        if table.epoch <= self.table.epoch {
            return false;
        }
        let ids = |table: &Table| {
            table
                .granters
                .iter()
                .map(|it| it.balancer)
                .collect::<Vec<_>>()
        };
        if ids(&self.table) != ids(&table) {
            self.granters_since = now;
        }
        self.table = table;
        let is_in = self.is_in_table();
        if self.was_in_table && !is_in && !self.table.granters.is_empty() {
            self.silence();
        }
        self.was_in_table |= is_in;
        true
    }

    /// Takes the answer to a request. Returns whether [`Leases::speech`] may have changed.
    pub fn on_grant(&mut self, link: Link, number: u64, term: Duration) -> bool {
        let state = self.links.get_mut(link.0);
        !self.is_over && state.is_some_and(|state| state.lease.on_grant(number, term))
    }

    /// The membership is over: silent from now on, for good.
    pub fn silence(&mut self) {
        self.is_over = true;
        for state in &mut self.links {
            state.lease.silence();
        }
    }

    /// Another table declares the member dead, or the member was silenced.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// When [`Leases::due`] has a message for the balancer.
    #[must_use]
    pub fn due_at(&self, link: Link, now: Duration) -> Option<Duration> {
        let state = self.links.get(link.0).filter(|it| it.is_connected)?;
        match self.has_news(state, now) {
            true => Some(now),
            false => Some(state.lease.asks_at()),
        }
    }

    /// The messages that are due, to be sent not before `now`.
    pub fn due(&mut self, link: Link, now: Duration) -> Vec<MemberMessage> {
        let mut messages = Vec::new();
        let Some(state) = self.links.get(link.0).filter(|it| it.is_connected) else {
            return messages;
        };
        let news = self.has_news(state, now).then(|| self.statement(now));
        let Some(state) = self.links.get_mut(link.0) else {
            return messages;
        };
        if let Some(statement) = news.flatten() {
            let (epoch, lacks) = statement.clone();
            messages.push(MemberMessage::Enforces { epoch, lacks });
            state.told = Some(statement);
        }
        if now >= state.lease.asks_at()
            && let Some((number, answered)) = state.lease.ask(now)
        {
            messages.push(MemberMessage::LeaseRequest { number, answered });
        }
        messages
    }

    /// Until when the member may send.
    #[must_use]
    pub fn speech(&self) -> Speech {
        if self.is_over {
            return Speech::Silent;
        }
        if self.table.granters.is_empty() {
            // Several balancers without a register do not know of each other.
            return match self.links.as_slice() {
                [only] if only.balancer.is_none() => only.lease.speech(),
                _ => Speech::Silent,
            };
        }
        let mut end = Duration::MAX;
        for granter in &self.table.granters {
            match self.end_of(granter.balancer) {
                Some(of) => end = end.min(of),
                None => return Speech::Silent,
            }
        }
        match self.is_in_table() {
            true => Speech::Until(end),
            false => Speech::Silent,
        }
    }

    fn is_in_table(&self) -> bool {
        let mut entries = self.table.members.iter();
        entries.any(|entry| entry.membership == self.membership)
    }

    /// End of the longest lease of this granter.
    fn end_of(&self, balancer: BalancerId) -> Option<Duration> {
        let of = self.links.iter().filter(|it| it.balancer == Some(balancer));
        let ends = of.filter_map(|it| match it.lease.speech() {
            Speech::Until(end) => Some(end),
            Speech::Silent | Speech::Free => None,
        });
        ends.max()
    }

    fn has_news(&self, state: &LinkState, now: Duration) -> bool {
        let statement = self.statement(now);
        state.balancer.is_some() && statement.is_some() && statement != state.told
    }

    /// The epoch, and the granters whose lease the member lacks. `None`: a granter may still answer.
    fn statement(&self, now: Duration) -> Option<(u64, Vec<BalancerId>)> {
        let has_waited = now >= self.granters_since.saturating_add(FIRST_LEASE_TIMEOUT);
        let mut lacks = Vec::new();
        for Granter { balancer, .. } in &self.table.granters {
            let is_connected =
                { self.links.iter() }.any(|it| it.balancer == Some(*balancer) && it.is_connected);
            match self.end_of(*balancer) {
                Some(end) if is_connected && now < end => {}
                None if !has_waited => return None,
                _ => lacks.push(*balancer),
            }
        }
        Some((self.table.epoch, lacks))
    }
}
