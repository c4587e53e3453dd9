//! A rehearsal ([`crate::snapshot_point`]) is beside the server whose record it replays. What that one shares with others is
//! shared with the rehearsal, too: before it touches anything of that it ends, and there is no image.

use core::{
    ffi::CStr,
    sync::atomic::{AtomicU32, Ordering},
};

use libc::c_int;
use north_abi::layout::Failure;

use crate::{
    messages::say,
    snapshot_point,
    sys::sys,
    wrap::{self, exit},
};

/// What this process is.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Role {
    /// The service, or nothing of ours.
    Service = 0,
    Rehearsal = 1,
    /// It has stopped for an image, and does not know yet what it will be.
    Paused = 2,
}

static ROLE: AtomicU32 = AtomicU32::new(Role::Service as u32);

/// From now on it is this.
pub(crate) fn set_role(role: Role) {
    ROLE.store(role as u32, Ordering::Release);
}

pub(crate) fn is_rehearsal() -> bool {
    ROLE.load(Ordering::Acquire) == Role::Rehearsal as u32
}

/// It has stopped for an image.
pub(crate) fn is_paused() -> bool {
    ROLE.load(Ordering::Acquire) == Role::Paused as u32
}

/// What follows is not for a rehearsal. A helper thread of one that has stopped waits.
#[inline]
pub(crate) fn not_in_a_rehearsal(failure: Failure) {
    while is_paused() {
        snapshot_point::sleep();
    }
    if is_rehearsal() {
        refuse(failure);
    }
}

/// The same of what the record tells the first thread, but not others.
#[inline]
pub(crate) fn no_helper_in_a_rehearsal() {
    if ROLE.load(Ordering::Relaxed) != Role::Service as u32 && wrap::is_helper() {
        not_in_a_rehearsal(Failure::HelperChanges);
    }
}

/// A FIFO is about to be opened, if this is one.
pub(crate) fn no_fifo_in_a_rehearsal(directory: c_int, path: &CStr) {
    if ROLE.load(Ordering::Relaxed) == Role::Service as u32 {
        return;
    }
    let mut about = core::mem::MaybeUninit::<libc::stat>::uninit();
    let to = about.as_mut_ptr();
    // SAFETY: a string, and room on our stack that is read if it was filled in.
    let is_fifo = unsafe {
        sys!(SYS_newfstatat, directory, path.as_ptr(), to, 0) == 0
            && about.assume_init().st_mode & libc::S_IFMT == libc::S_IFIFO
    };
    if is_fifo {
        not_in_a_rehearsal(Failure::Fifo);
    }
}

#[cold]
fn refuse(failure: Failure) -> ! {
    if let Some(page) = wrap::page() {
        page.failure.store(failure as u32, Ordering::Release);
    }
    say(&[b"a rehearsal would change files that the server shares"]);
    exit();
}
