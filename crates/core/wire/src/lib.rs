//! TCP, IPv4 and IPv6 on the wire: views, options, sequence numbers, checksums.
//!
//! A packet that arrives is looked at in two steps. [`IpPacket`] finds the addresses and the
//! transport payload; [`Segment`] finds the TCP header, its options and its payload. Both are
//! views: they borrow the bytes, copy nothing and own nothing. A view exists only when `parse`
//! has checked every length that its accessors rely on, so accessors do not fail.
//!
//! A packet that leaves is written by [`SegmentSpec`], or is one that arrived and was changed in
//! place by [`SegmentMut`], which repairs the checksum incrementally. What tells neighbours where an
//! address is now is in [`neighbour`].
//!
//! **Panics.** No function of this crate panics on any byte string that it is given. Unless a
//! function says otherwise under "Panics", it does not panic at all.
//!
//! **What is not checked.** Checksums of captured packets are not verified by `parse`: a packet
//! seen on the host that sent it usually carries an unfinished one ([`ChecksumState::Partial`]).

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
