//! Dates of reused effects: a request at a later time gets later dates.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
    time::Duration,
};

use encapsulation::{Effect, HiddenId, Time};
use rustix::{
    fs::{Timespec, Timestamps, UTIME_OMIT, fstat, futimens},
    io::Errno,
};

use crate::{base_tree::stat_of, concealment::Concealment, state::State};

/// Difference between the new dates of files that had different dates.
const DATE_STEP: Duration = Duration::from_micros(1);
/// Time between two looks at the clock of files, which ticks every one to ten milliseconds.
const CLOCK_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Most looks at the clock of files.
const CLOCK_POLL_LIMIT: usize = 50;

impl Concealment {
    /// Gives concealed effects `since` then the present date, in the same order: the inputs of a reused job may have
    /// new dates, too. Dates that the program has set to an earlier time or to the future stay.
    pub fn date_now(&self, since: Time) {
        let dated = self.state().date_now(since);
        match dated {
            Ok(Some(latest)) => self.wait_until_after(latest),
            Ok(None) => {}
            Err(error) => tracing::debug!("the dates of effects stay: {error}"),
        }
    }

    /// Waits until new dates are later than `latest`.
    fn wait_until_after(&self, latest: Time) {
        for _ in 0..CLOCK_POLL_LIMIT {
            if crate::base_tree::coarse_time() > latest {
                return;
            }
            thread::sleep(CLOCK_POLL_INTERVAL);
        }
    }
}

impl State {
    /// The latest date, if there are several.
    fn date_now(&mut self, since: Time) -> Result<Option<Time>, Errno> {
        let Some(concealed) = &mut self.tree.concealed else {
            return Ok(None);
        };
        let Some(path) = concealed.effects().iter().flat_map(Effect::paths).next() else {
            return Ok(None);
        };
        let now = self.tree.hidden.now(path)?;
        let period = since..=now;
        let files: BTreeSet<_> = concealed.effects().iter().filter_map(file_of).collect();
        let mut times = concealed.times(&period);
        let mut dated = Vec::new();
        for id in files {
            let file = self.tree.hidden.file(id)?;
            let modified = stat_of(&fstat(&*file)?).modified;
            if period.contains(&modified) {
                times.insert(modified);
                dated.push((file, modified));
            }
        }
        let dates = (0..).map(|place| now.later(DATE_STEP * place));
        let dates: BTreeMap<_, _> = times.into_iter().zip(dates).collect();
        concealed.date(&period, &dates, now);
        for (file, modified) in dated {
            let modified = dates.get(&modified).copied().unwrap_or(modified);
            let times = Timestamps {
                last_access: Timespec {
                    tv_sec: 0,
                    tv_nsec: UTIME_OMIT,
                },
                last_modification: Timespec {
                    tv_sec: modified.seconds,
                    tv_nsec: modified.nanoseconds.into(),
                },
            };
            futimens(&*file, &times)?;
        }
        let latest = dates.values().next_back().copied();
        Ok(latest.filter(|latest| *latest > now))
    }
}

fn file_of(effect: &Effect) -> Option<HiddenId> {
    match effect {
        Effect::Create { id, .. } | Effect::Replace { id, .. } => Some(*id),
        _ => None,
    }
}
