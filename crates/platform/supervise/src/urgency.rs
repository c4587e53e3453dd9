//! Precedence over other threads that wait for a processor.
//!
//! A server's response must be on the way to the logger before the host dies, if the client may have the response. A
//! lease must be asked for in time. Both must also hold while the server keeps all processors busy.

use std::io;

/// The lowest real-time priority: before every ordinary thread, behind all threads that the administrator has made
/// real-time.
const LOWEST_REALTIME_PRIORITY: libc::c_int = 1;

/// Gives the calling thread precedence over ordinary threads. New threads and processes do not inherit the priority: a
/// server must not notice the priority.
///
/// # Errors
/// The permission is missing (CAP_SYS_NICE; some containers).
pub fn become_urgent() -> io::Result<()> {
    // SAFETY: all fields of the structure may be zero.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = LOWEST_REALTIME_PRIORITY;
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is the calling thread; the structure lives as long as the call.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_of_urgent_process_is_not_urgent() {
        let policy = || {
            // SAFETY: 0 is the calling thread.
            unsafe { libc::sched_getscheduler(0) }
        };
        // A separate thread, because other tests must not be urgent.
        let urgent = std::thread::spawn(move || {
            if let Err(error) = become_urgent() {
                assert_eq!(error.raw_os_error(), Some(libc::EPERM));
                return;
            }
            assert_eq!(policy() & libc::SCHED_RR, libc::SCHED_RR);
            let next = std::thread::spawn(policy).join().unwrap();
            assert_eq!(next, libc::SCHED_OTHER);
        });
        urgent.join().unwrap();
    }
}
