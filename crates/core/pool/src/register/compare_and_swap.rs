//! A register in a store with compare-and-swap, by which several balancers agree.
//!
//! The caller carries out the requests, one at a time. Each write names the revision of the value that it replaces.

use alloc::collections::VecDeque;
use core::time::Duration;

use protocol::pool::Table;

use super::{Register, Written};

/// Pause between two reads: other balancers write, too.
const READ_INTERVAL: Duration = Duration::from_millis(200);
/// Pause after a request that failed.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// A request to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Read the value.
    Read,
    /// Write the table if the value has this revision; 0: if there is no value. Otherwise read the value.
    Swap {
        /// The revision.
        revision: u64,
        /// The table.
        table: Table,
    },
}

/// The answer of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The value and its revision. `None`: no value. A requested write was refused.
    Value(Option<(u64, Table)>),
    /// The write has made this revision.
    Swapped(u64),
    /// The request did not reach the store.
    Unsent,
    /// The store may have carried the request out.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InFlight {
    Read,
    Swap,
}

/// The register of one balancer.
#[derive(Debug)]
pub struct CasRegister {
    /// The newest known value and its revision; revision 0: there is none.
    revision: u64,
    table: Table,
    /// This process has written: no write of a former process of this balancer is on its way.
    is_claimed: bool,
    /// A table that is to be written.
    pending: Option<Table>,
    /// An earlier request may have written the table, or may still do so.
    is_uncertain: bool,
    is_available: bool,
    in_flight: Option<InFlight>,
    next_at: Duration,
    outcomes: VecDeque<Written>,
}

impl CasRegister {
    /// A register that has read nothing. `first`: the table if the store has none.
    #[must_use]
    pub const fn new(first: Table) -> Self {
        Self {
            revision: 0,
            table: first,
            is_claimed: false,
            pending: None,
            is_uncertain: false,
            is_available: false,
            in_flight: None,
            next_at: Duration::ZERO,
            outcomes: VecDeque::new(),
        }
    }

    /// The newest known table.
    #[must_use]
    pub const fn newest(&self) -> &Table {
        &self.table
    }

    /// The next request is due at once, by any clock.
    pub const fn restart_clock(&mut self) {
        self.next_at = Duration::ZERO;
    }

    /// When [`CasRegister::request`] is due. `None`: a request is under way.
    #[must_use]
    pub fn due_at(&self) -> Option<Duration> {
        self.in_flight.is_none().then_some(self.next_at)
    }

    /// The next request, if one is due.
    pub fn request(&mut self, now: Duration) -> Option<Request> {
        if self.in_flight.is_some() || now < self.next_at {
            return None;
        }
        self.next_at = now + READ_INTERVAL;
        let (kind, request) = match &self.pending {
            Some(table) => (
                InFlight::Swap,
                Request::Swap {
                    revision: self.revision,
                    table: table.clone(),
                },
            ),
            None => (InFlight::Read, Request::Read),
        };
        self.in_flight = Some(kind);
        Some(request)
    }

    /// Takes the answer to the request.
    pub fn on_reply(&mut self, reply: Reply, now: Duration) {
        let was_swap = self.in_flight.take() == Some(InFlight::Swap);
        match reply {
            Reply::Unsent | Reply::Unknown => {
                self.is_available = false;
                self.next_at = now + RETRY_PAUSE;
                self.is_uncertain |= was_swap && reply == Reply::Unknown;
                // An uncertain write is repeated, with the same revision: the answer shows the fate of both.
                if !self.is_uncertain && self.pending.take().is_some() {
                    self.outcomes.push_back(Written::Failed);
                }
            }
            Reply::Swapped(revision) => {
                self.is_available = true;
                self.revision = revision;
                if let Some(table) = self.pending.take() {
                    self.own(table);
                }
            }
            Reply::Value(value) => self.on_value(value, was_swap, now),
        }
    }

    fn own(&mut self, table: Table) {
        self.is_uncertain = false;
        self.table = table.clone();
        self.outcomes.push_back(match self.is_claimed {
            true => Written::Own(table),
            false => Written::Other(table),
        });
        self.is_claimed = true;
    }

    fn on_value(&mut self, value: Option<(u64, Table)>, was_swap: bool, now: Duration) {
        let (revision, table) = value.unwrap_or_else(|| (0, self.table.clone()));
        self.revision = revision;
        if !self.is_claimed {
            // A write of a former process of this balancer fails from now on, or has succeeded.
            (self.pending, self.is_uncertain) = (Some(table), false);
            self.next_at = now;
            return;
        }
        self.is_available = true;
        if was_swap && self.pending.as_ref() == Some(&table) {
            // An answer was lost.
            self.pending = None;
            self.own(table);
        } else if table.epoch > self.table.epoch {
            self.table = table.clone();
            (self.pending, self.is_uncertain) = (None, false);
            self.outcomes.push_back(Written::Other(table));
        } else if was_swap && self.pending.take().is_some() {
            self.is_uncertain = false;
            self.outcomes.push_back(Written::Failed);
        }
        if self.pending.is_some() {
            self.next_at = now;
        }
    }
}

impl Register for CasRegister {
    fn propose(&mut self, before: u64, table: Table) {
        if !self.is_available || self.pending.is_some() {
            self.outcomes.push_back(Written::Failed);
        } else if before == self.table.epoch && table.epoch > before {
            self.pending = Some(table);
            self.next_at = Duration::ZERO;
        } else {
            self.outcomes.push_back(Written::Other(self.table.clone()));
        }
    }

    fn outcome(&mut self) -> Option<Written> {
        self.outcomes.pop_front()
    }

    fn refresh(&mut self) {
        if self.is_available {
            self.next_at = Duration::ZERO;
        }
    }

    fn is_available(&self) -> bool {
        self.is_available
    }
}
