//! Upstream connections: connections that the server has opened.
//!
//! `serve` holds duplicates of the descriptors, which keep the connections alive when an incarnation dies; data that
//! arrives meanwhile waits in the socket. The next incarnation knows from the record how much was read and written, and
//! continues a connection if the kernel has the same counts. All other connections are reset, as any server may reset a
//! connection at any time. Connections within the host are reset, because the kernel does not count the bytes read.
//! After the end of the host or of this process, all are reset.
//!
//! An upstream connection from an address of the service becomes a flow of the data plane instead, and continues as
//! client connections do (`service::outbound`), as soon as the process has recorded the adoption. If the process dies
//! earlier, `serve` goes on holding the socket.

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

/// Fate of the upstream connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Outgoing {
    /// Connections that continue.
    pub(crate) kept: usize,
    /// Connections that are reset.
    pub(crate) reset: usize,
}

/// Number of a process, and serial number of a connection of this process.
type Which = (u32, u64);

/// Request of a process: this connection shall continue as client connections do.
#[derive(Debug)]
pub(crate) struct OutboundRequest {
    which: Which,
    pub(crate) socket: Option<Quiet>,
    answer: OwnedFd,
}

#[derive(Debug, Default)]
pub(super) struct Upstream {
    held: HashMap<Which, Quiet>,
    /// The last connection of each process, if the record does not say that the connection was opened: the next
    /// incarnation is about to open this connection.
    unknown: HashMap<Which, Quiet>,
    /// Number of held sockets at which the next search for ended connections is due.
    look_at: usize,
    /// Positions reported by the processes.
    passed: Vec<(u32, ConnectionReport<UpstreamPosition>)>,
    /// Requests to continue as client connections do, with the socket on which the process awaits the answer.
    joining: Vec<(Which, OwnedFd)>,
    /// Connections that do, as long as the record is not known to contain the adoption.
    joined: HashMap<Which, (Quiet, (FlowKey, FlowId))>,
}

impl Upstream {
    /// A process has opened or closed a connection.
    pub(super) fn on_message(&mut self, message: Message, descriptor: Option<OwnedFd>) {
        match (message, descriptor) {
            (Message::Opened { process, serial }, Some(descriptor)) => {
                self.forget_ended();
                if self.held.len() < most() && kernel_counts() {
                    // The incarnation did not ask for the connection of the incarnation before: this incarnation takes
                    // another course.
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

    /// The next connection that shall continue as client connections do; without a socket if `serve` does not hold the
    /// connection.
    pub(super) fn next_outbound(&mut self) -> Option<OutboundRequest> {
        let (which, answer) = self.joining.pop()?;
        let socket = self.held.remove(&which);
        Some(OutboundRequest {
            which,
            socket,
            answer,
        })
    }

    /// Answers a process: the connection is this flow, or stays as before. `false`: the process has died, and the
    /// connection stays as before.
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

    /// The processes are dead. `serve` holds the adopted connections again whose adoption no process has recorded; the
    /// data plane keeps the rest. `is_noted` tells whether a process has recorded the adoption of a flow.
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

    /// Messages about ended connections may be missing: a process does not wait until `serve` reads the messages.
    fn forget_ended(&mut self) {
        const SOCKETS_BEFORE_SWEEP: usize = 64;
        if self.held.len() >= self.look_at.max(SOCKETS_BEFORE_SWEEP) {
            self.held.retain(|_, socket| !has_ended(socket));
            self.look_at = 2 * self.held.len();
        }
    }

    /// No incarnation will continue the connections: the connections end with the server.
    pub(super) fn let_go(&mut self) {
        self.held.clear();
        self.unknown.clear();
        self.joined.clear();
        self.passed.clear();
        for (_, waits) in self.joining.drain(..) {
            answer(&waits, None);
        }
    }

    /// Messages and reports of a dead process are void.
    pub(super) fn died(&mut self) {
        self.passed.clear();
        self.joining.clear();
    }

    /// Stores the reports of the processes about upstream connections.
    pub(super) fn pass(&mut self, passed: Vec<ConnectionReport<UpstreamPosition>>) {
        let passed = passed.into_iter();
        self.passed = passed.map(|one| (one.position.opener(), one)).collect();
    }

    /// Hands the sockets over to the processes; `begun` are the present processes.
    pub(super) fn hand_over(
        &mut self,
        handover: &Handover,
        begun: &BTreeSet<u32>,
    ) -> io::Result<Outgoing> {
        let mut told = Outgoing::default();
        let mut known = HashSet::new();
        self.held.extend(self.unknown.drain()); // of an incarnation that died earlier
        for (process, one) in std::mem::take(&mut self.passed) {
            let which = (process, one.position.serial);
            let mut socket = self.held.remove(&which);
            known.insert(which);
            if let Some(held) = socket.take_if(|held| go_on(held, &one).is_none()) {
                end(held);
            }
            if one.position.is_closed {
                continue; // the kernel sends the rest
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
        // The dead incarnation has closed the remaining connections, except for a connection opened just before the
        // death.
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

/// Has no program read or written any byte of the connection?
fn is_untouched(socket: &OwnedFd) -> bool {
    let counts = Counts::of(socket.as_fd()).ok().flatten();
    counts.is_some_and(|counts| (counts.read, counts.written, counts.is_shut) == (0, 0, false))
}

/// No process continues the connection. A reset tells the other end that the data is incomplete, unless the server had
/// shut its side down.
fn end(socket: Quiet) {
    let counts = Counts::of(socket.as_fd()).ok().flatten();
    if !counts.is_some_and(|counts| counts.is_shut) {
        let _ = rustix::net::sockopt::set_socket_linger(&*socket, Some(Duration::ZERO));
    }
}

/// Answers with the flow; `None`: no change. Returns whether the answer was delivered.
fn answer(waits: &OwnedFd, flow: Option<FlowId>) -> bool {
    let word: [u8; JOIN_ANSWER] = flow.map_or(0, |flow| flow.0).to_le_bytes();
    send(waits, &word, SendFlags::NOSIGNAL).is_ok()
}

/// Most sockets to hold: half of the descriptors that this process may have.
fn most() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit / 2).unwrap_or(usize::MAX)
}

fn has_ended(socket: &OwnedFd) -> bool {
    let mut places = [PollFd::new(socket, PollFlags::empty())];
    let count = poll(&mut places, Some(&Timespec::default()));
    count.is_ok() && places[0].revents().contains(PollFlags::HUP)
}

/// Brings the socket to the position of the process; `None`: impossible. Arrived bytes that the process has recorded
/// are taken from the socket if the process had no time to read the bytes. Output since the end of the record is sent
/// if the output was not sent.
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

/// Take `length` arrived bytes.
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

/// A connection that the other end has reset.
pub(super) fn reset_socket() -> io::Result<TcpStream> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let socket = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    rustix::net::sockopt::set_socket_linger(&other, Some(Duration::ZERO))?;
    drop(other);
    Ok(socket)
}

/// A reset connection within the host: the other end had unread data.
fn reset_local_socket() -> io::Result<UnixStream> {
    let (mut socket, other) = UnixStream::pair()?;
    socket.write_all(b"?")?;
    drop(other);
    Ok(socket)
}

#[cfg(test)]
mod tests;
