//! What is concealed of an encapsulation, until it is shown; and the calls that wait for that.

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

/// The file system of one encapsulation. Clones are the same one.
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
    /// How often the kernel has asked.
    asked: AtomicU64,
}

/// A call that waits.
struct WaitingCall {
    why: &'static str,
    process: u32,
    resume: Resume,
}

/// What is done when it goes on, or is refused.
type Resume = Box<dyn FnOnce(&Concealment, Verdict) + Send>;

/// What becomes of it.
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

/// Why something was not revealed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// What it has read is not what it was.
    #[error("an input has changed: {0:?}")]
    Stale(Stale),
    /// It has been committed before.
    #[error("committed already")]
    Already,
    /// It was aborted.
    #[error("aborted")]
    Aborted,
    /// An effect could not be carried out; those before it have been.
    #[error("could not carry out {effect:?}: {errno}")]
    Impossible {
        /// Which one.
        effect: Effect,
        /// Why.
        errno: rustix::io::Errno,
        /// How many there were before it.
        shown: usize,
    },
}

/// Whether files that it is to show, and others have shown already, are as they were then.
fn is_as_made(concealed: &Encapsulation, hidden: &Hidden) -> Result<(), Stale> {
    let written = concealed.effects().iter().find_map(|effect| match effect {
        Effect::Create { path, id } | Effect::Replace { path, id } => {
            // One that is not there says so when it is to be shown.
            let is_so = hidden.is_as_made(*id).unwrap_or(true);
            (!is_so).then(|| path.clone())
        }
        _ => None,
    });
    written.map_or(Ok(()), |path| Err(Stale::Changed(path)))
}

impl Concealment {
    /// Of an encapsulation above those trees: what it does to them is concealed.
    #[must_use]
    pub fn new(encapsulation: Encapsulation, real: Arc<BaseTree>, hidden: Arc<Hidden>) -> Self {
        Self::with(encapsulation, real, hidden, Gate::Conceals)
    }

    /// Of an encapsulation above those trees that is not known yet: `before` stands for it until it
    /// [begins](Self::begin), and the kernel remembers nothing of that.
    pub(crate) fn spare(before: Encapsulation, real: Arc<BaseTree>, hidden: Arc<Hidden>) -> Self {
        let this = Self::new(before, real, hidden);
        this.state().is_spare = true;
        this
    }

    /// What is done to the trees is concealed by this one from now on.
    pub(crate) fn begin(&self, encapsulation: Encapsulation) {
        let mut state = self.state();
        state.tree.concealed = Some(encapsulation);
        state.is_spare = false;
    }

    /// Of what is around those: it is read, and nothing in it is changed, but by processes of which `may_change` says
    /// that they may. Others wait, until [`Concealment::release`].
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

    /// To answer the kernel.
    pub(crate) fn answering(&self) -> MutexGuard<'_, State> {
        self.shared.asked.fetch_add(1, Ordering::Relaxed);
        self.state()
    }

    /// How often the kernel has asked so far: those who wait for answers take longer than with files as they are.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.shared.asked.load(Ordering::Relaxed)
    }

    fn waiting_calls(&self) -> MutexGuard<'_, Vec<WaitingCall>> {
        let waiting_calls = self.shared.waiting_calls.lock();
        waiting_calls.unwrap_or_else(PoisonError::into_inner)
    }

    /// The encapsulation, while it is one: `None` when it has been committed.
    pub fn with_encapsulation<T>(&self, look: impl FnOnce(&mut Encapsulation) -> T) -> Option<T> {
        self.state().tree.concealed.as_mut().map(look)
    }

    /// Hidden files that it needs: for what it will show, or, when it is committed, those that are known to who is in
    /// it.
    pub fn needed(&self, into: &mut BTreeSet<HiddenId>) {
        let state = self.state();
        match &state.tree.concealed {
            Some(concealed) => concealed.hidden(into),
            // What it shows it has shown.
            None => into.extend(state.nodes.hidden()),
        }
    }

    /// What waits, and who: process and reason.
    #[must_use]
    pub fn waiting(&self) -> Vec<(u32, &'static str)> {
        let waiting_calls = self.waiting_calls();
        waiting_calls
            .iter()
            .map(|waiting_calls| (waiting_calls.process, waiting_calls.why))
            .collect()
    }

    /// Who is to look again when something has changed: nobody can be told before it is known.
    pub(crate) fn set_invalidator(&self, invalidator: CacheInvalidator) {
        *self.invalidator() = Some(Arc::new(invalidator));
    }

    fn invalidator(&self) -> MutexGuard<'_, Option<Arc<CacheInvalidator>>> {
        let invalidator = self.shared.invalidator.lock();
        invalidator.unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody answers any more. The kernel lets go of who asks, if nothing is left that it could be told by.
    pub(crate) fn end(&self) {
        let (invalidator, waiting_calls) = (
            self.invalidator().take(),
            std::mem::take(&mut *self.waiting_calls()),
        );
        drop((invalidator, waiting_calls));
    }

    /// The kernel reads and writes files by itself: it wants that of each who opens one of which it does.
    pub(crate) fn pass_through(&self) {
        let _ = self.shared.passthrough.set(());
    }

    /// Whether it does: what is written to memory of a file is in the file at once.
    #[must_use]
    pub fn passes_through(&self) -> bool {
        self.shared.passthrough.get().is_some()
    }

    /// The encapsulation has taken up these: the kernel is to look again.
    pub fn changed(&self, effects: &[Effect]) {
        let places = self.state().nodes.changed(effects);
        self.expire_names(&places);
    }

    /// Nothing is locked here: the kernel asks before it forgets.
    fn expire_names(&self, places: &[(u64, OsString)]) {
        let invalidator = self.invalidator().clone();
        if let Some(invalidator) = invalidator {
            for (parent, name) in places {
                invalidator.expire(*parent, name);
            }
        }
    }

    /// Who has a file open does not ask for it by name.
    fn outdate_attributes(&self, numbers: &[u64]) {
        let invalidator = self.invalidator().clone();
        if let Some(invalidator) = invalidator {
            numbers
                .iter()
                .for_each(|number| invalidator.outdate(*number));
        }
    }

    /// Shows all that was concealed, if what was read is `there` as it was; from then on nothing is concealed, and what
    /// waited goes on. How many effects that was.
    ///
    /// # Errors
    /// If it cannot be. When something was shown before that, it stays.
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
            // It runs until somebody has ended it: what it does from now on nobody has asked for.
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
        // First those who wait, as they hold what the kernel locks to forget a name.
        self.resume(|_| true, Verdict::Done);
        self.expire_names(&places);
        self.outdate_attributes(&numbers);
        sync::make_safe(&unsafe_yet);
        Ok(effects)
    }

    /// What waits of those processes goes on.
    pub fn release(&self, of: impl Fn(u32) -> bool) {
        self.resume(of, Verdict::Done);
    }

    /// What waits of those processes fails.
    pub fn refuse(&self, of: impl Fn(u32) -> bool) {
        self.resume(of, Verdict::Refused);
    }

    fn resume(&self, of: impl Fn(u32) -> bool, verdict: Verdict) {
        // Of whom it is being decided right now is held when that is known: it is decided, and they are held, in one
        // go.
        drop(self.state());
        let waiting: HashSet<u32> = self
            .waiting_calls()
            .iter()
            .map(|waiting_calls| waiting_calls.process)
            .collect();
        // Nothing is locked meanwhile: who says it may lock what others hold who ask who waits.
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

    /// Does it, and answers; or keeps it until it may be done.
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
