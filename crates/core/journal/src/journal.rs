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

/// The largest limit per connection, in bytes: 2 GiB. Sequence numbers could not name the bytes of a record of 4 GiB
/// and of the window beyond without ambiguity.
pub const MAX_PER_CONNECTION: u64 = 2 << 30;

/// The limits of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory for the record of a connection, at most [`MAX_PER_CONNECTION`]: a larger limit is lowered to
    /// that value. Memory is allocated in chunks of up to 64 KiB.
    pub per_connection: u64,
    /// Bytes of memory for the records of all connections. The fixed cost of a connection with an empty record (less
    /// than 512 bytes) is not included.
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
    /// Frees the record. Returns whether there was a record.
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
    // Ordered, so that two runs with the same input iterate in the same order.
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

    /// As [`Journal::new`], for an outstream that arrives by another way than the instream, and later: whether a
    /// request has begun is decided when the response before is here.
    #[must_use]
    pub fn with_late_heads(limits: Limits, mode: ReplayMode) -> Self {
        let mut journal = Self::new(limits, mode);
        journal.shared.heads_come_late = true;
        journal
    }

    /// Changes [`Limits::total`]. Memory in use stays.
    pub fn limit_total(&mut self, total: u64) {
        self.shared.pool.set_total(total);
    }

    /// Begins the record of a connection whose handshake had these initial sequence numbers. Another connection with
    /// the same number is replaced. The same connection, if recorded, continues: two segments may have completed the
    /// handshake at once, and the record may have the first already.
    ///
    /// # Errors
    /// If too many connections are known. The new connection then stays unknown.
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

    /// Begins the record of a connection in the middle, at the beginning of a request: no replay needs the bytes
    /// before this place. A connection with the same number is replaced.
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

    /// Inserts a record without content. The caller has freed any record with the same number.
    fn insert(&mut self, flow: FlowId, isns: Isns, record: Record) {
        let record = Ok(Box::new(record));
        self.connections.insert(flow, Connection { isns, record });
    }

    /// Records a segment from the client.
    ///
    /// # Errors
    /// If the segment was not recorded: see [`Refused`]. Only [`Refused::BecameUnprotected`] needs a report.
    pub fn instream(
        &mut self,
        flow: FlowId,
        arrival: &InstreamSegment<'_>,
    ) -> Result<Recorded, Refused> {
        self.with(flow, |record, isns, shared| {
            record.arrival(isns, arrival, shared)
        })
    }

    /// Records bytes that the server sent at the beginning of a response. Parts may be missing, and arrive in any
    /// order, if each part names the end of the part before ([`OutstreamSegment::after`]). Returns whether the segment
    /// has new bytes.
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

    /// Whether the journal has any hash of output.
    #[must_use]
    pub fn has_marks(&self) -> bool {
        let mut records = self.connections.values().flat_map(|one| &one.record);
        records.any(|record| record.marks().next().is_some())
    }

    /// Records the hash of the whole output up to [`Mark::next`]. `places`: the client has received the output before
    /// the first number; the second number is the place of the client's next byte, if the client has received all
    /// output. Returns whether the hash is new.
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

    /// While `hold` is set, no request begins, and records keep all bytes: for the duration of a replay. The bytes of
    /// a new request are recorded as part of the old request.
    pub fn hold_turns(&mut self, hold: bool) {
        self.shared.turns_held = hold;
    }

    /// Whether new requests are held back ([`Journal::hold_turns`]).
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

    /// The connection has ended: the record is freed, and the journal forgets the connection. Returns whether the
    /// connection was known.
    pub fn close(&mut self, flow: FlowId) -> bool {
        let known = self.remove(flow);
        self.shared.statistics.closed += u64::from(known);
        known
    }

    /// Gives a connection up: the record is freed, and the connection stays known as unprotected. Returns whether the
    /// connection was protected until now; if not, the first reason stays.
    pub fn unprotect(&mut self, flow: FlowId, reason: Unprotected) -> bool {
        let Some(connection) = self.connections.get_mut(&flow) else {
            return false;
        };
        let was_protected = connection.unprotect(reason, &mut self.shared.pool);
        self.shared.statistics.gave_up(was_protected);
        was_protected
    }

    /// Drops the instream of a connection before `to`: the server has these bytes, or will have them, and the
    /// determinant log records them. Missing bytes before `to` are no longer expected: the record now begins at `to`.
    /// Ignored as impossible: a place before the record, a place implausibly far behind the end, and a place behind
    /// the client's FIN. Without memory to move the bytes behind `to`, the call changes no byte. Only with
    /// [`ReplayMode::Connection`].
    pub fn release(&mut self, flow: FlowId, to: SeqNumber) {
        if self.shared.mode == ReplayMode::Connection
            && let Some(connection) = self.connections.get_mut(&flow)
            && let Ok(record) = &mut connection.record
        {
            record.release(connection.isns, to, &mut self.shared);
        }
    }

    /// The lowest instream sequence number that is not in the record of a protected connection. The FIN counts as a
    /// number, when everything before the FIN is recorded.
    #[must_use]
    pub fn stable_seq(&self, flow: FlowId) -> Option<SeqNumber> {
        let connection = self.connections.get(&flow)?;
        let record = connection.record.as_ref().ok()?;
        Some(record.stable_seq(connection.isns))
    }

    /// The end of the recorded heads of a protected connection. A head counts when the first bytes are recorded. Heads
    /// that arrived before an earlier head do not count.
    #[must_use]
    pub fn heads_end(&self, flow: FlowId) -> Option<SeqNumber> {
        let connection = self.connections.get(&flow)?;
        let record = connection.record.as_ref().ok()?;
        Some(record.heads_end(connection.isns))
    }

    /// The range of the instream around `seq`, if `seq` is recorded beyond a gap: the first sequence number and the
    /// number after the last.
    #[must_use]
    pub fn range_of(&self, flow: FlowId, seq: SeqNumber) -> Option<(SeqNumber, SeqNumber)> {
        let connection = self.connections.get(&flow)?;
        let record = connection.record.as_ref().ok()?;
        record.range_of(connection.isns, seq)
    }

    /// The first recorded bytes from `from` on, also beyond a gap: the sequence number, and as many bytes as are
    /// contiguous in memory. `None`: no such bytes, or no record.
    #[must_use]
    pub fn recorded_from(&self, flow: FlowId, from: SeqNumber) -> Option<(SeqNumber, &[u8])> {
        let connection = self.connections.get(&flow)?;
        let record = connection.record.as_ref().ok()?;
        record.recorded_from(connection.isns, from)
    }

    /// Restores the beginning of a request and [`crate::Protected::answers`] of a record that was read back from a
    /// log. Keeps all bytes.
    pub fn restore_turn(&mut self, flow: FlowId, at: Position, answers: [SeqNumber; 4]) {
        if let Some(connection) = self.connections.get_mut(&flow)
            && let Ok(record) = &mut connection.record
        {
            record.restore_turn(connection.isns, at, answers);
        }
    }

    /// Restores [`crate::Protected::asked`] and [`crate::Protected::doubt`] of a record that was read back from a log.
    /// Without this call, everything that is not recorded is in doubt.
    pub fn restore_asked(&mut self, flow: FlowId, [asked, doubt]: [SeqNumber; 2]) {
        if let Some(connection) = self.connections.get_mut(&flow)
            && let Ok(record) = &mut connection.record
        {
            record.restore_asked(connection.isns, asked, doubt);
        }
    }

    /// Restores [`Journal::beginnings`] of a record that was rebuilt from parts without beginnings. Beginnings found
    /// meanwhile are dropped. A record without memory for the beginnings is given up.
    pub fn restore_beginnings(&mut self, flow: FlowId, beginnings: impl Iterator<Item = Position>) {
        // A record that is given up is reported as unprotected elsewhere.
        let _ = self.with(flow, |record, isns, shared| {
            record
                .restore_beginnings(isns, beginnings, shared)
                .map_err(Refused::BecameUnprotected)
        });
    }

    /// The record of `from` becomes the record of `flow`, whose old record is dropped. Returns whether `from` was
    /// known.
    pub fn replace(&mut self, flow: FlowId, from: FlowId) -> bool {
        let Some(connection) = self.connections.remove(&from) else {
            return false;
        };
        self.remove(flow);
        self.connections.insert(flow, connection);
        true
    }

    /// The summary of a connection.
    #[must_use]
    pub fn summary(&self, flow: FlowId) -> Option<Summary> {
        self.connections.get(&flow).map(|c| c.summary(flow))
    }

    /// The summary of each connection, in the order of flow numbers.
    pub fn summaries(&self) -> impl Iterator<Item = Summary> {
        self.connections.iter().map(|(flow, c)| c.summary(*flow))
    }

    /// Appends to `into` at most `max` bytes that the client sent from `from` on, up to the first gap. Returns the
    /// number of bytes: 0 at stable_seq.
    ///
    /// # Errors
    /// If the connection has no record, or `from` is outside the record: see [`ReadError`].
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

    /// The recorded output of the server: sequence number and bytes of each part, in order, with gaps between the
    /// parts. Empty for a connection without a record.
    pub fn outstream_ranges(&self, flow: FlowId) -> impl Iterator<Item = (SeqNumber, &[u8])> {
        let connection = self.connections.get(&flow);
        let record = connection.and_then(|c| Some((c.record.as_ref().ok()?, c.isns)));
        record
            .into_iter()
            .flat_map(|(record, isns)| record.heads(isns))
    }

    /// The places at which the client sent after receiving all output of the server, in order: the positions of both
    /// streams. Empty for a connection without a record.
    pub fn beginnings(&self, flow: FlowId) -> impl Iterator<Item = Position> {
        let connection = self.connections.get(&flow);
        let record = connection.and_then(|c| Some((c.record.as_ref().ok()?, c.isns)));
        record
            .into_iter()
            .flat_map(|(record, isns)| record.beginnings(isns))
    }

    /// Hashes of the output, where the output is not recorded in full, in order. Empty for a connection without a
    /// record.
    pub fn marks(&self, flow: FlowId) -> impl Iterator<Item = Mark> {
        let connection = self.connections.get(&flow);
        let record = connection.and_then(|c| c.record.as_ref().ok());
        record.into_iter().flat_map(|record| record.marks())
    }

    /// Frees half of the memory that no connection has needed since the last call. To be called about every second.
    pub fn trim(&mut self) {
        self.shared.pool.trim();
    }

    /// Counters, and the memory in use now.
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
