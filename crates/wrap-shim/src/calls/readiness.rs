//! What is ready, and in which order.

use libc::{
    EPOLL_CTL_DEL, EPOLLIN, EPOLLONESHOT, POLLIN, c_int, epoll_event, fd_set, nfds_t, pollfd,
    sigset_t, time_t, timespec, timeval,
};
use wrap_abi::{Call, Header, Ready, ReadyReader, ReadyWriter};

use super::{failed, reading::is_ready, refuse};
use crate::{
    errno::answer_int,
    helpers,
    signals::blocking,
    sys::{Outcome, sys},
    wrap::{Wrap, with},
};

/// Most descriptors that are told of at once: a program that asks for more is given these first.
const MOST_AT_ONCE: usize = 1024;
/// For so many there is always room.
const FEW: usize = 32;
/// A kernel's signal set, bytes.
pub(super) const SIGSET: usize = 8;

impl Wrap {
    /// A list of what is ready: the recorded one, or the one that `perform` finds.
    fn ready(
        &mut self,
        call: Call,
        fd: c_int,
        mut perform: impl FnMut(&mut Self) -> Outcome,
        list: impl FnMut(&mut ReadyWriter<'_>, i64),
        mut take: impl FnMut(Ready),
    ) -> Outcome {
        let replayed = self.replayed(call, fd, |record| {
            if record.outcome < 0 {
                return record.outcome;
            }
            let mut count = 0;
            for ready in ReadyReader::new(record.payload) {
                take(ready);
                count += 1;
            }
            count
        });
        if let Some(outcome) = replayed {
            helpers::slept();
            return outcome;
        }
        let outcome = perform(self);
        helpers::slept();
        let mut room = [0; FEW * ReadyWriter::MAX_EACH];
        if usize::try_from(outcome).is_ok_and(|count| count > FEW) {
            let mut room = [0; MOST_AT_ONCE * ReadyWriter::MAX_EACH];
            self.record_ready(call, fd, outcome, ReadyWriter::new(&mut room), list);
        } else {
            self.record_ready(call, fd, outcome, ReadyWriter::new(&mut room), list);
        }
        outcome
    }

    fn record_ready(
        &mut self,
        call: Call,
        fd: c_int,
        outcome: Outcome,
        mut writer: ReadyWriter<'_>,
        mut list: impl FnMut(&mut ReadyWriter<'_>, i64),
    ) {
        if outcome > 0 {
            list(&mut writer, outcome);
        }
        let payload = writer.bytes();
        let header = Header {
            call,
            fd: fd.cast_unsigned(),
            outcome: if outcome < 0 {
                outcome
            } else {
                payload.len() as i64
            },
            length: payload.len(),
        };
        self.append(header, |room| room.copy_from_slice(payload));
    }

    fn epoll(
        &mut self,
        epoll: c_int,
        events: *mut epoll_event,
        most: c_int,
        timeout: Timeout,
        mask: *const sigset_t,
    ) -> Outcome {
        let most = most.min(MOST_AT_ONCE as c_int);
        let mut at = 0;
        let is_replay = self.is_replay();
        let outcome = self.ready(
            Call::Epoll,
            epoll,
            |wrap| match wrap.held.is_empty() {
                // SAFETY: as the program has called us.
                true => unsafe {
                    let arguments = epoll_arguments(epoll, events, most, timeout.given(), mask);
                    blocking(timeout.call(), arguments)
                },
                false => {
                    let timeout = timeout.milliseconds() as usize;
                    wrap.wait_and_release(epoll_arguments(epoll, events, most, timeout, mask))
                }
            },
            |writer, count| {
                for index in 0..usize::try_from(count).unwrap_or(0) {
                    // SAFETY: so many were filled in by the kernel.
                    let event = unsafe { events.add(index).read_unaligned() };
                    let fd = event.u64.to_le_bytes();
                    let ready = Ready {
                        fd: u32::from_le_bytes([fd[0], fd[1], fd[2], fd[3]]),
                        events: event.events,
                    };
                    let _ = writer.push(ready); // there is room for so many
                }
            },
            |ready| {
                if at < most {
                    let event = epoll_event {
                        events: ready.events,
                        u64: ready.fd.into(),
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
    fn await_helper(&self, event: &epoll_event) {
        let fd = c_int::try_from(event.u64).unwrap_or(-1);
        let descriptor = self.descriptors.get(fd);
        if event.events & EPOLLIN.cast_unsigned() != 0
            && descriptor.is_paired()
            && !descriptor.crosses
            && !is_ready(fd, POLLIN)
        {
            helpers::will_write(fd);
        }
    }

    /// The kernel has our data, which is the descriptor; the program gets its own.
    fn translate(&mut self, event: &mut epoll_event) {
        let Ok(fd) = c_int::try_from(event.u64) else {
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
            u64: u64::from(fd.cast_unsigned()),
        };
        let outcome = perform(&raw const own);
        let Some(descriptor) = self.descriptors.entry(fd) else {
            return failed(libc::ENOMEM);
        };
        if outcome == 0 {
            let epoll = epoll.cast_unsigned() + 1;
            if descriptor.epoll != 0 && descriptor.epoll != epoll {
                refuse(&[b"it watches one descriptor with two epoll instances"]);
            }
            descriptor.epoll = epoll;
            descriptor.events = wanted.events;
            descriptor.data = wanted.u64;
            descriptor.is_spent = false;
        }
        outcome
    }

    fn poll(
        &mut self,
        all: &mut [pollfd],
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> Outcome {
        let (at, count) = (all.as_mut_ptr(), all.len());
        for place in &mut *all {
            place.revents = 0;
        }
        self.ready(
            Call::Poll,
            c_int::try_from(count).unwrap_or(0),
            |wrap| {
                // SAFETY: as the program has called us.
                unsafe { wrap.before_polling(timeout) };
                // The kernel counts down in it.
                // SAFETY: as the program has called us.
                let mut left = unsafe { timeout.as_ref() }.copied();
                let left = left.as_mut().map_or(0, |left| (&raw mut *left).addr());
                let arguments = [at.addr(), count, left, mask.addr(), SIGSET, 0];
                // SAFETY: as the program has called us.
                unsafe { blocking(libc::SYS_ppoll, arguments) }
            },
            |writer, _| {
                for index in 0..count {
                    // SAFETY: within the array.
                    let revents = unsafe { (*at.add(index)).revents }.cast_unsigned();
                    if revents != 0 {
                        let ready = Ready {
                            fd: u32::try_from(index).unwrap_or(0),
                            events: revents.into(),
                        };
                        if !writer.push(ready) {
                            refuse(&[b"too many descriptors are ready at once"]);
                        }
                    }
                }
            },
            |ready| {
                if (ready.fd as usize) < count {
                    // SAFETY: within the array.
                    unsafe { (*at.add(ready.fd as usize)).revents = ready.events as i16 };
                }
            },
        )
    }

    fn select(
        &mut self,
        count: c_int,
        sets: [*mut fd_set; 3],
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> Outcome {
        let asked = sets.map(|set| {
            // SAFETY: as the program has called us.
            unsafe { set.as_ref() }.copied()
        });
        if self.is_replay() {
            for set in sets.into_iter().filter(|set| !set.is_null()) {
                // SAFETY: as the program has called us.
                unsafe { libc::FD_ZERO(set) };
            }
        }
        let has = |set: usize, fd: c_int| {
            // SAFETY: as the program has called us; the descriptor is below what it said.
            asked[set].is_some() && unsafe { libc::FD_ISSET(fd, sets[set]) }
        };
        self.ready(
            Call::Select,
            count,
            |wrap| {
                // SAFETY: as the program has called us.
                unsafe { wrap.before_polling(timeout) };
                // SAFETY: as the program has called us.
                let mut left = unsafe { timeout.as_ref() }.copied();
                let left = left.as_mut().map_or(0, |left| (&raw mut *left).addr());
                let mask = [mask.addr(), SIGSET];
                let [read, write, other] = sets.map(|set| set.addr());
                let arguments = [
                    count as usize,
                    read,
                    write,
                    other,
                    left,
                    (&raw const mask).addr(),
                ];
                // SAFETY: as the program has called us.
                unsafe { blocking(libc::SYS_pselect6, arguments) }
            },
            |writer, _| {
                for fd in 0..count {
                    let events = (0..3).map(|set| u32::from(has(set, fd)) << set).sum();
                    if events != 0 {
                        let ready = Ready {
                            fd: fd.cast_unsigned(),
                            events,
                        };
                        if !writer.push(ready) {
                            refuse(&[b"too many descriptors are ready at once"]);
                        }
                    }
                }
            },
            |ready| {
                for (set, at) in sets.iter().enumerate().filter(|(_, at)| !at.is_null()) {
                    if ready.events >> set & 1 != 0 && ready.fd < count.cast_unsigned() {
                        // SAFETY: as the program has called us.
                        unsafe { libc::FD_SET(ready.fd as c_int, *at) };
                    }
                }
            },
        )
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
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
        SIGSET,
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
    let outcome = outcome.unwrap_or_else(|| {
        let arguments = epoll_arguments(epoll, events, most, timeout.given(), mask);
        // SAFETY: as the program has called us.
        unsafe { crate::sys::raw(timeout.call(), arguments) }
    });
    answer_int(outcome)
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

#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    all: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as the program has called us.
    let outcome = with(|wrap| wrap.poll(unsafe { places(all, count) }, timeout, mask));
    let outcome = outcome.unwrap_or_else(|| {
        // SAFETY: as the program has called us.
        let mut left = unsafe { timeout.as_ref() }.copied();
        let left = left.as_mut().map_or(0, |left| (&raw mut *left).addr());
        // SAFETY: as the program has called us.
        unsafe { sys!(SYS_ppoll, all, count, left, mask, SIGSET) }
    });
    answer_int(outcome)
}

/// # Safety
/// The program vouches for the array.
unsafe fn places<'a>(all: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    match usize::try_from(count) {
        // SAFETY: by the caller.
        Ok(count) if count > 0 => unsafe { core::slice::from_raw_parts_mut(all, count) },
        _ => &mut [],
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn poll(all: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let time = timespec {
        tv_sec: time_t::from(timeout / 1000),
        tv_nsec: i64::from(timeout % 1000) * 1_000_000,
    };
    let time = if timeout < 0 {
        core::ptr::null()
    } else {
        &raw const time
    };
    // SAFETY: as the program has called us.
    unsafe { ppoll(all, count, time, core::ptr::null()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __poll_chk(
    all: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    _: usize,
) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { poll(all, count, timeout) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    other: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let outcome = with(|wrap| wrap.select(count, [read, write, other], timeout, mask));
    let outcome = outcome.unwrap_or_else(|| {
        let mask = [mask.addr(), SIGSET];
        // SAFETY: as the program has called us.
        let mut left = unsafe { timeout.as_ref() }.copied();
        let left = left.as_mut().map_or(0, |left| (&raw mut *left).addr());
        // SAFETY: as the program has called us.
        unsafe {
            sys!(
                SYS_pselect6,
                count,
                read,
                write,
                other,
                left,
                (&raw const mask)
            )
        }
    });
    answer_int(outcome)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    other: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: as the program has called us.
    let time = unsafe { timeout.as_ref() }.map(|time| timespec {
        tv_sec: time.tv_sec,
        tv_nsec: time.tv_usec * 1000,
    });
    let time = time
        .as_ref()
        .map_or(core::ptr::null(), |time| &raw const *time);
    // SAFETY: as the program has called us.
    unsafe { pselect(count, read, write, other, time, core::ptr::null()) }
}
