//! The results of the measurements, for people and for scripts.

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Measured;
use super::figure::Figure;
use harness::machine::{Machine, commit};

/// The results of a subject, with the origin.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Part {
    subject: String,
    commit: String,
    machine: Machine,
    quick: bool,
    seconds: u64,
    /// In a separate list in `results.json`, flat, for scripts.
    #[serde(skip)]
    figures: Vec<Figure>,
    notes: Vec<String>,
    /// Names of SVG files.
    plots: Vec<String>,
    /// The reason why the measurement failed.
    failed: Option<String>,
    #[serde(skip)]
    drawn: Vec<(String, String)>,
}

impl Part {
    pub(super) fn new(
        subject: String,
        outcome: Result<Measured>,
        quick: bool,
        took: Duration,
    ) -> Self {
        let (measured, failed) = match outcome {
            Ok(measured) => (measured, None),
            Err(error) => (Measured::default(), Some(format!("{error:#}"))),
        };
        Self {
            subject,
            commit: commit(),
            machine: Machine::this(),
            quick,
            seconds: took.as_secs(),
            figures: measured.figures,
            notes: measured.notes,
            plots: measured
                .plots
                .iter()
                .map(|(name, _)| name.clone())
                .collect(),
            failed,
            drawn: measured.plots,
        }
    }

    /// The origin of the figures, for people: the words after `Commit`.
    fn origin(&self) -> String {
        let quick = if self.quick {
            ", with --quick: too short to mean much"
        } else {
            ""
        };
        format!("{}, {}{quick}", self.commit, self.machine)
    }
}

/// All subjects, in order.
pub(super) struct Report {
    parts: Vec<Part>,
}

impl Report {
    pub(super) fn new(parts: Vec<Part>) -> Self {
        Self { parts }
    }

    fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.parts.iter().flat_map(|part| &part.figures)
    }

    /// Whether every promise was kept.
    pub(super) fn sound(&self) -> bool {
        !self.figures().any(|f| f.promise && f.met() == Some(false))
    }

    /// Whether everything could be measured.
    pub(super) fn whole(&self) -> bool {
        self.parts.iter().all(|part| part.failed.is_none())
    }

    /// The figures in a table, as Markdown.
    pub(super) fn table(&self) -> String {
        let mut text = String::from(
            "| figure | median | spread | runs | aim | met |\n|---|---|---|---|---|---|\n",
        );
        for figure in self.figures() {
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

    /// Writes `results.json`, `RESULTS.md` and the plots. Results of other subjects stay; `order` is the list of all
    /// subjects. A subject whose measurement failed now keeps the earlier results.
    pub(super) fn write(self, directory: &Path, order: &[String]) -> Result<()> {
        fs::create_dir_all(directory)?;
        let save = |name: &str, text: &str| {
            let path = directory.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        let before = read(&directory.join("results.json"))?;
        for (name, plot) in self.parts.iter().flat_map(|part| &part.drawn) {
            save(name, plot)?;
        }
        let all = self.beside(before, order);
        save(
            "results.json",
            &format!("{}\n", serde_json::to_string_pretty(&all.to_json()?)?),
        )?;
        save("RESULTS.md", &all.for_people())
    }

    fn beside(self, before: Vec<Part>, order: &[String]) -> Self {
        let of = |parts: &[Part], name: &String| parts.iter().find(|p| p.subject == *name).cloned();
        let parts = order.iter().filter_map(|name| {
            let (now, before) = (of(&self.parts, name), of(&before, name));
            let has_failed = now.as_ref().is_none_or(|part| part.failed.is_some());
            if has_failed { before.or(now) } else { now }
        });
        Self::new(parts.collect())
    }

    fn to_json(&self) -> Result<Value> {
        let mut results = Vec::new();
        for part in &self.parts {
            for figure in &part.figures {
                let mut figure = figure.to_json();
                figure["subject"] = json!(part.subject);
                figure["commit"] = json!(part.commit);
                results.push(figure);
            }
        }
        Ok(json!({ "subjects": serde_json::to_value(&self.parts)?, "results": results }))
    }

    fn for_people(&self) -> String {
        let mut text = format!(
            "# Results of `make bench`\n\n\
             Written by the program. {}\n\n\
             Client and server are two network namespaces on one bridge, so both and the \
             logger share these cores. Where the logger is on another host (`link`, `estimate`, \
             `compare`), that is a third one on a bridge of its own. A ratio is a protected run \
             by the plain run just before it, on the same host and port; plain and protected runs alternate. The \
             value is the median, the spread its least and greatest.\n\n{}",
            self.origins(),
            self.table()
        );
        for note in self.parts.iter().flat_map(|part| &part.notes) {
            let _ = writeln!(text, "\n{note}");
        }
        if !self.whole() {
            text.push_str("\n## What could not be measured\n\n");
        }
        for part in &self.parts {
            if let Some(why) = &part.failed {
                let first = why.lines().next().unwrap_or_default();
                let _ = writeln!(text, "- `{}`: {first}", part.subject);
            }
        }
        text.push_str("\n## Aims that are missed\n\n");
        let missed: Vec<_> = self.figures().filter(|f| f.met() == Some(false)).collect();
        if missed.is_empty() {
            text.push_str("None.\n");
        }
        for figure in missed {
            let _ = writeln!(text, "- `{}`: {}", figure.name, figure.bound);
        }
        for name in self.parts.iter().flat_map(|part| &part.plots) {
            let _ = writeln!(text, "\n![{name}]({name})");
        }
        text.push_str("\n## How each was measured\n\n");
        for figure in self.figures() {
            let _ = writeln!(text, "- `{}`: {}", figure.name, figure.how);
        }
        text
    }

    /// Which commits on which machines were measured, and for how long.
    fn origins(&self) -> String {
        let mut origins: Vec<(String, Vec<&str>)> = Vec::new();
        for part in &self.parts {
            let origin = part.origin();
            match origins.iter_mut().find(|(other, _)| *other == origin) {
                Some((_, subjects)) => subjects.push(&part.subject),
                None => origins.push((origin, vec![&part.subject])),
            }
        }
        let seconds: u64 = self.parts.iter().map(|part| part.seconds).sum();
        let said: Vec<_> = match &origins[..] {
            [(origin, _)] => vec![format!("Commit {origin}")],
            several => several
                .iter()
                .map(|(origin, subjects)| format!("{}: commit {origin}", subjects.join(", ")))
                .collect(),
        };
        format!("{}; {seconds} s.", said.join("; "))
    }
}

/// The earlier results, if any.
fn read(path: &Path) -> Result<Vec<Part>> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.with_context(|| format!("cannot read {}", path.display()))?,
    };
    parts(&text).with_context(|| {
        let path = path.display();
        format!("{path} is not what `make bench` writes: move it away, or name another --output")
    })
}

fn parts(text: &[u8]) -> Result<Vec<Part>> {
    #[derive(Deserialize)]
    struct FigureOfSubject {
        subject: String,
        #[serde(flatten)]
        figure: Figure,
    }
    #[derive(Deserialize)]
    struct Results {
        subjects: Vec<Part>,
        results: Vec<FigureOfSubject>,
    }
    let Results {
        subjects: mut parts,
        results,
    } = serde_json::from_slice(text)?;
    for FigureOfSubject { subject, figure } in results {
        let Some(part) = parts.iter_mut().find(|part| part.subject == subject) else {
            bail!("nothing is known of the subject {subject}");
        };
        part.figures.push(figure);
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::super::figure::Aim;
    use super::*;

    fn part(subject: &str, figures: Vec<Figure>) -> Part {
        let measured = Measured {
            figures,
            plots: vec![(format!("{subject}.svg"), "<svg/>".to_owned())],
            notes: vec![format!("A note of {subject}.")],
        };
        Part::new(
            subject.to_owned(),
            Ok(measured),
            true,
            Duration::from_secs(1),
        )
    }

    fn failed(subject: &str) -> Part {
        let why = anyhow::anyhow!("no answer\nat all");
        Part::new(subject.to_owned(), Err(why), true, Duration::from_secs(1))
    }

    fn x(value: f64) -> Vec<Figure> {
        vec![Figure::of("x", "ms", &[value], "")]
    }

    #[test]
    fn missed_aim_is_explained_broken_promise_fails() {
        let slow = Figure::of("slow", "", &[0.5], "by hand").aim(Aim::AtLeast(0.9), "the copy");
        let slow = Report::new(vec![part("a", vec![slow])]);
        assert!(slow.for_people().contains("- `slow`: the copy"));
        assert!(slow.sound());
        let lost = Figure::of("alive", "", &[9.0], "")
            .aim(Aim::AtLeast(10.0), "")
            .promise();
        assert!(!Report::new(vec![part("a", vec![lost])]).sound());
    }

    #[test]
    fn unmeasured_subject_is_reported_others_stay() {
        let report = Report::new(vec![part("a", x(1.5)), failed("echo")]);
        assert!(!report.whole());
        let text = report.for_people();
        assert!(text.contains("- `echo`: no answer\n") && text.contains("| `x` | 1.500 ms |"));
    }

    #[test]
    fn both_files_are_written() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let order = ["a".to_owned()];
        Report::new(vec![part("a", x(1.5))]).write(directory.path(), &order)?;
        let json = fs::read(directory.path().join("results.json"))?;
        let json: Value = serde_json::from_slice(&json)?;
        assert_eq!(json["results"][0]["value"], 1.5);
        assert_eq!(json["results"][0]["commit"], json["subjects"][0]["commit"]);
        let text = fs::read_to_string(directory.path().join("RESULTS.md"))?;
        assert!(text.contains("| `x` | 1.500 ms |"));
        assert!(text.contains("\nA note of a.\n") && text.contains("![a.svg](a.svg)"));
        assert_eq!(
            fs::read_to_string(directory.path().join("a.svg"))?,
            "<svg/>"
        );
        Ok(())
    }

    #[test]
    fn unmeasured_subjects_keep_results() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let order = ["a", "b", "c"].map(str::to_owned);
        let write = |parts| Report::new(parts).write(directory.path(), &order);
        write(vec![part("a", x(1.5)), failed("b")])?;
        write(vec![part("b", x(2.5)), failed("c")])?;
        write(vec![failed("a"), part("b", x(3.5))])?;
        let parts = read(&directory.path().join("results.json"))?;
        let values: Vec<_> = parts
            .iter()
            .map(|part| (part.subject.as_str(), part.figures.first().map(|f| f.value)))
            .collect();
        assert_eq!(values, [("a", Some(1.5)), ("b", Some(3.5)), ("c", None)]);
        let text = fs::read_to_string(directory.path().join("RESULTS.md"))?;
        assert!(text.contains("A note of a.") && text.contains("![b.svg](b.svg)"));
        assert!(text.contains("- `c`: no answer") && !text.contains("- `a`: no answer"));
        Ok(())
    }

    #[test]
    fn foreign_file_is_not_overwritten() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("results.json");
        fs::write(&path, "{}")?;
        let written = Report::new(Vec::new()).write(directory.path(), &[]);
        assert!(written.is_err_and(|error| error.to_string().contains("--output")));
        assert_eq!(fs::read_to_string(path)?, "{}");
        Ok(())
    }
}
