//! Time that passes: not in a replay.

use libc::{c_int, c_uint, clockid_t, timespec, useconds_t};
use wrap_abi::Call;

use crate::{
    errno::answer_int,
    signals::blocking,
    sys::{Outcome, bytes_mut},
    wrap::with,
};

/// `left` is what is filled in of a sleep that was interrupted.
fn sleep_for(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> Outcome {
    let perform = || {
        let arguments = [
            clock as usize,
            flags as usize,
            time.addr(),
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
        unsafe { crate::sys::raw(libc::SYS_clock_nanosleep, arguments) }
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
    // This one returns the error.
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
