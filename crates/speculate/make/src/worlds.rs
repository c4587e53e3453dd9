//! Where jobs are done: a world anew when something around its trees has changed that was read.

use std::{
    collections::BTreeSet,
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use conceal::world::{World, WorldError};
use encapsulation::{Encapsulation, Stale};

use crate::job::Job;

/// Says of a process whether it may change what is around the trees.
pub type MayChange = Arc<dyn Fn(u32) -> bool + Send + Sync>;

/// What worlds are made of, and the one that is in use.
pub struct Worlds {
    concealed: Vec<PathBuf>,
    may_change: MayChange,
    known: Vec<Vec<u8>>,
    instead: Vec<(PathBuf, PathBuf)>,
    current: Mutex<Arc<World>>,
}

impl Worlds {
    /// What is done to those directories is concealed; the rest as of [`World::new`].
    ///
    /// # Errors
    /// Those of [`World::new`].
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

    /// The one in which jobs begin.
    #[must_use]
    pub fn current(&self) -> Arc<World> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    /// A new one, if what was read around the trees is not there as it was. What that was.
    ///
    /// # Errors
    /// Those of [`World::new`].
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

    /// No job begins any more, and this process is about to end ([`World::end`]).
    pub fn end(&self) {
        self.current().end();
    }
}

impl Worlds {
    /// Files that none of these jobs will show are let go, but not of what begins while this is found out.
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

/// What was read around the trees, and is not as it was.
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
