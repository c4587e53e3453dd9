//! Owners of connections that several processes have.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::handover::StreamOffsets;

/// For each connection that several processes have: the process that reads and writes, or the position at which the
/// last owner let the connection go. The index is the connection's number modulo the size of the table. A second
/// connection with the same index overwrites the entry; the handover finds that out
/// ([`crate::handover::Entry::Served`]).
#[derive(Debug)]
#[repr(C)]
pub struct Serving([Served; OWNER_SLOTS]);

const OWNER_SLOTS: usize = 1 << 16;

#[derive(Debug)]
#[repr(C)]
struct Served {
    /// The connection's number, and the process's number plus 1; 0: no owner is known.
    who: AtomicU64,
    /// Position at which the owner let the connection go.
    instream: AtomicU64,
    outstream: AtomicU64,
}

/// In place of a process: no owner, and an update in progress.
const OWNER_NONE: u32 = u32::MAX - 1;
const OWNER_BUSY: u32 = u32::MAX;

/// Outcome of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claimed {
    /// Another process is the owner.
    No,
    /// The process is the owner: already, or because no owner was known.
    Own,
    /// The process is the owner. The owner before let the connection go at this position.
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
    /// The word `who` and the owner of this connection in the word. `None`: the owner is not known.
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

    /// The process claims the connection.
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

    /// The process lets the connection go at this position. No effect if another process is the owner, or if the
    /// known position is further: several replays run at once.
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

    /// Forgets the owners of all connections: `connections` is the number of connections that existed.
    pub fn clear(&self, connections: u32) {
        for served in self.0.iter().take(connections as usize) {
            served.who.store(0, Ordering::Relaxed);
            served.instream.store(0, Ordering::Relaxed);
            served.outstream.store(0, Ordering::Relaxed);
        }
    }
}
