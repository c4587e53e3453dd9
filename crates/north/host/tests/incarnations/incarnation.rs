//! One incarnation of a Python program.

use std::{
    collections::VecDeque,
    io::{BufRead as _, BufReader, Read as _},
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use north_abi::handover::Message;
use north_abi::layout::{FILE_FD, HANDOVER_FD, LIBRARY_FD, SOCKET_FD};
use north_host::{Handover, Library, Memory, ServiceReport};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal, kill_process_group},
};

/// Longest wait for a step of a test.
pub(super) const REPLAY_TIMEOUT: Duration = Duration::from_secs(120);

/// A program with the preloaded library.
pub(super) struct Incarnation {
    pub(super) child: Child,
    pub(super) handover: Handover,
    pub(super) stdout: BufReader<ChildStdout>,
    /// Requests of the processes that no test has taken.
    pub(super) requests: VecDeque<(Message, Option<OwnedFd>)>,
}

impl Drop for Incarnation {
    fn drop(&mut self) {
        // Kills the children, too, which would keep the output of the tests open.
        let group = Pid::from_child(&self.child);
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Incarnation {
    /// Starts the program, with random addresses or with the fixed addresses of a service.
    pub(super) fn begin(memory: &Memory, program: &str, has_fixed_addresses: bool) -> Self {
        Self::begin_with(None, memory, program, has_fixed_addresses)
    }

    /// Starts the program with a second preloaded library.
    pub(super) fn begin_with(
        other: Option<&str>,
        memory: &Memory,
        program: &str,
        has_fixed_addresses: bool,
    ) -> Self {
        let handover = Handover::new().expect("a handover");
        let library = Library::new().expect("the library");
        let mut command = Command::new("/usr/bin/python3");
        command
            .args(["-c", program])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .envs(Library::variables());
        if let Some(other) = other {
            let wrap_library = Library::variables().into_iter().next().expect("it");
            command.env(wrap_library.0, format!("{}:{other}", wrap_library.1));
        }
        let inherited: Vec<(OwnedFd, i32)> = [
            (memory.as_fd(), FILE_FD),
            (
                handover.process_socket().expect("it has not begun"),
                SOCKET_FD,
            ),
            (handover.file(), HANDOVER_FD),
            (library.as_fd(), LIBRARY_FD),
        ]
        .into_iter()
        .map(|(fd, number): (BorrowedFd<'_>, i32)| {
            (fd.try_clone_to_owned().expect("a descriptor"), number)
        })
        .collect();
        #[allow(clippy::multiple_unsafe_ops_per_block)] // one sequence with one reason
        // SAFETY: system calls only.
        unsafe {
            command.pre_exec(move || {
                for (fd, number) in &inherited {
                    if libc::dup2(fd.as_raw_fd(), *number) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                if has_fixed_addresses {
                    libc::personality(libc::ADDR_NO_RANDOMIZE.cast_unsigned().into());
                }
                Ok(())
            });
        }
        let mut child = command.spawn().expect("python");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        Self {
            child,
            handover,
            stdout,
            requests: VecDeque::new(),
        }
    }

    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        assert!(line.ends_with('\n'), "it has ended");
        line
    }

    /// Kills the program and its children, which have the output open.
    pub(super) fn end_all(mut self) {
        let group = Pid::from_child(&self.child);
        kill_process_group(group, Signal::KILL).expect("killed");
        let mut rest = Vec::new();
        self.stdout.read_to_end(&mut rest).expect("their end");
    }

    /// Waits until the program has replayed the record.
    pub(super) fn replays(&mut self, memory: &Memory) {
        let at_most = Timespec::try_from(REPLAY_TIMEOUT).expect("a time");
        // Other messages come first, such as opened files.
        while !self.handover.has_reports_of(&memory.begun()) {
            let mut fds = [PollFd::from_borrowed_fd(
                self.handover.supervisor_socket(),
                PollFlags::IN,
            )];
            let ready = poll(&mut fds, Some(&at_most)).expect("poll");
            let heard = self.handover.receive_messages().expect("messages");
            assert!(ready > 0 && heard, "{:?}", memory.divergence());
        }
        let passed = self.handover.take().expect("none");
        assert_eq!(passed, ServiceReport::default());
    }
}
