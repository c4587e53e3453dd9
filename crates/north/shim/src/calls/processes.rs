//! Processes: process ids, children, and resource usage.

use libc::{c_char, c_int, c_uint, c_void, id_t, idtype_t, pid_t, rlimit, rusage, siginfo_t};
use north_abi::{Call, Record, layout::Fate};

use super::refuse;
use crate::{
    errno::{answer, answer_int},
    liveness::{await_service_kill, is_crash},
    real::real,
    signals::{self, blocking},
    sys::{self, Outcome, structure, sys},
    wrap::{self, Wrap, restarting, with},
};

/// A process keeps the process id of its first incarnation: programs compare the process id with a remembered one, in
/// order to detect a fork.
#[unsafe(no_mangle)]
unsafe extern "C" fn getpid() -> pid_t {
    with(|wrap| wrap.pid).unwrap_or_else(|| pid_of(real_pid()))
}

fn real_pid() -> i64 {
    // SAFETY: no memory is involved.
    unsafe { sys!(SYS_getpid) }
}

impl Wrap {
    /// A signal to a process. A child of an earlier incarnation is dead, and another process may have the process id.
    fn kill(&mut self, pid: pid_t, signal: c_int) -> i64 {
        let whom = pid.saturating_abs();
        let is_gone = whom > 0 && self.children.lost(whom).is_some();
        // The server leads a process group of its own, under the server's process id; a child may lead a group, too.
        let target = pid.signum()
            * match whom {
                own if own == self.pid => pid_of(real_pid()),
                other => self.children.real(other),
            };
        // With 0 the record would not identify the target.
        let noted = if pid == 0 { -self.pid } else { pid };
        self.value(Call::Kill, noted, || {
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

/// The C library's function does not call `kill` through the shim.
#[unsafe(no_mangle)]
unsafe extern "C" fn killpg(group: pid_t, signal: c_int) -> c_int {
    if group < 0 {
        return answer_int(super::failed(libc::EINVAL));
    }
    // SAFETY: no memory is involved.
    unsafe { kill(-group, signal) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getppid() -> pid_t {
    // SAFETY: no memory is involved.
    let perform = || unsafe { sys!(SYS_getppid) };
    let outcome = with(|wrap| {
        let parent = wrap.parent(pid_of(perform()));
        wrap.value(Call::Value, 1, || parent.into())
    });
    answer_int(outcome.unwrap_or_else(perform))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getrusage(who: c_int, usage: *mut rusage) -> c_int {
    // SAFETY: as the program has called us.
    let perform = || unsafe { sys!(SYS_getrusage, who, usage) };
    // SAFETY: the call fills the structure in.
    let room = unsafe { structure(usage) };
    let outcome = with(|wrap| wrap.filled(Call::Filled, who, room, |_| perform()));
    answer_int(outcome.unwrap_or_else(perform))
}

fn pid_of(outcome: i64) -> pid_t {
    pid_t::try_from(outcome).unwrap_or(-1)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fork() -> pid_t {
    fork_by(|| match real!(fork() -> pid_t) {
        ..0 => super::failed(libc::EAGAIN),
        pid => pid.into(),
    })
}

/// Forks, unless a replay does without the child.
pub(super) fn fork_by(perform: impl Fn() -> Outcome) -> pid_t {
    with(Wrap::before_sleep); // deferred output is not the child's
    with(Wrap::let_go_of_listeners); // nor are the closed listeners
    let Some(mut birth) = with(Wrap::fork_prepare).flatten() else {
        let outcome = perform();
        if outcome == 0 {
            wrap::end();
        }
        return answer_int(outcome);
    };
    loop {
        let mut child = 0;
        if with(|wrap| wrap.begin_fork(&birth)) == Some(true) {
            with(|wrap| wrap.expect_child(birth.number(), true));
            // Fork handlers of the C library and of other libraries are not recorded.
            child = wrap::aside(&perform);
            if child == 0 {
                with(|wrap| wrap.fork_child(&birth));
                return 0;
            }
            if child < 0 {
                with(|wrap| wrap.expect_child(birth.number(), false));
            }
            if child < 0 && birth.is_replayed() {
                with(|wrap| wrap.fail_fork());
            }
        }
        if let Some(outcome) = with(|wrap| wrap.fork_parent(&mut birth, child)).flatten() {
            return answer_int(outcome);
        }
    }
}

/// A caller of `vfork` expects the parent's memory in the child. No program needs that.
#[unsafe(no_mangle)]
unsafe extern "C" fn vfork() -> pid_t {
    // SAFETY: no arguments.
    unsafe { fork() }
}

impl Wrap {
    /// A child has ended, or none has.
    fn wait(
        &mut self,
        pid: pid_t,
        status: *mut c_int,
        usage: *mut rusage,
        perform: impl FnOnce(pid_t, *mut c_int) -> i64,
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
        let outcome = match replayed {
            Some(outcome) => {
                self.reap(pid_of(outcome));
                outcome
            }
            None => self.wait_now(pid, status, usage, perform),
        };
        if self.children.remove(pid_of(outcome)) {
            signals::forget_received(self);
        }
        outcome
    }

    fn wait_now(
        &mut self,
        pid: pid_t,
        status: &mut [u8],
        usage: &mut [u8],
        perform: impl FnOnce(pid_t, *mut c_int) -> i64,
    ) -> i64 {
        let outcome = match self.children.lost(pid) {
            Some(lost) => {
                status.copy_from_slice(&libc::SIGKILL.to_ne_bytes()[..status.len()]);
                usage.fill(0);
                lost.into()
            }
            None => {
                self.before_sleep();
                // The shim needs the status even if the program does not ask.
                let mut how = 0;
                let ended = perform(self.children.real(pid), &raw mut how);
                if ended > 0 {
                    let told = status.len();
                    status.copy_from_slice(&how.to_ne_bytes()[..told]);
                }
                self.has_ended(pid_of(ended), how).into()
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
    }

    /// A child of the present incarnation has ended with this status, or no child has ended. Returns the process id
    /// that the program knows.
    fn has_ended(&self, real: pid_t, status: c_int) -> pid_t {
        let known = self.children.known(real);
        if real > 0 && libc::WIFSIGNALED(status) {
            if is_crash(status) {
                await_service_kill();
            }
            self.mark_orphaned(known);
        }
        known
    }

    /// The program learns the end of a child that was started again: the child ends by itself.
    fn reap(&mut self, known: pid_t) {
        let real = self.children.real(known);
        let Some(number) = self.children.number(known).filter(|_| real > 0) else {
            return;
        };
        if self.page.processes.0[number as usize].has(Fate::Ends) {
            // SAFETY: no memory is involved.
            while unsafe { sys!(SYS_wait4, real, 0, 0, 0) } == super::failed(libc::EINTR) {}
            signals::forget_received(self);
        }
    }
}

/// Whether the limit takes rights away: the kernel grants such a limit in any case.
fn is_less(limit: &rlimit) -> bool {
    let mut now = rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: room on our stack.
    let outcome = unsafe { sys!(SYS_getrlimit, libc::RLIMIT_NOFILE, &raw mut now) };
    outcome == 0 && limit.rlim_cur < now.rlim_cur && limit.rlim_max <= now.rlim_max
}

/// A low limit would not leave numbers for the descriptors of the handover: a replay sets the limit at the end.
#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit(resource: c_uint, limit: *const rlimit) -> c_int {
    // SAFETY: as the program has called us.
    let perform = || unsafe { sys!(SYS_setrlimit, resource, limit) };
    let is_later = with(|wrap| {
        if resource != libc::RLIMIT_NOFILE || !wrap.is_replay || limit.is_null() {
            return false;
        }
        // SAFETY: as the program has called us.
        let limit = unsafe { *limit };
        wrap.limit = is_less(&limit).then_some(limit);
        wrap.limit.is_some()
    });
    match is_later {
        Some(true) => 0,
        _ => answer_int(perform()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit64(resource: c_uint, limit: *const rlimit) -> c_int {
    // SAFETY: as the program has called us; the structure is the same.
    unsafe { setrlimit(resource, limit) }
}

/// Ends the process without the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(status: c_int) -> ! {
    with(Wrap::record_exit);
    loop {
        // SAFETY: no more than that.
        unsafe { sys!(SYS_exit_group, status) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: the call has no other arguments.
    unsafe { _exit(status) }
}

/// A `clone` without `CLONE_VM` starts a process without a recorded fork.
#[unsafe(no_mangle)]
unsafe extern "C" fn clone(
    function: *mut c_void,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut pid_t,
    tls: *mut c_void,
    child: *mut pid_t,
) -> c_int {
    if wrap::is_wrapped() && flags & libc::CLONE_VM == 0 {
        refuse(&[b"the server starts processes with clone()"]);
    }
    real!(clone(
        function => *mut c_void, stack => *mut c_void, flags => c_int, argument => *mut c_void,
        parent => *mut pid_t, tls => *mut c_void, child => *mut pid_t,
    ) -> c_int)
}

macro_rules! executes {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(#[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            with(Wrap::record_exec);
            with(Wrap::before_sleep); // output of a handler that ran meanwhile
            real!($name($($argument => $type),*) -> c_int)
        })*
    };
}

type Strings = *const *const c_char;

executes! {
    execve(path: *const c_char, arguments: Strings, environment: Strings);
    execv(path: *const c_char, arguments: Strings);
    execvp(file: *const c_char, arguments: Strings);
    execvpe(file: *const c_char, arguments: Strings, environment: Strings);
    fexecve(fd: c_int, arguments: Strings, environment: Strings);
    execveat(directory: c_int, path: *const c_char, arguments: Strings, environment: Strings, flags: c_int);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    at: *mut c_void,
    length: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    if flags & libc::MAP_SHARED != 0 {
        super::sharing::check_mapping(flags, fd);
        with(|wrap| wrap.record_mapping(access, flags));
    }
    // SAFETY: as the program has called us.
    let mapped = answer(unsafe { sys!(SYS_mmap, at, length, access, flags, fd, offset) });
    core::ptr::with_exposed_provenance_mut(mapped.cast_unsigned())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    at: *mut c_void,
    length: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: as the program has called us.
    unsafe { mmap(at, length, access, flags, fd, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wait4(
    pid: pid_t,
    status: *mut c_int,
    options: c_int,
    usage: *mut rusage,
) -> pid_t {
    let perform = |pid: pid_t, status: *mut c_int| {
        let arguments = [
            pid as usize,
            status.addr(),
            options as usize,
            usage.addr(),
            0,
            0,
        ];
        // A call that does not sleep is not interrupted: programs do not expect EINTR here.
        if options & libc::WNOHANG != 0 {
            // SAFETY: as the program has called us.
            return unsafe { sys::raw(libc::SYS_wait4, arguments) };
        }
        // SAFETY: as the program has called us.
        unsafe { blocking(libc::SYS_wait4, arguments) }
    };
    let outcome = restarting(|wrap| wrap.wait(pid, status, usage, perform));
    answer_int(outcome.unwrap_or_else(|| perform(pid, status)))
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

/// As `wait4`, with another form of the answer.
#[unsafe(no_mangle)]
unsafe extern "C" fn waitid(
    kind: idtype_t,
    id: id_t,
    information: *mut siginfo_t,
    options: c_int,
) -> c_int {
    let whom = match kind {
        libc::P_ALL => Some(-1),
        libc::P_PID => Some(id.cast_signed()),
        libc::P_PGID => Some(-id.cast_signed()),
        _ => None,
    };
    if !wrap::is_wrapped() || options & libc::WEXITED == 0 {
        // SAFETY: as the program has called us.
        return answer_int(unsafe { sys!(SYS_waitid, kind, id, information, options, 0) });
    }
    let more = options & !(libc::WEXITED | libc::WNOHANG);
    let Some(whom) = whom.filter(|_| more == 0) else {
        refuse(&[b"the server waits for more than the end of a child (waitid)"]);
    };
    let mut status = 0;
    // SAFETY: room on our stack.
    let ended = unsafe {
        let flags = options & libc::WNOHANG;
        wait4(whom, &raw mut status, flags, core::ptr::null_mut())
    };
    if ended < 0 {
        return -1;
    }
    // SAFETY: as the program has called us.
    let room = unsafe { structure(information) };
    room.fill(0);
    if ended > 0 {
        for (place, number) in room.as_chunks_mut().0.iter_mut().zip(told(ended, status)) {
            *place = number.to_ne_bytes();
        }
    }
    0
}

/// The start of the `siginfo_t` of a child's end: `si_signo`, `si_errno`, `si_code`, padding, `si_pid`, `si_uid`,
/// `si_status`.
fn told(child: pid_t, status: c_int) -> [c_int; 7] {
    let (code, number) = match status {
        _ if libc::WIFEXITED(status) => (libc::CLD_EXITED, libc::WEXITSTATUS(status)),
        _ if libc::WCOREDUMP(status) => (libc::CLD_DUMPED, libc::WTERMSIG(status)),
        _ => (libc::CLD_KILLED, libc::WTERMSIG(status)),
    };
    // SAFETY: no memory is involved.
    let user = unsafe { sys!(SYS_getuid) } as c_int;
    [libc::SIGCHLD, 0, code, 0, child, user, number]
}
