//! The paper's figures: Tables I to V of ft-tcp-infocom-2001. Throughput is in KB/s; the paper does not define KB.

use super::experiment::{Layout, Strategy};

/// A row of Tables I to III: throughput (KB/s) with error bound, latency (ms) with error bound, and acknowledgements
/// in the 12 runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Row {
    pub(super) throughput: f64,
    pub(super) throughput_bound: f64,
    pub(super) latency: f64,
    pub(super) latency_bound: f64,
    pub(super) acks: u32,
}

/// The throughput without protection, in all three tables.
pub(super) const CLEAN: Row = row(1007.69, 0.53, 5.82, 3.39, 3064);

const fn row(
    throughput: f64,
    throughput_bound: f64,
    latency: f64,
    latency_bound: f64,
    acks: u32,
) -> Row {
    Row {
        throughput,
        throughput_bound,
        latency,
        latency_bound,
        acks,
    }
}

/// Tables I to III. For the Basic strategy the paper has only the words "often unable to sustain a bulk-transfer
/// connection".
// An error bound of 3.14 ms is not π.
#[allow(clippy::approx_constant)]
pub(super) fn table(layout: Layout, strategy: Strategy) -> Option<Row> {
    use Layout::{Equal, FastLog, Shared};
    use Strategy::{Basic, Clean, Conditional, Eager, Lazy, Lazy64k};
    Some(match (layout, strategy) {
        (_, Clean) => CLEAN,
        (_, Basic) => return None,
        (Equal, Lazy) => row(241.33, 0.76, 27.75, 17.23, 1766),
        (Equal, Lazy64k) => row(488.08, 3.26, 44.89, 29.75, 555),
        (Equal, Eager) => row(722.84, 1.16, 56.70, 35.77, 12_810),
        (Equal, Conditional) => row(651.02, 2.50, 53.96, 58.46, 3276),
        (Shared, Lazy) => row(195.17, 3.79, 29.15, 20.75, 2100),
        (Shared, Lazy64k) => row(321.20, 1.39, 72.06, 43.92, 559),
        (Shared, Eager) => row(338.50, 0.60, 89.35, 108.13, 12_946),
        (Shared, Conditional) => row(343.41, 0.73, 89.47, 92.73, 3515),
        (FastLog, Lazy) => row(1007.56, 0.57, 5.86, 3.14, 3082),
        (FastLog, Lazy64k) => row(929.92, 3.91, 17.48, 22.84, 1267),
        (FastLog, Eager) => row(969.84, 0.31, 5.31, 3.23, 11_687),
        (FastLog, Conditional) => row(985.84, 0.38, 6.03, 3.30, 5833),
    })
}

/// Table IV: throughput (KB/s) without Nagle's algorithm on the logger's acknowledgements. Tables I to III have the
/// throughput with Nagle's algorithm.
pub(super) fn nagle_off(layout: Layout, strategy: Strategy) -> Option<f64> {
    use Layout::{Equal, FastLog, Shared};
    use Strategy::{Basic, Clean, Conditional, Eager, Lazy, Lazy64k};
    Some(match (layout, strategy) {
        (_, Clean) => CLEAN.throughput,
        (_, Basic) => return None,
        (FastLog, Lazy) => 1007.42,
        (FastLog, Lazy64k) => 896.20,
        (FastLog, Eager) => 969.11,
        (FastLog, Conditional) => 987.32,
        (Equal, Lazy) => 494.22,
        (Equal, Lazy64k) => 501.08,
        (Equal, Eager) => 514.72,
        (Equal, Conditional) => 506.92,
        (Shared, Lazy) => 368.53,
        (Shared, Lazy64k) => 321.52,
        (Shared, Eager) => 274.23,
        (Shared, Conditional) => 312.72,
    })
}

/// A row of Table V: restart and replay, in milliseconds, each with an error bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Recovery {
    pub(super) restart: f64,
    pub(super) restart_bound: f64,
    pub(super) replay: f64,
    pub(super) replay_bound: f64,
}

/// Table V: with the logger behind a 10 Mbit/s link, a 100 Mbit/s link, and on the server.
pub(super) const RECOVERY: [(&str, Recovery); 3] = [
    ("10-10", recovery(17.31, 0.02, 2571.0, 2.01)),
    ("10-100", recovery(22.21, 13.31, 485.0, 0.36)),
    ("local", recovery(22.44, 14.08, 56.0, 0.25)),
];

const fn recovery(restart: f64, restart_bound: f64, replay: f64, replay_bound: f64) -> Recovery {
    Recovery {
        restart,
        restart_bound,
        replay,
        replay_bound,
    }
}
