//! Time that passes, and signals that are waited for: not in a replay.

use core::{mem::MaybeUninit, ptr};

use libc::{c_int, c_uint, clockid_t, siginfo_t, sigset_t, timespec, useconds_t};
use north_abi::Call;

use super::{clocks::deadline, failed, readiness::SIGNAL_SET_BYTES};
use crate::{
    errno::answer_int,
    helpers,
    signals::blocking,
    sys::{Outcome, bytes_mut, structure},
    wrap::with,
};

/// Sleeps. `left` receives the rest of an interrupted sleep.
fn sleep_for(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> Outcome {
    let is_deadline = flags & libc::TIMER_ABSTIME != 0
        && matches!(clock, libc::CLOCK_MONOTONIC | libc::CLOCK_REALTIME);
    // SAFETY: as the program has called us.
    let own = is_deadline.then(|| unsafe { deadline(time) });
    let own = own.flatten();
    let until = own.as_ref().map_or(time, core::ptr::from_ref);
    let perform = || {
        let arguments = [
            clock as usize,
            flags as usize,
            until.addr(),
            left.addr(),
            0,
            0,
        ];
        // SAFETY: as the program has called us.
        unsafe { blocking(libc::SYS_clock_nanosleep, arguments) }
    };
    let size = if left.is_null() {
        0
    } else {
        size_of::<timespec>()
    };
    // SAFETY: as the program has called us.
    let room = unsafe { bytes_mut(left.cast(), size) };
    let outcome = with(|wrap| {
        wrap.before_sleep();
        wrap.filled(Call::Value, clock, room, |_| perform())
    });
    outcome.unwrap_or_else(|| {
        let arguments = [
            clock as usize,
            flags as usize,
            time.addr(),
            left.addr(),
            0,
            0,
        ];
        // SAFETY: as the program has called us.
        let outcome = unsafe { crate::sys::raw(libc::SYS_clock_nanosleep, arguments) };
        helpers::wakes_by_itself();
        outcome
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
    answer_int(sleep_for(libc::CLOCK_MONOTONIC, 0, time, left))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    // This call returns the error.
    c_int::try_from(-sleep_for(clock, flags, time, left)).unwrap_or(0)
}

fn sleep_nanoseconds(nanoseconds: u64) -> Outcome {
    let time = timespec {
        tv_sec: (nanoseconds / 1_000_000_000).cast_signed(),
        tv_nsec: (nanoseconds % 1_000_000_000).cast_signed(),
    };
    sleep_for(
        libc::CLOCK_MONOTONIC,
        0,
        &raw const time,
        core::ptr::null_mut(),
    )
}

/// Waits for a signal.
fn sleep_until_signal(number: i64, arguments: [usize; 6]) -> c_int {
    let outcome = with(|wrap| {
        wrap.before_sleep();
        // SAFETY: as the program has called us.
        wrap.value(Call::Value, 0, || unsafe { blocking(number, arguments) })
    });
    // SAFETY: as the program has called us.
    answer_int(outcome.unwrap_or_else(|| unsafe { crate::sys::raw(number, arguments) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pause() -> c_int {
    sleep_until_signal(libc::SYS_pause, [0; 6])
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigsuspend(mask: *const sigset_t) -> c_int {
    sleep_until_signal(
        libc::SYS_rt_sigsuspend,
        [mask.addr(), SIGNAL_SET_BYTES, 0, 0, 0, 0],
    )
}

/// Takes a blocked signal of this set, without delivery.
fn take_signal(
    signals: *const sigset_t,
    information: *mut siginfo_t,
    time: *const timespec,
) -> Outcome {
    let mut told = MaybeUninit::<siginfo_t>::zeroed();
    let at = told.as_mut_ptr();
    let arguments = [
        signals.addr(),
        at.addr(),
        time.addr(),
        SIGNAL_SET_BYTES,
        0,
        0,
    ];
    // SAFETY: on our stack; any bytes are such a structure.
    let room = unsafe { structure(at) };
    let outcome = with(|wrap| {
        wrap.before_sleep();
        wrap.filled(Call::Filled, 0, room, |_| {
            // SAFETY: as the program has called us.
            unsafe { blocking(libc::SYS_rt_sigtimedwait, arguments) }
        })
    });
    // SAFETY: as the program has called us.
    let perform = || unsafe { crate::sys::raw(libc::SYS_rt_sigtimedwait, arguments) };
    let outcome = outcome.unwrap_or_else(perform);
    if outcome >= 0 && !information.is_null() {
        // SAFETY: as the program has called us; the structure was filled in.
        unsafe { information.write(told.assume_init()) };
    }
    outcome
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigtimedwait(
    signals: *const sigset_t,
    information: *mut siginfo_t,
    time: *const timespec,
) -> c_int {
    answer_int(take_signal(signals, information, time))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigwaitinfo(signals: *const sigset_t, information: *mut siginfo_t) -> c_int {
    answer_int(take_signal(signals, information, ptr::null()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigwait(signals: *const sigset_t, signal: *mut c_int) -> c_int {
    loop {
        match take_signal(signals, ptr::null_mut(), ptr::null()) {
            interrupted if interrupted == failed(libc::EINTR) => {}
            // This call returns the error.
            error if error < 0 => return c_int::try_from(-error).unwrap_or(libc::EINVAL),
            number => {
                // SAFETY: as the program has called us.
                unsafe { signal.write(c_int::try_from(number).unwrap_or(0)) };
                return 0;
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn usleep(microseconds: useconds_t) -> c_int {
    answer_int(sleep_nanoseconds(u64::from(microseconds) * 1000))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sleep(seconds: c_uint) -> c_uint {
    match sleep_nanoseconds(u64::from(seconds) * 1_000_000_000) {
        0 => 0,
        _ => 1, // how much is left is not known to the second
    }
}
