//! End of a process, and its processor time.

use std::{
    io,
    process::{Child, ExitStatus},
    time::Duration,
};

use std::os::unix::process::ExitStatusExt as _;

use crate::command::Status;

/// Waits for the end of a child. Returns the end, and the processor time of the child and of the children for which the
/// child has waited.
pub(crate) fn of(child: &Child) -> (Status, Duration) {
    let mut status = 0;
    // SAFETY: all fields of the structure may be zero.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    let process = child.id().cast_signed();
    loop {
        // SAFETY: a number and a structure that live as long as the call. No other thread waits for this child.
        let ended = unsafe { libc::wait4(process, &raw mut status, 0, &raw mut used) };
        if ended == process {
            break;
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return (Status::Signalled(0), Duration::ZERO);
        }
    }
    let status = ExitStatus::from_raw(status);
    let status = match (status.code(), status.signal()) {
        (Some(code), _) => Status::Exited(code),
        (None, signal) => Status::Signalled(signal.unwrap_or(0)),
    };
    (status, time(used.ru_utime) + time(used.ru_stime))
}

fn time(of: libc::timeval) -> Duration {
    let seconds = u64::try_from(of.tv_sec).unwrap_or(0);
    let microseconds = u64::try_from(of.tv_usec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(microseconds)
}
