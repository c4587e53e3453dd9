//! The C library's own functions, where a system call would not be the same.

use core::{
    ffi::{CStr, c_void},
    mem,
    sync::atomic::{AtomicPtr, Ordering},
};

/// A function of the C library, found once.
pub(crate) struct Real {
    name: &'static CStr,
    /// The version of the symbol; `None`: the symbol has a single version.
    version: Option<&'static CStr>,
    found: AtomicPtr<c_void>,
}

impl Real {
    pub(crate) const fn new(name: &'static CStr, version: Option<&'static CStr>) -> Self {
        Self {
            name,
            version,
            found: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// The address as a function.
    ///
    /// # Safety
    /// `F` is the function's pointer type.
    #[inline]
    pub(crate) unsafe fn get<F: Copy>(&self) -> F {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: both end with a zero byte.
            found = unsafe {
                match self.version {
                    Some(version) => {
                        libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), version.as_ptr())
                    }
                    None => libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()),
                }
            };
            if found.is_null() {
                crate::messages::say(&[b"the C library has no ", self.name.to_bytes()]);
                crate::wrap::exit();
            }
            self.found.store(found, Ordering::Relaxed);
        }
        // SAFETY: by the caller.
        unsafe { mem::transmute_copy(&found) }
    }
}

/// Whether a library after the shim defines this name.
pub(crate) fn is_there(name: &CStr) -> bool {
    // SAFETY: a string.
    !unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }.is_null()
}

/// `real!(NAME: fn(c_int) -> c_int)(argument)`: call the C library's own.
macro_rules! real {
    ($name:ident ( $($argument:expr => $kind:ty),* $(,)? ) -> $result:ty) => {
        $crate::real::real_of!(None, $name($($argument => $kind),*) -> $result)
    };
}
pub(crate) use real;

/// As `real!`, for a version of the symbol: older programs use the other versions.
macro_rules! real_of {
    ($version:expr, $name:ident ( $($argument:expr => $kind:ty),* $(,)? ) -> $result:ty) => {{
        static REAL: $crate::real::Real = $crate::real::Real::new(
            // SAFETY: the string ends with its only zero byte.
            unsafe {
                core::ffi::CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes())
            },
            $version,
        );
        // SAFETY: the types are from the function's declaration.
        let function: unsafe extern "C" fn($($kind),*) -> $result = unsafe { REAL.get() };
        // SAFETY: the program has called us with these arguments.
        unsafe { function($($argument),*) }
    }};
}
pub(crate) use real_of;
