//! A speculation with a name.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use encapsulation::Encapsulation;

use super::{
    POLL_INTERVAL,
    messages::{Create, Listed, ListedState},
};
use crate::job::Job;

/// State of a speculation.
#[derive(Debug)]
pub(super) enum Stage {
    Waits,
    Begun(Arc<Job>),
    Failed(String),
}

#[derive(Debug)]
pub(super) struct Speculation {
    pub(super) create: Create,
    /// Speculations whose effects the command sees.
    pub(super) inputs: Vec<Arc<Speculation>>,
    stage: Mutex<Stage>,
    changed: Condvar,
    created: Instant,
}

impl Speculation {
    pub(super) fn new(create: Create, inputs: Vec<Arc<Self>>) -> Self {
        Self {
            create,
            inputs,
            stage: Mutex::new(Stage::Waits),
            changed: Condvar::new(),
            created: Instant::now(),
        }
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn reach(&self, stage: Stage) {
        *self.stage() = stage;
        self.changed.notify_all();
    }

    /// Stores the running job. `false`: the speculation was aborted meanwhile.
    pub(super) fn has_begun(&self, job: &Arc<Job>) -> bool {
        let mut stage = self.stage();
        if matches!(&*stage, Stage::Failed(_)) {
            return false;
        }
        *stage = Stage::Begun(Arc::clone(job));
        drop(stage);
        self.changed.notify_all();
        true
    }

    pub(super) fn job(&self) -> Option<Arc<Job>> {
        match &*self.stage() {
            Stage::Begun(job) => Some(Arc::clone(job)),
            Stage::Waits | Stage::Failed(_) => None,
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        matches!(&*self.stage(), Stage::Failed(_))
    }

    pub(super) fn has_ended(&self) -> bool {
        match &*self.stage() {
            Stage::Waits => false,
            Stage::Begun(job) => job.progress().ended.is_some(),
            Stage::Failed(_) => true,
        }
    }

    pub(super) fn is_committed(&self) -> bool {
        self.job().is_some_and(|job| job.progress().is_committed)
    }

    /// Whether the timeout is over without a commit.
    pub(super) fn is_late(&self) -> bool {
        let timeout = self.create.timeout.map(Duration::from_millis);
        timeout.is_some_and(|timeout| self.created.elapsed() >= timeout) && !self.is_committed()
    }

    pub(super) fn wait_until_begun(
        &self,
        is_in_vain: impl Fn() -> bool,
    ) -> Result<Arc<Job>, String> {
        let mut stage = self.stage();
        loop {
            match &*stage {
                Stage::Begun(job) => return Ok(Arc::clone(job)),
                Stage::Failed(why) => return Err(format!("{}: {why}", self.create.name)),
                Stage::Waits if is_in_vain() => return Err("the client has gone".into()),
                Stage::Waits => {}
            }
            let waited = self.changed.wait_timeout(stage, POLL_INTERVAL);
            stage = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the speculation. Effects of a committed one stay.
    pub(super) fn abort(&self) {
        if !self.give_up()
            && let Some(job) = self.job()
        {
            job.kill();
        }
    }

    /// Aborts the speculation. `false`: a user has committed the speculation, or is about to.
    pub(super) fn give_up(&self) -> bool {
        let mut stage = self.stage();
        if let Stage::Begun(job) = &*stage {
            let job = Arc::clone(job);
            drop(stage);
            if !job.abort() {
                return false;
            }
            stage = self.stage();
        }
        *stage = Stage::Failed("the speculation was aborted".into());
        drop(stage);
        self.changed.notify_all();
        true
    }

    pub(super) fn listed(&self) -> Listed {
        let job = self.job();
        let state = match (
            &*self.stage(),
            job.as_ref().and_then(|job| job.progress().ended),
        ) {
            (Stage::Failed(why), _) => ListedState::Failed(why.clone()),
            (_, Some((status, _))) => ListedState::Ended(status),
            (Stage::Begun(_), None) => ListedState::Runs,
            (Stage::Waits, None) => ListedState::Waits,
        };
        let count = |job: &Arc<Job>| {
            let count = |it: &mut Encapsulation| it.effects().len();
            job.concealment.with_encapsulation(count)
        };
        let arguments = self.create.command.arguments.iter();
        Listed {
            name: self.create.name.clone(),
            arguments: arguments
                .map(|it| it.to_string_lossy().into_owned())
                .collect(),
            inputs: self.create.inputs.clone(),
            state,
            effects: job.as_ref().and_then(count).unwrap_or(0),
            waiting: job.map_or_else(Vec::new, |job| job.waiting()),
        }
    }
}
