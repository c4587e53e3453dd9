//! The steps of an adoption: operations whose results the kernel keeps after the death of the adopter.
//!
//! In the tests of this crate, an adopter is killed before any of these steps. Elsewhere a step has
//! no effect.

/// The operation that follows is a step.
#[cfg(not(test))]
pub(crate) const fn begin_step() {}

#[cfg(test)]
pub(crate) use kill::begin_step;

#[cfg(test)]
pub(crate) mod kill {
    use std::{
        cell::Cell,
        panic::{self, AssertUnwindSafe},
    };

    thread_local! {
        /// Steps of this thread until the death.
        static STEPS_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    /// The death, as the payload of a panic.
    struct Killed;

    /// Ends the adopter if no steps are left.
    pub(crate) fn begin_step() {
        match STEPS_LEFT.get() {
            Some(0) => {
                STEPS_LEFT.set(None);
                panic::resume_unwind(Box::new(Killed));
            }
            left => STEPS_LEFT.set(left.map(|left| left - 1)),
        }
    }

    /// Runs an adopter that is killed after `steps` steps; `None`: the adopter was killed. As after
    /// SIGKILL, all descriptors are closed, and no code that handles an error runs.
    pub(crate) fn killed_after<T>(steps: u32, adopter: impl FnOnce() -> T) -> Option<T> {
        STEPS_LEFT.set(Some(steps));
        let result = panic::catch_unwind(AssertUnwindSafe(adopter));
        STEPS_LEFT.set(None);
        match result {
            Ok(value) => Some(value),
            Err(payload) if payload.is::<Killed>() => None,
            Err(payload) => panic::resume_unwind(payload),
        }
    }
}
