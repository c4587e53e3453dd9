//! Allocators read clocks, to give memory back now and then. How often is their own affair, and no more part of
//! what the program computes than addresses are: these calls are neither recorded nor replayed.

use core::{
    ffi::{CStr, c_int, c_void},
    sync::atomic::{AtomicUsize, Ordering},
};

use libc::{PF_X, PT_LOAD, dl_phdr_info};

/// How their libraries are called.
const NAMES: [&[u8]; 3] = [b"libjemalloc", b"libtcmalloc", b"libmimalloc"];

/// The code of the one that the program uses.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// Find it.
pub(crate) fn find() {
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
    (START.load(Ordering::Relaxed)..END.load(Ordering::Relaxed)).contains(&return_address)
}
