//! The concealed state of an encapsulation, and the calls that wait for the commit.

use std::{
    collections::{BTreeSet, HashSet},
    ffi::OsString,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use encapsulation::{Base, Effect, Encapsulation, HiddenId, Stale};
use fuser::{Errno, Request};

use crate::{
    base_tree::BaseTree,
    invalidation::CacheInvalidator,
    reveal,
    state::{Answer, Refusal, State},
    store::Hidden,
    sync,
    tree::{Gate, Tree},
};

/// The file system of an encapsulation. Clones share the state.
#[derive(Debug, Clone)]
pub struct Concealment {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    waiting_calls: Mutex<Vec<WaitingCall>>,
    invalidator: Mutex<Option<Arc<CacheInvalidator>>>,
    passthrough: OnceLock<()>,
    /// Number of requests of the kernel.
    asked: AtomicU64,
}

/// A call that waits for the commit.
struct WaitingCall {
    why: &'static str,
    process: u32,
    resume: Resume,
}

/// Continues or refuses a waiting call.
type Resume = Box<dyn FnOnce(&Concealment, Verdict) + Send>;

/// Decision about a waiting call.
#[derive(Debug, Clone, Copy)]
enum Verdict {
    Done,
    Refused,
}

impl fmt::Debug for WaitingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}: {}", self.process, self.why)
    }
}

/// Reason of a commit that failed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// An input has changed since it was read.
    #[error("an input has changed: {0:?}")]
    Stale(Stale),
    /// An earlier commit succeeded.
    #[error("committed already")]
    Already,
    /// The encapsulation was aborted.
    #[error("aborted")]
    Aborted,
    /// An effect could not be carried out. The effects before that are visible.
    #[error("could not carry out {effect:?}: {errno}")]
    Impossible {
        /// The effect.
        effect: Effect,
        /// The error of the kernel.
        errno: rustix::io::Errno,
        /// Number of effects before that.
        shown: usize,
    },
}

/// Whether files that another encapsulation has revealed already are still as they were made.
fn is_as_made(concealed: &Encapsulation, hidden: &Hidden) -> Result<(), Stale> {
    let written = concealed.effects().iter().find_map(|effect| match effect {
        Effect::Create { path, id } | Effect::Replace { path, id } => {
            // The reveal reports a missing file.
            let is_so = hidden.is_as_made(*id).unwrap_or(true);
            (!is_so).then(|| path.clone())
        }
        _ => None,
    });
    written.map_or(Ok(()), |path| Err(Stale::Changed(path)))
}

impl Concealment {
    /// Conceals the effects of an encapsulation above these trees.
    #[must_use]
    pub fn new(encapsulation: Encapsulation, real: Arc<BaseTree>, hidden: Arc<Hidden>) -> Self {
        Self::with(encapsulation, real, hidden, Gate::Conceals)
    }

    /// Conceals the effects of an encapsulation that is not known yet: `before` stands for that encapsulation until
    /// [`Self::begin`], and the kernel caches nothing until then.
    pub(crate) fn spare(before: Encapsulation, real: Arc<BaseTree>, hidden: Arc<Hidden>) -> Self {
        let this = Self::new(before, real, hidden);
        this.state().is_spare = true;
        this
    }

    /// Conceals the effects of this encapsulation from now on.
    pub(crate) fn begin(&self, encapsulation: Encapsulation) {
        let mut state = self.state();
        state.tree.concealed = Some(encapsulation);
        state.is_spare = false;
    }

    /// The surroundings of the trees: reads are recorded, and only processes with the permission of `may_change`
    /// change files. Other processes wait until [`Concealment::release`].
    #[must_use]
    pub fn around(
        encapsulation: Encapsulation,
        real: Arc<BaseTree>,
        hidden: Arc<Hidden>,
        may_change: Arc<dyn Fn(u32) -> bool + Send + Sync>,
    ) -> Self {
        Self::with(encapsulation, real, hidden, Gate::Asks(may_change))
    }

    fn with(
        encapsulation: Encapsulation,
        real: Arc<BaseTree>,
        hidden: Arc<Hidden>,
        gate: Gate,
    ) -> Self {
        let tree = Tree {
            real,
            hidden,
            concealed: Some(encapsulation),
            gate,
            process: 0,
        };
        let shared = Shared {
            state: Mutex::new(State::new(tree)),
            waiting_calls: Mutex::default(),
            invalidator: Mutex::default(),
            passthrough: OnceLock::new(),
            asked: AtomicU64::new(0),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        let state = self.shared.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, for an answer to the kernel.
    pub(crate) fn answering(&self) -> MutexGuard<'_, State> {
        self.shared.asked.fetch_add(1, Ordering::Relaxed);
        self.state()
    }

    /// Number of requests of the kernel so far. A process with many requests takes longer than with real files.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.shared.asked.load(Ordering::Relaxed)
    }

    fn waiting_calls(&self) -> MutexGuard<'_, Vec<WaitingCall>> {
        let waiting_calls = self.shared.waiting_calls.lock();
        waiting_calls.unwrap_or_else(PoisonError::into_inner)
    }

    /// The encapsulation; `None` after the commit.
    pub fn with_encapsulation<T>(&self, look: impl FnOnce(&mut Encapsulation) -> T) -> Option<T> {
        self.state().tree.concealed.as_mut().map(look)
    }

    /// Hidden files that the encapsulation needs: before the commit the files of the effects, afterwards the files that
    /// its processes know.
    pub fn needed(&self, into: &mut BTreeSet<HiddenId>) {
        let state = self.state();
        match &state.tree.concealed {
            Some(concealed) => concealed.hidden(into),
            // All effects are visible.
            None => into.extend(state.nodes.hidden()),
        }
    }

    /// Waiting processes and their reasons.
    #[must_use]
    pub fn waiting(&self) -> Vec<(u32, &'static str)> {
        let waiting_calls = self.waiting_calls();
        waiting_calls
            .iter()
            .map(|waiting_calls| (waiting_calls.process, waiting_calls.why))
            .collect()
    }

    /// Sets the way to the kernel's cache, once the file system is mounted.
    pub(crate) fn set_invalidator(&self, invalidator: CacheInvalidator) {
        *self.invalidator() = Some(Arc::new(invalidator));
    }

    fn invalidator(&self) -> MutexGuard<'_, Option<Arc<CacheInvalidator>>> {
        let invalidator = self.shared.invalidator.lock();
        invalidator.unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all answers. The kernel releases waiting processes when no connection to this program is left.
    pub(crate) fn end(&self) {
        let (invalidator, waiting_calls) = (
            self.invalidator().take(),
            std::mem::take(&mut *self.waiting_calls()),
        );
        drop((invalidator, waiting_calls));
    }

    /// Lets the kernel read and write files by itself. The kernel needs this for each open of such a file.
    pub(crate) fn pass_through(&self) {
        let _ = self.shared.passthrough.set(());
    }

    /// Whether the kernel reads and writes by itself (FUSE passthrough). Writes to mapped memory are then in the file
    /// at once.
    #[must_use]
    pub fn passes_through(&self) -> bool {
        self.shared.passthrough.get().is_some()
    }

    /// Tells the kernel that absorbed effects have changed these files.
    pub fn changed(&self, effects: &[Effect]) {
        let places = self.state().nodes.changed(effects);
        self.expire_names(&places);
    }

    /// No lock is held here, because the kernel asks this file system before the kernel forgets a name.
    fn expire_names(&self, places: &[(u64, OsString)]) {
        let invalidator = self.invalidator().clone();
        if let Some(invalidator) = invalidator {
            for (parent, name) in places {
                invalidator.expire(*parent, name);
            }
        }
    }

    /// A process with an open file does not ask for the name.
    fn outdate_attributes(&self, numbers: &[u64]) {
        let invalidator = self.invalidator().clone();
        if let Some(invalidator) = invalidator {
            numbers
                .iter()
                .for_each(|number| invalidator.outdate(*number));
        }
    }

    /// Reveals all effects if the inputs are unchanged in `there`. From then on no effect is concealed, and waiting
    /// calls continue. Returns the number of effects.
    ///
    /// # Errors
    /// The commit is not possible. Effects that were visible before the error stay.
    pub fn commit(&self, there: &dyn Base) -> Result<usize, CommitError> {
        let mut state = self.state();
        let Some(concealed) = state.tree.concealed.take() else {
            return Err(CommitError::Already);
        };
        let checked = concealed.inputs().check(there);
        if let Err(stale) = checked.and_then(|()| is_as_made(&concealed, &state.tree.hidden)) {
            state.tree.concealed = Some(concealed);
            return Err(CommitError::Stale(stale));
        }
        let effects = concealed.effects();
        let (real, hidden) = (&state.tree.real, &state.tree.hidden);
        if let Err((which, errno)) = reveal::reveal(effects, real, hidden) {
            // The program runs until a kill. Its later effects are not wanted.
            state.tree.gate = Gate::Shut;
            let shown = which;
            return Err(CommitError::Impossible {
                effect: effects[which].clone(),
                errno,
                shown,
            });
        }
        reveal::set_directory_times(&concealed.directory_times(), real);
        let unsafe_yet = sync::unsafe_yet(&concealed, real, hidden);
        let (effects, places) = (effects.len(), state.nodes.all());
        let numbers: Vec<_> = state.nodes.numbers().collect();
        drop(state);
        // Waiting calls first: they hold kernel locks that the invalidation of a name needs.
        self.resume(|_| true, Verdict::Done);
        self.expire_names(&places);
        self.outdate_attributes(&numbers);
        sync::make_safe(&unsafe_yet);
        Ok(effects)
    }

    /// Continues the waiting calls of these processes.
    pub fn release(&self, of: impl Fn(u32) -> bool) {
        self.resume(of, Verdict::Done);
    }

    /// Refuses the waiting calls of these processes.
    pub fn refuse(&self, of: impl Fn(u32) -> bool) {
        self.resume(of, Verdict::Refused);
    }

    fn resume(&self, of: impl Fn(u32) -> bool, verdict: Verdict) {
        // The state is locked: a decision about a call and its entry in the list are one step.
        drop(self.state());
        let waiting: HashSet<u32> = self
            .waiting_calls()
            .iter()
            .map(|waiting_calls| waiting_calls.process)
            .collect();
        // No lock is held here: the closure may take locks of threads that ask for the waiting calls.
        let may: HashSet<u32> = waiting.into_iter().filter(|process| of(*process)).collect();
        let mut waiting_calls = self.waiting_calls();
        let (go, stay) = waiting_calls
            .drain(..)
            .partition(|waiting_calls| may.contains(&waiting_calls.process));
        *waiting_calls = stay;
        drop(waiting_calls);
        for waiting_calls in go {
            (waiting_calls.resume)(self, verdict);
        }
    }

    /// Performs the call and answers, or keeps the call until it may be performed.
    pub(crate) fn attempt<R: Send + 'static, T: 'static>(
        &self,
        request: &Request,
        reply: R,
        mut act: impl FnMut(&mut State) -> Answer<T> + Send + 'static,
        answer: impl FnOnce(&Self, &mut State, R, Result<T, Errno>) + Send + 'static,
    ) {
        let process = request.pid();
        let mut state = self.answering();
        state.tree.process = process;
        let outcome = match act(&mut state) {
            Ok(done) => Ok(done),
            Err(Refusal::Errno(errno)) => Err(errno),
            Err(Refusal::Waits(why)) => {
                let resume = move |this: &Self, verdict: Verdict| match verdict {
                    Verdict::Done => this.retry(process, reply, act, answer),
                    Verdict::Refused => {
                        answer(this, &mut this.state(), reply, Err(Errno::EPERM));
                    }
                };
                let resume = Box::new(resume);
                return self.waiting_calls().push(WaitingCall {
                    why,
                    process,
                    resume,
                });
            }
        };
        answer(self, &mut state, reply, outcome);
    }

    fn retry<R: Send + 'static, T: 'static>(
        &self,
        process: u32,
        reply: R,
        mut act: impl FnMut(&mut State) -> Answer<T> + Send + 'static,
        answer: impl FnOnce(&Self, &mut State, R, Result<T, Errno>) + Send + 'static,
    ) {
        let mut state = self.state();
        state.tree.process = process;
        let outcome = act(&mut state).map_err(|refusal| match refusal {
            Refusal::Errno(errno) => errno,
            Refusal::Waits(_) => Errno::EPERM,
        });
        answer(self, &mut state, reply, outcome);
    }
}
