//! Memory that is a file's, which a program shares with others: it is as it is in each life. A rehearsal may not have
//! it.

use libc::{MAP_ANONYMOUS, O_ACCMODE, O_RDWR, c_int};
use north_abi::layout::Failure;

use crate::{
    descriptors::{Kind, kind_of},
    shared_state_guard::refuse_shadow_replay,
    sys::sys,
};

/// The program is about to have this in its memory, shared with others.
pub(super) fn check_mapping(flags: c_int, fd: c_int) {
    if flags & MAP_ANONYMOUS != 0 || kind_of(fd) != Kind::File {
        return;
    }
    // SAFETY: no memory is involved.
    let opened = unsafe { sys!(SYS_fcntl, fd, libc::F_GETFL) };
    if opened & i64::from(O_ACCMODE) == i64::from(O_RDWR) {
        refuse_shadow_replay(Failure::SharedMemory);
    }
}
