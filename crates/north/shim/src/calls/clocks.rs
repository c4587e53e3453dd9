//! Clocks: the process's own ([`north_abi::Clock`]).

use core::cell::Cell;

use libc::{
    CLOCK_BOOTTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE, CLOCK_MONOTONIC_RAW, CLOCK_REALTIME,
    CLOCK_REALTIME_COARSE, c_int, c_void, clockid_t, time_t, timespec, timeval, tms,
};
use north_abi::{Call, Tick, layout::Failure};

use crate::{
    allocators,
    clock::{monotonic, time_of_day},
    errno::{answer, answer_int},
    real::real,
    sys::{structure, sys},
    wrap::{Wrap, with},
};

impl Wrap {
    /// Put the clocks forward, if that is due, or was at this place.
    fn tick(&mut self) {
        if self.is_replay {
            self.replay_tick();
            return;
        }
        let now = monotonic();
        if self.clock.is_due(now) {
            let tick = self.clock.tick(now, time_of_day());
            allocators::tell(self.clock.stands());
            self.record(&tick.record(&mut [0; 8]));
        }
    }

    /// At the end of the record the clocks stand still: before any output a tick would have been recorded. A program
    /// that only waits for its clocks has come further than the dead incarnation.
    #[cold]
    fn replay_tick(&mut self) {
        let reads = self.clock.reads();
        let Some(Ok((record, length))) = self.stream.peek() else {
            if self.has_come_further() && !self.is_replay() {
                self.tick();
            }
            return;
        };
        // If another call is next in the record, the clocks stood still here.
        let tick = Tick::from_record(&record).filter(|tick| tick.reads <= reads);
        if let Some(tick) = tick {
            self.advance(length);
            if !self.clock.replay(&tick) {
                self.fail(Failure::OtherClock, Call::Clock, Some(Call::Clock));
            }
            allocators::tell(self.clock.stands());
        }
    }
}

thread_local! {
    /// Computing time of the process at the first reading at the end of the record, nanoseconds; 0: no reading yet.
    static AT_END: Cell<u64> = const { Cell::new(0) };
}

impl Wrap {
    /// At the end of the record: the dead incarnation had at most [`Clock::GRAIN`] after its last tick, and this
    /// process has computed for far longer.
    fn has_come_further(&self) -> bool {
        /// Nanoseconds. A replay has more to do in between, and a kernel's clock may be coarse.
        const CLOCK_SKEW_MAX_NS: u64 = 200_000_000;
        let now = computed();
        match AT_END.get() {
            0 => AT_END.set(now),
            began => return now.saturating_sub(began) > CLOCK_SKEW_MAX_NS,
        }
        false
    }
}

/// This process is a child with its own record.
pub(crate) fn forget() {
    AT_END.set(0);
}

/// Computing time of this thread, nanoseconds.
fn computed() -> u64 {
    let mut time = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a structure on our stack.
    unsafe {
        sys!(
            SYS_clock_gettime,
            libc::CLOCK_THREAD_CPUTIME_ID,
            &raw mut time
        )
    };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Converts a deadline of the program, by the process's monotonic clock or (a very large number) by the time of day,
/// to the kernel's clock. `None`: the deadline is the kernel's already.
///
/// # Safety
/// `until` is null or readable.
pub(super) unsafe fn deadline(until: *const timespec) -> Option<timespec> {
    /// Seconds. No host is up for that long, and the time of day passed this number in 2001.
    const WALL_CLOCK_MIN_SECONDS: time_t = 1_000_000_000;
    // SAFETY: by the caller.
    let until = unsafe { until.as_ref() }?;
    let is_wall = until.tv_sec >= WALL_CLOCK_MIN_SECONDS;
    let seconds = u64::try_from(until.tv_sec).ok()?;
    let at = seconds * 1_000_000_000 + u64::try_from(until.tv_nsec).ok()?;
    let kernels = with(|wrap| match (wrap.is_replay, is_wall) {
        (true, _) => {
            let now = if is_wall { time_of_day() } else { monotonic() };
            Some(now.saturating_add(wrap.clock.until(at, is_wall)))
        }
        (false, true) => None,
        (false, false) => Some(wrap.clock.kernels(at)),
    });
    let (tv_sec, tv_nsec) = split(kernels.flatten()?);
    Some(timespec { tv_sec, tv_nsec })
}

fn split(nanoseconds: u64) -> (time_t, i64) {
    let seconds = nanoseconds / 1_000_000_000;
    let rest = nanoseconds % 1_000_000_000;
    (seconds.cast_signed(), rest.cast_signed())
}

/// The time of day and monotonic time, nanoseconds; `None`: this thread has the kernel's.
fn own(clock: clockid_t) -> Option<u64> {
    let is_wall = matches!(clock, CLOCK_REALTIME | CLOCK_REALTIME_COARSE);
    with(|wrap| {
        wrap.tick();
        if is_wall {
            wrap.clock.time_of_day()
        } else {
            wrap.clock.monotonic()
        }
    })
}

/// The return address identifies the caller.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    core::arch::naked_asm!("mov rdx, [rsp]", "jmp {}", sym clock_gettime_for)
}

unsafe extern "C" fn clock_gettime_for(
    clock: clockid_t,
    time: *mut timespec,
    return_address: usize,
) -> c_int {
    let perform = || real!(clock_gettime(clock => clockid_t, time => *mut timespec) -> c_int);
    match clock {
        CLOCK_MONOTONIC | CLOCK_MONOTONIC_COARSE | CLOCK_MONOTONIC_RAW
            if allocators::has(return_address) =>
        {
            let (tv_sec, tv_nsec) = split(allocators::time());
            // SAFETY: as the allocator has called us.
            unsafe { time.write(timespec { tv_sec, tv_nsec }) };
            0
        }
        CLOCK_REALTIME
        | CLOCK_REALTIME_COARSE
        | CLOCK_MONOTONIC
        | CLOCK_MONOTONIC_COARSE
        | CLOCK_MONOTONIC_RAW
        | CLOCK_BOOTTIME => {
            let Some(now) = own(clock) else {
                return perform();
            };
            let (tv_sec, tv_nsec) = split(now);
            // SAFETY: as the program has called us.
            unsafe { time.write(timespec { tv_sec, tv_nsec }) };
            0
        }
        // Clocks of processes and threads: computing time.
        _ => {
            // SAFETY: the call fills the structure in.
            let room = unsafe { structure(time) };
            let outcome = with(|wrap| wrap.filled(Call::Filled, clock, room, |_| perform().into()));
            outcome.map_or_else(perform, answer_int)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn gettimeofday(time: *mut timeval, zone: *mut c_void) -> c_int {
    let Some(now) = own(CLOCK_REALTIME).filter(|_| zone.is_null()) else {
        return real!(gettimeofday(time => *mut timeval, zone => *mut c_void) -> c_int);
    };
    let (tv_sec, nanoseconds) = split(now);
    let tv_usec = nanoseconds / 1000;
    // SAFETY: as the program has called us.
    unsafe { time.write(timeval { tv_sec, tv_usec }) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn time(out: *mut time_t) -> time_t {
    let Some(now) = own(CLOCK_REALTIME) else {
        return real!(time(out => *mut time_t) -> time_t);
    };
    let (seconds, _) = split(now);
    if !out.is_null() {
        // SAFETY: as the program has called us.
        unsafe { out.write(seconds) };
    }
    seconds
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clock() -> libc::clock_t {
    let perform = || real!(clock() -> libc::clock_t);
    with(|wrap| wrap.value(Call::Value, 0, perform)).unwrap_or_else(perform)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn times(buffer: *mut tms) -> libc::clock_t {
    // SAFETY: as the program has called us.
    let perform = || unsafe { sys!(SYS_times, buffer) };
    // SAFETY: the call fills the structure in.
    let room = unsafe { structure(buffer) };
    let outcome = with(|wrap| wrap.filled(Call::Filled, 0, room, |_| perform()));
    answer(outcome.unwrap_or_else(perform)) as libc::clock_t
}
