//! Walks through a cgroup and its sub-cgroups, which may come and go meanwhile.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::Pid;

/// The processes in `path` and below, ascending, each once. Sub-cgroups may vanish
/// meanwhile, `path` itself must be there.
pub(super) fn procs(path: &Path) -> io::Result<Vec<Pid>> {
    let mut pids = Vec::new();
    collect(path, &mut pids)?;
    pids.sort_unstable_by_key(|pid| pid.as_raw_pid());
    pids.dedup();
    Ok(pids)
}

fn collect(path: &Path, pids: &mut Vec<Pid>) -> io::Result<()> {
    match fs::read_to_string(path.join("cgroup.procs")) {
        // A process outside our pid namespace reads as 0, which is no pid.
        Ok(text) => pids.extend(
            text.lines()
                .filter_map(|line| line.parse().ok().and_then(Pid::from_raw)),
        ),
        // Below a threaded cgroup, a cgroup above lists the processes.
        Err(e) if is(&e, Errno::OPNOTSUPP) => {}
        Err(e) => return Err(e),
    }
    for child in children(path)? {
        match collect(&child, pids) {
            Err(e) if !has_gone(&e) => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

/// Removes `path` and all sub-cgroups. A missing cgroup is no error.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    for child in children(path)? {
        remove(&child)?;
    }
    match fs::remove_dir(path) {
        Err(e) if !has_gone(&e) => Err(e),
        _ => Ok(()),
    }
}

fn children(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(e) if has_gone(&e) => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Whether `e` means that a cgroup does not exist, or was removed while a file of the cgroup was open.
pub(super) fn has_gone(e: &io::Error) -> bool {
    is(e, Errno::NOENT) || is(e, Errno::NODEV)
}

fn is(e: &io::Error, errno: Errno) -> bool {
    e.raw_os_error() == Some(errno.raw_os_error())
}
