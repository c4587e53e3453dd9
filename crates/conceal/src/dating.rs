//! What was done before it was asked for is dated as if it had been done then.

use std::collections::BTreeSet;

use encapsulation::{Effect, HiddenId, Time};
use rustix::{
    fs::{Timespec, Timestamps, UTIME_OMIT, fstat, futimens},
    io::Errno,
};

use crate::{concealing::Concealing, real::stat_of, state::State};

impl Concealing {
    /// What was done `since` then, and is concealed, is dated as if it had ended now; in the same order and at the same
    /// distances. What has been given a date of before, or of tomorrow, keeps it.
    pub fn date_now(&self, since: Time) {
        if let Err(error) = self.state().date_now(since) {
            tracing::debug!("it stays as old as it is: {error}");
        }
    }
}

impl State {
    fn date_now(&mut self, since: Time) -> Result<(), Errno> {
        let Some(concealed) = &mut self.tree.concealed else {
            return Ok(());
        };
        let Some(path) = concealed.effects().iter().flat_map(Effect::paths).next() else {
            return Ok(());
        };
        let now = self.tree.hidden.now(path)?;
        let period = since..=now;
        let files: BTreeSet<_> = concealed.effects().iter().filter_map(file_of).collect();
        let mut dated = Vec::new();
        for id in files {
            let file = self.tree.hidden.file(id)?;
            let modified = stat_of(&fstat(&*file)?).modified;
            if period.contains(&modified) {
                dated.push((file, modified));
            }
        }
        let latest = dated.iter().map(|(_, modified)| *modified).max();
        let latest = latest.max(concealed.latest(&period));
        let Some(by) = latest.and_then(|latest| now.since(latest)) else {
            return Ok(());
        };
        concealed.date_later(&period, by);
        for (file, modified) in dated {
            let modified = modified.later(by);
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
        Ok(())
    }
}

fn file_of(effect: &Effect) -> Option<HiddenId> {
    match effect {
        Effect::Create { id, .. } | Effect::Replace { id, .. } => Some(*id),
        _ => None,
    }
}
