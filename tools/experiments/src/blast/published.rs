//! Figures of the paper.

use super::model::{Sources, Traffic};

/// A size of blasts in Tables 1 to 3.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlastSize {
    pub(super) kilobytes: u32,
    /// Table 1, without an interruption, ms.
    pub(super) best_ms: f64,
    /// Table 2, interrupted as early as possible, ms.
    pub(super) worst_ms: f64,
    /// Table 3, by the pessimistic implementation, ms.
    pub(super) pessimistic_ms: f64,
}

/// The sizes of figures 5 and 6.
pub(super) const BLAST_SIZES: [BlastSize; 3] = [
    BlastSize {
        kilobytes: 4,
        best_ms: 6.2,
        worst_ms: 7.8,
        pessimistic_ms: 7.8,
    },
    BlastSize {
        kilobytes: 8,
        best_ms: 9.7,
        worst_ms: 14.4,
        pessimistic_ms: 13.1,
    },
    BlastSize {
        kilobytes: 32,
        best_ms: 33.0,
        worst_ms: 52.3,
        pessimistic_ms: 44.4,
    },
];

/// 1 MB in blasts of 32 KB: without an interruption, with all interrupted, by the pessimistic implementation, Mbit/s.
pub(super) const LARGE_RATES: [f64; 3] = [8.3, 5.0, 6.1];

/// Footnote 6: a copy of a kilobyte, ms.
const COPY_MS: f64 = 0.37;

/// Seconds that a blast of so many kilobytes takes without an interruption.
pub(super) fn best_seconds(kilobytes: u32) -> f64 {
    let known = BLAST_SIZES.iter().find(|size| size.kilobytes == kilobytes);
    known.map_or(f64::from(kilobytes) / 1000.0, |size| size.best_ms / 1000.0)
}

impl BlastSize {
    /// Section 5: elapsed time of an interrupted blast, ms. On the average half of the redirected packets are at their
    /// positions; the first two packets are never redirected.
    pub(super) fn interrupted_ms(&self) -> f64 {
        let redirected = f64::from(self.kilobytes) - 2.0;
        self.worst_ms - redirected / 2.0 * COPY_MS
    }

    /// Mbit/s of a transfer with this elapsed time.
    pub(super) fn rate(&self, ms: f64) -> f64 {
        f64::from(self.kilobytes) * 1024.0 * 8.0 / ms / 1000.0
    }

    /// Mbit/s if so many of the blasts are interrupted.
    pub(super) fn mean_rate(&self, interrupted: f64) -> f64 {
        self.rate(interrupted * self.interrupted_ms() + (1.0 - interrupted) * self.best_ms)
    }

    /// The share of interrupted blasts at which the pessimistic implementation is as fast.
    pub(super) fn break_even(&self) -> f64 {
        (self.pessimistic_ms - self.best_ms) / (self.worst_ms - self.best_ms)
    }
}

/// A row of Table 4 or Table 5.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) name: &'static str,
    pub(super) sources: Sources,
    /// Blasts and other packets in a second.
    pub(super) blasts: f64,
    pub(super) others: f64,
    /// Interrupted blasts, percent: measured by the paper.
    pub(super) measured: f64,
    /// Predicted by the paper's simulation, where the text has the figure.
    pub(super) predicted: Option<f64>,
}

impl Load {
    pub(super) const fn traffic(&self) -> Traffic {
        Traffic {
            blasts: self.blasts,
            others: self.others,
            kilobytes: super::USUAL_SIZE,
            sources: self.sources,
        }
    }
}

const fn workstation(
    name: &'static str,
    rates: [f64; 2],
    measured: f64,
    predicted: Option<f64>,
) -> Load {
    Load {
        name,
        sources: Sources::Single,
        blasts: rates[0],
        others: rates[1],
        measured,
        predicted,
    }
}

const fn server(
    name: &'static str,
    rates: [f64; 2],
    measured: f64,
    predicted: Option<f64>,
) -> Load {
    Load {
        sources: Sources::Several,
        ..workstation(name, rates, measured, predicted)
    }
}

/// Table 4.
pub(super) const NORMAL_LOAD: [Load; 2] = [
    workstation("workstation, normal load", [0.3, 1.4], 0.8, Some(1.2)),
    server("file server, normal load", [0.1, 3.7], 4.0, Some(3.7)),
];

/// Table 5.
pub(super) const HIGH_LOAD: [Load; 10] = [
    workstation("workstation, 1 in all", [2.52, 2.21], 2.3, None),
    workstation("workstation, 2 in all", [2.33, 2.45], 2.1, None),
    workstation("workstation, 3 in all", [1.98, 2.69], 2.2, None),
    workstation("workstation, 4 in all", [2.05, 2.98], 2.2, None),
    workstation("workstation, 5 in all", [2.17, 3.06], 2.0, Some(2.4)),
    server("file server, 1 workstation", [0.60, 5.67], 4.1, None),
    server("file server, 2 workstations", [1.03, 7.21], 6.3, None),
    server("file server, 3 workstations", [1.21, 10.13], 6.8, None),
    server("file server, 4 workstations", [1.73, 13.10], 9.2, None),
    server(
        "file server, 5 workstations",
        [2.14, 16.23],
        11.4,
        Some(16.2),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables 1 to 3 have rates of one decimal beside the elapsed times.
    #[test]
    fn rates_of_the_tables_follow_from_their_times() {
        let rates = BLAST_SIZES
            .map(|size| [size.best_ms, size.worst_ms, size.pessimistic_ms].map(|ms| size.rate(ms)));
        let table = [[5.3, 4.2, 4.2], [6.8, 4.6, 5.0], [8.0, 5.0, 5.9]];
        for (found, table) in rates.iter().flatten().zip(table.iter().flatten()) {
            assert!((found - table).abs() < 0.06, "{found} {table}");
        }
    }
}
