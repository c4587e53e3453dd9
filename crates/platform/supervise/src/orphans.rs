//! Reaping the descendants that a server leaves behind.
//!
//! A server that becomes a daemon forks twice, and the parent ends. The daemon then belongs to the nearest subreaper.
//! The supervisor is the subreaper: the supervisor notices the end of the daemon, and no zombie stays. But other
//! children of the supervisor, such as a logger, have other waiters, and a wait for "any child" would steal the status.
//! Therefore an orphan is reaped only if the orphan belongs to the service's cgroup, which a zombie still shows, and if
//! no other code wants the status.

#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, getpid, set_child_subreaper, waitid};

use crate::cgroup::Cgroup;
use crate::deadline::Deadline;

/// Makes this process the subreaper of orphaned descendants. A single call is enough.
///
/// # Errors
///
/// When prctl(2) fails, which no kernel since 3.4 does.
pub fn become_subreaper() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Reaps the zombies among the children of this process that belong to `cgroup`, except processes in `keep` (the main
/// process, whose status [`crate::Server::try_wait`] is to get). Returns the number of reaped zombies. Never blocks;
/// costs a single system call when there is no zombie.
///
/// # Errors
///
/// When `/proc` cannot be read.
pub fn reap_orphans(cgroup: &Cgroup, keep: &[Pid]) -> io::Result<usize> {
    if !have_zombie()? {
        return Ok(0);
    }
    Ok(bury(cgroup, keep)?.reaped)
}

/// Reaps the orphans of an emptied `cgroup`, and waits for orphans that are about to end: a process leaves its cgroup a
/// moment before the process becomes a zombie. Gives up at `deadline`.
pub(crate) fn reap_last_orphans(
    cgroup: &Cgroup,
    keep: &[Pid],
    deadline: Deadline,
) -> io::Result<()> {
    while bury(cgroup, keep)?.left > 0 && !deadline.passed() {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Result of a pass over the members of a cgroup.
struct Burial {
    /// Reaped zombies.
    reaped: usize,
    /// Members that still exist: running, dying, or waiting for another parent.
    left: usize,
}

fn bury(cgroup: &Cgroup, keep: &[Pid]) -> io::Result<Burial> {
    let mut burial = Burial { reaped: 0, left: 0 };
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|n| n.parse().ok());
        let Some(pid) = pid.and_then(Pid::from_raw) else {
            continue;
        };
        if keep.contains(&pid) || !is_member(pid, cgroup) {
            continue;
        }
        if is_our_zombie(pid) && reap(pid)? {
            burial.reaped += 1;
        } else {
            burial.left += 1;
        }
    }
    Ok(burial)
}

/// Whether any child waits to be reaped. Takes nobody's status.
fn have_zombie() -> io::Result<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match waitid(WaitId::All, options) {
        Ok(status) => Ok(status.is_some()),
        Err(Errno::CHILD) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

fn reap(pid: Pid) -> io::Result<bool> {
    match waitid(
        WaitId::Pid(pid),
        WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
    ) {
        Ok(status) => Ok(status.is_some()),
        Err(Errno::CHILD) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

fn is_our_zombie(pid: Pid) -> bool {
    fs::read(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| state_and_parent(&stat) == Some((b'Z', Some(getpid()))))
}

fn is_member(pid: Pid, cgroup: &Cgroup) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cgroup"))
        .is_ok_and(|text| names_cgroup(&text, cgroup.hierarchy_path()))
}

/// State letter and parent from `/proc/<pid>/stat` (proc_pid_stat(5)). The program's name before these fields may
/// contain any characters, also parentheses and spaces.
fn state_and_parent(stat: &[u8]) -> Option<(u8, Option<Pid>)> {
    let name_end = stat.iter().rposition(|&b| b == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent: i32 = fields.next()?.parse().ok()?;
    Some((state, Pid::from_raw(parent.max(0)))) // -1: reaped by now
}

/// Whether `/proc/<pid>/cgroup` names `path` or a sub-cgroup of `path` in the v2 hierarchy.
fn names_cgroup(text: &str, path: &str) -> bool {
    text.lines()
        .filter_map(|line| line.strip_prefix("0::"))
        // A removed cgroup is still shown for its zombies, with a mark.
        .map(|name| name.strip_suffix(" (deleted)").unwrap_or(name))
        .filter_map(|name| name.strip_prefix(path))
        .any(|rest| rest.is_empty() || rest.starts_with('/'))
}
