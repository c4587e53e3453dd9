//! Answers to clients whose connections nobody goes on with.

use alloc::vec::Vec;
use core::time::Duration;

use wire::{Flags, FlowKey, Segment};

use crate::flaws::Flaws;
use crate::flow::Flow;
use crate::key::PoolKey;
use crate::revive::{Fit, Position, PositionError, segments};
use crate::timestamp::Timestamp;

/// Pause before the second RST. Pauses double.
const REPEAT_INTERVAL: Duration = Duration::from_millis(200);
/// How often a RST is sent: a client that only waits answers none, and the way may lose some.
const RESET_TRIES: u32 = 6;

/// The answer to a segment without payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parting {
    /// The connection was not protected.
    Reset,
    /// The client is idle, and closes.
    Close,
}

impl Parting {
    /// `None`: no answer is needed, or the client has more to say.
    pub(crate) fn of(segment: &Segment<'_>, key: FlowKey, pool_key: &PoolKey) -> Option<Self> {
        let state = Timestamp::from_wire(segment.timestamps()?.echo).state;
        match Position::of(state, pool_key, &key, segment.ack()) {
            Err(PositionError::Unprotected) => Some(Self::Reset),
            // A FIN behind an unanswered request is not of an idle client.
            Ok(position @ Position::Idle { .. }) => {
                let fit = position.fits(pool_key, &key, segment.seq(), 0, Flaws::default());
                let closes = segment.flags().contains(Flags::FIN) && fit == Fit::Asked;
                (closes && !segments::has_bytes_behind_hole(segment)).then_some(Self::Close)
            }
            _ => None,
        }
    }

    /// The packet for the client. A lost answer comes with the client's next segment.
    pub(crate) fn packet(self, segment: &Segment<'_>, key: FlowKey) -> Option<Vec<u8>> {
        match self {
            Self::Reset => segments::reset(key, segment.ack(), segment.end_seq()),
            Self::Close => segments::close(key, segment),
        }
    }
}

/// A client that is reset. The client may wait, and send nothing.
#[derive(Debug)]
pub(crate) struct Farewell {
    reset: Option<Vec<u8>>,
    interface: u32,
    tries: u32,
    at: Duration,
}

impl Farewell {
    /// Of a connection whose server has died.
    pub(crate) fn of(key: FlowKey, flow: &Flow, now: Duration) -> Self {
        let seq = flow.server.nxt.max_seq(flow.client.ack);
        Self {
            reset: segments::reset(key, seq, flow.server.received),
            interface: flow.interface,
            tries: 0,
            at: now,
        }
    }

    /// Of a revival that is over: the RST was sent once.
    pub(crate) fn repeated(reset: Vec<u8>, interface: u32, now: Duration) -> Self {
        Self {
            reset: Some(reset),
            interface,
            tries: 1,
            at: now + REPEAT_INTERVAL,
        }
    }

    pub(crate) const fn interface(&self) -> u32 {
        self.interface
    }

    pub(crate) const fn deadline(&self) -> Duration {
        self.at
    }

    pub(crate) const fn is_over(&self) -> bool {
        self.tries >= RESET_TRIES
    }

    /// A RST, if due. A client that lacks bytes answers with the right number (RFC 5961, 3.2).
    pub(crate) fn on_time(&mut self, now: Duration) -> Option<Vec<u8>> {
        if now < self.at || self.is_over() {
            return None;
        }
        self.at = now + REPEAT_INTERVAL * (1 << self.tries);
        self.tries += 1;
        self.reset.clone()
    }
}
