//! What allocators tell of themselves: how much memory they hold depends on when they gave some back, and on other threads; and
//! what they are told.

use core::ffi::CStr;

use libc::{c_char, c_int, c_void};
use wrap_abi::Call;

use crate::{real::is_there, real::real, sys::bytes_mut, wrap::with};

/// What begins like this changes by itself.
const STATISTICS: &[u8] = b"stats.";
/// A thread of its own would give memory back, whatever the program does meanwhile: where the next piece of memory is would be
/// another place in each life. Without it the threads that allocate do so.
const THREAD: &[u8] = b"background_thread";

/// jemalloc's. Programs may look whether there is one, to find out whether that is their allocator: they are told it knows nothing.
#[unsafe(no_mangle)]
unsafe extern "C" fn mallctl(
    name: *const c_char,
    old: *mut c_void,
    old_length: *mut usize,
    new: *mut c_void,
    new_length: usize,
) -> c_int {
    if !is_there(c"mallctl") {
        return libc::ENOENT;
    }
    let perform = || {
        real!(mallctl(
            name => *const c_char, old => *mut c_void, old_length => *mut usize, new => *mut c_void, new_length => usize
        ) -> c_int)
    };
    // SAFETY: as the program has called us.
    let name_of = unsafe { CStr::from_ptr(name) }.to_bytes();
    if name_of == THREAD && !new.is_null() && with(|_| ()).is_some() {
        return libc::EPERM;
    }
    if !name_of.starts_with(STATISTICS) || old.is_null() || old_length.is_null() {
        return perform();
    }
    // SAFETY: as the program has called us.
    let room = unsafe { bytes_mut(old, *old_length) };
    // This one returns the error.
    let outcome = with(|wrap| wrap.filled(Call::Filled, 0, room, |_| -i64::from(perform())));
    outcome.map_or_else(perform, |outcome| {
        c_int::try_from(-outcome).unwrap_or(libc::EINVAL)
    })
}
