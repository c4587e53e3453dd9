//! The inputs of an encapsulation.

use std::{collections::BTreeMap, hash::Hash as _, hash::Hasher as _};

use siphasher::sip128::{Hasher128 as _, SipHasher24};

use crate::{Base, Identity, Kind, Listing, Seen, Stat, TreePath};

/// Reads of a base: each looked-up name with the first result, and each listed directory. Files of the encapsulation
/// itself are not included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inputs {
    names: BTreeMap<TreePath, Seen>,
    listings: BTreeMap<TreePath, u128>,
}

/// Reason of a stale encapsulation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stale {
    /// The file at this path has changed.
    Changed(TreePath),
    /// The names in this directory have changed.
    Listing(TreePath),
}

impl Inputs {
    /// Records a lookup of `path`.
    pub fn looked(&mut self, path: TreePath, seen: Seen) {
        self.names.entry(path).or_insert(seen);
    }

    /// Records a listing of the directory.
    pub fn listed(&mut self, path: TreePath, listing: &Listing) {
        self.listings.entry(path).or_insert_with(|| digest(listing));
    }

    /// Checks that all inputs are unchanged.
    ///
    /// # Errors
    /// The first changed input. An input that cannot be read any more has changed.
    pub fn check(&self, base: &dyn Base) -> Result<(), Stale> {
        self.check_names(base, |_, then, now| is_same(then, now))
    }

    /// As [`Inputs::check`], and also checks the modification times of directories, which make compares. The roots of
    /// trees are excepted, because the temporary files of all programs are in such a root.
    ///
    /// # Errors
    /// The errors of [`Inputs::check`].
    pub fn check_times(&self, base: &dyn Base) -> Result<(), Stale> {
        self.check_names(base, |path, then, now| {
            is_same(then, now) && (path.names().count() < 2 || is_as_old(then, now))
        })
    }

    fn check_names(
        &self,
        base: &dyn Base,
        is_same: impl Fn(&TreePath, &Seen, &Seen) -> bool,
    ) -> Result<(), Stale> {
        for (path, then) in &self.names {
            let now = base.look_to_compare(path);
            if !now.is_ok_and(|now| is_same(path, then, &now)) {
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

    /// The listed directories.
    pub(crate) fn listings(&self) -> impl Iterator<Item = &TreePath> {
        self.listings.keys()
    }

    /// The looked-up names.
    pub fn names(&self) -> impl Iterator<Item = (&TreePath, &Seen)> {
        self.names.iter()
    }
}

/// Compares the properties on which a program can depend. The link count is excepted, because a reveal adds a name. For
/// directories, identity and times are excepted: the entries are separate inputs, and the times change with each entry.
fn is_same(then: &Seen, now: &Seen) -> bool {
    let (then, now) = match (then, now) {
        (Seen::There(then), Seen::There(now)) => (then, now),
        (then, now) => return then == now,
    };
    let alike = then.kind == now.kind && then.mode == now.mode && then.owner == now.owner;
    let content = |stat: &Stat| {
        // A redated effect may be later than its creation.
        let is_dated = !matches!(stat.identity, Identity::Hidden(_));
        let modified = is_dated.then_some(stat.modified);
        (stat.identity, stat.size, modified, stat.changed)
    };
    alike && (then.kind == Kind::Directory || content(then) == content(now))
}

fn is_as_old(then: &Seen, now: &Seen) -> bool {
    match (then, now) {
        (Seen::There(then), Seen::There(now)) => then.modified == now.modified,
        _ => true,
    }
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

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use rustix::io::Errno;

    use super::*;
    use crate::{Content, Encapsulation, HiddenId, Store};

    /// An empty base that counts both kinds of lookups.
    #[derive(Default)]
    struct EmptyBase {
        looks: AtomicUsize,
        again: AtomicUsize,
    }

    impl EmptyBase {
        fn counts(&self) -> [usize; 2] {
            [&self.looks, &self.again].map(|count| count.swap(0, Ordering::Relaxed))
        }
    }

    impl Base for EmptyBase {
        fn look(&self, _: &TreePath) -> Result<Seen, Errno> {
            self.looks.fetch_add(1, Ordering::Relaxed);
            Ok(Seen::Absent)
        }

        fn look_to_compare(&self, _: &TreePath) -> Result<Seen, Errno> {
            self.again.fetch_add(1, Ordering::Relaxed);
            Ok(Seen::Absent)
        }

        fn list(&self, _: &TreePath) -> Result<Listing, Errno> {
            Err(Errno::NOENT)
        }

        fn content(&self, _: &TreePath) -> Result<Content, Errno> {
            Err(Errno::NOENT)
        }
    }

    impl Store for EmptyBase {
        fn stat(&self, _: HiddenId) -> Result<Stat, Errno> {
            Err(Errno::IO)
        }
    }

    /// A change right after a look shows only milliseconds later: a comparison does not wait for that.
    #[test]
    fn check_reads_only_recorded_inputs() {
        let (base, store) = (
            Arc::new(EmptyBase::default()),
            Arc::new(EmptyBase::default()),
        );
        let mut below = Encapsulation::new(Arc::clone(&base) as _, Arc::clone(&store) as _);
        let path = TreePath::new("0/name").expect("a path");
        below.look(&path).expect_err("nothing is there");
        let [looks, again] = base.counts();
        assert!(looks > 0 && again == 0, "{looks}, {again}");
        below.inputs().check(&*base).expect("it is as it was");
        let above = below.snapshot();
        below.inputs().check(&above).expect("it is as it was");
        let [looks, again] = base.counts();
        assert!(looks == 0 && again > 0, "{looks}, {again}");
    }
}
