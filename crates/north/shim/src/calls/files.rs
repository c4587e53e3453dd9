//! Descriptors that come and go.

use core::{ops::Range, sync::atomic::Ordering};

use libc::{F_GETFD, c_int, c_uint, c_void};
use north_abi::layout::{FILE_FD, HANDOVER_FD, Hold, LOGGER_SOCKET_FD};

use super::{failed, kind, locks, other_threads};
use crate::{
    closing,
    descriptors::{DESCRIPTORS_MAX, Kind},
    errno::answer_int,
    helpers, live,
    sys::{Outcome, sys},
    wrap::{Wrap, is_helper_thread, page, with},
};

pub(super) fn fd_of(outcome: Outcome) -> c_int {
    c_int::try_from(outcome).unwrap_or(-1)
}

/// Two new descriptors, the two ends of a pair, and their kinds.
///
/// # Safety
/// After success `ends` has both descriptors.
unsafe fn pair(outcome: Outcome, ends: *const c_int, kinds: [Kind; 2], is_stream: bool) -> c_int {
    if outcome == 0 {
        // SAFETY: by the caller.
        let ends = unsafe { [ends.read(), ends.add(1).read()] };
        with(|wrap| {
            for (end, kind) in ends.into_iter().zip(kinds) {
                wrap.descriptors.set_kind(end, kind);
            }
            wrap.descriptors.pair(ends[0], ends[1]);
            if is_stream {
                wrap.begin_ipc(ends);
            }
        });
    }
    answer_int(outcome)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pipe2(ends: *mut c_int, flags: c_int) -> c_int {
    // SAFETY: as the program has called us.
    unsafe {
        let outcome = sys!(SYS_pipe2, ends, flags);
        let is_stream = flags & libc::O_DIRECT == 0;
        pair(outcome, ends, [Kind::Input, Kind::Other], is_stream)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn socketpair(
    family: c_int,
    kind: c_int,
    protocol: c_int,
    ends: *mut c_int,
) -> c_int {
    // SAFETY: as the program has called us.
    unsafe {
        let outcome = sys!(SYS_socketpair, family, kind, protocol, ends);
        let is_stream = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM;
        pair(outcome, ends, [Kind::Input; 2], is_stream)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pipe(ends: *mut c_int) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { pipe2(ends, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn eventfd(value: c_uint, flags: c_int) -> c_int {
    // SAFETY: no memory is involved.
    let fd = input(unsafe { sys!(SYS_eventfd2, value, flags) });
    with(|wrap| wrap.descriptors.pair(fd, fd));
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C" fn signalfd(fd: c_int, mask: *const libc::sigset_t, flags: c_int) -> c_int {
    /// A kernel's signal set, bytes.
    const SIGNAL_SET_BYTES: usize = 8;
    // SAFETY: as the program has called us.
    let outcome = unsafe { sys!(SYS_signalfd4, fd, mask, SIGNAL_SET_BYTES, flags) };
    if fd < 0 {
        input(outcome)
    } else {
        answer_int(outcome)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn inotify_init1(flags: c_int) -> c_int {
    // SAFETY: no memory is involved.
    input(unsafe { sys!(SYS_inotify_init1, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn inotify_init() -> c_int {
    // SAFETY: no memory is involved.
    unsafe { inotify_init1(0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn timerfd_create(clock: c_int, flags: c_int) -> c_int {
    // SAFETY: no memory is involved.
    input(unsafe { sys!(SYS_timerfd_create, clock, flags) })
}

/// A new descriptor whose input is nondeterministic.
fn input(outcome: Outcome) -> c_int {
    if outcome >= 0 {
        with(|wrap| wrap.descriptors.set_kind(fd_of(outcome), Kind::Input));
    }
    answer_int(outcome)
}

impl Wrap {
    /// The program closes the descriptor. Output that the client lacks must still be delivered.
    fn close(&mut self, fd: c_int) {
        let (process, is_replay) = (self.process, self.is_replay);
        if let Some(connection) = self.descriptors.connection(fd) {
            let (is_last, has_held) = (connection.is_last(), connection.budget.has_reserved());
            let is_mine =
                !connection.is_shared || connection.is_touched() || connection.is_outgoing();
            let is_mine = is_mine && (!connection.is_passed || connection.is_touched());
            if is_replay && is_last && is_mine && connection.received <= connection.outstream {
                live::report_position(process, connection, true);
            } else if !is_replay && (is_last && is_mine || has_held) {
                self.commit();
                self.let_go(fd);
            }
            if is_last {
                self.lets_go_of(fd);
            }
        }
        self.unlocks(fd);
        self.closes_listener(fd);
        self.descriptors.close(fd);
    }
}

/// Descriptors of the shim. A program that closes all unknown descriptors must not find these.
fn ours() -> Range<c_int> {
    match page().map(|page| page.hold.load(Ordering::Relaxed)) {
        None => 0..0,
        Some(hold) if hold == Hold::Never as u32 => FILE_FD..HANDOVER_FD + 1,
        Some(_) => FILE_FD..LOGGER_SOCKET_FD + 1,
    }
}

fn is_ours(fd: c_int) -> bool {
    let ours = ours();
    ours.contains(&fd) || !ours.is_empty() && helpers::THREAD_FILE_FDS.contains(&fd)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn close(fd: c_int) -> c_int {
    if is_ours(fd) {
        return answer_int(failed(libc::EBADF));
    }
    if let Some(outcome) = closing::close(fd) {
        return answer_int(outcome);
    }
    if with(|wrap| wrap.keeps_listener(fd)) == Some(true) {
        return answer_int(failed(libc::EBADF));
    }
    if is_helper_thread() {
        kind(fd, "close");
    }
    with(|wrap| wrap.close(fd));
    other_threads::is_closed(fd);
    // SAFETY: no memory is involved.
    answer_int(unsafe { sys!(SYS_close, fd) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: no memory is involved.
    let perform = |first, last| unsafe { sys!(SYS_close_range, first, last, flags) };
    let closes = flags.cast_unsigned() & libc::CLOSE_RANGE_CLOEXEC == 0;
    if page().is_none() || !closes || first > last {
        return answer_int(perform(first, last));
    }
    with(|wrap| {
        for fd in first..last.saturating_add(1).min(DESCRIPTORS_MAX as c_uint) {
            if wrap.descriptors.is_known(fd.cast_signed()) {
                wrap.close(fd.cast_signed());
            }
        }
        wrap.let_go_of_listeners(); // otherwise this call would close them unnoticed
    });
    let ours = ours();
    let end = helpers::THREAD_FILE_FDS.end.max(ours.end);
    for fd in ours.end..end {
        if (first..=last).contains(&fd.cast_unsigned()) && !is_ours(fd) {
            perform(fd.cast_unsigned(), fd.cast_unsigned());
        }
    }
    let [start, end] = [ours.start, end].map(c_int::cast_unsigned);
    let below = (first < start).then(|| perform(first, last.min(start - 1)));
    let above = (last >= end).then(|| perform(first.max(end), last));
    let failed = [below, above]
        .into_iter()
        .flatten()
        .find(|outcome| *outcome != 0);
    answer_int(failed.unwrap_or(0))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    let first = first.max(0).cast_unsigned();
    // SAFETY: no memory is involved.
    unsafe { close_range(first, c_uint::MAX, 0) };
}

/// Makes `to` a copy of `from`, and closes the file behind `to`.
fn replace(from: c_int, to: c_int, perform: impl FnOnce() -> Outcome) -> c_int {
    if is_ours(to) {
        return answer_int(failed(libc::EBADF));
    }
    // SAFETY: no memory is involved.
    if from != to && unsafe { sys!(SYS_fcntl, from, F_GETFD) } >= 0 {
        with(|wrap| wrap.close(to));
    }
    duplicated(from, perform())
}

fn duplicated(from: c_int, outcome: Outcome) -> c_int {
    if outcome >= 0 && outcome != from.into() {
        with(|wrap| wrap.descriptors.duplicate(from, fd_of(outcome)));
    }
    answer_int(outcome)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    if is_helper_thread() {
        kind(fd, "dup");
    }
    // SAFETY: no memory is involved.
    duplicated(fd, unsafe { sys!(SYS_dup, fd) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    // SAFETY: no memory is involved.
    replace(from, to, || unsafe { sys!(SYS_dup2, from, to) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: no memory is involved.
    replace(from, to, || unsafe { sys!(SYS_dup3, from, to, flags) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: as the program has called us.
    if let Some(outcome) = unsafe { locks::fcntl(fd, command, argument.cast()) } {
        return outcome;
    }
    // SAFETY: as the program has called us.
    let outcome = unsafe { sys!(SYS_fcntl, fd, command, argument) };
    match command {
        libc::F_SETFL => {
            with(|wrap| {
                wrap.may_block(fd);
                wrap.may_append(fd, argument.addr() as c_int & libc::O_APPEND != 0);
            });
            answer_int(outcome)
        }
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, outcome),
        _ => answer_int(outcome),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { fcntl(fd, command, argument) }
}
