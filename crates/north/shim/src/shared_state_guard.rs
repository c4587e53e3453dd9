//! Guard of shared state in a shadow replay ([`crate::snapshot_point`]). Files and sockets of the server are shared
//! with its shadow replay. A shadow replay ends before it would change shared state, and makes no image.

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

/// Role of this process.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Role {
    /// A process of the service, or an unwrapped process.
    Service = 0,
    ShadowReplay = 1,
    /// Stopped for an image, before a role is given.
    Paused = 2,
}

static ROLE: AtomicU32 = AtomicU32::new(Role::Service as u32);

/// Changes the role.
pub(crate) fn set_role(role: Role) {
    ROLE.store(role as u32, Ordering::Release);
}

pub(crate) fn is_shadow_replay() -> bool {
    ROLE.load(Ordering::Acquire) == Role::ShadowReplay as u32
}

/// Whether the process has stopped for an image.
pub(crate) fn is_paused() -> bool {
    ROLE.load(Ordering::Acquire) == Role::Paused as u32
}

/// Refuses a shadow replay. A helper thread of a stopped process waits.
#[inline]
pub(crate) fn refuse_shadow_replay(failure: Failure) {
    while is_paused() {
        snapshot_point::sleep();
    }
    if is_shadow_replay() {
        refuse(failure);
    }
}

/// As [`refuse_shadow_replay`], for calls that are recorded in the first thread only.
#[inline]
pub(crate) fn refuse_helper_in_shadow_replay() {
    if ROLE.load(Ordering::Relaxed) != Role::Service as u32 && wrap::is_helper() {
        refuse_shadow_replay(Failure::HelperChanges);
    }
}

/// Refuses a shadow replay that opens a FIFO.
pub(crate) fn refuse_fifo_in_shadow_replay(directory: c_int, path: &CStr) {
    if ROLE.load(Ordering::Relaxed) == Role::Service as u32 {
        return;
    }
    let mut about = core::mem::MaybeUninit::<libc::stat>::uninit();
    let to = about.as_mut_ptr();
    // SAFETY: a string, and memory on our stack that is read only after success.
    let is_fifo = unsafe {
        sys!(SYS_newfstatat, directory, path.as_ptr(), to, 0) == 0
            && about.assume_init().st_mode & libc::S_IFMT == libc::S_IFIFO
    };
    if is_fifo {
        refuse_shadow_replay(Failure::Fifo);
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
