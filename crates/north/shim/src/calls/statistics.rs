//! Statistics of allocators. The memory that an allocator holds depends on earlier returns of memory, and on other
//! threads. And settings of allocators.

use core::ffi::CStr;

use libc::{c_char, c_int, c_void};
use north_abi::Call;

use crate::{real::is_there, real::real, sys::bytes_mut, wrap::with};

/// Prefix of names whose values change by themselves.
const STATISTICS: &[u8] = b"stats.";
/// A background thread would return memory at any time, and the addresses of later allocations would differ in each
/// incarnation. Without that thread the allocating threads return memory.
const THREAD: &[u8] = b"background_thread";

/// jemalloc's function. A program may look for the function in order to find its allocator: without jemalloc the
/// answer is an error.
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
    let asked = match name_of {
        THREAD => Asked::Thread,
        name if name.starts_with(STATISTICS) => Asked::Statistic,
        _ => Asked::Other,
    };
    // SAFETY: as the program has called us.
    unsafe { answer(asked, old, old_length, new, perform) }
}

/// As `mallctl`, by the numbers of the name's parts, which the program has asked for before.
#[unsafe(no_mangle)]
unsafe extern "C" fn mallctlbymib(
    numbers: *const usize,
    count: usize,
    old: *mut c_void,
    old_length: *mut usize,
    new: *mut c_void,
    new_length: usize,
) -> c_int {
    if !is_there(c"mallctlbymib") {
        return libc::ENOENT;
    }
    let perform = || {
        real!(mallctlbymib(
            numbers => *const usize, count => usize,
            old => *mut c_void, old_length => *mut usize, new => *mut c_void, new_length => usize
        ) -> c_int)
    };
    // SAFETY: as the program has called us.
    let first = (count > 0).then(|| unsafe { numbers.read() });
    let asked = match first {
        None => Asked::Other,
        first if first == first_number(c"background_thread") => Asked::Thread,
        first if first == first_number(c"stats.allocated") => Asked::Statistic,
        _ => Asked::Other,
    };
    // SAFETY: as the program has called us.
    unsafe { answer(asked, old, old_length, new, perform) }
}

/// The first number of a name's path.
fn first_number(name: &CStr) -> Option<usize> {
    const PARTS: usize = 4;
    let (mut numbers, mut count) = ([0usize; PARTS], PARTS);
    let failed = real!(mallctlnametomib(
        name.as_ptr() => *const c_char, numbers.as_mut_ptr() => *mut usize, &raw mut count => *mut usize
    ) -> c_int);
    (failed == 0).then_some(numbers[0])
}

/// The subject of a question or a setting.
enum Asked {
    Statistic,
    Thread,
    Other,
}

/// # Safety
/// The program vouches for `old`, as to the allocator.
unsafe fn answer(
    asked: Asked,
    old: *mut c_void,
    old_length: *mut usize,
    new: *const c_void,
    perform: impl Fn() -> c_int,
) -> c_int {
    match asked {
        Asked::Thread if !new.is_null() && with(|_| ()).is_some() => return libc::EPERM,
        Asked::Statistic if !old.is_null() && !old_length.is_null() => {}
        _ => return perform(),
    }
    // SAFETY: by the caller.
    let room = unsafe { bytes_mut(old, *old_length) };
    // This call returns the error.
    let outcome = with(|wrap| wrap.filled(Call::Filled, 0, room, |_| -i64::from(perform())));
    outcome.map_or_else(&perform, |outcome| {
        c_int::try_from(-outcome).unwrap_or(libc::EINVAL)
    })
}
