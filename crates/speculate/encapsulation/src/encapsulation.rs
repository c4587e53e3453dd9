//! One encapsulation: its layer, its effects, its inputs.

mod absorbing;
mod changes;
mod dating;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    sync::Arc,
};

use rustix::io::Errno;

use crate::{
    Attributes, Base, Content, Effect, Found, HiddenId, Identity, Inputs, Kind, Listing, Name, New,
    Snapshot, Stale, Store, Time, TreePath,
    layer::{Directory, Entry, Leaf, LeafContent, LinkCounts, Location},
};

pub use absorbing::Conflict;

/// The longest name that file systems take: what has a longer one could not be revealed.
const NAME_MAX: usize = 255;

/// A computation whose changes of files are concealed.
pub struct Encapsulation {
    root: Arc<Directory>,
    names: Arc<LinkCounts>,
    base: Arc<dyn Base + Send + Sync>,
    store: Arc<dyn Store + Send + Sync>,
    inputs: Inputs,
    effects: Vec<Effect>,
    /// Counts the snapshots: what was made before one is never changed again, but by who has it open.
    era: u64,
    /// Its files that somebody has open to write to them, and how often.
    open: BTreeMap<HiddenId, u64>,
}

/// Why something was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The program is told so.
    Error(Errno),
    /// Nobody else would see it as they should, or too much: it may be done when the encapsulation has been committed.
    Unconcealable(&'static str),
}

/// What has to be done to write to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Writing {
    /// It is the encapsulation's own.
    Own(HiddenId),
    /// A copy has to be made, which [`Encapsulation::replace`] puts into its place.
    Copy(Found),
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        Self::Error(errno)
    }
}

impl Encapsulation {
    /// One that has changed and read nothing yet.
    #[must_use]
    pub fn new(base: Arc<dyn Base + Send + Sync>, store: Arc<dyn Store + Send + Sync>) -> Self {
        Self {
            root: Arc::new(Directory::showing(TreePath::root())),
            names: Arc::default(),
            base,
            store,
            inputs: Inputs::default(),
            effects: Vec::new(),
            era: 1,
            open: BTreeMap::new(),
        }
    }

    /// Somebody has opened a file of it to write to it.
    pub fn opened(&mut self, id: HiddenId) {
        *self.open.entry(id).or_default() += 1;
    }

    /// Once less than before.
    pub fn closed(&mut self, id: HiddenId) {
        if let Some(times) = self.open.get_mut(&id) {
            *times -= 1;
            if *times == 0 {
                self.open.remove(&id);
            }
        }
    }

    /// Whether somebody has that file of it open to write to it.
    #[must_use]
    pub fn is_written(&self, id: HiddenId) -> bool {
        self.open.contains_key(&id)
    }

    /// What is there is kept as it is for others, and gets another file in its place: what somebody still wrote to the
    /// old one would be lost.
    fn replaceable_content(&self, content: &Content) -> Result<(), Refused> {
        match content {
            Content::Hidden(id) if self.open.contains_key(id) => Err(Refused::Unconcealable(
                "a file that others have seen is written to while it is open",
            )),
            _ => Ok(()),
        }
    }

    /// What it sees where it has changed nothing.
    #[must_use]
    pub fn base(&self) -> &(dyn Base + Send + Sync) {
        &*self.base
    }

    /// What it has read so far.
    #[must_use]
    pub fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    /// What it has done so far.
    #[must_use]
    pub fn effects(&self) -> &[Effect] {
        &self.effects
    }

    /// The tree as it sees it now, for others. What it writes to later is copied before.
    #[must_use]
    pub fn snapshot(&mut self) -> Snapshot {
        self.era += 1;
        self.peek()
    }

    /// The tree as it sees it now, for a look: what it writes to its files later is in it.
    #[must_use]
    pub fn peek(&self) -> Snapshot {
        Snapshot {
            root: Arc::clone(&self.root),
            names: Arc::clone(&self.names),
            base: Arc::clone(&self.base),
            store: Arc::clone(&self.store),
        }
    }

    /// The files that it has made, or sees that others have made.
    pub fn hidden(&self, into: &mut BTreeSet<HiddenId>) {
        into.extend(self.effects.iter().filter_map(|effect| match effect {
            Effect::Create { id, .. } | Effect::Replace { id, .. } => Some(*id),
            _ => None,
        }));
        self.base.hidden(into);
    }

    /// Whether all that it has read is as it was.
    ///
    /// # Errors
    /// The first thing that is not.
    pub fn check(&self) -> Result<(), Stale> {
        self.inputs.check(&*self.base)
    }

    /// When its directories were made or dated, or names in them were changed, last: what their times are to be when
    /// all effects have been carried out.
    #[must_use]
    pub fn directory_times(&self) -> Vec<(TreePath, Time)> {
        let mut times = Vec::new();
        collect_times(&self.root, &TreePath::root(), &mut times);
        times
    }

    /// What is there; a symbolic link is not followed.
    ///
    /// # Errors
    /// `ENOENT`, `ENAMETOOLONG`, and those of the base.
    pub fn look(&mut self, path: &TreePath) -> Result<Found, Errno> {
        if path.split().is_some_and(|(_, name)| name.len() > NAME_MAX) {
            return Err(Errno::NAMETOOLONG);
        }
        let (found, asked) = self.root.look(path, &*self.base, &*self.store)?;
        if let Some((path, seen)) = asked {
            self.inputs.looked(path, seen);
        }
        found
            .map(|found| self.names.counted(found))
            .ok_or(Errno::NOENT)
    }

    /// What is in the directory there.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, and those of the base.
    pub fn list(&mut self, path: &TreePath) -> Result<Listing, Errno> {
        let (listing, shown) = match self.root.walk(path) {
            Location::EmptyBase => return Err(Errno::NOENT),
            Location::Leaf(_) => return Err(Errno::NOTDIR),
            Location::Base(path) => {
                let listing = self.base.list(&path)?;
                (listing.clone(), Some((path, listing)))
            }
            Location::Directory(directory) => directory.list(&*self.base)?,
        };
        if let Some((path, listing)) = shown {
            self.inputs.listed(path, &listing);
        }
        Ok(listing)
    }

    /// The directory of the layer there, made if there is none yet.
    fn directory(&mut self, path: &TreePath) -> Result<&mut Directory, Errno> {
        if self.look(path)?.stat.kind != Kind::Directory {
            return Err(Errno::NOTDIR);
        }
        let mut directory = Arc::make_mut(&mut self.root);
        for name in path.names() {
            let shows = directory.shows.as_ref().map(|path| path.join(name));
            let entry = directory.names.entry(name.to_owned()).or_insert_with(|| {
                let directory = shows.map_or_else(Directory::default, Directory::showing);
                Entry::Directory(Arc::new(directory))
            });
            let Entry::Directory(next) = entry else {
                return Err(Errno::NOTDIR);
            };
            directory = Arc::make_mut(next);
        }
        Ok(directory)
    }

    /// The directory that it is in, and its name there.
    fn place(&mut self, path: &TreePath) -> Result<(&mut Directory, Name), Errno> {
        let (parent, name) = path.split().ok_or(Errno::BUSY)?;
        Ok((self.directory(&parent)?, name.to_owned()))
    }

    /// Nothing may be there yet.
    fn absent(&mut self, path: &TreePath) -> Result<(), Errno> {
        match self.look(path) {
            Err(Errno::NOENT) => Ok(()),
            Ok(_) => Err(Errno::EXIST),
            Err(error) => Err(error),
        }
    }

    /// What the layer has there, as if it had everything.
    fn entry(&mut self, path: &TreePath) -> Result<Entry, Errno> {
        let found = self.look(path)?;
        let (parent, name) = path.split().ok_or(Errno::BUSY)?;
        if let Location::Directory(directory) = self.root.walk(&parent)
            && let Some(entry) = directory.names.get(name)
        {
            return Ok(entry.clone());
        }
        let Content::Base(origin) = found.content else {
            return Err(Errno::IO);
        };
        Ok(match found.stat.kind {
            Kind::Directory => Entry::Directory(Arc::new(Directory::showing(origin))),
            _ => Entry::Leaf(Leaf::new(LeafContent::Base(origin))),
        })
    }
}

impl std::fmt::Debug for Encapsulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encapsulation")
            .field("effects", &self.effects)
            .field("inputs", &self.inputs)
            .finish_non_exhaustive()
    }
}

fn collect_times(directory: &Directory, path: &TreePath, times: &mut Vec<(TreePath, Time)>) {
    for (name, entry) in &directory.names {
        if let Entry::Directory(below) = entry {
            collect_times(below, &path.join(name), times);
        }
    }
    if let Some(modified) = directory.modified() {
        times.push((path.clone(), modified));
    }
}
