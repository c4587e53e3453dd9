//! Taking up what another encapsulation, of which this one is the base, has done.

use super::{Effect, Encapsulation, Location, Refused, Stale, Time};
use crate::{Inputs, Snapshot};

/// Why another one's effects cannot be taken up: it has to be run again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conflict {
    /// It has read what is different by now.
    Stale(Stale),
    /// It has done what cannot be done any more.
    Impossible(Effect, Refused),
}

impl Encapsulation {
    /// Takes up what was done and read by one that had a [`Snapshot`] of this as its base: merging (section 3.2). What
    /// it made is not changed any more, by nobody; what it read of the common base, this one has read, too.
    ///
    /// # Errors
    /// If they exclude each other; then nothing has changed, but that it has read what the other one has.
    pub fn absorb(&mut self, other: &Self, now: Time) -> Result<(), Conflict> {
        let before = self.peek();
        // In this order: what changes in between is a conflict, and what changes later is stale.
        self.read_through(&before, &other.inputs);
        other.inputs.check(&before).map_err(Conflict::Stale)?;
        let done = self.effects.len();
        for effect in &other.effects {
            if let Err(refused) = self.redo(effect, now) {
                self.root = before.root;
                self.names = before.names;
                self.effects.truncate(done);
                return Err(Conflict::Impossible(effect.clone(), refused));
            }
        }
        for (path, time) in other.directory_times() {
            if let Ok(directory) = self.directory(&path) {
                directory.touch(time);
            }
        }
        Ok(())
    }

    /// What of these inputs is read of the base, where the layer was `before`.
    fn read_through(&mut self, before: &Snapshot, inputs: &Inputs) {
        for (path, _) in inputs.names() {
            let Ok((_, Some((path, seen)))) = before.root.look(path, &*self.base, &*self.store)
            else {
                continue;
            };
            self.inputs.looked(path, seen);
        }
        for path in inputs.listings() {
            let listed = match before.root.walk(path) {
                Location::Base(path) => self.base.list(&path).ok().map(|listing| (path, listing)),
                Location::Directory(directory) => directory
                    .list(&*self.base)
                    .ok()
                    .and_then(|(_, shown)| shown),
                Location::EmptyBase | Location::Leaf(_) => None,
            };
            if let Some((path, listing)) = listed {
                self.inputs.listed(path, &listing);
            }
        }
    }

    fn redo(&mut self, effect: &Effect, now: Time) -> Result<(), Refused> {
        match effect {
            Effect::Create { path, id } => {
                self.create(path, *id, now)?;
                self.disown(path)
            }
            Effect::Replace { path, id } => {
                let content = self.look(path)?.content;
                self.replaceable_content(&content)?;
                self.put_content(path, *id)?;
                self.disown(path)
            }
            Effect::Directory { path, new } => self.make_directory(path, *new),
            Effect::Symlink { path, new, target } => self.make_symlink(path, target.clone(), *new),
            Effect::Special { path, new } => self.make_special(path, *new),
            Effect::Link { from, to } => self.link(from, to, now),
            Effect::Rename { from, to } => self.rename(from, to, false, now),
            Effect::Exchange { one, other } => self.exchange(one, other, now),
            Effect::Unlink { path } => self.unlink(path, now),
            Effect::RemoveDirectory { path } => self.remove_directory(path, now),
            Effect::Attributes { path, attributes } => {
                self.disown(path)?;
                self.set_attributes(path, attributes).map(|_| ())
            }
        }
    }
}
