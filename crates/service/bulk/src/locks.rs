//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The value behind a lock. No thread of this crate leaves a value half changed when it panics.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
