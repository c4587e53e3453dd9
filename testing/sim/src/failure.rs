//! A run that broke an invariant, for people.

use std::{collections::VecDeque, fmt};

/// Most events that a failure shows.
const EVENT_COUNT_MAX: usize = 3000;

/// A scenario that its seed replays.
pub trait Seeded: fmt::Debug {
    /// The seed.
    fn seed(&self) -> u64;
}

/// A broken invariant.
#[derive(Debug, Clone)]
pub struct BrokenRun<S> {
    /// The run.
    pub(crate) scenario: Box<S>,
    /// Time in the run, ns.
    pub(crate) at: u64,
    /// The invariant, in words.
    pub(crate) text: String,
    /// The last events.
    pub(crate) trace: Vec<String>,
}

/// The newest events of a run, if the run is to keep these.
#[derive(Debug, Default)]
pub(crate) struct RunLog(Option<VecDeque<String>>);

impl RunLog {
    /// An event at this time, ns.
    pub(crate) fn add(&mut self, now: u64, event: impl FnOnce() -> String) {
        let Some(lines) = &mut self.0 else {
            return;
        };
        if lines.len() == EVENT_COUNT_MAX {
            lines.pop_front();
        }
        let us = now / 1000;
        lines.push_back(format!("{:>6}.{:03} {}", us / 1000, us % 1000, event()));
    }
}

/// A world whose run is a function of the scenario.
pub(crate) trait Playable: Sized {
    type Scenario: Clone;
    type Outcome;

    fn new(scenario: &Self::Scenario, log: RunLog) -> Self;

    /// Plays to the end.
    ///
    /// # Errors
    /// The broken invariant, in words.
    fn play(&mut self) -> Result<Self::Outcome, String>;

    /// Time in the run, ns.
    fn now(&self) -> u64;

    fn into_log(self) -> RunLog;
}

/// Plays a run. A failure is played again, for its log.
///
/// # Errors
/// An invariant is broken.
pub(crate) fn play<W: Playable>(
    scenario: &W::Scenario,
) -> Result<W::Outcome, BrokenRun<W::Scenario>> {
    let mut world = W::new(scenario, RunLog::default());
    let text = match world.play() {
        Ok(outcome) => return Ok(outcome),
        Err(text) => text,
    };
    let mut second = W::new(scenario, RunLog(Some(VecDeque::new())));
    // The same.
    let _ = second.play();
    Err(BrokenRun {
        scenario: Box::new(scenario.clone()),
        at: world.now(),
        text,
        trace: second.into_log().0.unwrap_or_default().into(),
    })
}

impl<S: Seeded> fmt::Display for BrokenRun<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, us) = (self.scenario.seed(), self.at / 1000);
        writeln!(f, "seed {seed}, after {us} us: {}", self.text)?;
        writeln!(f, "{:?}", self.scenario)?;
        self.trace.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}
