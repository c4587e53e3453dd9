//! Decides which jobs are taken over, which jobs begin, and which effects become visible.

mod anticipation;
mod in_progress;
mod requests;
mod reuse;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use conceal::{
    members::Members,
    world::{World, WorldError},
};
use encapsulation::Encapsulation;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt::socket_peercred,
    process::Pid,
};

use crate::{
    command::Command,
    cost::Costs,
    expected_targets::ExpectedTargets,
    job::{BeginError, Job, JobId},
    jobserver::reserve,
    link::{self, Reply, Taken, WatcherStatus},
    preload::Preload,
    worlds::{MayChange, Worlds},
};

/// Time between two looks whether the client of a job is still there.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What ends in this time is not told to who waits for the end.
const ABOUT_TO_END: Duration = Duration::from_millis(500);

/// A make that the user runs.
struct UserMake {
    process: Pid,
    /// It is there as long as the process is.
    alive: OwnedFd,
    /// What it has taken over so far.
    taken: Taken,
}

/// Who wants an engine to end, and is to be told how far that is; and who has been. Nobody is at their other end any
/// more when it has ended.
#[derive(Default)]
struct StopRequests {
    wait: Vec<UnixStream>,
    told: Vec<UnixStream>,
}

/// What makes jobs of commands.
pub struct Engine {
    worlds: Worlds,
    jobs: Mutex<BTreeMap<JobId, Arc<Job>>>,
    next: AtomicU64,
    /// How many makes were begun unasked ([`WatcherStatus::begun`]).
    begun: AtomicU64,
    /// Held while something begins that is not known yet.
    beginning: RwLock<()>,
    /// What the user has asked for, and is expected to ask for.
    asked: Mutex<ExpectedTargets>,
    /// Makes that the user runs themselves.
    own: Mutex<Vec<UserMake>>,
    /// What commands have cost that were done concealed.
    costs: Mutex<Costs>,
    is_over: AtomicBool,
    /// How many are being answered.
    answering: AtomicUsize,
    /// Who wants it to end.
    stoppers: Mutex<StopRequests>,
    /// Whose mounts it has itself: those who have them, too, are no job's.
    outsiders: Option<Members>,
    /// Numbers that commands are given descriptors under.
    _reserved: Vec<OwnedFd>,
    /// Descriptors that who watches was given: they mean nothing, if a make is given them, too.
    others: Vec<i32>,
    /// What is preloaded into a make, and what it is told.
    preload: Preload,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("jobs", &self.jobs())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// One that conceals what is done to those directories.
    ///
    /// # Errors
    /// If programs cannot be concealed here.
    pub fn new(
        concealed: &[PathBuf],
        preload: Preload,
        expected: Command,
    ) -> Result<Arc<Self>, BeginError> {
        let reserved = reserve()?;
        let here = Arc::new(OnceLock::<Weak<Self>>::new());
        let engine = Arc::clone(&here);
        let gate: MayChange = Arc::new(move |process| {
            let engine = engine.get().and_then(Weak::upgrade);
            engine.is_some_and(|engine| engine.is_committed(process))
        });
        // A make speaks to this before it is asked for.
        let known = vec![preload.socket().into()];
        let (new, old) = preload.instead();
        let instead = (new.to_owned(), old.to_owned());
        let engine = Arc::new(Self {
            worlds: Worlds::new(concealed, gate, known, vec![instead])?,
            jobs: Mutex::default(),
            next: AtomicU64::new(1),
            begun: AtomicU64::new(0),
            beginning: RwLock::default(),
            others: expected.others.clone(),
            asked: Mutex::new(ExpectedTargets::expecting(expected)),
            own: Mutex::default(),
            costs: Mutex::default(),
            is_over: AtomicBool::new(false),
            answering: AtomicUsize::new(0),
            stoppers: Mutex::default(),
            outsiders: Members::with(std::process::id()).ok(),
            _reserved: reserved,
            preload,
        });
        // It is there once only.
        let _ = here.set(Arc::downgrade(&engine));
        Ok(engine)
    }

    /// If something around the trees is not what it was when it was read, nothing that was done is worth anything.
    fn renew_if_stale(&self) -> Result<(), WorldError> {
        let Some(stale) = self.worlds.renew()? else {
            return Ok(());
        };
        tracing::info!("all is done anew: {stale:?}");
        self.abort_all_but(|_| false);
        Ok(())
    }

    fn jobs(&self) -> MutexGuard<'_, BTreeMap<JobId, Arc<Job>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a make of the user's runs: theirs come first.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let is_own = |job: &Arc<Job>| {
            let progress = job.progress();
            // Also while it is being shown.
            progress.is_wanted && !(progress.is_committed && progress.ended.is_some())
        };
        if self.jobs().values().any(is_own) {
            return true;
        }
        self.plain_makes() > 0
    }

    /// How many makes run as if there were no engine.
    fn plain_makes(&self) -> usize {
        let mut own = self.own();
        own.retain(|make| !is_ready(&make.alive, PollFlags::IN));
        own.len()
    }

    fn own(&self) -> MutexGuard<'_, Vec<UserMake>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self) -> MutexGuard<'_, ExpectedTargets> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn costs(&self) -> MutexGuard<'_, Costs> {
        self.costs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job that a process belongs to.
    fn of_process(&self, process: u32) -> Option<Arc<Job>> {
        let members = Members::with(process).ok()?;
        if Some(members) == self.outsiders {
            return None;
        }
        let jobs = self.jobs();
        // Who asks has begun just now, most often.
        let mut alive = jobs.values().rev().filter(|job| !job.progress().is_empty);
        let its = alive.clone().find(|job| job.members == members);
        // It may have made mounts of its own.
        its.or_else(|| alive.find(|job| job.members.has(process)))
            .cloned()
    }

    fn is_committed(&self, process: u32) -> bool {
        let job = self.of_process(process);
        job.is_some_and(|job| job.progress().is_committed)
    }

    /// How things are.
    #[must_use]
    pub fn standing(&self) -> WatcherStatus {
        let expected = self.asked().expected();
        let mut standing = WatcherStatus {
            begun: self.begun.load(Ordering::Acquire),
            expected: expected.iter().map(anticipation::display_of).collect(),
            ..WatcherStatus::default()
        };
        let jobs: Vec<_> = self.jobs().values().cloned().collect();
        let usable = anticipation::usable(&jobs);
        for job in &jobs {
            let progress = job.progress();
            match progress.ended {
                Some((_, took)) if usable.contains(&job.id) => {
                    standing.finished += 1;
                    if job.is_make {
                        standing.took = microseconds(took);
                    }
                }
                Some(_) => {}
                None => standing.running += 1,
            }
            // One that a newer make has replaced, and that has not ended yet, waits for nobody.
            if progress.is_wanted || usable.contains(&job.id) {
                standing.waiting.extend(job.waiting());
            }
        }
        standing
    }

    fn begin(
        &self,
        command: &Command,
        world: &Arc<World>,
        encapsulation: Encapsulation,
        is_make: bool,
    ) -> Result<Arc<Job>, BeginError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        // Who asks and is not known waits for this.
        let _beginning = self
            .beginning
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let job = Job::begin(
            id,
            command.clone(),
            Arc::clone(world),
            encapsulation,
            is_make,
        )?;
        self.jobs().insert(id, Arc::clone(&job));
        Ok(job)
    }

    /// A make begins, over the trees as they are; those that are stale end.
    ///
    /// # Errors
    /// If it cannot be begun.
    pub fn anticipate(&self) -> Result<Arc<Job>, BeginError> {
        let job = self.begin_expected()?;
        self.begun.fetch_add(1, Ordering::AcqRel);
        Ok(job)
    }

    /// Whether it was ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// A make that was done unasked has ended: what it has not taken over is ended.
    pub fn tidy(&self) {
        let jobs = self.jobs();
        let is_alive = |job: &Job| job.is_make && !job.is_over();
        let makes = jobs.values().filter(|job| is_alive(job));
        let used: BTreeSet<JobId> = makes
            .flat_map(|make| make.all_parts())
            .map(|job| job.id)
            .collect();
        drop(jobs);
        self.abort_all_but(|job| is_alive(job) || used.contains(&job.id));
        // What begins just now is not among the jobs yet.
        drop(self.beginning.write());
        let jobs = || self.jobs().values().cloned().collect();
        self.worlds.sweep(jobs);
    }

    /// What nobody wants, and of which that is not said. Others may ask for jobs meanwhile.
    fn abort_all_but(&self, stays: impl Fn(&Job) -> bool) {
        let all: Vec<_> = self.jobs().values().cloned().collect();
        for job in all.iter().filter(|job| !stays(job)) {
            if job.abort() || job.is_over() {
                self.jobs().remove(&job.id);
            }
        }
    }

    /// It is to end.
    pub fn stop(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Ends everything, but what is its user's own, with what that has left running: that is waited for, and that they
    /// are told.
    pub fn end(&self) {
        self.stop();
        let began = Instant::now();
        loop {
            self.abort_all_but(|_| false);
            let own = self.jobs().len() + self.plain_makes();
            if own == 0 || began.elapsed() > ABOUT_TO_END {
                self.notify_stoppers(own);
            }
            if own == 0 && self.answering.load(Ordering::Acquire) == 0 {
                break;
            }
            thread::sleep(POLL_INTERVAL);
        }
        self.worlds.end();
        self.preload.remove();
    }

    /// Who wants to wait for the end sees it: they are told no more, and left when this process is.
    fn notify_stoppers(&self, own: usize) {
        let mut stoppers = self.stoppers();
        for stopper in &mut stoppers.wait {
            if let Err(error) = link::send(stopper, &Reply::Ends(own)) {
                tracing::debug!("a client that asked for the end is gone: {error}");
            }
        }
        // Not closed: that is what ends the waiting.
        let mut told = std::mem::take(&mut stoppers.wait);
        stoppers.told.append(&mut told);
    }

    fn stoppers(&self) -> MutexGuard<'_, StopRequests> {
        self.stoppers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn peer(asker: &UnixStream) -> io::Result<u32> {
    let credentials = socket_peercred(asker)?;
    Ok(credentials.pid.as_raw_nonzero().get().cast_unsigned())
}

fn is_ready(what: &impl AsFd, for_what: PollFlags) -> bool {
    let now = Timespec::default();
    let polled = &mut [PollFd::new(what, for_what)];
    poll(polled, Some(&now)).is_ok_and(|ready| ready > 0)
}

fn microseconds(time: Duration) -> u64 {
    time.as_micros().try_into().unwrap_or(u64::MAX)
}
