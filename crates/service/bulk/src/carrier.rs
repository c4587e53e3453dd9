//! The two ends of a transfer: by datagrams, the core `blast` with sockets, ciphers and data; or by TCP connections.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

mod cipher;
mod connections;
mod placing;
mod receiving;
mod sending;
mod sink;
mod socket;
mod source;

pub use cipher::{KEY_LEN, PacketKey};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use connections::receive_from;
pub use connections::{Connected, Pace, receive_blasts, send_blasts};
pub use placing::Placement;
pub use receiving::{Incoming, Reception, receive};
pub use sending::{Outgoing, Target, Transmitted, send};
pub use sink::{FileSink, MappedSink, MemorySink, Sink};
pub use socket::DataSocket;
pub use source::{FileSource, MemorySource, Source};

/// Longest wait before a loop asks its supervisor.
const STOP_CHECK_TIME: Duration = Duration::from_millis(100);

/// How far a transfer is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes below are at all receivers; of a receiver: are in its sink.
    pub position: u64,
    /// Packets that were sent, one for each receiver.
    pub packets: u64,
    /// Packets that the transfer needs without losses.
    pub needed: u64,
    /// Packets that a receiver has taken, as far as known.
    pub arrived: u64,
    /// Packets of these that the receiver had expected next.
    pub predicted: u64,
}

/// Watches an end of a transfer, from other threads.
pub trait Supervisor: Sync {
    /// Whether the transfer ends now.
    fn is_stopped(&self) -> bool;

    /// Whether the receiver of this number has left: the transfer goes on without it.
    fn has_left(&self, _peer: usize) -> bool {
        false
    }

    /// Hears of the progress, often.
    fn on_progress(&self, _progress: Progress) {}
}

/// True: stopped.
impl Supervisor for AtomicBool {
    fn is_stopped(&self) -> bool {
        self.load(Ordering::Relaxed)
    }
}
