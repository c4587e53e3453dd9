//! Reveals concealed effects.

use std::os::fd::{AsFd, OwnedFd};

use encapsulation::{Attributes, Effect, HiddenId, Time, TreePath};
use rustix::{
    fs::{
        AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_OMIT, Uid,
    },
    io::Errno,
};

use crate::{
    base_tree::{BaseTree, stat_of},
    store::{Hidden, name_of},
};

/// Carries out the effects, in order.
///
/// # Errors
/// Index and error of the effect that failed. Earlier effects have been carried out.
pub fn reveal(effects: &[Effect], real: &BaseTree, hidden: &Hidden) -> Result<(), (usize, Errno)> {
    for (number, effect) in effects.iter().enumerate() {
        carry_out(effect, real, hidden).map_err(|errno| (number, errno))?;
    }
    Ok(())
}

/// Directories that were made or dated, or in which names were changed, get the times that the encapsulation showed.
pub fn set_directory_times(times: &[(TreePath, Time)], real: &BaseTree) {
    for (path, time) in times {
        // A directory that is gone again needs no time.
        let _ = set_attributes_at(real, path, &Attributes::default().at(*time));
    }
}

fn carry_out(effect: &Effect, real: &BaseTree, hidden: &Hidden) -> Result<(), Errno> {
    match effect {
        Effect::Create { path, id } => {
            let place = real.place(path)?;
            hidden.link(*id, &place, place.name)
        }
        Effect::Replace { path, id } => replace(path, *id, real, hidden),
        Effect::Directory { new, .. }
        | Effect::Symlink { new, .. }
        | Effect::Special { new, .. } => {
            let made = make(effect, real)?;
            set_attributes(&made, &Attributes::default().at(new.now))?;
            hidden.keep(new.id, made)
        }
        Effect::Attributes { path, attributes } => {
            let file = real.file(path, OFlags::PATH)?;
            let before = rustix::fs::fstat(&file)?;
            set_attributes(&file, attributes)?;
            real.dated(&before, &rustix::fs::fstat(&file)?);
            Ok(())
        }
        _ => change(effect, real),
    }
}

/// Carries out an effect without a hidden file.
///
/// # Errors
/// Errors of the kernel; `EINVAL` for an effect with a hidden file.
pub(crate) fn change(effect: &Effect, real: &BaseTree) -> Result<(), Errno> {
    match effect {
        Effect::Create { .. } | Effect::Replace { .. } => Err(Errno::INVAL),
        Effect::Directory { .. } | Effect::Symlink { .. } | Effect::Special { .. } => {
            make(effect, real).map(drop)
        }
        Effect::Link { from, to } => {
            let (from, to) = (real.place(from)?, real.place(to)?);
            rustix::fs::linkat(&from, from.name, &to, to.name, AtFlags::empty())
        }
        Effect::Rename { from, to } => rename(from, to, RenameFlags::empty(), real),
        Effect::Exchange { one, other } => rename(one, other, RenameFlags::EXCHANGE, real),
        Effect::Unlink { path } => {
            let place = real.place(path)?;
            rustix::fs::unlinkat(&place, place.name, AtFlags::empty())
        }
        Effect::RemoveDirectory { path } => {
            let place = real.place(path)?;
            rustix::fs::unlinkat(&place, place.name, AtFlags::REMOVEDIR)
        }
        Effect::Attributes { path, attributes } => set_attributes_at(real, path, attributes),
    }
}

/// Makes a file without content, and opens the file by `O_PATH`.
fn make(effect: &Effect, real: &BaseTree) -> Result<OwnedFd, Errno> {
    let (place, kind, attributes) = match effect {
        Effect::Directory { path, new } => {
            let place = real.place(path)?;
            rustix::fs::mkdirat(&place, place.name, Mode::from_bits_truncate(new.mode))?;
            let attributes = own(new.owner, Some(new.mode));
            (place, FileType::Directory, attributes)
        }
        Effect::Symlink { path, new, target } => {
            let place = real.place(path)?;
            rustix::fs::symlinkat(target, &place, place.name)?;
            (place, FileType::Symlink, own(new.owner, None))
        }
        Effect::Special { path, new } => {
            let place = real.place(path)?;
            let mode = Mode::from_bits_truncate(new.mode);
            let kind = FileType::from_raw_mode(new.mode);
            rustix::fs::mknodat(&place, place.name, kind, mode, 0)?;
            let attributes = own(new.owner, Some(new.mode & 0o7777));
            (place, kind, attributes)
        }
        _ => return Err(Errno::INVAL),
    };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(&place, place.name, flags, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&made)?.st_mode) != kind {
        // Another program has put another file there since.
        return Err(Errno::NOENT);
    }
    set_attributes(&made, &attributes)?;
    Ok(made)
}

/// As renameat2(2).
///
/// # Errors
/// Errors of the kernel.
pub(crate) fn rename(
    from: &TreePath,
    to: &TreePath,
    flags: RenameFlags,
    real: &BaseTree,
) -> Result<(), Errno> {
    let (from, to) = (real.place(from)?, real.place(to)?);
    rustix::fs::renameat_with(&from, from.name, &to, to.name, flags)
}

/// Replaces a file in a single step: an opener sees the old file or the new file. The directory keeps its time, because
/// the directory has not changed for the program that wrote to the file.
fn replace(path: &TreePath, id: HiddenId, real: &BaseTree, hidden: &Hidden) -> Result<(), Errno> {
    let place = real.place(path)?;
    let beside = format!(".outlive-{}-{}", std::process::id(), id.0);
    let modified = stat_of(&rustix::fs::fstat(&place)?).modified;
    hidden.link(id, &place, beside.as_ref())?;
    let renamed = rustix::fs::renameat(&place, &beside, &place, place.name);
    if renamed.is_err() {
        let _ = rustix::fs::unlinkat(&place, &beside, AtFlags::empty());
    }
    set_attributes(&place, &Attributes::default().at(modified)).and(renamed)
}

/// Attributes of a new file. The mode is set explicitly, because the umask of this process applies to a new file.
pub(crate) fn own(owner: (u32, u32), mode: Option<u32>) -> Attributes {
    Attributes {
        mode,
        user: Some(owner.0),
        group: Some(owner.1),
        ..Attributes::default()
    }
}

/// Sets the attributes of a path; a symbolic link is not followed.
///
/// # Errors
/// Errors of the kernel.
pub(crate) fn set_attributes_at(
    real: &BaseTree,
    path: &TreePath,
    attributes: &Attributes,
) -> Result<(), Errno> {
    set_attributes(real.file(path, OFlags::PATH)?, attributes)
}

/// Sets the attributes of an open file; `O_PATH` suffices.
///
/// # Errors
/// Errors of the kernel.
pub(crate) fn set_attributes(file: impl AsFd, attributes: &Attributes) -> Result<(), Errno> {
    let (file, itself) = (file.as_fd(), AtFlags::EMPTY_PATH);
    if attributes.user.is_some() || attributes.group.is_some() {
        let user = attributes.user.map(Uid::from_raw);
        let group = attributes.group.map(Gid::from_raw);
        rustix::fs::chownat(file, c"", user, group, itself)?;
    }
    if let Some(mode) = attributes.mode {
        rustix::fs::chmod(name_of(file), Mode::from_bits_truncate(mode))?;
    }
    match times(attributes) {
        Some(times) => rustix::fs::utimensat(file, c"", &times, itself),
        None => Ok(()),
    }
}

fn times(attributes: &Attributes) -> Option<Timestamps> {
    if attributes.read.is_none() && attributes.modified.is_none() {
        return None;
    }
    let spec = |time: Option<Time>| Timespec {
        tv_sec: time.map_or(0, |time| time.seconds),
        tv_nsec: time.map_or(UTIME_OMIT, |time| time.nanoseconds.into()),
    };
    Some(Timestamps {
        last_access: spec(attributes.read),
        last_modification: spec(attributes.modified),
    })
}
