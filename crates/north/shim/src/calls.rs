//! The calls that the shim replaces, under the C library's names.
//!
//! Each call asks for the wrap ([`crate::wrap::with`]) and continues without recording if there is none: in a helper
//! thread, in a process that is not wrapped, or in a call from inside the shim.

pub(crate) mod accepting;
mod binding;
pub(crate) mod clocks;
mod connecting;
mod contents;
mod datagrams;
mod declined;
pub(crate) mod effects;
mod files;
mod handlers;
mod joining;
pub(crate) mod kept;
mod locks;
mod looking;
pub(crate) mod opening;
pub(crate) mod other_threads;
mod passing;
mod processes;
mod randomness;
pub(crate) mod readiness;
pub(crate) mod reading;
pub(crate) mod relistening;
mod sending_files;
mod sharing;
mod sleeping;
mod statistics;
mod streams;
mod syscalls;
mod threads;
pub(crate) mod writing;

use core::sync::atomic::Ordering;

use libc::c_int;
use north_abi::layout::Failure;

use crate::{
    descriptors::{Kind, kind_of},
    messages::{Decimal, say},
    sys::{Outcome, sys},
    wrap,
};

/// Kind of the descriptor for the calling thread. A helper thread that uses a client's connection ends the service:
/// no replay could repeat such a use.
fn kind(fd: c_int, call: &'static str) -> Kind {
    let kind = kind_of(fd);
    match kind {
        Kind::Connection if wrap::is_helper() => {
            other_threads::refuse_thread(call, b" on a client's connection");
        }
        Kind::Outgoing if wrap::is_helper_thread() => {
            other_threads::refuse_thread(call, b" on a connection to another server");
        }
        _ => kind,
    }
}

/// The server has made a call that cannot be replayed.
#[cold]
pub(crate) fn refuse(why: &[&[u8]]) -> ! {
    // SAFETY: no memory is involved.
    let thread = Decimal::new(unsafe { sys!(SYS_gettid) }.unsigned_abs());
    let mut parts: [&[u8]; 7] = [b"thread ", thread.as_bytes(), b": ", b"", b"", b"", b""];
    for (part, why) in parts[3..].iter_mut().zip(why) {
        *part = why;
    }
    say(&parts);
    if let Some(page) = wrap::page() {
        page.reason.say(why);
        page.failure
            .store(Failure::NotSupported as u32, Ordering::Release);
    }
    wrap::exit();
}

/// `-errno`, as a system call would return it.
const fn failed(errno: c_int) -> Outcome {
    -(errno as Outcome)
}
