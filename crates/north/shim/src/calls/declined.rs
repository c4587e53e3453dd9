//! Calls that older kernels lack. Programs work without these calls: on a recorded socket the calls fail as on an
//! older kernel, and the program uses other calls.

use libc::{c_int, c_uint, c_void, ssize_t};

use super::failed;
use crate::{
    descriptors::{Kind, kind_of},
    errno::{answer, answer_int},
    sys::sys,
    wrap,
};

fn is_recorded(fd: c_int) -> bool {
    wrap::is_wrapped()
        && matches!(
            kind_of(fd),
            Kind::Connection | Kind::Outgoing | Kind::Datagrams
        )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn splice(
    from: c_int,
    from_offset: *mut c_void,
    to: c_int,
    to_offset: *mut c_void,
    length: usize,
    flags: c_uint,
) -> ssize_t {
    if is_recorded(from) || is_recorded(to) {
        return answer(failed(libc::EINVAL));
    }
    // SAFETY: as the program has called us.
    answer(unsafe { sys!(SYS_splice, from, from_offset, to, to_offset, length, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut c_void,
    count: c_uint,
    flags: c_int,
    timeout: *mut c_void,
) -> c_int {
    if is_recorded(fd) {
        return answer_int(failed(libc::ENOSYS));
    }
    // SAFETY: as the program has called us.
    answer_int(unsafe { sys!(SYS_recvmmsg, fd, messages, count, flags, timeout) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut c_void,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if is_recorded(fd) {
        return answer_int(failed(libc::ENOSYS));
    }
    // SAFETY: as the program has called us.
    answer_int(unsafe { sys!(SYS_sendmmsg, fd, messages, count, flags) })
}
