//! Bulk transfers by blasts: Carter and Zwaenepoel, "Optimistic Implementation of Bulk Data Transfer Protocols", Rice
//! University, 1989.
//!
//! The data of a transfer is a range of bytes that is cut into *blasts* of equal size, and each blast into *packets*
//! ([`Layout`]). The sender sends all packets of a blast; the last packet asks the receiver for an acknowledgement. No
//! other packet is acknowledged. The acknowledgement names the missing packets of the blast, and the sender repeats
//! these alone: one more *round* of the blast. While the receiver does not answer, the sender repeats the last packet
//! of one round and nothing else, until an answer comes or the receiver is deemed to have failed (section 1).
//!
//! - [`Sender`]: rounds, retransmission, silence, credit, one or several receivers.
//! - [`Receiver`]: packets that have arrived, acknowledgements, credit.
//! - [`Receiver::expected`] and [`plan_relocations`]: the optimistic implementation (section 2). The next packets from
//!   the
//!   network are predicted to be the next packets of the transfer and are received at their final positions. A wrong
//!   prediction costs a copy, after the acknowledgement.
//! - [`connections`]: blasts by TCP, where no datagrams pass.
//! - [`Policy`]: how fast, and how much at once. The paper has one blast under way; here the blasts of a round
//!   trip are.
//!
//! All are pure. Time is an argument: a [`Duration`](core::time::Duration) since an origin of each host. Clocks of two
//! hosts are never compared. Datagrams may be lost, late, doubled and out of order; their authenticity is the caller's
//! concern. Values of an acknowledgement are checked: a receiver that lies cannot make another receiver
//! complete. The slowest receiver sets the pace for all.
//! **Panics:** no datagram, and no byte of a connection, makes a function panic.

#![forbid(unsafe_code)]

pub mod connections;
mod flaws;
mod layout;
mod peer;
mod ranges;
mod rate;
mod receiver;
mod relocation;
mod round_trip;
mod sender;
mod window;

pub use flaws::Flaws;
pub use layout::{Extent, Layout, LayoutError, PacketId};
pub use peer::{PeerSet, Protest};
pub use ranges::BlastRanges;
pub use rate::Policy;
pub use receiver::{InvalidPacket, Predictions, Receiver, Reception};
#[cfg(feature = "flaws")]
pub use relocation::plan_relocations_with;
pub use relocation::{Landed, Relocation, Spot, plan_relocations};
pub use sender::{Run, Sender, SenderEvent, Settings, Transmission, timestamp_us};
