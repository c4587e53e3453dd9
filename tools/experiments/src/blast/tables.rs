//! `make paper ARGS=--blast`: Tables 1 to 6 of the bulk transfer paper. For Tables 1 to 3 a blast of each size is sent
//! and acknowledged, one after the other: received at its place, received at wrong places throughout (the worst case),
//! and copied (the pessimistic implementation). The packets have a kilobyte and no protection, as in the paper. Tables
//! 4 to 6 are in [`super::load`] and [`super::shares`].

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bulk::carrier::Placement;
use harness::machine::{Machine, commit};
use harness::quantile::quantile;
use harness::task::Interrupt;
use harness::transfer::{Target, Transfer};
use lab::Lab;
use serde_json::json;

use super::load;
use super::published::{BLAST_SIZES, LARGE_RATES};
use super::shares;

/// Payload of a packet, as in the paper.
const PACKET_BYTES: u32 = 1024;
/// Blasts of a measured transfer.
const BLAST_COUNT: u64 = 2000;
/// Each load of Tables 4 to 6.
const LOAD_TIME: Duration = Duration::from_secs(30);
const PLACEMENTS: [Placement; 3] = [Placement::Placed, Placement::Misplaced, Placement::Copied];

/// A row, and its measures: microseconds of a blast, elapsed and of the receiver's processor, by placement.
struct Row {
    name: String,
    elapsed: [Measure; 3],
    processor: [Measure; 3],
    /// Rates of the paper: best, worst, pessimistic, Mbit/s.
    paper: [f64; 3],
}

/// Median, least and greatest.
#[derive(Debug, Clone, Copy, Default)]
struct Measure {
    median: f64,
    least: f64,
    most: f64,
}

impl Measure {
    fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        Self {
            median: quantile(&samples, 0.5),
            least: quantile(&samples, 0.0),
            most: quantile(&samples, 1.0),
        }
    }

    fn shown(self) -> String {
        format!("{:.1} ({:.1}–{:.1})", self.median, self.least, self.most)
    }
}

/// Measures all rows in turn, and writes `PAPER-BLAST.md` and `paper-blast.json`.
pub(crate) fn run(interrupt: &Interrupt, rounds: u16, output: &Path) -> Result<()> {
    let began = Instant::now();
    let lab = Lab::new("paper-blast")?;
    let (sender, receiver) = (lab.add_host("sender")?, lab.add_host("receiver")?);
    let mut rows = Vec::new();
    let sizes = BLAST_SIZES.map(|size| {
        let rates = [size.best_ms, size.worst_ms, size.pessimistic_ms].map(|ms| size.rate(ms));
        (format!("{} KB", size.kilobytes), size.kilobytes, 1, rates)
    });
    let large = ("1 MB in blasts of 32 KB".to_owned(), 32, 8, LARGE_RATES);
    for (name, kilobytes, ahead, paper) in sizes.into_iter().chain([large]) {
        println!("{name}");
        let transfer = |placement| Transfer {
            packet_bytes: PACKET_BYTES,
            packets: kilobytes,
            ahead,
            size: (BLAST_COUNT * u64::from(kilobytes)) << 10,
            placement,
            target: Target::Memory,
            is_encrypted: false,
            is_connected: false,
        };
        let mut samples = PLACEMENTS.map(|_| (Vec::new(), Vec::new()));
        for _ in 0..rounds {
            for (placement, (elapsed, processor)) in PLACEMENTS.into_iter().zip(&mut samples) {
                interrupt.check()?;
                let cost = transfer(placement).run(&sender, &receiver)?;
                let arrived = cost.reception.placed + cost.reception.moved;
                let is_placed = placement != Placement::Copied;
                ensure!(!is_placed || arrived > 0, "no packet was placed");
                let blasts = f64::from(u32::try_from(BLAST_COUNT)?);
                elapsed.push(cost.elapsed.as_secs_f64() * 1e6 / blasts);
                processor.push(cost.seconds() * 1e6 / blasts);
            }
        }
        let [best, worst, pessimistic] = samples;
        let (a, b, c) = (best, worst, pessimistic);
        rows.push(Row {
            name,
            elapsed: [a.0, b.0, c.0].map(Measure::of),
            processor: [a.1, b.1, c.1].map(Measure::of),
            paper,
        });
    }
    lab.remove()?;
    let loads = load::measure(interrupt, LOAD_TIME)?;
    let text = tables(&rows) + &shares::tables(&loads);
    println!("{text}");
    fs::create_dir_all(output)?;
    let about = format!(
        "# The bulk transfer paper's Tables 1 to 6, repeated\n\n\
         Written by `make paper ARGS=--blast`. Commit {}; {} s. Tables 1 to 3: {rounds} rounds in turn, median and range.\n\n{text}",
        commit(),
        began.elapsed().as_secs()
    );
    save(output, "PAPER-BLAST.md", &about)?;
    let json = json!({
        "commit": commit(),
        "machine": Machine::this(),
        "rows": rows.iter().map(to_json).collect::<Vec<_>>(),
        "loads": loads.iter().map(shares::to_json).collect::<Vec<_>>(),
    });
    let json = serde_json::to_string_pretty(&json)?;
    save(output, "paper-blast.json", &format!("{json}\n"))
}

fn save(output: &Path, name: &str, text: &str) -> Result<()> {
    let path = output.join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn tables(rows: &[Row]) -> String {
    let mut text = "## Time of a blast (Tables 1 to 3)\n\nA blast is sent and acknowledged, then the next; of the last row 8 blasts are under way. Packets of 1 KB \
        without protection, into memory, over a virtual link of 1500-byte frames.\n\n\
        Microseconds of a blast:\n\n\
        | blast | at its place (Table 1) | at wrong places (Table 2) | copied (Table 3) | of the receiver's processor: Table 1 | Table 2 | Table 3 |\n\
        |---|---|---|---|---|---|---|\n"
        .to_owned();
    for row in rows {
        let _ = write!(text, "| {} |", row.name);
        for measure in row.elapsed.iter().chain(&row.processor) {
            let _ = write!(text, " {} |", measure.shown());
        }
        text.push('\n');
    }
    text += "\nSpeed by that of the copying receiver:\n\n\
        | blast | placed, paper | elapsed here | processor here | worst case, paper | elapsed here | processor here |\n\
        |---|---|---|---|---|---|---|\n";
    for row in rows {
        let [best, worst, pessimistic] = row.paper;
        let of =
            |measures: &[Measure; 3], number: usize| measures[2].median / measures[number].median;
        let _ = writeln!(
            text,
            "| {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
            row.name,
            best / pessimistic,
            of(&row.elapsed, 0),
            of(&row.processor, 0),
            worst / pessimistic,
            of(&row.elapsed, 1),
            of(&row.processor, 1),
        );
    }
    text + "\nThe paper's gain is not there with packets of 1 KB: a processor with a cache copies a packet that has just \
        arrived at little cost, and the kernel pays for three buffers of each packet. `make bench ARGS='--only blast'` has \
        larger packets, files and encryption.\n"
}

fn to_json(row: &Row) -> serde_json::Value {
    let names = ["placed", "worst", "copied"];
    let measures = |all: &[Measure; 3]| {
        let named = names.iter().zip(all).map(|(name, it)| {
            let value = json!({ "median": it.median, "min": it.least, "max": it.most });
            ((*name).to_owned(), value)
        });
        named.collect::<serde_json::Map<_, _>>()
    };
    json!({
        "blast": row.name,
        "elapsed_us": measures(&row.elapsed),
        "processor_us": measures(&row.processor),
        "paper_mbit": row.paper,
    })
}
