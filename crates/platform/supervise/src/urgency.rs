//! Going before others who wait for a processor.
//!
//! What a server's answers were must be on its way to the logger before the host dies that a client has
//! them from, and a lease must be asked for in time, also where the server keeps all processors busy.

use std::io;

/// The lowest of the real-time priorities: before every ordinary thread, behind whatever the
/// administrator has made real-time.
const LOWEST_REALTIME_PRIORITY: libc::c_int = 1;

/// Make the calling thread go before ordinary ones. Threads and processes that it begins do not inherit
/// that: a server is not to know of it.
///
/// # Errors
/// We may not (CAP_SYS_NICE; some containers).
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
        // In a thread of its own: other tests are not urgent.
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
