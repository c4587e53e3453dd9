//! The guard: a process that ends unasked commands when the watcher is killed.
//!
//! A watcher that receives SIGKILL cannot end its commands. The watcher tells the guard, through a pipe, which mounts
//! belong to commands that no user has asked for. The end of the pipe is the watcher's death.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::fd::{AsRawFd as _, OwnedFd},
    path::PathBuf,
    sync::OnceLock,
    thread,
    time::Duration,
};

use conceal::members::Members;
use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::{Signal, kill_process, setsid},
};

/// Name of the process. `pkill outlive` must not end the guard.
const PROCESS_NAME: &std::ffi::CStr = c"make-guard";
/// Length of a message: a flag (1: unasked) and the number of a mount namespace.
const MESSAGE_BYTES: usize = 9;
/// Time between two looks for remaining processes.
const KILL_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Number of looks for remaining processes.
const KILL_POLL_LIMIT: usize = 500;

static GUARD: OnceLock<File> = OnceLock::new();

/// Forks the guard. The caller has a single thread.
///
/// # Errors
/// pipe(2) or fork(2) fails.
pub fn begin() -> io::Result<()> {
    let (from, to) = pipe_with(PipeFlags::CLOEXEC)?;
    // SAFETY: this process has a single thread, so the child may call any function.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(to);
            guard(from);
            // SAFETY: the child must not run the watcher's exit handlers.
            unsafe { libc::_exit(0) }
        }
        _ => {
            // The guard begins once.
            let _ = GUARD.set(to.into());
            Ok(())
        }
    }
}

/// The command of these mounts is concealed from now on, and unasked.
pub(crate) fn is_unasked(members: Members) {
    send(1, members);
}

/// A user has asked for the command, or the command has ended.
pub(crate) fn is_asked_for(members: Members) {
    send(0, members);
}

fn send(is_unasked: u8, members: Members) {
    if let Some(mut guard) = GUARD.get() {
        let mut words = [is_unasked; MESSAGE_BYTES];
        words[1..].copy_from_slice(&members.number().to_ne_bytes());
        // Up to PIPE_BUF bytes are written as a whole. A dead guard leaves commands as they are.
        let _ = guard.write_all(&words);
    }
}

/// Runs until the watcher is dead, then ends the unasked commands.
fn guard(from: OwnedFd) {
    leave(&from);
    let mut unasked = BTreeSet::new();
    let (mut from, mut words) = (File::from(from), [0; MESSAGE_BYTES]);
    while from.read_exact(&mut words).is_ok() {
        let [is_unasked, number @ ..] = words;
        let number = u64::from_ne_bytes(number);
        match is_unasked {
            0 => unasked.remove(&number),
            _ => unasked.insert(number),
        };
    }
    for _ in 0..KILL_POLL_LIMIT {
        if unasked.iter().map(|number| killed(*number)).sum::<usize>() == 0 {
            return;
        }
        thread::sleep(KILL_POLL_INTERVAL);
    }
}

/// Gives up the terminal, the streams and the signals of the watcher's user.
fn leave(from: &OwnedFd) {
    let _ = setsid();
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        // SAFETY: an ignored signal runs no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // SAFETY: the name ends with a zero.
    unsafe { libc::prctl(libc::PR_SET_NAME, PROCESS_NAME.as_ptr()) };
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        for stream in 0..3 {
            // SAFETY: dup2 takes numbers alone.
            unsafe { libc::dup2(null.as_raw_fd(), stream) };
        }
    }
    let all = fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let numbers: Vec<_> = numbers.collect();
    for number in numbers {
        if number > 2 && number != from.as_raw_fd() {
            // SAFETY: no code of this process uses the descriptor from here on.
            unsafe { libc::close(number) };
        }
    }
    // The directory may be on a file system that a user wants to unmount.
    let _ = std::env::set_current_dir("/");
}

/// Kills the processes of a mount namespace; returns the number. The kernel may have given the number to another
/// namespace by now: only a namespace with concealed mounts counts.
fn killed(number: u64) -> usize {
    let is_concealed = |process: &rustix::process::Pid| {
        let mounts = PathBuf::from(format!("/proc/{}/mountinfo", process.as_raw_pid()));
        fs::read_to_string(mounts).is_ok_and(|mounts| mounts.contains(" - fuse outlive "))
    };
    let all = Members::numbered(number).all();
    let all = all.into_iter().filter(is_concealed);
    all.filter(|process| kill_process(*process, Signal::KILL).is_ok())
        .count()
}
