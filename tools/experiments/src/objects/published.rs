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
pub(super) enum Span {
    Handshake,
    Response,
    Total,
}

impl Span {
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
pub(super) const fn microseconds(mode: Mode, step: Span) -> Option<[u32; 2]> {
    Some(match (mode, step) {
        (Mode::Plain, Span::Handshake) => [90, 95],
        (Mode::Timestamps, Span::Handshake) => [89, 93],
        (Mode::Held, Span::Handshake) => [90, 94],
        (Mode::Plain, Span::Response) => [137, 150],
        (Mode::Timestamps, Span::Response) => [135, 149],
        (Mode::Held, Span::Response) => [256, 282],
        (Mode::Plain, Span::Total) => [353, 372],
        (Mode::Timestamps, Span::Total) => [362, 384],
        (Mode::Held, Span::Total) => [490, 520],
        (Mode::Lazy, _) => return None,
    })
}
