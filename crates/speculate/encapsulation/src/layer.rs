//! The changes of an encapsulation, as a tree above the base.
//!
//! A directory of the layer has the changed names. The unchanged names of a base directory show through, if there is a
//! base directory. Copies of a tree share directories until a change.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    sync::Arc,
};

use rustix::io::Errno;

use crate::{
    Attributes, Base, HiddenId, Identity, Kind, Listing, Name, Seen, Stat, Store, Time, TreePath,
};

/// A new directory, or a directory with changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Directory {
    /// For a new directory: identity and attributes.
    pub(crate) made: Option<Made>,
    /// The directory of the base that shows through.
    pub(crate) shows: Option<TreePath>,
    /// Attributes that were set since.
    pub(crate) attributes: Attributes,
    /// Last change of a name in the directory.
    pub(crate) touched: Option<Time>,
    pub(crate) names: BTreeMap<Name, Entry>,
}

#[derive(Debug, Clone)]
pub(crate) enum Entry {
    /// A removed name.
    Gone,
    Directory(Arc<Directory>),
    Leaf(Leaf),
}

/// An entry that is no directory.
#[derive(Debug, Clone)]
pub(crate) struct Leaf {
    pub(crate) what: LeafContent,
    /// Attributes that were set on a file of the base.
    pub(crate) attributes: Attributes,
}

#[derive(Debug, Clone)]
pub(crate) enum LeafContent {
    /// The file of the base.
    Base(TreePath),
    /// A file of this era of the encapsulation, which alone may change the file.
    File {
        id: HiddenId,
        era: u64,
    },
    Symlink {
        made: Made,
        target: OsString,
    },
    /// A FIFO or a socket.
    Special(Made, Kind),
}

/// Differences between the link counts here and in the base.
#[derive(Debug, Clone, Default)]
pub(crate) struct LinkCounts(BTreeMap<Identity, i64>);

impl LinkCounts {
    /// Adds to the link count of a file.
    pub(crate) fn add(&mut self, to: Identity, more: i64) {
        *self.0.entry(to).or_default() += more;
    }

    /// The attributes with the link count of the layer.
    pub(crate) fn counted(&self, mut found: Found) -> Found {
        let more = self.0.get(&found.stat.identity).copied().unwrap_or(0);
        found.stat.links = found.stat.links.saturating_add_signed(more);
        found
    }
}

/// A new file without content.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Made {
    pub(crate) id: HiddenId,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) at: Time,
}

/// A file that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Attributes.
    pub stat: Stat,
    /// Place of the content.
    pub content: Content,
}

/// Place of the content of a tree entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// The content of the base at this path.
    Base(TreePath),
    /// A new file, FIFO or socket.
    Hidden(HiddenId),
    /// A new symbolic link, with its target.
    Target(OsString),
    /// A directory of the layer.
    Names,
}

/// Place of a path in layer or base.
pub(crate) enum Location<'a> {
    EmptyBase,
    /// The layer has no entry for the path.
    Base(TreePath),
    Directory(&'a Directory),
    Leaf(&'a Leaf),
}

/// The lookup in the base that an answer needed.
pub(crate) type BaseLookup = Option<(TreePath, Seen)>;

impl Directory {
    /// Adds the new files in this directory and below.
    pub(crate) fn hidden(&self, into: &mut BTreeSet<HiddenId>) {
        for entry in self.names.values() {
            match entry {
                Entry::Directory(below) => below.hidden(into),
                Entry::Leaf(Leaf {
                    what: LeafContent::File { id, .. },
                    ..
                }) => drop(into.insert(*id)),
                Entry::Gone | Entry::Leaf(_) => {}
            }
        }
    }

    /// That of the base.
    pub(crate) fn showing(path: TreePath) -> Self {
        Self {
            shows: Some(path),
            ..Self::default()
        }
    }

    pub(crate) fn walk(&self, path: &TreePath) -> Location<'_> {
        let mut directory = self;
        let mut names = path.names();
        while let Some(name) = names.next() {
            match directory.names.get(name) {
                Some(Entry::Directory(next)) => directory = next,
                Some(Entry::Leaf(leaf)) if names.next().is_none() => return Location::Leaf(leaf),
                Some(Entry::Leaf(_) | Entry::Gone) => return Location::EmptyBase,
                None => {
                    let Some(shows) = &directory.shows else {
                        return Location::EmptyBase;
                    };
                    let below = names.fold(shows.join(name), |path, name| path.join(name));
                    return Location::Base(below);
                }
            }
        }
        Location::Directory(directory)
    }

    /// The entry at a path, and the lookup in the base that the answer needed.
    pub(crate) fn look(
        &self,
        path: &TreePath,
        base: &dyn Base,
        store: &dyn Store,
    ) -> Result<(Option<Found>, BaseLookup), Errno> {
        match self.walk(path) {
            Location::EmptyBase => Ok((None, None)),
            Location::Base(path) => of_base(path, &Attributes::default(), base),
            Location::Leaf(leaf) => leaf.look(base, store),
            Location::Directory(directory) => directory.found(base),
        }
    }

    fn found(&self, base: &dyn Base) -> Result<(Option<Found>, BaseLookup), Errno> {
        let (stat, asked) = match (&self.made, &self.shows) {
            (Some(made), _) => (made.stat(Kind::Directory), None),
            (None, Some(path)) => match base.look(path)? {
                seen @ Seen::There(stat) => (stat, Some((path.clone(), seen))),
                Seen::Absent => return Ok((None, Some((path.clone(), Seen::Absent)))),
            },
            (None, None) => return Err(Errno::IO),
        };
        let modified = self.modified().unwrap_or(stat.modified);
        let stat = stat.with(&self.attributes);
        let stat = Stat { modified, ..stat };
        let content = Content::Names;
        Ok((Some(Found { stat, content }), asked))
    }

    /// The names in this directory, and the listing of the base that the answer needed.
    pub(crate) fn list(
        &self,
        base: &dyn Base,
    ) -> Result<(Listing, Option<(TreePath, Listing)>), Errno> {
        let shown = match &self.shows {
            Some(path) => Some((path.clone(), base.list(path)?)),
            None => None,
        };
        let mut listing = shown.clone().map_or_else(Listing::new, |(_, names)| names);
        for (name, entry) in &self.names {
            let kind = match entry {
                Entry::Gone => None,
                Entry::Directory(_) => Some(Kind::Directory),
                Entry::Leaf(leaf) => leaf.kind(base)?,
            };
            match kind {
                Some(kind) => listing.insert(name.clone(), kind),
                None => listing.remove(name),
            };
        }
        Ok((listing, shown))
    }

    /// Take the name away.
    pub(crate) fn remove(&mut self, name: &Name, now: Time) {
        match self.shows {
            Some(_) => self.names.insert(name.clone(), Entry::Gone),
            None => self.names.remove(name),
        };
        self.touch(now);
    }

    /// A name in this directory was changed, later than the earlier date of the directory.
    pub(crate) fn touch(&mut self, at: Time) {
        self.touched = Some(at);
        self.attributes.modified = None;
    }

    /// Modification time of the directory, if the layer determines the time.
    pub(crate) fn modified(&self) -> Option<Time> {
        let made = self.made.map(|made| made.at);
        self.attributes.modified.or(self.touched).or(made)
    }

    /// Sets the entry of a name.
    pub(crate) fn put(&mut self, name: &Name, entry: Entry, now: Time) {
        self.names.insert(name.clone(), entry);
        self.touch(now);
    }
}

impl Leaf {
    pub(crate) fn new(what: LeafContent) -> Self {
        Self {
            what,
            attributes: Attributes::default(),
        }
    }

    fn look(
        &self,
        base: &dyn Base,
        store: &dyn Store,
    ) -> Result<(Option<Found>, BaseLookup), Errno> {
        let (stat, content) = match &self.what {
            LeafContent::Base(path) => {
                return of_base(path.clone(), &self.attributes, base);
            }
            LeafContent::File { id, .. } => (store.stat(*id)?, Content::Hidden(*id)),
            LeafContent::Symlink { made, target } => {
                let size = u64::try_from(target.len()).unwrap_or(u64::MAX);
                let stat = made.stat(Kind::Symlink);
                (Stat { size, ..stat }, Content::Target(target.clone()))
            }
            LeafContent::Special(made, kind) => (made.stat(*kind), Content::Hidden(made.id)),
        };
        let stat = stat.with(&self.attributes);
        Ok((Some(Found { stat, content }), None))
    }

    fn kind(&self, base: &dyn Base) -> Result<Option<Kind>, Errno> {
        Ok(match &self.what {
            LeafContent::Base(path) => match base.look(path)? {
                Seen::There(stat) => Some(stat.kind),
                Seen::Absent => None,
            },
            LeafContent::File { .. } => Some(Kind::File),
            LeafContent::Symlink { .. } => Some(Kind::Symlink),
            LeafContent::Special(_, kind) => Some(*kind),
        })
    }
}

impl Made {
    fn stat(&self, kind: Kind) -> Stat {
        Stat {
            identity: Identity::Hidden(self.id),
            kind,
            mode: self.mode,
            owner: self.owner,
            links: 1,
            size: 0,
            modified: self.at,
            changed: Time::default(),
        }
    }
}

fn of_base(
    path: TreePath,
    attributes: &Attributes,
    base: &dyn Base,
) -> Result<(Option<Found>, BaseLookup), Errno> {
    let seen = base.look(&path)?;
    let found = match seen {
        Seen::Absent => None,
        Seen::There(stat) => Some(Found {
            stat: stat.with(attributes),
            content: Content::Base(path.clone()),
        }),
    };
    Ok((found, Some((path, seen))))
}
