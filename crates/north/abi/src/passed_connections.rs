//! Connections that one process passes to another (`SCM_RIGHTS`).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::Which;

/// Most connections under way.
const PASSED_CONNECTIONS_MAX: usize = 1024;
/// Size of an address with the length, bytes.
pub const PACKED_ADDRESS_BYTES: usize = 29;
const CONNECTION_WORDS: usize = 8;

/// A connection under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passed {
    /// Number of the connection in this incarnation.
    pub number: u32,
    /// Number of the sending process.
    pub sender: u32,
    /// Serial number of a connection that the service opened; 0: a client's connection.
    pub serial: u64,
    /// The supervisor has a descriptor, too.
    pub is_held: bool,
    /// Identity among connections with the same ends.
    pub which: Which,
    /// Addresses of client and server: each with the bytes and the length.
    pub ends: [[u8; PACKED_ADDRESS_BYTES]; 2],
}

/// Connections under way, by the inode of the socket, which is the same in all processes.
#[derive(Debug)]
#[repr(C)]
pub struct Passing([StreamOffsets; PASSED_CONNECTIONS_MAX]);

impl Default for Passing {
    fn default() -> Self {
        Self([const { StreamOffsets::new() }; PASSED_CONNECTIONS_MAX])
    }
}

#[derive(Debug)]
#[repr(C)]
struct StreamOffsets {
    state: AtomicU32,
    number: AtomicU32,
    sender: AtomicU32,
    is_held: AtomicU32,
    inode: AtomicU64,
    serial: AtomicU64,
    which: AtomicU64,
    ends: [AtomicU64; CONNECTION_WORDS],
}

const SLOT_FREE: u32 = 0;
const SLOT_BUSY: u32 = 1;
const SLOT_SENT: u32 = 2;

impl StreamOffsets {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(SLOT_FREE),
            number: AtomicU32::new(0),
            sender: AtomicU32::new(0),
            is_held: AtomicU32::new(0),
            inode: AtomicU64::new(0),
            serial: AtomicU64::new(0),
            which: AtomicU64::new(0),
            ends: [const { AtomicU64::new(0) }; CONNECTION_WORDS],
        }
    }

    fn becomes(&self, then: u32, now: u32) -> bool {
        let (made, known) = (Ordering::AcqRel, Ordering::Relaxed);
        self.state.compare_exchange(then, now, made, known).is_ok()
    }

    fn is(&self, inode: u64) -> bool {
        self.state.load(Ordering::Acquire) == SLOT_SENT
            && self.inode.load(Ordering::Relaxed) == inode
    }

    fn fill(&self, inode: u64, passed: &Passed) {
        self.inode.store(inode, Ordering::Relaxed);
        self.number.store(passed.number, Ordering::Relaxed);
        self.sender.store(passed.sender, Ordering::Relaxed);
        self.serial.store(passed.serial, Ordering::Relaxed);
        self.which.store(passed.which.to_u64(), Ordering::Relaxed);
        self.is_held.store(passed.is_held.into(), Ordering::Relaxed);
        let mut bytes = [0; CONNECTION_WORDS * 8];
        for (out, end) in bytes
            .chunks_exact_mut(PACKED_ADDRESS_BYTES)
            .zip(&passed.ends)
        {
            out.copy_from_slice(end);
        }
        let (words, _) = bytes.as_chunks();
        for (out, word) in self.ends.iter().zip(words) {
            out.store(u64::from_le_bytes(*word), Ordering::Relaxed);
        }
    }

    fn passed(&self) -> Passed {
        let mut bytes = [0; CONNECTION_WORDS * 8];
        for (out, word) in bytes.as_chunks_mut().0.iter_mut().zip(&self.ends) {
            *out = word.load(Ordering::Relaxed).to_le_bytes();
        }
        let mut ends = [[0; PACKED_ADDRESS_BYTES]; 2];
        for (end, from) in ends
            .iter_mut()
            .zip(bytes.chunks_exact(PACKED_ADDRESS_BYTES))
        {
            end.copy_from_slice(from);
        }
        Passed {
            number: self.number.load(Ordering::Relaxed),
            sender: self.sender.load(Ordering::Relaxed),
            serial: self.serial.load(Ordering::Relaxed),
            is_held: self.is_held.load(Ordering::Relaxed) != 0,
            which: Which::from_u64(self.which.load(Ordering::Relaxed)),
            ends,
        }
    }
}

impl Passing {
    /// A process is about to pass the connection. `false`: the table is full, or the connection is already under way.
    #[must_use]
    pub fn send(&self, inode: u64, passed: &Passed) -> bool {
        if let Some(before) = self.0.iter().find(|place| place.is(inode)) {
            let is_this = before.number.load(Ordering::Relaxed) == passed.number;
            // The inode is reused: the socket of the connection before was closed before a process received the
            // connection.
            if is_this || !before.becomes(SLOT_SENT, SLOT_FREE) {
                return false;
            }
        }
        let place = self
            .0
            .iter()
            .find(|place| place.becomes(SLOT_FREE, SLOT_BUSY));
        let Some(place) = place else {
            return false;
        };
        place.fill(inode, passed);
        place.state.store(SLOT_SENT, Ordering::Release);
        true
    }

    /// The connection has arrived. `None`: no process has passed a connection with this inode.
    #[must_use]
    pub fn take(&self, inode: u64) -> Option<Passed> {
        let mut all = self.0.iter();
        let place = all.find(|place| place.is(inode) && place.becomes(SLOT_SENT, SLOT_BUSY))?;
        let passed = place.passed();
        place.state.store(SLOT_FREE, Ordering::Release);
        Some(passed)
    }

    /// Whether a connection is under way.
    #[must_use]
    pub fn is_any(&self) -> bool {
        let mut all = self.0.iter();
        all.any(|place| place.state.load(Ordering::Acquire) != SLOT_FREE)
    }

    /// Whether a connection from this process is under way.
    #[must_use]
    pub fn is_under_way(&self, sender: u32) -> bool {
        self.0.iter().any(|place| {
            let is_sent = place.state.load(Ordering::Acquire) != SLOT_FREE;
            is_sent && place.sender.load(Ordering::Relaxed) == sender
        })
    }

    /// Removes all connections.
    pub fn clear(&self) {
        for place in &self.0 {
            place.state.store(SLOT_FREE, Ordering::Relaxed);
        }
    }
}
