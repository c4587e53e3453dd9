//! What was done before it was asked for is dated as if it had been done then.
//!
//! A make goes by times: what a command has made must not be older than what was saved meanwhile, though the command has
//! not read that.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use super::Encapsulation;
use crate::{Effect, Time, layer::Directory, layer::Entry};

impl Encapsulation {
    /// When it has done anything last, so far as files have nothing to say about it, of what is dated in that `period`: what is
    /// older or of tomorrow was given that date.
    #[must_use]
    pub fn latest(&mut self, period: &RangeInclusive<Time>) -> Option<Time> {
        let mut latest = None;
        self.each_time(|time| {
            if period.contains(time) {
                latest = latest.max(Some(*time));
            }
        });
        latest
    }

    /// What is dated in that `period` is later by that much.
    pub fn date_later(&mut self, period: &RangeInclusive<Time>, by: Duration) {
        self.each_time(|time| {
            if period.contains(time) {
                *time = time.later(by);
            }
        });
    }

    fn each_time(&mut self, mut act: impl FnMut(&mut Time)) {
        for effect in &mut self.effects {
            match effect {
                Effect::Directory { new, .. }
                | Effect::Symlink { new, .. }
                | Effect::Special { new, .. } => act(&mut new.now),
                Effect::Attributes { attributes, .. } => {
                    attributes.modified.iter_mut().for_each(&mut act);
                }
                _ => {}
            }
        }
        each_in(Arc::make_mut(&mut self.root), &mut act);
    }
}

/// Directories are dated by what was done to them last.
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
    use super::*;

    #[test]
    fn times_go_on_beyond_a_second() {
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
