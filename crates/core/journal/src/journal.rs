//! All connections of a service.

use crate::error::{OpenError, ReadError, Refused, Unprotected};
use crate::marks::Mark;
use crate::pool::Pool;
use crate::record::{
    InstreamSegment, Isns, OutOfRecord, OutstreamSegment, Record, Recorded, Shared,
};
use crate::statistics::Statistics;
use crate::summary::{Position, State, Summary};
use std::collections::BTreeMap;
use std::ops::Bound;
use types::ReplayMode;
use wire::{FlowId, SeqNumber};

/// The largest limit per connection, in bytes: 2 GiB. Sequence numbers could not name the bytes of
/// a record of 4 GiB, and the window beyond it, unambiguously.
pub const MAX_PER_CONNECTION: u64 = 2 << 30;

/// What a journal may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory for the record of one connection, at most [`MAX_PER_CONNECTION`]: a larger
    /// limit is taken for that. Memory is held in chunks of up to 64 KiB.
    pub per_connection: u64,
    /// Bytes of memory for the records of all connections. What a connection costs even when its
    /// record is empty (less than 512 bytes) is not part of it.
    pub total: u64,
    /// Connections that are known at a time, the unprotected ones included.
    pub connections: usize,
}

#[derive(Debug)]
struct Connection {
    isns: Isns,
    // Boxed, for the nodes of the map keep room for entries that do not exist.
    record: Result<Box<Record>, Unprotected>,
}

impl Connection {
    /// Frees the record. Answers whether there was one.
    fn unprotect(&mut self, reason: Unprotected, pool: &mut Pool) -> bool {
        if self.record.is_err() {
            return false;
        }
        if let Ok(record) = std::mem::replace(&mut self.record, Err(reason)) {
            record.free(pool);
        }
        true
    }

    fn summary(&self, flow: FlowId) -> Summary {
        Summary {
            flow,
            client_isn: self.isns.client,
            server_isn: self.isns.server,
            state: match &self.record {
                Ok(record) => State::Protected(record.summary(self.isns)),
                Err(reason) => State::Unprotected(*reason),
            },
        }
    }
}

/// The record of a service's connections.
#[derive(Debug)]
pub struct Journal {
    // Ordered, so that two runs with the same input go through it in the same order.
    connections: BTreeMap<FlowId, Connection>,
    max_connections: usize,
    shared: Shared,
}

impl Journal {
    /// An empty journal.
    #[must_use]
    pub fn new(limits: Limits, mode: ReplayMode) -> Self {
        Self {
            connections: BTreeMap::new(),
            max_connections: limits.connections,
            shared: Shared {
                pool: Pool::new(limits.total),
                per_connection: limits.per_connection.min(MAX_PER_CONNECTION),
                mode,
                turns_held: false,
                heads_come_late: false,
                statistics: Statistics::default(),
            },
        }
    }

    /// The same, for an outstream that comes by another way than the instream, and later: whether
    /// a turn has begun is decided when the answer before it is there.
    #[must_use]
    pub fn with_late_heads(limits: Limits, mode: ReplayMode) -> Self {
        let mut journal = Self::new(limits, mode);
        journal.shared.heads_come_late = true;
        journal
    }

    /// Changes [`Limits::total`]. What is held already stays.
    pub fn limit_total(&mut self, total: u64) {
        self.shared.pool.set_total(total);
    }

    /// Begins the record of a connection whose handshake had these initial sequence numbers. Another one
    /// that is known by the same number is replaced; the same one, if it has a record, goes on: two
    /// segments may have completed its handshake at once, and one of them be in the record already.
    ///
    /// # Errors
    /// If too many connections are known. This one then stays unknown.
    pub fn open(
        &mut self,
        flow: FlowId,
        client_isn: SeqNumber,
        server_isn: SeqNumber,
    ) -> Result<(), OpenError> {
        let isns = Isns {
            client: client_isn,
            server: server_isn,
        };
        let known = self.connections.get(&flow);
        if known.is_some_and(|known| known.isns == isns && known.record.is_ok()) {
            return Ok(());
        }
        self.remove(flow);
        if self.connections.len() >= self.max_connections {
            return Err(OpenError::TooManyConnections(self.max_connections));
        }
        self.insert(flow, isns, Record::new());
        self.shared.statistics.opened += 1;
        Ok(())
    }

    /// Begins the record of a connection in its middle, at the beginning of a turn: everything
    /// before this place is of no use any more. One that is known by the same number is replaced.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn resume(
        &mut self,
        flow: FlowId,
        client_isn: SeqNumber,
        server_isn: SeqNumber,
        at: Position,
    ) -> Result<(), OpenError> {
        self.remove(flow);
        self.open(flow, client_isn, server_isn)?;
        let isns = Isns {
            client: client_isn,
            server: server_isn,
        };
        self.insert(flow, isns, Record::resumed(isns, at));
        Ok(())
    }

    /// A record without content: there is nothing to be freed of one that it replaces.
    fn insert(&mut self, flow: FlowId, isns: Isns, record: Record) {
        let record = Ok(Box::new(record));
        self.connections.insert(flow, Connection { isns, record });
    }

    /// Records a segment from the client.
    ///
    /// # Errors
    /// If nothing was recorded: see [`Refused`]. [`Refused::BecameUnprotected`] is the one that
    /// needs to be told to somebody.
    pub fn instream(
        &mut self,
        flow: FlowId,
        arrival: &InstreamSegment<'_>,
    ) -> Result<Recorded, Refused> {
        self.with(flow, |record, isns, shared| {
            record.arrival(isns, arrival, shared)
        })
    }

    /// Records what the server sent at the beginning of a turn. Parts may be missing, and come in any
    /// order, if they say so ([`OutstreamSegment::after`]). Answers whether it is new.
    ///
    /// # Errors
    /// As [`Journal::instream`].
    pub fn outstream(
        &mut self,
        flow: FlowId,
        said: &OutstreamSegment<'_>,
    ) -> Result<bool, Refused> {
        self.with(flow, |record, isns, shared| {
            record.outstream(isns, said, shared)
        })
    }

    /// Whether there is any digest.
    #[must_use]
    pub fn has_marks(&self) -> bool {
        let mut records = self.connections.values().flat_map(|one| &one.record);
        records.any(|record| record.marks().next().is_some())
    }

    /// Records the digest of all that the server had said by then. The client is known to have heard what lies before
    /// `heard`; and if it had heard all, it is known from where on it speaks then. Answers whether the digest is new.
    ///
    /// # Errors
    /// As [`Journal::instream`].
    pub fn mark(
        &mut self,
        flow: FlowId,
        mark: Mark,
        places: (SeqNumber, Option<SeqNumber>),
    ) -> Result<bool, Refused> {
        self.with(flow, |record, isns, shared| {
            record.mark(isns, (mark, places), shared)
        })
    }

    /// While `hold` holds no turn begins, and nothing of a record is dropped: for as long as the
    /// records are being replayed. What belongs to a new turn is recorded as part of the old one.
    pub fn hold_turns(&mut self, hold: bool) {
        self.shared.turns_held = hold;
    }

    /// Whether turns are held ([`Journal::hold_turns`]).
    #[must_use]
    pub const fn turns_are_held(&self) -> bool {
        self.shared.turns_held
    }

    /// The connection with a record that has the lowest number above `after`.
    #[must_use]
    pub fn next_protected(&self, after: Option<FlowId>) -> Option<FlowId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.connections.range((from, Bound::Unbounded));
        let (flow, _) = rest.find(|(_, connection)| connection.record.is_ok())?;
        Some(*flow)
    }

    /// The connection has ended: its record is freed, and it is not known any more. Answers whether
    /// it was.
    pub fn close(&mut self, flow: FlowId) -> bool {
        let known = self.remove(flow);
        self.shared.statistics.closed += u64::from(known);
        known
    }

    /// Gives a connection up: its record is freed, it stays known as unprotected. Answers whether
    /// it was protected until now; if not, its first reason stays.
    pub fn unprotect(&mut self, flow: FlowId, reason: Unprotected) -> bool {
        let Some(connection) = self.connections.get_mut(&flow) else {
            return false;
        };
        let was_protected = connection.unprotect(reason, &mut self.shared.pool);
        self.shared.statistics.gave_up(was_protected);
        was_protected
    }

    /// The instream of a connection before `to` is needed no more: the server has it, or will, and has a record of it
    /// of its own. What of it is not in this record is not waited for: the record begins at `to` now. Ignored, as
    /// nothing that can be: a place before the record, one that is implausibly far behind its end, and one behind the
    /// client's FIN. Where there is no room to move what lies behind `to`, nothing changes. Only with
    /// [`ReplayMode::Connection`].
    pub fn release(&mut self, flow: FlowId, to: SeqNumber) {
        if self.shared.mode == ReplayMode::Connection
            && let Some(connection) = self.connections.get_mut(&flow)
            && let Ok(record) = &mut connection.record
        {
            record.release(connection.isns, to, &mut self.shared);
        }
    }

    /// The lowest instream sequence number that is not in the record of a protected connection. The
    /// FIN counts as one, when everything before it is recorded.
    #[must_use]
    pub fn stable_seq(&self, flow: FlowId) -> Option<SeqNumber> {
        let connection = self.connections.get(&flow)?;
        let record = connection.record.as_ref().ok()?;
        Some(record.stable_seq(connection.isns))
    }

    /// Where the heads of a protected connection end that are recorded, or whose beginnings are; without those
    /// that have come before others.
    #[must_use]
    pub fn heads_end(&self, flow: FlowId) -> Option<SeqNumber> {
        let connection = self.connections.get(&flow)?;
        let record = connection.record.as_ref().ok()?;
        Some(record.heads_end(connection.isns))
    }

    /// The range of the instream in which `seq` lies, if that is recorded beyond a hole: its first
    /// sequence number and the one after its last.
    #[must_use]
    pub fn range_of(&self, flow: FlowId, seq: SeqNumber) -> Option<(SeqNumber, SeqNumber)> {
        let connection = self.connections.get(&flow)?;
        let record = connection.record.as_ref().ok()?;
        record.range_of(connection.isns, seq)
    }

    /// The first bytes that are recorded from `from` on, also beyond a hole: their sequence number
    /// and as many of them as lie together in memory. `None` if there are none, or no record.
    #[must_use]
    pub fn recorded_from(&self, flow: FlowId, from: SeqNumber) -> Option<(SeqNumber, &[u8])> {
        let connection = self.connections.get(&flow)?;
        let record = connection.record.as_ref().ok()?;
        record.recorded_from(connection.isns, from)
    }

    /// A turn that was known to have begun at this place, and [`crate::Protected::answers`], when the record was read
    /// back from somewhere. Nothing is dropped.
    pub fn restore_turn(&mut self, flow: FlowId, at: Position, answers: [SeqNumber; 4]) {
        if let Some(connection) = self.connections.get_mut(&flow)
            && let Ok(record) = &mut connection.record
        {
            record.restore_turn(connection.isns, at, answers);
        }
    }

    /// [`crate::Protected::asked`] and [`crate::Protected::doubt`], of a record that was read back from somewhere. If
    /// nobody tells, all that is not recorded is in doubt.
    pub fn restore_asked(&mut self, flow: FlowId, [asked, doubt]: [SeqNumber; 2]) {
        if let Some(connection) = self.connections.get_mut(&flow)
            && let Ok(record) = &mut connection.record
        {
            record.restore_asked(connection.isns, asked, doubt);
        }
    }

    /// [`Journal::beginnings`] as they were known of this record, when the record was made again from parts that do not
    /// tell. What was found meanwhile is dropped for them. A record without room for them is given up.
    pub fn restore_beginnings(&mut self, flow: FlowId, beginnings: impl Iterator<Item = Position>) {
        // What is given up is known as that.
        let _ = self.with(flow, |record, isns, shared| {
            record
                .restore_beginnings(isns, beginnings, shared)
                .map_err(Refused::BecameUnprotected)
        });
    }

    /// The record of `from` becomes that of `flow`, whose own is dropped. Answers whether there was
    /// one.
    pub fn replace(&mut self, flow: FlowId, from: FlowId) -> bool {
        let Some(connection) = self.connections.remove(&from) else {
            return false;
        };
        self.remove(flow);
        self.connections.insert(flow, connection);
        true
    }

    /// What is known of a connection.
    #[must_use]
    pub fn summary(&self, flow: FlowId) -> Option<Summary> {
        self.connections.get(&flow).map(|c| c.summary(flow))
    }

    /// What is known of each connection, in the order of their numbers.
    pub fn summaries(&self) -> impl Iterator<Item = Summary> {
        self.connections.iter().map(|(flow, c)| c.summary(*flow))
    }

    /// Appends to `into` the bytes that the client sent from `from` on: at most `max` of them, and
    /// only as far as there is no hole. Answers how many: 0 at stable_seq.
    ///
    /// # Errors
    /// If the connection has no record, or `from` does not lie in it: see [`ReadError`].
    pub fn read(
        &self,
        flow: FlowId,
        from: SeqNumber,
        max: usize,
        into: &mut Vec<u8>,
    ) -> Result<usize, ReadError> {
        let connection = self.connections.get(&flow).ok_or(ReadError::Unknown)?;
        let record = connection
            .record
            .as_ref()
            .map_err(|reason| ReadError::Unprotected(*reason))?;
        record
            .read(connection.isns, from, max, into)
            .map_err(|out| match out {
                OutOfRecord::Before(start) => ReadError::Dropped(start),
                OutOfRecord::After(stable) => ReadError::NotRecorded(stable),
            })
    }

    /// What the server sent, as far as it is recorded: sequence number and bytes of each part, in
    /// order, with gaps between them. Nothing for a connection without a record.
    pub fn outstream_ranges(&self, flow: FlowId) -> impl Iterator<Item = (SeqNumber, &[u8])> {
        let connection = self.connections.get(&flow);
        let record = connection.and_then(|c| Some((c.record.as_ref().ok()?, c.isns)));
        record
            .into_iter()
            .flat_map(|(record, isns)| record.heads(isns))
    }

    /// Where the client spoke after it had heard all that the server had said, in order: what it said from there on,
    /// and what the server had said before. Nothing for a connection without a record.
    pub fn beginnings(&self, flow: FlowId) -> impl Iterator<Item = Position> {
        let connection = self.connections.get(&flow);
        let record = connection.and_then(|c| Some((c.record.as_ref().ok()?, c.isns)));
        record
            .into_iter()
            .flat_map(|(record, isns)| record.beginnings(isns))
    }

    /// Digests of what the server had said, where not all of that is recorded, in order. Nothing for a connection
    /// without a record.
    pub fn marks(&self, flow: FlowId) -> impl Iterator<Item = Mark> {
        let connection = self.connections.get(&flow);
        let record = connection.and_then(|c| c.record.as_ref().ok());
        record.into_iter().flat_map(|record| record.marks())
    }

    /// Gives memory back that no connection has needed since the last call, half of it. To be called
    /// every second or so.
    pub fn trim(&mut self) {
        self.shared.pool.trim();
    }

    /// Counts, and what is held now.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics {
            connections: self.connections.len(),
            held: self.shared.pool.in_use(),
            idle: self.shared.pool.idle(),
            ..self.shared.statistics
        }
    }

    /// Hands the record of `flow` to `act`, and counts and executes a refusal.
    fn with<T>(
        &mut self,
        flow: FlowId,
        act: impl FnOnce(&mut Record, Isns, &mut Shared) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let Some(connection) = self.connections.get_mut(&flow) else {
            self.shared.statistics.refused_unknown += 1;
            return Err(Refused::Unknown);
        };
        let done = match &mut connection.record {
            Ok(record) => act(record, connection.isns, &mut self.shared),
            Err(reason) => Err(Refused::Unprotected(*reason)),
        };
        let statistics = &mut self.shared.statistics;
        match done {
            Err(Refused::BecameUnprotected(reason)) => {
                statistics.refused_unprotected += 1;
                statistics.gave_up(connection.unprotect(reason, &mut self.shared.pool));
            }
            Err(Refused::Unprotected(_)) => statistics.refused_unprotected += 1,
            Err(Refused::Implausible) => statistics.refused_implausible += 1,
            Err(Refused::Unknown) | Ok(_) => {}
        }
        done
    }

    fn remove(&mut self, flow: FlowId) -> bool {
        let Some(connection) = self.connections.remove(&flow) else {
            return false;
        };
        match connection.record {
            Ok(record) => record.free(&mut self.shared.pool),
            Err(_) => self.shared.statistics.unprotected -= 1,
        }
        true
    }

    /// Bytes of memory that the records really hold.
    #[cfg(test)]
    pub(crate) fn really_held(&self) -> usize {
        let records = self.connections.values().flat_map(|c| &c.record);
        records.map(|record| record.really_held()).sum()
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
