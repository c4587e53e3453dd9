//! The world of the jobs: a new one after a change of a file around the trees that a job has read.

use std::{
    collections::BTreeSet,
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use conceal::world::{World, WorldError};
use encapsulation::{Encapsulation, Stale};

use crate::job::Job;

/// Whether a process may change files around the trees.
pub type MayChange = Arc<dyn Fn(u32) -> bool + Send + Sync>;

/// The settings of worlds, and the world in use.
pub struct Worlds {
    concealed: Vec<PathBuf>,
    may_change: MayChange,
    known: Vec<Vec<u8>>,
    instead: Vec<(PathBuf, PathBuf)>,
    current: Mutex<Arc<World>>,
}

impl Worlds {
    /// Conceals effects in these directories; the other arguments are those of [`World::new`].
    ///
    /// # Errors
    /// The errors of [`World::new`].
    pub fn new(
        concealed: &[PathBuf],
        may_change: MayChange,
        known: Vec<Vec<u8>>,
        instead: Vec<(PathBuf, PathBuf)>,
    ) -> Result<Self, WorldError> {
        let world = world(concealed, &may_change, &known, &instead)?;
        Ok(Self {
            concealed: concealed.to_owned(),
            may_change,
            known,
            instead,
            current: Mutex::new(Arc::new(world)),
        })
    }

    /// The world in which jobs begin.
    #[must_use]
    pub fn current(&self) -> Arc<World> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    /// Makes a new world if an input around the trees has changed. Returns that input.
    ///
    /// # Errors
    /// The errors of [`World::new`].
    pub fn renew(&self) -> Result<Option<Stale>, WorldError> {
        let Some(stale) = around_is_stale(&self.current()) else {
            return Ok(None);
        };
        let world = world(
            &self.concealed,
            &self.may_change,
            &self.known,
            &self.instead,
        )?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(world);
        Ok(Some(stale))
    }

    /// Ends the worlds ([`World::end`]). No job begins any more.
    pub fn end(&self) {
        self.current().end();
    }
}

impl Worlds {
    /// Releases hidden files that no job needs. Files of jobs that begin meanwhile stay.
    pub fn sweep(&self, jobs: impl FnOnce() -> Vec<Arc<Job>>) {
        let world = self.current();
        let before = world.hidden().number();
        let mut needed = BTreeSet::new();
        for job in jobs() {
            if !job.is_over() {
                job.concealment.needed(&mut needed);
            }
        }
        world.hidden().keep_only(before, &needed);
    }
}

/// The input around the trees that has changed.
#[must_use]
pub fn around_is_stale(world: &World) -> Option<Stale> {
    let check = |around: &mut Encapsulation| around.check();
    world.around().with_encapsulation(check)?.err()
}

fn world(
    concealed: &[PathBuf],
    may_change: &MayChange,
    known: &[Vec<u8>],
    instead: &[(PathBuf, PathBuf)],
) -> Result<World, WorldError> {
    let instead: Vec<_> = instead.iter().map(|(new, old)| (&**new, &**old)).collect();
    World::new(concealed, Arc::clone(may_change), known, &instead)
}

impl fmt::Debug for Worlds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worlds")
            .field("concealed", &self.concealed)
            .finish_non_exhaustive()
    }
}
