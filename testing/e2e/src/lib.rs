//! The shared parts of the end-to-end tests.
//!
//! A test sets up a [`Scene`], a client and a server on one switch. The test starts a [`servers::Server`] there,
//! under `outlive serve` ([`Protected`]) or without ([`scene::Plain`]), and lets [`clients`] work while the server
//! dies. A [`Recording`] holds the connections that saw an end.

#![forbid(unsafe_code)]

use std::time::Duration;

pub mod arrange;
pub mod binaries;
pub mod clients;
pub mod exchange;
pub mod forge;
mod leftovers;
pub mod loggers;
pub mod manager;
pub mod pair;
pub mod pool;
mod protected;
mod recording;
pub mod scene;
mod seed;
pub mod servers;
mod signals;
pub mod sockets;
pub mod speakers;

pub use protected::{Answer, Protected, children_of};
pub use recording::{Ending, Recording, assert_same_endings};
pub use scene::{Plain, Scene};
pub use seed::Seed;
pub use signals::handle_signals;

/// Expected events take much less time, also on a busy machine; only a hang takes this long.
pub const EVENT_TIMEOUT: Duration = Duration::from_secs(120);

/// Bytes without a short period: the first `length` of an endless sequence.
#[must_use]
pub fn pattern(length: usize) -> Vec<u8> {
    let words = (0u32..).flat_map(|n| n.wrapping_mul(2_654_435_761).rotate_left(7).to_be_bytes());
    words.take(length).collect()
}

/// A checksum in which the order of bytes counts (64-bit FNV-1a).
#[derive(Debug, Clone)]
pub struct Checksum(u64);

impl Default for Checksum {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Checksum {
    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |sum, byte| {
            (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    }

    /// The checksum of everything so far.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0
    }

    /// The checksum of some bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> u64 {
        let mut sum = Self::default();
        sum.add(bytes);
        sum.value()
    }
}

/// Asserts that two byte strings are equal, and prints the first difference instead of megabytes.
///
/// # Panics
/// When the strings differ.
#[track_caller]
pub fn assert_same_bytes(what: &str, expected: &[u8], got: &[u8]) {
    if let Some(at) = expected.iter().zip(got).position(|(a, b)| a != b) {
        let end = at + 16;
        panic!(
            "{what}: byte {at} differs: expected {:02x?}, got {:02x?}",
            &expected[at..end.min(expected.len())],
            &got[at..end.min(got.len())],
        );
    }
    assert_eq!(expected.len(), got.len(), "{what}: length");
}
