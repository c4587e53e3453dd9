//! The clock of allocators. Allocators read clocks in order to give memory back from time to time, and the address of
//! the next allocation depends on the memory given back. A program computes with addresses: prints, sorts and hashes
//! them. An allocator therefore reads the process's clock without putting the clock forward, and without a counted
//! reading: a replay shows the same time without a record.

use core::{
    ffi::{CStr, c_int, c_void},
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use libc::{PF_X, PT_LOAD, dl_phdr_info};

/// Names of allocator libraries.
const NAMES: [&[u8]; 3] = [b"libjemalloc", b"libtcmalloc", b"libmimalloc"];

/// Code of the program's allocator.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// The search for the allocator is over.
static IS_FOUND: AtomicBool = AtomicBool::new(false);

/// Monotonic time of the process at the last tick, nanoseconds; 0 before the first tick.
static TIME: AtomicU64 = AtomicU64::new(0);

/// Without recording allocators read the kernel's clocks.
pub(crate) fn leave_alone() {
    END.store(0, Ordering::Relaxed);
    IS_FOUND.store(true, Ordering::Relaxed);
}

/// The process's clock shows this, nanoseconds.
#[inline]
pub(crate) fn tell(monotonic: u64) {
    TIME.store(monotonic, Ordering::Relaxed);
}

/// Time that allocators read, nanoseconds; also in helper threads, because all threads share the memory.
pub(crate) fn time() -> u64 {
    TIME.load(Ordering::Relaxed)
}

/// An allocator may read its clock before the program has begun.
#[cold]
fn find() {
    IS_FOUND.store(true, Ordering::Relaxed);
    // SAFETY: our own function, with matching arguments.
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
    // SAFETY: the library has this number of headers.
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

/// Whether the caller with this return address is the allocator.
#[inline]
pub(crate) fn has(return_address: usize) -> bool {
    if !IS_FOUND.load(Ordering::Relaxed) {
        find();
    }
    (START.load(Ordering::Relaxed)..END.load(Ordering::Relaxed)).contains(&return_address)
}
