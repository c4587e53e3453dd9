//! Connections that the server has opened to others.
//!
//! We have their descriptors, too, so that the kernel does not end them with the incarnation that has opened them; what
//! arrives meanwhile waits in it. The next incarnation, which knows what it had read and written, goes on with them if
//! the kernel has counted the same. Others it finds reset, as any server may at any time: those within the host, of
//! which the kernel does not count what was read, and all after their host, or this process, has ended. One whose own
//! address is the service's is known to the data plane instead, and goes on as a client's does (`service::joining`):
//! from when its process has noted that. One that dies before has the socket held as before.

mod quiet;

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap, HashSet},
    io::{self, Write as _},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use north_host::{
    ConnectionReport, Handover, JOIN_ANSWER, Message, UpstreamPosition,
    counts::{Counts, kernel_counts},
    repair::say_again,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{RecvFlags, SendFlags, recv, send},
    process::{Resource, getrlimit},
};
use wire::{FlowId, FlowKey};

use super::files::give;
pub(crate) use quiet::Quiet;

/// What became of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Outgoing {
    /// How many go on.
    pub(crate) kept: usize,
    /// How many are reset.
    pub(crate) reset: usize,
}

/// A process's number, and its connection's.
type Which = (u32, u64);

/// One that is to go on as clients' do.
#[derive(Debug)]
pub(crate) struct OutboundRequest {
    which: Which,
    pub(crate) socket: Option<Quiet>,
    answer: OwnedFd,
}

#[derive(Debug, Default)]
pub(super) struct Upstream {
    held: HashMap<Which, Quiet>,
    /// Of each process the last one, of which the record does not know whether it was opened: its next incarnation is
    /// about to do so.
    unknown: HashMap<Which, Quiet>,
    /// So many have to be held before it is looked which of them have ended.
    look_at: usize,
    /// As a process has left them.
    passed: Vec<(u32, ConnectionReport<UpstreamPosition>)>,
    /// Those that are to go on as clients' do, and where the process waits for an answer.
    joining: Vec<(Which, OwnedFd)>,
    /// Those that do, as far as we have not heard that this is noted.
    joined: HashMap<Which, (Quiet, (FlowKey, FlowId))>,
}

impl Upstream {
    /// A process has opened one, or closed one.
    pub(super) fn on_message(&mut self, message: Message, descriptor: Option<OwnedFd>) {
        match (message, descriptor) {
            (Message::Opened { process, serial }, Some(descriptor)) => {
                self.forget_ended();
                if self.held.len() < most() && kernel_counts() {
                    // What the incarnation before had opened was not asked for: this one does something else.
                    let unasked = self.unknown.extract_if(|which, _| which.0 == process);
                    unasked.for_each(|(_, socket)| end(socket));
                    self.held.insert((process, serial), descriptor.into());
                }
            }
            (Message::Opens { process, serial }, Some(answer)) => {
                if let Some(socket) = self.unknown.remove(&(process, serial)) {
                    give(socket.as_fd(), &answer);
                    self.held.insert((process, serial), socket);
                }
            }
            (Message::Joins { process, serial }, Some(answer)) => {
                self.joining.push(((process, serial), answer));
            }
            (Message::Closed { process, serial }, _) => {
                self.held.remove(&(process, serial));
                self.joined.remove(&(process, serial));
            }
            _ => {}
        }
    }

    /// The next connection that is to go on as clients' do; there is no socket if it is not held.
    pub(super) fn next_outbound(&mut self) -> Option<OutboundRequest> {
        let (which, answer) = self.joining.pop()?;
        let socket = self.held.remove(&which);
        Some(OutboundRequest {
            which,
            socket,
            answer,
        })
    }

    /// It does, by this number, or is held as before. The process goes on. `false`: it has died; then the answer is no.
    pub(super) fn answer(
        &mut self,
        joining: OutboundRequest,
        flow: Option<(FlowKey, FlowId)>,
    ) -> bool {
        let is_heard = answer(&joining.answer, flow.map(|(_, flow)| flow));
        match (joining.socket, flow.filter(|_| is_heard)) {
            (Some(socket), Some(flow)) => drop(self.joined.insert(joining.which, (socket, flow))),
            (Some(socket), None) => drop(self.held.insert(joining.which, socket)),
            (None, _) => {}
        }
        is_heard
    }

    /// The processes are dead. Those of which none has noted that they go on as clients' do are held as before; the
    /// others are the data plane's. `is_noted` says that of a process and a flow.
    pub(super) fn unjoin(
        &mut self,
        is_noted: impl Fn(u32, FlowId) -> bool,
    ) -> Vec<(FlowKey, FlowId)> {
        let mut unnoted = Vec::new();
        for (which, (socket, flow)) in self.joined.drain() {
            if !is_noted(which.0, flow.1) {
                self.held.insert(which, socket);
                unnoted.push(flow);
            }
        }
        unnoted
    }

    /// Of those that have ended we may not have heard: a process does not wait until we listen.
    fn forget_ended(&mut self) {
        const SOCKETS_BEFORE_SWEEP: usize = 64;
        if self.held.len() >= self.look_at.max(SOCKETS_BEFORE_SWEEP) {
            self.held.retain(|_, socket| !has_ended(socket));
            self.look_at = 2 * self.held.len();
        }
    }

    /// Nobody will go on with them: they end when the server ends.
    pub(super) fn let_go(&mut self) {
        self.held.clear();
        self.unknown.clear();
        self.joined.clear();
        self.passed.clear();
        for (_, waits) in self.joining.drain(..) {
            answer(&waits, None);
        }
    }

    /// A process that is dead is not heard any more, and what it had passed on is nobody's.
    pub(super) fn died(&mut self) {
        self.passed.clear();
        self.joining.clear();
    }

    /// What the processes say of theirs.
    pub(super) fn pass(&mut self, passed: Vec<ConnectionReport<UpstreamPosition>>) {
        let passed = passed.into_iter();
        self.passed = passed.map(|one| (one.position.opener(), one)).collect();
    }

    /// The processes get them: `begun` are those that there are.
    pub(super) fn hand_over(
        &mut self,
        handover: &Handover,
        begun: &BTreeSet<u32>,
    ) -> io::Result<Outgoing> {
        let mut told = Outgoing::default();
        let mut known = HashSet::new();
        self.held.extend(self.unknown.drain()); // of an incarnation that did not come so far
        for (process, one) in std::mem::take(&mut self.passed) {
            let which = (process, one.position.serial);
            let mut socket = self.held.remove(&which);
            known.insert(which);
            if let Some(held) = socket.take_if(|held| go_on(held, &one).is_none()) {
                end(held);
            }
            if one.position.is_closed {
                continue; // what was still to be said the kernel says
            }
            match socket {
                Some(socket) => {
                    let given = handover.give(&one, socket.as_fd());
                    self.held.insert(which, socket);
                    given?;
                    told.kept += 1;
                }
                None => {
                    handover.give(&one, reset(one.position.is_local)?.as_fd())?;
                    told.reset += 1;
                }
            }
        }
        // Others the dead incarnation has closed, but for one that it had just opened.
        let mut left: Vec<_> = self
            .held
            .extract_if(|which, _| !known.contains(which))
            .collect();
        left.sort_unstable_by_key(|(which, _)| Reverse(*which));
        for (which, socket) in left {
            let (process, serial) = which;
            let is_last = !known.iter().any(|one| one.0 == process && one.1 > serial)
                && !self.unknown.keys().any(|one| one.0 == process);
            if begun.contains(&process) && is_last && is_untouched(&socket) {
                self.unknown.insert(which, socket);
            }
        }
        Ok(told)
    }
}

/// Has nothing gone through it that a program has read or written?
fn is_untouched(socket: &OwnedFd) -> bool {
    let counts = Counts::of(socket.as_fd()).ok().flatten();
    counts.is_some_and(|counts| (counts.read, counts.written, counts.is_shut) == (0, 0, false))
}

/// Nobody goes on with it. Its other end is not to take what it has heard for all, unless the server had said so.
fn end(socket: Quiet) {
    let counts = Counts::of(socket.as_fd()).ok().flatten();
    if !counts.is_some_and(|counts| counts.is_shut) {
        let _ = rustix::net::sockopt::set_socket_linger(&*socket, Some(Duration::ZERO));
    }
}

/// `None`: it stays as it is. Whether somebody has heard that.
fn answer(waits: &OwnedFd, flow: Option<FlowId>) -> bool {
    let word: [u8; JOIN_ANSWER] = flow.map_or(0, |flow| flow.0).to_le_bytes();
    send(waits, &word, SendFlags::NOSIGNAL).is_ok()
}

/// Most that are held: half of the descriptors that we may have.
fn most() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit / 2).unwrap_or(usize::MAX)
}

fn has_ended(socket: &OwnedFd) -> bool {
    let mut places = [PollFd::new(socket, PollFlags::empty())];
    let count = poll(&mut places, Some(&Timespec::default()));
    count.is_ok() && places[0].revents().contains(PollFlags::HUP)
}

/// Has the socket be where the process is; `None`: it cannot be. What the process has recorded of what arrived is
/// taken, as far as it had no time to do so, and what it has said since the record has ended is said, as far as it was
/// not.
fn go_on(held: &OwnedFd, passed: &ConnectionReport<UpstreamPosition>) -> Option<()> {
    let at = &passed.position;
    let counts = Counts::of(held.as_fd()).ok().flatten()?;
    let known = usize::try_from(at.instream.checked_sub(counts.read)?).ok()?;
    let lacking = usize::try_from(counts.written.checked_sub(passed.offset)?).ok()?;
    let lacking = passed.output.get(lacking..)?;
    if counts.is_shut && !(at.is_shut && lacking.is_empty()) {
        return None;
    }
    let socket = TcpStream::from(held.try_clone().ok()?);
    take(&socket, known).ok()?;
    say_again(&socket, lacking).ok()?;
    if at.is_shut && !counts.is_shut {
        socket.shutdown(Shutdown::Write).ok()?;
    }
    Some(())
}

/// Take so many bytes that have arrived.
fn take(socket: &TcpStream, mut length: usize) -> io::Result<()> {
    let mut block = [0; 4096];
    while length > 0 {
        let part = length.min(block.len());
        let (taken, _) = recv(socket, &mut block[..part], RecvFlags::DONTWAIT)?;
        if taken == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        length -= taken;
    }
    Ok(())
}

fn reset(is_local: bool) -> io::Result<OwnedFd> {
    Ok(match is_local {
        true => reset_local_socket()?.into(),
        false => reset_socket()?.into(),
    })
}

/// A connection whose other end has reset it.
pub(super) fn reset_socket() -> io::Result<TcpStream> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let socket = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    rustix::net::sockopt::set_socket_linger(&other, Some(Duration::ZERO))?;
    drop(other);
    Ok(socket)
}

/// The same within the host: the other end had not read everything.
fn reset_local_socket() -> io::Result<UnixStream> {
    let (mut socket, other) = UnixStream::pair()?;
    socket.write_all(b"?")?;
    drop(other);
    Ok(socket)
}

#[cfg(test)]
mod tests;
