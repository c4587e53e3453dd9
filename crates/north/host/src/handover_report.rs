//! What processes have said of their connections, of which there may be much: who follows another host's record for
//! days keeps only what clients may lack.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map},
    mem,
};

use north_abi::handover::{Ends, Entry, Place, Position, Reach, Standing};

use crate::{handover::HandoverError, snapshot_tail::Kept};

/// A connection as processes have left it. `S`: where it stands, a client's ([`Standing`]) or one that a process has
/// opened ([`Reach`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed<S = Standing> {
    /// Its number.
    pub connection: u32,
    /// The processes that have it.
    pub holders: Vec<u32>,
    /// Where it stands.
    pub standing: S,
    /// Where in the outstream the bytes below begin.
    pub offset: u64,
    /// What was said, and what its client may not have, up to where it stands.
    pub said: Vec<u8>,
}

/// All that processes have passed on, each in the order of their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllPassed {
    /// Their clients' connections.
    pub clients: Vec<Passed>,
    /// Those that they have opened.
    pub opened: Vec<Passed<Reach>>,
}

impl AllPassed {
    /// How often one is open in a process.
    fn open(&self) -> usize {
        let clients = self.clients.iter().map(|one| one.holders.len());
        let opened = self.opened.iter().map(|one| one.holders.len());
        clients.chain(opened).sum()
    }
}

/// What was said in a connection, as far as it is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Outstream {
    /// Where the bytes begin.
    offset: u64,
    said: Vec<u8>,
    /// What other processes have said, each from there on: before that, or behind it.
    others: BTreeMap<u64, Vec<u8>>,
    /// It was kept with an image, and the process that was made from that has said nothing yet.
    is_of_image: bool,
}

impl Outstream {
    /// Nothing, up to there.
    fn nothing(offset: u64) -> Self {
        Self {
            offset,
            ..Self::default()
        }
    }

    fn end(&self) -> u64 {
        self.offset.saturating_add(self.said.len() as u64)
    }

    /// This was said from there on. What the first words behind an image leave out, and what was before that, a client
    /// has: the process was told so when it was made from the image.
    fn add(&mut self, offset: u64, bytes: &[u8]) {
        if mem::take(&mut self.is_of_image) && offset > self.end() {
            *self = Self::nothing(offset);
        }
        if offset == self.end() {
            return self.said.extend_from_slice(bytes);
        }
        let mut others = self.others.iter_mut();
        match others.find(|(from, said)| **from + said.len() as u64 == offset) {
            Some((_, said)) => said.extend_from_slice(bytes),
            None => {
                self.others.insert(offset, bytes.to_vec());
            }
        }
    }

    /// What processes have said is one piece.
    fn join(&mut self) -> Result<(), HandoverError> {
        let mut all = mem::take(&mut self.others);
        if all.is_empty() {
            return Ok(());
        }
        if all.insert(self.offset, mem::take(&mut self.said)).is_some() {
            return Err(HandoverError::Gap);
        }
        let first = all.first_key_value().map(|(from, _)| *from);
        self.offset = first.unwrap_or(self.offset);
        for (from, said) in all {
            if from != self.end() {
                return Err(HandoverError::Gap);
            }
            self.said.extend(said);
        }
        Ok(())
    }

    /// And it ends there.
    fn close(&mut self, end: u64) -> Result<(), HandoverError> {
        self.join()?;
        self.add(end, &[]);
        match self.others.is_empty() {
            true => Ok(()),
            false => Err(HandoverError::Gap),
        }
    }

    /// What is before `place` is needed no more, as far as it was said.
    fn forget(&mut self, place: u64) {
        let known = place.min(self.end()).saturating_sub(self.offset);
        self.offset += known;
        self.said
            .drain(..usize::try_from(known).unwrap_or(usize::MAX));
    }
}

/// Connections of which a process has said where they stand, by their numbers; what was said in them is elsewhere.
type Known<S> = BTreeMap<u32, Passed<S>>;

/// All of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// By connections' numbers; with their ends, where these were said.
    said: BTreeMap<u32, (Option<Ends>, Outstream)>,
    clients: Known<Standing>,
    opened: Known<Reach>,
    /// From where on, and up to where, processes have served connections that several have.
    served: BTreeMap<u32, Vec<(Place, Place)>>,
    /// Of a process that has stopped for an image: the descriptors and ends of its clients' connections.
    stopped: Vec<(u32, Ends)>,
}

/// What a connection takes besides what was said, bytes, at least.
const EACH: usize = 128;

impl Heard {
    /// All entries that are whole. Tells how many bytes these are.
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
                self.said.insert(connection, begins);
            }
            Entry::Said {
                connection,
                offset,
                bytes,
            } => {
                let begins = || (None, Outstream::nothing(offset));
                let (_, outstream) = self.said.entry(connection).or_insert_with(begins);
                outstream.add(offset, bytes);
            }
            Entry::Served {
                connection,
                from,
                to,
            } => self.served.entry(connection).or_default().push((from, to)),
            Entry::Stands {
                connection,
                process,
                standing,
            } => stands(&mut self.clients, connection, process, standing),
            Entry::Reaches {
                connection,
                process,
                reach,
            } => stands(&mut self.opened, connection, process, reach),
            Entry::Open {
                connection,
                fd,
                ends,
            } => {
                self.said.entry(connection).or_default().0 = Some(ends);
                self.stopped.push((fd, ends));
            }
        }
    }

    /// So much of the outstreams of these connections is with their clients. Others are gone: nobody lacks anything.
    /// Of what another host had opened and closed nobody has a socket.
    pub(crate) fn forget(&mut self, received: &HashMap<Ends, u64>) {
        let mut later = BTreeSet::new();
        for (number, (ends, outstream)) in &mut self.said {
            if let Some(ends) = ends.filter(|_| !self.clients.contains_key(number)) {
                outstream.forget(received.get(&ends).copied().unwrap_or(u64::MAX));
                later.insert(ends);
            }
        }
        // Where others have the same ends by now, the client of the earlier connection is gone.
        let passed = self.clients.iter().rev();
        let gone: Vec<u32> = passed
            .filter(|(_, one)| {
                let ends = one.standing.ends;
                !received.contains_key(&ends) || !later.insert(ends)
            })
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            self.clients.remove(&number);
            self.said.remove(&number);
        }
        for (number, one) in &self.clients {
            if let Some((_, outstream)) = self.said.get_mut(number) {
                outstream.forget(received.get(&one.standing.ends).copied().unwrap_or(0));
            }
        }
        let said = &mut self.said;
        let clients = &self.clients;
        self.served.retain(|number, _| clients.contains_key(number));
        self.opened.retain(|number, one| {
            if one.standing.is_closed {
                said.remove(number);
            }
            !one.standing.is_closed
        });
    }

    /// What it takes, bytes.
    pub(crate) fn size(&self) -> usize {
        let said = self.said.values();
        let said: usize = said.map(|(_, outstream)| outstream.said.len() + EACH).sum();
        said + self.opened.len() * EACH
    }

    /// The connections that stand somewhere; processes have `open` that are open.
    pub(crate) fn finish(mut self, open: u32) -> Result<AllPassed, HandoverError> {
        for (_, outstream) in self.said.values_mut() {
            outstream.join()?;
        }
        for (number, one) in &self.clients {
            if let Some((_, outstream)) = self.said.get_mut(number) {
                outstream.close(one.standing.outstream)?;
            }
            let served = self.served.remove(number).unwrap_or_default();
            is_one_row(served, &one.standing)?;
        }
        let all = AllPassed {
            clients: passed(self.clients, &mut self.said)?,
            opened: passed(self.opened, &mut self.said)?,
        };
        let passed = all.open();
        if u32::try_from(passed) != Ok(open) {
            return Err(HandoverError::OtherCount { passed, said: open });
        }
        Ok(all)
    }

    /// The process has stopped for an image, and clients have so much: what they may lack belongs to that.
    pub(crate) fn keep(mut self, positions: &[Position]) -> Result<Kept, HandoverError> {
        if !self.opened.is_empty() {
            return Err(HandoverError::Opened);
        }
        let received = positions.iter().map(|one| (one.ends, one.received));
        self.forget(&received.collect());
        Ok(self.of_image())
    }

    /// It is what belongs to an image.
    pub(crate) fn of_image(mut self) -> Kept {
        self.said.retain(|_, (_, said)| !said.said.is_empty());
        for (number, (ends, said)) in &mut self.said {
            (*ends, said.is_of_image) = (None, !self.clients.contains_key(number));
        }
        Kept {
            open: mem::take(&mut self.stopped),
            heard: self,
        }
    }

    /// Of clients' connections, as it is in a handover file.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for (connection, (_, said)) in &self.said {
            let entry = Entry::Said {
                connection: *connection,
                offset: said.offset,
                bytes: &said.said,
            };
            all.extend_from_slice(&entry.header());
            all.extend_from_slice(&said.said);
        }
        for (connection, one) in &self.clients {
            let entry = Entry::Stands {
                connection: *connection,
                process: one.holders.first().copied().unwrap_or(0),
                standing: one.standing,
            };
            all.extend_from_slice(&entry.header());
        }
        all
    }
}

/// Those who have served a connection have done so one after another, from its beginning to where it stands.
fn is_one_row(mut served: Vec<(Place, Place)>, standing: &Standing) -> Result<(), HandoverError> {
    served.sort_unstable();
    let (mut at, is_known) = (Place::default(), !served.is_empty());
    for (from, to) in served {
        if from != at {
            return Err(HandoverError::Row);
        }
        at = to;
    }
    let stands = (standing.instream, standing.outstream);
    if is_known && (at.instream, at.outstream) != stands {
        return Err(HandoverError::Row);
    }
    Ok(())
}

/// A process says where a connection stands.
fn stands<S: Stands>(known: &mut Known<S>, connection: u32, process: u32, standing: S) {
    let holder = (!standing.is_closed()).then_some(process);
    match known.entry(connection) {
        btree_map::Entry::Vacant(new) => {
            new.insert(Passed {
                connection,
                holders: Vec::from_iter(holder),
                standing,
                offset: 0,
                said: Vec::new(),
            });
        }
        btree_map::Entry::Occupied(mut known) => {
            let known = known.get_mut();
            known.standing.join(&standing);
            known.holders.extend(holder);
        }
    }
}

/// The connections, with what was said in them.
fn passed<S: Stands>(
    known: Known<S>,
    said: &mut BTreeMap<u32, (Option<Ends>, Outstream)>,
) -> Result<Vec<Passed<S>>, HandoverError> {
    let mut all: Vec<Passed<S>> = known.into_values().collect();
    for one in &mut all {
        let offset = one.standing.outstream();
        let said = said.remove(&one.connection);
        let outstream = said.map_or_else(|| Outstream::nothing(offset), |(_, said)| said);
        if outstream.end() != offset {
            return Err(HandoverError::Gap);
        }
        (one.offset, one.said) = (outstream.offset, outstream.said);
    }
    Ok(all)
}

/// Where a connection stands, as one process says it. Another one may have it, too, or have had it: one of them has
/// served it, and the last has closed it.
trait Stands {
    fn outstream(&self) -> u64;
    fn is_closed(&self) -> bool;
    fn join(&mut self, other: &Self);
}

macro_rules! stands {
    ($($kind:ident $(($known:ident))?),*) => {
        $(impl Stands for $kind {
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

stands!(Standing(which), Reach);

#[cfg(test)]
mod tests;
