//! `fopen` of files whose contents are not the program's own doing: the C library reads them by calls of its own.

use core::{ffi::CStr, ptr};

use libc::{FILE, O_CLOEXEC, O_RDONLY, c_char, c_int, c_void, ssize_t};

use super::files::is_input;
use crate::{real::real, wrap};

/// What the C library calls instead (`fopencookie(3)`).
#[repr(C)]
struct CookieFunctions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> ssize_t,
    write: *const c_void,
    seek: *const c_void,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(
        cookie: *mut c_void,
        mode: *const c_char,
        functions: CookieFunctions,
    ) -> *mut FILE;
}

fn fd_of(cookie: *mut c_void) -> c_int {
    c_int::try_from(cookie.addr()).unwrap_or(-1)
}

unsafe extern "C" fn read_cookie(
    cookie: *mut c_void,
    buffer: *mut c_char,
    length: usize,
) -> ssize_t {
    // SAFETY: the C library's own buffer.
    unsafe { super::reading::read(fd_of(cookie), buffer.cast(), length) }
}

unsafe extern "C" fn close_cookie(cookie: *mut c_void) -> c_int {
    // SAFETY: no memory is involved.
    unsafe { super::files::close(fd_of(cookie)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: as the program has called us.
    let is_ours = unsafe { is_input(path) && CStr::from_ptr(mode).to_bytes().starts_with(b"r") };
    if !is_ours || !wrap::is_wrapped() {
        return real!(fopen(path => *const c_char, mode => *const c_char) -> *mut FILE);
    }
    // SAFETY: as the program has called us.
    let fd = unsafe { super::files::open(path, O_RDONLY | O_CLOEXEC, 0) };
    let Ok(number) = usize::try_from(fd) else {
        return ptr::null_mut();
    };
    let functions = CookieFunctions {
        read: read_cookie,
        write: ptr::null(),
        seek: ptr::null(),
        close: close_cookie,
    };
    // SAFETY: a number for a cookie, and functions that take it.
    unsafe { fopencookie(ptr::without_provenance_mut(number), mode, functions) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: as the program has called us.
    unsafe { fopen(path, mode) }
}
