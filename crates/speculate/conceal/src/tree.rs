//! The tree that a file system shows: concealed, or the real one.

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

/// Who may change what is there.
#[derive(Clone)]
pub(crate) enum Gate {
    /// Everybody: it is concealed.
    Conceals,
    /// Processes of which this says so.
    Asks(Arc<dyn Fn(u32) -> bool + Send + Sync>),
    /// Nobody any more: it could not be shown.
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

    /// Changes are made to the real tree, though what is read is recorded.
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

/// What is done to names and files, by whoever asks for it.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) real: Arc<BaseTree>,
    pub(crate) hidden: Arc<Hidden>,
    /// `None`: it has been committed.
    pub(crate) concealed: Option<Encapsulation>,
    /// Who may change it.
    pub(crate) gate: Gate,
    /// Who asks now.
    pub(crate) process: u32,
}

/// What it takes to write to a file.
pub(crate) enum Opened {
    File(Arc<OwnedFd>),
    /// Another file has taken its place: it has to be looked up again.
    Moved,
}

impl Tree {
    /// The encapsulation to which a change of what is there is made: `None` if it is made to the real tree.
    fn changes(&mut self, path: &TreePath) -> Result<Option<&mut Encapsulation>, Refused> {
        self.may_change()?;
        if !self.is_concealed() {
            return Ok(None);
        }
        self.revealable(path)?;
        Ok(self.concealed.as_mut())
    }

    /// Who asks may change what is there, or waits until they may.
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

    /// What is done now is concealed.
    pub(crate) fn is_concealed(&self) -> bool {
        self.concealed.is_some() && !self.gate.is_real()
    }

    /// Where content really is, that another encapsulation has as its base.
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
        // Nothing that is done from now on is taken over by others: nobody goes by what was read.
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

    /// Opens what is there, to read it.
    pub(crate) fn read(&mut self, path: &TreePath) -> Result<Arc<OwnedFd>, Errno> {
        let content = self.look(path)?.content;
        match self.origin(&content)? {
            Content::Base(path) => Ok(Arc::new(self.real.file(&path, OFlags::RDONLY)?)),
            Content::Hidden(id) => self.hidden.file(id),
            Content::Target(_) => Err(Errno::LOOP),
            Content::Names => Err(Errno::ISDIR),
        }
    }

    /// Opens what is there, to write to it; `cut` begins with nothing.
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

    /// A file with the same attributes, and the same content if that matters.
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

    /// To the real tree.
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
