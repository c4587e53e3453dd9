//! Input of the user for a command: none before the commit, then as much as the command asks for.
//!
//! More input would be missing for a later reader of the same place, such as a loop of a shell.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd, AsRawFd as _},
        unix::fs::FileExt as _,
    },
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nix::unistd::{getpid, getsid};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{fstat, stat},
    process::Pid,
};

/// Most input that is passed on at a time.
const INPUT_CHUNK_BYTES: usize = 64 * 1024;
/// The end-of-transmission character of a terminal.
const END_OF_TRANSMISSION: &[u8] = &[4];
/// Input for a command that waits for any input: a line, in most cases.
const LINE_BYTES: usize = 4096;
/// Higher descriptors of a poll or select are ignored.
const DESCRIPTOR_LIMIT: u64 = 1024;

/// Gives up the terminal: a background process that reads from its own terminal would be stopped. `^C` goes to a
/// process group, whatever its terminal, and still arrives.
pub fn leave_terminal() {
    let terminal = File::options().read(true).write(true).open("/dev/tty");
    // A session leader would take the terminal from all other processes.
    // `rustix` refuses 0, the number of a session of an outer namespace.
    let is_leader = getsid(None).is_ok_and(|session| session == getpid());
    if let Ok(terminal) = terminal.as_ref()
        && !is_leader
    {
        // SAFETY: the call takes no argument, and the descriptor is open.
        unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCNOTTY) };
    }
}

/// The other end of a command's standard input.
#[derive(Debug, Clone)]
pub struct Input(Arc<Mutex<End>>);

#[derive(Debug)]
enum End {
    /// The command has no input.
    Nothing,
    /// Device and inode of the command's file, and whether that file is a terminal or a pipe.
    Open {
        to: File,
        is: (u64, u64),
        is_terminal: bool,
    },
}

impl Input {
    /// The input of a command that does not read.
    #[must_use]
    pub fn none() -> Self {
        Self(Arc::new(Mutex::new(End::Nothing)))
    }

    /// Bytes written to `to` arrive at `from`, which the command reads.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub fn new(to: File, from: impl AsFd, is_terminal: bool) -> io::Result<Self> {
        let is = fstat(from)?;
        let is = (is.st_dev, is.st_ino);
        let end = End::Open {
            to,
            is,
            is_terminal,
        };
        Ok(Self(Arc::new(Mutex::new(end))))
    }

    /// Closes the input.
    pub fn close(&self) {
        *self.end() = End::Nothing;
    }

    fn end(&self) -> MutexGuard<'_, End> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes input of the user on if a process waits for input. Returns whether bytes were passed on.
    ///
    /// # Errors
    /// The state of the readers is unknown.
    pub fn pass_on(&self, from: &mut File, to: impl Fn() -> Vec<Pid>) -> io::Result<bool> {
        let mut end = self.end();
        let End::Open {
            to: open,
            is,
            is_terminal,
        } = &mut *end
        else {
            return Ok(false);
        };
        // The list of processes, and of their calls, takes long to read.
        if !is_readable(from) {
            return Ok(false);
        }
        let wanted = to().iter().find_map(|process| waits_for(*process, *is));
        let Some(wanted) = wanted else {
            return Ok(false);
        };
        let mut piece = vec![0; wanted.min(INPUT_CHUNK_BYTES)];
        let length = from.read(&mut piece)?;
        match (length, *is_terminal) {
            (0, true) => open.write_all(END_OF_TRANSMISSION)?,
            (0, false) => *end = End::Nothing,
            (length, _) => open.write_all(&piece[..length])?,
        }
        Ok(true)
    }
}

/// Number of bytes of that file for which a thread of the process waits.
fn waits_for(process: Pid, file: (u64, u64)) -> Option<usize> {
    let process = process.as_raw_pid();
    let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    threads.flatten().find_map(|thread| {
        let call = fs::read_to_string(thread.path().join("syscall")).ok()?;
        let is_it = |descriptor: u64| {
            let is = stat(format!("/proc/{process}/fd/{descriptor}"));
            is.is_ok_and(|is| (is.st_dev, is.st_ino) == file)
        };
        asks_for(process, &call, is_it)
    })
}

/// Number of bytes of a file for which a call waits. The call consists of number, arguments, stack and instruction;
/// or the thread runs.
fn asks_for(process: i32, call: &str, is_it: impl Fn(u64) -> bool) -> Option<usize> {
    let mut words = call.split_ascii_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let mut argument = || {
        let word = words.next()?;
        u64::from_str_radix(word.trim_start_matches("0x"), 16).ok()
    };
    let arguments = [argument()?, argument()?, argument()?];
    let [first, second, length] = arguments;
    let is_asked = match number {
        libc::SYS_read => {
            return is_it(first).then(|| usize::try_from(length).unwrap_or(INPUT_CHUNK_BYTES));
        }
        libc::SYS_ppoll => polls(process, first, second, is_it),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => polls(process, first, second, is_it),
        libc::SYS_pselect6 => selects(process, first, second, is_it),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select => selects(process, first, second, is_it),
        libc::SYS_epoll_pwait => epolls(process, first, is_it),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => epolls(process, first, is_it),
        _ => None,
    };
    // A polling process then reads a line, or all available bytes.
    is_asked.filter(|asks| *asks).map(|_| LINE_BYTES)
}

fn polls(process: i32, at: u64, count: u64, is_it: impl Fn(u64) -> bool) -> Option<bool> {
    let memory = File::open(format!("/proc/{process}/mem")).ok()?;
    let mut entries =
        vec![0; usize::try_from(count.min(DESCRIPTOR_LIMIT)).ok()? * size_of::<libc::pollfd>()];
    memory.read_exact_at(&mut entries, at).ok()?;
    let mut entries = entries.chunks_exact(size_of::<libc::pollfd>());
    Some(entries.any(|entry| {
        let number = |from: usize| u16::from_ne_bytes([entry[from], entry[from + 1]]);
        let descriptor = u32::from(number(0)) | u32::from(number(2)) << 16;
        let events = libc::c_short::from_ne_bytes(number(4).to_ne_bytes());
        events & libc::POLLIN != 0 && is_it(descriptor.into())
    }))
}

fn selects(process: i32, count: u64, at: u64, is_it: impl Fn(u64) -> bool) -> Option<bool> {
    let memory = File::open(format!("/proc/{process}/mem")).ok()?;
    let mut set = vec![0; usize::try_from(count.min(DESCRIPTOR_LIMIT).div_ceil(8)).ok()?];
    memory.read_exact_at(&mut set, at).ok()?;
    let is_in = |descriptor: &u64| {
        let (byte, bit) = (descriptor / 8, descriptor % 8);
        let byte = usize::try_from(byte).ok().and_then(|byte| set.get(byte));
        byte.is_some_and(|byte| byte & 1 << bit != 0)
    };
    Some((0..count.min(DESCRIPTOR_LIMIT)).filter(is_in).any(is_it))
}

fn epolls(process: i32, instance: u64, is_it: impl Fn(u64) -> bool) -> Option<bool> {
    let about = fs::read_to_string(format!("/proc/{process}/fdinfo/{instance}")).ok()?;
    let mut watched = about.lines().filter_map(|line| {
        let line = line.strip_prefix("tfd:")?;
        line.split_ascii_whitespace().next()?.parse().ok()
    });
    Some(watched.any(is_it))
}

fn is_readable(file: &File) -> bool {
    let polled = &mut [PollFd::new(file, PollFlags::IN)];
    poll(polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use std::{
        process::{Child, Command, Stdio},
        thread,
        time::{Duration, Instant},
    };

    use rustix::pipe::pipe;

    use super::*;

    fn pass_on_until_it_ends(input: &Input, from: &mut File, child: &mut Child) {
        let until = Instant::now() + Duration::from_secs(30);
        let process = Pid::from_raw(child.id().cast_signed()).expect("a process");
        while child.try_wait().expect("a child").is_none() {
            input
                .pass_on(from, || vec![process])
                .expect("it is passed on");
            assert!(Instant::now() < until, "it reads for ever");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn input_taken_equals_input_requested() {
        let (from, to) = pipe().expect("a pipe");
        let input = Input::new(to.into(), &from, false).expect("an end");
        let (mut user, said) = pipe()
            .map(|(a, b)| (File::from(a), File::from(b)))
            .expect("another");
        (&said).write_all(b"abcdefgh").expect("room");
        let mut dd = Command::new("dd");
        dd.args(["bs=3", "count=2"])
            .stdin(from)
            .stdout(Stdio::piped());
        let mut dd = dd.stderr(Stdio::null()).spawn().expect("dd");
        drop(Command::new("true"));
        pass_on_until_it_ends(&input, &mut user, &mut dd);
        let read = dd.wait_with_output().expect("it has ended").stdout;
        assert_eq!(read, b"abcdef");
        let mut rest = [0; 8];
        assert_eq!(user.read(&mut rest).expect("the rest"), 2);
        assert_eq!(&rest[..2], b"gh");
    }

    #[test]
    fn polling_command_gets_a_line() {
        for wait in [
            "select.select([0], [], [])",
            "select.poll().poll()",
            "e.poll()",
        ] {
            let script = format!(
                "import select, os; e = select.epoll(); e.register(0, 1); p = select.poll(); p.register(0, 1); {}; print(os.read(0, 100))",
                wait.replace("select.poll()", "p")
            );
            let (from, to) = pipe().expect("a pipe");
            let input = Input::new(to.into(), &from, false).expect("an end");
            let (mut user, said) = pipe()
                .map(|(a, b)| (File::from(a), File::from(b)))
                .expect("another");
            (&said).write_all(b"a line\n").expect("room");
            let mut python = Command::new("python3");
            python
                .args(["-c", &script])
                .stdin(from)
                .stdout(Stdio::piped());
            let mut python = python.spawn().expect("python3");
            pass_on_until_it_ends(&input, &mut user, &mut python);
            let said = python.wait_with_output().expect("it has ended").stdout;
            assert_eq!(said, b"b'a line\\n'\n", "{wait}");
        }
    }

    #[test]
    fn end_of_input_is_passed_on() {
        let (from, to) = pipe().expect("a pipe");
        rustix::io::ioctl_fioclex(&to).expect("its own");
        let input = Input::new(to.into(), &from, false).expect("an end");
        let mut user = File::open("/dev/null").expect("nothing");
        let mut cat = Command::new("cat").stdin(from).spawn().expect("cat");
        pass_on_until_it_ends(&input, &mut user, &mut cat);
    }
}
