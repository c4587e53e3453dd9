//! Times, kinds and attributes, in the words of the kernel and in ours.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use encapsulation::{Identity, Kind, Stat, Time};
use fuser::{FileAttr, FileType, INodeNo};

/// A time that the kernel has set. For a time before 1970 the library subtracts the fraction instead of adding the
/// fraction; this function undoes the mistake.
pub(crate) fn time_of(at: SystemTime) -> Time {
    let (since, sign) = match at.duration_since(UNIX_EPOCH) {
        Ok(since) => (since, 1),
        Err(before) => (before.duration(), -1),
    };
    Time {
        seconds: sign * i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: since.subsec_nanos(),
    }
}

/// In the words of the standard library.
pub(crate) fn system_time(time: Time) -> SystemTime {
    let nanoseconds = Duration::from_nanos(time.nanoseconds.into());
    match u64::try_from(time.seconds) {
        Ok(seconds) => UNIX_EPOCH + Duration::from_secs(seconds) + nanoseconds,
        Err(_) => UNIX_EPOCH - Duration::from_secs(time.seconds.unsigned_abs()) + nanoseconds,
    }
}

pub(crate) fn file_type(kind: Kind, mode: Option<u32>) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::Device => match mode.map(rustix::fs::FileType::from_raw_mode) {
            Some(rustix::fs::FileType::BlockDevice) => FileType::BlockDevice,
            _ => FileType::CharDevice,
        },
    }
}

/// Attributes for the kernel. `details` are the attributes of the file below, if there is a file below.
pub(crate) fn attributes(number: u64, stat: &Stat, details: Option<&rustix::fs::Stat>) -> FileAttr {
    let changed = details.map_or(stat.modified, |below| Time {
        seconds: below.st_ctime,
        nanoseconds: below.st_ctime_nsec.try_into().unwrap_or(0),
    });
    let read = details.map_or(stat.modified, |below| Time {
        seconds: below.st_atime,
        nanoseconds: below.st_atime_nsec.try_into().unwrap_or(0),
    });
    let changed = system_time(changed);
    FileAttr {
        ino: INodeNo(number),
        size: stat.size,
        blocks: details.map_or(0, |below| below.st_blocks.try_into().unwrap_or(0)),
        atime: system_time(read),
        mtime: system_time(stat.modified),
        ctime: changed,
        crtime: changed,
        kind: file_type(stat.kind, details.map(|below| below.st_mode)),
        perm: u16::try_from(stat.mode & 0o7777).unwrap_or(0),
        nlink: stat.links.try_into().unwrap_or(u32::MAX),
        uid: stat.owner.0,
        gid: stat.owner.1,
        rdev: details.map_or(0, |below| below.st_rdev.try_into().unwrap_or(0)),
        blksize: 4096,
        flags: 0,
    }
}

/// Attributes of an absent file: the kernel may remember the absence.
pub(crate) fn nothing() -> FileAttr {
    let stat = Stat {
        identity: Identity::Real {
            device: 0,
            inode: 0,
        },
        kind: Kind::File,
        mode: 0,
        owner: (0, 0),
        links: 0,
        size: 0,
        modified: Time::default(),
        changed: Time::default(),
    };
    attributes(0, &stat, None)
}
