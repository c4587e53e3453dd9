//! `make simulate ARGS=--blast`: the simulation of the bulk transfer paper (Carter and Zwaenepoel, *Optimistic
//! Implementation of Bulk Data Transfer Protocols*, Rice University 1989, sections 5 and 6), printed beside the paper's
//! own figures.
//!
//! [`model`] is the simulation, [`published`] has the paper's figures, [`report`] shows both side by side. [`tables`]
//! is `make paper ARGS=--blast`: the experiments that the paper measured; [`load`] and [`shares`] are Tables 4 to 6.

mod load;
mod model;
mod published;
mod report;
mod shares;
pub(crate) mod tables;

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use make_model::Precision;

use self::{
    model::{Share, Sources, Traffic, measure},
    published::{BLAST_SIZES, HIGH_LOAD, NORMAL_LOAD},
    report::BlastReport,
};
use harness::task::Interrupt;

/// Packets in a second beside the blasts, in figures 5 to 7: the axes of the paper's figures have no numbers.
const OTHER_PACKETS: [f64; 8] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0];
/// Figures 5 and 6: kilobytes of blasts in a second at a workstation.
const WORKSTATION_KILOBYTES: f64 = 8.0;
/// Figure 7: kilobytes of blasts in a second at a file server.
const SERVER_KILOBYTES: [f64; 4] = [0.5, 2.0, 8.0, 32.0];
/// Kilobytes of a blast at the file server, and of a blast in the paper's predictions.
const USUAL_SIZE: u32 = 8;

/// Simulates all settings, and writes `SIMULATION-BLAST.md` and `simulation-blast.json`.
pub(crate) fn run(seed: u64, output: &Path) -> Result<bool> {
    let began = Instant::now();
    let interrupt = Interrupt::on_signals()?;
    // Section 5: 5 % of the share, with 95 % confidence.
    let precision = Precision {
        within: 0.05,
        runs: 20_000,
    };
    let share = |traffic: &Traffic| -> Result<Share> {
        interrupt.check()?;
        Ok(measure(traffic, precision, seed))
    };
    let mut report = BlastReport::default();
    for size in BLAST_SIZES {
        for others in OTHER_PACKETS {
            let traffic = Traffic {
                blasts: WORKSTATION_KILOBYTES / f64::from(size.kilobytes),
                others,
                kilobytes: size.kilobytes,
                sources: Sources::Single,
            };
            report.workstation.push((traffic, share(&traffic)?));
        }
    }
    for kilobytes in SERVER_KILOBYTES {
        for others in OTHER_PACKETS {
            let traffic = Traffic {
                blasts: kilobytes / f64::from(USUAL_SIZE),
                others,
                kilobytes: USUAL_SIZE,
                sources: Sources::Several,
            };
            report.server.push((traffic, share(&traffic)?));
        }
    }
    for row in NORMAL_LOAD.into_iter().chain(HIGH_LOAD) {
        report.predictions.push((row, share(&row.traffic())?));
    }
    report.took = began.elapsed();
    println!("{}", report.tables());
    report.write(output)?;
    println!("written to {}", output.display());
    Ok(true)
}
