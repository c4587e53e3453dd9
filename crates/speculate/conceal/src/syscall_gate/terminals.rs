//! Terminals that are a program's own.

use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{major, makedev, minor};

use super::{Call, Shared, SizeReaders, filter};
use crate::{
    members::Members,
    processes::{line, number},
};

/// First major number of pseudo-terminals (Documentation/admin-guide/devices.txt).
const FIRST_PTY_MAJOR: u32 = 136;
/// Last major number of pseudo-terminals.
const LAST_PTY_MAJOR: u32 = 143;
/// Pseudo-terminals of each major number.
const PTYS_PER_MAJOR: u32 = 256;
/// Devices that make new pseudo-terminals.
const PTY_MULTIPLEXERS: [&str; 2] = ["/dev/ptmx", "/dev/pts/ptmx"];

/// Programs that ask for a terminal's size for the lines that they quote in messages.
const COMPILERS: [&str; 7] = ["cc1", "cc1plus", "f951", "lto1", "gcc", "clang", "rustc"];

/// Programs with a library that asks for the size instead of each command, and that do not need the size.
const ASKING_FOR_OTHERS: [&str; 3] = ["make", "gmake", "outlive"];

impl Shared {
    /// Notes a request for the size of a terminal: the result of the program may depend on the size.
    pub(super) fn note_size(&self, call: &Call) {
        if call.number != libc::SYS_ioctl || call.architecture != filter::ARCHITECTURE {
            return;
        }
        let program = fs::read_link(format!("/proc/{}/exe", call.process));
        let program = program.unwrap_or_default();
        let name = program.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_default();
        // The file name may contain version and target.
        let is_one_of = |all: &[&str]| name.split('-').any(|word| all.contains(&word));
        let by = match is_one_of(&COMPILERS) {
            _ if is_one_of(&ASKING_FOR_OTHERS) => return,
            true => SizeReaders::Compilers,
            false => SizeReaders::Others,
        };
        let mut sized = self.sized();
        *sized = by.max(*sized);
    }
}

/// Whether the thread already uses that terminal, or a member has made the terminal.
pub(super) fn is_own(thread: u32, members: Members, device: u64) -> bool {
    if !(FIRST_PTY_MAJOR..=LAST_PTY_MAJOR).contains(&major(device)) {
        return false;
    }
    let of = Path::new("/proc").join(thread.to_string());
    let is_it = |descriptor: &str| {
        fs::metadata(of.join("fd").join(descriptor))
            .is_ok_and(|it| it.file_type().is_char_device() && it.rdev() == device)
    };
    ["0", "1", "2"].into_iter().any(is_it)
        || controlling(thread) == Some(device)
        || is_made_by(
            members,
            (major(device) - FIRST_PTY_MAJOR) * PTYS_PER_MAJOR + minor(device),
        )
}

/// Controlling terminal of the session from proc(5): a single number with major and minor.
fn controlling(thread: u32) -> Option<u64> {
    let number: u32 = number(thread, 3)?;
    let minor = (number & 0xff) | ((number >> 12) & 0xf_ff00);
    Some(makedev((number >> 8) & 0xfff, minor))
}

/// Whether a member has the other end.
fn is_made_by(members: Members, which: u32) -> bool {
    let is_other_end = |descriptor: PathBuf| {
        let is_master = fs::read_link(&descriptor)
            .is_ok_and(|it| PTY_MULTIPLEXERS.iter().any(|name| it == Path::new(name)));
        is_master && index(&descriptor) == Some(which)
    };
    members.all().into_iter().any(|process| {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", process.as_raw_pid()));
        let mut descriptors = descriptors.into_iter().flatten().flatten();
        descriptors.any(|descriptor| is_other_end(descriptor.path()))
    })
}

fn index(descriptor: &Path) -> Option<u32> {
    let number = descriptor.file_name()?;
    let about = descriptor.parent()?.with_file_name("fdinfo").join(number);
    line(about, "tty-index:").ok()?.parse().ok()
}
