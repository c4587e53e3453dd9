//! A logger with a log that is killed at random moments, sometimes with its host: the storage then keeps a random
//! part of the unsynced writes.

use std::time::Duration;

use logger::{
    durable::{Job, Order, restore, write},
    link::{Outbox, Sessions},
};
use rand::{Rng, rngs::SmallRng};
use wal::{Log, simulated::Simulated};

use crate::scenario::DurableSetup;

/// Small, so that a run fills some segments of the log.
const LOG_SEGMENT_BYTES: u64 = 20_000;

/// The log, and the next crash or start.
#[derive(Debug)]
pub(crate) struct CrashableLogger {
    setup: DurableSetup,
    storage: Storage,
    /// End of the present write, ns, and its job.
    writing: Option<(u64, Job)>,
    /// Time of the next crash or start; `None`: not drawn yet.
    transition_at: Option<u64>,
    pub(crate) deaths: u32,
}

/// A change of the logger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transition {
    Dies,
    /// The caller has to call [`CrashableLogger::begin`].
    Returns,
}

#[derive(Debug)]
enum Storage {
    InUse(Box<Log<Simulated>>),
    /// No logger runs.
    Left(Simulated),
}

impl CrashableLogger {
    pub(crate) fn new(setup: DurableSetup) -> Self {
        Self {
            setup,
            storage: Storage::Left(Simulated::default()),
            writing: None,
            transition_at: None,
            deaths: 0,
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.storage, Storage::Left(_))
    }

    /// Starts the logger: `sessions` gets the content of the log.
    pub(crate) fn begin(&mut self, sessions: &mut Sessions) -> Outbox {
        let Storage::Left(storage) = &mut self.storage else {
            unreachable!("it lives already");
        };
        let restored = restore(std::mem::take(storage), sessions, LOG_SEGMENT_BYTES);
        let restored = restored.expect("a storage that does not fail");
        assert_eq!(restored.damaged, 0, "a torn tail is no damage");
        self.storage = Storage::InUse(Box::new(restored.log));
        Outbox::with_log(restored.ledger)
    }

    /// Time of the next write, crash or start.
    pub(crate) fn due(&self) -> Option<u64> {
        let written = self.writing.as_ref().map(|(at, _)| *at);
        [written, self.transition_at].into_iter().flatten().min()
    }

    /// Crashes or starts the logger at the drawn time.
    pub(crate) fn advance(&mut self, rng: &mut SmallRng, now: u64) -> Option<Transition> {
        let at = *self.transition_at.get_or_insert_with(|| {
            let longest = match self.storage {
                Storage::InUse(_) if self.deaths >= self.setup.deaths => return u64::MAX,
                Storage::InUse(_) => self.setup.uptime,
                Storage::Left(_) => self.setup.away,
            };
            now + rng.random_range(0..longest)
        });
        if now < at {
            return None;
        }
        self.transition_at = None;
        match &mut self.storage {
            Storage::Left(_) => Some(Transition::Returns),
            Storage::InUse(log) => {
                self.deaths += 1;
                if let Some((_, mut job)) = self.writing.take() {
                    // The crash comes in the middle of the write.
                    log.storage().fail_after(Some(rng.random_range(0..5)));
                    let _ = write(log, &mut job);
                }
                let mut storage = log.storage().clone();
                if rng.random_bool(0.5) {
                    storage.crash(|below| rng.random_range(0..below.max(1)));
                } else {
                    storage.restart();
                }
                self.storage = Storage::Left(storage);
                Some(Transition::Dies)
            }
        }
    }

    /// Begins or ends a write.
    pub(crate) fn write(
        &mut self,
        out: &mut Outbox,
        sessions: &Sessions,
        rng: &mut SmallRng,
        now: Duration,
    ) {
        let Storage::InUse(log) = &mut self.storage else {
            return;
        };
        let at = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        if let Some((_, mut job)) = self.writing.take_if(|(done, _)| *done <= at) {
            write(log, &mut job).expect("a storage that does not fail");
            out.written(job.batch);
        }
        if let Some(Order::Write(job)) = out.next_order(sessions, now) {
            let done = at + rng.random_range(0..=self.setup.commit);
            self.writing = Some((done, job));
        }
    }
}
