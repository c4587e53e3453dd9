//! Rate control: how many bytes may be on their way, and how fast packets leave.
//!
//! The network's speed is measured: bytes that were delivered, by the time in which they were sent and acknowledged
//! (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 2016;
//! draft-cheng-iccrg-delivery-rate-estimation). Loss alone does not slow [`Policy::Full`] below a share of
//! 5 %.

use core::time::Duration;

mod background;
mod delivery;
mod full;

use self::{background::Background, delivery::Delivery, full::Full};
use crate::Settings;

pub(crate) use self::delivery::Snapshot;

/// How fast a transfer is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// As fast as the network and the receivers allow.
    Full,
    /// Yields to other traffic: at most 15 ms of queue in the network (RFC 6817).
    Background,
    /// So many bytes in a second, whatever is lost.
    Fixed(u64),
}

/// An answer of the receivers to a round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delivered {
    /// Bytes that arrived.
    pub(crate) bytes: u64,
    /// Bytes that were lost.
    pub(crate) lost: u64,
    /// Of the last packet of the round.
    pub(crate) snapshot: Snapshot,
    pub(crate) round_trip: Option<Duration>,
}

/// A measured delivery.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Bytes in a second.
    rate: u64,
    is_limited: bool,
    delivered: Delivered,
    /// Bytes that had been delivered in all, before and after.
    total: (u64, u64),
    in_flight: u64,
}

/// Decides how fast packets leave.
#[derive(Debug)]
pub(crate) struct RateControl {
    delivery: Delivery,
    model: Model,
    rate_max: u64,
    /// The newest round trip.
    round_trip: Duration,
    /// Bytes of a blast: less than two blasts under way leave the network idle while an answer is on its way.
    blast_bytes: u64,
}

#[derive(Debug)]
enum Model {
    Full(Full),
    Background(Background),
    Fixed(u64),
}

impl RateControl {
    /// Lowest measured rate: a transfer always goes on.
    const RATE_MIN: u64 = 10_000;

    pub(crate) fn new(settings: &Settings) -> Self {
        let round_trip = settings.round_trip.max(Duration::from_micros(50));
        let packet = u64::from(settings.layout.packet_bytes());
        Self {
            delivery: Delivery::default(),
            model: match settings.policy {
                Policy::Full => Model::Full(Full::new(round_trip)),
                Policy::Background => Model::Background(Background::new(packet, round_trip)),
                Policy::Fixed(rate) => Model::Fixed(rate),
            },
            rate_max: settings.rate_max.unwrap_or(u64::MAX),
            round_trip,
            blast_bytes: settings.layout.blast_bytes(),
        }
    }

    /// Bytes of the transfer in a second, while each packet leaves `copies` times. The limits of the user are of all
    /// copies. The models measure how fast the slowest receiver gets the transfer: counted by copies, each measure
    /// would be lower than the rate before by their number.
    pub(crate) fn pacing_rate(&self, copies: u64) -> u64 {
        let copies = copies.max(1);
        let rate = match &self.model {
            Model::Full(full) => full.pacing_rate(),
            Model::Background(background) => background.pacing_rate(),
            Model::Fixed(rate) => *rate / copies,
        };
        rate.max(Self::RATE_MIN).min(self.rate_max / copies).max(1)
    }

    /// A round begins while less than these bytes are on their way.
    pub(crate) fn window(&self) -> u64 {
        match &self.model {
            Model::Full(full) => full.window() + 2 * self.blast_bytes,
            Model::Background(background) => background.window(),
            // Twice the bytes of a round trip, and of the time that an answer takes.
            Model::Fixed(rate) => {
                let time = self.round_trip * 2 + Duration::from_millis(10);
                let bytes = u128::from(*rate) * time.as_nanos() / 1_000_000_000;
                u64::try_from(bytes)
                    .unwrap_or(u64::MAX)
                    .saturating_add(2 * self.blast_bytes)
            }
        }
    }

    /// Packets of this length that may leave at once: those of a millisecond. A longer burst overflows a short queue in
    /// the network, however slow packets leave on the average. In the background those of a tenth: packets of others
    /// wait behind a burst.
    pub(crate) fn burst(&self, packet_bytes: u32) -> u16 {
        let bursts_in_second = match self.model {
            Model::Background(_) => 10_000,
            Model::Full(_) | Model::Fixed(_) => 1000,
        };
        let packets = self.pacing_rate(1) / bursts_in_second / u64::from(packet_bytes.max(1));
        u16::try_from(packets).unwrap_or(u16::MAX).max(1)
    }

    /// The time that so many bytes of the transfer take at the present rate, each sent `copies` times.
    pub(crate) fn time_of(&self, bytes: u64, copies: u64) -> Duration {
        let ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.pacing_rate(copies));
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Packets leave, while so many bytes are on their way.
    pub(crate) const fn on_sent(&mut self, in_flight: u64, now: Duration) -> Snapshot {
        self.delivery.on_sent(in_flight, now)
    }

    /// Bytes arrived with a mark of congestion (RFC 3168): as if the bytes were lost.
    pub(crate) fn on_marked(&mut self, bytes: u64, now: Duration) {
        match &mut self.model {
            Model::Full(full) => full.on_marked(bytes),
            Model::Background(background) => background.reduce(now),
            Model::Fixed(_) => {}
        }
    }

    pub(crate) fn on_delivered(&mut self, delivered: &Delivered, in_flight: u64, now: Duration) {
        self.round_trip = delivered.round_trip.unwrap_or(self.round_trip);
        let sample = self.delivery.on_delivered(*delivered, in_flight, now);
        match &mut self.model {
            Model::Full(full) => full.on_sample(&sample, now),
            Model::Background(background) => background.on_sample(&sample, now),
            Model::Fixed(_) => {}
        }
    }
}
