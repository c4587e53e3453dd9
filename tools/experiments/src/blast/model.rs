//! The simulation of section 5. Blasts and other packets arrive at a host, with exponential times in between. A packet
//! that arrives between the first and the last packet of a blast interrupts the blast.
//!
//! Redirection begins when the first packet arrives, so a packet between the first and the second interrupts, too: the
//! second packet then lies where the third was expected.

use make_model::{Interval, Precision, interval};
use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::published;

/// A run is so long, seconds (section 5).
const RUN_SECONDS: f64 = 500.0;
/// Fewer runs than this tell no interval.
const RUNS_MIN: usize = 10;

/// Where blasts come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sources {
    /// One sender: its blasts follow each other.
    Single,
    /// Many senders: blasts interrupt each other.
    Several,
}

/// Traffic of one host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Traffic {
    /// Blasts in a second.
    pub(super) blasts: f64,
    /// Other packets in a second.
    pub(super) others: f64,
    /// Kilobytes of a blast: packets of a kilobyte each.
    pub(super) kilobytes: u32,
    pub(super) sources: Sources,
}

/// The interrupted share of the blasts.
pub(super) type Share = Interval;

/// Simulates until the share is known precisely enough.
pub(super) fn measure(traffic: &Traffic, precision: Precision, seed: u64) -> Share {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut shares = Vec::new();
    loop {
        shares.push(run(traffic, &mut rng));
        if shares.len() < RUNS_MIN || shares.len() % RUNS_MIN != 0 {
            continue;
        }
        let share = interval(&shares);
        if share.relative() <= precision.within || shares.len() >= precision.runs {
            return share;
        }
    }
}

/// The interrupted share of the blasts of one run.
fn run(traffic: &Traffic, rng: &mut SmallRng) -> f64 {
    let elapsed = published::best_seconds(traffic.kilobytes);
    let packets = f64::from(traffic.kilobytes);
    // From the first packet of a blast to the last.
    let span = elapsed * (packets - 1.0) / packets;
    let others = arrivals(traffic.others, rng);
    let mut starts = arrivals(traffic.blasts, rng);
    if traffic.sources == Sources::Single {
        let mut free_at = 0.0_f64;
        for start in &mut starts {
            *start = start.max(free_at);
            free_at = *start + elapsed;
        }
    }
    let is_within = |times: &[f64], from: f64, until: f64| {
        let first = times.partition_point(|time| *time <= from);
        times.get(first).is_some_and(|time| *time < until)
    };
    let is_interrupted = |number: usize, start: f64| {
        let end = start + span;
        // All blasts are equally long: two overlap if one begins within the other.
        let is_met = starts.get(number + 1).is_some_and(|next| *next < end)
            || number > 0 && starts[number - 1] + span > start;
        is_within(&others, start, end) || is_met
    };
    let interrupted = (0..)
        .zip(&starts)
        .filter(|(number, start)| is_interrupted(*number, **start));
    let count = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    count(interrupted.count()) / count(starts.len().max(1))
}

/// Times of arrival in a run, with so many in a second.
fn arrivals(rate: f64, rng: &mut SmallRng) -> Vec<f64> {
    let mut times = Vec::new();
    let mut now = 0.0;
    loop {
        let uniform: f64 = rng.random();
        now -= (1.0 - uniform).ln() / rate;
        if now >= RUN_SECONDS {
            return times;
        }
        times.push(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blast::published::{HIGH_LOAD, NORMAL_LOAD};

    const COARSE: Precision = Precision {
        within: 0.03,
        runs: 20_000,
    };

    /// A blast of the single source is interrupted by Poisson arrivals within its span.
    #[test]
    fn share_of_a_single_source_is_the_closed_form() {
        for (kilobytes, others) in [(4, 100.0), (8, 20.0), (32, 5.0)] {
            let traffic = Traffic {
                blasts: 2.0,
                others,
                kilobytes,
                sources: Sources::Single,
            };
            let packets = f64::from(kilobytes);
            let span = published::best_seconds(kilobytes) * (packets - 1.0) / packets;
            let expected = 1.0 - (-others * span).exp();
            let share = measure(&traffic, COARSE, 7);
            assert!(
                (share.value / expected - 1.0).abs() < 0.06,
                "{share:?}, {expected}"
            );
        }
    }

    #[test]
    fn blasts_of_several_sources_interrupt_each_other() {
        let traffic = |sources| Traffic {
            blasts: 20.0,
            others: 0.01,
            kilobytes: 8,
            sources,
        };
        let single = measure(&traffic(Sources::Single), COARSE, 7);
        let several = measure(&traffic(Sources::Several), COARSE, 7);
        assert!(
            single.value < 0.01 && several.value > 0.2,
            "{single:?} {several:?}"
        );
    }

    /// The shares that the paper's own simulation predicted, in its text.
    #[test]
    fn predictions_are_near_the_predictions_of_the_paper() {
        let rows = NORMAL_LOAD.into_iter().chain(HIGH_LOAD);
        let predicted: Vec<_> = rows.filter_map(|row| Some((row, row.predicted?))).collect();
        assert_eq!(predicted.len(), 4);
        for (row, paper) in predicted {
            let share = measure(&row.traffic(), COARSE, 1989).value * 100.0;
            assert!((share / paper - 1.0).abs() < 0.2, "{row:?}: {share} %");
        }
    }
}
