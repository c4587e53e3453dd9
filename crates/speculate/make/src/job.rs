//! A concealed command: a make, or a command of make.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    os::unix::process::CommandExt as _,
    process::{self, Child},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use conceal::{
    activity::Activity,
    concealment::{CommitError, Concealment},
    members::{Members, rest_as_session},
    syscall_gate::{SizeReaders, SyscallGate},
    world::{View, World},
};
use encapsulation::{Base, Encapsulation, Time};
use rustix::process::{Pid, Signal};

use crate::{
    command::{Command, Status},
    environment::Pointers,
    exit_status, guard,
    input::Input,
    jobserver::Jobserver,
    link::WaitingProcess,
    output::Output,
    repositories,
};

/// Time that a killed process takes to end.
const SHORT_PAUSE: Duration = Duration::from_millis(1);
/// Reason of a command that waits because of [`Output::is_full`].
const OUTPUT_FULL_REASON: &str = "more output than is kept before the commit";
/// Longest time between two looks for remaining processes.
const LEFT_BEHIND: Duration = Duration::from_millis(100);

/// Number of a job.
pub type JobId = u64;

/// A command that runs, or has run.
#[derive(Debug)]
pub struct Job {
    /// Number of the job.
    pub id: JobId,
    /// The request.
    pub command: Command,
    /// The file system of the command.
    pub concealment: Concealment,
    /// The output of the command.
    pub output: Output,
    /// The input from the user.
    input: Input,
    /// The mounts around the command.
    pub world: Arc<World>,
    /// The processes of the command.
    pub members: Members,
    /// The session that the first of the processes has made.
    session: u32,
    /// The requests of the processes, while a process runs; afterwards, whether a process has read the size of the
    /// terminal.
    gate: Mutex<Result<SyscallGate, EndedGate>>,
    /// Whether the job is a speculative make, and not a command of one.
    pub is_make: bool,
    /// Jobs that this job has reused.
    parts: Mutex<Vec<Arc<Job>>>,
    progress: Mutex<Progress>,
    changed: Condvar,
    began: Instant,
    /// Date of files that are made from now on.
    since: Time,
}

/// The requests of a command without a process left.
#[derive(Debug, Clone, Copy)]
struct EndedGate {
    sized: SizeReaders,
    /// Number of requests.
    asked: u64,
}

/// Progress of a job.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// Status at the end, and duration of the run.
    pub ended: Option<(Status, Duration)>,
    /// Processor time until the end, without the jobs that this job has taken over.
    pub worked: Duration,
    /// A user is about to commit this job, or has: an abort is not possible any more.
    pub is_wanted: bool,
    /// The job is committed: no effect is concealed.
    pub is_committed: bool,
    /// The job is aborted.
    pub is_aborted: bool,
    /// No process of the job is left.
    pub is_empty: bool,
    /// The user has asked for the command of which this job is a part: a thread that waits for the job has to look.
    pub is_asked_for: bool,
    /// Some processes have left the job's mounts: the session alone identifies these.
    pub is_left_by_some: bool,
}

/// Reason of a job that could not begin.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// The mounts cannot be made.
    #[error(transparent)]
    World(#[from] conceal::world::WorldError),
    /// A precondition of all commands is missing.
    #[error("cannot begin commands: {0}")]
    Nothing(#[from] std::io::Error),
    /// The program cannot be executed.
    #[error("cannot run {0:?}: {1}")]
    Command(std::ffi::OsString, std::io::Error),
}

impl Job {
    /// Begins the command above the base of the encapsulation.
    ///
    /// # Errors
    /// If the command cannot be begun.
    pub fn begin(
        id: JobId,
        command: Command,
        world: Arc<World>,
        encapsulation: Encapsulation,
        is_make: bool,
    ) -> Result<Arc<Self>, BeginError> {
        let since = before_now();
        let (concealment, view) = world.begin(encapsulation)?;
        if is_make {
            concealment.note_texts();
        }
        let not_run = |error| BeginError::Command(command.program.clone(), error);
        let (output, input, ends) = Output::open(&command).map_err(not_run)?;
        let mut run = process::Command::new(&command.program);
        if let Some((name, arguments)) = command.arguments.split_first() {
            run.arg0(name).args(arguments);
        }
        let environment =
            Pointers::to(&repositories::with_git_discovery(&command, &world)).map_err(not_run)?;
        run.stdin(ends.input).stdout(ends.out).stderr(ends.err);
        let umask = command.umask;
        let jobserver = Jobserver::of(&command).map_err(not_run)?;
        // SAFETY: the closure makes some system calls between fork and exec, and allocates no memory.
        unsafe {
            run.pre_exec(move || {
                rustix::process::umask(rustix::fs::Mode::from_bits_truncate(umask));
                rustix::process::setsid()?;
                environment.give();
                jobserver.as_ref().map_or(Ok(()), Jobserver::give)
            });
        }
        let limited = || Ok(supervise::limits::lower()?);
        guard::is_unasked(view.members());
        let spawned = view.spawn_limited(&mut run, &command.directory, limited);
        let (child, gate) = spawned.map_err(|error| {
            guard::is_asked_for(view.members());
            not_run(error)
        })?;
        rest_as_session(child.id());
        // The child has its own copies of the streams.
        drop(run);
        let job = Arc::new(Self {
            id,
            concealment,
            output,
            input,
            world,
            members: view.members(),
            session: child.id(),
            gate: Mutex::new(Ok(gate)),
            is_make,
            parts: Mutex::default(),
            progress: Mutex::default(),
            changed: Condvar::new(),
            began: Instant::now(),
            since,
            command,
        });
        let waiting = Arc::clone(&job);
        thread::spawn(move || waiting.wait_for(child, view));
        Ok(job)
    }

    fn wait_for(&self, child: Child, view: View) {
        let (status, worked) = exit_status::of(&child);
        let took = self.began.elapsed();
        let is_alone = self.has_ended_entirely();
        if is_alone {
            self.is_left();
        }
        self.output.settle();
        self.update(|progress| {
            progress.ended = Some((status, took));
            progress.worked = worked;
        });
        if !is_alone {
            // Processes that the command leaves running go on, concealed like the job.
            let mut pace = SHORT_PAUSE;
            while !self.has_ended_entirely() {
                thread::sleep(pace);
                pace = (2 * pace).min(LEFT_BEHIND);
            }
            self.is_left();
        }
        guard::is_asked_for(self.members);
        // The process number may belong to another process from here on. The kernel takes some milliseconds, for
        // which no client waits.
        drop(view);
    }

    /// Whether no process of the job is left. A look at all processes of the machine takes longer than many a
    /// command.
    fn has_ended_entirely(&self) -> bool {
        let gate = self.gate();
        let may_be = gate.as_ref().map_or(true, SyscallGate::is_anybody_left);
        drop(gate);
        // Memory of files of an ending process is still on its way, if this process writes that memory.
        let is_written = self.concealment.passes_through();
        // The kernel asks for processes with other mounts, too.
        let is_known_by_mounts = !self.progress().is_left_by_some;
        !may_be && is_written || is_known_by_mounts && self.members.all().is_empty()
    }

    /// Marks the job as without processes.
    fn is_left(&self) {
        self.update(|progress| progress.is_empty = true);
        self.output.end();
        self.input.close();
        // There may be thousands of finished jobs: no descriptor stays open for them.
        let (sized, asked) = (self.sized(), self.calls());
        *self.gate() = Err(EndedGate { sized, asked });
    }

    fn gate(&self) -> MutexGuard<'_, Result<SyscallGate, EndedGate>> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes of the job that have asked for the size of the terminal.
    pub(crate) fn sized(&self) -> SizeReaders {
        match &*self.gate() {
            Ok(gate) => gate.sized(),
            Err(left) => left.sized,
        }
    }

    /// Approximate number of calls of the processes that the kernel has asked about.
    fn calls(&self) -> u64 {
        match &*self.gate() {
            Ok(gate) => gate.asked(),
            Err(left) => left.asked,
        }
    }

    /// Number of answers for which the processes have waited.
    pub(crate) fn asked(&self) -> u64 {
        self.calls() + self.concealment.asked()
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Adds a job that this job has reused.
    pub fn add_part(&self, part: &Arc<Self>) {
        let mut parts = self.own_parts();
        // A job may be reused several times.
        if parts.iter().all(|other| other.id != part.id) {
            parts.push(Arc::clone(part));
        }
    }

    /// Removes a job that is not reused after all.
    pub fn remove_part(&self, part: &Self) {
        self.own_parts().retain(|other| other.id != part.id);
    }

    fn own_parts(&self) -> MutexGuard<'_, Vec<Arc<Self>>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Jobs that this job has reused.
    #[must_use]
    pub fn parts(&self) -> Vec<Arc<Self>> {
        self.own_parts().clone()
    }

    pub(crate) fn has_parts(&self) -> bool {
        !self.own_parts().is_empty()
    }

    /// Notes that a process has left the mounts of the job.
    pub(crate) fn is_left_by_some(&self) {
        self.update(|progress| progress.is_left_by_some = true);
    }

    /// The jobs that this job has taken over, directly or by another job: each once.
    #[must_use]
    pub fn all_parts(&self) -> Vec<Arc<Self>> {
        let mut known = BTreeSet::new();
        let mut all = self.parts();
        all.retain(|part| known.insert(part.id));
        let mut next = 0;
        while let Some(part) = all.get(next) {
            let mut more = part.parts();
            more.retain(|part| known.insert(part.id));
            all.extend(more);
            next += 1;
        }
        all
    }

    /// Processes that wait for the commit.
    #[must_use]
    pub fn waiting(&self) -> Vec<WaitingProcess> {
        // The number of the mounts may belong to another job.
        if self.progress().is_empty {
            return Vec::new();
        }
        let around = self.world.around().waiting().into_iter();
        let around = around.filter(|(process, _)| self.has(*process));
        let waits = self.concealment.waiting().into_iter();
        let calls = self.gate().as_ref().ok().cloned();
        let own = calls.iter().flat_map(SyscallGate::waiting);
        let waits = waits.chain(own).chain(around);
        let is_full = self.output.is_full();
        let first = is_full.then(|| self.members.all().first().copied());
        let says = first
            .flatten()
            .map(|process| (process.as_raw_pid().cast_unsigned(), OUTPUT_FULL_REASON));
        let files: BTreeMap<_, _> = calls.iter().flat_map(SyscallGate::named).collect();
        let told = |(process, why): (u32, &str)| WaitingProcess {
            process,
            program: program_of(process),
            why: why.to_owned(),
            file: files.get(&process).map(|file| file.display().to_string()),
        };
        waits.chain(says).map(told).collect()
    }

    /// Whether the job waits for a request, without an effect or output before: a new start costs the user nothing.
    #[must_use]
    pub fn is_hardly_begun(&self) -> bool {
        let effects = self.concealment.with_encapsulation(|it| it.effects().len());
        effects == Some(0)
            && self.progress().ended.is_none()
            && !self.has_parts()
            && !self.output.has_output()
            && !self.waiting().is_empty()
    }

    /// Whether the job is committed, has ended, and has left no process running.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let progress = self.progress();
        progress.is_committed && progress.ended.is_some() && progress.is_empty
    }

    /// Progress of the job.
    #[must_use]
    pub fn progress(&self) -> Progress {
        *self.lock()
    }

    /// The user has asked for the command of which this job is a part: the job gets the usual priority, and waiting
    /// threads look at once.
    pub fn is_asked_for(&self) {
        self.update(|progress| progress.is_asked_for = true);
        self.members.hurry();
    }

    /// Waits until the job has ended, at most for this time. Returns earlier at the first request for a job with this
    /// part.
    pub fn wait(&self, at_most: Duration) -> Progress {
        let progress = self.lock();
        let was_asked_for = progress.is_asked_for;
        let goes_on = |progress: &mut Progress| {
            progress.ended.is_none() && progress.is_asked_for == was_asked_for
        };
        let waited = self.changed.wait_timeout_while(progress, at_most, goes_on);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether all inputs equal the files there.
    #[must_use]
    pub fn fits(&self, there: &dyn Base) -> bool {
        let check = |it: &mut Encapsulation| match self.is_make {
            true => it.inputs().check_times(there),
            false => it.inputs().check(there),
        };
        match self.concealment.with_encapsulation(check) {
            None => false,
            Some(Ok(())) => true,
            Some(Err(stale)) => {
                tracing::info!("job {} is stale: {stale:?}", self.id);
                false
            }
        }
    }

    /// Gives the effects the present date, for a client for whom the job was not begun.
    pub fn date_now(&self) {
        self.concealment.date_now(self.since);
    }

    /// Whether a process is left after the end of the command. A process that is about to end is waited for.
    #[must_use]
    pub fn has_remaining_process(&self) -> bool {
        let began = Instant::now();
        while !self.progress().is_empty {
            if began.elapsed() > LEFT_BEHIND {
                return true;
            }
            thread::sleep(SHORT_PAUSE);
        }
        false
    }

    /// Commits the job: shows effects and output. Returns the number of shown effects.
    ///
    /// # Errors
    /// If the effects cannot be shown.
    pub fn commit(&self, there: &dyn Base) -> Result<usize, CommitError> {
        let was_aborted = {
            let mut progress = self.lock();
            progress.is_wanted |= !progress.is_aborted;
            progress.is_aborted
        };
        if was_aborted {
            return Err(CommitError::Aborted);
        }
        let effects = self.concealment.commit(there).inspect_err(|error| {
            let stays = matches!(error, CommitError::Already);
            self.update(|progress| progress.is_wanted &= stays);
            if matches!(error, CommitError::Impossible { .. }) {
                // The job is concealed no more, and belongs to no user.
                self.kill();
            }
        })?;
        self.update(|progress| progress.is_committed = true);
        guard::is_asked_for(self.members);
        if let Ok(gate) = &*self.gate() {
            gate.release();
        }
        if !self.progress().is_empty {
            self.members.hurry();
        }
        Ok(effects)
    }

    /// Ends the job and makes it worthless. `false`: the job is committed, or is being committed now.
    pub fn abort(&self) -> bool {
        let is_given_up = self.gives_up();
        if is_given_up {
            self.kill();
        }
        is_given_up
    }

    /// Marks the job as aborted, unless the job is committed.
    fn gives_up(&self) -> bool {
        let mut progress = self.lock();
        progress.is_aborted |= !progress.is_wanted;
        let is_given_up = !progress.is_wanted;
        drop(progress);
        self.changed.notify_all();
        is_given_up
    }

    /// Processor time of the job so far.
    pub(crate) fn working(&self) -> Activity {
        Activity::of(&self.processes())
    }

    /// Whether a process of the job wants a processor or an answer, and none waits for a request.
    pub(crate) fn works(&self) -> bool {
        if !self.waiting().is_empty() {
            return false;
        }
        let answers = self.asked();
        if !self.working().is_at_rest {
            return true;
        }
        // A process that waits for another one is at rest for a moment.
        thread::sleep(SHORT_PAUSE);
        self.asked() != answers || !self.working().is_at_rest
    }

    /// The processes of the job.
    fn processes(&self) -> Vec<Pid> {
        match self.progress().is_left_by_some {
            true => self.members.all_with(self.session),
            false => self.members.all(),
        }
    }

    fn has(&self, process: u32) -> bool {
        self.members.has(process)
    }

    /// Aborts the job as [`Self::abort`] does, in the background.
    pub(crate) fn abort_in_background(self: &Arc<Self>) -> bool {
        if !self.gives_up() {
            return false;
        }
        let this = Arc::clone(self);
        let killing = thread::Builder::new().name("killing".into());
        if killing.spawn(move || this.kill()).is_err() {
            self.kill();
        }
        true
    }

    /// Kills the processes. A process in a call that waits for this program dies after the answer: a refusal.
    pub fn kill(&self) {
        while !self.progress().is_empty {
            self.concealment.refuse(|_| true);
            self.world.around().refuse(|process| self.has(process));
            if self.members.kill() == 0 {
                return;
            }
            thread::sleep(SHORT_PAUSE);
        }
    }

    /// Passes input to the job if the job waits for input. Returns whether input was passed.
    pub fn pass_on(&self, from: &mut File) -> bool {
        let progress = self.progress();
        // Input of the user for a concealed job would be lost with the job.
        if progress.ended.is_some() || !progress.is_committed {
            return false;
        }
        let passed = self.input.pass_on(from, || self.processes());
        passed.unwrap_or_else(|error| {
            let id = self.id;
            tracing::debug!("job {id} cannot be given what its user says: {error}");
            false
        })
    }

    /// Sends a signal to the processes.
    pub fn signal(&self, signal: Signal) {
        if self.progress().is_empty {
            return;
        }
        self.members.signal(signal, self.session);
    }
}

/// The program of a process: at most 15 bytes of its name (`/proc/PID/comm`).
fn program_of(process: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm"));
    name.unwrap_or_default().trim_end().to_owned()
}

/// A time before the date of any later file. The kernel dates by ticks, at least a hundred in a second.
fn before_now() -> Time {
    let tick = Duration::from_millis(10);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let before = now.unwrap_or_default().saturating_sub(tick);
    Time::default().later(before)
}
