//! The tree that a file system shows: concealed, or the real one.

use std::{ffi::OsString, os::fd::OwnedFd, sync::Arc};

use encapsulation::{
    Attributes, Base as _, Content, Encapsulation, Found, HiddenId, Listing, New, Refused, Seen,
    Time, TreePath, Writing,
};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, RenameFlags},
    io::Errno,
};

use crate::{
    real::{Real, stat_of},
    reveal::set_attributes,
    store::Hidden,
};

/// What is done to names and files, by whoever asks for it.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) real: Arc<Real>,
    pub(crate) hidden: Arc<Hidden>,
    /// `None`: it has been mandated.
    pub(crate) concealed: Option<Encapsulation>,
}

/// What it takes to write to a file.
pub(crate) enum Opened {
    File(Arc<OwnedFd>),
    /// Another file has taken its place: it has to be looked up again.
    Moved,
}

impl Tree {
    pub(crate) fn look(&mut self, path: &TreePath) -> Result<Found, Errno> {
        match &mut self.concealed {
            Some(concealed) => concealed.look(path),
            None => self.look_real(path),
        }
    }

    pub(crate) fn examine(&mut self, path: &TreePath) -> Result<Found, Errno> {
        match &mut self.concealed {
            Some(concealed) => concealed.examine(path),
            None => self.look_real(path),
        }
    }

    fn look_real(&self, path: &TreePath) -> Result<Found, Errno> {
        match self.real.look(path)? {
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
        match self.look(path)?.content {
            Content::Base(path) => self.real.target(&path),
            Content::Target(target) => Ok(target),
            Content::Hidden(_) | Content::Names => Err(Errno::INVAL),
        }
    }

    /// Opens what is there, to read it: so that it can be written to, too, where that is possible, as the kernel has one
    /// open file for all who use it.
    pub(crate) fn read(&mut self, path: &TreePath) -> Result<Arc<OwnedFd>, Errno> {
        let revealed = self.concealed.is_none();
        match self.look(path)?.content {
            Content::Base(path) if revealed => match self.real.file(&path, OFlags::RDWR) {
                Ok(file) => Ok(Arc::new(file)),
                Err(_) => Ok(Arc::new(self.real.file(&path, OFlags::RDONLY)?)),
            },
            Content::Base(path) => Ok(Arc::new(self.real.file(&path, OFlags::RDONLY)?)),
            Content::Hidden(id) => self.hidden.file(id),
            Content::Target(_) => Err(Errno::LOOP),
            Content::Names => Err(Errno::ISDIR),
        }
    }

    /// Opens what is there, to write to it; `cut` begins with nothing.
    pub(crate) fn write(&mut self, path: &TreePath, cut: bool) -> Result<Opened, Refused> {
        let Some(concealed) = &mut self.concealed else {
            let file = self.real.file(path, OFlags::RDWR)?;
            return Ok(Opened::File(emptied(Arc::new(file), cut)?));
        };
        match concealed.write(path)? {
            Writing::Own(id) => Ok(Opened::File(emptied(self.hidden.file(id)?, cut)?)),
            Writing::Copy(found) => {
                let id = self.copy(&found, !cut)?;
                let concealed = self.concealed.as_mut().ok_or(Errno::IO)?;
                concealed.replace(path, id)?;
                Ok(Opened::Moved)
            }
        }
    }

    /// A file with the same attributes, and the same content if that matters.
    fn copy(&self, found: &Found, content: bool) -> Result<HiddenId, Errno> {
        let (id, copy) = self.hidden.create(found.stat.mode, found.stat.owner)?;
        if content {
            let from = match &found.content {
                Content::Base(path) => self.real.file(path, OFlags::RDONLY)?,
                Content::Hidden(id) => self.hidden.open(*id, OFlags::RDONLY)?,
                Content::Target(_) | Content::Names => return Err(Errno::INVAL),
            };
            copy_content(&from, &copy)?;
        }
        let attributes = Attributes {
            modified: Some(found.stat.modified),
            ..Attributes::default()
        };
        set_attributes(&*copy, &attributes)?;
        Ok(id)
    }

    pub(crate) fn create(
        &mut self,
        path: &TreePath,
        (mode, owner): (u32, (u32, u32)),
        now: Time,
    ) -> Result<Arc<OwnedFd>, Refused> {
        let Some(concealed) = &mut self.concealed else {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
            let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::from_bits_truncate(mode);
            let file = rustix::fs::openat(self.real.root(), path.as_path(), flags, mode)?;
            own(&file, owner)?;
            return Ok(Arc::new(file));
        };
        let (id, file) = self.hidden.create(mode, owner)?;
        if let Err(refused) = concealed.create(path, id, now) {
            self.hidden.forget(id);
            return Err(refused);
        }
        Ok(file)
    }

    pub(crate) fn make_directory(&mut self, path: &TreePath, new: New) -> Result<(), Refused> {
        if let Some(concealed) = &mut self.concealed {
            return concealed.make_directory(path, new);
        }
        let mode = Mode::from_bits_truncate(new.mode);
        rustix::fs::mkdirat(self.real.root(), path.as_path(), mode)?;
        Ok(self.own_name(path, new.owner)?)
    }

    pub(crate) fn make_symlink(
        &mut self,
        path: &TreePath,
        target: OsString,
        new: New,
    ) -> Result<(), Refused> {
        if let Some(concealed) = &mut self.concealed {
            return concealed.make_symlink(path, target, new);
        }
        rustix::fs::symlinkat(&target, self.real.root(), path.as_path())?;
        Ok(self.own_name(path, new.owner)?)
    }

    pub(crate) fn make_special(&mut self, path: &TreePath, new: New) -> Result<(), Refused> {
        if let Some(concealed) = &mut self.concealed {
            return concealed.make_special(path, new);
        }
        let kind = FileType::from_raw_mode(new.mode);
        let mode = Mode::from_bits_truncate(new.mode);
        rustix::fs::mknodat(self.real.root(), path.as_path(), kind, mode, 0)?;
        Ok(self.own_name(path, new.owner)?)
    }

    fn own_name(&self, path: &TreePath, owner: (u32, u32)) -> Result<(), Errno> {
        let stat = stat_of(&self.real.stat(path)?);
        if stat.owner == owner {
            return Ok(());
        }
        let user = Some(rustix::fs::Uid::from_raw(owner.0));
        let group = Some(rustix::fs::Gid::from_raw(owner.1));
        let follow = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(self.real.root(), path.as_path(), user, group, follow)
    }

    pub(crate) fn set_attributes(
        &mut self,
        path: &TreePath,
        attributes: &Attributes,
    ) -> Result<(), Refused> {
        let Some(concealed) = &mut self.concealed else {
            return Ok(crate::reveal::set_attributes_at(
                &self.real, path, attributes,
            )?);
        };
        if let Some(id) = concealed.set_attributes(path, attributes)? {
            set_attributes(&*self.hidden.file(id)?, attributes)?;
        }
        Ok(())
    }

    pub(crate) fn unlink(&mut self, path: &TreePath, now: Time) -> Result<(), Refused> {
        match &mut self.concealed {
            Some(concealed) => concealed.unlink(path, now),
            None => Ok(rustix::fs::unlinkat(
                self.real.root(),
                path.as_path(),
                AtFlags::empty(),
            )?),
        }
    }

    pub(crate) fn remove_directory(&mut self, path: &TreePath, now: Time) -> Result<(), Refused> {
        match &mut self.concealed {
            Some(concealed) => concealed.remove_directory(path, now),
            None => Ok(rustix::fs::unlinkat(
                self.real.root(),
                path.as_path(),
                AtFlags::REMOVEDIR,
            )?),
        }
    }

    pub(crate) fn link(
        &mut self,
        from: &TreePath,
        to: &TreePath,
        now: Time,
    ) -> Result<(), Refused> {
        let Some(concealed) = &mut self.concealed else {
            let root = self.real.root();
            let none = AtFlags::empty();
            return Ok(rustix::fs::linkat(
                root,
                from.as_path(),
                root,
                to.as_path(),
                none,
            )?);
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
        let Some(concealed) = &mut self.concealed else {
            let root = self.real.root();
            let (from, to) = (from.as_path(), to.as_path());
            return Ok(rustix::fs::renameat_with(root, from, root, to, flags)?);
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

fn own(file: &OwnedFd, owner: (u32, u32)) -> Result<(), Errno> {
    let stat = rustix::fs::fstat(file)?;
    if (stat.st_uid, stat.st_gid) == owner {
        return Ok(());
    }
    let user = Some(rustix::fs::Uid::from_raw(owner.0));
    let group = Some(rustix::fs::Gid::from_raw(owner.1));
    rustix::fs::fchown(file, user, group)
}

/// By reference where the file system can.
fn copy_content(from: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    loop {
        match rustix::fs::copy_file_range(from, None, to, None, 1 << 30) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}
