//! A watcher that is killed cannot end what it has begun: a process of its own does, which is told what nobody has asked for yet.

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

/// What it is called: who ends all that is called as the watcher does not end it.
const NAME: &std::ffi::CStr = c"make-guard";
/// What it is told: of whose mounts, and whether nobody has asked for them yet.
const WORDS: usize = 9;
/// How often it is looked for who is left.
const PACE: Duration = Duration::from_millis(10);
const LOOKS: usize = 500;

static GUARD: OnceLock<File> = OnceLock::new();

/// Begins it. This process has one thread yet.
///
/// # Errors
/// The kernel's.
pub fn begin() -> io::Result<()> {
    let (from, to) = pipe_with(PipeFlags::CLOEXEC)?;
    // SAFETY: this process has one thread, so that the copy may do all that it may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(to);
            guard(from);
            // SAFETY: nothing of the watcher's is to be done at its end.
            unsafe { libc::_exit(0) }
        }
        _ => {
            // It is begun once.
            let _ = GUARD.set(to.into());
            Ok(())
        }
    }
}

/// They are concealed from now on, and nobody has asked for them.
pub(crate) fn is_unasked(members: Members) {
    tell(1, members);
}

/// Somebody has, or none is left.
pub(crate) fn is_asked_for(members: Members) {
    tell(0, members);
}

fn tell(is_unasked: u8, members: Members) {
    if let Some(mut guard) = GUARD.get() {
        let mut words = [is_unasked; WORDS];
        words[1..].copy_from_slice(&members.number().to_ne_bytes());
        // So few bytes are written as a whole. If it is gone, they stay as they are.
        let _ = guard.write_all(&words);
    }
}

/// Until the watcher is gone.
fn guard(from: OwnedFd) {
    leave(&from);
    let mut unasked = BTreeSet::new();
    let (mut from, mut words) = (File::from(from), [0; WORDS]);
    while from.read_exact(&mut words).is_ok() {
        let [is_unasked, number @ ..] = words;
        let number = u64::from_ne_bytes(number);
        match is_unasked {
            0 => unasked.remove(&number),
            _ => unasked.insert(number),
        };
    }
    for _ in 0..LOOKS {
        if unasked.iter().map(|number| killed(*number)).sum::<usize>() == 0 {
            return;
        }
        thread::sleep(PACE);
    }
}

/// It has nothing to do with who began the watcher: no terminal, no streams, no signals.
fn leave(from: &OwnedFd) {
    let _ = setsid();
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        // SAFETY: what is ignored needs nothing of this process.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // SAFETY: the name ends with a zero.
    unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()) };
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        for stream in 0..3 {
            // SAFETY: numbers are all that it takes.
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
            // SAFETY: nothing of this copy uses it from here on.
            unsafe { libc::close(number) };
        }
    }
    // Its directory may be on a file system that somebody wants to unmount.
    let _ = std::env::set_current_dir("/");
}

/// Kills those with these mounts. How many: another one's mounts may have the number by now, in which nothing is concealed.
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
