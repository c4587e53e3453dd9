//! The paper's figures: figure 4, and Table 2. The curves of figure 5 are not in the text, which says that with eight
//! processes the store in timestamps is within 1,000 requests a second of the plain server, and the key-value store
//! within 3,000.

use super::stage::Mode;

/// Requests a second of lighttpd on one core, by size of the object in bytes (figure 4).
pub(super) const fn requests_per_second(mode: Mode, size: usize) -> Option<u32> {
    Some(match (mode, size) {
        (Mode::Plain, 1) => 14_455,
        (Mode::Timestamps, 1) => 13_038,
        (Mode::Held, 1) => 10_169,
        (Mode::Plain, 16_384) => 6796,
        (Mode::Timestamps, 16_384) => 5815,
        (Mode::Held, 16_384) => 5335,
        _ => return None,
    })
}

/// A step of a fetch (Table 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Handshake,
    Response,
    Total,
}

impl Step {
    pub(super) const ALL: [Self; 3] = [Self::Handshake, Self::Response, Self::Total];

    /// The name in the paper.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Handshake => "SYN–SYN",
            Self::Response => "Req–Resp.1",
            Self::Total => "total",
        }
    }
}

/// Median and 99th percentile of a step, µs (Table 2).
pub(super) const fn microseconds(mode: Mode, step: Step) -> Option<[u32; 2]> {
    Some(match (mode, step) {
        (Mode::Plain, Step::Handshake) => [90, 95],
        (Mode::Timestamps, Step::Handshake) => [89, 93],
        (Mode::Held, Step::Handshake) => [90, 94],
        (Mode::Plain, Step::Response) => [137, 150],
        (Mode::Timestamps, Step::Response) => [135, 149],
        (Mode::Held, Step::Response) => [256, 282],
        (Mode::Plain, Step::Total) => [353, 372],
        (Mode::Timestamps, Step::Total) => [362, 384],
        (Mode::Held, Step::Total) => [490, 520],
        (Mode::Lazy, _) => return None,
    })
}
