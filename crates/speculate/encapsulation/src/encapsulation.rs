//! An encapsulation: layer, effects and inputs.

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

/// Longest name of the usual file systems, bytes. A longer name could not be revealed.
const NAME_MAX: usize = 255;

/// A computation with concealed changes of files.
pub struct Encapsulation {
    root: Arc<Directory>,
    names: Arc<LinkCounts>,
    base: Arc<dyn Base + Send + Sync>,
    store: Arc<dyn Store + Send + Sync>,
    inputs: Inputs,
    effects: Vec<Effect>,
    /// Number of snapshots. A file from before a snapshot changes only through descriptors that are open already.
    era: u64,
    /// Own files that are open for writing, and how often.
    open: BTreeMap<HiddenId, u64>,
}

/// Reason of a refused operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The program gets the error.
    Error(Errno),
    /// The operation cannot be concealed, and is possible after the commit.
    Unconcealable(&'static str),
}

/// Preparation of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Writing {
    /// The file belongs to the encapsulation.
    Own(HiddenId),
    /// A copy is needed, which [`Encapsulation::replace`] puts in the place of the file.
    Copy(Found),
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        Self::Error(errno)
    }
}

impl Encapsulation {
    /// A new encapsulation, without changes and inputs.
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

    /// Counts an open of an own file for writing.
    pub fn opened(&mut self, id: HiddenId) {
        *self.open.entry(id).or_default() += 1;
    }

    /// Counts a close.
    pub fn closed(&mut self, id: HiddenId) {
        if let Some(times) = self.open.get_mut(&id) {
            *times -= 1;
            if *times == 0 {
                self.open.remove(&id);
            }
        }
    }

    /// Whether an own file is open for writing.
    #[must_use]
    pub fn is_written(&self, id: HiddenId) -> bool {
        self.open.contains_key(&id)
    }

    /// Refuses to replace a file that is open for writing: later writes to the old file would be lost.
    fn replaceable_content(&self, content: &Content) -> Result<(), Refused> {
        match content {
            Content::Hidden(id) if self.open.contains_key(id) => Err(Refused::Unconcealable(
                "a file that others have seen is written to while it is open",
            )),
            _ => Ok(()),
        }
    }

    /// The base.
    #[must_use]
    pub fn base(&self) -> &(dyn Base + Send + Sync) {
        &*self.base
    }

    /// The inputs so far.
    #[must_use]
    pub fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    /// The effects so far.
    #[must_use]
    pub fn effects(&self) -> &[Effect] {
        &self.effects
    }

    /// The present tree for other encapsulations. A later write goes to a copy.
    #[must_use]
    pub fn snapshot(&mut self) -> Snapshot {
        self.era += 1;
        self.peek()
    }

    /// The present tree for a look: later writes to files of the tree show.
    #[must_use]
    pub fn peek(&self) -> Snapshot {
        Snapshot {
            root: Arc::clone(&self.root),
            names: Arc::clone(&self.names),
            base: Arc::clone(&self.base),
            store: Arc::clone(&self.store),
        }
    }

    /// Files of the encapsulation, and hidden files of the base.
    pub fn hidden(&self, into: &mut BTreeSet<HiddenId>) {
        into.extend(self.effects.iter().filter_map(|effect| match effect {
            Effect::Create { id, .. } | Effect::Replace { id, .. } => Some(*id),
            _ => None,
        }));
        self.base.hidden(into);
    }

    /// Checks that all inputs are unchanged.
    ///
    /// # Errors
    /// The first changed input.
    pub fn check(&self) -> Result<(), Stale> {
        self.inputs.check(&*self.base)
    }

    /// Times of the last changes of the directories. The directories must have these times after all effects.
    #[must_use]
    pub fn directory_times(&self) -> Vec<(TreePath, Time)> {
        let mut times = Vec::new();
        collect_times(&self.root, &TreePath::root(), &mut times);
        times
    }

    /// Looks up a path. A symbolic link at the end is not followed.
    ///
    /// # Errors
    /// `ENOENT`, `ENAMETOOLONG`, and the errors of the base.
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

    /// Lists a directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, and the errors of the base.
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

    /// The directory of the layer there, made if necessary.
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

    /// Parent directory and name.
    fn place(&mut self, path: &TreePath) -> Result<(&mut Directory, Name), Errno> {
        let (parent, name) = path.split().ok_or(Errno::BUSY)?;
        Ok((self.directory(&parent)?, name.to_owned()))
    }

    /// Fails if the path exists.
    fn absent(&mut self, path: &TreePath) -> Result<(), Errno> {
        match self.look(path) {
            Err(Errno::NOENT) => Ok(()),
            Ok(_) => Err(Errno::EXIST),
            Err(error) => Err(error),
        }
    }

    /// The entry of the layer there, as if the layer were complete.
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
