//! Cost of concealed commands. A command that is requested while it runs continues, or begins anew as in plain make,
//! whichever ends sooner.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

use crate::{command::Command, job::Job};

/// Processor time of a request to the file system in the asking command, which counts as work of the command.
const ASK_COST: Duration = Duration::from_micros(40);
/// Processor time of a request to the file system in the answering process.
const ANSWER_COST: Duration = Duration::from_micros(25);
/// Processor time of the start of a concealed command: a `cp` of 4 ms takes 8 to 15 ms.
const START_COST: Duration = Duration::from_millis(5);
/// A command with at most this concealed cost, in percent of the plain cost, is not begun anew.
const TOLERATED_COST_PERCENT: u32 = 125;
/// Most commands with a known cost.
const COST_TABLE_LIMIT: usize = 10_000;

/// Cost of a command so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    /// Processor time without concealment.
    plain: Duration,
    /// Processor time with the answers to the kernel.
    concealed: Duration,
}

impl Cost {
    /// Cost of a command with this processor time and this number of answers.
    fn of(worked: Duration, answers: u64) -> Self {
        let answers = u32::try_from(answers).unwrap_or(u32::MAX);
        // Some requests of the kernel take less than others.
        let asking = ASK_COST.saturating_mul(answers);
        let plain = worked.saturating_sub(asking).max(worked / 4);
        Self {
            plain,
            concealed: worked.saturating_add(ANSWER_COST.saturating_mul(answers)),
        }
    }

    /// Whether the rest takes longer than a whole plain run. `whole` is the concealed cost of an earlier run. Without
    /// an earlier run the rest is unknown, and the client should not wait longer than for plain make.
    fn is_faster_anew(self, whole: Option<Duration>) -> bool {
        if self.plain < START_COST {
            return true;
        }
        if self.concealed * 100 <= self.plain * TOLERATED_COST_PERCENT {
            return false;
        }
        let Some(whole) = whole.filter(|whole| *whole >= self.concealed) else {
            return true;
        };
        let plain = self.plain.as_secs_f64() / self.concealed.as_secs_f64();
        whole - self.concealed > whole.mul_f64(plain)
    }
}

/// Highest concealed cost of each command.
#[derive(Debug, Default)]
pub(crate) struct Costs(HashMap<u64, Duration>);

impl Costs {
    /// Stores the cost of a finished job. A run without effects says nothing about a run with effects.
    pub(crate) fn note(&mut self, job: &Job) {
        let worked = job.progress().worked;
        let effects = job.concealment.with_encapsulation(|it| it.effects().len());
        if worked.is_zero() || effects == Some(0) {
            return;
        }
        if self.0.len() >= COST_TABLE_LIMIT {
            self.0.clear();
        }
        let cost = Cost::of(worked, job.asked()).concealed;
        let most = self.0.entry(key(&job.command)).or_default();
        *most = cost.max(*most);
    }

    /// Highest concealed cost of the command.
    pub(crate) fn of(&self, command: &Command) -> Option<Duration> {
        self.0.get(&key(command)).copied()
    }
}

fn key(command: &Command) -> u64 {
    let mut sum = DefaultHasher::new();
    (&command.program, &command.arguments, &command.directory).hash(&mut sum);
    sum.finish()
}

impl Job {
    /// Whether the client waits for a shorter time if the command begins anew, not concealed.
    /// `before` is the cost of an earlier run.
    pub(crate) fn is_faster_anew(&self, before: Option<Duration>) -> bool {
        if self.is_hardly_begun() {
            return true;
        }
        if self.has_parts() || self.progress().ended.is_some() {
            return false;
        }
        // The rest has no concealment cost.
        if self.waiting().is_empty() && !self.works() {
            return false;
        }
        let (answers, working) = (self.asked(), self.working());
        Cost::of(working.time, answers).is_faster_anew(before)
    }

    /// Least time that a user would have waited for the job.
    pub(crate) fn plainly(&self) -> Duration {
        let progress = self.progress();
        let took = progress.ended.map_or(Duration::ZERO, |(_, took)| took);
        waited_for(progress.worked, took, self.asked())
    }
}

/// Least time that a user waits for a plain run. Arguments: processor time, duration and number of answers of the
/// concealed run.
fn waited_for(worked: Duration, took: Duration, answers: u64) -> Duration {
    let cost = Cost::of(worked, answers);
    let answers = u32::try_from(answers).unwrap_or(u32::MAX);
    // Threads of one command work at the same time.
    let took = took.saturating_sub((ASK_COST + ANSWER_COST).saturating_mul(answers));
    cost.plain.min(took).saturating_sub(START_COST)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Cost, waited_for};

    const fn milliseconds(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn slightly_slower_command_continues() {
        let cost = Cost::of(milliseconds(1000), 100);
        assert!(cost.plain < cost.concealed);
        assert!(!cost.is_faster_anew(None));
        assert!(!cost.is_faster_anew(Some(milliseconds(100_000))));
    }

    #[test]
    fn slower_command_continues_if_sooner_done() {
        // 60 ms of work that is not concealed have taken 125 ms.
        let cost = Cost::of(milliseconds(100), 1000);
        assert_eq!(cost.plain, milliseconds(60));
        assert_eq!(cost.concealed, milliseconds(125));
        // The rest is unknown.
        assert!(cost.is_faster_anew(None));
        assert!(cost.is_faster_anew(Some(milliseconds(124))));
        // All of it takes 72 ms and 115 ms if it is not concealed.
        assert!(!cost.is_faster_anew(Some(milliseconds(150))));
        assert!(!cost.is_faster_anew(Some(milliseconds(240))));
        assert!(cost.is_faster_anew(Some(milliseconds(250))));
    }

    #[test]
    fn hardly_begun_command_restarts() {
        assert!(Cost::of(milliseconds(4), 0).is_faster_anew(Some(milliseconds(5))));
        assert!(!Cost::of(milliseconds(6), 0).is_faster_anew(None));
    }

    #[test]
    fn plain_cost_keeps_quarter_of_work() {
        let cost = Cost::of(milliseconds(8), u64::MAX);
        assert_eq!(cost.plain, milliseconds(2));
    }

    #[test]
    fn saved_time_excludes_answers_and_start() {
        // One thread, on an idle machine and on a busy one.
        let all =
            |worked, took, answers| waited_for(milliseconds(worked), milliseconds(took), answers);
        assert_eq!(all(105, 110, 0), milliseconds(100));
        assert_eq!(all(105, 9000, 0), milliseconds(100));
        // Two threads.
        assert_eq!(all(200, 105, 0), milliseconds(100));
        // Plain make needs neither part of the time of an answer.
        assert_eq!(all(145, 170, 1000), milliseconds(100));
        assert_eq!(all(3, 9000, 0), Duration::ZERO);
    }
}
