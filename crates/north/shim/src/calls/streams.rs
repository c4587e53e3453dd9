//! `fopen`: the C library reads and writes its streams by internal calls, which the shim cannot replace. The program
//! therefore gets streams that call the shim (`fopencookie(3)`).

use core::{ffi::CStr, ptr};

use libc::{
    FILE, O_APPEND, O_CLOEXEC, O_CREAT, O_EXCL, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY, c_char, c_int,
    c_void, off_t, ssize_t,
};

use super::{kind, looking::lseek, reading::read, writing::write};
use crate::{descriptors::Kind, real::real, wrap};

/// Functions that the C library calls instead.
#[repr(C)]
struct CookieFunctions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(
        cookie: *mut c_void,
        mode: *const c_char,
        functions: CookieFunctions,
    ) -> *mut FILE;
}

/// Offset of `_fileno` in `struct _IO_FILE`, bytes: set for streams of `fopencookie`, because `fileno` must answer.
const FILENO_OFFSET: usize = 112;

fn fd_of(cookie: *mut c_void) -> c_int {
    c_int::try_from(cookie.addr()).unwrap_or(-1)
}

unsafe extern "C" fn read_cookie(
    cookie: *mut c_void,
    buffer: *mut c_char,
    length: usize,
) -> ssize_t {
    // SAFETY: the C library's own buffer.
    unsafe { read(fd_of(cookie), buffer.cast(), length) }
}

unsafe extern "C" fn write_cookie(
    cookie: *mut c_void,
    buffer: *const c_char,
    length: usize,
) -> ssize_t {
    let mut done = 0;
    while done < length {
        // SAFETY: the C library's own buffer.
        let written = unsafe { write(fd_of(cookie), buffer.add(done).cast(), length - done) };
        match usize::try_from(written) {
            Ok(written) if written > 0 => done += written,
            _ => break,
        }
    }
    done as ssize_t // fewer than requested: an error
}

unsafe extern "C" fn seek_cookie(cookie: *mut c_void, place: *mut off_t, whence: c_int) -> c_int {
    // SAFETY: the C library's own.
    unsafe {
        let now = lseek(fd_of(cookie), *place, whence);
        *place = now;
        if now < 0 { -1 } else { 0 }
    }
}

unsafe extern "C" fn close_cookie(cookie: *mut c_void) -> c_int {
    // SAFETY: no memory is involved.
    unsafe { super::files::close(fd_of(cookie)) }
}

/// Flags of `open` for this mode; `None`: the C library must judge the mode.
fn flags_of(mode: &[u8]) -> Option<c_int> {
    let (first, rest) = mode.split_first()?;
    let mut flags = match first {
        b'r' => O_RDONLY,
        b'w' => O_WRONLY | O_CREAT | O_TRUNC,
        b'a' => O_WRONLY | O_CREAT | O_APPEND,
        _ => return None,
    };
    for letter in rest {
        match letter {
            b'+' => flags = flags & !libc::O_ACCMODE | O_RDWR,
            b'x' => flags |= O_EXCL,
            b'e' => flags |= O_CLOEXEC,
            b',' => return None,
            _ => {}
        }
    }
    Some(flags)
}

/// # Safety
/// As `fopen(3)`.
unsafe fn flags(mode: *const c_char) -> Option<c_int> {
    // SAFETY: by the caller.
    flags_of(unsafe { CStr::from_ptr(mode) }.to_bytes()).filter(|_| wrap::is_wrapped())
}

/// # Safety
/// The descriptor is open, and the mode a string.
unsafe fn stream(fd: c_int, mode: *const c_char) -> *mut FILE {
    let Ok(number) = usize::try_from(fd) else {
        return ptr::null_mut();
    };
    let functions = CookieFunctions {
        read: read_cookie,
        write: write_cookie,
        seek: seek_cookie,
        close: close_cookie,
    };
    // SAFETY: a number for a cookie, and functions that take the number; the stream is as large as all streams of the
    // C library.
    unsafe {
        let stream = fopencookie(ptr::without_provenance_mut(number), mode, functions);
        if !stream.is_null() {
            stream.byte_add(FILENO_OFFSET).cast::<c_int>().write(fd);
        }
        stream
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: as the program has called us.
    let Some(flags) = (unsafe { flags(mode) }) else {
        return real!(fopen(path => *const c_char, mode => *const c_char) -> *mut FILE);
    };
    // SAFETY: as the program has called us.
    let stream = unsafe { stream(super::opening::open(path, flags, 0o666), mode) };
    if flags & O_APPEND != 0 && !stream.is_null() {
        // SAFETY: a new stream. The C library starts at the end, too.
        unsafe { libc::fseek(stream, 0, libc::SEEK_END) };
    }
    stream
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: as the program has called us.
    unsafe { fopen(path, mode) }
}

/// The C library cannot reopen a stream with a cookie: the stream stays, and its descriptor becomes another file, as
/// in a log rotation. The direction, reading or writing, must be the same.
#[unsafe(no_mangle)]
unsafe extern "C" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    // SAFETY: as the program has called us.
    let fd = unsafe { libc::fileno(stream) };
    let is_file = fd >= 0 && kind(fd, "freopen") == Kind::File && !path.is_null();
    // SAFETY: as the program has called us.
    let Some(flags) = (unsafe { flags(mode) }).filter(|_| is_file) else {
        return real!(freopen(path => *const c_char, mode => *const c_char, stream => *mut FILE) -> *mut FILE);
    };
    // SAFETY: as the program has called us.
    unsafe {
        libc::fflush(stream);
        let opened = super::opening::open(path, flags, 0o666);
        if opened < 0 {
            return ptr::null_mut();
        }
        super::files::dup3(opened, fd, flags & O_CLOEXEC);
        super::files::close(opened);
    }
    stream
}

#[unsafe(no_mangle)]
unsafe extern "C" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    // SAFETY: as the program has called us.
    unsafe { freopen(path, mode, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: as the program has called us.
    let flags = unsafe { flags(mode) }.filter(|_| {
        let kind = kind(fd, "fdopen");
        kind == Kind::File || kind.is_stream()
    });
    let Some(flags) = flags else {
        return real!(fdopen(fd => c_int, mode => *const c_char) -> *mut FILE);
    };
    if flags & O_APPEND != 0 {
        // As the C library does.
        // SAFETY: no memory is involved.
        unsafe {
            let now = super::files::fcntl(fd, libc::F_GETFL, ptr::null_mut());
            let more = ptr::without_provenance_mut((now | O_APPEND) as usize);
            super::files::fcntl(fd, libc::F_SETFL, more);
        }
    }
    // SAFETY: as the program has called us.
    unsafe { stream(fd, mode) }
}
