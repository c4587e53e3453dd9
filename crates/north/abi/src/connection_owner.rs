//! Owners of connections that several processes have.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::handover::StreamOffsets;

/// Of connections that several processes have: the one that reads from it, or writes to it, or how far it was when
/// that one has let it go. By the connection's number, modulo the size of the table: one may be forgotten for another,
/// which is found out when they are handed over ([`crate::handover::Entry::Served`]).
#[derive(Debug)]
#[repr(C)]
pub struct Serving([Served; OWNER_SLOTS]);

const OWNER_SLOTS: usize = 1 << 16;

#[derive(Debug)]
#[repr(C)]
struct Served {
    /// The connection's number, and the process's and 1; 0: none is known.
    who: AtomicU64,
    /// How far it was.
    instream: AtomicU64,
    outstream: AtomicU64,
}

/// Instead of a process: no owner, and an update in progress.
const OWNER_NONE: u32 = u32::MAX - 1;
const OWNER_BUSY: u32 = u32::MAX;

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claimed {
    /// Another process serves it.
    No,
    /// It is this one's, or was.
    Own,
    /// It was another one's, which has let it go there.
    From(StreamOffsets),
}

impl Default for Serving {
    fn default() -> Self {
        Self(
            [const {
                Served {
                    who: AtomicU64::new(0),
                    instream: AtomicU64::new(0),
                    outstream: AtomicU64::new(0),
                }
            }; OWNER_SLOTS],
        )
    }
}

fn who(connection: u32, process: u32) -> u64 {
    (u64::from(connection) << 32) | u64::from(process)
}

impl Served {
    /// Who serves this connection, as it is in `who`; `None`: that is not known.
    fn server(&self, connection: u32) -> (u64, Option<u32>) {
        loop {
            let now = self.who.load(Ordering::Acquire);
            let [.., a, b, c, d] = now.to_be_bytes();
            let server = u32::from_be_bytes([a, b, c, d]);
            let is_this = now >> 32 == u64::from(connection) && now != 0;
            if server != OWNER_BUSY {
                return (now, is_this.then_some(server));
            }
            core::hint::spin_loop();
        }
    }

    fn becomes(&self, then: u64, now: u64) -> bool {
        let (made, known) = (Ordering::AcqRel, Ordering::Relaxed);
        self.who.compare_exchange(then, now, made, known).is_ok()
    }

    fn place(&self) -> StreamOffsets {
        StreamOffsets {
            instream: self.instream.load(Ordering::Relaxed),
            outstream: self.outstream.load(Ordering::Relaxed),
        }
    }
}

impl Serving {
    fn at(&self, connection: u32) -> &Served {
        &self.0[connection as usize % OWNER_SLOTS]
    }

    /// This process is to serve the connection.
    #[must_use]
    pub fn claim(&self, connection: u32, process: u32) -> Claimed {
        let (served, own) = (self.at(connection), process + 1);
        loop {
            let (then, server) = served.server(connection);
            let claimed = match server {
                Some(server) if server == own => return Claimed::Own,
                Some(OWNER_NONE) => Claimed::From(served.place()),
                Some(_) => return Claimed::No,
                None => Claimed::Own,
            };
            if served.becomes(then, who(connection, own)) {
                return claimed;
            }
        }
    }

    /// This process serves it no more, and has come so far. Unless another one does, or has come further: replays are
    /// at once.
    pub fn let_go(&self, connection: u32, process: u32, place: StreamOffsets) {
        let (served, own) = (self.at(connection), process + 1);
        loop {
            let (then, server) = served.server(connection);
            let is_over = match server {
                Some(OWNER_NONE) => served.place() >= place,
                Some(server) => server != own,
                None => false,
            };
            if is_over {
                return;
            }
            if served.becomes(then, who(connection, OWNER_BUSY)) {
                served.instream.store(place.instream, Ordering::Relaxed);
                served.outstream.store(place.outstream, Ordering::Relaxed);
                let free = who(connection, OWNER_NONE);
                return served.who.store(free, Ordering::Release);
            }
        }
    }

    /// Nobody serves any of these connections, which are all there were.
    pub fn clear(&self, connections: u32) {
        for served in self.0.iter().take(connections as usize) {
            served.who.store(0, Ordering::Relaxed);
            served.instream.store(0, Ordering::Relaxed);
            served.outstream.store(0, Ordering::Relaxed);
        }
    }
}
