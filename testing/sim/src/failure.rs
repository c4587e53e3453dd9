//! A run that broke an invariant, for people.

use std::fmt;

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

impl<S: Seeded> fmt::Display for BrokenRun<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, us) = (self.scenario.seed(), self.at / 1000);
        writeln!(f, "seed {seed}, after {us} us: {}", self.text)?;
        writeln!(f, "{:?}", self.scenario)?;
        self.trace.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}
