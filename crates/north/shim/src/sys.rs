//! System calls without the C library.

use core::arch::asm;

/// Result of a system call, or `-errno`.
pub(crate) type Outcome = i64;

/// # Safety
/// As the system call.
#[inline]
pub(crate) unsafe fn raw(number: i64, arguments: [usize; 6]) -> Outcome {
    let [a, b, c, d, e, f] = arguments;
    let outcome;
    // SAFETY: the caller answers for the call; the kernel changes no register but these.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => outcome,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    outcome
}

/// A system call with unconverted arguments: numbers and pointers.
macro_rules! sys {
    ($name:ident $(, $argument:expr)* $(,)?) => {{
        let given = [$(($argument) as usize),*];
        let mut arguments = [0usize; 6];
        arguments[..given.len()].copy_from_slice(&given);
        $crate::sys::raw(::libc::$name, arguments)
    }};
}
pub(crate) use sys;

/// Bytes at an address of the program.
///
/// # Safety
/// The program vouches for the bytes, as to the kernel.
pub(crate) unsafe fn bytes<'a>(at: *const libc::c_void, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[]; // whatever `at` is
    }
    // SAFETY: by the caller.
    unsafe { core::slice::from_raw_parts(at.cast(), length) }
}

/// As [`bytes`], mutable.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn bytes_mut<'a>(at: *mut libc::c_void, length: usize) -> &'a mut [u8] {
    if length == 0 {
        return &mut [];
    }
    // SAFETY: by the caller.
    unsafe { core::slice::from_raw_parts_mut(at.cast(), length) }
}

/// The structure that a call fills in, as bytes; empty for a null pointer.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn structure<'a, T>(at: *mut T) -> &'a mut [u8] {
    let length = if at.is_null() { 0 } else { size_of::<T>() };
    // SAFETY: by the caller.
    unsafe { bytes_mut(at.cast(), length) }
}
