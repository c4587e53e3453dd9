//! A workload from the measurements of `make builds ARGS='--json FILE'`.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use make_model::{Setting, Times, Workload, median};
use serde::Deserialize;

/// The fields that are read.
#[derive(Debug, Deserialize)]
pub(super) struct Builds {
    pub(super) commit: String,
    steps: Vec<MeasuredBuild>,
    /// Seconds between changes and requests, if measured; otherwise the paper's times apply.
    #[serde(default)]
    out_of_date: Vec<f64>,
}

#[derive(Debug, Deserialize)]
struct MeasuredBuild {
    /// Whether a file was edited before the build; without an edit no user would wait for the build.
    edited: bool,
    pause: String,
    make: f64,
    ours: f64,
    unasked: Option<f64>,
    commands: Vec<f64>,
    bytes: u64,
}

impl Builds {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let this: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is not what builds --json writes", path.display()))?;
        ensure!(
            this.edits().next().is_some(),
            "{} has no build after an edit",
            path.display()
        );
        Ok(this)
    }

    /// Steps after an edit for which there was something to do.
    fn edits(&self) -> impl Iterator<Item = &MeasuredBuild> {
        let steps = self.steps.iter();
        steps.filter(|step| step.edited && !step.commands.is_empty())
    }

    /// A workload as in the paper: the number of commands, and times by that number.
    pub(super) fn workload(&self) -> Workload {
        let counts = self.edits().map(|step| step.commands.len());
        let all = || Times::Measured(self.of(&|_| true));
        let times = |class: usize| match self.of(&|count| count.clamp(1, 3) == class) {
            none if none.is_empty() => all(),
            times => Times::Measured(times),
        };
        Workload {
            commands: make_model::Commands::Measured(counts.collect()),
            times: [times(1), times(2), times(3)],
            out_of_date: match &self.out_of_date[..] {
                [] => Workload::paper().out_of_date,
                times => Times::Measured(times.to_vec()),
            },
        }
    }

    /// Times of the commands of builds whose number of commands `counts` accepts.
    fn of(&self, counts: &dyn Fn(usize) -> bool) -> Vec<f64> {
        let edits = self.edits().filter(|step| counts(step.commands.len()));
        edits.flat_map(|step| step.commands.clone()).collect()
    }

    /// With the costs that were measured.
    pub(super) fn setting(&self, setting: Setting) -> Setting {
        Setting {
            conceal: self.conceal(),
            mandate: self.mandate(),
            ..setting
        }
    }

    /// Seconds that concealment adds to a command; the median over the builds.
    pub(super) fn conceal(&self) -> f64 {
        let each = self.edits().filter_map(|step| {
            let commands = u32::try_from(step.commands.len()).ok()?;
            Some((step.unasked? - step.make) / f64::from(commands))
        });
        let median = median(&each.collect::<Vec<_>>());
        if median.is_nan() {
            0.0
        } else {
            median.max(0.0)
        }
    }

    /// Seconds from the question to the end where all was finished; the median over the builds.
    pub(super) fn mandate(&self) -> f64 {
        let finished = self
            .edits()
            .filter(|step| step.pause == "long" && step.unasked.is_some());
        let median = median(&finished.map(|step| step.ours).collect::<Vec<_>>());
        if median.is_nan() { 0.0 } else { median }
    }

    /// Median and mean: commands of a build, seconds of a command, kilobytes that a build makes.
    pub(super) fn figures(&self) -> [(&'static str, f64, f64); 3] {
        let of = |what, values: Vec<f64>| (what, median(&values), make_model::mean(&values));
        let float = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        let bytes = |step: &MeasuredBuild| {
            float(usize::try_from(step.bytes).unwrap_or(usize::MAX)) / 1024.0
        };
        let counts = self.edits().map(|step| float(step.commands.len()));
        [
            of("commands of a build", counts.collect()),
            of("seconds of a command", self.of(&|_| true)),
            of("KiB that a build makes", self.edits().map(bytes).collect()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn builds() -> Builds {
        let step = |edited: bool, commands: &[f64], unasked: Option<f64>| {
            json!({
                "project": "p", "step": "s", "edited": edited, "pause": "long", "make": 2.0, "ours": 0.01,
                "unasked": unasked, "commands": commands, "bytes": 2048,
            })
        };
        let steps = [
            step(true, &[1.0, 0.5], Some(2.4)),
            step(true, &[3.0], None),
            step(true, &[], Some(9.0)),
            step(false, &[7.0], Some(9.0)),
        ];
        serde_json::from_value(json!({"commit": "c", "steps": steps})).unwrap()
    }

    #[test]
    fn workload_uses_builds_after_edits() {
        let workload = builds().workload();
        assert_eq!(
            workload.commands,
            make_model::Commands::Measured(vec![2, 1])
        );
        let [one, two, more] = workload.times;
        assert_eq!(one, Times::Measured(vec![3.0]));
        assert_eq!(two, Times::Measured(vec![1.0, 0.5]));
        // There are none: of all.
        assert_eq!(more, Times::Measured(vec![1.0, 0.5, 3.0]));
        assert_eq!(workload.out_of_date, Workload::paper().out_of_date);
    }

    #[test]
    fn costs_come_from_finished_builds() {
        let setting = builds().setting(Setting::baseline(5));
        assert!((setting.conceal - 0.2).abs() < 1e-9);
        assert!((setting.mandate - 0.01).abs() < 1e-9);
        let [commands, _, kilobytes] = builds().figures();
        assert!((commands.2 - 1.5).abs() < 1e-9 && (kilobytes.1 - 2.0).abs() < 1e-9);
    }
}
