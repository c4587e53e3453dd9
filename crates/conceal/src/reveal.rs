//! Making visible what was concealed.

use std::os::fd::AsFd;

use encapsulation::{Attributes, Effect, HiddenId, Time, TreePath};
use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, RenameFlags, Timespec, Timestamps, UTIME_OMIT, Uid},
    io::Errno,
};

use crate::{real::Real, store::Hidden};

/// Carries the effects out, in order.
///
/// # Errors
/// Which one could not be, and why. Those before it have been.
pub fn reveal(effects: &[Effect], real: &Real, hidden: &Hidden) -> Result<(), (usize, Errno)> {
    for (number, effect) in effects.iter().enumerate() {
        carry_out(effect, real, hidden).map_err(|errno| (number, errno))?;
    }
    Ok(())
}

/// Directories in which names were changed get the times that they had above the tree: those of the last change.
pub fn set_directory_times(times: &[(TreePath, Time)], real: &Real) {
    for (path, time) in times {
        let modified = Some(*time);
        let attributes = Attributes {
            modified,
            ..Attributes::default()
        };
        // One that is gone again needs none.
        let _ = set_attributes_at(real, path, &attributes);
    }
}

fn carry_out(effect: &Effect, real: &Real, hidden: &Hidden) -> Result<(), Errno> {
    let root = real.root();
    match effect {
        Effect::Create { path, id } => hidden.link(*id, path),
        Effect::Replace { path, id } => replace(path, *id, real, hidden),
        Effect::Directory { path, new } => {
            let mode = Mode::from_bits_truncate(new.mode);
            rustix::fs::mkdirat(root, path.as_path(), mode)?;
            set_attributes_at(real, path, &own(new.owner, Some(new.mode)))
        }
        Effect::Symlink { path, new, target } => {
            rustix::fs::symlinkat(target, root, path.as_path())?;
            set_attributes_at(real, path, &own(new.owner, None))
        }
        Effect::Special { path, new } => {
            let mode = Mode::from_bits_truncate(new.mode);
            let kind = FileType::from_raw_mode(new.mode);
            rustix::fs::mknodat(root, path.as_path(), kind, mode, 0)?;
            set_attributes_at(real, path, &own(new.owner, Some(new.mode & 0o7777)))
        }
        Effect::Link { from, to } => {
            let none = AtFlags::empty();
            rustix::fs::linkat(root, from.as_path(), root, to.as_path(), none)
        }
        Effect::Rename { from, to } => {
            rustix::fs::renameat(root, from.as_path(), root, to.as_path())
        }
        Effect::Exchange { one, other } => {
            let (one, other) = (one.as_path(), other.as_path());
            rustix::fs::renameat_with(root, one, root, other, RenameFlags::EXCHANGE)
        }
        Effect::Unlink { path } => rustix::fs::unlinkat(root, path.as_path(), AtFlags::empty()),
        Effect::RemoveDirectory { path } => {
            rustix::fs::unlinkat(root, path.as_path(), AtFlags::REMOVEDIR)
        }
        Effect::Attributes { path, attributes } => set_attributes_at(real, path, attributes),
    }
}

/// At once: whoever opens the file sees the old one or the new one.
fn replace(path: &TreePath, id: HiddenId, real: &Real, hidden: &Hidden) -> Result<(), Errno> {
    let (parent, _) = path.split().ok_or(Errno::BUSY)?;
    let beside = parent.join(format!(".outlive-{}-{}", std::process::id(), id.0).as_ref());
    hidden.link(id, &beside)?;
    let root = real.root();
    let renamed = rustix::fs::renameat(root, beside.as_path(), root, path.as_path());
    if renamed.is_err() {
        let _ = rustix::fs::unlinkat(root, beside.as_path(), AtFlags::empty());
    }
    renamed
}

fn own(owner: (u32, u32), mode: Option<u32>) -> Attributes {
    Attributes {
        mode,
        user: Some(owner.0),
        group: Some(owner.1),
        ..Attributes::default()
    }
}

/// Of an open file.
///
/// # Errors
/// The kernel's.
pub(crate) fn set_attributes(file: impl AsFd, attributes: &Attributes) -> Result<(), Errno> {
    let file = file.as_fd();
    if attributes.user.is_some() || attributes.group.is_some() {
        let user = attributes.user.map(Uid::from_raw);
        rustix::fs::fchown(file, user, attributes.group.map(Gid::from_raw))?;
    }
    if let Some(mode) = attributes.mode {
        rustix::fs::fchmod(file, Mode::from_bits_truncate(mode))?;
    }
    match times(attributes) {
        Some(times) => rustix::fs::futimens(file, &times),
        None => Ok(()),
    }
}

/// Of what is there; a symbolic link is not followed.
///
/// # Errors
/// The kernel's.
pub(crate) fn set_attributes_at(
    real: &Real,
    path: &TreePath,
    attributes: &Attributes,
) -> Result<(), Errno> {
    let (root, path) = (real.root(), path.as_path());
    if attributes.user.is_some() || attributes.group.is_some() {
        let user = attributes.user.map(Uid::from_raw);
        let group = attributes.group.map(Gid::from_raw);
        rustix::fs::chownat(root, path, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if let Some(mode) = attributes.mode {
        rustix::fs::chmodat(root, path, Mode::from_bits_truncate(mode), AtFlags::empty())?;
    }
    match times(attributes) {
        Some(times) => rustix::fs::utimensat(root, path, &times, AtFlags::SYMLINK_NOFOLLOW),
        None => Ok(()),
    }
}

fn times(attributes: &Attributes) -> Option<Timestamps> {
    if attributes.read.is_none() && attributes.modified.is_none() {
        return None;
    }
    let spec = |time: Option<Time>| Timespec {
        tv_sec: time.map_or(0, |time| time.seconds),
        tv_nsec: time.map_or(UTIME_OMIT.into(), |time| time.nanoseconds.into()),
    };
    Some(Timestamps {
        last_access: spec(attributes.read),
        last_modification: spec(attributes.modified),
    })
}
