//! Files mapped for shared writing. The content of such memory differs in each incarnation, and a shadow replay must
//! not change the file.

use libc::{MAP_ANONYMOUS, O_ACCMODE, O_RDWR, c_int};
use north_abi::layout::Failure;

use crate::{
    descriptors::{Kind, kind_of},
    shared_state_guard::refuse_shadow_replay,
    sys::sys,
};

/// The program is about to map this file, shared.
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
