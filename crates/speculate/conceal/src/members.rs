//! The processes of an encapsulation: all processes in its mount namespace, in any session or group.

use std::{collections::BTreeMap, fs, io, os::unix::fs::MetadataExt as _};

use rustix::{
    process::{Pid, Signal, kill_process, kill_process_group},
    thread::{CapabilitySet, capabilities},
};

use crate::processes::number;

/// Most ancestors that are looked at. Processes may get other parents meanwhile.
const ANCESTOR_LIMIT: usize = 64;
/// Autogroup nice value of a session that comes after all others.
const LOWEST_PRIORITY: &str = "19";

/// The processes in a mount namespace, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Members(u64);

impl Members {
    /// The processes in the mounts of a process.
    ///
    /// # Errors
    /// The process is gone, or may not be inspected.
    pub fn with(process: u32) -> io::Result<Self> {
        Ok(Self(fs::metadata(format!("/proc/{process}/ns/mnt"))?.ino()))
    }

    /// The number of the mount namespace.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    /// The processes in the mounts of that number.
    #[must_use]
    pub fn numbered(number: u64) -> Self {
        Self(number)
    }

    /// The processes in the mounts of a descriptor.
    pub(crate) fn of(namespace: &impl std::os::fd::AsFd) -> io::Result<Self> {
        Ok(Self(rustix::fs::fstat(namespace)?.st_ino))
    }

    /// Whether a process is a member: in these mounts, or in mounts of its own with a member as parent.
    #[must_use]
    pub fn has(self, process: u32) -> bool {
        Self::with(std::process::id()).is_ok_and(|ours| self.has_below(process, ours))
    }

    /// The mounts of this process, unless the members have the same mounts. Processes in the mounts of this process are
    /// the rest of the machine, and a signal to all of them would end the machine.
    fn ours(self) -> Option<Self> {
        let ours = Self::with(std::process::id()).ok()?;
        (ours != self).then_some(ours)
    }

    /// The search ends at a process in the mounts of this program, because the ancestors of that process have started
    /// this program.
    fn has_below(self, process: u32, ours: Self) -> bool {
        let mut process = process;
        for _ in 0..ANCESTOR_LIMIT {
            match Self::with(process) {
                Ok(its) if its == self => return true,
                Ok(its) if its != ours => {}
                // A dead process has no mounts any more.
                _ => return false,
            }
            match number(process, 0) {
                Some(parent) if parent > 0 => process = parent,
                _ => return false,
            }
        }
        false
    }

    /// The processes, as far as a single look shows: some may be forking.
    #[must_use]
    pub fn all(self) -> Vec<Pid> {
        let Some(ours) = self.ours() else {
            return Vec::new();
        };
        everybody()
            .filter(|number| self.has_below(*number, ours))
            .filter_map(|number| Pid::from_raw(number.cast_signed()))
            .collect()
    }

    /// The same with the processes of that session, in any mounts.
    #[must_use]
    pub fn all_with(self, session: u32) -> Vec<Pid> {
        let Some(ours) = self.ours() else {
            return Vec::new();
        };
        everybody()
            .filter(|process| self.has_below(*process, ours) || is_in(*process, session))
            .filter_map(|process| Pid::from_raw(process.cast_signed()))
            .collect()
    }

    /// Sends a signal to whole process groups, because then forked children get the signal, unless other processes are
    /// in the group. Processes of that `session` are members in any mounts.
    pub fn signal(self, signal: Signal, session: u32) {
        let Some(ours) = self.ours() else {
            return;
        };
        let mut groups: BTreeMap<i32, Group> = BTreeMap::new();
        for process in everybody() {
            // A process that is gone has the group -1.
            let Some(group) = number(process, 1).filter(|group| *group > 0) else {
                continue;
            };
            let group = groups.entry(group).or_default();
            if self.has_below(process, ours) || is_in(process, session) {
                group.members.extend(Pid::from_raw(process.cast_signed()));
            } else if Self::with(process).is_ok() {
                group.has_others = true;
            }
        }
        for (number, group) in groups {
            match Pid::from_raw(number) {
                // A process that is gone does not matter.
                _ if group.members.is_empty() => {}
                Some(whole) if !group.has_others => {
                    let _ = kill_process_group(whole, signal);
                }
                _ => group.members.iter().for_each(|member| {
                    let _ = kill_process(*member, signal);
                }),
            }
        }
    }

    /// Kills the processes, and returns their number. A dead process has no mounts any more.
    #[must_use]
    pub fn kill(self) -> usize {
        let all = self.all();
        let killed = all
            .iter()
            .filter(|process| kill_process(**process, Signal::KILL).is_ok());
        killed.count()
    }

    /// Restores the usual priority.
    pub fn hurry(self) {
        while self.all().into_iter().map(hurried).sum::<usize>() > 0 {}
    }
}

/// Whether a process is in that session. The kernel reports 0 for all sessions from outside of a PID namespace, which
/// have no relation to each other.
fn is_in(process: u32, session: u32) -> bool {
    session > 0 && number(process, 2) == Some(session)
}

/// Restores the usual priority of a process that is about to leave the mounts.
pub fn hurry(process: u32) {
    if let Some(process) = Pid::from_raw(process.cast_signed()) {
        hurried(process);
    }
}

/// The members of a process group.
#[derive(Default)]
struct Group {
    members: Vec<Pid>,
    has_others: bool,
}

fn everybody() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether the usual priority can be restored: any process may lower a priority, and only root may raise one
/// (sched(7), with `RLIMIT_NICE` 0). In containers root may lack that right.
pub(crate) fn may_hurry() -> bool {
    let effective = capabilities(None).map(|all| all.effective);
    effective.is_ok_and(|all| all.contains(CapabilitySet::SYS_NICE))
}

/// Gives the process, which has a single thread, and later children the lowest priority.
pub(crate) fn rest(process: u32) {
    // A process that has ended needs no processor.
    if let Ok(process) = process.try_into() {
        let _ = set_policy(process, libc::SCHED_IDLE);
    }
}

/// Gives the session of that process the lowest priority. If the kernel shares processors among sessions (autogroup
/// in sched(7)), other priorities count only within the session.
pub fn rest_as_session(process: u32) {
    // Without autogroup there is no such file.
    let _ = fs::write(format!("/proc/{process}/autogroup"), LOWEST_PRIORITY);
}

/// Gives the session of that process the priority of this session, if the session had the lowest priority.
fn hurry_session(process: Pid) {
    let process = process.as_raw_pid().to_string();
    let of = |process: &str| fs::read_to_string(format!("/proc/{process}/autogroup"));
    if of(&process).is_ok_and(|its| nice(&its) == LOWEST_PRIORITY) {
        let usual = of("self").unwrap_or_default();
        let _ = fs::write(format!("/proc/{process}/autogroup"), nice(&usual));
    }
}

/// Nice value of a session, from the kernel's file. A session from the boot that never changed its group has no
/// value, and counts as a new session.
fn nice(about: &str) -> &str {
    let said = about.rsplit_once("nice ");
    said.map_or("0", |(_, nice)| nice.trim())
}

/// Restores the usual priority of the threads. Returns the number of changed threads.
fn hurried(process: Pid) -> usize {
    hurry_session(process);
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_pid()));
    let numbers = tasks.into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.parse::<i32>().ok()
    });
    numbers
        .filter(|thread| {
            // SAFETY: the call takes only a number.
            let policy = unsafe { libc::sched_getscheduler(*thread) };
            policy == libc::SCHED_IDLE && set_policy(*thread, libc::SCHED_OTHER).is_ok()
        })
        .count()
}

fn set_policy(thread: i32, policy: i32) -> io::Result<()> {
    // SAFETY: all fields of the structure may be zero.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives as long as the call.
    match unsafe { libc::sched_setscheduler(thread, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::CommandExt as _,
        process::Command,
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    /// Forks as fast as it can; bounded, for the test itself may be killed.
    const FORK_LOOP: &str = "i=0; while [ $i -lt 5000 ]; do sleep 30 & i=$((i+1)); done; wait";

    #[test]
    fn signal_reaches_forking_processes() {
        for round in 0..20 {
            let mut begets = Command::new("unshare");
            begets
                .args(["--mount", "sh", "-c", FORK_LOOP])
                .process_group(0);
            let mut begets = begets.spawn().expect("unshare");
            let ours = Members::with(std::process::id()).expect("this runs");
            let its = || Members::with(begets.id()).expect("it runs");
            while its() == ours {
                thread::yield_now();
            }
            let members = its();
            thread::sleep(Duration::from_millis(50));
            members.signal(Signal::TERM, 0);
            begets.wait().expect("it ends");
            let began = Instant::now();
            while !members.all().is_empty() {
                if began.elapsed() > Duration::from_secs(10) {
                    let left = members.all();
                    while members.kill() > 0 {}
                    panic!("{left:?} were not sent it in round {round}");
                }
            }
        }
    }

    #[test]
    fn process_with_own_mounts_is_not_killed() {
        let this = std::process::id();
        let ours = Members::with(this).expect("this runs");
        assert!(ours.all().is_empty());
        assert!(ours.all_with(this).is_empty());
        assert_eq!(ours.ours(), None, "a signal would go to the whole machine");
    }

    #[test]
    fn session_zero_is_refused() {
        let this = std::process::id();
        let session = number(this, 2).expect("this runs");
        assert!(session == 0 || is_in(this, session));
        assert!(!is_in(this, 0) && !is_in(0, 0));
        // A thread of the kernel, where kernel threads are visible.
        assert!(!is_in(2, 0));
    }

    #[test]
    fn unset_nice_value_is_zero() {
        assert_eq!(nice("/autogroup-4 nice -5\n"), "-5");
        assert_eq!(nice(""), "0");
    }
}
