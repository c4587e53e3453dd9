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

/// Commands that end within this time are not reported to clients that wait for the end.
const ABOUT_TO_END: Duration = Duration::from_millis(500);

/// A make that the user runs.
struct UserMake {
    process: Pid,
    /// The pidfd of the process.
    alive: OwnedFd,
    /// Commands that this make has reused so far.
    taken: Taken,
}

/// Clients that wait for the end of the engine, and clients that know the number of remaining commands. The kernel
/// closes both kinds of sockets at the end of the engine.
#[derive(Default)]
struct StopRequests {
    wait: Vec<UnixStream>,
    told: Vec<UnixStream>,
}

/// Turns requests for commands into jobs.
pub struct Engine {
    worlds: Worlds,
    jobs: Mutex<BTreeMap<JobId, Arc<Job>>>,
    next: AtomicU64,
    /// Number of speculative makes ([`WatcherStatus::begun`]).
    begun: AtomicU64,
    /// Held during the start of a job that is not in the table yet.
    beginning: RwLock<()>,
    /// Requests of the user, and expected requests.
    asked: Mutex<ExpectedTargets>,
    /// Makes that the user runs.
    own: Mutex<Vec<UserMake>>,
    /// Costs of finished concealed commands.
    costs: Mutex<Costs>,
    is_over: AtomicBool,
    /// Number of requests in progress.
    answering: AtomicUsize,
    /// Clients that wait for the end of the engine.
    stoppers: Mutex<StopRequests>,
    /// Mounts of the engine: processes with these mounts belong to no job.
    outsiders: Option<Members>,
    /// Descriptor numbers for commands.
    _reserved: Vec<OwnedFd>,
    /// Descriptors that the watcher inherited. A make with one of these numbers has the same file.
    others: Vec<i32>,
    /// The preloaded library and its settings.
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
    /// An engine that conceals effects in these directories.
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
        // A make connects to this socket before any request for the make.
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
        // The weak reference is set only here.
        let _ = here.set(Arc::downgrade(&engine));
        Ok(engine)
    }

    /// Aborts all jobs if a file around the trees has changed since a job read that file.
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

    /// Whether a make of the user runs: such a make goes first.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let is_own = |job: &Arc<Job>| {
            let progress = job.progress();
            // Also while the effects of the job are being shown.
            progress.is_wanted && !(progress.is_committed && progress.ended.is_some())
        };
        if self.jobs().values().any(is_own) {
            return true;
        }
        self.plain_makes() > 0
    }

    /// Number of makes that run as if there were no engine.
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

    /// The job of a process.
    fn of_process(&self, process: u32) -> Option<Arc<Job>> {
        let members = Members::with(process).ok()?;
        if Some(members) == self.outsiders {
            return None;
        }
        let jobs = self.jobs();
        // Most clients are new processes.
        let mut alive = jobs.values().rev().filter(|job| !job.progress().is_empty);
        let its = alive.clone().find(|job| job.members == members);
        // The process may have mounts of its own.
        its.or_else(|| alive.find(|job| job.members.has(process)))
            .cloned()
    }

    fn is_committed(&self, process: u32) -> bool {
        let job = self.of_process(process);
        job.is_some_and(|job| job.progress().is_committed)
    }

    /// The state of the watcher.
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
            // A replaced make that has not ended yet waits for no user.
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
        // Requests of unknown processes wait for this.
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

    /// Begins a make over the present trees, and ends stale makes.
    ///
    /// # Errors
    /// If the make cannot be begun.
    pub fn anticipate(&self) -> Result<Arc<Job>, BeginError> {
        let job = self.begin_expected()?;
        self.begun.fetch_add(1, Ordering::AcqRel);
        Ok(job)
    }

    /// Whether the engine was ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Ends jobs that a finished speculative make has not reused.
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
        // A job that begins just now is not in the table yet.
        drop(self.beginning.write());
        let jobs = || self.jobs().values().cloned().collect();
        self.worlds.sweep(jobs);
    }

    /// Aborts unwanted jobs that no client has asked for. Clients may ask for jobs meanwhile.
    fn abort_all_but(&self, stays: impl Fn(&Job) -> bool) {
        let all: Vec<_> = self.jobs().values().cloned().collect();
        for job in all.iter().filter(|job| !stays(job)) {
            if job.abort() || job.is_over() {
                self.jobs().remove(&job.id);
            }
        }
    }

    /// Asks the engine to end.
    pub fn stop(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Ends all jobs but those of the user, and the processes that these have left. Waits for the jobs of the user,
    /// and reports their number.
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

    /// Reports the number of remaining commands. The clients then wait for the end of the process.
    fn notify_stoppers(&self, own: usize) {
        let mut stoppers = self.stoppers();
        for stopper in &mut stoppers.wait {
            if let Err(error) = link::send(stopper, &Reply::Ends(own)) {
                tracing::debug!("a client that asked for the end is gone: {error}");
            }
        }
        // Not closed: the close ends the waiting.
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
