//! Reports of processes about their connections. A replica may replay for days, so only output that a client may lack
//! is retained.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map},
    mem,
};

use north_abi::handover::{ClientPosition, Ends, Entry, Position, StreamOffsets, UpstreamPosition};

use crate::{handover::HandoverError, snapshot_tail::SnapshotTail};

/// A connection at the end of a replay. `S` is the kind of position: of a client's connection ([`ClientPosition`]) or
/// of an upstream connection ([`UpstreamPosition`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionReport<S = ClientPosition> {
    /// The connection's number.
    pub connection: u32,
    /// Processes that have the connection open.
    pub holders: Vec<u32>,
    /// Position at the end of the replay.
    pub position: S,
    /// Offset of `output` in the outstream.
    pub offset: u64,
    /// Output that the peer may lack, up to the position.
    pub output: Vec<u8>,
}

/// The connections of all processes of a service, in the order of their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceReport {
    /// Connections of clients.
    pub clients: Vec<ConnectionReport>,
    /// Upstream connections.
    pub opened: Vec<ConnectionReport<UpstreamPosition>>,
}

impl ServiceReport {
    /// Open descriptors in all processes.
    fn open(&self) -> usize {
        let clients = self.clients.iter().map(|one| one.holders.len());
        let opened = self.opened.iter().map(|one| one.holders.len());
        clients.chain(opened).sum()
    }
}

/// Retained output of a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Outstream {
    /// Offset of `output` in the outstream.
    offset: u64,
    output: Vec<u8>,
    /// Output of other processes by offset, before or behind `output`.
    others: BTreeMap<u64, Vec<u8>>,
    /// Retained with an image, and the restored process has no output so far.
    is_of_image: bool,
}

impl Outstream {
    /// Empty, at this offset.
    fn nothing(offset: u64) -> Self {
        Self {
            offset,
            ..Self::default()
        }
    }

    fn end(&self) -> u64 {
        self.offset.saturating_add(self.output.len() as u64)
    }

    /// Adds output. A gap before the first output after an image is no loss: the restored process knew that the
    /// client has the bytes of the gap.
    fn add(&mut self, offset: u64, bytes: &[u8]) {
        if mem::take(&mut self.is_of_image) && offset > self.end() {
            *self = Self::nothing(offset);
        }
        if offset == self.end() {
            return self.output.extend_from_slice(bytes);
        }
        let mut others = self.others.iter_mut();
        match others.find(|(from, said)| **from + said.len() as u64 == offset) {
            Some((_, said)) => said.extend_from_slice(bytes),
            None => {
                self.others.insert(offset, bytes.to_vec());
            }
        }
    }

    /// Joins the output of all processes into one piece.
    fn join(&mut self) -> Result<(), HandoverError> {
        let mut all = mem::take(&mut self.others);
        if all.is_empty() {
            return Ok(());
        }
        if all
            .insert(self.offset, mem::take(&mut self.output))
            .is_some()
        {
            return Err(HandoverError::Gap);
        }
        let first = all.first_key_value().map(|(from, _)| *from);
        self.offset = first.unwrap_or(self.offset);
        for (from, said) in all {
            if from != self.end() {
                return Err(HandoverError::Gap);
            }
            self.output.extend(said);
        }
        Ok(())
    }

    /// The output ends at `end`.
    fn close(&mut self, end: u64) -> Result<(), HandoverError> {
        self.join()?;
        self.add(end, &[]);
        match self.others.is_empty() {
            true => Ok(()),
            false => Err(HandoverError::Gap),
        }
    }

    /// Drops the output before `place`.
    fn forget(&mut self, place: u64) {
        let known = place.min(self.end()).saturating_sub(self.offset);
        self.offset += known;
        self.output
            .drain(..usize::try_from(known).unwrap_or(usize::MAX));
    }
}

/// Connections with a reported position, by number, without output.
type Known<S> = BTreeMap<u32, ConnectionReport<S>>;

/// The reports up to now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HandoverReport {
    /// Output by connection, with the ends where known.
    output: BTreeMap<u32, (Option<Ends>, Outstream)>,
    clients: Known<ClientPosition>,
    opened: Known<UpstreamPosition>,
    /// Parts of shared connections that processes have served.
    served: BTreeMap<u32, Vec<(StreamOffsets, StreamOffsets)>>,
    /// Descriptors and ends of client connections, in a process that has stopped for an image.
    stopped: Vec<(u32, Ends)>,
}

/// Memory of a connection besides the output, at least.
const CONNECTION_OVERHEAD_BYTES: usize = 128;

impl HandoverReport {
    /// Reads all complete entries. Returns their length, bytes.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Some((entry, length)) = Entry::read(&bytes[at..]) {
            self.take(&entry);
            at += length;
        }
        at
    }

    /// One more entry.
    fn take(&mut self, entry: &Entry<'_>) {
        match *entry {
            Entry::Began { connection, ends } => {
                let begins = (Some(ends), Outstream::default());
                self.output.insert(connection, begins);
            }
            Entry::Output {
                connection,
                offset,
                bytes,
            } => {
                let begins = || (None, Outstream::nothing(offset));
                let (_, outstream) = self.output.entry(connection).or_insert_with(begins);
                outstream.add(offset, bytes);
            }
            Entry::Served {
                connection,
                from,
                to,
            } => self.served.entry(connection).or_default().push((from, to)),
            Entry::ClientPosition {
                connection,
                process,
                position,
            } => stands(&mut self.clients, connection, process, position),
            Entry::UpstreamPosition {
                connection,
                process,
                position,
            } => stands(&mut self.opened, connection, process, position),
            Entry::Open {
                connection,
                fd,
                ends,
            } => {
                self.output.entry(connection).or_default().0 = Some(ends);
                self.stopped.push((fd, ends));
            }
        }
    }

    /// Drops acknowledged output. Clients that are not in `received` are gone. Closed upstream connections of another
    /// host have no socket.
    pub(crate) fn forget(&mut self, received: &HashMap<Ends, u64>) {
        let mut later = BTreeSet::new();
        for (number, (ends, outstream)) in &mut self.output {
            if let Some(ends) = ends.filter(|_| !self.clients.contains_key(number)) {
                outstream.forget(received.get(&ends).copied().unwrap_or(u64::MAX));
                later.insert(ends);
            }
        }
        // If a later connection has the same ends, the client of the earlier connection is gone.
        let passed = self.clients.iter().rev();
        let gone: Vec<u32> = passed
            .filter(|(_, one)| {
                let ends = one.position.ends;
                !received.contains_key(&ends) || !later.insert(ends)
            })
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            self.clients.remove(&number);
            self.output.remove(&number);
        }
        for (number, one) in &self.clients {
            if let Some((_, outstream)) = self.output.get_mut(number) {
                outstream.forget(received.get(&one.position.ends).copied().unwrap_or(0));
            }
        }
        let said = &mut self.output;
        let clients = &self.clients;
        self.served.retain(|number, _| clients.contains_key(number));
        self.opened.retain(|number, one| {
            if one.position.is_closed {
                said.remove(number);
            }
            !one.position.is_closed
        });
    }

    /// Memory of the reports, bytes.
    pub(crate) fn size(&self) -> usize {
        let said = self.output.values();
        let said: usize = said
            .map(|(_, outstream)| outstream.output.len() + CONNECTION_OVERHEAD_BYTES)
            .sum();
        said + self.opened.len() * CONNECTION_OVERHEAD_BYTES
    }

    /// The connections with a position. `open` is the number of open connections that the processes announced.
    pub(crate) fn finish(mut self, open: u32) -> Result<ServiceReport, HandoverError> {
        for (_, outstream) in self.output.values_mut() {
            outstream.join()?;
        }
        for (number, one) in &self.clients {
            if let Some((_, outstream)) = self.output.get_mut(number) {
                outstream.close(one.position.outstream)?;
            }
            let served = self.served.remove(number).unwrap_or_default();
            is_one_row(served, &one.position)?;
        }
        let all = ServiceReport {
            clients: passed(self.clients, &mut self.output)?,
            opened: passed(self.opened, &mut self.output)?,
        };
        let passed = all.open();
        if u32::try_from(passed) != Ok(open) {
            return Err(HandoverError::OtherCount { passed, said: open });
        }
        Ok(all)
    }

    /// The output that clients may lack belongs to the image of a stopped process.
    pub(crate) fn snapshot_tail(
        mut self,
        positions: &[Position],
    ) -> Result<SnapshotTail, HandoverError> {
        if !self.opened.is_empty() {
            return Err(HandoverError::Opened);
        }
        let received = positions.iter().map(|one| (one.ends, one.received));
        self.forget(&received.collect());
        Ok(self.into_snapshot_tail())
    }

    /// The reports as the tail of an image.
    pub(crate) fn into_snapshot_tail(mut self) -> SnapshotTail {
        self.output.retain(|_, (_, said)| !said.output.is_empty());
        for (number, (ends, said)) in &mut self.output {
            (*ends, said.is_of_image) = (None, !self.clients.contains_key(number));
        }
        SnapshotTail {
            open: mem::take(&mut self.stopped),
            report: self,
        }
    }

    /// Client connections, encoded as in a handover file.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for (connection, (_, said)) in &self.output {
            let entry = Entry::Output {
                connection: *connection,
                offset: said.offset,
                bytes: &said.output,
            };
            all.extend_from_slice(&entry.header());
            all.extend_from_slice(&said.output);
        }
        for (connection, one) in &self.clients {
            let entry = Entry::ClientPosition {
                connection: *connection,
                process: one.holders.first().copied().unwrap_or(0),
                position: one.position,
            };
            all.extend_from_slice(&entry.header());
        }
        all
    }
}

/// Checks that processes served a connection one after another, from its start to its position.
fn is_one_row(
    mut served: Vec<(StreamOffsets, StreamOffsets)>,
    position: &ClientPosition,
) -> Result<(), HandoverError> {
    served.sort_unstable();
    let (mut at, is_known) = (StreamOffsets::default(), !served.is_empty());
    for (from, to) in served {
        if from != at {
            return Err(HandoverError::Row);
        }
        at = to;
    }
    let stands = (position.instream, position.outstream);
    if is_known && (at.instream, at.outstream) != stands {
        return Err(HandoverError::Row);
    }
    Ok(())
}

/// A process reports the position of a connection.
fn stands<S: HasPosition>(known: &mut Known<S>, connection: u32, process: u32, position: S) {
    let holder = (!position.is_closed()).then_some(process);
    match known.entry(connection) {
        btree_map::Entry::Vacant(new) => {
            new.insert(ConnectionReport {
                connection,
                holders: Vec::from_iter(holder),
                position,
                offset: 0,
                output: Vec::new(),
            });
        }
        btree_map::Entry::Occupied(mut known) => {
            let known = known.get_mut();
            known.position.join(&position);
            known.holders.extend(holder);
        }
    }
}

/// The connections with their output.
fn passed<S: HasPosition>(
    known: Known<S>,
    output: &mut BTreeMap<u32, (Option<Ends>, Outstream)>,
) -> Result<Vec<ConnectionReport<S>>, HandoverError> {
    let mut all: Vec<ConnectionReport<S>> = known.into_values().collect();
    for one in &mut all {
        let offset = one.position.outstream();
        let outstream = output.remove(&one.connection);
        let outstream =
            outstream.map_or_else(|| Outstream::nothing(offset), |(_, outstream)| outstream);
        if outstream.end() != offset {
            return Err(HandoverError::Gap);
        }
        (one.offset, one.output) = (outstream.offset, outstream.output);
    }
    Ok(all)
}

/// The position of a connection in a process. Of several processes one has served the connection, and the last has
/// closed the connection.
trait HasPosition {
    fn outstream(&self) -> u64;
    fn is_closed(&self) -> bool;
    fn join(&mut self, other: &Self);
}

macro_rules! stands {
    ($($kind:ident $(($known:ident))?),*) => {
        $(impl HasPosition for $kind {
            fn outstream(&self) -> u64 {
                self.outstream
            }

            fn is_closed(&self) -> bool {
                self.is_closed
            }

            fn join(&mut self, other: &Self) {
                $(self.$known = self.$known.max(other.$known);)?
                self.instream = self.instream.max(other.instream);
                self.outstream = self.outstream.max(other.outstream);
                self.is_shut |= other.is_shut;
                self.is_closed &= other.is_closed;
            }
        })*
    };
}

stands!(ClientPosition(which), UpstreamPosition);

#[cfg(test)]
mod tests;
