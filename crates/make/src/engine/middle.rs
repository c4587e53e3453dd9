//! What is asked for in the middle: whether it goes on, and for how long it stays concealed.

use std::{
    os::unix::net::UnixStream,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Engine, PATIENCE};
use crate::{job::Job, link, through::pass_on_signals};

/// How long a command that works stays concealed after it was asked for: for twice as long as it has worked before, and between these.
const LONGEST: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];
/// How long what it says is not told.
const UNTOLD: Duration = Duration::from_millis(300);
/// How often it is looked at least whether it still works: a look at all processes takes milliseconds.
const SELDOM: Duration = Duration::from_millis(160);

impl Engine {
    /// Whether a command that is asked for ends sooner if it is done anew as by plain make: then it has never been.
    pub(super) fn is_begun_anew(&self, job: &Arc<Job>) -> bool {
        let before = self.costs().of(&job.command);
        let is_better = job.is_better_anew(before);
        if is_better {
            tracing::info!("job {} is begun anew, for all to see", job.id);
        }
        is_better && job.abort_meanwhile()
    }

    /// Until a command that is asked for has ended, or has to be shown before. The kernel remembers what a command has seen for as long as that is
    /// concealed, and asks for each name each time from then on: several times as often. So one that works is shown at its end; and at once if it waits,
    /// for its user too, or for what others do, or begins a make.
    pub(super) fn works_on(&self, job: &Arc<Job>, asker: &mut UnixStream) {
        let before = self.costs().of(&job.command).unwrap_or_default();
        let longest = (2 * before).clamp(LONGEST[0], LONGEST[1]);
        let (began, mut pace) = (Instant::now(), PATIENCE);
        loop {
            let until = Instant::now() + pace;
            while Instant::now() < until {
                if job.wait(PATIENCE).ended.is_some() || link::is_gone(asker) {
                    return;
                }
                pass_on_signals(asker, job);
            }
            let is_told = job.output.is_anything_said() && began.elapsed() > UNTOLD;
            if is_told || began.elapsed() > longest || job.has_parts() || !job.works() {
                return;
            }
            pace = (2 * pace).min(SELDOM);
        }
    }
}
