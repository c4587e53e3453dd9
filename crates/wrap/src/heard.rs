//! What a process has said of its connections, of which there may be much: who follows another host's record for days
//! keeps only what clients may lack.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
};

use wrap_abi::handover::{Ends, Entry, Position, Reach, Standing};

use crate::{handover::HandoverError, kept::Kept};

/// A connection as a process has left it. `S`: where it stands, a client's ([`Standing`]) or one that the process has
/// opened ([`Reach`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed<S = Standing> {
    /// The process's number for it.
    pub connection: u32,
    /// Where it stands.
    pub standing: S,
    /// Where in the outstream the bytes below begin.
    pub offset: u64,
    /// What was said, and what its client may not have, up to where it stands.
    pub said: Vec<u8>,
}

/// All that a process has passed on, each in the order in which they were said to stand somewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllPassed {
    /// Its clients' connections.
    pub clients: Vec<Passed>,
    /// Those that it has opened.
    pub opened: Vec<Passed<Reach>>,
}

impl AllPassed {
    fn open(&self) -> usize {
        let clients = self.clients.iter().map(|one| one.standing.is_closed);
        let opened = self.opened.iter().map(|one| one.standing.is_closed);
        clients.chain(opened).filter(|is_closed| !is_closed).count()
    }
}

/// What was said in a connection, as far as it is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Outstream {
    /// Where the bytes begin.
    offset: u64,
    said: Vec<u8>,
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

    /// A client was told this from there on. What the first words behind an image leave out, and what was before that, it has: the
    /// process was told so when it was made from the image.
    fn add(&mut self, offset: u64, bytes: &[u8]) -> Result<(), HandoverError> {
        if mem::take(&mut self.is_of_image) && offset > self.end() {
            *self = Self::nothing(offset);
        }
        if offset != self.end() {
            return Err(HandoverError::Gap);
        }
        self.said.extend_from_slice(bytes);
        Ok(())
    }

    /// What is before `place` is needed no more, as far as it was said.
    fn forget(&mut self, place: u64) {
        let known = place.min(self.end()).saturating_sub(self.offset);
        self.offset += known;
        self.said
            .drain(..usize::try_from(known).unwrap_or(usize::MAX));
    }
}

/// All of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// Of connections that do not stand anywhere yet; with their ends, where these were said.
    open: BTreeMap<u32, (Option<Ends>, Outstream)>,
    passed: AllPassed,
    /// Of a process that has stopped for an image: the descriptors and ends of its clients' connections.
    stopped: Vec<(u32, Ends)>,
}

/// What a connection takes besides what was said, bytes, at least.
const EACH: usize = 128;

impl Heard {
    /// All entries that are whole. Tells how many bytes these are.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<usize, HandoverError> {
        let mut at = 0;
        while let Some((entry, length)) = Entry::read(&bytes[at..]) {
            self.take(&entry)?;
            at += length;
        }
        Ok(at)
    }

    /// One more entry.
    fn take(&mut self, entry: &Entry<'_>) -> Result<(), HandoverError> {
        match *entry {
            Entry::Began { connection, ends } => {
                let begins = (Some(ends), Outstream::default());
                self.open.insert(connection, begins);
            }
            Entry::Said {
                connection,
                offset,
                bytes,
            } => {
                let begins = || (None, Outstream::nothing(offset));
                let (_, outstream) = self.open.entry(connection).or_insert_with(begins);
                outstream.add(offset, bytes)?;
            }
            Entry::Stands {
                connection,
                standing,
            } => {
                let mut said = self.ends(connection, standing.outstream);
                said.add(standing.outstream, &[])?;
                let one = passed(connection, standing, said);
                self.passed.clients.push(one);
            }
            Entry::Reaches { connection, reach } => {
                let said = self.ends(connection, reach.outstream);
                if said.end() != reach.outstream {
                    return Err(HandoverError::Gap);
                }
                self.passed.opened.push(passed(connection, reach, said));
            }
            Entry::Open {
                connection,
                fd,
                ends,
            } => {
                self.open.entry(connection).or_default().0 = Some(ends);
                self.stopped.push((fd, ends));
            }
        }
        Ok(())
    }

    /// Nothing more is said in a connection, where so much was.
    fn ends(&mut self, connection: u32, outstream: u64) -> Outstream {
        let said = self.open.remove(&connection);
        said.map_or_else(|| Outstream::nothing(outstream), |(_, said)| said)
    }

    /// So much of the outstreams of these connections is with their clients. Others are gone: nobody lacks anything.
    pub(crate) fn forget(&mut self, received: &HashMap<Ends, u64>) {
        for (ends, outstream) in self.open.values_mut() {
            if let Some(ends) = ends {
                outstream.forget(received.get(ends).copied().unwrap_or(u64::MAX));
            }
        }
        // Where others have the same ends by now, the client of the earlier connection is gone.
        let mut later: BTreeSet<Ends> = self.open.values().filter_map(|(ends, _)| *ends).collect();
        let mut passed = mem::take(&mut self.passed.clients);
        passed.reverse();
        passed.retain_mut(|one| {
            let ends = one.standing.ends;
            let Some(received) = received.get(&ends).filter(|_| later.insert(ends)) else {
                return false;
            };
            let mut outstream = Outstream {
                said: mem::take(&mut one.said),
                ..Outstream::nothing(one.offset)
            };
            outstream.forget(*received);
            (one.offset, one.said) = (outstream.offset, outstream.said);
            true
        });
        passed.reverse();
        self.passed.clients = passed;
    }

    /// What it takes, bytes.
    pub(crate) fn size(&self) -> usize {
        let open = self
            .open
            .values()
            .map(|(_, outstream)| outstream.said.len());
        let passed = self.passed.clients.iter().map(|one| one.said.len());
        open.chain(passed).map(|said| said + EACH).sum()
    }

    /// The connections that stand somewhere, of which `open` are open.
    pub(crate) fn finish(self, open: u32) -> Result<AllPassed, HandoverError> {
        let passed = self.passed.open();
        if u32::try_from(passed) != Ok(open) {
            return Err(HandoverError::OtherCount { passed, said: open });
        }
        Ok(self.passed)
    }

    /// The process has stopped for an image, and clients have so much: what they may lack belongs to that.
    pub(crate) fn keep(mut self, positions: &[Position]) -> Result<Kept, HandoverError> {
        if !self.passed.opened.is_empty() {
            return Err(HandoverError::Opened);
        }
        let received = positions.iter().map(|one| (one.ends, one.received));
        self.forget(&received.collect());
        Ok(self.of_image())
    }

    /// It is what belongs to an image.
    pub(crate) fn of_image(mut self) -> Kept {
        self.open.retain(|_, (_, said)| !said.said.is_empty());
        for (ends, said) in self.open.values_mut() {
            (*ends, said.is_of_image) = (None, true);
        }
        Kept {
            open: mem::take(&mut self.stopped),
            heard: self,
        }
    }

    /// Of clients' connections, as it is in a handover file.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for one in &self.passed.clients {
            say(&mut all, one.connection, one.offset, &one.said);
            let stands = Entry::Stands {
                connection: one.connection,
                standing: one.standing,
            };
            all.extend_from_slice(&stands.header());
        }
        for (connection, (_, said)) in &self.open {
            say(&mut all, *connection, said.offset, &said.said);
        }
        all
    }
}

fn passed<S>(connection: u32, standing: S, said: Outstream) -> Passed<S> {
    Passed {
        connection,
        standing,
        offset: said.offset,
        said: said.said,
    }
}

fn say(all: &mut Vec<u8>, connection: u32, offset: u64, bytes: &[u8]) {
    if !bytes.is_empty() {
        let said = Entry::Said {
            connection,
            offset,
            bytes,
        };
        all.extend_from_slice(&said.header());
        all.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ends(number: u8) -> Ends {
        let mut ends = Ends::default();
        ends.0[0] = number;
        ends
    }

    fn standing(number: u8, outstream: u64, is_closed: bool) -> Standing {
        Standing {
            ends: ends(number),
            instream: 0,
            outstream,
            is_shut: false,
            is_closed,
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Say(u8, Vec<u8>),
        Close(u8),
        /// In thousandths of what was said.
        Forget(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let bytes = prop::collection::vec(any::<u8>(), 0..50);
        prop_oneof![
            4 => (0..4u8, bytes).prop_map(|(one, bytes)| Step::Say(one, bytes)),
            1 => (0..4u8).prop_map(Step::Close),
            1 => (0..=1000u64).prop_map(Step::Forget),
        ]
    }

    proptest! {
        /// Whatever was forgotten in between: what clients lack is there, and nothing else is said to be.
        #[test]
        fn what_clients_lack_is_kept(steps in prop::collection::vec(step(), 0..60)) {
            let mut heard = Heard::default();
            // What the connection with these ends has said, and how much of that its client has.
            let mut all: BTreeMap<u8, (Vec<u8>, u64, bool)> = BTreeMap::new();
            let begin = |heard: &mut Heard, one: u8| {
                heard.take(&Entry::Began { connection: one.into(), ends: ends(one) })
            };
            for step in steps {
                match step {
                    Step::Say(one, bytes) => {
                        if all.get(&one).is_none_or(|(_, _, closed)| *closed) {
                            begin(&mut heard, one)?;
                            all.insert(one, (Vec::new(), 0, false));
                        }
                        let (said, _, _) = all.get_mut(&one).expect("begun");
                        let offset = said.len() as u64;
                        said.extend_from_slice(&bytes);
                        heard.take(&Entry::Said { connection: one.into(), offset, bytes: &bytes })?;
                    }
                    Step::Close(one) => {
                        let Some((said, _, closed)) = all.get_mut(&one).filter(|one| !one.2) else {
                            continue;
                        };
                        *closed = true;
                        let standing = standing(one, said.len() as u64, true);
                        heard.take(&Entry::Stands { connection: one.into(), standing })?;
                    }
                    Step::Forget(part) => {
                        for (said, received, _) in all.values_mut() {
                            *received = (*received).max(said.len() as u64 * part / 1000);
                        }
                        let received = all.iter().map(|(one, (_, received, _))| (ends(*one), *received));
                        heard.forget(&received.collect());
                    }
                }
            }
            let open = all.iter().filter(|(_, (_, _, closed))| !closed);
            let mut count = 0;
            for (one, (said, _, _)) in open {
                let standing = standing(*one, said.len() as u64, false);
                heard.take(&Entry::Stands { connection: (*one).into(), standing })?;
                count += 1;
            }
            let passed = heard.finish(count).expect("all of them").clients;
            for (one, (said, received, _)) in &all {
                // The last one with these ends is the one that goes on.
                let its = passed.iter().rfind(|passed| passed.standing.ends == ends(*one));
                let its = its.expect("its client was never gone");
                prop_assert!(its.offset <= *received);
                let from = usize::try_from(its.offset).expect("short");
                prop_assert_eq!(&its.said, &said[from..]);
            }
        }
    }

    #[test]
    fn who_is_gone_takes_nothing() {
        let mut heard = Heard::default();
        for connection in [1, 2] {
            heard
                .take(&Entry::Began {
                    connection,
                    ends: ends(1),
                })
                .expect("it begins");
            let bytes = &[0; 100];
            let said = Entry::Said {
                connection,
                offset: 0,
                bytes,
            };
            heard.take(&said).expect("it says something");
        }
        let standing = standing(1, 100, true);
        heard
            .take(&Entry::Stands {
                connection: 1,
                standing,
            })
            .expect("it is closed");
        assert_eq!(heard.size(), 2 * (100 + EACH));
        heard.forget(&HashMap::new());
        assert_eq!(heard.size(), EACH, "the open one");
        let more = Entry::Said {
            connection: 2,
            offset: 100,
            bytes: b"more",
        };
        heard.take(&more).expect("where it was");
    }
}
