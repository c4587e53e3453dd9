//! epoll.

use libc::{EPOLL_CTL_DEL, EPOLLIN, EPOLLONESHOT, POLLIN, c_int, epoll_event, sigset_t, timespec};
use north_abi::{Call, Ready};

use super::{
    super::{failed, other_threads, reading::is_ready, refuse},
    READY_MAX, SIGNAL_SET_BYTES,
};
use crate::{
    clock,
    descriptors::Watched,
    errno::answer_int,
    signals::blocking,
    sys::{Outcome, sys},
    wrap::{Wrap, with},
};

/// In the upper half of what epoll is given as a program's data, where the lower half is the descriptor: what other
/// threads have given by themselves looks otherwise.
const OWN: u64 = u32::from_le_bytes(*b"outl") as u64;

/// What epoll has as the data of this descriptor. A record says by that which one is ready.
pub(crate) fn own_data(fd: c_int) -> u64 {
    OWN << 32 | u64::from(fd.cast_unsigned())
}

/// The opposite; `None`: it is the program's own.
fn descriptor_of(data: u64) -> Option<c_int> {
    let [low, high] = [data & u64::from(u32::MAX), data >> 32];
    c_int::try_from(low).ok().filter(|_| high == OWN)
}

impl Wrap {
    fn epoll(
        &mut self,
        epoll: c_int,
        events: *mut epoll_event,
        most: c_int,
        timeout: Timeout,
        mask: *const sigset_t,
    ) -> Outcome {
        let most = most.min(READY_MAX as c_int);
        let mut at = 0;
        let is_replay = self.is_replay();
        let outcome = self.ready(
            Call::Epoll,
            epoll,
            |wrap| match wrap.awaits_logger() {
                // SAFETY: as the program has called us.
                false => unsafe {
                    let arguments = epoll_arguments(epoll, events, most, timeout.given(), mask);
                    blocking(timeout.call(), arguments)
                },
                true => {
                    let timeout = timeout.milliseconds() as usize;
                    wrap.epoll_wait_and_release(epoll_arguments(epoll, events, most, timeout, mask))
                }
            },
            |writer, count| {
                for index in 0..usize::try_from(count).unwrap_or(0) {
                    // SAFETY: so many were filled in by the kernel.
                    let event = unsafe { events.add(index).read_unaligned() };
                    let Some(fd) = descriptor_of(event.u64) else {
                        refuse(&[b"a thread other than the first calls epoll_ctl for an instance in which the first one waits"]);
                    };
                    let ready = Ready {
                        fd: fd.cast_unsigned(),
                        events: event.events,
                    };
                    let _ = writer.push(ready); // there is room for so many
                }
            },
            |ready| {
                if at < most {
                    let event = epoll_event {
                        events: ready.events,
                        u64: own_data(ready.fd.cast_signed()),
                    };
                    // SAFETY: the program has room for so many.
                    unsafe { events.add(at as usize).write_unaligned(event) };
                    at += 1;
                }
            },
        );
        for index in 0..usize::try_from(outcome).unwrap_or(0) {
            // SAFETY: so many are filled in now.
            let event = unsafe { &mut *events.add(index) };
            if is_replay {
                self.await_helper(event);
            }
            self.translate(event);
        }
        outcome
    }

    /// If a helper has written what can be read there, it is to have come so far in the replay, too.
    fn await_helper(&mut self, event: &epoll_event) {
        let fd = descriptor_of(event.u64).unwrap_or(-1);
        let descriptor = self.descriptors.get(fd);
        if event.events & EPOLLIN.cast_unsigned() != 0
            && descriptor.is_paired()
            && !descriptor.is_channel
            && !is_ready(fd, POLLIN)
        {
            self.awaits_helper(fd);
        }
    }

    /// The kernel has our data, which is the descriptor; the program gets its own.
    fn translate(&mut self, event: &mut epoll_event) {
        let Some(fd) = descriptor_of(event.u64) else {
            return;
        };
        let Some(descriptor) = self.descriptors.entry(fd) else {
            return;
        };
        event.u64 = descriptor.data;
        if descriptor.events & EPOLLONESHOT.cast_unsigned() != 0 {
            descriptor.is_spent = true;
        }
    }

    fn control(
        &mut self,
        epoll: c_int,
        operation: c_int,
        fd: c_int,
        event: *mut epoll_event,
    ) -> Outcome {
        let perform = |event: *const epoll_event| {
            // SAFETY: as the program has called us.
            unsafe { sys!(SYS_epoll_ctl, epoll, operation, fd, event) }
        };
        if operation == EPOLL_CTL_DEL || event.is_null() {
            if let Some(descriptor) = self.descriptors.entry(fd) {
                descriptor.epoll = 0;
            }
            return perform(event);
        }
        // SAFETY: as the program has called us.
        let wanted = unsafe { event.read_unaligned() };
        let own = epoll_event {
            events: wanted.events,
            u64: own_data(fd),
        };
        let Some(descriptor) = self.descriptors.entry(fd) else {
            return failed(libc::ENOMEM);
        };
        let before = *descriptor;
        let instance = epoll.cast_unsigned() + 1;
        // Before the kernel knows of it: another thread may be told at once.
        descriptor.epoll = instance;
        descriptor.events = wanted.events;
        descriptor.data = wanted.u64;
        descriptor.is_spent = false;
        descriptor.is_watched_by_parent = false;
        let outcome = perform(&raw const own);
        if outcome < 0 {
            *descriptor = before;
            return outcome;
        }
        if before.epoll != 0 && before.epoll != instance {
            refuse(&[b"the server watches one descriptor with two epoll instances"]);
        }
        other_threads::check_watch(fd, epoll);
        outcome
    }
}

/// Another thread has been told of these events: it gets the program's own data, too. What is watched there no more is
/// left out, as if that had been so before. How many are left?
fn is_in_other_epoll(epoll: c_int, events: *mut epoll_event, count: usize) -> usize {
    let mut left = 0;
    for index in 0..count {
        // SAFETY: so many were filled in by the kernel.
        let mut event = unsafe { events.add(index).read_unaligned() };
        if let Some(fd) = descriptor_of(event.u64) {
            other_threads::check_event(fd);
            let Some(data) = Watched::of(fd).data_in(epoll) else {
                continue;
            };
            event.u64 = data;
        }
        // SAFETY: it is not behind the one that was read.
        unsafe { events.add(left).write_unaligned(event) };
        left += 1;
    }
    left
}

/// Another thread waits; what the first one has had watched is translated for it. A descriptor that the program has
/// closed may be told again and again, if a copy is open: time passes all the same.
fn wait_in_another(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: Timeout,
    mask: *const sigset_t,
) -> Outcome {
    other_threads::check_epoll_wait(epoll);
    let end = timeout.end(clock::monotonic());
    let mut timeout = timeout;
    loop {
        let arguments = epoll_arguments(epoll, events, most, timeout.given(), mask);
        // SAFETY: as the program has called us.
        let outcome = unsafe { crate::sys::raw(timeout.call(), arguments) };
        let count = usize::try_from(outcome).unwrap_or(0);
        let left = is_in_other_epoll(epoll, events, count);
        if count == 0 || left > 0 || timeout.is_none() {
            return if count == 0 { outcome } else { left as Outcome };
        }
        timeout = timeout.left(end, clock::monotonic());
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if operation != EPOLL_CTL_DEL {
        other_threads::check_epoll_control(fd);
    }
    let outcome = with(|wrap| wrap.control(epoll, operation, fd, event));
    // SAFETY: as the program has called us.
    answer_int(
        outcome.unwrap_or_else(|| unsafe { sys!(SYS_epoll_ctl, epoll, operation, fd, event) }),
    )
}

fn epoll_arguments(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: usize,
    mask: *const sigset_t,
) -> [usize; 6] {
    [
        epoll as usize,
        events.addr(),
        most as usize,
        timeout,
        mask.addr(),
        SIGNAL_SET_BYTES,
    ]
}

/// How long epoll is to wait.
#[derive(Clone, Copy)]
enum Timeout {
    /// Less than none: for ever.
    Milliseconds(c_int),
    /// `None`: for ever.
    Exact(Option<timespec>),
}

impl Timeout {
    fn call(&self) -> i64 {
        match self {
            Self::Milliseconds(_) => libc::SYS_epoll_pwait,
            Self::Exact(_) => libc::SYS_epoll_pwait2,
        }
    }

    /// As this call is told.
    fn given(&self) -> usize {
        match self {
            Self::Milliseconds(milliseconds) => *milliseconds as usize,
            Self::Exact(time) => time.as_ref().map_or(0, |time| (&raw const *time).addr()),
        }
    }

    /// When it is over, nanoseconds, if it begins now; `None`: never.
    fn end(&self, now: u64) -> Option<u64> {
        let span = match self {
            Self::Milliseconds(milliseconds) => u64::try_from(*milliseconds).ok()? * 1_000_000,
            Self::Exact(time) => {
                let time = time.as_ref()?;
                let seconds = time.tv_sec.max(0) as u64;
                seconds
                    .saturating_mul(1_000_000_000)
                    .saturating_add(time.tv_nsec.max(0) as u64)
            }
        };
        Some(now.saturating_add(span))
    }

    /// What is left of it now, if it ends then.
    fn left(&self, end: Option<u64>, now: u64) -> Self {
        let Some(end) = end else { return *self };
        let left = end.saturating_sub(now);
        match self {
            Self::Milliseconds(_) => {
                Self::Milliseconds(c_int::try_from(left.div_ceil(1_000_000)).unwrap_or(c_int::MAX))
            }
            Self::Exact(_) => Self::Exact(Some(timespec {
                tv_sec: (left / 1_000_000_000).cast_signed(),
                tv_nsec: (left % 1_000_000_000).cast_signed(),
            })),
        }
    }

    /// Is it a look, and no wait?
    fn is_none(&self) -> bool {
        self.milliseconds() == 0
    }

    /// No less than that.
    fn milliseconds(&self) -> c_int {
        match self {
            Self::Milliseconds(milliseconds) => *milliseconds,
            Self::Exact(None) => -1,
            Self::Exact(Some(time)) => {
                let parts = time.tv_nsec.max(0) as u64;
                let whole = (time.tv_sec.max(0) as u64).saturating_mul(1000);
                c_int::try_from(whole.saturating_add(parts.div_ceil(1_000_000)))
                    .unwrap_or(c_int::MAX)
            }
        }
    }
}

fn wait_for_events(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: Timeout,
    mask: *const sigset_t,
) -> c_int {
    let outcome = with(|wrap| wrap.epoll(epoll, events, most, timeout, mask));
    answer_int(outcome.unwrap_or_else(|| wait_in_another(epoll, events, most, timeout, mask)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as the program has called us.
    let timeout = Timeout::Exact(unsafe { timeout.as_ref() }.copied());
    wait_for_events(epoll, events, most, timeout, mask)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    wait_for_events(epoll, events, most, Timeout::Milliseconds(timeout), mask)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { epoll_pwait(epoll, events, most, timeout, core::ptr::null()) }
}
