//! How a link is worse than a cable on a desk.

use std::fmt;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::Error;

/// The way that frames take on a host's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// From the switch to the host.
    ToHost,
    /// From the host to the switch.
    FromHost,
}

impl Direction {
    /// Both directions.
    pub const BOTH: [Self; 2] = [Self::ToHost, Self::FromHost];

    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::ToHost => "to the host",
            Self::FromHost => "from the host",
        }
    }
}

/// The faults of frames in a direction of a link; all faults together.
///
/// The order is that of a real path. A frame is lost or not, doubled or not. Then the frame waits for the line of the
/// given rate (or is dropped when the queue is full). Then the frame travels for `delay`, and a reordered frame for
/// longer. Without `reorder` the order of frames is kept, also when the delay changes meanwhile.
///
/// Frames are single segments: while a link is impaired, segmentation offload is off on both devices that feed the
/// link.
///
/// All choices come from `seed`, so the n-th frame, from any sender (address resolution and multicast reports count
/// too), has the same fate in each run with the same seed. Both directions of a link draw from different streams.
#[derive(Clone, Debug, PartialEq)]
pub struct Impairment {
    pub(crate) loss: f64,
    pub(crate) duplicate: f64,
    pub(crate) reorder: f64,
    pub(crate) reorder_by: Duration,
    pub(crate) delay: Duration,
    pub(crate) rate: Option<u64>,
    pub(crate) seed: u64,
}

impl Impairment {
    /// No faults, and a seed from the system's randomness. On a link, this value only adds the detour through the
    /// relay.
    #[must_use]
    pub fn new() -> Self {
        Self::with_seed(SmallRng::from_os_rng().random())
    }

    /// No faults, and the given seed.
    #[must_use]
    pub fn with_seed(seed: u64) -> Self {
        Self {
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_by: Duration::ZERO,
            delay: Duration::ZERO,
            rate: None,
            seed,
        }
    }

    /// Loses this share of the frames, in percent (0 to 100).
    #[must_use]
    pub fn loss(self, percent: f64) -> Self {
        Self {
            loss: percent,
            ..self
        }
    }

    /// Sends this share of the frames twice, in percent (0 to 100).
    #[must_use]
    pub fn duplicate(self, percent: f64) -> Self {
        Self {
            duplicate: percent,
            ..self
        }
    }

    /// Holds this share of the frames, in percent (0 to 100), back for `by` longer than other frames, so that the
    /// following frames overtake in that time.
    #[must_use]
    pub fn reorder(self, percent: f64, by: Duration) -> Self {
        Self {
            reorder: percent,
            reorder_by: by,
            ..self
        }
    }

    /// Each frame travels this long in a direction: set for both directions, a round trip takes at least twice as
    /// long.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// At most this many bits pass in a second (1 or more), counted as on Ethernet: a frame keeps the line busy for 38
    /// bytes more than the IP packet has, 14 of header and 24 of preamble, checksum and gap, and for 84 bytes at
    /// least. Up to 100 ms' worth, and at least 30 full frames, wait; further frames are dropped.
    ///
    /// The kernel enforces a rate alone, also at 1 Gbit/s: the queue of frames from the host is at the host's
    /// interface, as on a real host. With loss, delay and other faults the relay has the queue, and carries some
    /// hundred Mbit/s.
    #[must_use]
    pub fn rate(self, bits_per_second: u64) -> Self {
        Self {
            rate: Some(bits_per_second),
            ..self
        }
    }

    /// As much as there is passes.
    #[must_use]
    pub fn unlimited(self) -> Self {
        Self { rate: None, ..self }
    }

    /// The same, but drawn from another seed.
    #[must_use]
    pub fn seeded(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// The share of frames that are lost, in percent.
    #[must_use]
    pub fn loss_percent(&self) -> f64 {
        self.loss
    }

    /// How long each frame travels.
    #[must_use]
    pub fn delay_time(&self) -> Duration {
        self.delay
    }

    /// Bits per second, if limited.
    #[must_use]
    pub fn rate_limit(&self) -> Option<u64> {
        self.rate
    }

    /// The seed of all random choices.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The rate, if the rate is the only fault.
    pub(crate) fn only_rate(&self) -> Option<u64> {
        let clean = !self.is_random() && self.delay.is_zero();
        self.rate.filter(|_| clean)
    }

    /// Refuses values out of range.
    pub(crate) fn check(&self) -> Result<(), Error> {
        for (name, percent) in [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
        ] {
            if !(0.0..=100.0).contains(&percent) {
                return Err(Error::Invalid(format!(
                    "{name} is 0 to 100 percent, not {percent}"
                )));
            }
        }
        if self.rate == Some(0) {
            return Err(Error::Invalid(
                "a rate is at least 1 bit per second; cut the link for none".to_owned(),
            ));
        }
        Ok(())
    }

    /// Whether anything is wrong.
    pub(crate) fn is_anything(&self) -> bool {
        self.is_random() || !self.delay.is_zero() || self.rate.is_some()
    }

    /// Whether the seed makes a difference.
    pub(crate) fn is_random(&self) -> bool {
        self.loss > 0.0 || self.duplicate > 0.0 || self.reorder > 0.0
    }
}

impl Default for Impairment {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.loss > 0.0 {
            write!(f, "loss {} %, ", self.loss)?;
        }
        if self.duplicate > 0.0 {
            write!(f, "duplicate {} %, ", self.duplicate)?;
        }
        if self.reorder > 0.0 {
            write!(f, "reorder {} % by {:?}, ", self.reorder, self.reorder_by)?;
        }
        if !self.delay.is_zero() {
            write!(f, "delay {:?}, ", self.delay)?;
        }
        if let Some(rate) = self.rate {
            write!(f, "rate {rate} bit/s, ")?;
        }
        write!(f, "seed {}", self.seed)
    }
}
