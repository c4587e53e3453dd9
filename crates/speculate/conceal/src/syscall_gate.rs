//! Effects beyond mounts: network, signals to other processes, state of the machine. Such calls wait at a seccomp
//! gate until the commit.
//!
//! A seccomp filter makes the kernel ask this program before such a call begins. A call without an effect on other
//! processes continues at once, any other call after the commit. A program of another architecture, with other call
//! numbers, waits at the first call.

mod calls;
mod files;
mod filter;
mod named;
mod terminals;
mod walk;

use std::{
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
};

use crate::{
    members::Members,
    socket_address::{Address, Connection},
};

pub(crate) use files::{Devices, device_of};
pub(crate) use filter::install;

/// Names of sockets that may be connected before the commit.
pub(crate) type KnownSockets = Arc<[Vec<u8>]>;

/// The waiting calls of an encapsulation.
#[derive(Debug, Clone)]
pub struct SyscallGate(Arc<Shared>);

/// Programs that have read the size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum SizeReaders {
    /// No program.
    #[default]
    None,
    /// Compilers alone, which format messages for that width.
    Compilers,
    /// Other programs, too.
    Others,
}

#[derive(Debug)]
struct Shared {
    listener: OwnedFd,
    members: Members,
    known: KnownSockets,
    devices: Devices,
    gate: Mutex<GateState>,
    sized: Mutex<SizeReaders>,
    asked: AtomicU64,
}

#[derive(Debug, Default)]
struct GateState {
    is_open: bool,
    waiting: Vec<Call>,
}

/// A call that the kernel asks about.
#[derive(Debug, Clone)]
struct Call {
    id: u64,
    process: u32,
    architecture: u32,
    number: i64,
    arguments: [u64; 6],
    why: &'static str,
}

impl SyscallGate {
    /// Receives the listener of the filter through that socket, and answers its calls.
    pub(crate) fn of(
        from: &UnixStream,
        members: Members,
        known: KnownSockets,
        devices: Devices,
    ) -> io::Result<Self> {
        let listener = received(from)?;
        be_quick(&listener);
        let shared = Arc::new(Shared {
            listener,
            members,
            known,
            devices,
            gate: Mutex::default(),
            sized: Mutex::default(),
            asked: AtomicU64::new(0),
        });
        let this = Self(Arc::clone(&shared));
        let answer = move || shared.answer();
        thread::Builder::new()
            .name("outside".into())
            .spawn(answer)?;
        Ok(this)
    }

    /// Waiting processes and their reasons.
    #[must_use]
    pub fn waiting(&self) -> Vec<(u32, &'static str)> {
        let mut gate = self.0.gate();
        gate.waiting.retain(|call| self.0.is_valid(call));
        gate.waiting
            .iter()
            .map(|call| (call.process, call.why))
            .collect()
    }

    /// The files that waiting calls name, by process.
    #[must_use]
    pub fn named(&self) -> Vec<(u32, PathBuf)> {
        let waiting = self.0.gate().waiting.clone();
        let named = |call: &Call| {
            let file = self.0.caller(call).whole(named::of(call)?.place)?;
            self.0.is_valid(call).then_some((call.process, file))
        };
        waiting.iter().filter_map(named).collect()
    }

    /// The programs that have read the size of their terminal so far.
    #[must_use]
    pub fn sized(&self) -> SizeReaders {
        *self.0.sized()
    }

    /// Approximate number of calls that the kernel has asked about.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.0.asked.load(Ordering::Relaxed)
    }

    /// Whether a process with the filter is left: the command or a descendant. Before Linux 6.11 the kernel also
    /// counts dead processes whose parent has not waited. Later kernels do not count processes that are about to end
    /// and make no more calls.
    #[must_use]
    pub fn is_anybody_left(&self) -> bool {
        let mut polled = [PollFd::new(&self.0.listener, PollFlags::empty())];
        let looked = poll(&mut polled, Some(&Timespec::default()));
        looked.is_err() || !polled[0].revents().contains(PollFlags::HUP)
    }

    /// Opens the gate: all waiting calls continue.
    pub fn release(&self) {
        let mut gate = self.0.gate();
        gate.is_open = true;
        let waiting = std::mem::take(&mut gate.waiting);
        drop(gate);
        for call in waiting {
            self.0.let_through(&call);
        }
    }
}

impl Shared {
    fn gate(&self) -> MutexGuard<'_, GateState> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sized(&self) -> MutexGuard<'_, SizeReaders> {
        self.sized.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers until no process with the filter is left.
    fn answer(self: &Arc<Self>) {
        loop {
            let mut polled = [PollFd::new(&self.listener, PollFlags::IN)];
            if poll(&mut polled, None).is_err() {
                continue;
            }
            if !polled[0].revents().contains(PollFlags::IN) {
                return;
            }
            if let Some(call) = self.receive_call() {
                self.decide(call);
            }
        }
    }

    fn receive_call(&self) -> Option<Call> {
        // SAFETY: all fields of the structure may be zero, and the kernel requires zeros.
        let mut receive_call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is the kernel's structure, and lives as long as the call.
        let done = unsafe {
            libc::ioctl(
                self.listener.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_RECV,
                &raw mut receive_call,
            )
        };
        (done == 0).then_some(Call {
            id: receive_call.id,
            process: receive_call.pid,
            architecture: receive_call.data.arch,
            number: i64::from(receive_call.data.nr),
            arguments: receive_call.data.args,
            why: "",
        })
    }

    fn decide(self: &Arc<Self>, call: Call) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.note_size(&call);
        if self.gate().is_open {
            return self.let_through(&call);
        }
        let why = self.waiting_reason(&call);
        if !self.is_valid(&call) {
            return;
        }
        let mut gate = self.gate();
        match why {
            Some(why) if !gate.is_open => {
                gate.waiting.retain(|call| self.is_valid(call));
                gate.waiting.push(Call { why, ..call });
            }
            _ => {
                drop(gate);
                self.let_through(&call);
            }
        }
    }

    /// Whether the call still waits. Otherwise the process number may belong to another process, and earlier reads of
    /// the process are worthless.
    fn is_valid(&self, call: &Call) -> bool {
        // SAFETY: the number lives as long as the call, and the call only reads the number.
        let done = unsafe {
            libc::ioctl(
                self.listener.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
                &raw const call.id,
            )
        };
        done == 0
    }

    fn let_through(self: &Arc<Self>, call: &Call) {
        let Some(connecting) = self.connecting_for(call) else {
            return self.answered(call.id, None);
        };
        // A connect waits for the accept, and the accepting process may wait for a call here.
        let (this, id) = (Arc::clone(self), call.id);
        let connect = move || this.answered(id, connecting.connect());
        let begun = thread::Builder::new()
            .name("connecting".into())
            .spawn(connect);
        if begun.is_err() {
            self.answered(id, Some(Err(Errno::AGAIN)));
        }
    }

    /// Answers the call; `None`: the kernel performs the call.
    fn answered(&self, id: u64, done: Option<Result<(), Errno>>) {
        // SAFETY: all fields of the structure may be zero.
        let mut answer: libc::seccomp_notif_resp = unsafe { std::mem::zeroed() };
        answer.id = id;
        match done {
            Some(Ok(())) => {}
            Some(Err(errno)) => answer.error = -errno.raw_os_error(),
            None => {
                answer.flags = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or(1)
            }
        }
        // The process may be gone.
        // SAFETY: the structure is the kernel's, and lives as long as the call.
        let _ = unsafe {
            libc::ioctl(
                self.listener.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SEND,
                &raw const answer,
            )
        };
    }

    /// Connects a socket here if the name belongs to a socket of another process that the program cannot reach in its
    /// mounts. `None`: the program can connect by itself.
    fn connecting_for(&self, call: &Call) -> Option<Connection> {
        if call.number != libc::SYS_connect || call.architecture != filter::ARCHITECTURE {
            return None;
        }
        let address = Address::of(call.process, call.arguments[1], call.arguments[2]).ok()?;
        if address.is_own(call.process, &self.known) {
            return None;
        }
        let is_valid = || self.is_valid(call);
        address.asked_by(call.process, signed(call.arguments[0]), is_valid)
    }
}

/// A register is wider than the argument.
#[expect(clippy::cast_possible_truncation, reason = "as the kernel does")]
fn signed(register: u64) -> i32 {
    register as u32 as i32
}

/// Synchronous wake-ups: caller and supervisor alternate on a processor. No other processor must wake, which would take
/// longer than the rest of the call. (Since Linux 6.6.)
fn be_quick(listener: &OwnedFd) {
    const SYNC_WAKE_UP: libc::c_ulong = 1; // SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP
    let set = libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS;
    // SAFETY: the flags are no pointer.
    let _ = unsafe { libc::ioctl(listener.as_raw_fd(), set, SYNC_WAKE_UP) };
}

/// Receives the listener. The sender has executed its program, or has ended; the other end may still be open in this
/// process.
fn received(from: &UnixStream) -> io::Result<OwnedFd> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let mut byte = [0];
    let mut parts = [io::IoSliceMut::new(&mut byte)];
    recvmsg(
        from.as_fd(),
        &mut parts,
        &mut control,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )
    .map_err(|error| match error {
        Errno::AGAIN => io::Error::other("the command was killed before its program had begun"),
        other => other.into(),
    })?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut all) => all.next(),
        _ => None,
    });
    descriptor.ok_or_else(|| io::Error::other("the kernel does not ask (seccomp)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_of_killed_process_is_an_error() {
        let (ours, _theirs) = UnixStream::pair().expect("a pair");
        let error = received(&ours).expect_err("nothing was sent");
        assert!(error.to_string().contains("was killed"), "{error}");
    }
}
