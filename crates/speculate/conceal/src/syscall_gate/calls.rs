//! The calls that concern other processes.

use std::path::PathBuf;

use nix::unistd::{Pid, getpgid};

use super::{
    Call, Shared,
    files::{Caller, PROCESS_REASON},
    filter, named, signed,
};
use crate::{members::Members, processes::line, socket_address::Address};

/// Reasons of waiting calls.
const NETWORK_REASON: &str = "the network";
const SOCKET_REASON: &str = "a socket of another process";
const SIGNAL_REASON: &str = "a signal to another process";
const MACHINE_REASON: &str = "the state of the machine";

/// A program of this name lists interfaces (`npm` at each start), and has no means to change an interface.
const ASKS_ONLY: &str = "node";

/// Targets of `setpriority` (sys/resource.h).
const PRIO_PROCESS: i32 = 0;
const PRIO_PGRP: i32 = 1;
const PRIO_USER: i32 = 2;
/// Actions that change the kernel's log or its display (`SYSLOG_ACTION_READ_CLEAR` to `_CONSOLE_LEVEL`), and the action
/// that takes from the log.
const WRITING_LOG: [i32; 6] = [2, 4, 5, 6, 7, 8];

impl Shared {
    /// The reason why the call must wait, if the call must wait.
    pub(super) fn waiting_reason(&self, call: &Call) -> Option<&'static str> {
        if call.architecture != filter::ARCHITECTURE {
            return Some("a program of another architecture");
        }
        if let Some(named) = named::of(call) {
            return self.caller(call).waiting_reason(&named);
        }
        let [first, second, ..] = call.arguments;
        match call.number {
            libc::SYS_openat2 => None, // a structure that cannot be read is an error
            // The size of a terminal.
            libc::SYS_ioctl => None,
            // A connectionless socket could send later without a further gated call.
            libc::SYS_socket | libc::SYS_socketpair if signed(first) == libc::AF_UNIX => {
                Some(SOCKET_REASON)
            }
            libc::SYS_socket if is_about_interfaces(call) => None,
            libc::SYS_socket | libc::SYS_socketpair => Some(NETWORK_REASON),
            libc::SYS_bind => self.binding(call),
            libc::SYS_connect => {
                let address = Address::of(call.process, second, call.arguments[2]);
                (!address.is_ok_and(|address| address.is_own(call.process, &self.known)))
                    .then_some(SOCKET_REASON)
            }
            libc::SYS_kill if second == 0 => None,
            libc::SYS_kill => (!self.is_own_group(signed(first))).then_some(SIGNAL_REASON),
            libc::SYS_ptrace => (!self.is_own(signed(second))).then_some(SIGNAL_REASON),
            libc::SYS_tkill
            | libc::SYS_tgkill
            | libc::SYS_rt_sigqueueinfo
            | libc::SYS_rt_tgsigqueueinfo => (!self.is_own(signed(first))).then_some(SIGNAL_REASON),
            libc::SYS_pidfd_send_signal => (!self.is_own_behind(call)).then_some(SIGNAL_REASON),
            libc::SYS_pidfd_getfd => (!self.is_own_behind(call)).then_some(PROCESS_REASON),
            // The limits are asked for.
            libc::SYS_prlimit64 if call.arguments[2] == 0 => None,
            libc::SYS_prlimit64
            | libc::SYS_process_vm_writev
            | libc::SYS_sched_setaffinity
            | libc::SYS_sched_setscheduler
            | libc::SYS_sched_setparam
            | libc::SYS_sched_setattr => (!self.is_own(signed(first))).then_some(PROCESS_REASON),
            libc::SYS_setpriority => self.priority(signed(first), signed(second)),
            // The corresponding numbers of `ioprio_set` begin with 1.
            libc::SYS_ioprio_set => self.priority(signed(first).wrapping_sub(1), signed(second)),
            libc::SYS_syslog if !WRITING_LOG.contains(&signed(first)) => None,
            _ => Some(MACHINE_REASON),
        }
    }

    /// A socket gets a name: the name of a file, or an abstract name, which all programs see.
    fn binding(&self, call: &Call) -> Option<&'static str> {
        let [_, at, length, ..] = call.arguments;
        match Address::of(call.process, at, length) {
            Ok(Address::Abstract(_)) => Some(SOCKET_REASON),
            Ok(Address::Path(path)) => self.caller(call).makes(&path),
            // The kernel chooses a name, or the call fails.
            Err(_) => None,
        }
    }

    /// A call sets the priority of a process, a group or a user.
    fn priority(&self, whose: i32, which: i32) -> Option<&'static str> {
        let is_own = match whose {
            _ if which == 0 => whose != PRIO_USER,
            PRIO_PROCESS => self.is_own(which),
            PRIO_PGRP => self.is_own_group(which.wrapping_neg()),
            _ => false,
        };
        (!is_own).then_some(PROCESS_REASON)
    }

    pub(super) fn caller(&self, call: &Call) -> Caller<'_> {
        Caller {
            thread: call.process,
            members: self.members,
            devices: &self.devices,
        }
    }

    fn is_own(&self, process: i32) -> bool {
        let process = process.cast_unsigned();
        // A call for an absent process fails, and concerns no process.
        self.members.has(process) || Members::with(process).is_err()
    }

    /// Whether the first argument is a descriptor of an own process.
    fn is_own_behind(&self, call: &Call) -> bool {
        let process = process_behind(call.process, call.arguments[0]);
        process.is_some_and(|process| self.is_own(process))
    }

    /// Whom kill(2) means by a number.
    fn is_own_group(&self, number: i32) -> bool {
        match number {
            0 => true,
            // None at all.
            i32::MIN => true,
            -1 => false,
            process if process > 0 => self.is_own(process),
            group => self
                .members
                .all()
                .into_iter()
                .any(|member| is_in_group(member.as_raw_pid(), -group)),
        }
    }
}

/// Whether a program asks the kernel for the present interfaces. The same kind of socket could change interfaces; only
/// known programs are trusted not to.
fn is_about_interfaces(call: &Call) -> bool {
    let [family, _, protocol, ..] = call.arguments;
    let program = || std::fs::read_link(format!("/proc/{}/exe", call.process)).ok();
    let is_known = |program: PathBuf| program.file_name().is_some_and(|name| name == ASKS_ONLY);
    signed(family) == libc::AF_NETLINK
        && signed(protocol) == libc::NETLINK_ROUTE
        && program().is_some_and(is_known)
}

/// Whether the process is in the group. The group of an outside namespace is 0, which `rustix` does not accept.
fn is_in_group(process: i32, group: i32) -> bool {
    getpgid(Some(Pid::from_raw(process))).is_ok_and(|its| its.as_raw() == group)
}

/// The process behind a descriptor of another process.
fn process_behind(of: u32, descriptor: u64) -> Option<i32> {
    let about = format!("/proc/{of}/fdinfo/{}", signed(descriptor));
    line(about, "Pid:").ok()?.parse().ok()
}
