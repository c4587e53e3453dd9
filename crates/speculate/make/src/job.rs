//! One command that is done concealed: a make, or what it has begun.

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
/// Why it waits ([`Output::is_full`]).
const OUTPUT_FULL_REASON: &str = "more output than is kept before the commit";
/// How often it is looked whether what a command has left running has ended.
const LEFT_BEHIND: Duration = Duration::from_millis(100);

/// The number of a job.
pub type JobId = u64;

/// A command that runs, or has run.
#[derive(Debug)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// What was asked for.
    pub command: Command,
    /// What it sees and does.
    pub concealment: Concealment,
    /// What it says.
    pub output: Output,
    /// What it would read from its user.
    input: Input,
    /// Where it is done.
    pub world: Arc<World>,
    /// Its processes.
    pub members: Members,
    /// The session that the first of the processes has made.
    session: u32,
    /// The requests of the processes, while a process runs; afterwards, whether a process has read the size of the
    /// terminal.
    gate: Mutex<Result<SyscallGate, EndedGate>>,
    /// Whether it is a make that nobody has asked for yet, and not what one has begun.
    pub is_make: bool,
    /// What it has taken over.
    parts: Mutex<Vec<Arc<Job>>>,
    progress: Mutex<Progress>,
    changed: Condvar,
    began: Instant,
    /// As files are dated that are made from then on.
    since: Time,
}

/// What is known of the requests of a command of which no process is left.
#[derive(Debug, Clone, Copy)]
struct EndedGate {
    sized: SizeReaders,
    /// How many there were.
    asked: u64,
}

/// How far it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// How it ended, and how long it ran.
    pub ended: Option<(Status, Duration)>,
    /// Processor time until the end, without the jobs that this job has taken over.
    pub worked: Duration,
    /// A user is about to commit this job, or has: an abort is not possible any more.
    pub is_wanted: bool,
    /// The job is committed: no effect is concealed.
    pub is_committed: bool,
    /// It is worth nothing any more.
    pub is_aborted: bool,
    /// No process of it is left.
    pub is_empty: bool,
    /// The user has asked for the command of which this job is a part: a thread that waits for the job has to look.
    pub is_asked_for: bool,
    /// Some processes have left the job's mounts: the session alone identifies these.
    pub is_left_by_some: bool,
}

/// What cannot be begun.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// It has no place to run in.
    #[error(transparent)]
    World(#[from] conceal::world::WorldError),
    /// What it takes to begin any is not there.
    #[error("cannot begin commands: {0}")]
    Nothing(#[from] std::io::Error),
    /// It cannot be run.
    #[error("cannot run {0:?}: {1}")]
    Command(std::ffi::OsString, std::io::Error),
}

impl Job {
    /// Begins it, above what the encapsulation has as its base.
    ///
    /// # Errors
    /// If it cannot be begun.
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
        // SAFETY: between fork and exec this makes some calls of the system, and allocates nothing.
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
        // Its ends are its own now.
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
        // Its number may be another one's from here on. That takes the kernel some milliseconds, for which nobody
        // waits.
        drop(view);
    }

    /// Whether none of its processes is left. A look at all that there are in the machine takes longer than many a
    /// command.
    fn has_ended_entirely(&self) -> bool {
        let gate = self.gate();
        let may_be = gate.as_ref().map_or(true, SyscallGate::is_anybody_left);
        drop(gate);
        // Memory of files that ends with who is about to end is still on its way, where it is this process that writes
        // it.
        let is_written = self.concealment.passes_through();
        // Whatever mounts they have, the kernel asks for these, too.
        let is_known_by_mounts = !self.progress().is_left_by_some;
        !may_be && is_written || is_known_by_mounts && self.members.all().is_empty()
    }

    /// Nobody is in it any more.
    fn is_left(&self) {
        self.update(|progress| progress.is_empty = true);
        self.output.end();
        self.input.close();
        // Thousands may be finished and not asked for: nothing is kept open for them.
        let (sized, asked) = (self.sized(), self.calls());
        *self.gate() = Err(EndedGate { sized, asked });
    }

    fn gate(&self) -> MutexGuard<'_, Result<SyscallGate, EndedGate>> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who of it has asked for the size of its terminal.
    pub(crate) fn sized(&self) -> SizeReaders {
        match &*self.gate() {
            Ok(gate) => gate.sized(),
            Err(left) => left.sized,
        }
    }

    /// About how many calls of its processes the kernel has asked.
    fn calls(&self) -> u64 {
        match &*self.gate() {
            Ok(gate) => gate.asked(),
            Err(left) => left.asked,
        }
    }

    /// How many answers its processes have waited for.
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

    /// What another one has done, or does, is part of it.
    pub fn add_part(&self, part: &Arc<Self>) {
        let mut parts = self.own_parts();
        // The same may be asked for twice.
        if parts.iter().all(|other| other.id != part.id) {
            parts.push(Arc::clone(part));
        }
    }

    /// Another one is no part of it any more.
    pub fn remove_part(&self, part: &Self) {
        self.own_parts().retain(|other| other.id != part.id);
    }

    fn own_parts(&self) -> MutexGuard<'_, Vec<Arc<Self>>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has taken over.
    #[must_use]
    pub fn parts(&self) -> Vec<Arc<Self>> {
        self.own_parts().clone()
    }

    pub(crate) fn has_parts(&self) -> bool {
        !self.own_parts().is_empty()
    }

    /// Some of its processes have from now on the mounts of everybody.
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

    /// What waits until it is committed.
    #[must_use]
    pub fn waiting(&self) -> Vec<WaitingProcess> {
        // By which it was known may be another one's.
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

    /// Whether it is its user's own, has ended, and has left nothing running.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let progress = self.progress();
        progress.is_committed && progress.ended.is_some() && progress.is_empty
    }

    /// How far it is.
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

    /// Waits until it has ended, for so long at most; and not when that was asked for of which it is a part, for the
    /// first time.
    pub fn wait(&self, at_most: Duration) -> Progress {
        let progress = self.lock();
        let was_asked_for = progress.is_asked_for;
        let goes_on = |progress: &mut Progress| {
            progress.ended.is_none() && progress.is_asked_for == was_asked_for
        };
        let waited = self.changed.wait_timeout_while(progress, at_most, goes_on);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether all that it has read is as it is seen there.
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

    /// What it has done counts as done now: it is asked for by somebody for whom it was not begun.
    pub fn date_now(&self) {
        self.concealment.date_now(self.since);
    }

    /// Whether a process of it is left that says or does something, after it has ended. One that is about to end is
    /// waited for.
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

    /// Shows what it has done and says; it is its user's own from then on. How many effects were shown.
    ///
    /// # Errors
    /// If it cannot be.
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
                // Nothing of it is concealed any more, and nobody has it as their own.
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

    /// It is worth nothing any more from now on, unless it is its user's own.
    fn gives_up(&self) -> bool {
        let mut progress = self.lock();
        progress.is_aborted |= !progress.is_wanted;
        let is_given_up = !progress.is_wanted;
        drop(progress);
        self.changed.notify_all();
        is_given_up
    }

    /// How much processors have worked for it so far.
    pub(crate) fn working(&self) -> Activity {
        Activity::of(&self.processes())
    }

    /// Whether one of its processes wants a processor or an answer, and none waits for being asked for.
    pub(crate) fn works(&self) -> bool {
        if !self.waiting().is_empty() {
            return false;
        }
        let answers = self.asked();
        if !self.working().is_at_rest {
            return true;
        }
        // As one is for a moment that waits for another one of them.
        thread::sleep(SHORT_PAUSE);
        self.asked() != answers || !self.working().is_at_rest
    }

    /// Those that there are.
    fn processes(&self) -> Vec<Pid> {
        match self.progress().is_left_by_some {
            true => self.members.all_with(self.session),
            false => self.members.all(),
        }
    }

    fn has(&self, process: u32) -> bool {
        self.members.has(process)
    }

    /// Ends it, as [`Self::abort`] does, while who has said so goes on.
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

    /// Kills its processes. Who waits for an answer of ours in the kernel dies when it has one: a refusal.
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

    /// If it waits for its user, it is given what that says. Whether it was given something.
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

    /// Sends its processes a signal.
    pub fn signal(&self, signal: Signal) {
        if self.progress().is_empty {
            return;
        }
        self.members.signal(signal, self.session);
    }
}

/// What it runs, in the kernel's words: at most 15 bytes of its name.
fn program_of(process: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm"));
    name.unwrap_or_default().trim_end().to_owned()
}

/// No file that is made from now on is dated earlier: that is done by the kernel's ticks, a hundred in a second at
/// least.
fn before_now() -> Time {
    let tick = Duration::from_millis(10);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let before = now.unwrap_or_default().saturating_sub(tick);
    Time::default().later(before)
}
