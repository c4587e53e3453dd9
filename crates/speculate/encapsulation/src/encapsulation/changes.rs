//! Operations on names, files and directories: the rules of POSIX, above the base.

use super::{
    Arc, Attributes, Directory, Effect, Encapsulation, Entry, Errno, HiddenId, Identity, Kind,
    Leaf, LeafContent, New, OsString, Refused, Time, TreePath, Writing,
};
use crate::layer::Made;

impl From<New> for Made {
    fn from(new: New) -> Self {
        let (id, mode) = (new.id, new.mode & 0o7777);
        let (owner, at) = (new.owner, new.now);
        Self {
            id,
            mode,
            owner,
            at,
        }
    }
}

impl Encapsulation {
    /// Creates a file. The store has content and attributes.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`.
    pub fn create(&mut self, path: &TreePath, id: HiddenId, now: Time) -> Result<(), Refused> {
        self.put_new(
            path,
            Entry::Leaf(Leaf::new(LeafContent::File { id, era: self.era })),
            now,
        )?;
        let path = path.clone();
        self.effects.push(Effect::Create { path, id });
        Ok(())
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// The errors of [`Encapsulation::create`].
    pub fn make_directory(&mut self, path: &TreePath, new: New) -> Result<(), Refused> {
        let directory = Directory {
            made: Some(new.into()),
            ..Directory::default()
        };
        self.put_new(path, Entry::Directory(Arc::new(directory)), new.now)?;
        let path = path.clone();
        self.effects.push(Effect::Directory { path, new });
        Ok(())
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// The errors of [`Encapsulation::create`].
    pub fn make_symlink(
        &mut self,
        path: &TreePath,
        target: OsString,
        new: New,
    ) -> Result<(), Refused> {
        let what = LeafContent::Symlink {
            made: new.into(),
            target: target.clone(),
        };
        self.put_new(path, Entry::Leaf(Leaf::new(what)), new.now)?;
        let path = path.clone();
        self.effects.push(Effect::Symlink { path, new, target });
        Ok(())
    }

    /// Creates a FIFO or socket.
    ///
    /// # Errors
    /// The errors of [`Encapsulation::create`]; `EINVAL` for other kinds.
    pub fn make_special(&mut self, path: &TreePath, new: New) -> Result<(), Refused> {
        // The kind is among the bits of the mode (stat(2)).
        let kind = match new.mode & 0o170_000 {
            0o010_000 => Kind::Fifo,
            0o140_000 => Kind::Socket,
            _ => return Err(Errno::INVAL.into()),
        };
        let what = LeafContent::Special(new.into(), kind);
        self.put_new(path, Entry::Leaf(Leaf::new(what)), new.now)?;
        let path = path.clone();
        self.effects.push(Effect::Special { path, new });
        Ok(())
    }

    fn put_new(&mut self, path: &TreePath, entry: Entry, now: Time) -> Result<(), Refused> {
        let (parent, _) = path.split().ok_or(Errno::EXIST)?;
        if self.look(&parent)?.stat.kind != Kind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        self.absent(path)?;
        let (directory, name) = self.place(path)?;
        directory.put(&name, entry, now);
        Ok(())
    }

    /// Prepares a write to a file.
    ///
    /// # Errors
    /// `EISDIR`; `EINVAL` for other kinds. Neither a file with several names nor a file that is open for writing can
    /// be replaced.
    pub fn write(&mut self, path: &TreePath) -> Result<Writing, Refused> {
        let found = self.look(path)?;
        match found.stat.kind {
            Kind::File => {}
            Kind::Directory => return Err(Errno::ISDIR.into()),
            Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::Device => {
                return Err(Errno::INVAL.into());
            }
        }
        let Entry::Leaf(leaf) = self.entry(path)? else {
            return Err(Errno::ISDIR.into());
        };
        match leaf.what {
            LeafContent::File { id, era } if era == self.era => Ok(Writing::Own(id)),
            _ if found.stat.links > 1 => Err(Refused::Unconcealable(
                "a file with several names is written to",
            )),
            _ => {
                self.replaceable_content(&found.content)?;
                Ok(Writing::Copy(found))
            }
        }
    }

    /// Puts a copy in the place of a file.
    ///
    /// # Errors
    /// The errors of [`Encapsulation::write`]; `EEXIST` for an own file.
    pub fn replace(&mut self, path: &TreePath, id: HiddenId) -> Result<(), Refused> {
        let Writing::Copy(_) = self.write(path)? else {
            return Err(Errno::EXIST.into());
        };
        self.put_content(path, id)
    }

    /// Replaces any file.
    pub(super) fn put_content(&mut self, path: &TreePath, id: HiddenId) -> Result<(), Refused> {
        let entry = Entry::Leaf(Leaf::new(LeafContent::File { id, era: self.era }));
        let (directory, name) = self.place(path)?;
        directory.names.insert(name, entry);
        let path = path.clone();
        self.effects.push(Effect::Replace { path, id });
        Ok(())
    }

    /// Sets attributes. `Some`: an own file, whose attributes the caller sets in the store.
    ///
    /// # Errors
    /// `ENOENT`. The attributes of a file with several names cannot be set, unless the file is an own file.
    pub fn set_attributes(
        &mut self,
        path: &TreePath,
        attributes: &Attributes,
    ) -> Result<Option<HiddenId>, Refused> {
        let found = self.look(path)?;
        if found.stat.kind == Kind::Directory {
            let directory = self.directory(path)?;
            directory.attributes = directory.attributes.and(attributes);
        } else {
            let mut entry = self.entry(path)?;
            let Entry::Leaf(leaf) = &mut entry else {
                return Err(Errno::IO.into());
            };
            match leaf.what {
                LeafContent::File { id, era } if era == self.era => return Ok(Some(id)),
                _ if found.stat.links > 1 => {
                    let why = "attributes of a file with several names are set";
                    return Err(Refused::Unconcealable(why));
                }
                _ => leaf.attributes = leaf.attributes.and(attributes),
            }
            let (directory, name) = self.place(path)?;
            directory.names.insert(name, entry);
        }
        let (path, attributes) = (path.clone(), *attributes);
        self.effects.push(Effect::Attributes { path, attributes });
        Ok(None)
    }

    /// Removes a name of a file that is no directory.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`.
    pub fn unlink(&mut self, path: &TreePath, now: Time) -> Result<(), Refused> {
        let stat = self.look(path)?.stat;
        if stat.kind == Kind::Directory {
            return Err(Errno::ISDIR.into());
        }
        let (directory, name) = self.place(path)?;
        directory.remove(&name, now);
        self.names(stat.identity, -1);
        self.effects.push(Effect::Unlink { path: path.clone() });
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`; `EBUSY` for the root.
    pub fn remove_directory(&mut self, path: &TreePath, now: Time) -> Result<(), Refused> {
        if self.look(path)?.stat.kind != Kind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        if !self.list(path)?.is_empty() {
            return Err(Errno::NOTEMPTY.into());
        }
        let (directory, name) = self.place(path)?;
        directory.remove(&name, now);
        let path = path.clone();
        self.effects.push(Effect::RemoveDirectory { path });
        Ok(())
    }

    /// Adds a name to a file that is no directory.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `EPERM` for a directory.
    pub fn link(&mut self, from: &TreePath, to: &TreePath, now: Time) -> Result<(), Refused> {
        let identity = self.look(from)?.stat.identity;
        let entry = self.entry(from)?;
        self.absent(to)?;
        let Entry::Leaf(leaf) = entry else {
            return Err(Errno::PERM.into());
        };
        self.names(identity, 1);
        self.put_new(to, Entry::Leaf(leaf.clone()), now)?;
        let (directory, name) = self.place(from)?;
        directory.names.insert(name, Entry::Leaf(leaf));
        let (from, to) = (from.clone(), to.clone());
        self.effects.push(Effect::Link { from, to });
        Ok(())
    }

    /// Renames a file, and replaces the target; with `keep`, an existing target is an error.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST` (with `keep`), `EISDIR`, `ENOTDIR`, `ENOTEMPTY`; `EINVAL` for a directory into itself.
    pub fn rename(
        &mut self,
        from: &TreePath,
        to: &TreePath,
        keep: bool,
        now: Time,
    ) -> Result<(), Refused> {
        let moved = self.look(from)?;
        let there = match self.look(to) {
            Err(Errno::NOENT) => None,
            there => Some(there?),
        };
        if keep && there.is_some() {
            return Err(Errno::EXIST.into());
        }
        if let Some(there) = &there
            && there.stat.identity == moved.stat.identity
        {
            return Ok(());
        }
        let is_directory = moved.stat.kind == Kind::Directory;
        if is_directory && to.is_within(from) {
            return Err(Errno::INVAL.into());
        }
        if let Some(there) = &there {
            self.replaceable(from, to, is_directory, there.stat.kind == Kind::Directory)?;
        }
        let entry = self.entry(from)?;
        if let Some(there) = there.filter(|_| !is_directory) {
            self.names(there.stat.identity, -1);
        }
        let (directory, name) = self.place(to)?;
        directory.put(&name, entry, now);
        let (directory, name) = self.place(from)?;
        directory.remove(&name, now);
        let (from, to) = (from.clone(), to.clone());
        self.effects.push(Effect::Rename { from, to });
        Ok(())
    }

    /// Whether the file at `from` may replace the file at `to`.
    fn replaceable(
        &mut self,
        from: &TreePath,
        to: &TreePath,
        is_directory: bool,
        replaces_directory: bool,
    ) -> Result<(), Errno> {
        match (is_directory, replaces_directory) {
            _ if from.is_within(to) => Err(Errno::NOTEMPTY),
            (false, true) => Err(Errno::ISDIR),
            (true, false) => Err(Errno::NOTDIR),
            (true, true) if !self.list(to)?.is_empty() => Err(Errno::NOTEMPTY),
            (true, true) | (false, false) => Ok(()),
        }
    }

    /// Adds to the link count of a file.
    fn names(&mut self, of: Identity, more: i64) {
        Arc::make_mut(&mut self.names).add(of, more);
    }

    /// Exchanges two names.
    ///
    /// # Errors
    /// `ENOENT`; `EINVAL` if one path is within the other.
    pub fn exchange(&mut self, one: &TreePath, other: &TreePath, now: Time) -> Result<(), Refused> {
        let (first, second) = (self.entry(one)?, self.entry(other)?);
        if one == other {
            return Ok(());
        }
        if one.is_within(other) || other.is_within(one) {
            return Err(Errno::INVAL.into());
        }
        let (directory, name) = self.place(one)?;
        directory.put(&name, second, now);
        let (directory, name) = self.place(other)?;
        directory.put(&name, first, now);
        let (one, other) = (one.clone(), other.clone());
        self.effects.push(Effect::Exchange { one, other });
        Ok(())
    }

    /// Refuses changes of a file of another owner.
    pub(super) fn disown(&mut self, path: &TreePath) -> Result<(), Refused> {
        let (directory, name) = self.place(path)?;
        if let Some(Entry::Leaf(leaf)) = directory.names.get_mut(&name)
            && let LeafContent::File { era, .. } = &mut leaf.what
        {
            *era = 0;
        }
        Ok(())
    }
}
