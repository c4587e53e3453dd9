//! Read cursors: how far each connection was read with stable determinants. The data plane need not mirror these bytes.
//! The layout is `struct read_cursor` of the data plane (`intf/read_cursor.h`); a test compares the two.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::handover::Ends;

/// Entries of the table, a power of two.
pub const READ_CURSORS: usize = CURSOR_COUNT as usize;
/// Entries that one connection may have, from its hash on.
pub const READ_CURSOR_PROBES: usize = CURSOR_PROBES as usize;

const CURSOR_COUNT: u32 = 1 << 16;
const CURSOR_PROBES: u32 = 4;

const CURSOR_FREE: u32 = 0;
const CURSOR_TAKEN: u32 = 1;
/// A process is about to take the entry. (The data plane sets state 3: the entry is distrusted, and not taken.)
const CURSOR_BUSY: u32 = 2;

/// The cursor of one connection.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ReadCursor {
    /// Addresses of client and server, their ports (as in packets), and the client's ISN (native order).
    key: [AtomicU64; 5],
    /// The data plane's number of the connection, once known.
    flow: AtomicU64,
    /// Reads before this sequence number are stable.
    seq: AtomicU32,
    state: AtomicU32,
    /// Up to here the data plane did not mirror; 0: mirrored.
    skipped_to: AtomicU32,
    reserved: AtomicU32,
}

/// The table in shared memory.
#[derive(Debug, Clone, Copy)]
pub struct ReadCursors<'a>(pub &'a [ReadCursor; READ_CURSORS]);

impl ReadCursors<'_> {
    /// Takes an entry for the connection with these ends and this client ISN, with the cursor at `seq`. Answers the
    /// index. `None`: the entries of its hash are taken.
    #[must_use]
    pub fn take(&self, ends: &Ends, isn: u32, seq: u32) -> Option<u32> {
        let key = key(ends, isn);
        let places = probes(ends, isn);
        let is_its = |place: &u32| self.at(*place).is_of(&key);
        if let Some(place) = places.clone().find(is_its) {
            self.advance(place, isn, seq);
            return Some(place);
        }
        places
            .into_iter()
            .find(|place| self.at(*place).take(&key, seq))
    }

    /// Advances the cursor to `seq`, if the entry still belongs to the client with this ISN. A cursor never goes back.
    pub fn advance(&self, place: u32, isn: u32, seq: u32) {
        let cursor = self.at(place);
        if cursor.isn() == isn && is_after(seq, cursor.seq.load(Ordering::Relaxed)) {
            cursor.seq.store(seq, Ordering::Release);
        }
    }

    /// Whether the data plane has skipped bytes beyond the cursor.
    #[must_use]
    pub fn is_owed(&self, place: u32) -> bool {
        let cursor = self.at(place);
        let [left, seq] = [&cursor.skipped_to, &cursor.seq].map(|one| one.load(Ordering::Acquire));
        left != 0 && is_after(left, seq)
    }

    /// Frees the entry.
    pub fn free(&self, place: u32) {
        self.at(place).state.store(CURSOR_FREE, Ordering::Release);
    }

    fn at(&self, place: u32) -> &ReadCursor {
        &self.0[place as usize % READ_CURSORS]
    }
}

impl ReadCursor {
    fn is_of(&self, key: &[u64; 5]) -> bool {
        let mut words = self.key.iter().zip(key);
        self.state.load(Ordering::Acquire) == CURSOR_TAKEN
            && words.all(|(word, its)| word.load(Ordering::Relaxed) == *its)
    }

    fn isn(&self) -> u32 {
        let [.., last] = &self.key;
        let [.., a, b, c, d] = last.load(Ordering::Relaxed).to_ne_bytes();
        u32::from_ne_bytes([a, b, c, d])
    }

    fn take(&self, key: &[u64; 5], seq: u32) -> bool {
        let (made, known) = (Ordering::AcqRel, Ordering::Relaxed);
        let taken = self
            .state
            .compare_exchange(CURSOR_FREE, CURSOR_BUSY, made, known);
        if taken.is_err() {
            return false;
        }
        for (word, its) in self.key.iter().zip(key) {
            word.store(*its, Ordering::Relaxed);
        }
        self.flow.store(0, Ordering::Relaxed);
        self.skipped_to.store(0, Ordering::Relaxed);
        self.seq.store(seq, Ordering::Relaxed);
        self.state.store(CURSOR_TAKEN, Ordering::Release);
        true
    }
}

/// RFC 9293 3.4.
fn is_after(one: u32, other: u32) -> bool {
    one.wrapping_sub(other).cast_signed() > 0
}

/// The ends in the order of the data plane's `struct flow_key`, and the ISN.
fn key(ends: &Ends, isn: u32) -> [u64; 5] {
    let ([client, client_port], [server, server_port]) = (half(ends, 0), half(ends, 18));
    let mut bytes = [0; 40];
    let (addresses, rest) = bytes.split_at_mut(32);
    addresses[..16].copy_from_slice(client);
    addresses[16..].copy_from_slice(server);
    rest[..2].copy_from_slice(client_port);
    rest[2..4].copy_from_slice(server_port);
    rest[4..].copy_from_slice(&isn.to_ne_bytes());
    let (words, _) = bytes.as_chunks::<8>();
    let mut all = [0; 5];
    for (word, bytes) in all.iter_mut().zip(words) {
        *word = u64::from_ne_bytes(*bytes);
    }
    all
}

/// An end's address and port.
fn half(ends: &Ends, at: usize) -> [&[u8]; 2] {
    let (address, port) = ends.0[at..at + 18].split_at(16);
    [address, port]
}

/// Indices that a connection may have, as `note_place` of the data plane.
fn probes(ends: &Ends, isn: u32) -> impl Iterator<Item = u32> + Clone {
    let port = u32::from(u16::from_ne_bytes([ends.0[16], ends.0[17]]));
    let first = (isn ^ port).wrapping_mul(0x9e37_79b1) >> 16;
    (0..CURSOR_PROBES).map(move |more| (first + more) % CURSOR_COUNT)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn table() -> ReadCursors<'static> {
        let cursors: Vec<ReadCursor> = std::iter::repeat_with(ReadCursor::default)
            .take(READ_CURSORS)
            .collect();
        let cursors: &[ReadCursor] = cursors.leak();
        ReadCursors(cursors.try_into().expect("as many"))
    }

    fn ends(port: u16) -> Ends {
        let client = std::net::SocketAddr::from(([10, 0, 0, 1], port));
        Ends::new(client, ([10, 0, 0, 10], 80).into())
    }

    #[test]
    fn taken_cursor_is_found_and_never_goes_back() {
        let cursors = table();
        let place = cursors.take(&ends(4000), 7, 100).expect("there is room");
        cursors.advance(place, 7, 90);
        assert_eq!(cursors.take(&ends(4000), 7, 120), Some(place));
        let seq = &cursors.0[place as usize].seq;
        assert_eq!(seq.load(Ordering::Relaxed), 120);
        cursors.advance(place, 7, 110);
        cursors.advance(place, 8, 130);
        assert_eq!(seq.load(Ordering::Relaxed), 120);
        // A different ISN makes a different connection, in spite of equal ends.
        assert_ne!(cursors.take(&ends(4000), 8, 1), Some(place));
    }

    #[test]
    fn colliding_connections_take_all_probes_and_freed_entry() {
        let cursors = table();
        let taken: Vec<_> = (0..6)
            .map(|server: u16| {
                let client = std::net::SocketAddr::from(([10, 0, 0, 1], 4000));
                let ends = Ends::new(client, ([10, 0, 0, 10], server).into());
                cursors.take(&ends, 7, 0)
            })
            .collect();
        assert!(taken[..READ_CURSOR_PROBES].iter().all(Option::is_some));
        assert_eq!(taken[READ_CURSOR_PROBES..], [None, None]);
        cursors.free(taken[1].expect("taken"));
        assert_eq!(cursors.take(&ends(4000), 7, 0), taken[1]);
    }

    #[test]
    fn skipped_bytes_are_owed_until_cursor_passes() {
        let cursors = table();
        let place = cursors.take(&ends(4000), 7, u32::MAX - 5).expect("room");
        assert!(!cursors.is_owed(place));
        cursors.0[place as usize]
            .skipped_to
            .store(10, Ordering::Relaxed);
        assert!(cursors.is_owed(place));
        cursors.advance(place, 7, 10);
        assert!(!cursors.is_owed(place));
    }
}
