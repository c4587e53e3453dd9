//! Threads, and the calls by which threads wake each other: the first thread continues when its helpers rest
//! ([`crate::helpers`]).

use core::{ffi::CStr, ptr};

use libc::{
    c_int, c_void, clockid_t, pthread_attr_t, pthread_cond_t, pthread_mutex_t, pthread_t, sem_t,
    timespec,
};

use super::clocks::deadline;
use crate::{
    errno,
    helpers::{self, Start},
    mutexes,
    real::{real, real_of},
    wrap::{Wrap, is_wrapped, with},
};

/// Version of the condition variables' present layout.
const CONDITION_SYMBOL_VERSION: Option<&CStr> = Some(c"GLIBC_2.3.2");

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let perform = |start: Start, argument: *mut c_void| {
        real!(pthread_create(
            thread => *mut pthread_t, attributes => *const pthread_attr_t, start => Start, argument => *mut c_void
        ) -> c_int)
    };
    if is_wrapped() {
        helpers::create(start, argument, perform)
    } else {
        perform(start, argument)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int {
    lock(
        mutex,
        || real!(pthread_mutex_lock(mutex => *mut pthread_mutex_t) -> c_int),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_trylock(mutex: *mut pthread_mutex_t) -> c_int {
    lock(
        mutex,
        || real!(pthread_mutex_trylock(mutex => *mut pthread_mutex_t) -> c_int),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_timedlock(
    mutex: *mut pthread_mutex_t,
    until: *const timespec,
) -> c_int {
    lock(mutex, || {
        by(until, |until| {
            real!(pthread_mutex_timedlock(
                mutex => *mut pthread_mutex_t, until => *const timespec
            ) -> c_int)
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_clocklock(
    mutex: *mut pthread_mutex_t,
    clock: clockid_t,
    until: *const timespec,
) -> c_int {
    lock(mutex, || {
        by(until, |until| {
            real!(pthread_mutex_clocklock(
                mutex => *mut pthread_mutex_t, clock => clockid_t, until => *const timespec
            ) -> c_int)
        })
    })
}

/// A call with a deadline by the process's clocks.
fn by(until: *const timespec, perform: impl FnOnce(*const timespec) -> c_int) -> c_int {
    // SAFETY: as the program has called us.
    let own = unsafe { deadline(until) };
    perform(own.as_ref().map_or(until, ptr::from_ref))
}

#[inline]
fn lock(mutex: *mut pthread_mutex_t, perform: impl FnOnce() -> c_int) -> c_int {
    if !is_wrapped() {
        return perform();
    }
    helpers::settle();
    let outcome = perform();
    if outcome == 0 || outcome == libc::EOWNERDEAD {
        mutexes::taken(mutex.addr());
    }
    outcome
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_unlock(mutex: *mut pthread_mutex_t) -> c_int {
    let outcome = real!(pthread_mutex_unlock(mutex => *mut pthread_mutex_t) -> c_int);
    if is_wrapped() && outcome == 0 {
        helpers::unlocked(mutex.addr());
    }
    outcome
}

/// The call may wake a thread that waits for this object.
#[inline]
fn wake(thing: usize, perform: impl FnOnce() -> c_int) -> c_int {
    let outcome = helpers::wakes(thing, perform);
    if is_wrapped() {
        helpers::woke();
    } else {
        helpers::helper_woke();
    }
    outcome
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cond_signal(condition: *mut pthread_cond_t) -> c_int {
    wake(
        condition.addr(),
        || real_of!(CONDITION_SYMBOL_VERSION, pthread_cond_signal(condition => *mut pthread_cond_t) -> c_int),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cond_broadcast(condition: *mut pthread_cond_t) -> c_int {
    wake(
        condition.addr(),
        || real_of!(CONDITION_SYMBOL_VERSION, pthread_cond_broadcast(condition => *mut pthread_cond_t) -> c_int),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sem_post(semaphore: *mut sem_t) -> c_int {
    wake(
        semaphore.addr(),
        || real!(sem_post(semaphore => *mut sem_t) -> c_int),
    )
}

/// The first thread sleeps without its mutex, and a helper wakes the first thread and continues. Before the first
/// thread has the mutex again, the helpers rest.
#[inline]
fn wait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    until: *const timespec,
    perform: impl FnOnce(*const timespec) -> c_int,
) -> c_int {
    if !is_wrapped() {
        return helpers::waits(condition.addr(), until, || {
            let outcome = perform(until);
            if outcome != libc::ETIMEDOUT {
                return outcome;
            }
            real!(pthread_mutex_unlock(mutex => *mut pthread_mutex_t) -> c_int);
            let was_woken = helpers::wakes_by_itself();
            real!(pthread_mutex_lock(mutex => *mut pthread_mutex_t) -> c_int);
            if was_woken { 0 } else { outcome }
        });
    }
    with(Wrap::before_sleep);
    mutexes::given_back(mutex.addr());
    let outcome = by(until, perform);
    // After another error the mutex is as before.
    if matches!(outcome, 0 | libc::ETIMEDOUT) {
        real!(pthread_mutex_unlock(mutex => *mut pthread_mutex_t) -> c_int);
        helpers::was_woken();
        real!(pthread_mutex_lock(mutex => *mut pthread_mutex_t) -> c_int);
    }
    mutexes::taken(mutex.addr());
    outcome
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cond_wait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
) -> c_int {
    wait(condition, mutex, ptr::null(), |_| {
        real_of!(CONDITION_SYMBOL_VERSION, pthread_cond_wait(
            condition => *mut pthread_cond_t, mutex => *mut pthread_mutex_t
        ) -> c_int)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cond_timedwait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    until: *const timespec,
) -> c_int {
    wait(condition, mutex, until, |until| {
        real_of!(CONDITION_SYMBOL_VERSION, pthread_cond_timedwait(
            condition => *mut pthread_cond_t, mutex => *mut pthread_mutex_t, until => *const timespec
        ) -> c_int)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cond_clockwait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    clock: clockid_t,
    until: *const timespec,
) -> c_int {
    wait(condition, mutex, until, |until| {
        real!(pthread_cond_clockwait(
            condition => *mut pthread_cond_t, mutex => *mut pthread_mutex_t, clock => clockid_t,
            until => *const timespec
        ) -> c_int)
    })
}

/// As [`wait`], without a mutex.
#[inline]
fn wait_for_semaphore(
    semaphore: *mut sem_t,
    until: *const timespec,
    perform: impl FnOnce(*const timespec) -> c_int,
) -> c_int {
    if !is_wrapped() {
        return helpers::waits(semaphore.addr(), until, || {
            let outcome = perform(until);
            // The wait timed out, or was interrupted.
            match outcome != 0 && helpers::wakes_by_itself() {
                true => take_after_all(semaphore, outcome),
                false => outcome,
            }
        });
    }
    with(Wrap::before_sleep);
    let outcome = by(until, perform);
    helpers::was_woken();
    outcome
}

/// A helper that was woken late takes the semaphore, unless another thread was faster.
#[cold]
fn take_after_all(semaphore: *mut sem_t, in_vain: c_int) -> c_int {
    let error = errno::get();
    match real!(sem_trywait(semaphore => *mut sem_t) -> c_int) {
        0 => 0,
        _ => {
            errno::put(error);
            in_vain
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_join(thread: pthread_t, said: *mut *mut c_void) -> c_int {
    with(Wrap::before_sleep);
    real!(pthread_join(thread => pthread_t, said => *mut *mut c_void) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sem_wait(semaphore: *mut sem_t) -> c_int {
    wait_for_semaphore(
        semaphore,
        ptr::null(),
        |_| real!(sem_wait(semaphore => *mut sem_t) -> c_int),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sem_timedwait(semaphore: *mut sem_t, until: *const timespec) -> c_int {
    wait_for_semaphore(
        semaphore,
        until,
        |until| real!(sem_timedwait(semaphore => *mut sem_t, until => *const timespec) -> c_int),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sem_clockwait(
    semaphore: *mut sem_t,
    clock: clockid_t,
    until: *const timespec,
) -> c_int {
    wait_for_semaphore(semaphore, until, |until| {
        real!(sem_clockwait(
            semaphore => *mut sem_t, clock => clockid_t, until => *const timespec
        ) -> c_int)
    })
}
