//! TCP, IPv4 and IPv6 on the wire: views, options, sequence numbers, checksums.
//!
//! An arriving packet is read in two steps. [`IpPacket`] finds the addresses and the transport payload; [`Segment`]
//! finds the TCP header, the options and the payload. Both are views: a view borrows the bytes and copies no byte. A
//! view exists only when `parse` has checked every length on which the accessors rely, so accessors do not fail.
//!
//! A leaving packet is written by [`SegmentSpec`], or is an arrived packet that [`SegmentMut`] changed in place with
//! an incremental update of the checksum. Announcements of an address to the neighbours are in [`neighbour`].
//!
//! **Panics.** No function of this crate panics on any byte string. A function that can panic at all says so under
//! "Panics".
//!
//! **Not checked.** `parse` does not verify checksums of captured packets: a packet captured on the sending host
//! usually carries an unfinished checksum ([`ChecksumState::Partial`]).

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod checksum;
mod emit;
mod error;
mod flow;
mod ip;
pub mod neighbour;
mod options;
#[cfg(test)]
mod packets;
#[cfg(any(test, feature = "fuzzing"))]
pub mod properties;
mod seq;
mod tcp;

pub use checksum::{ChecksumMode, ChecksumState};
pub use emit::{EmitError, MAX_PACKET, SegmentSpec};
pub use error::WireError;
pub use flow::{FlowId, FlowKey};
pub use ip::{IpPacket, PROTOCOL_TCP};
pub use options::{
    MAX_OPTIONS, MAX_WINDOW_SCALE, OptionError, Options, OptionsBuffer, OptionsFull, SackBlock,
    SackBlocks, SynOptions, TcpOption, Timestamps, kind, replace_timestamps, strip,
};
pub use seq::SeqNumber;
pub use tcp::{Flags, MIN_TCP_HEADER, Segment, SegmentMut};

/// Reads the big-endian `u16` at `at`. The callers have checked the length.
fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Reads the big-endian `u32` at `at`. The callers have checked the length.
fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
