//! The tree of a file system: concealed, or real.

use std::{ffi::OsString, os::fd::OwnedFd, sync::Arc};

use encapsulation::{
    Attributes, Base as _, Content, Effect, Encapsulation, Found, HiddenId, Listing, New, Refused,
    Seen, Time, TreePath, Writing,
};
use rustix::{
    fs::{Mode, OFlags, RenameFlags},
    io::Errno,
};

use crate::{
    base_tree::BaseTree,
    copy,
    reveal::{self, own, set_attributes},
    store::Hidden,
};

/// Reason of calls that change files outside of the concealed trees.
pub(crate) const SURROUNDINGS_REASON: &str = "outside of what is concealed";

/// Reason of calls after a commit that failed.
const FAILED_COMMIT_REASON: &str = "an earlier effect could not be shown";

/// Permission to change real files.
#[derive(Clone)]
pub(crate) enum Gate {
    /// All processes: the effects are concealed.
    Conceals,
    /// Processes with the permission of the closure.
    Asks(Arc<dyn Fn(u32) -> bool + Send + Sync>),
    /// No process: a commit failed.
    Shut,
}

impl Gate {
    pub(crate) fn is_open(&self, process: u32) -> bool {
        match self {
            Self::Conceals => true,
            Self::Asks(may_change) => may_change(process),
            Self::Shut => false,
        }
    }

    /// Whether changes go to the real tree while reads are recorded.
    pub(crate) fn is_real(&self) -> bool {
        matches!(self, Self::Asks(_))
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Conceals => "Conceals",
            Self::Asks(_) => "Asks",
            Self::Shut => "Shut",
        })
    }
}

/// Operations on names and files.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) real: Arc<BaseTree>,
    pub(crate) hidden: Arc<Hidden>,
    /// `None` after the commit.
    pub(crate) concealed: Option<Encapsulation>,
    /// Permission to change the tree.
    pub(crate) gate: Gate,
    /// The asking process.
    pub(crate) process: u32,
}

/// Result of an open for writing.
pub(crate) enum Opened {
    File(Arc<OwnedFd>),
    /// Another file is there now: the kernel must look up the name again.
    Moved,
}

impl Tree {
    /// The encapsulation that takes a change: `None` if the change goes to the real tree.
    fn changes(&mut self, path: &TreePath) -> Result<Option<&mut Encapsulation>, Refused> {
        self.may_change()?;
        if !self.is_concealed() {
            return Ok(None);
        }
        self.revealable(path)?;
        Ok(self.concealed.as_mut())
    }

    /// Checks the permission of the asking process, which otherwise waits.
    pub(crate) fn may_change(&self) -> Result<(), Refused> {
        if self.gate.is_open(self.process) {
            return Ok(());
        }
        let why = if self.gate.is_real() {
            SURROUNDINGS_REASON
        } else {
            FAILED_COMMIT_REASON
        };
        Err(Refused::Unconcealable(why))
    }

    /// Conceals later effects.
    pub(crate) fn is_concealed(&self) -> bool {
        self.concealed.is_some() && !self.gate.is_real()
    }

    /// The path of content below the base of another encapsulation.
    pub(crate) fn origin(&self, content: &Content) -> Result<Content, Errno> {
        match (content, &self.concealed) {
            (Content::Base(path), Some(concealed)) => concealed.base().content(path),
            _ => Ok(content.clone()),
        }
    }

    pub(crate) fn look(&mut self, path: &TreePath) -> Result<Found, Errno> {
        match &mut self.concealed {
            Some(concealed) => concealed.look(path),
            None => self.look_real(path),
        }
    }

    fn look_real(&self, path: &TreePath) -> Result<Found, Errno> {
        // After the commit no job reuses this one, and inputs do not matter.
        match self.real.look_to_compare(path)? {
            Seen::Absent => Err(Errno::NOENT),
            Seen::There(stat) => Ok(Found {
                stat,
                content: Content::Base(path.clone()),
            }),
        }
    }

    pub(crate) fn list(&mut self, path: &TreePath) -> Result<Listing, Errno> {
        match &mut self.concealed {
            Some(concealed) => concealed.list(path),
            None => self.real.list(path),
        }
    }

    pub(crate) fn target(&mut self, path: &TreePath) -> Result<OsString, Errno> {
        let content = self.look(path)?.content;
        match self.origin(&content)? {
            Content::Base(path) => self.real.target(&path),
            Content::Target(target) => Ok(target),
            Content::Hidden(_) | Content::Names => Err(Errno::INVAL),
        }
    }

    /// Opens a file for reading.
    pub(crate) fn read(&mut self, path: &TreePath) -> Result<Arc<OwnedFd>, Errno> {
        let content = self.look(path)?.content;
        match self.origin(&content)? {
            Content::Base(path) => Ok(Arc::new(self.real.file(&path, OFlags::RDONLY)?)),
            Content::Hidden(id) => self.hidden.file(id),
            Content::Target(_) => Err(Errno::LOOP),
            Content::Names => Err(Errno::ISDIR),
        }
    }

    /// Opens a file for writing; `cut` truncates the file.
    pub(crate) fn write(&mut self, path: &TreePath, cut: bool) -> Result<Opened, Refused> {
        let Some(concealed) = self.changes(path)? else {
            let file = match self.real.file(path, OFlags::RDWR) {
                Err(Errno::ACCESS) => self.real.file(path, OFlags::WRONLY)?,
                file => file?,
            };
            return Ok(Opened::File(emptied(Arc::new(file), cut)?));
        };
        match concealed.write(path)? {
            Writing::Own(id) => {
                let file = Arc::new(self.hidden.open(id, OFlags::RDWR)?);
                Ok(Opened::File(emptied(file, cut)?))
            }
            Writing::Copy(found) => {
                let id = self.copy(path, &found, !cut)?;
                let concealed = self.concealed.as_mut().ok_or(Errno::IO)?;
                concealed.replace(path, id)?;
                Ok(Opened::Moved)
            }
        }
    }

    /// A copy with the same attributes, and with the content if wanted.
    fn copy(&self, path: &TreePath, found: &Found, content: bool) -> Result<HiddenId, Refused> {
        let from = match self.origin(&found.content)? {
            Content::Base(path) => self.real.file(&path, OFlags::RDONLY)?,
            Content::Hidden(id) => self.hidden.open(id, OFlags::RDONLY)?,
            Content::Target(_) | Content::Names => return Err(Errno::INVAL.into()),
        };
        let stat = &found.stat;
        let (id, copy) = self.hidden.create(path, stat.mode, stat.owner)?;
        let attributes = Attributes {
            modified: Some(stat.modified),
            ..Attributes::default()
        };
        let copied = copy::content(&from, &copy, content)
            .and_then(|()| Ok(set_attributes(&*copy, &attributes)?));
        copied.map(|()| id).inspect_err(|_| self.hidden.forget(id))
    }

    pub(crate) fn create(
        &mut self,
        path: &TreePath,
        (mode, owner): (u32, (u32, u32)),
        now: Time,
    ) -> Result<Arc<OwnedFd>, Refused> {
        let hidden = Arc::clone(&self.hidden);
        let Some(concealed) = self.changes(path)? else {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
            let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::from_bits_truncate(mode);
            let place = self.real.place(path)?;
            let file = rustix::fs::openat(&place, place.name, flags, mode)?;
            set_attributes(&file, &own(owner, Some(mode.as_raw_mode())))?;
            return Ok(Arc::new(file));
        };
        let (id, file) = hidden.create(path, mode, owner)?;
        if let Err(refused) = concealed.create(path, id, now) {
            hidden.forget(id);
            return Err(refused);
        }
        Ok(file)
    }

    /// Performs the effect on the real tree.
    fn change(&self, effect: &Effect) -> Result<(), Refused> {
        Ok(reveal::change(effect, &self.real)?)
    }

    pub(crate) fn make_directory(&mut self, path: &TreePath, new: New) -> Result<(), Refused> {
        let Some(concealed) = self.changes(path)? else {
            let path = path.clone();
            return self.change(&Effect::Directory { path, new });
        };
        concealed.make_directory(path, new)
    }

    pub(crate) fn make_symlink(
        &mut self,
        path: &TreePath,
        target: OsString,
        new: New,
    ) -> Result<(), Refused> {
        let Some(concealed) = self.changes(path)? else {
            let path = path.clone();
            return self.change(&Effect::Symlink { path, new, target });
        };
        concealed.make_symlink(path, target, new)
    }

    pub(crate) fn make_special(&mut self, path: &TreePath, new: New) -> Result<(), Refused> {
        let Some(concealed) = self.changes(path)? else {
            let path = path.clone();
            return self.change(&Effect::Special { path, new });
        };
        concealed.make_special(path, new)
    }

    pub(crate) fn set_attributes(
        &mut self,
        path: &TreePath,
        attributes: &Attributes,
    ) -> Result<(), Refused> {
        let Some(concealed) = self.changes(path)? else {
            let (path, attributes) = (path.clone(), *attributes);
            return self.change(&Effect::Attributes { path, attributes });
        };
        if let Some(id) = concealed.set_attributes(path, attributes)? {
            set_attributes(&*self.hidden.file(id)?, attributes)?;
        }
        Ok(())
    }

    pub(crate) fn unlink(&mut self, path: &TreePath, now: Time) -> Result<(), Refused> {
        let Some(concealed) = self.changes(path)? else {
            return self.change(&Effect::Unlink { path: path.clone() });
        };
        concealed.unlink(path, now)
    }

    pub(crate) fn remove_directory(&mut self, path: &TreePath, now: Time) -> Result<(), Refused> {
        if self.is_concealed() {
            self.not_mounted(path)?;
        }
        let Some(concealed) = self.changes(path)? else {
            let path = path.clone();
            return self.change(&Effect::RemoveDirectory { path });
        };
        concealed.remove_directory(path, now)
    }

    pub(crate) fn link(
        &mut self,
        from: &TreePath,
        to: &TreePath,
        now: Time,
    ) -> Result<(), Refused> {
        if self.is_concealed() {
            self.in_one_mount(from, to)?;
        }
        let Some(concealed) = self.changes(to)? else {
            let (from, to) = (from.clone(), to.clone());
            return self.change(&Effect::Link { from, to });
        };
        concealed.link(from, to, now)
    }

    pub(crate) fn rename(
        &mut self,
        from: &TreePath,
        to: &TreePath,
        flags: RenameFlags,
        now: Time,
    ) -> Result<(), Refused> {
        if self.is_concealed() {
            self.in_one_mount(from, to)?;
            self.not_mounted(from)?;
            self.not_mounted(to)?;
            self.revealable(from)?;
        }
        let Some(concealed) = self.changes(to)? else {
            return Ok(reveal::rename(from, to, flags, &self.real)?);
        };
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(Errno::INVAL.into());
        }
        if flags.contains(RenameFlags::EXCHANGE) {
            return concealed.exchange(from, to, now);
        }
        concealed.rename(from, to, flags.contains(RenameFlags::NOREPLACE), now)
    }
}

fn emptied(file: Arc<OwnedFd>, cut: bool) -> Result<Arc<OwnedFd>, Errno> {
    if cut {
        rustix::fs::ftruncate(&*file, 0)?;
    }
    Ok(file)
}
