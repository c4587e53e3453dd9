//! Calls that change files by name, and the kind of the change.

use super::{Call, signed};
use crate::socket_address::read;

// Calls of later kernels than the known numbers; the numbers are the same on all architectures.
pub(super) const SYS_FCHMODAT2: libc::c_long = 452;
pub(super) const SYS_SETXATTRAT: libc::c_long = 463;
pub(super) const SYS_REMOVEXATTRAT: libc::c_long = 466;
pub(super) const SYS_FILE_SETATTR: libc::c_long = 469;

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// The file is opened, with these flags.
    Open(i32),
    /// Attributes or length of the file change.
    Change,
    /// Attributes change that the file systems of this program do not have.
    Extend,
    /// The name is made.
    Make,
    /// The name is removed.
    Remove,
}

/// Place of a path of a call: the start directory, and the address in the thread's memory. Address 0 means the file of
/// the descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PathArgument {
    pub(super) directory: i32,
    pub(super) at: u64,
}

/// A call that names a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileCall {
    pub(super) place: PathArgument,
    pub(super) access: Access,
    /// A symbolic link is followed.
    pub(super) follows: bool,
    /// A file that must exist for the call.
    pub(super) from: Option<PathArgument>,
    /// The directory is the root of the lookup.
    pub(super) is_rooted: bool,
}

impl Access {
    pub(super) fn opens(self) -> bool {
        matches!(self, Self::Open(_))
    }

    /// Whether the call makes a missing file.
    pub(super) fn makes(self) -> bool {
        matches!(self, Self::Open(flags) if flags & libc::O_CREAT != 0)
    }

    /// Whether the call writes to an existing file.
    pub(super) fn writes(self) -> bool {
        let Self::Open(flags) = self else {
            return true;
        };
        let fails = libc::O_CREAT | libc::O_EXCL;
        flags & fails != fails && flags & (libc::O_ACCMODE | libc::O_TRUNC) != 0
    }
}

impl FileCall {
    /// A name that is known already is made from where the thread is.
    pub(super) fn made() -> Self {
        named(WORKING_DIRECTORY, 0, Access::Make)
    }
}

fn named(directory: u64, at: u64, access: Access) -> FileCall {
    FileCall {
        place: PathArgument {
            directory: signed(directory),
            at,
        },
        access,
        follows: true,
        from: None,
        is_rooted: false,
    }
}

fn opened(directory: u64, at: u64, flags: i32) -> FileCall {
    let is_link_itself = flags & libc::O_NOFOLLOW != 0
        || flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL;
    FileCall {
        follows: !is_link_itself,
        ..named(directory, at, Access::Open(flags))
    }
}

/// Reads flags, mode and lookup flags from the caller's `struct open_how`.
fn opened_so(call: &Call) -> Option<FileCall> {
    let [directory, at, how, ..] = call.arguments;
    let mut all = [0; 24];
    read(call.process, how, &mut all).ok()?;
    let mut words = all
        .as_chunks()
        .0
        .iter()
        .map(|word| u64::from_ne_bytes(*word));
    let (flags, _, resolve) = (words.next()?, words.next()?, words.next()?);
    Some(FileCall {
        is_rooted: resolve & libc::RESOLVE_IN_ROOT != 0,
        ..opened(directory, at, signed(flags))
    })
}

fn renamed(from: (u64, u64), to: (u64, u64)) -> FileCall {
    // A rename from a file system to another file system fails: the destination alone decides.
    FileCall {
        from: Some(PathArgument {
            directory: signed(from.0),
            at: from.1,
        }),
        ..named(to.0, to.1, Access::Make)
    }
}

/// The attributes change; the attributes of a link only if the flags forbid following.
fn changed(directory: u64, at: u64, flags: u64) -> FileCall {
    FileCall {
        follows: signed(flags) & libc::AT_SYMLINK_NOFOLLOW == 0,
        ..named(directory, at, Access::Change)
    }
}

/// The same for attributes that are not everywhere.
fn extended(directory: u64, at: u64, flags: u64) -> FileCall {
    FileCall {
        access: Access::Extend,
        ..changed(directory, at, flags)
    }
}

/// The file that a call names, and the kind of the change.
pub(super) fn of(call: &Call) -> Option<FileCall> {
    let [a, b, c, d, e, _] = call.arguments;
    Some(match call.number {
        libc::SYS_openat => opened(a, b, signed(c)),
        libc::SYS_openat2 => return opened_so(call),
        libc::SYS_mkdirat | libc::SYS_mknodat => named(a, b, Access::Make),
        libc::SYS_symlinkat => named(b, c, Access::Make),
        libc::SYS_linkat => named(c, d, Access::Make),
        libc::SYS_unlinkat => named(a, b, Access::Remove),
        libc::SYS_renameat | libc::SYS_renameat2 => renamed((a, b), (c, d)),
        libc::SYS_fchmodat => changed(a, b, 0),
        SYS_FCHMODAT2 | libc::SYS_utimensat => changed(a, b, d),
        libc::SYS_fchownat => changed(a, b, e),
        libc::SYS_fchmod | libc::SYS_fchown => changed(a, 0, 0),
        libc::SYS_truncate => changed(WORKING_DIRECTORY, a, 0),
        libc::SYS_setxattr | libc::SYS_removexattr => extended(WORKING_DIRECTORY, a, 0),
        libc::SYS_lsetxattr | libc::SYS_lremovexattr => extended(WORKING_DIRECTORY, a, NO_FOLLOW),
        libc::SYS_fsetxattr | libc::SYS_fremovexattr => extended(a, 0, 0),
        SYS_SETXATTRAT | SYS_REMOVEXATTRAT => extended(a, b, c),
        SYS_FILE_SETATTR => extended(a, b, e),
        _ => return of_older(call),
    })
}

/// The working directory of the thread.
const WORKING_DIRECTORY: u64 = libc::AT_FDCWD.cast_unsigned() as u64;
/// The link itself, not the target.
const NO_FOLLOW: u64 = libc::AT_SYMLINK_NOFOLLOW.cast_unsigned() as u64;

/// Calls without a directory argument, which begin in the working directory.
#[cfg(target_arch = "x86_64")]
fn of_older(call: &Call) -> Option<FileCall> {
    let [a, b, ..] = call.arguments;
    Some(match call.number {
        libc::SYS_open => opened(WORKING_DIRECTORY, a, signed(b)),
        libc::SYS_creat => opened(
            WORKING_DIRECTORY,
            a,
            libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC,
        ),
        libc::SYS_mkdir | libc::SYS_mknod => named(WORKING_DIRECTORY, a, Access::Make),
        libc::SYS_symlink | libc::SYS_link => named(WORKING_DIRECTORY, b, Access::Make),
        libc::SYS_unlink | libc::SYS_rmdir => named(WORKING_DIRECTORY, a, Access::Remove),
        libc::SYS_rename => renamed((WORKING_DIRECTORY, a), (WORKING_DIRECTORY, b)),
        libc::SYS_chmod | libc::SYS_chown | libc::SYS_utime | libc::SYS_utimes => {
            changed(WORKING_DIRECTORY, a, 0)
        }
        libc::SYS_lchown => changed(WORKING_DIRECTORY, a, NO_FOLLOW),
        libc::SYS_futimesat => changed(a, b, 0),
        _ => return None,
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn of_older(_: &Call) -> Option<FileCall> {
    None
}
