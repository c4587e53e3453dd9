//! Merging the effects of another encapsulation whose base is this encapsulation.

use super::{Effect, Encapsulation, Location, Refused, Stale, Time};
use crate::{Inputs, Snapshot};

/// The reason why another encapsulation's effects cannot be absorbed: the other encapsulation must run again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conflict {
    /// The other encapsulation has read a state that has changed.
    Stale(Stale),
    /// An effect of the other encapsulation is no longer possible.
    Impossible(Effect, Refused),
}

impl Encapsulation {
    /// Absorbs the effects and inputs of an encapsulation whose base was a [`Snapshot`] of this encapsulation: merging
    /// (section 3.2). Absorbed files do not change any more. The other encapsulation's inputs of the common base become
    /// inputs of this encapsulation, too.
    ///
    /// # Errors
    /// If the two encapsulations exclude each other. Then only the inputs have changed: the other encapsulation's
    /// inputs stay added.
    pub fn absorb(&mut self, other: &Self, now: Time) -> Result<(), Conflict> {
        let before = self.peek();
        // The order matters: a change in between is a conflict, and a later change makes the result stale.
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

    /// Adds those of the other encapsulation's inputs that come from the base, with the layer in the state `before`.
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
