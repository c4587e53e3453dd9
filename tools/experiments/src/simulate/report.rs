//! The figures, for people and for scripts.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use make_model::Precision;
use serde_json::{Value, json};

use super::figure::{Cost, Figure};
use super::measured::Builds;
use super::{plan, published};
use harness::machine::{Machine, commit};

/// The fitted parameters, and how to read the tables.
const METHOD: &str = include_str!("method.md");
const HEAD: &str = "| | here | paper | off |\n|---|---|---|---|\n";

/// All that was simulated.
pub(super) struct Report {
    pub(super) paper: Vec<Figure>,
    pub(super) measured: Vec<Figure>,
    pub(super) builds: Option<Builds>,
    pub(super) costs: Vec<Cost>,
    pub(super) precision: Precision,
    pub(super) took: Duration,
}

impl Report {
    /// The tables, as Markdown. Writing to a string cannot fail, here and below.
    pub(super) fn tables(&self) -> String {
        let mut text = stated(&self.paper);
        text += &table_2(&self.paper, "", true);
        text += &sentences(&self.paper);
        text += &curves(&self.paper, "");
        if let Some(builds) = &self.builds {
            text += &of_builds(builds);
            text += &curves(&self.measured, "measured.");
            text += &table_2(&self.measured, "measured.", false);
        }
        text + &self.other_costs()
    }

    /// Writes `SIMULATION.md` and `simulation.json`.
    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        let save = |name: &str, text: String| {
            let path = directory.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        save("SIMULATION.md", self.for_people())?;
        let json = serde_json::to_string_pretty(&self.to_json())?;
        save("simulation.json", format!("{json}\n"))
    }

    fn for_people(&self) -> String {
        format!(
            "# The optimistic make paper's simulation, repeated\n\n\
             Written by `make simulate`. Commit {}; {} s. Medians are known to ± {} % with 95 %, unless it says otherwise{}.\n\n\
             {METHOD}\n{}",
            commit(),
            self.took.as_secs(),
            self.precision.within * 100.0,
            self.unknown(),
            self.tables().trim_end(),
        ) + "\n"
    }

    /// Figures whose interval is wider than the wanted precision.
    fn unknown(&self) -> String {
        let all = self.paper.iter().chain(&self.measured);
        let coarse = |figure: &&Figure| {
            figure.name.ends_with(".improvement")
                && figure.interval.relative() > self.precision.within
        };
        let names: Vec<_> = all.filter(coarse).map(|it| it.name.clone()).collect();
        match names.len() {
            0 => " (no median improvement is wider)".to_owned(),
            _ => format!(" (wider: {})", names.join(", ")),
        }
    }

    fn to_json(&self) -> Value {
        let all = self.paper.iter().chain(&self.measured);
        let figures: Vec<_> = all.map(Figure::to_json).collect();
        json!({
            "commit": commit(),
            "machine": Machine::this(),
            "seconds": self.took.as_secs(),
            "within": self.precision.within,
            "figures": figures,
        })
    }

    /// Sections 3.4 and 4.4.
    fn other_costs(&self) -> String {
        let mut text =
            "## Costs (sections 3.4 and 4.4)\n\n| | here | paper |\n|---|---|---|\n".to_owned();
        for cost in &self.costs {
            let ours = cost
                .ours
                .as_deref()
                .unwrap_or("not in results.json: `make bench ARGS='--only make-files'`");
            let _ = writeln!(text, "| {} | {ours} | {} |", cost.what, cost.paper);
        }
        let disk = self.builds.as_ref().map_or_else(
            || "`--times`".to_owned(),
            |builds| {
                let [_, _, (_, median, mean)] = builds.figures();
                format!("median {median:.0} KiB, mean {mean:.0} KiB")
            },
        );
        let _ = writeln!(
            text,
            "| what a build makes, concealed until it is asked for | {disk} | {} KB |",
            published::CONCEALED_KB
        );
        text
    }
}

fn find<'a>(figures: &'a [Figure], name: &str) -> Option<&'a Figure> {
    figures.iter().find(|figure| figure.name == name)
}

/// The simulation's values for the figures that the paper states.
fn stated(figures: &[Figure]) -> String {
    let mut text = format!("## What the paper states\n\n{HEAD}");
    let mut stated: Vec<_> = figures
        .iter()
        .filter(|it| it.paper.is_some() && !it.name.starts_with("table_2."))
        .collect();
    stated.sort_by_key(|figure| figure.name.starts_with("speed."));
    for figure in stated {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} |",
            figure.name,
            shown(figure),
            figure.paper.unwrap_or(f64::NAN),
            percent(figure.off())
        );
    }
    text + "\nThe paper's load and aborted commands are limits: *at most*.\n\n"
}

fn table_2(figures: &[Figure], prefix: &str, is_paper: bool) -> String {
    let title = match is_paper {
        true => "Table 2: median improvements, here (paper, off), by fast machines of ten",
        false => "The same by fast machines of ten, as in table 2",
    };
    let mut text = format!("## {title}\n\n| users |");
    for fast in published::FAST {
        let _ = write!(text, " {fast} |");
    }
    text += "\n|---|---|---|---|---|---|---|\n";
    let mut offs: Vec<f64> = Vec::new();
    for (users, _) in published::TABLE_2 {
        let _ = write!(text, "| {users} |");
        for fast in published::FAST {
            let name = format!("{prefix}table_2.{users}.{fast}.improvement");
            let Some(figure) = find(figures, &name) else {
                continue;
            };
            let _ = write!(text, " {:.2}", figure.interval.value);
            if let (Some(paper), Some(off)) = (figure.paper, figure.off()) {
                let _ = write!(text, " ({paper:.2}, {})", percent(Some(off)));
                offs.push(off.abs());
            }
            text += " |";
        }
        text += "\n";
    }
    if let Some(worst) = offs.iter().copied().reduce(f64::max) {
        let _ = write!(
            text,
            "\nMean distance {:.1} %, the largest {:.1} %.\n",
            make_model::mean(&offs) * 100.0,
            worst * 100.0
        );
    }
    text + "\n"
}

/// The paper's sentences about the curves, and whether each sentence holds here.
fn sentences(figures: &[Figure]) -> String {
    let value = |name: &str| find(figures, name).map_or(f64::NAN, |it| it.interval.value);
    let gain = |name: &str| value(&format!("{name}.improvement"));
    let saved =
        |name: &str| value(&format!("{name}.pessimistic")) - value(&format!("{name}.optimistic"));
    let falls = |all: &[f64]| all.windows(2).all(|two| two[1] < two[0]);
    let speeds = plan::SPEEDS.map(|speed| format!("speed.{speed}"));
    let scales = plan::SCALES.map(|scale| format!("out_of_date.{scale}"));
    let by_speed = speeds.each_ref().map(|name| gain(name));
    let saved_by_speed = speeds.each_ref().map(|name| saved(name));
    let by_scale = scales.each_ref().map(|name| gain(name));
    let saved_by_scale = scales.each_ref().map(|name| saved(name));
    let busy = |kind: &str, what: &str| {
        let percent = if kind == "without" { 0 } else { 39 };
        let kind = if kind == "pessimistic" {
            kind
        } else {
            "optimistic"
        };
        value(&format!(
            "machines.all.aborted.{percent}.busy.{kind}.{what}"
        ))
    };
    let limits = plan::LIMITS.map(|it| gain(&format!("machines.{}.aborted.39", plan::limit(it))));
    let think = plan::THINK.map(|minutes| gain(&format!("think.{minutes}")));
    let all = [
        (
            "6.1: with 1 and 10 users the median is similar",
            (gain("users.1") / gain("users.10") - 1.0).abs() < 0.1,
            list(&[gain("users.1"), gain("users.5"), gain("users.10")]),
        ),
        (
            "6.1: a small percentage of requests is answered later",
            (0.0..0.05).contains(&value("users.5.worse")),
            format!("{:.1} %", value("users.5.worse") * 100.0),
        ),
        (
            "6.1: shorter think times make it less; beyond 6 minutes they hardly matter",
            think[0] < think[2] && think[3] / think[2] < think[2] / think[0],
            list(&think),
        ),
        (
            "6.2: the improvement is largest at 8 times the speed",
            by_speed.iter().all(|it| *it <= by_speed[3]),
            list(&by_speed),
        ),
        (
            "6.2: the difference of the median responses falls with the speed",
            falls(&saved_by_speed),
            list(&saved_by_speed),
        ),
        (
            "6.3: longer out-of-date times make it more",
            by_scale.windows(2).all(|two| two[0] < two[1]),
            list(&by_scale),
        ),
        (
            "6.3: then it is constant (the text does not say from where on; here, from 4 to 8 times)",
            by_scale[5] / by_scale[4] < 1.1,
            list(&by_scale[4..]),
        ),
        (
            "6.3: so is the difference of the median responses",
            saved_by_scale[5] / saved_by_scale[4] < 1.1,
            list(&saved_by_scale),
        ),
        (
            "6.4: machines are less often all idle, and less often very many are busy (16 users; pessimistic, optimistic without aborts, with 39 %)",
            busy("", "none") < busy("pessimistic", "none")
                && busy("without", "sixteen") < busy("pessimistic", "sixteen"),
            format!(
                "none: {}; 16 or more: {}",
                list(&["pessimistic", "without", ""].map(|kind| busy(kind, "none") * 100.0)),
                list(&["pessimistic", "without", ""].map(|kind| busy(kind, "sixteen") * 100.0)),
            ),
        ),
        (
            "6.5: 16 machines for 16 users are as good as any number; 8 are worse, and better than none",
            (limits[1] / limits[2] - 1.0).abs() < 0.05 && limits[0] < limits[1] && limits[0] > 1.0,
            list(&limits),
        ),
    ];
    let mut text =
        "## What it says in words\n\n| section | here | so? |\n|---|---|---|\n".to_owned();
    for (sentence, is_so, figures) in all {
        let so = if is_so { "yes" } else { "**no**" };
        let _ = writeln!(text, "| {sentence} | {figures} | {so} |");
    }
    text + "\n"
}

fn list(values: &[f64]) -> String {
    let values: Vec<_> = values.iter().map(|value| format!("{value:.2}")).collect();
    values.join(", ")
}

/// Each setting except table 2.
fn curves(figures: &[Figure], prefix: &str) -> String {
    let mut text = "## All settings\n\n\
         | | median improvement | mean | pessimistic, s | optimistic, s | later, % | load | of it aborted | runs |\n\
         |---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for figure in figures {
        let Some(name) = figure.name.strip_suffix(".improvement") else {
            continue;
        };
        let of = |what: &str| find(figures, &format!("{name}.{what}"));
        let Some(worse) = of("worse") else {
            continue;
        };
        let cell = |what: &str| of(what).map_or_else(|| "-".to_owned(), shown);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {:.1} | {} | {} | {} |",
            name.strip_prefix(prefix).unwrap_or(name),
            shown(figure),
            cell("improvement.mean"),
            cell("pessimistic"),
            cell("optimistic"),
            worse.interval.value * 100.0,
            cell("load"),
            cell("load.aborted"),
            figure.runs,
        );
    }
    text + "\n"
}

fn of_builds(builds: &Builds) -> String {
    let mut text = format!(
        "# The same with times measured here\n\n\
         Of `make builds ARGS='--json FILE'`, commit {}: builds after an edit. A command costs {:.0} ms more concealed, a mandate {:.0} ms \
         (medians); out-of-date times are the paper's unless the file has some.\n\n\
         | | median | mean |\n|---|---|---|\n",
        builds.commit,
        builds.conceal() * 1e3,
        builds.mandate() * 1e3,
    );
    for (what, median, mean) in builds.figures() {
        let _ = writeln!(text, "| {what} | {median:.2} | {mean:.2} |");
    }
    text + "\n"
}

fn shown(figure: &Figure) -> String {
    let Figure { interval, .. } = figure;
    match interval.half.is_finite() {
        true => format!("{:.2} ± {:.2}", interval.value, interval.half),
        false => format!("{:.2}", interval.value),
    }
}

fn percent(off: Option<f64>) -> String {
    off.map_or_else(|| "-".to_owned(), |off| format!("{:+.1} %", off * 100.0))
}

#[cfg(test)]
mod tests {
    use make_model::Interval;

    use super::*;

    fn figure(name: &str, value: f64, paper: Option<f64>) -> Figure {
        Figure {
            name: name.to_owned(),
            unit: "",
            interval: Interval { value, half: 0.01 },
            runs: 42,
            paper,
        }
    }

    fn report() -> Report {
        Report {
            paper: vec![
                figure("users.5.improvement", 1.75, Some(1.72)),
                figure("users.5.worse", 0.02, None),
                figure("table_2.1.0.improvement", 1.80, Some(1.72)),
            ],
            measured: Vec::new(),
            builds: None,
            costs: Vec::new(),
            precision: Precision {
                within: 0.03,
                runs: 100,
            },
            took: Duration::from_secs(7),
        }
    }

    #[test]
    fn figure_is_printed_beside_papers() {
        let text = report().tables();
        assert!(text.contains("| `users.5.improvement` | 1.75 ± 0.01 | 1.72 | +1.7 % |"));
        assert!(text.contains("| 1 | 1.80 (1.72, +4.7 %) |"), "{text}");
        assert!(text.contains("| users.5 | 1.75 ± 0.01 | - | - | - | 2.0 | - | - | 42 |"));
        // A sentence about a missing figure does not hold.
        assert!(text.contains("| NaN, NaN, NaN | **no** |"));
    }

    #[test]
    fn both_files_are_written() -> Result<()> {
        let directory = tempfile::tempdir()?;
        report().write(directory.path())?;
        let read = |name: &str| fs::read_to_string(directory.path().join(name));
        assert!(read("SIMULATION.md")?.contains("± 3 % with 95 %"));
        let json: Value = serde_json::from_str(&read("simulation.json")?)?;
        assert_eq!(json["figures"][0]["paper"], 1.72);
        assert_eq!(json["figures"][0]["spread"], 0.01);
        Ok(())
    }
}
