//! The figures, for people and for scripts.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::experiment::{Layout, Row, Strategy};
use super::published;
use super::recovery::Recoveries;
use super::statistics::Mean;
use harness::machine::{Machine, commit};
use harness::plot::{Axes, Corner, Series, plot};

/// The paper's KB.
const BYTES_PER_KB: f64 = 1024.0;

/// All that was measured.
#[derive(Default)]
pub(super) struct Report {
    pub(super) rows: Vec<Row>,
    pub(super) recoveries: Vec<Recoveries>,
    pub(super) took: Duration,
}

impl Report {
    /// The tables, as Markdown.
    pub(super) fn tables(&self) -> String {
        let mut text = String::new();
        for (layout, number) in [
            (Layout::Equal, "I"),
            (Layout::Shared, "II"),
            (Layout::FastLog, "III"),
        ] {
            text += &self.strategies(layout, number);
        }
        text += &self.nagle();
        text += &self.recovery();
        text
    }

    /// One of Tables I to III. Writing to a string cannot fail, here and below.
    fn strategies(&self, layout: Layout, number: &str) -> String {
        let batched = |row: &&Row| row.layout == layout && !row.each_frame;
        let rows: Vec<_> = self.rows.iter().filter(batched).collect();
        if rows.is_empty() {
            return String::new();
        }
        let clean = self.clean(layout);
        let mut text = format!(
            "## Table {number}: {}\n\n\
             | | KB/s | R² | KB/s, runs | % of clean | latency, ms | deviation | ACKs | ACKs, a run | sent again, a run \
             | paper: KB/s | % of clean | latency, ms | ACKs |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
            layout.name()
        );
        for row in rows {
            let _ = writeln!(
                text,
                "| {:?} | {} | {} |",
                row.strategy,
                measured(row, clean),
                paper(layout, row.strategy)
            );
        }
        text + "\n"
    }

    /// Bytes per second without protection.
    fn clean(&self, layout: Layout) -> Option<f64> {
        let clean = |row: &&Row| row.layout == layout && row.strategy == Strategy::Clean;
        Some(self.rows.iter().find(clean)?.line()?.slope)
    }

    fn nagle(&self) -> String {
        let off: Vec<_> = self.rows.iter().filter(|row| row.each_frame).collect();
        if off.is_empty() {
            return String::new();
        }
        let mut text = "## Table IV: the logger acknowledges each frame by itself\n\n\
             | | | batched, KB/s | each frame, KB/s | change | paper: Nagle on | Nagle off | change |\n\
             |---|---|---|---|---|---|---|---|\n"
            .to_owned();
        for row in off {
            let same = |other: &&Row| {
                (other.layout, other.strategy, other.each_frame)
                    == (row.layout, row.strategy, false)
            };
            let on = self.rows.iter().find(same).and_then(throughput);
            let paper = published::table(row.layout, row.strategy).map(|row| row.throughput);
            let paper_off = published::nagle_off(row.layout, row.strategy);
            let _ = writeln!(
                text,
                "| {} | {:?} | {} | {} | {} | {} | {} | {} |",
                row.layout.name(),
                row.strategy,
                shown(on, 2),
                shown(throughput(row), 2),
                change(on, throughput(row)),
                shown(paper, 2),
                shown(paper_off, 2),
                change(paper, paper_off),
            );
        }
        text + "\n"
    }

    fn recovery(&self) -> String {
        if self.recoveries.is_empty() {
            return String::new();
        }
        let mut text = "## Table V: recoveries with 1 MB logged\n\n\
             | logger | recoveries | restart, ms | replay, ms | paper: restart, ms | replay, ms |\n\
             |---|---|---|---|---|---|\n"
            .to_owned();
        for one in &self.recoveries {
            let paper = published::RECOVERY
                .iter()
                .find(|(name, _)| *name == one.place.name);
            let paper = paper.map_or_else(String::new, |(_, paper)| {
                format!(
                    "{:.2} ± {:.2} | {:.0} ± {:.2}",
                    paper.restart, paper.restart_bound, paper.replay, paper.replay_bound
                )
            });
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {paper} |",
                one.place.name,
                one.restart.len(),
                within(Mean::of(&one.restart), 1.0),
                within(Mean::of(&one.replay), 1.0),
            );
        }
        text + "\n"
    }

    /// Writes `PAPER.md`, `paper.json` and the plots.
    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        let save = |name: &str, text: String| {
            let path = directory.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        save("PAPER.md", self.for_people())?;
        let json = serde_json::to_string_pretty(&self.to_json())?;
        save("paper.json", format!("{json}\n"))?;
        let names = self.shown_runs();
        let series: Vec<_> = names
            .iter()
            .map(|(name, points)| Series { name, points })
            .collect();
        if !series.is_empty() {
            let end = series.iter().filter_map(|one| one.points.last());
            let end = end.map(|(at, _)| *at).fold(0.2, f64::max);
            let title = "10 Shared: acknowledged bytes against time";
            save("figure-3.svg", acknowledged(title, &series, end))?;
            let title = "10 Shared: the first 200 ms";
            save("figure-4.svg", acknowledged(title, &series, 0.2))?;
        }
        Ok(())
    }

    /// A run of each strategy that is shown in the figures: the median, and of Lazy the best
    /// and the worst.
    fn shown_runs(&self) -> Vec<(String, &[(f64, f64)])> {
        let rows = self
            .rows
            .iter()
            .filter(|row| row.layout == Layout::Shared && !row.each_frame);
        let mut shown = Vec::new();
        for row in rows {
            let runs = row.by_speed();
            let (Some(best), Some(worst)) = (runs.first(), runs.last()) else {
                continue;
            };
            match row.strategy {
                Strategy::Lazy => {
                    shown.push(("Lazy, best run".to_owned(), &*best.acknowledged));
                    shown.push(("Lazy, worst run".to_owned(), &*worst.acknowledged));
                }
                Strategy::Clean | Strategy::Eager | Strategy::Conditional => {
                    let median = &runs[runs.len() / 2].acknowledged;
                    shown.push((format!("{:?}", row.strategy), median));
                }
                Strategy::Basic | Strategy::Lazy64k => {}
            }
        }
        shown
    }

    fn for_people(&self) -> String {
        format!(
            "# The FT-TCP paper's experiments, repeated\n\n\
             Written by `make paper`. Commit {}, {}; {} s.\n\n{}\n{}\
             ## Figures 3 and 4\n\n![Figure 3](figure-3.svg)\n\n![Figure 4](figure-4.svg)\n",
            commit(),
            Machine::this(),
            self.took.as_secs(),
            METHOD,
            self.tables()
        )
    }

    fn to_json(&self) -> Value {
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| row_json(row, self.clean(row.layout)))
            .collect();
        let recoveries: Vec<_> = self.recoveries.iter().map(Recoveries::to_json).collect();
        json!({
            "commit": commit(),
            "machine": Machine::this(),
            "seconds": self.took.as_secs(),
            "rows": rows,
            "recoveries": recoveries,
        })
    }
}

/// The differences from the paper's laboratory, and how to read the tables.
const METHOD: &str = include_str!("method.md");

fn throughput(row: &Row) -> Option<f64> {
    Some(row.line()?.slope / BYTES_PER_KB)
}

/// The measured values, as the cells of a table.
fn measured(row: &Row, clean: Option<f64>) -> String {
    let Some(line) = row.line() else {
        let why = row.why.as_deref().unwrap_or("no run ended well");
        return format!("failed: {why} | | | | | | | |");
    };
    let all = row.failed + row.runs.len();
    let mut failed = match row.failed {
        0 => String::new(),
        failed => format!(" ({failed} of {all} failed)"),
    };
    if let late @ 1.. = row.opened_late() {
        failed += &format!(" ({late} of {all} opened late)");
    }
    format!(
        "{:.2} ± {:.2}{failed} | {:.3} | {} | {} | {} | {} | {} | {} | {:.1}",
        line.slope / BYTES_PER_KB,
        line.within / BYTES_PER_KB,
        line.determination,
        within(row.slopes(), 1.0 / BYTES_PER_KB),
        percent(Some(line.slope), clean),
        within(row.latency(), 1e3),
        shown(row.latency_deviation().map(|deviation| deviation * 1e3), 2),
        row.acks(),
        within(row.acks_of_runs(), 1.0),
        row.again(),
    )
}

/// The paper's values, as the cells of a table.
fn paper(layout: Layout, strategy: Strategy) -> String {
    published::table(layout, strategy).map_or("*often stalls* | | | ".to_owned(), |row| {
        format!(
            "{:.2} ± {:.2} | {} | {:.2} ± {:.2} | {}",
            row.throughput,
            row.throughput_bound,
            percent(Some(row.throughput), Some(published::CLEAN.throughput)),
            row.latency,
            row.latency_bound,
            row.acks
        )
    })
}

fn row_json(row: &Row, clean: Option<f64>) -> Value {
    let paper = published::table(row.layout, row.strategy).map(|paper| {
        json!({
            "kb_per_second": paper.throughput,
            "kb_per_second_nagle_off": published::nagle_off(row.layout, row.strategy),
            "latency_ms": paper.latency,
            "acks": paper.acks,
        })
    });
    let line = row.line();
    let runs: Vec<_> = row
        .runs
        .iter()
        .map(|run| run.acknowledged.last().map(|(at, _)| *at))
        .collect();
    json!({
        "layout": row.layout.name(),
        "strategy": format!("{:?}", row.strategy),
        "each_frame": row.each_frame,
        "kb_per_second": line.map(|line| line.slope / BYTES_PER_KB),
        "within": line.map(|line| line.within / BYTES_PER_KB),
        "determination": line.map(|line| line.determination),
        "kb_per_second_of_runs": row.slopes().map(|mean| mean.mean / BYTES_PER_KB),
        "within_of_runs": row.slopes().map(|mean| mean.within / BYTES_PER_KB),
        "share_of_clean": line.and_then(|line| Some(line.slope / clean?)),
        "latency_ms": row.latency().map(|mean| mean.mean * 1e3),
        "latency_within_ms": row.latency().map(|mean| mean.within * 1e3),
        "latency_deviation_ms": row.latency_deviation().map(|deviation| deviation * 1e3),
        "acks": row.acks(),
        "acks_of_runs": row.acks_of_runs().map(|mean| mean.mean),
        "acks_within": row.acks_of_runs().map(|mean| mean.within),
        "sent_again": row.again(),
        "failed": row.failed,
        "opened_late": row.opened_late(),
        "why": row.why,
        "seconds_of_runs": runs,
        "paper": paper,
    })
}

fn within(mean: Option<Mean>, factor: f64) -> String {
    mean.map_or("-".to_owned(), |mean| {
        format!("{:.2} ± {:.2}", mean.mean * factor, mean.within * factor)
    })
}

fn shown(value: Option<f64>, places: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.places$}"))
}

fn percent(part: Option<f64>, whole: Option<f64>) -> String {
    shown(part.zip(whole).map(|(part, whole)| part / whole * 100.0), 1)
}

fn change(before: Option<f64>, after: Option<f64>) -> String {
    let change = before
        .zip(after)
        .map(|(before, after)| (after / before - 1.0) * 100.0);
    change.map_or("-".to_owned(), |change| format!("{change:+.1} %"))
}

/// Acknowledged bytes against time, as in the paper's figures.
fn acknowledged(title: &str, series: &[Series<'_>], seconds: f64) -> String {
    let axes = Axes {
        title,
        across: "time since the SYN",
        up: "acknowledged (KB)",
        unit: 1024.0,
        seconds,
        legend: Corner::Lower,
    };
    plot(&axes, series)
}

#[cfg(test)]
mod tests {
    use super::super::upload::Upload;
    use super::*;

    fn row(strategy: Strategy, rate: f64) -> Row {
        let points = (0..5).map(|at| (f64::from(at), f64::from(at) * rate));
        let run = Upload {
            acknowledged: points.collect(),
            latencies: vec![0.002, 0.004],
            ..Upload::default()
        };
        Row {
            layout: Layout::Shared,
            strategy,
            each_frame: false,
            runs: vec![run.clone(), run],
            failed: 0,
            why: None,
        }
    }

    #[test]
    fn row_is_printed_beside_papers() {
        let report = Report {
            rows: vec![
                row(Strategy::Clean, 1024.0 * 1000.0),
                row(Strategy::Lazy, 1024.0 * 500.0),
            ],
            ..Report::default()
        };
        let text = report.tables();
        let lazy = text
            .lines()
            .find(|line| line.starts_with("| Lazy |"))
            .unwrap();
        assert!(
            lazy.contains(
                "| 500.00 ± 0.00 | 1.000 | 500.00 ± 0.00 | 50.0 | 3.00 ± 0.00 | 1.15 | 8 |"
            ),
            "{lazy}"
        );
        assert!(
            lazy.ends_with("| 195.17 ± 3.79 | 19.4 | 29.15 ± 20.75 | 2100 |"),
            "{lazy}"
        );
        assert!(!text.contains("Table I:") && !text.contains("Table V"));
    }

    #[test]
    fn all_files_are_written() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let mut stalled = row(Strategy::Basic, 1.0);
        stalled.runs.clear();
        stalled.why = Some("it stalled".to_owned());
        let report = Report {
            rows: vec![row(Strategy::Lazy, 1e6), stalled],
            ..Report::default()
        };
        report.write(directory.path())?;
        let read = |name: &str| fs::read_to_string(directory.path().join(name));
        assert!(read("PAPER.md")?.contains("| Basic | failed: it stalled |"));
        assert!(read("figure-3.svg")?.contains("Lazy, worst run"));
        let json: Value = serde_json::from_str(&read("paper.json")?)?;
        assert_eq!(json["rows"][1]["why"], "it stalled");
        Ok(())
    }
}
