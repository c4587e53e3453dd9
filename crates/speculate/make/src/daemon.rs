//! Commands by name whose effects are kept until a commit: *create*, *mandate* and *abort* (`rice-annual-report-1989`,
//! first part, section 3).
//!
//! A command may have other commands as inputs. The command begins when the inputs have ended, on top of the effects
//! of all inputs together; with a conflict among the inputs, the command does not begin. A commit commits the inputs
//! first. An abort also aborts the commands with this command as an input.

mod messages;
mod speculation;

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write as _},
    os::{
        fd::OwnedFd,
        unix::{
            fs::MetadataExt as _,
            net::{UnixListener, UnixStream},
        },
    },
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use conceal::{base_tree::BaseTree, concealment::CommitError};
use encapsulation::{Conflict, Effect, Encapsulation, Stale, Time};

pub use messages::{Create, Listed, ListedState, Reply, Request};
use speculation::{Speculation, Stage};

use crate::{
    command::Status,
    drain::drain,
    job::{BeginError, Job},
    link::{self, STREAM_COUNT},
    listener::{CountGuard, listen_to},
    worlds::{MayChange, Worlds, around_is_stale},
};

/// Time between two looks for commands that have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Longest time without a first request.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The process that keeps the speculations of a tree.
#[derive(Debug)]
pub struct Daemon {
    worlds: Worlds,
    all: Mutex<BTreeMap<String, Arc<Speculation>>>,
    /// Committed jobs with processes left.
    left: Mutex<Vec<Arc<Job>>>,
    next: AtomicU64,
    is_over: AtomicBool,
    /// Number of requests in progress.
    asked: AtomicUsize,
    began: Instant,
}

impl Daemon {
    /// Conceals effects in these directories.
    ///
    /// # Errors
    /// If programs cannot be concealed here.
    pub fn new(concealed: &[PathBuf]) -> Result<Arc<Self>, BeginError> {
        let here = Arc::new(OnceLock::<Weak<Self>>::new());
        let daemon = Arc::clone(&here);
        let may_change: MayChange = Arc::new(move |process| {
            let daemon = daemon.get().and_then(Weak::upgrade);
            daemon.is_some_and(|daemon| daemon.is_committed(process))
        });
        let daemon = Arc::new(Self {
            worlds: Worlds::new(concealed, may_change, Vec::new(), Vec::new())?,
            all: Mutex::default(),
            left: Mutex::default(),
            next: AtomicU64::new(1),
            is_over: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            began: Instant::now(),
        });
        // The weak reference is set only here.
        let _ = here.set(Arc::downgrade(&daemon));
        Ok(daemon)
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Speculation>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_committed(&self, process: u32) -> bool {
        let is_its = |job: &Arc<Job>| {
            let progress = job.progress();
            progress.is_committed && !progress.is_empty && job.members.has(process)
        };
        self.jobs().iter().any(is_its)
    }

    /// The jobs of all speculations, and committed jobs with processes left.
    fn jobs(&self) -> Vec<Arc<Job>> {
        let mut all: Vec<_> = self
            .all()
            .values()
            .filter_map(|speculation| speculation.job())
            .collect();
        all.extend(self.left().iter().cloned());
        all
    }

    /// Whether no speculation is left, or none came within the timeout.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let was =
            self.next.load(Ordering::Acquire) > 1 || self.began.elapsed() > FIRST_REQUEST_TIMEOUT;
        was && self.all().is_empty() && !self.has_remaining_process() && !self.is_answering()
    }

    /// Whether a client waits for an answer, perhaps for the end of an aborted command.
    fn is_answering(&self) -> bool {
        self.asked.load(Ordering::Acquire) > 0
    }

    fn left(&self) -> MutexGuard<'_, Vec<Arc<Job>>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers all clients, and aborts speculations after their timeout, until no speculation is left or `stop` is
    /// set.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn run(self: &Arc<Self>, listener: UnixListener, stop: &AtomicBool) -> io::Result<()> {
        let this = Arc::clone(self);
        thread::Builder::new()
            .name("asked".into())
            .spawn(move || this.listen(&listener))?;
        let mut known = 0;
        while !stop.load(Ordering::Acquire) && !self.is_done() {
            thread::sleep(POLL_INTERVAL);
            let now = self.all().len();
            if now < std::mem::replace(&mut known, now) {
                self.worlds.sweep(|| self.jobs());
            }
            let is_late = |speculation: &Arc<Speculation>| speculation.is_late();
            let late: Vec<_> = self
                .all()
                .values()
                .filter(|it| is_late(it))
                .cloned()
                .collect();
            for speculation in late {
                tracing::info!("{} was not committed in time", speculation.create.name);
                self.give_up(&speculation);
            }
        }
        self.is_over.store(true, Ordering::Release);
        let all: Vec<_> = self.all().values().cloned().collect();
        for speculation in all {
            // A command with a waiting user is waited for, and stays known until then: such a command may change files
            // around the trees.
            while !speculation.give_up() && !speculation.has_ended() {
                thread::sleep(POLL_INTERVAL);
            }
        }
        // The same for a committed command with processes left that need this program.
        while self.is_answering() || self.has_remaining_process() {
            thread::sleep(POLL_INTERVAL);
        }
        self.worlds.end();
        Ok(())
    }

    fn has_remaining_process(&self) -> bool {
        let mut left = self.left();
        left.retain(|job| !job.is_over());
        !left.is_empty()
    }

    fn listen(self: &Arc<Self>, listener: &UnixListener) {
        listen_to(listener, || {
            let this = Arc::clone(self);
            move |mut asker| {
                let request = link::receive_request(&mut asker)?;
                let _answering = CountGuard::one(&this.asked);
                this.answer(request, &mut asker)
            }
        });
    }

    fn answer(
        self: &Arc<Self>,
        (streams, request): ([OwnedFd; STREAM_COUNT], Request),
        asker: &mut UnixStream,
    ) -> io::Result<()> {
        let streams = streams.map(File::from);
        let reply = match request {
            // The client asks the next daemon.
            Request::Create(_) if self.is_over() && self.jobs().is_empty() => return Ok(()),
            Request::Create(create) => match self.create(*create) {
                Ok(()) => Reply::Created,
                Err(why) => Reply::Refused(why),
            },
            Request::Commit(name) => match self
                .by_name(&name)
                .and_then(|speculation| self.commit(&speculation, streams, asker))
            {
                Ok((effects, status)) => Reply::Committed(effects, status),
                Err(why) => Reply::Refused(why),
            },
            Request::Abort(name) => match self.by_name(&name) {
                Ok(speculation) => Reply::Aborted(self.abort(&speculation)),
                Err(why) => Reply::Refused(why),
            },
            Request::List => Reply::Listed(
                self.all()
                    .values()
                    .map(|speculation| speculation.listed())
                    .collect(),
            ),
        };
        link::send(asker, &reply)
    }

    /// Begins the command when all inputs have ended.
    fn create(self: &Arc<Self>, create: Create) -> Result<(), String> {
        let mut all = self.all();
        if self.is_over() {
            return Err("a committed command still runs in this tree, and the process that keeps speculations here was told to end: try again when that command has ended".into());
        }
        if all.contains_key(&create.name) {
            return Err(format!(
                "a speculation is called {} already: commit or abort that speculation, or choose another name",
                create.name
            ));
        }
        let input = |name: &String| all.get(name).cloned().ok_or_else(|| unknown(name));
        let inputs = create.inputs.iter().map(input).collect::<Result<_, _>>()?;
        let speculation = Arc::new(Speculation::new(create, inputs));
        all.insert(speculation.create.name.clone(), Arc::clone(&speculation));
        drop(all);
        if speculation.inputs.iter().all(|input| input.has_ended()) {
            return self.begin(&speculation).inspect_err(|_| {
                self.forget(&speculation);
                self.next.fetch_add(1, Ordering::AcqRel);
            });
        }
        self.next.fetch_add(1, Ordering::AcqRel);
        let this = Arc::clone(self);
        thread::spawn(move || {
            while !speculation.inputs.iter().all(|input| input.has_ended()) {
                if this.is_over() || speculation.has_failed() {
                    return;
                }
                thread::sleep(POLL_INTERVAL);
            }
            if let Err(why) = this.begin(&speculation) {
                speculation.reach(Stage::Failed(why));
            }
        });
        Ok(())
    }

    fn begin(&self, speculation: &Speculation) -> Result<(), String> {
        let failed = |error: &dyn std::error::Error| error.to_string();
        let jobs = speculation.inputs.iter().map(|input| {
            let name = &input.create.name;
            input
                .job()
                .ok_or_else(|| format!("{name}, its input, has not been begun"))
        });
        let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
        self.worlds.renew().map_err(|error| failed(&error))?;
        let world = match jobs.first() {
            Some(input) => Arc::clone(&input.world),
            None => self.worlds.current(),
        };
        if jobs.iter().any(|input| !Arc::ptr_eq(&input.world, &world)) {
            return Err(
                "files around the tree have changed between the inputs: create the inputs again"
                    .into(),
            );
        }
        let mut below = world.encapsulation();
        for (input, job) in speculation.inputs.iter().zip(&jobs) {
            let name = &input.create.name;
            let take = |done: &mut Encapsulation| below.absorb(done, Time::default());
            match job.concealment.with_encapsulation(take) {
                // The effects of a committed input are in the tree.
                None | Some(Ok(())) => {}
                Some(Err(conflict)) => return Err(conflict_message(name, &conflict, world.real())),
            }
        }
        let hidden = Arc::clone(world.hidden());
        let above = Encapsulation::new(Arc::new(below.snapshot()), hidden as _);
        let id = self.next.fetch_add(1, Ordering::AcqRel);
        let command = speculation.create.command.clone();
        let job = Job::begin(id, command, world, above, false).map_err(|error| failed(&error))?;
        if !speculation.has_begun(&job) {
            job.abort();
        }
        Ok(())
    }

    /// Commits the inputs, then the command, which goes on visibly. Returns the number of effects and the end of the
    /// command.
    fn commit(
        &self,
        speculation: &Arc<Speculation>,
        streams: [File; 3],
        asker: &mut UnixStream,
    ) -> Result<(usize, Status), String> {
        let name = &speculation.create.name;
        let mut effects = 0;
        for input in speculation
            .inputs
            .iter()
            .filter(|input| !input.is_committed())
        {
            let [says, out, err] = &streams;
            let clones =
                || Ok::<_, io::Error>([says.try_clone()?, out.try_clone()?, err.try_clone()?]);
            let streams = clones().map_err(|error| error.to_string())?;
            effects += self.commit(input, streams, asker)?.0;
        }
        let job = speculation.wait_until_begun(|| link::is_gone(asker))?;
        if let Some(stale) = around_is_stale(&job.world) {
            let around = job.world.everything();
            return Err(format!(
                "{name} cannot be committed any more: {} since it was read; abort {name}, and run the command again",
                stale_in(around, &stale)
            ));
        }
        let real = job.world.real();
        effects += job.commit(&**real).map_err(|error| match error {
            CommitError::Already => {
                format!("{name} is committed already")
            }
            CommitError::Stale(stale) => format!(
                "{name} cannot be committed: {} since it was read; abort {name}, and run the command again",
                stale_in(real, &stale)
            ),
            CommitError::Impossible {
                effect,
                errno,
                shown,
            } => format!(
                "{name} cannot be shown: {}: {}; {} shown before that; abort it, and create it again",
                done_in(real, &effect),
                std::io::Error::from(errno),
                match shown {
                    1 => "1 effect was".to_owned(),
                    shown => format!("{shown} effects were"),
                }
            ),
            CommitError::Aborted => format!("{name} was aborted"),
        })?;
        let around = job.world.around();
        around.release(|process| self.is_committed(process));
        let [says, out, mut err] = streams;
        if job.command.is_joined && !is_same_place(&out, &err) {
            let line = format!(
                "outlive: {name} was created with one place for output and errors: its errors are in the output\n"
            );
            // A client that does not read misses this message, too.
            let _ = err.write_all(line.as_bytes());
        }
        job.output.show([out, err]);
        let status = drain(&job, Some(says), asker);
        if !job.is_over() {
            self.left().push(job);
        }
        self.forget(speculation);
        Ok((effects, status))
    }

    fn by_name(&self, name: &str) -> Result<Arc<Speculation>, String> {
        self.all().get(name).cloned().ok_or_else(|| unknown(name))
    }

    /// The name may belong to another speculation by now.
    fn forget(&self, speculation: &Arc<Speculation>) {
        let mut all = self.all();
        let name = &speculation.create.name;
        if all.get(name).is_some_and(|it| Arc::ptr_eq(it, speculation)) {
            all.remove(name);
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Aborts the speculation and all speculations above. Returns their names.
    fn abort(&self, speculation: &Arc<Speculation>) -> Vec<String> {
        let mut names = Vec::new();
        for other in self.above(speculation) {
            names.extend(self.abort(&other));
        }
        speculation.abort();
        self.forget(speculation);
        names.push(speculation.create.name.clone());
        names
    }

    /// The same for a speculation that no user has committed.
    fn give_up(&self, speculation: &Arc<Speculation>) {
        if speculation.give_up() {
            for other in self.above(speculation) {
                self.give_up(&other);
            }
            self.forget(speculation);
        }
    }

    /// Speculations with this one as an input.
    fn above(&self, speculation: &Arc<Speculation>) -> Vec<Arc<Speculation>> {
        let is_above = |other: &&Arc<Speculation>| {
            let mut inputs = other.inputs.iter();
            inputs.any(|input| Arc::ptr_eq(input, speculation))
        };
        self.all().values().filter(is_above).cloned().collect()
    }
}

fn is_same_place(one: &File, other: &File) -> bool {
    let place = |file: &File| {
        let file = file.metadata().ok()?;
        Some((file.dev(), file.ino()))
    };
    place(one) == place(other)
}

fn unknown(name: &str) -> String {
    format!("no speculation is called {name}: `outlive speculate list` shows all")
}

/// The stale input.
fn stale_in(real: &BaseTree, stale: &Stale) -> String {
    match stale {
        Stale::Changed(path) => format!("{} has changed", real.path_of(path).display()),
        Stale::Listing(path) => {
            let directory = real.path_of(path);
            format!("there are other names in {}", directory.display())
        }
    }
}

/// The effect that failed.
fn done_in(real: &BaseTree, effect: &Effect) -> String {
    let files = effect.paths().map(|path| real.path_of(path));
    let files: Vec<_> = files.map(|path| path.display().to_string()).collect();
    files.join(" and ")
}

fn conflict_message(name: &str, conflict: &Conflict, real: &BaseTree) -> String {
    match conflict {
        Conflict::Stale(stale) => format!(
            "{name}, its input, has read what another one of its inputs has changed: {}",
            stale_in(real, stale)
        ),
        Conflict::Impossible(effect, _) => format!(
            "{name}, its input, and another one of its inputs exclude each other: both have made or changed {}",
            done_in(real, effect)
        ),
    }
}
