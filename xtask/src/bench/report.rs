//! What was measured, for people and for scripts.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use super::Measured;
use super::figure::Figure;
use crate::machine::{Machine, commit};

pub(super) struct Report {
    measured: Measured,
    quick: bool,
    took: Duration,
    commit: String,
    machine: Machine,
}

impl Report {
    pub(super) fn new(measured: Measured, quick: bool, took: Duration) -> Self {
        Self {
            measured,
            quick,
            took,
            commit: commit(),
            machine: Machine::this(),
        }
    }

    /// Whether every promise was kept.
    pub(super) fn sound(&self) -> bool {
        let broken = |f: &&Figure| f.promise && f.met() == Some(false);
        !self.measured.figures.iter().any(|f| broken(&f))
    }

    /// Whether everything could be measured.
    pub(super) fn whole(&self) -> bool {
        self.measured.failed.is_empty()
    }

    /// The figures in a table, as Markdown.
    pub(super) fn table(&self) -> String {
        let mut text = String::from(
            "| figure | median | spread | runs | aim | met |\n|---|---|---|---|---|---|\n",
        );
        for figure in &self.measured.figures {
            let aim = figure.aim.map_or_else(String::new, |aim| aim.to_string());
            let met = match figure.met() {
                None => "",
                Some(true) => "yes",
                Some(false) => "**no**",
            };
            let (value, spread) = (figure.shown(), figure.spread());
            let (name, runs) = (&figure.name, figure.samples);
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "| `{name}` | {value} | {spread} | {runs} | {aim} | {met} |"
            );
        }
        text
    }

    /// Writes `results.json`, `RESULTS.md` and the plots.
    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        let figures: Vec<_> = self.measured.figures.iter().map(Figure::to_json).collect();
        let json = json!({
            "commit": self.commit,
            "machine": self.machine.to_json(),
            "quick": self.quick,
            "seconds": self.took.as_secs(),
            "results": figures,
            "not_measured": self.measured.failed.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        });
        let save = |name: &str, text: String| {
            let path = directory.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        save(
            "results.json",
            format!("{}\n", serde_json::to_string_pretty(&json)?),
        )?;
        for (name, plot) in &self.measured.plots {
            save(name, plot.clone())?;
        }
        save("RESULTS.md", self.for_people())
    }

    fn for_people(&self) -> String {
        let Machine {
            cores,
            cpu,
            kernel,
            memory_mib,
        } = &self.machine;
        let quick = if self.quick {
            " with --quick: too short to mean much"
        } else {
            ""
        };
        let (commit, seconds) = (&self.commit, self.took.as_secs());
        let mut text = format!(
            "# Results of `make bench`\n\n\
             Written by the program. Commit {commit}, Linux {kernel}, {cores} cores ({cpu}), \
             {memory_mib} MiB; {seconds} s{quick}.\n\n\
             Client and server are two network namespaces on one bridge, so both and the \
             logger share these cores. Where the logger is on another host (`link`, `estimate`, \
             `compare`), that is a third one on a bridge of its own. A ratio is a protected run \
             by the plain run just before it, on the same host and port; plain and protected runs alternate. The \
             value is the median, the spread its least and greatest.\n\n{}",
            self.table()
        );
        for note in &self.measured.notes {
            let _ = writeln!(text, "\n{note}");
        }
        if !self.whole() {
            text.push_str("\n## What could not be measured\n\n");
        }
        for (name, why) in &self.measured.failed {
            let first = why.lines().next().unwrap_or_default();
            let _ = writeln!(text, "- `{name}`: {first}");
        }
        text.push_str("\n## Aims that are missed\n\n");
        let missed: Vec<_> = self
            .measured
            .figures
            .iter()
            .filter(|f| f.met() == Some(false))
            .collect();
        if missed.is_empty() {
            text.push_str("None.\n");
        }
        for figure in missed {
            let _ = writeln!(text, "- `{}`: {}", figure.name, figure.bound);
        }
        for (name, _) in &self.measured.plots {
            let _ = writeln!(text, "\n![{name}]({name})");
        }
        text.push_str("\n## How each was measured\n\n");
        for figure in &self.measured.figures {
            let _ = writeln!(text, "- `{}`: {}", figure.name, figure.how);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::figure::Aim;
    use super::*;

    fn report(figures: Vec<Figure>) -> Report {
        let plots = vec![("a.svg".to_owned(), "<svg/>".to_owned())];
        let notes = vec!["A note.".to_owned()];
        let measured = Measured {
            figures,
            plots,
            notes,
            failed: Vec::new(),
        };
        Report::new(measured, true, Duration::from_secs(1))
    }

    #[test]
    fn a_missed_aim_is_explained_and_a_broken_promise_is_not_sound() {
        let slow = Figure::of("slow", "", &[0.5], "by hand").aim(Aim::AtLeast(0.9), "the copy");
        let slow = report(vec![slow]);
        assert!(slow.for_people().contains("- `slow`: the copy"));
        assert!(slow.sound());
        let lost = Figure::of("alive", "", &[9.0], "")
            .aim(Aim::AtLeast(10.0), "")
            .promise();
        assert!(!report(vec![lost]).sound());
    }

    #[test]
    fn what_could_not_be_measured_is_told_and_the_rest_stays() {
        let mut report = report(vec![Figure::of("x", "ms", &[1.5], "")]);
        assert!(report.whole());
        let failed = ("echo".to_owned(), "no answer\nat all".to_owned());
        report.measured.failed.push(failed);
        assert!(!report.whole());
        let text = report.for_people();
        assert!(text.contains("- `echo`: no answer\n") && text.contains("| `x` | 1.500 ms |"));
    }

    #[test]
    fn both_files_are_written() -> Result<()> {
        let directory = tempfile::tempdir()?;
        report(vec![Figure::of("x", "ms", &[1.5], "")]).write(directory.path())?;
        let json = fs::read(directory.path().join("results.json"))?;
        let json: serde_json::Value = serde_json::from_slice(&json)?;
        assert_eq!(json["results"][0]["value"], 1.5);
        let text = fs::read_to_string(directory.path().join("RESULTS.md"))?;
        assert!(text.contains("| `x` | 1.500 ms |"));
        assert!(text.contains("\nA note.\n") && text.contains("![a.svg](a.svg)"));
        assert_eq!(
            fs::read_to_string(directory.path().join("a.svg"))?,
            "<svg/>"
        );
        Ok(())
    }
}
