//! The figures, for people and for scripts.

use std::{fmt::Write as _, fs, path::Path, time::Duration};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{
    model::{Share, Traffic},
    published::{BLAST_SIZES, BlastSize, Load},
};
use harness::machine::{Machine, commit};

/// All that was simulated.
#[derive(Default)]
pub(super) struct BlastReport {
    /// Figures 5 and 6.
    pub(super) workstation: Vec<(Traffic, Share)>,
    /// Figure 7.
    pub(super) server: Vec<(Traffic, Share)>,
    /// Tables 4 and 5.
    pub(super) predictions: Vec<(Load, Share)>,
    pub(super) took: Duration,
}

fn percent(share: Share) -> String {
    format!("{:.2} ± {:.2} %", share.value * 100.0, share.half * 100.0)
}

impl BlastReport {
    /// The tables, as Markdown. Writing to a string cannot fail, here and below.
    pub(super) fn tables(&self) -> String {
        self.of_loads() + &self.of_workstations() + &self.of_servers() + &of_sizes()
    }

    /// Tables 4 and 5: the shares that were measured, and both predictions.
    fn of_loads(&self) -> String {
        let mut text = "## Interrupted blasts (Tables 4 and 5)\n\n\
            | load | blasts/s | other packets/s | predicted here | predicted by the paper | measured by the paper |\n\
            |---|---|---|---|---|---|\n"
            .to_owned();
        for (load, share) in &self.predictions {
            let paper = load
                .predicted
                .map_or("–".to_owned(), |it| format!("{it} %"));
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {paper} | {} % |",
                load.name,
                load.blasts,
                load.others,
                percent(*share),
                load.measured
            );
        }
        text
    }

    fn of_workstations(&self) -> String {
        let mut text = "\n## A workstation: 8 KB of blasts in a second (figures 5 and 6)\n\n\
            | KB of a blast | other packets/s | interrupted | Mbit/s | pessimistic, Mbit/s |\n|---|---|---|---|---|\n"
            .to_owned();
        for (traffic, share) in &self.workstation {
            let Some(size) = size_of(traffic) else {
                continue;
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {:.2} | {:.2} |",
                traffic.kilobytes,
                traffic.others,
                percent(*share),
                size.mean_rate(share.value),
                size.rate(size.pessimistic_ms)
            );
        }
        text
    }

    fn of_servers(&self) -> String {
        let mut text = "\n## A file server: blasts of 8 KB from many sources (figure 7)\n\n\
            | KB of blasts/s | other packets/s | interrupted |\n|---|---|---|\n"
            .to_owned();
        for (traffic, share) in &self.server {
            let kilobytes = traffic.blasts * f64::from(traffic.kilobytes);
            let _ = writeln!(
                text,
                "| {kilobytes} | {} | {} |",
                traffic.others,
                percent(*share)
            );
        }
        text
    }

    /// Writes `SIMULATION-BLAST.md` and `simulation-blast.json`.
    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        let save = |name: &str, text: String| {
            let path = directory.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        let text = format!(
            "# The bulk transfer paper's simulation, repeated\n\n\
             Written by `make simulate ARGS=--blast`. Commit {}; {} s. Each share is known to ± 5 % of itself with 95 %, as in \
             the paper.\n\n{}",
            commit(),
            self.took.as_secs(),
            self.tables()
        );
        save("SIMULATION-BLAST.md", text)?;
        let json = serde_json::to_string_pretty(&self.to_json())?;
        save("simulation-blast.json", format!("{json}\n"))
    }

    fn to_json(&self) -> Value {
        let share = |share: &Share| json!({ "value": share.value, "half": share.half });
        let traffic = |(traffic, found): &(Traffic, Share)| {
            json!({
                "blasts_per_second": traffic.blasts,
                "others_per_second": traffic.others,
                "kilobytes": traffic.kilobytes,
                "interrupted": share(found),
            })
        };
        let prediction = |(load, found): &(Load, Share)| {
            json!({
                "load": load.name,
                "interrupted": share(found),
                "paper_predicted_percent": load.predicted,
                "paper_measured_percent": load.measured,
            })
        };
        json!({
            "commit": commit(),
            "machine": Machine::this(),
            "workstation": self.workstation.iter().map(traffic).collect::<Vec<_>>(),
            "server": self.server.iter().map(traffic).collect::<Vec<_>>(),
            "predictions": self.predictions.iter().map(prediction).collect::<Vec<_>>(),
        })
    }
}

fn size_of(traffic: &Traffic) -> Option<BlastSize> {
    let mut sizes = BLAST_SIZES.into_iter();
    sizes.find(|size| size.kilobytes == traffic.kilobytes)
}

/// Consequences of Tables 1 to 3 that the paper does not state, or states otherwise.
fn of_sizes() -> String {
    let mut text = "\n## Derived from Tables 1 to 3\n\n\
        | KB of a blast | interrupted share at which both implementations are equally fast | Mbit/s with 11.4 % interrupted at the worst moment |\n\
        |---|---|---|\n"
        .to_owned();
    for size in BLAST_SIZES {
        let worst = size.rate(0.114 * size.worst_ms + 0.886 * size.best_ms);
        let _ = writeln!(
            text,
            "| {} | {:.2} | {worst:.2} |",
            size.kilobytes,
            size.break_even()
        );
    }
    text + "\nThe paper has 7.6 Mbit/s for 8 KB (section 6.3): more than its best case of 6.8.\n"
}
