//! What an encapsulation has read.

use std::{collections::BTreeMap, hash::Hash as _, hash::Hasher as _};

use siphasher::sip128::{Hasher128 as _, SipHasher24};

use crate::{Base, Kind, Listing, Seen, Stat, TreePath};

/// What was read of a base: each name that was looked for, with what was found first, and each directory that was
/// listed. What the encapsulation itself had made is not among them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inputs {
    names: BTreeMap<TreePath, Input>,
    listings: BTreeMap<TreePath, u128>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Input {
    seen: Seen,
    /// Whether the times of a directory matter. They change with each name in it, and are seen by everybody who
    /// passes through; only who asked for them has read them.
    times: bool,
}

/// Why an encapsulation is worth nothing any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stale {
    /// Something else is there now.
    Changed(TreePath),
    /// Other names are in it now.
    Listing(TreePath),
}

impl Inputs {
    /// `path` was looked for.
    pub fn looked(&mut self, path: TreePath, seen: Seen) {
        let times = false;
        self.names.entry(path).or_insert(Input { seen, times });
    }

    /// The times of what is there were asked for, a directory's too.
    pub fn examined(&mut self, path: TreePath, seen: Seen) {
        let times = true;
        let input = self.names.entry(path).or_insert(Input { seen, times });
        // That the times are those of this moment, and not of the first look, is how it was read.
        if !input.times && is_directory(&input.seen) {
            *input = Input { seen, times };
        }
    }

    /// The directory was listed.
    pub fn listed(&mut self, path: TreePath, listing: &Listing) {
        self.listings.entry(path).or_insert_with(|| digest(listing));
    }

    /// Whether all of it is as it was.
    ///
    /// # Errors
    /// The first that is not. What cannot be seen any more has changed.
    pub fn check(&self, base: &dyn Base) -> Result<(), Stale> {
        for (path, input) in &self.names {
            let now = base.look(path);
            if !now.is_ok_and(|now| input.is(&now)) {
                return Err(Stale::Changed(path.clone()));
            }
        }
        for (path, digest_then) in &self.listings {
            let now = base.list(path);
            if !now.is_ok_and(|now| digest(&now) == *digest_then) {
                return Err(Stale::Listing(path.clone()));
            }
        }
        Ok(())
    }

    /// What was looked for, and whether the times of a directory matter.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (&TreePath, bool)> {
        self.names.iter().map(|(path, input)| (path, input.times))
    }

    /// What was listed.
    pub(crate) fn listings(&self) -> impl Iterator<Item = &TreePath> {
        self.listings.keys()
    }

    /// The names that were looked for.
    pub fn names(&self) -> impl Iterator<Item = (&TreePath, &Seen)> {
        self.names.iter().map(|(path, input)| (path, &input.seen))
    }

    /// How many things were read.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len() + self.listings.len()
    }

    /// Whether nothing was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Input {
    fn is(&self, now: &Seen) -> bool {
        match (&self.seen, now) {
            (Seen::There(then), Seen::There(now)) => same(then, now, self.times),
            (Seen::Absent, Seen::Absent) => true,
            _ => false,
        }
    }
}

/// How many names it has does not matter: it gets another one when it is revealed. Nor does which directory it is, as
/// what was read in it is known; nor its times, unless they were asked for.
fn same(then: &Stat, now: &Stat, times: bool) -> bool {
    let alike = then.kind == now.kind && then.mode == now.mode && then.owner == now.owner;
    if then.kind == Kind::Directory {
        return alike && (!times || then.modified == now.modified);
    }
    alike
        && then.identity == now.identity
        && then.size == now.size
        && then.modified == now.modified
        && then.changed == now.changed
}

fn is_directory(seen: &Seen) -> bool {
    matches!(seen, Seen::There(stat) if stat.kind == Kind::Directory)
}

fn digest(listing: &Listing) -> u128 {
    let mut hasher = SipHasher24::new();
    for (name, kind) in listing {
        name.hash(&mut hasher);
        kind.hash(&mut hasher);
    }
    hasher.write_usize(listing.len());
    hasher.finish128().as_u128()
}
