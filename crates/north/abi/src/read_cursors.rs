//! How far each connection was read, and its logger knows what: said to the data plane, which need not give the logger
//! a copy of that (`notes.h` of the data plane, whose `struct note` this is; a test compares the two).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::handover::Ends;

/// How many there are, and a power of two.
pub const NOTES: usize = COUNT as usize;
/// From the one that a connection's numbers lead to, this many may be its.
pub const NOTE_PROBES: usize = PROBES as usize;

const COUNT: u32 = 1 << 16;
const PROBES: u32 = 4;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Somebody is about to take it. (3 is of the data plane: it does not believe it any more. Nobody else takes it then.)
const BUSY: u32 = 2;

/// What is said of one connection.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Note {
    /// Its ends, client and server, then their ports, and the client's initial sequence number: bytes as they are in
    /// packets, but for the last four.
    whose: [AtomicU64; 5],
    /// The data plane's number of it, if it has found it.
    flow: AtomicU64,
    /// What lies before this sequence number is noted.
    seq: AtomicU32,
    state: AtomicU32,
    /// Up to there the logger got no copy: the data plane says so.
    left: AtomicU32,
    rest: AtomicU32,
}

/// All of them, as they are in memory that is shared.
#[derive(Debug, Clone, Copy)]
pub struct Notes<'a>(pub &'a [Note; NOTES]);

impl Notes<'_> {
    /// Take one for the connection with these ends, whose client has begun with `isn`: everything before `seq` is
    /// noted. Answers which; `None`: there is no room where its place would be.
    #[must_use]
    pub fn take(&self, ends: &Ends, isn: u32, seq: u32) -> Option<u32> {
        let whose = whose(ends, isn);
        let places = probes(ends, isn);
        let is_its = |place: &u32| self.at(*place).is_of(&whose);
        if let Some(place) = places.clone().find(is_its) {
            self.note(place, isn, seq);
            return Some(place);
        }
        places
            .into_iter()
            .find(|place| self.at(*place).take(&whose, seq))
    }

    /// What lies before `seq` is noted, if the place is still that of a client that has begun with `isn`.
    pub fn note(&self, place: u32, isn: u32, seq: u32) {
        let note = self.at(place);
        if note.isn() == isn && is_after(seq, note.seq.load(Ordering::Relaxed)) {
            note.seq.store(seq, Ordering::Release);
        }
    }

    /// Was a copy left out of something that is not noted yet?
    #[must_use]
    pub fn is_owed(&self, place: u32) -> bool {
        let note = self.at(place);
        let [left, seq] = [&note.left, &note.seq].map(|one| one.load(Ordering::Acquire));
        left != 0 && is_after(left, seq)
    }

    /// Nothing more will be said of the connection whose place it is.
    pub fn free(&self, place: u32) {
        self.at(place).state.store(FREE, Ordering::Release);
    }

    fn at(&self, place: u32) -> &Note {
        &self.0[place as usize % NOTES]
    }
}

impl Note {
    fn is_of(&self, whose: &[u64; 5]) -> bool {
        let mut words = self.whose.iter().zip(whose);
        self.state.load(Ordering::Acquire) == TAKEN
            && words.all(|(word, its)| word.load(Ordering::Relaxed) == *its)
    }

    fn isn(&self) -> u32 {
        let [.., last] = &self.whose;
        let [.., a, b, c, d] = last.load(Ordering::Relaxed).to_ne_bytes();
        u32::from_ne_bytes([a, b, c, d])
    }

    fn take(&self, whose: &[u64; 5], seq: u32) -> bool {
        let (made, known) = (Ordering::AcqRel, Ordering::Relaxed);
        let taken = self.state.compare_exchange(FREE, BUSY, made, known);
        if taken.is_err() {
            return false;
        }
        for (word, its) in self.whose.iter().zip(whose) {
            word.store(*its, Ordering::Relaxed);
        }
        self.flow.store(0, Ordering::Relaxed);
        self.left.store(0, Ordering::Relaxed);
        self.seq.store(seq, Ordering::Relaxed);
        self.state.store(TAKEN, Ordering::Release);
        true
    }
}

/// RFC 9293 3.4.
fn is_after(one: u32, other: u32) -> bool {
    one.wrapping_sub(other).cast_signed() > 0
}

/// The ends in the order of the data plane's `struct flow_key`, and the number.
fn whose(ends: &Ends, isn: u32) -> [u64; 5] {
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

/// Where a connection's note may be. As `note_place` of the data plane.
fn probes(ends: &Ends, isn: u32) -> impl Iterator<Item = u32> + Clone {
    let port = u32::from(u16::from_ne_bytes([ends.0[16], ends.0[17]]));
    let first = (isn ^ port).wrapping_mul(0x9e37_79b1) >> 16;
    (0..PROBES).map(move |more| (first + more) % COUNT)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn table() -> Notes<'static> {
        let notes: Vec<Note> = std::iter::repeat_with(Note::default).take(NOTES).collect();
        let notes: &[Note] = notes.leak();
        Notes(notes.try_into().expect("as many"))
    }

    fn ends(port: u16) -> Ends {
        let client = std::net::SocketAddr::from(([10, 0, 0, 1], port));
        Ends::new(client, ([10, 0, 0, 10], 80).into())
    }

    #[test]
    fn a_connection_finds_its_own_again_and_numbers_only_grow() {
        let notes = table();
        let place = notes.take(&ends(4000), 7, 100).expect("there is room");
        notes.note(place, 7, 90);
        assert_eq!(notes.take(&ends(4000), 7, 120), Some(place));
        let seq = &notes.0[place as usize].seq;
        assert_eq!(seq.load(Ordering::Relaxed), 120);
        notes.note(place, 7, 110);
        notes.note(place, 8, 130);
        assert_eq!(seq.load(Ordering::Relaxed), 120);
        // Another one with the same ends is another one.
        assert_ne!(notes.take(&ends(4000), 8, 1), Some(place));
    }

    #[test]
    fn as_many_as_are_probed_share_a_place_and_what_is_free_is_taken_again() {
        let notes = table();
        let taken: Vec<_> = (0..6)
            .map(|server: u16| {
                let client = std::net::SocketAddr::from(([10, 0, 0, 1], 4000));
                let ends = Ends::new(client, ([10, 0, 0, 10], server).into());
                notes.take(&ends, 7, 0)
            })
            .collect();
        assert!(taken[..NOTE_PROBES].iter().all(Option::is_some));
        assert_eq!(taken[NOTE_PROBES..], [None, None]);
        notes.free(taken[1].expect("taken"));
        assert_eq!(notes.take(&ends(4000), 7, 0), taken[1]);
    }

    #[test]
    fn what_was_left_is_owed_until_it_is_noted() {
        let notes = table();
        let place = notes.take(&ends(4000), 7, u32::MAX - 5).expect("room");
        assert!(!notes.is_owed(place));
        notes.0[place as usize].left.store(10, Ordering::Relaxed);
        assert!(notes.is_owed(place));
        notes.note(place, 7, 10);
        assert!(!notes.is_owed(place));
    }
}
