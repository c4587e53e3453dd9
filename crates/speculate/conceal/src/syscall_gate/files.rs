//! Files that do not belong to the command: a change of such a file concerns other processes at once.
//!
//! The files of the command are on the devices of the command. Changes of these files are most of the work of a build,
//! and a single look decides about these files. For all other files, a careful walk decides ([`walk`]).

use std::{
    ffi::OsStr,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, FileType, StatxFlags, major, makedev, minor},
    io::Errno,
};

use super::{
    named::{Access, FileCall, PathArgument},
    terminals,
    walk::{self, PathLookup, Target, walk},
};
use crate::{members::Members, socket_address::read, tree::SURROUNDINGS_REASON};

/// Longest path, bytes (linux/limits.h).
const PATH_MAX: usize = 4096;
/// A path may end where the next page is missing.
const PAGE_BYTES: u64 = 4096;
/// Harmless devices ([`is_harmless`]) that are often written to.
const COMMON_DEVICES: [&str; 2] = ["/dev/null", "/dev/tty"];
/// Reasons of waiting calls.
const KERNEL_STATE_REASON: &str = "the kernel's state";
const DEVICE_REASON: &str = "a device";
pub(super) const PROCESS_REASON: &str = "another process";
const UNKNOWN_REASON: &str = "a file that cannot be inspected now";
/// File systems without names, reached by descriptors alone: pipes, sockets, anonymous inodes (linux/magic.h).
const UNNAMED_FILE_SYSTEMS: [u64; 3] = [0x5049_5045, 0x534f_434b, 0x0904_1934];

/// Where files are.
#[derive(Debug, Clone)]
pub(crate) struct Devices {
    /// Device of the surroundings, which all programs share.
    pub(crate) around: u64,
    /// Devices of this command alone.
    pub(crate) own: Vec<u64>,
}

/// The caller of a call on a file.
pub(super) struct Caller<'a> {
    pub(super) thread: u32,
    pub(super) members: Members,
    pub(super) devices: &'a Devices,
}

/// The relevant properties of a file.
struct FileInfo {
    device: u64,
    kind: FileType,
    /// Number of the device, for a device file.
    stands_for: u64,
    links: u32,
}

/// The device of a path. The call does not query a file system in user space, which may be waiting for this process.
pub(crate) fn device_of(path: &Path) -> Result<u64, Errno> {
    Ok(about(CWD, path, AtFlags::empty())?.device)
}

fn about(from: impl std::os::fd::AsFd, path: &Path, flags: AtFlags) -> Result<FileInfo, Errno> {
    let flags = flags | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(from, path, flags, StatxFlags::TYPE | StatxFlags::NLINK)?;
    Ok(FileInfo {
        device: makedev(stat.stx_dev_major, stat.stx_dev_minor),
        kind: FileType::from_raw_mode(stat.stx_mode.into()),
        stands_for: makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
        links: stat.stx_nlink,
    })
}

impl Caller<'_> {
    /// The reason why the call must wait, if the call must wait.
    pub(super) fn waiting_reason(&self, named: &FileCall) -> Option<&'static str> {
        let path = self.path(named.place)?;
        let path = match named.is_rooted {
            true => path.strip_prefix("/").unwrap_or(&path).to_owned(),
            false => path,
        };
        match named.access {
            Access::Make | Access::Remove => self.name(*named, &path),
            Access::Open(flags) if flags & libc::O_PATH != 0 => None,
            Access::Open(_) | Access::Change | Access::Extend => self.file(named, &path),
        }
    }

    /// The reason why a call must wait that makes this name at its place.
    pub(super) fn makes(&self, path: &Path) -> Option<&'static str> {
        self.name(FileCall::made(), path)
    }

    /// The path in the memory of the caller; empty if a descriptor is enough. If the path cannot be read, the call
    /// fails.
    fn path(&self, place: PathArgument) -> Option<PathBuf> {
        match place.at {
            0 => Some(PathBuf::new()),
            at => text(self.thread, at),
        }
    }

    /// The absolute path, if the path can be determined.
    pub(super) fn whole(&self, place: PathArgument) -> Option<PathBuf> {
        let (path, thread) = (self.path(place)?, self.thread);
        let from = match place.directory {
            libc::AT_FDCWD => format!("/proc/{thread}/cwd"),
            number => format!("/proc/{thread}/fd/{number}"),
        };
        match path.as_os_str().is_empty() {
            true => std::fs::read_link(from).ok(),
            false if path.is_absolute() => Some(path),
            false => Some(std::fs::read_link(from).ok()?.join(path)),
        }
    }

    /// A simple look at a path. The look may lead elsewhere, but never to the command's own devices by mistake: these
    /// devices are visible only in the mounts of the command.
    fn glance(&self, directory: i32, path: &Path, follows: bool) -> Result<FileInfo, Errno> {
        let mut seen = walk::start(self.thread, directory, path);
        let below = path.strip_prefix("/").unwrap_or(path);
        if below != Path::new("") {
            seen.push(below);
        }
        let flags = match follows || below == Path::new("") {
            true => AtFlags::empty(),
            false => AtFlags::SYMLINK_NOFOLLOW,
        };
        about(CWD, &seen, flags)
    }

    fn is_own(&self, about: &FileInfo) -> bool {
        self.devices.own.contains(&about.device)
    }

    fn file(&self, named: &FileCall, path: &Path) -> Option<&'static str> {
        let directory = named.place.directory;
        if named.access.opens() && COMMON_DEVICES.iter().any(|name| path == Path::new(name)) {
            return None;
        }
        if self.is_clear(named, path) {
            return None;
        }
        let lookup = PathLookup {
            directory,
            path,
            follows: named.follows,
            is_rooted: named.is_rooted,
        };
        match walk(self.thread, self.members, lookup) {
            Ok(Target::There { file, is_written }) => match named.access {
                Access::Open(_) if is_written || !named.access.writes() => None,
                _ => self.judge(&file, named.access),
            },
            Ok(Target::Nothing(directory)) if named.access.makes() => {
                self.judge(&directory, Access::Make)
            }
            Ok(Target::Elsewhere) => Some(PROCESS_REASON),
            Err(error) if is_ours(error) => Some(UNKNOWN_REASON),
            // The call fails, too.
            Ok(Target::Nothing(_)) | Err(_) => None,
        }
    }

    /// Whether a single look shows that the file belongs to the command.
    fn is_clear(&self, named: &FileCall, path: &Path) -> bool {
        let directory = named.place.directory;
        // The look would not stop at that root.
        if named.is_rooted {
            return false;
        }
        match self.glance(directory, path, named.follows) {
            Ok(about) => self.is_own(&about),
            Err(Errno::NOENT) if named.access.makes() => self.is_made_in_own(directory, path),
            Err(_) => false,
        }
    }

    /// Whether a missing file would be made on an own device: the name may be a dangling link to another place.
    fn is_made_in_own(&self, directory: i32, path: &Path) -> bool {
        let Some(parent) = path.parent() else {
            return false;
        };
        let parent = self.glance(directory, parent, true);
        parent.is_ok_and(|parent| self.is_own(&parent))
            && matches!(self.glance(directory, path, false), Err(Errno::NOENT))
    }

    /// A change of a name is a change of the directory of the name.
    fn name(&self, named: FileCall, path: &Path) -> Option<&'static str> {
        let directory = named.place.directory;
        // A path without a last name (`..`) is an error.
        let (parent, name) = path.parent().zip(path.file_name())?;
        if self
            .glance(directory, parent, true)
            .is_ok_and(|parent| self.is_own(&parent))
        {
            return None;
        }
        let lookup = PathLookup {
            directory,
            path: parent,
            follows: true,
            is_rooted: false,
        };
        let parent = match walk(self.thread, self.members, lookup) {
            Ok(Target::There { file, .. }) => file,
            Ok(Target::Elsewhere) => return Some(PROCESS_REASON),
            Err(error) if is_ours(error) => return Some(UNKNOWN_REASON),
            Ok(Target::Nothing(_)) | Err(_) => return None,
        };
        let why = self.judge(&parent, named.access)?;
        let there = about(&parent, Path::new(name), AtFlags::SYMLINK_NOFOLLOW);
        let fails = match named.access {
            Access::Remove => there.is_err_and(|error| !is_ours(error)),
            _ => there.is_ok() && named.from.is_none(),
        };
        (!fails && !self.is_missing(named.from)).then_some(why)
    }

    fn is_missing(&self, from: Option<PathArgument>) -> bool {
        from.is_some_and(|from| {
            let path = self.path(from);
            path.is_none_or(|path| {
                let about = self.glance(from.directory, &path, false);
                matches!(about, Err(Errno::NOENT))
            })
        })
    }

    /// The reason why a call on that file must wait, if the call must wait.
    fn judge(&self, file: &OwnedFd, access: Access) -> Option<&'static str> {
        let Ok(about) = about(file, Path::new(""), AtFlags::EMPTY_PATH) else {
            return Some(UNKNOWN_REASON);
        };
        if self.is_own(&about) {
            return None;
        }
        let is_file = about.kind.is_file();
        if about.device == self.devices.around {
            let matters = access != Access::Extend && (is_file || !access.opens());
            return matters.then_some(SURROUNDINGS_REASON);
        }
        let Some(place) = walk::place(file) else {
            return Some(UNKNOWN_REASON);
        };
        if walk::is_of_processes(file) {
            return match walk::process_in(&place) {
                Some(process) if self.members.has(process.cast_unsigned()) => None,
                Some(_) => Some(PROCESS_REASON),
                None => (is_file || !access.opens()).then_some(KERNEL_STATE_REASON),
            };
        }
        if about.kind.is_char_device() || about.kind.is_block_device() {
            let is_clear = (access.opens() && is_harmless(&about))
                || terminals::is_own(self.thread, self.members, about.stands_for);
            return (!is_clear).then_some(DEVICE_REASON);
        }
        if (is_file && about.links == 0) || (!is_file && access.opens()) || is_nameless(file) {
            return None;
        }
        Some(match place.starts_with("/sys") {
            true => KERNEL_STATE_REASON,
            false => SURROUNDINGS_REASON,
        })
    }
}

/// Whether the error is a lack of resources in this process, and not a result of the program's call.
fn is_ours(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOMEM)
}

/// Null, zero, full, random, urandom; the controlling terminal, and new ones (Documentation/admin-guide/devices.txt).
fn is_harmless(about: &FileInfo) -> bool {
    let number = (major(about.stands_for), minor(about.stands_for));
    about.kind.is_char_device() && matches!(number, (1, 3 | 5 | 7..=9) | (5, 0 | 2))
}

fn is_nameless(file: &OwnedFd) -> bool {
    let kind = rustix::fs::fstatfs(file).map(|about| about.f_type);
    kind.is_ok_and(|kind| {
        u64::try_from(kind).is_ok_and(|kind| UNNAMED_FILE_SYSTEMS.contains(&kind))
    })
}

fn text(thread: u32, at: u64) -> Option<PathBuf> {
    let mut all = Vec::new();
    while all.len() < PATH_MAX {
        let from = at.checked_add(all.len() as u64)?;
        let mut piece = vec![0; usize::try_from(PAGE_BYTES - from % PAGE_BYTES).ok()?];
        read(thread, from, &mut piece).ok()?;
        let end = piece.iter().position(|byte| *byte == 0);
        all.extend_from_slice(&piece[..end.unwrap_or(piece.len())]);
        if end.is_some() {
            return Some(OsStr::from_bytes(&all).into());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::{ffi::CString, fs, os::unix::fs::symlink};

    use super::*;

    const OPEN_TO_WRITE: Access = Access::Open(libc::O_WRONLY);
    const OPEN_TO_CREATE: Access = Access::Open(libc::O_WRONLY | libc::O_CREAT);

    fn asked(path: impl AsRef<Path>, access: Access) -> Option<&'static str> {
        asked_from(libc::AT_FDCWD, false, path, access)
    }

    /// Files in `/dev/shm` count as own.
    fn asked_from(
        directory: i32,
        is_rooted: bool,
        path: impl AsRef<Path>,
        access: Access,
    ) -> Option<&'static str> {
        let path = CString::new(path.as_ref().as_os_str().as_bytes()).expect("no zero in it");
        let devices = Devices {
            around: device_of(Path::new("/etc/passwd")).expect("it is there"),
            own: vec![device_of(Path::new("/dev/shm")).expect("it is there")],
        };
        let caller = Caller {
            thread: std::process::id(),
            members: Members::with(std::process::id()).expect("it runs"),
            devices: &devices,
        };
        let place = PathArgument {
            directory,
            at: path.as_ptr() as u64,
        };
        caller.waiting_reason(&FileCall {
            place,
            access,
            follows: true,
            from: None,
            is_rooted,
        })
    }

    #[test]
    fn foreign_signals_wait() {
        assert_eq!(asked("/dev/null", OPEN_TO_WRITE), None);
        assert_eq!(asked("/dev/../dev/ptmx", OPEN_TO_WRITE), None);
        assert_eq!(
            asked("/etc/passwd", OPEN_TO_WRITE),
            Some(SURROUNDINGS_REASON)
        );
        assert_eq!(asked("/etc/passwd", Access::Open(libc::O_CREAT)), None);
        assert_eq!(asked("/etc", OPEN_TO_WRITE), None);
        assert_eq!(asked("/nowhere/at/all", OPEN_TO_CREATE), None);
        assert_eq!(asked("/etc/nobody", OPEN_TO_WRITE), None);
        assert_eq!(
            asked("/etc/nobody", OPEN_TO_CREATE),
            Some(SURROUNDINGS_REASON)
        );
        assert_eq!(asked("/dev/kmsg", OPEN_TO_WRITE), Some(DEVICE_REASON));
        assert_eq!(
            asked("/dev/../sys/power/state", OPEN_TO_WRITE),
            Some(KERNEL_STATE_REASON)
        );
        assert_eq!(
            asked("/proc/sys/vm/drop_caches", OPEN_TO_WRITE),
            Some(KERNEL_STATE_REASON)
        );
    }

    #[test]
    fn path_calls_name_their_directories() {
        assert_eq!(asked("/dev/shm/nobody", Access::Make), None);
        assert_eq!(
            asked("/dev/nobody", Access::Make),
            Some(SURROUNDINGS_REASON)
        );
        assert_eq!(asked("/dev/nobody", Access::Remove), None);
        assert_eq!(
            asked("/dev/null", Access::Remove),
            Some(SURROUNDINGS_REASON)
        );
        assert_eq!(asked("/dev/null", Access::Make), None);
        assert_eq!(asked("/dev/null", Access::Change), Some(DEVICE_REASON));
        assert_eq!(asked("/dev/null", Access::Extend), Some(DEVICE_REASON));
        assert_eq!(
            asked("/sys/kernel", Access::Extend),
            Some(KERNEL_STATE_REASON)
        );
        assert_eq!(asked("/etc/passwd", Access::Extend), None);
        assert_eq!(
            asked("/etc/passwd/", Access::Remove),
            Some(SURROUNDINGS_REASON)
        );
        assert_eq!(asked("/etc/..", Access::Remove), None);
        assert_eq!(asked("/", Access::Make), None);
        assert_eq!(
            asked("/sys/nobody", Access::Make),
            Some(KERNEL_STATE_REASON)
        );
    }

    #[test]
    fn own_processes_reach_own_files() {
        assert_eq!(asked("/proc/self/oom_score_adj", OPEN_TO_WRITE), None);
        assert_eq!(asked("/proc/thread-self/comm", OPEN_TO_WRITE), None);
        assert_eq!(
            asked("/proc/self/root/etc/passwd", OPEN_TO_WRITE),
            Some(SURROUNDINGS_REASON)
        );
        assert_eq!(asked("/proc/self/root/dev/shm/new", OPEN_TO_CREATE), None);
        assert_eq!(asked("/dev/stdout", OPEN_TO_WRITE), None);
        let (read, _write) = std::io::pipe().expect("a pipe");
        let number = std::os::fd::AsRawFd::as_raw_fd(&read);
        assert_eq!(
            asked(format!("/proc/self/fd/{number}"), OPEN_TO_WRITE),
            None
        );
    }

    #[test]
    fn openat2_root_is_a_directory() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("etc")).expect("a directory");
        symlink("/etc/new", at("link")).expect("a link");
        let own = fs::File::open(directory.path()).expect("a directory");
        let own = std::os::fd::AsRawFd::as_raw_fd(&own);
        for path in ["/etc/passwd", "etc/../../../etc/new", "/link", "/dev/null"] {
            assert_eq!(asked_from(own, true, path, OPEN_TO_CREATE), None, "{path}");
        }
        assert_eq!(asked_from(own, true, "/", OPEN_TO_WRITE), None);
        assert_eq!(
            asked_from(own, false, "/etc/passwd", OPEN_TO_CREATE),
            Some(SURROUNDINGS_REASON)
        );
        let sys = fs::File::open("/sys").expect("a directory");
        let sys = std::os::fd::AsRawFd::as_raw_fd(&sys);
        assert_eq!(
            asked_from(sys, true, "../dev/shm", OPEN_TO_CREATE),
            Some(KERNEL_STATE_REASON)
        );
        assert_eq!(asked_from(sys, false, "../dev/shm", OPEN_TO_CREATE), None);
    }

    #[test]
    fn links_lead_to_their_targets() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let at = |name: &str| directory.path().join(name);
        symlink("/proc/sys/vm/drop_caches", at("state")).expect("a link");
        symlink("/etc/nobody", at("nobody")).expect("a link");
        symlink("own", at("link")).expect("a link");
        fs::write(at("own"), "").expect("a file");
        assert_eq!(asked(at("own"), OPEN_TO_WRITE), None);
        assert_eq!(asked(at("link"), OPEN_TO_WRITE), None);
        assert_eq!(asked(at("new"), OPEN_TO_CREATE), None);
        assert_eq!(asked(at("state"), OPEN_TO_WRITE), Some(KERNEL_STATE_REASON));
        assert_eq!(
            asked(at("nobody"), OPEN_TO_CREATE),
            Some(SURROUNDINGS_REASON)
        );
        assert_eq!(asked(at("nobody"), Access::Remove), None);
    }
}
