//! What a process has said of its connections, of which there may be much: who follows another host's record for days
//! keeps only what clients may lack.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use wrap_abi::handover::{Ends, Entry, Reach, Standing};

use crate::handover::HandoverError;

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
#[derive(Debug, Default)]
struct Outstream {
    /// Where the bytes begin.
    offset: u64,
    said: Vec<u8>,
}

impl Outstream {
    fn end(&self) -> u64 {
        self.offset + self.said.len() as u64
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
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// Of connections that do not stand anywhere yet; with their ends, where these were said.
    open: BTreeMap<u32, (Option<Ends>, Outstream)>,
    passed: AllPassed,
}

/// What a connection takes besides what was said, bytes, at least.
const EACH: usize = 128;

impl Heard {
    /// One more entry.
    pub(crate) fn take(&mut self, entry: &Entry<'_>) -> Result<(), HandoverError> {
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
                let begins = || {
                    let said = Vec::new();
                    (None, Outstream { offset, said })
                };
                let (_, outstream) = self.open.entry(connection).or_insert_with(begins);
                if outstream.end() != offset {
                    return Err(HandoverError::Gap);
                }
                outstream.said.extend_from_slice(bytes);
            }
            Entry::Stands {
                connection,
                standing,
            } => {
                let one = self.stands(connection, standing, standing.outstream)?;
                self.passed.clients.push(one);
            }
            Entry::Reaches { connection, reach } => {
                let one = self.stands(connection, reach, reach.outstream)?;
                self.passed.opened.push(one);
            }
        }
        Ok(())
    }

    /// A connection that has said so much.
    fn stands<S>(
        &mut self,
        connection: u32,
        standing: S,
        outstream: u64,
    ) -> Result<Passed<S>, HandoverError> {
        let nothing = Outstream {
            offset: outstream,
            said: Vec::new(),
        };
        let said = self.open.remove(&connection);
        let said = said.map_or(nothing, |(_, said)| said);
        if said.end() != outstream {
            return Err(HandoverError::Gap);
        }
        Ok(Passed {
            connection,
            standing,
            offset: said.offset,
            said: said.said,
        })
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
        let mut passed = std::mem::take(&mut self.passed.clients);
        passed.reverse();
        passed.retain_mut(|one| {
            let ends = one.standing.ends;
            let Some(received) = received.get(&ends).filter(|_| later.insert(ends)) else {
                return false;
            };
            let mut outstream = Outstream {
                offset: one.offset,
                said: std::mem::take(&mut one.said),
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
