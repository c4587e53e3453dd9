//! Which calls concern others.

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

/// What is begun by that name looks for interfaces (`npm` at each start), and has no means to change one.
const ASKS_ONLY: &str = "node";

/// Targets of `setpriority` (sys/resource.h).
const PRIO_PROCESS: i32 = 0;
const PRIO_PGRP: i32 = 1;
const PRIO_USER: i32 = 2;
/// What changes the kernel's log, or where it is shown (`SYSLOG_ACTION_READ_CLEAR` to `_CONSOLE_LEVEL`), and what
/// takes from it.
const WRITING_LOG: [i32; 6] = [2, 4, 5, 6, 7, 8];

impl Shared {
    /// Why it has to wait, if it has to.
    pub(super) fn waiting_reason(&self, call: &Call) -> Option<&'static str> {
        if call.architecture != filter::ARCHITECTURE {
            return Some("a program of another architecture");
        }
        if let Some(named) = named::of(call) {
            return self.caller(call).waiting_reason(&named);
        }
        let [first, second, ..] = call.arguments;
        match call.number {
            libc::SYS_openat2 => None, // what cannot be read is an error
            // The size of a terminal.
            libc::SYS_ioctl => None,
            // One that speaks without being connected says so nowhere else.
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
            // Its numbers for the same begin with 1.
            libc::SYS_ioprio_set => self.priority(signed(first).wrapping_sub(1), signed(second)),
            libc::SYS_syslog if !WRITING_LOG.contains(&signed(first)) => None,
            _ => Some(MACHINE_REASON),
        }
    }

    /// A socket is given a name: that of a file, or one that everybody sees.
    fn binding(&self, call: &Call) -> Option<&'static str> {
        let [_, at, length, ..] = call.arguments;
        match Address::of(call.process, at, length) {
            Ok(Address::Abstract(_)) => Some(SOCKET_REASON),
            Ok(Address::Path(path)) => self.caller(call).makes(&path),
            // The kernel chooses one, or it is an error.
            Err(_) => None,
        }
    }

    /// That of a process, a group or a user is set.
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
        // None at all: that is an error, and concerns nobody.
        self.members.has(process) || Members::with(process).is_err()
    }

    /// The process that the first argument, a descriptor, stands for.
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

/// Whether a program asks the kernel for the interfaces that there are. By the same socket others change them: those
/// are known that do not.
fn is_about_interfaces(call: &Call) -> bool {
    let [family, _, protocol, ..] = call.arguments;
    let program = || std::fs::read_link(format!("/proc/{}/exe", call.process)).ok();
    let is_known = |program: PathBuf| program.file_name().is_some_and(|name| name == ASKS_ONLY);
    signed(family) == libc::AF_NETLINK
        && signed(protocol) == libc::NETLINK_ROUTE
        && program().is_some_and(is_known)
}

/// Whether that process is of that group. One of a namespace outside is 0, which `rustix` does not take.
fn is_in_group(process: i32, group: i32) -> bool {
    getpgid(Some(Pid::from_raw(process))).is_ok_and(|its| its.as_raw() == group)
}

/// The process that a descriptor of another one stands for.
fn process_behind(of: u32, descriptor: u64) -> Option<i32> {
    let about = format!("/proc/{of}/fdinfo/{}", signed(descriptor));
    line(about, "Pid:").ok()?.parse().ok()
}
