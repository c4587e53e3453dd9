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

/// Upper half of the data that epoll gets from the shim; the lower half is the descriptor. Data that another thread
/// has set itself has another upper half.
const OWN: u64 = u32::from_le_bytes(*b"outl") as u64;

/// The epoll data of this descriptor. A record identifies ready descriptors by this data.
pub(crate) fn own_data(fd: c_int) -> u64 {
    OWN << 32 | u64::from(fd.cast_unsigned())
}

/// The descriptor of the shim's epoll data; `None`: the data is the program's own.
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
                    // SAFETY: the kernel has filled in `count` events.
                    let event = unsafe { events.add(index).read_unaligned() };
                    let Some(fd) = descriptor_of(event.u64) else {
                        refuse(&[b"a thread other than the first calls epoll_ctl for an instance in which the first one waits"]);
                    };
                    let ready = Ready {
                        fd: fd.cast_unsigned(),
                        events: event.events,
                    };
                    let _ = writer.push(ready); // there is memory for all
                }
            },
            |ready| {
                if at < most {
                    let event = epoll_event {
                        events: ready.events,
                        u64: own_data(ready.fd.cast_signed()),
                    };
                    // SAFETY: the program has memory for `most` events.
                    unsafe { events.add(at as usize).write_unaligned(event) };
                    at += 1;
                }
            },
        );
        for index in 0..usize::try_from(outcome).unwrap_or(0) {
            // SAFETY: `outcome` events are filled in now.
            let event = unsafe { &mut *events.add(index) };
            if is_replay {
                self.await_helper(event);
            }
            self.translate(event);
        }
        outcome
    }

    /// If a helper wrote the readable bytes, the replay waits until the helper has written.
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

    /// Replaces the shim's data, the descriptor, by the program's data.
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
        // Before the kernel watches the descriptor: another thread may get an event at once.
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

/// Translates events that another thread received: the thread gets the program's data, too. Events of descriptors
/// that the instance no longer watches are left out. Returns the number of remaining events.
fn is_in_other_epoll(epoll: c_int, events: *mut epoll_event, count: usize) -> usize {
    let mut left = 0;
    for index in 0..count {
        // SAFETY: the kernel has filled in `count` events.
        let mut event = unsafe { events.add(index).read_unaligned() };
        if let Some(fd) = descriptor_of(event.u64) {
            other_threads::check_event(fd);
            let Some(data) = Watched::of(fd).data_in(epoll) else {
                continue;
            };
            event.u64 = data;
        }
        // SAFETY: `left` is not behind the event that was read.
        unsafe { events.add(left).write_unaligned(event) };
        left += 1;
    }
    left
}

/// Waits in another thread, and translates events of descriptors that the first thread watches. The kernel may report
/// a closed descriptor again and again while a copy is open, so the wait counts down.
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

/// Timeout of an epoll call.
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

    /// The timeout as an argument of the system call.
    fn given(&self) -> usize {
        match self {
            Self::Milliseconds(milliseconds) => *milliseconds as usize,
            Self::Exact(time) => time.as_ref().map_or(0, |time| (&raw const *time).addr()),
        }
    }

    /// End of the wait, nanoseconds, if the wait begins now; `None`: never.
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

    /// The rest of the timeout until `end`.
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

    /// Whether the call only looks, without a wait.
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
