//! The simulated settings: those of sections 6.1 to 6.6.

use anyhow::Result;
use make_model::{Measured, Precision, Setting, Workload, measure};

use super::figure::Figure;
use super::measured::Builds;
use super::published;
use harness::task::Interrupt;

/// Speeds of the machines, and factors of the out-of-date times.
pub(super) const SPEEDS: [f64; 6] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
pub(super) const SCALES: [f64; 6] = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0];
/// Mean think times, minutes.
pub(super) const THINK: [f64; 4] = [1.5, 3.0, 6.0, 12.0];
/// Aborted commands, in percent of the needed commands.
pub(super) const ABORTED: [u8; 3] = [0, 39, 72];
/// Machines for 16 users.
pub(super) const LIMITS: [Option<usize>; 3] = [Some(8), Some(16), None];
/// Any number of users: the number does not matter where each user has a machine.
const ANY_USERS: usize = 5;
const MANY_USERS: usize = 16;

/// All settings of a workload.
pub(super) struct Plan {
    pub(super) name: &'static str,
    /// Prefix of the names of the figures.
    prefix: &'static str,
    workload: Workload,
    baseline: Setting,
    /// Whether the workload is the paper's.
    is_paper: bool,
}

impl Plan {
    pub(super) fn paper() -> Self {
        Self {
            name: "the paper's workload",
            prefix: "",
            workload: Workload::paper(),
            baseline: Setting::baseline(ANY_USERS),
            is_paper: true,
        }
    }

    pub(super) fn measured(builds: &Builds) -> Self {
        Self {
            name: "times measured here",
            prefix: "measured.",
            workload: builds.workload(),
            baseline: builds.setting(Setting::baseline(ANY_USERS)),
            is_paper: false,
        }
    }

    /// Simulates all settings, in order.
    pub(super) fn simulate(
        &self,
        precision: Precision,
        seed: u64,
        interrupt: &Interrupt,
    ) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        for (name, setting) in self.settings() {
            interrupt.check()?;
            let measured = measure(&self.workload, &setting, precision, seed);
            println!(
                "  {name:24} {:6.2} ± {:.2} ({} runs)",
                measured.improvement.value, measured.improvement.half, measured.runs
            );
            figures.extend(self.figures(&name, &setting, &measured));
        }
        Ok(figures)
    }

    fn settings(&self) -> Vec<(String, Setting)> {
        let base = self.baseline;
        let plenty = Setting {
            machines: None,
            ..base
        };
        let many = Setting {
            users: MANY_USERS,
            ..plenty
        };
        let mut all = Vec::new();
        for users in [1, 5, 10] {
            all.push((format!("users.{users}"), Setting { users, ..base }));
        }
        for minutes in THINK {
            let think = minutes * 60.0;
            all.push((format!("think.{minutes}"), Setting { think, ..base }));
        }
        for speed in SPEEDS {
            all.push((format!("speed.{speed}"), Setting { speed, ..plenty }));
        }
        for out_of_date in SCALES {
            let setting = Setting {
                out_of_date,
                ..plenty
            };
            all.push((format!("out_of_date.{out_of_date}"), setting));
        }
        for machines in LIMITS {
            for percent in ABORTED {
                let setting = Setting {
                    machines,
                    aborted: f64::from(percent) / 100.0,
                    ..many
                };
                let machines = limit(machines);
                all.push((format!("machines.{machines}.aborted.{percent}"), setting));
            }
        }
        for (users, _) in published::TABLE_2 {
            for fast in published::FAST {
                let setting = Setting {
                    users,
                    fast,
                    ..base
                };
                all.push((format!("table_2.{users}.{fast}"), setting));
            }
        }
        all
    }

    fn figures(&self, name: &str, setting: &Setting, measured: &Measured) -> Vec<Figure> {
        let figure = |what: &str, unit: &'static str, interval| Figure {
            name: format!("{}{name}.{what}", self.prefix),
            unit,
            interval,
            runs: measured.runs,
            paper: None,
        };
        let paper = |value: Option<f64>| value.filter(|_| self.is_paper);
        let is_baseline = name == "users.5";
        let improvement = Figure {
            paper: paper(said(name, setting)),
            ..figure("improvement", "", measured.improvement)
        };
        if name.starts_with("table_2.") {
            return vec![improvement];
        }
        let mean = is_baseline.then_some(published::BASELINE.1);
        let mut all = vec![
            improvement,
            Figure {
                paper: paper(mean),
                ..figure("improvement.mean", "", measured.mean)
            },
            figure("pessimistic", "s", measured.pessimistic),
            figure("optimistic", "s", measured.optimistic),
            figure("worse", "", measured.worse),
            Figure {
                paper: paper(is_baseline.then_some(published::EXTRA_LOAD)),
                ..figure("load", "", measured.load)
            },
            Figure {
                paper: paper(is_baseline.then_some(published::ABORTED)),
                ..figure("load.aborted", "", measured.aborted)
            },
        ];
        if setting.machines.is_none() && setting.users == MANY_USERS {
            for (kind, minutes) in ["pessimistic", "optimistic"]
                .iter()
                .zip(&measured.utilization)
            {
                for (what, interval) in busy(minutes) {
                    all.push(figure(&format!("busy.{kind}.{what}"), "", interval));
                }
            }
        }
        all
    }
}

/// How a limit is called.
pub(super) fn limit(machines: Option<usize>) -> String {
    machines.map_or_else(|| "all".to_owned(), |machines| machines.to_string())
}

/// The paper's median improvement, if published.
fn said(name: &str, setting: &Setting) -> Option<f64> {
    let (kind, _) = name.split_once('.')?;
    match kind {
        "users" if setting.users == ANY_USERS => Some(published::BASELINE.0),
        "speed" => published::by_speed(setting.speed),
        "table_2" => {
            let at = published::FAST.iter().position(|it| *it == setting.fast)?;
            let mut rows = published::TABLE_2.iter();
            let (_, row) = rows.find(|(users, _)| *users == setting.users)?;
            Some(row[at])
        }
        _ => None,
    }
}

/// Statistics of the number of busy machines: mean and deviation, the share of minutes with none, and with at least 16
/// (figure 16). Successive minutes depend on each other, so these values have no intervals.
fn busy(minutes: &[usize]) -> [(&'static str, make_model::Interval); 4] {
    let float = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    let all = float(minutes.iter().sum());
    let weighed = |weight: &dyn Fn(f64) -> f64| {
        let minutes = minutes.iter().enumerate();
        minutes
            .map(|(busy, count)| weight(float(busy)) * float(*count))
            .sum::<f64>()
            / all
    };
    let mean = weighed(&|busy| busy);
    let variance = weighed(&|busy| (busy - mean).powi(2));
    [
        ("mean", mean),
        ("deviation", variance.sqrt()),
        ("none", weighed(&|busy| f64::from(u8::from(busy < 0.5)))),
        ("sixteen", weighed(&|busy| f64::from(u8::from(busy > 15.5)))),
    ]
    .map(|(what, value)| {
        (
            what,
            make_model::Interval {
                value,
                half: f64::NAN,
            },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paper_figures_match_their_settings() {
        let said: Vec<_> = Plan::paper()
            .settings()
            .iter()
            .filter_map(|(name, setting)| Some((name.clone(), said(name, setting)?)))
            .collect();
        assert_eq!(said.len(), 1 + 3 + 36);
        let of = |name: &str| said.iter().find(|(it, _)| it == name).map(|it| it.1);
        assert_eq!(of("users.5"), Some(1.72));
        assert_eq!(of("speed.8"), Some(5.1));
        assert_eq!(of("table_2.10.2"), Some(2.24));
        assert_eq!(of("machines.16.aborted.39"), None);
    }

    #[test]
    fn busy_machines_are_summarized() {
        let mut minutes = vec![0; 18];
        minutes[0] = 1;
        minutes[2] = 2;
        minutes[16] = 1;
        let [mean, _, none, sixteen] = busy(&minutes).map(|(_, it)| it.value);
        assert!((mean - 5.0).abs() < 1e-9);
        assert!((none - 0.25).abs() < 1e-9 && (sixteen - 0.25).abs() < 1e-9);
    }
}
