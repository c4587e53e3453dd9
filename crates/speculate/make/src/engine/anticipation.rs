//! Expected makes, and messages about unexpected ones.

use std::{collections::BTreeSet, sync::Arc};

use conceal::world::World;

use super::Engine;
use crate::{
    command::Command,
    job::{BeginError, Job, JobId},
};

/// Most names of one kind in a message.
const NAMES_IN_MESSAGE: usize = 3;

impl Engine {
    /// Begins the likeliest make on the present trees, or returns a make that is still valid. Ends unexpected and stale
    /// makes.
    pub(super) fn begin_expected(&self) -> Result<Arc<Job>, BeginError> {
        let expected = self.asked().expected();
        self.renew_if_stale()?;
        let world = self.worlds.current();
        let makes: Vec<_> = self.jobs().values().cloned().collect();
        let is_concealed = |job: &&Arc<Job>| job.is_make && !job.progress().is_committed;
        let mut likeliest = None;
        for make in makes.iter().filter(is_concealed) {
            let is_it = |command: &Command| is_done_by(make, command, &world);
            let which = expected.iter().position(is_it);
            match which.filter(|_| make.fits(&**world.real())) {
                Some(0) if likeliest.is_none() => likeliest = Some(Arc::clone(make)),
                Some(1..) => {}
                _ => self.drop_job(make),
            }
        }
        match likeliest {
            Some(make) => Ok(make),
            None => self.begin(&expected[0], &world, world.encapsulation(), true),
        }
    }

    /// Begins the next expected make that has not begun yet.
    ///
    /// # Errors
    /// If the make cannot be begun.
    pub fn anticipate_more(&self) -> Result<Option<Arc<Job>>, BeginError> {
        let (expected, world) = (self.asked().expected(), self.worlds.current());
        let jobs: Vec<_> = self.jobs().values().cloned().collect();
        let is_begun = |command: &&Command| jobs.iter().any(|job| is_done_by(job, command, &world));
        let next = expected.iter().skip(1).find(|command| !is_begun(command));
        let begin = |command| self.begin(command, &world, world.encapsulation(), true);
        next.map(begin).transpose()
    }

    /// Message about a make that was not expected in this way. `None`: the make was expected, or there is no
    /// speculative make.
    pub(super) fn unexpected(&self, command: &Command) -> Option<String> {
        let is_concealed = |job: &&Arc<Job>| {
            let progress = job.progress();
            job.is_make && !progress.is_committed && !progress.is_aborted
        };
        let jobs = self.jobs();
        let mut makes: Vec<_> = jobs.values().rev().filter(is_concealed).cloned().collect();
        drop(jobs);
        let first = makes.first()?.command.clone();
        makes.retain(|make| make.command.arguments == command.arguments);
        if makes.is_empty() {
            let [asked, expected] = [command, &first].map(display_of);
            return Some(format!(
                "asked for `{asked}`, and `{expected}` was expected"
            ));
        }
        let differences = makes.iter().map(|make| {
            let mut all = make.command.differs(command);
            all.extend(make.context_differences(command));
            all
        });
        let least = differences.min_by_key(Vec::len)?;
        (!least.is_empty()).then(|| {
            format!(
                "asked for with another {} than expected",
                list_names(&least)
            )
        })
    }
}

/// Makes without a request yet, and the jobs that they have reused. All other jobs are stale or requested.
pub(super) fn usable(jobs: &[Arc<Job>]) -> BTreeSet<JobId> {
    let makes = jobs.iter().filter(|job| {
        let progress = job.progress();
        job.is_make && !progress.is_committed && !progress.is_aborted
    });
    let parts = makes.clone().flat_map(|make| make.all_parts());
    let parts = parts.filter(|part| !part.progress().is_committed);
    let parts: Vec<_> = parts.map(|part| part.id).collect();
    makes.map(|make| make.id).chain(parts).collect()
}

/// Whether the job is such a make, still concealed.
fn is_done_by(job: &Job, command: &Command, world: &Arc<World>) -> bool {
    let progress = job.progress();
    job.is_make
        && !progress.is_committed
        && !progress.is_aborted
        && Arc::ptr_eq(&job.world, world)
        && job.command.is_like(command)
        && job.context_differences(command).is_empty()
}

/// The arguments as a command line.
pub(super) fn display_of(command: &Command) -> String {
    let words = command.arguments.iter();
    let words: Vec<_> = words.map(|word| word.display().to_string()).collect();
    words.join(" ")
}

fn list_names(names: &[String]) -> String {
    let first = names[..names.len().min(NAMES_IN_MESSAGE)].join(", ");
    match names.len().saturating_sub(NAMES_IN_MESSAGE) {
        0 => first,
        more => format!("{first} (and {more} more)"),
    }
}

#[cfg(test)]
mod tests {
    use super::list_names;

    #[test]
    fn message_names_at_most_three() {
        let names = ["A", "B", "C", "D", "E"].map(str::to_owned);
        assert_eq!(list_names(&names[..1]), "A");
        assert_eq!(list_names(&names[..3]), "A, B, C");
        assert_eq!(list_names(&names), "A, B, C (and 2 more)");
    }
}
