//! Processes: their numbers, their children, and what they have used.

use libc::{c_int, pid_t, rusage};
use wrap_abi::{Call, Record};

use super::refuse;
use crate::{
    errno::answer_int,
    real::real,
    signals::blocking,
    sys::{structure, sys},
    wrap::{self, Wrap, restarting, with},
};

/// A process keeps the number of its first life: programs compare it with what they have remembered, to find out
/// whether they are a child.
#[unsafe(no_mangle)]
unsafe extern "C" fn getpid() -> pid_t {
    with(|wrap| wrap.pid).unwrap_or_else(|| pid_of(real_pid()))
}

fn real_pid() -> i64 {
    // SAFETY: no memory is involved.
    unsafe { sys!(SYS_getpid) }
}

impl Wrap {
    /// A signal to a process. A child of an earlier life has died with it, and another process may have its number.
    fn kill(&mut self, pid: pid_t, signal: c_int) -> i64 {
        let is_gone = pid > 0 && self.children.lost(pid).is_some();
        let target = match pid {
            own if own == self.pid => pid_of(real_pid()),
            // The server leads a group of its own, which has its number.
            group if group == -self.pid => -pid_of(real_pid()),
            other => other,
        };
        self.value(Call::Value, pid, || {
            if is_gone {
                return super::failed(libc::ESRCH);
            }
            // SAFETY: no memory is involved.
            unsafe { sys!(SYS_kill, target, signal) }
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn kill(pid: pid_t, signal: c_int) -> c_int {
    // SAFETY: no memory is involved.
    let perform = || unsafe { sys!(SYS_kill, pid, signal) };
    answer_int(with(|wrap| wrap.kill(pid, signal)).unwrap_or_else(perform))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getppid() -> pid_t {
    // SAFETY: no memory is involved.
    let perform = || unsafe { sys!(SYS_getppid) };
    answer_int(with(|wrap| wrap.value(Call::Value, 1, perform)).unwrap_or_else(perform))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getrusage(who: c_int, usage: *mut rusage) -> c_int {
    // SAFETY: as the program has called us.
    let perform = || unsafe { sys!(SYS_getrusage, who, usage) };
    // SAFETY: this call fills it in.
    let room = unsafe { structure(usage) };
    let outcome = with(|wrap| wrap.filled(Call::Filled, who, room, |_| perform()));
    answer_int(outcome.unwrap_or_else(perform))
}

fn pid_of(outcome: i64) -> pid_t {
    pid_t::try_from(outcome).unwrap_or(-1)
}

enum Forked {
    /// In an earlier life: nobody is begun.
    Then(i64),
    Now,
}

impl Wrap {
    fn fork(&mut self) -> Forked {
        match self.replayed(Call::Fork, 0, |record| record.outcome) {
            Some(outcome) => {
                self.begun(outcome);
                Forked::Then(outcome)
            }
            None => Forked::Now,
        }
    }

    fn forked(&mut self, outcome: i64) {
        self.record(&Record {
            call: Call::Fork,
            fd: 0,
            outcome,
            payload: &[],
        });
        self.begun(outcome);
    }

    fn begun(&mut self, outcome: i64) {
        if outcome > 0 && !self.children.add(pid_of(outcome)) {
            refuse(&[b"it has too many children"]);
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fork() -> pid_t {
    let replayed = with(Wrap::fork);
    if let Some(Forked::Then(outcome)) = replayed {
        return answer_int(outcome);
    }
    with(Wrap::before_sleep); // what is held is not the child's
    let pid = real!(fork() -> pid_t);
    match pid {
        0 => wrap::end(),
        pid => {
            with(|wrap| {
                wrap.forked(if pid < 0 {
                    super::failed(libc::EAGAIN)
                } else {
                    pid.into()
                })
            });
        }
    }
    pid
}

/// Whoever begins a child like this expects it to have the parent's memory; none needs it.
#[unsafe(no_mangle)]
unsafe extern "C" fn vfork() -> pid_t {
    // SAFETY: it takes nothing.
    unsafe { fork() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(status: c_int) -> ! {
    with(Wrap::commit);
    loop {
        // SAFETY: no memory is involved.
        unsafe { sys!(SYS_exit_group, status) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: as the program has called us.
    unsafe { _exit(status) }
}

impl Wrap {
    /// A child has ended, or none has.
    fn wait(
        &mut self,
        pid: pid_t,
        status: *mut c_int,
        usage: *mut rusage,
        perform: impl FnOnce() -> i64,
    ) -> i64 {
        let outcome = self.wait_for(pid, status, usage, perform);
        self.children.remove(pid_of(outcome));
        outcome
    }

    fn wait_for(
        &mut self,
        pid: pid_t,
        status: *mut c_int,
        usage: *mut rusage,
        perform: impl FnOnce() -> i64,
    ) -> i64 {
        // SAFETY: as the program has called us.
        let (status, usage) = unsafe { (structure(status), structure(usage)) };
        let replayed = self.replayed(Call::Wait, 0, |record| {
            let (front, back) = record
                .payload
                .split_at_checked(status.len())
                .unwrap_or_default();
            if back.len() == usage.len() && front.len() == status.len() {
                status.copy_from_slice(front);
                usage.copy_from_slice(back);
            }
            record.outcome
        });
        replayed.unwrap_or_else(|| {
            let outcome = match self.children.lost(pid) {
                Some(lost) => {
                    status.copy_from_slice(&libc::SIGKILL.to_ne_bytes()[..status.len()]);
                    usage.fill(0);
                    lost.into()
                }
                None => {
                    self.before_sleep();
                    perform()
                }
            };
            let mut filled = [0; size_of::<c_int>() + size_of::<rusage>()];
            let mut length = 0;
            if outcome > 0 {
                length = status.len() + usage.len();
                filled[..status.len()].copy_from_slice(status);
                filled[status.len()..length].copy_from_slice(usage);
            }
            self.record(&Record {
                call: Call::Wait,
                fd: 0,
                outcome,
                payload: &filled[..length],
            });
            outcome
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wait4(
    pid: pid_t,
    status: *mut c_int,
    options: c_int,
    usage: *mut rusage,
) -> pid_t {
    let perform = || {
        let arguments = [
            pid as usize,
            status.addr(),
            options as usize,
            usage.addr(),
            0,
            0,
        ];
        // SAFETY: as the program has called us.
        unsafe { blocking(libc::SYS_wait4, arguments) }
    };
    let outcome = restarting(|wrap| wrap.wait(pid, status, usage, perform));
    answer_int(outcome.unwrap_or_else(perform))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn waitpid(pid: pid_t, status: *mut c_int, options: c_int) -> pid_t {
    // SAFETY: as the program has called us.
    unsafe { wait4(pid, status, options, core::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wait3(status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t {
    // SAFETY: as the program has called us.
    unsafe { wait4(-1, status, options, usage) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wait(status: *mut c_int) -> pid_t {
    // SAFETY: as the program has called us.
    unsafe { wait4(-1, status, 0, core::ptr::null_mut()) }
}
