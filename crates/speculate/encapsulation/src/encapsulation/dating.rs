//! Dates of reused effects: a request at a later time gets later dates.
//!
//! Make compares times: a result must not be older than a file that was saved meanwhile, even if the command has not
//! read that file.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    sync::Arc,
};

use super::Encapsulation;
use crate::{Effect, Time, layer::Directory, layer::Entry};

impl Encapsulation {
    /// Latest time in that `period` of files without content, and of explicit dates. Earlier and future times were
    /// set on purpose.
    #[must_use]
    pub fn times(&mut self, period: &RangeInclusive<Time>) -> BTreeSet<Time> {
        let mut times = BTreeSet::new();
        each_of(&mut self.effects, &mut |time: &mut Time| {
            if period.contains(time) {
                times.insert(*time);
            }
        });
        times
    }

    /// Replaces each time of that `period` by its entry in `dates`, or by `otherwise`: a directory has the date of the
    /// last change.
    pub fn date(
        &mut self,
        period: &RangeInclusive<Time>,
        dates: &BTreeMap<Time, Time>,
        otherwise: Time,
    ) {
        let mut date = |time: &mut Time| {
            if period.contains(time) {
                *time = dates.get(time).copied().unwrap_or(otherwise);
            }
        };
        each_of(&mut self.effects, &mut date);
        each_in(Arc::make_mut(&mut self.root), &mut date);
    }
}

fn each_of(effects: &mut [Effect], act: &mut impl FnMut(&mut Time)) {
    for effect in effects {
        match effect {
            Effect::Directory { new, .. }
            | Effect::Symlink { new, .. }
            | Effect::Special { new, .. } => act(&mut new.now),
            Effect::Attributes { attributes, .. } => {
                attributes.modified.iter_mut().for_each(&mut *act);
            }
            _ => {}
        }
    }
}

/// A directory has the date of the last change.
fn each_in(directory: &mut Directory, act: &mut impl FnMut(&mut Time)) {
    let made = directory.made.iter_mut().map(|made| &mut made.at);
    let touched = directory.touched.iter_mut();
    let dated = directory.attributes.modified.iter_mut();
    made.chain(touched).chain(dated).for_each(&mut *act);
    for entry in directory.names.values_mut() {
        if let Entry::Directory(below) = entry {
            each_in(Arc::make_mut(below), act);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_addition_carries_seconds() {
        let time = Time {
            seconds: -1,
            nanoseconds: 999_999_999,
        };
        let later = time.later(Duration::new(1, 2));
        assert_eq!((later.seconds, later.nanoseconds), (1, 1));
        assert_eq!(later.since(time), Some(Duration::new(1, 2)));
        assert_eq!(time.since(later), None);
    }
}
