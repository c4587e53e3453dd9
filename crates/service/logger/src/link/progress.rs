//! The client's progress: how far the client has received the outstream, and the client's clock.
//!
//! A successor host needs both: the client's acknowledgement, and timestamps that the client does not take for old
//! ones (RFC 7323, 5.3).

use wire::{SeqNumber, Timestamps};

/// Bytes of the outstream that a client may acknowledge between two entries of the log.
const LOG_INTERVAL_BYTES: u32 = 64 << 10;

/// The progress of a client, which never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes of the outstream that the client has acknowledged, over the whole connection.
    pub(crate) acknowledged: u64,
    /// The newest TSval and the newest TSecr, possibly of different segments.
    pub(crate) timestamps: Option<Timestamps>,
    /// Bytes that the client has acknowledged since the last entry of the log.
    unlogged: u32,
}

impl Progress {
    /// Progress of a client that has acknowledged this number of bytes.
    pub(crate) const fn from(acknowledged: u64) -> Self {
        Self {
            acknowledged,
            timestamps: None,
            unlogged: 0,
        }
    }

    /// The client has sent this acknowledgement number; the outstream begins with `first`. A number less than half
    /// of the sequence space ahead is new, any other number is old.
    #[inline]
    pub(crate) fn acknowledge(&mut self, first: SeqNumber, ack: SeqNumber) {
        let last = first + low_half(self.acknowledged);
        if let Some(advance) = ack.distance_from(last) {
            self.acknowledged = self.acknowledged.saturating_add(u64::from(advance));
            self.unlogged = self.unlogged.saturating_add(advance);
        }
    }

    /// The client has sent these timestamps. TSval and TSecr are compared separately, as in RFC 7323, 5.2.
    #[inline]
    pub(crate) fn time(&mut self, new: Timestamps) {
        let later = |old: u32, new: u32| SeqNumber(old).max_seq(SeqNumber(new)).0;
        self.timestamps = Some(self.timestamps.map_or(new, |old| Timestamps {
            value: later(old.value, new.value),
            echo: later(old.echo, new.echo),
        }));
    }

    /// Joins progress from the log.
    pub(crate) fn join(&mut self, other: &Self) {
        self.acknowledged = self.acknowledged.max(other.acknowledged);
        other.timestamps.into_iter().for_each(|new| self.time(new));
    }

    /// Acknowledged bytes modulo 2^32.
    pub(crate) const fn low_half(&self) -> u32 {
        low_half(self.acknowledged)
    }

    /// Whether an entry of the log is due.
    pub(crate) const fn is_log_due(&self) -> bool {
        self.unlogged >= LOG_INTERVAL_BYTES
    }

    /// The log has an entry of this progress.
    pub(crate) const fn on_logged(&mut self) {
        self.unlogged = 0;
    }
}

const fn low_half(number: u64) -> u32 {
    let [a, b, c, d, ..] = number.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests;
