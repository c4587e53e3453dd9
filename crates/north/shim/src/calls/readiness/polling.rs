//! poll and select.

use libc::{c_int, fd_set, nfds_t, pollfd, sigset_t, time_t, timespec, timeval};
use north_abi::{Call, Ready};

use super::{
    super::{other_threads, refuse},
    SIGNAL_SET_BYTES,
};
use crate::{
    errno::answer_int,
    signals::blocking,
    sys::{Outcome, sys},
    wrap::{Wrap, with},
};

impl Wrap {
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
                // The kernel updates the timeout.
                // SAFETY: as the program has called us.
                let mut left = unsafe { timeout.as_ref() }.copied();
                let left = left.as_mut().map_or(0, |left| (&raw mut *left).addr());
                let arguments = [at.addr(), count, left, mask.addr(), SIGNAL_SET_BYTES, 0];
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
            // SAFETY: as the program has called us; the descriptor is below the program's limit.
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
                let mask = [mask.addr(), SIGNAL_SET_BYTES];
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
unsafe extern "C" fn ppoll(
    all: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as the program has called us.
    other_threads::check_poll(unsafe { places(all, count) });
    // SAFETY: as the program has called us.
    let outcome = with(|wrap| wrap.poll(unsafe { places(all, count) }, timeout, mask));
    let outcome = outcome.unwrap_or_else(|| {
        // SAFETY: as the program has called us.
        let mut left = unsafe { timeout.as_ref() }.copied();
        let left = left.as_mut().map_or(0, |left| (&raw mut *left).addr());
        // SAFETY: as the program has called us.
        unsafe { sys!(SYS_ppoll, all, count, left, mask, SIGNAL_SET_BYTES) }
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
    let is_asked = |fd: &c_int| {
        let mut sets = [read, write, other].into_iter();
        // SAFETY: as the program has called us; the descriptor is below the program's limit.
        sets.any(|set| !set.is_null() && unsafe { libc::FD_ISSET(*fd, set) })
    };
    other_threads::check_select((0..count).filter(is_asked));
    let outcome = with(|wrap| wrap.select(count, [read, write, other], timeout, mask));
    let outcome = outcome.unwrap_or_else(|| {
        let mask = [mask.addr(), SIGNAL_SET_BYTES];
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
