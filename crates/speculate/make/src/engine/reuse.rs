//! Reuse of finished and running jobs.

use std::{
    fs::File,
    io::Write as _,
    num::NonZero,
    os::unix::net::UnixStream,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use conceal::{concealment::CommitError, world::World};
use encapsulation::{Encapsulation, Snapshot, Time};

use super::{Engine, POLL_INTERVAL, microseconds};
use crate::{
    command::{Command, Status},
    drain::{drain, pass_on_signals, until_ended},
    job::{Job, Progress},
    link::{self, Gain},
};

/// Runs of a command whose inputs change meanwhile, before the command runs in place.
const CONFLICT_RETRIES: usize = 3;

impl Engine {
    fn equal_jobs(&self, command: &Command, makes: bool, world: &Arc<World>) -> Vec<Arc<Job>> {
        let jobs = self.jobs();
        let usable = |job: &&Arc<Job>| {
            let progress = job.progress();
            !progress.is_aborted
                && !progress.is_committed
                && job.is_make == makes
                && Arc::ptr_eq(&job.world, world)
                && job.command.is_like(command)
        };
        let mut equal_jobs: Vec<_> = jobs.values().rev().filter(usable).cloned().collect();
        drop(jobs);
        equal_jobs.retain(|job| job.context_differences(command).is_empty());
        equal_jobs
    }

    /// Runs a command for a job: reuses a job, or begins one. `None`: the client runs the command in place.
    pub(super) fn run_for(
        &self,
        parent: &Arc<Job>,
        command: &Command,
        mut sinks: [File; 2],
        asker: &mut UnixStream,
    ) -> Option<Status> {
        tracing::info!("job {} asks for {:?}", parent.id, command.arguments);
        if !command.others.is_empty() {
            return None;
        }
        for _ in 0..CONFLICT_RETRIES {
            let snapshot = parent
                .concealment
                .with_encapsulation(Encapsulation::snapshot)?;
            let before = self.reusable_for(parent, &snapshot, command);
            let was_before = before.is_some();
            let job = before.or_else(|| self.begin_for(parent, command, snapshot))?;
            parent.add_part(&job);
            match self.wait_for(parent, &job, was_before, asker) {
                WaitOutcome::Done(status) => {
                    job.output.repeat(&mut sinks);
                    return Some(status);
                }
                WaitOutcome::Shared => {
                    let status = self.shared(parent, &job, was_before, sinks, asker);
                    if status.is_none() {
                        parent.remove_part(&job);
                    }
                    return status;
                }
                // The job may belong to another client, who must not receive the input of this user.
                WaitOutcome::ToNothing => {
                    parent.remove_part(&job);
                    return None;
                }
                WaitOutcome::Again => {
                    parent.remove_part(&job);
                    self.drop_job(&job);
                }
            }
        }
        None
    }

    /// Waits until the job has ended and the parent has absorbed the effects.
    fn wait_for(
        &self,
        parent: &Arc<Job>,
        job: &Arc<Job>,
        was_before: bool,
        asker: &mut UnixStream,
    ) -> WaitOutcome {
        let (status, _) = loop {
            let (parents, progress) = (parent.progress(), job.progress());
            if parents.is_committed {
                return WaitOutcome::Shared;
            }
            // The job is committed: later effects are not seen here.
            if parents.is_aborted || progress.is_aborted || progress.is_committed {
                return WaitOutcome::ToNothing;
            }
            if link::is_gone(asker) {
                self.on_client_gone(parent, job, was_before);
                return WaitOutcome::ToNothing;
            }
            if let Some(ended) = progress.ended {
                self.costs().note(job);
                break ended;
            }
            pass_on_signals(asker, job);
            job.wait(POLL_INTERVAL);
        };
        if job.has_remaining_process() {
            // The remaining process has to see later effects of the parent.
            self.drop_job(job);
            return WaitOutcome::ToNothing;
        }
        if was_before {
            job.date_now();
        }
        match absorb(parent, job) {
            AbsorbOutcome::Done => WaitOutcome::Done(status),
            AbsorbOutcome::IsCommitted if parent.progress().is_committed => WaitOutcome::Shared,
            AbsorbOutcome::IsCommitted => WaitOutcome::ToNothing,
            AbsorbOutcome::Conflict => WaitOutcome::Again,
        }
    }

    /// Handles the death of the client. A job for this client alone could run for ever.
    fn on_client_gone(&self, parent: &Job, job: &Arc<Job>, was_before: bool) {
        // Another client may reuse the job if the parent is aborted just now.
        if parent.progress().is_aborted {
            return;
        }
        parent.remove_part(job);
        if !was_before {
            self.drop_job(job);
        }
    }

    /// Begins no job while a make of the user runs, unless the job is for that make.
    fn begin_for(&self, parent: &Arc<Job>, command: &Command, there: Snapshot) -> Option<Arc<Job>> {
        let is_free = |progress: Progress| progress.is_wanted || progress.is_aborted;
        while self.is_busy() && !is_free(parent.progress()) && !self.is_over() {
            thread::sleep(POLL_INTERVAL);
        }
        let hidden = Arc::clone(parent.world.hidden());
        let above = Encapsulation::new(Arc::new(there), hidden as _);
        let begun = self.begin(command, &parent.world, above, false);
        begun.inspect_err(|error| tracing::warn!("{error}")).ok()
    }

    /// Aborts the job and removes the job from the table.
    pub(super) fn drop_job(&self, job: &Arc<Job>) {
        if job.abort() {
            self.jobs().remove(&job.id);
        }
    }

    /// Commits the job, because the parent was committed during the run.
    fn shared(
        &self,
        parent: &Job,
        job: &Arc<Job>,
        was_before: bool,
        sinks: [File; 2],
        asker: &mut UnixStream,
    ) -> Option<Status> {
        let real = job.world.real();
        if self.is_begun_anew(job) {
            return None;
        }
        self.await_or_reveal(job, asker);
        if was_before {
            job.date_now();
        }
        match job.commit(&**real) {
            Ok(_) => self.let_go(job),
            Err(CommitError::Already) => {
                // Another client has the job and reads its output: after the end, the command runs once more. Input of
                // this user meanwhile is not for that job, neither from here nor from the parent.
                parent.remove_part(job);
                let signal = until_ended(asker, || job.wait(POLL_INTERVAL).ended.is_some());
                return signal.map(|signal| Status::Signalled(signal.as_raw()));
            }
            Err(_) => {
                job.abort();
                return None;
            }
        }
        job.output.show(sinks);
        let status = drain(job, None, asker);
        self.let_end(job);
        Some(status)
    }

    /// Releases the calls of a committed job that wait in the surroundings.
    fn let_go(&self, job: &Job) {
        let around = job.world.around();
        around.release(|process| self.is_committed(process));
    }

    /// Removes a committed job that has ended without remaining processes.
    fn let_end(&self, job: &Job) {
        self.costs().note(job);
        if job.is_over() {
            self.jobs().remove(&job.id);
        }
    }

    fn reusable_for(&self, parent: &Job, there: &Snapshot, command: &Command) -> Option<Arc<Job>> {
        let equal_jobs = self.equal_jobs(command, false, &parent.world);
        equal_jobs.into_iter().find(|job| job.fits(there))
    }

    /// Runs a request of the user by reuse, if possible.
    pub(super) fn run_for_user(
        &self,
        command: &Command,
        is_make: bool,
        [says, out, err]: [File; 3],
        asker: &mut UnixStream,
    ) -> Option<(Status, Gain)> {
        let began = Instant::now();
        let job = self.usable(command, is_make)?;
        if !is_make && self.is_begun_anew(&job) {
            return None;
        }
        let was_running = job.progress().ended.is_none();
        if !is_make && was_running {
            job.is_asked_for();
            self.await_or_reveal(&job, asker);
        }
        let effects = match self.show(&job) {
            Ok(effects) => effects,
            Err(error) => {
                tracing::warn!("the effects cannot be shown: {error}");
                if let CommitError::Impossible { errno, shown, .. } = error {
                    repeat_output_after_failure(&job, [out, err], shown, errno);
                }
                return None;
            }
        };
        job.output.show([out, err]);
        let took = began.elapsed();
        let status = drain(&job, Some(says), asker);
        self.let_end(&job);
        let worked = time_of(&job);
        let saved = worked.saturating_sub(began.elapsed());
        let gain = Gain {
            effects,
            took: microseconds(took),
            saved: microseconds(saved),
            worked: microseconds(worked),
            was_running,
        };
        Some((status, gain))
    }

    /// A speculative job with inputs equal to the present files.
    fn usable(&self, command: &Command, is_make: bool) -> Option<Arc<Job>> {
        let is_known = |number| self.others.contains(number);
        let world = self.worlds.current();
        let candidates = self.equal_jobs(command, is_make, &world);
        if candidates.is_empty() || !command.others.iter().all(is_known) {
            return None;
        }
        let count = candidates.len();
        let job = candidates.into_iter().find(|job| job.fits(&**world.real()));
        if job.is_none() {
            tracing::info!(
                "none of {count} that are alike is of use for {:?}",
                command.arguments
            );
        }
        let job = job?;
        // The surroundings have far more names: the check is only for a job that is valid otherwise.
        match self.renew_if_stale() {
            Ok(()) => Arc::ptr_eq(&self.worlds.current(), &world).then_some(job),
            Err(error) => {
                tracing::warn!("{error}");
                None
            }
        }
    }

    /// Commits the job. Returns the number of shown effects.
    fn show(&self, job: &Arc<Job>) -> Result<usize, CommitError> {
        if !job.is_make {
            job.date_now();
        }
        let effects = job.commit(&**job.world.real())?;
        for part in job.all_parts() {
            match part.progress().is_empty {
                true => drop(self.jobs().remove(&part.id)),
                // The client of the part commits the part.
                false => part.is_asked_for(),
            }
        }
        self.let_go(job);
        Ok(effects)
    }
}

/// The shortest time for which a user would have waited: the processor time of the commands, for a parallel make
/// divided by the number of processors.
fn time_of(job: &Job) -> Duration {
    let parts = job.all_parts();
    let all = || parts.iter().map(|part| &**part).chain([job]);
    let worked = all().map(Job::plainly).sum::<Duration>();
    let at_once = match all().any(|job| job.command.is_parallel()) {
        true => thread::available_parallelism().map_or(1, NonZero::get),
        false => 1,
    };
    worked / u32::try_from(at_once).unwrap_or(u32::MAX)
}

/// Writes all output although only a part of the effects is visible: a new run finds that part up to date, and would
/// not repeat the output.
fn repeat_output_after_failure(
    job: &Job,
    mut sinks: [File; 2],
    shown: usize,
    why: rustix::io::Errno,
) {
    if shown == 0 {
        return;
    }
    let line = format!(
        "outlive: {shown} outputs are shown, and the next one cannot be ({why}): all that was said of them follows, and the rest is done anew\n"
    );
    // A client that does not read misses this message, too.
    let _ = sinks[1].write_all(line.as_bytes());
    job.output.repeat(&mut sinks);
}

/// Result of the wait for a command of a job.
enum WaitOutcome {
    /// The command has ended, and the parent has absorbed the effects.
    Done(Status),
    /// The parent was committed.
    Shared,
    /// The client has to run the command in place.
    ToNothing,
    /// An input was changed by another job: the command runs again.
    Again,
}

/// Result of the absorption of a job by its parent.
enum AbsorbOutcome {
    Done,
    /// The job has read a file that has changed.
    Conflict,
    /// One of the two is committed.
    IsCommitted,
}

fn absorb(parent: &Job, job: &Job) -> AbsorbOutcome {
    let absorbed = parent.concealment.with_encapsulation(|above| {
        let absorb = |below: &mut Encapsulation| {
            let absorbed = above.absorb(below, Time::default());
            absorbed.map(|()| below.effects().to_vec())
        };
        job.concealment.with_encapsulation(absorb)
    });
    match absorbed.flatten() {
        None => AbsorbOutcome::IsCommitted,
        Some(Err(conflict)) => {
            tracing::info!("job {} is done again: {conflict:?}", job.id);
            AbsorbOutcome::Conflict
        }
        Some(Ok(effects)) => {
            parent.concealment.changed(&effects);
            AbsorbOutcome::Done
        }
    }
}
