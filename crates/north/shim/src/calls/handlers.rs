//! Handlers of signals.

use core::mem::MaybeUninit;

use libc::{SA_RESTART, SIG_ERR, c_int, sigaction, sighandler_t};

use crate::{
    real::real,
    signals::{is_ours, last_wanted, wanted},
    wrap::with,
};

/// # Safety
/// As `sigaction(2)`.
unsafe fn act(signal: c_int, action: *const sigaction, before: *mut sigaction) -> c_int {
    let last = last_wanted(signal);
    let ours = with(|_| {
        // SAFETY: by the caller.
        unsafe { action.as_ref() }.and_then(|action| wanted(signal, action))
    });
    let ours = ours.flatten();
    let given = ours.as_ref().map_or(action, |ours| &raw const *ours);
    let outcome = real!(sigaction(signal => c_int, given => *const sigaction, before => *mut sigaction) -> c_int);
    // SAFETY: by the caller.
    if let Some(before) = unsafe { before.as_mut() }.filter(|before| is_ours(before)) {
        *before = last.unwrap_or(*before);
    }
    outcome
}

#[unsafe(export_name = "sigaction")]
unsafe extern "C" fn sigaction_(
    signal: c_int,
    action: *const sigaction,
    before: *mut sigaction,
) -> c_int {
    // SAFETY: as the program has called us.
    unsafe { act(signal, action, before) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    let mut action = MaybeUninit::<sigaction>::zeroed();
    let mut before = MaybeUninit::<sigaction>::zeroed();
    // SAFETY: all zeros is an action, and both are on our stack.
    unsafe {
        let action = action.assume_init_mut();
        action.sa_sigaction = handler;
        action.sa_flags = SA_RESTART;
        if act(signal, action, before.as_mut_ptr()) < 0 {
            return SIG_ERR;
        }
        before.assume_init().sa_sigaction
    }
}
