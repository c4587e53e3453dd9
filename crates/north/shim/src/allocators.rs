//! Allocators read clocks, to give memory back now and then, and where the next piece of memory is depends on what was
//! given back. Addresses are part of what a program computes: it prints them, sorts and hashes by them. So what
//! allocators see is the process's clock as it stands, which is not put forward for them and counts no reading: it is
//! the same in a replay, at no note.

use core::{
    ffi::{CStr, c_int, c_void},
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use libc::{PF_X, PT_LOAD, dl_phdr_info};

/// How their libraries are called.
const NAMES: [&[u8]; 3] = [b"libjemalloc", b"libtcmalloc", b"libmimalloc"];

/// The code of the one that the program uses.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// It was looked for.
static IS_FOUND: AtomicBool = AtomicBool::new(false);

/// What the process's monotonic clock showed when it was put forward last, nanoseconds; 0 before that.
static TIME: AtomicU64 = AtomicU64::new(0);

/// Nothing is recorded, so they have the kernel's clocks.
pub(crate) fn leave_alone() {
    END.store(0, Ordering::Relaxed);
    IS_FOUND.store(true, Ordering::Relaxed);
}

/// The process's clock shows this, nanoseconds.
#[inline]
pub(crate) fn tell(monotonic: u64) {
    TIME.store(monotonic, Ordering::Relaxed);
}

/// What they are told the time is, nanoseconds; helper threads, too, for they share what is allocated.
pub(crate) fn time() -> u64 {
    TIME.load(Ordering::Relaxed)
}

/// An allocator is at work, and has looked at its clock, before the program has begun.
#[cold]
fn find() {
    IS_FOUND.store(true, Ordering::Relaxed);
    // SAFETY: our own function, which takes what it is given.
    unsafe { libc::dl_iterate_phdr(Some(look), core::ptr::null_mut()) };
}

unsafe extern "C" fn look(library: *mut dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the C library's own.
    let library = unsafe { &*library };
    if library.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: a string.
    let name = unsafe { CStr::from_ptr(library.dlpi_name) }.to_bytes();
    let file = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name);
    if !NAMES.iter().any(|known| file.starts_with(known)) {
        return 0;
    }
    // SAFETY: so many headers are there.
    let headers =
        unsafe { core::slice::from_raw_parts(library.dlpi_phdr, library.dlpi_phnum.into()) };
    for header in headers {
        if header.p_type == PT_LOAD && header.p_flags & PF_X != 0 {
            let start = library.dlpi_addr.wrapping_add(header.p_vaddr);
            let end = start.wrapping_add(header.p_memsz);
            START.store(usize::try_from(start).unwrap_or(0), Ordering::Relaxed);
            END.store(usize::try_from(end).unwrap_or(0), Ordering::Relaxed);
        }
    }
    0
}

/// Was this called from there?
#[inline]
pub(crate) fn has(return_address: usize) -> bool {
    if !IS_FOUND.load(Ordering::Relaxed) {
        find();
    }
    (START.load(Ordering::Relaxed)..END.load(Ordering::Relaxed)).contains(&return_address)
}
