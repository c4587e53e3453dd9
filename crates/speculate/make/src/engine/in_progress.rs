//! Commands that are requested while they run: whether such a command continues, and how long the command stays
//! concealed.

use std::{
    os::unix::net::UnixStream,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Engine, POLL_INTERVAL};
use crate::{drain::pass_on_signals, job::Job, link};

/// Least and greatest time that a requested command stays concealed while the command works. Between these bounds:
/// twice the time of the earlier run.
const CONCEALED_TIME_RANGE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];
/// Longest time that output of a requested command stays unshown.
const OUTPUT_DELAY: Duration = Duration::from_millis(300);
/// Longest time between two looks whether the command works. A look at all processes takes milliseconds.
const LONGEST_POLL_INTERVAL: Duration = Duration::from_millis(160);

impl Engine {
    /// Whether a requested command ends sooner if plain make runs the command anew. The concealed run is then
    /// aborted.
    pub(super) fn is_begun_anew(&self, job: &Arc<Job>) -> bool {
        let before = self.costs().of(&job.command);
        let is_better = job.is_faster_anew(before);
        if is_better {
            tracing::info!("job {} is begun anew, for all to see", job.id);
        }
        is_better && job.abort_in_background()
    }

    /// Returns when a requested command has ended, or has to be shown before the end. While a command is concealed, the
    /// kernel caches names. For a shown command the kernel asks for each name each time: several times as often.
    /// Therefore a working command is shown at the end. A command that waits for its user or for other processes, or
    /// begins a make, is shown at once.
    pub(super) fn await_or_reveal(&self, job: &Arc<Job>, asker: &mut UnixStream) {
        let before = self.costs().of(&job.command).unwrap_or_default();
        let longest = (2 * before).clamp(CONCEALED_TIME_RANGE[0], CONCEALED_TIME_RANGE[1]);
        let (began, mut pace) = (Instant::now(), POLL_INTERVAL);
        loop {
            let until = Instant::now() + pace;
            while Instant::now() < until {
                if job.wait(POLL_INTERVAL).ended.is_some() || link::is_gone(asker) {
                    return;
                }
                pass_on_signals(asker, job);
            }
            let has_git_discovery = job.output.has_output() && began.elapsed() > OUTPUT_DELAY;
            if has_git_discovery || began.elapsed() > longest || job.has_parts() || !job.works() {
                return;
            }
            pace = (2 * pace).min(LONGEST_POLL_INTERVAL);
        }
    }
}
