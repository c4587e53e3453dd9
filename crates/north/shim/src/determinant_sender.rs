//! Sends determinants to the logger in UDP, and receives the stable positions (`protocol::link::Determinants`,
//! `Stable`).
//!
//! The server's process itself sends: no other process of the host has to be scheduled. Lost datagrams are sent again.

use core::{
    mem,
    net::{Ipv4Addr, Ipv6Addr},
    sync::atomic::Ordering,
};

use libc::{
    AF_INET, AF_INET6, EAGAIN, EINTR, MSG_DONTWAIT, MSG_TRUNC, SO_RCVTIMEO, SOL_SOCKET, c_int,
    sockaddr_in, sockaddr_in6, timeval,
};
use north_abi::layout::{Destination, LOGGER_SOCKET_FD, Page, Process};
use protocol::link::{
    DETERMINANTS_OVERHEAD, Determinants, KeySet, KeySlot, LinkKey, STABLE_LEN, Stable,
    StreamPosition,
};

use crate::{
    datagrams::{Datagrams, send},
    sys::{Outcome, sys},
    wrap::Wrap,
};

/// Most unacknowledged bytes of a stream.
pub(crate) const STREAM_WINDOW_BYTES: u64 = 128 << 10;

/// State of the socket to the logger.
#[derive(Default)]
pub(crate) struct DeterminantSender {
    /// Generation of the destination to which the socket is connected; 0: none.
    generation: u32,
    destination: Destination,
    /// Receive timeout of the socket, microseconds.
    timeout: i64,
    /// Position up to which this process's stream was sent.
    sent: u64,
}

/// Outcome of a receive from the logger.
pub(crate) enum LoggerReply {
    /// A stable position has advanced.
    Progress,
    /// The logger takes no more determinants of this record.
    Full,
    /// The datagram is of another record, or has no news.
    Ignored,
    /// No datagram within the timeout.
    TimedOut,
    /// The logger's host refuses the port (ICMP).
    Unreachable,
}

impl Wrap {
    /// Connects the socket to the present destination. `false`: no destination, or no route.
    pub(crate) fn connect_logger(&mut self) -> bool {
        let generation = self.page.destination.generation();
        if generation == self.sender.generation {
            return generation != 0;
        }
        let Some((generation, destination)) = self.page.destination.get() else {
            return false;
        };
        if !connect(&destination) {
            return false;
        }
        self.sender = DeterminantSender {
            generation,
            destination,
            sent: 0,
            ..self.sender
        };
        self.datagrams.reset_route();
        true
    }

    /// Sends the unstable determinants of all processes, within the window. Answers the number of bytes.
    pub(crate) fn send_determinants(&mut self) -> u64 {
        let mut sent = 0;
        for (number, process) in self.processes() {
            let head = process.head.load(Ordering::Acquire);
            let from = first_to_send(process).min(head);
            let to = head.min(from + STREAM_WINDOW_BYTES);
            self.send_stream(number, from, to);
            if number == self.process {
                self.sender.sent = to;
            }
            sent += to - from;
        }
        sent
    }

    /// Sends the new determinants of this process. `false`: no new ones, or the window is full.
    pub(crate) fn send_new(&mut self) -> bool {
        let own = self.page.processes.0.get(self.process as usize);
        let (head, first) = (self.stream.position(), own.map_or(0, first_to_send));
        let from = self.sender.sent.clamp(first, head.max(first));
        let to = head.min(first + STREAM_WINDOW_BYTES);
        if from >= to {
            return false;
        }
        self.send_stream(self.process, from, to);
        self.sender.sent = to;
        true
    }

    /// End of the part of this process's stream that was sent to the logger.
    pub(crate) fn sent_position(&self) -> u64 {
        self.sender.sent
    }

    /// Stable position of this process's stream.
    pub(crate) fn stable(&self) -> u64 {
        let own = self.page.processes.0.get(self.process as usize);
        own.map_or(0, |own| own.stable.load(Ordering::Acquire))
    }

    fn send_stream(&mut self, process: u32, from: u64, to: u64) {
        let (page, destination) = (self.page, &self.sender.destination);
        let (longest, key) = (usize::from(destination.datagram), key(destination.up));
        let mut at = from;
        while at < to {
            let length = (to - at).min(Datagrams::capacity(longest));
            let place = self.position(process, at, false);
            let read = self.datagrams.read(&place, length, longest);
            // Bytes before the base are truncated, and read as zeros.
            let Some(read) = read.filter(|_| at >= base(page, process)) else {
                return;
            };
            read.send(place, &key);
            at += length;
        }
    }

    /// Tells the logger that this process's stream ends here.
    pub(crate) fn send_end(&self) {
        let mut datagram = [0; DETERMINANTS_OVERHEAD];
        let at = self.position(self.process, 0, true);
        Determinants::seal(&at, &key(self.sender.destination.up), &mut datagram);
        send(&datagram);
    }

    fn position(&self, process: u32, offset: u64, is_over: bool) -> StreamPosition {
        let destination = &self.sender.destination;
        StreamPosition {
            version: destination.version,
            slot: KeySlot::from_number(destination.slot).unwrap_or(KeySlot::Zero),
            instance: destination.instance,
            record: self.page.record.load(Ordering::Relaxed),
            process,
            offset,
            is_over,
        }
    }

    /// Waits for a datagram, at most `timeout` microseconds.
    pub(crate) fn receive_within(&mut self, timeout: i64) -> LoggerReply {
        if self.sender.timeout != timeout {
            let wait = timeval {
                tv_sec: 0,
                tv_usec: timeout,
            };
            let (at, size) = (&raw const wait, size_of::<timeval>());
            // SAFETY: a structure on our stack.
            unsafe {
                sys!(
                    SYS_setsockopt,
                    LOGGER_SOCKET_FD,
                    SOL_SOCKET,
                    SO_RCVTIMEO,
                    at,
                    size
                );
            }
            self.sender.timeout = timeout;
        }
        self.receive_reply(0)
    }

    /// Takes a datagram without a wait.
    pub(crate) fn receive_now(&mut self) -> LoggerReply {
        self.receive_reply(MSG_DONTWAIT)
    }

    fn receive_reply(&mut self, flags: c_int) -> LoggerReply {
        let mut datagram = [0u8; STABLE_LEN];
        // SAFETY: a buffer on our stack.
        let length = unsafe {
            let (at, size) = (datagram.as_mut_ptr(), datagram.len());
            sys!(
                SYS_recvfrom,
                LOGGER_SOCKET_FD,
                at,
                size,
                MSG_TRUNC | flags,
                0,
                0
            )
        };
        if [EAGAIN, EINTR]
            .map(|code| -Outcome::from(code))
            .contains(&length)
        {
            return LoggerReply::TimedOut;
        }
        if length < 0 {
            return LoggerReply::Unreachable;
        }
        if length != STABLE_LEN as Outcome {
            return LoggerReply::Ignored;
        }
        let slot = KeySlot::from_number(self.sender.destination.slot).unwrap_or(KeySlot::Zero);
        let mut keys = KeySet::EMPTY;
        keys.put(slot, key(self.sender.destination.down));
        let Ok(Stable(at)) = Stable::decode(&datagram, &keys) else {
            return LoggerReply::Ignored;
        };
        if at.record != self.page.record.load(Ordering::Relaxed) {
            return LoggerReply::Ignored;
        }
        if at.is_over {
            return LoggerReply::Full;
        }
        self.is_now_stable(at.process, at.offset)
    }

    fn is_now_stable(&self, process: u32, offset: u64) -> LoggerReply {
        let Some(process) = self.page.processes.0.get(process as usize) else {
            return LoggerReply::Ignored;
        };
        if offset > process.head.load(Ordering::Acquire)
            || process.stable.fetch_max(offset, Ordering::AcqRel) >= offset
        {
            return LoggerReply::Ignored;
        }
        // The position is of an earlier logger, and not valid for the present logger.
        if self.page.destination.generation() != self.sender.generation {
            process.stable.store(0, Ordering::Release);
            self.page.settled.take_back();
        }
        LoggerReply::Progress
    }
}

fn base(page: &Page, process: u32) -> u64 {
    let process = page.processes.0.get(process as usize);
    process.map_or(0, |process| process.base.load(Ordering::Acquire))
}

/// First position that the logger does not have. The supervisor sends the image that replaces earlier determinants.
fn first_to_send(process: &Process) -> u64 {
    let stable = process.stable.load(Ordering::Acquire);
    stable.max(process.base.load(Ordering::Acquire))
}

fn key(bytes: [u8; 16]) -> LinkKey {
    LinkKey(bytes)
}

/// The socket is an IPv6 socket, except on a host without IPv6.
fn connect(destination: &Destination) -> bool {
    let ip = Ipv6Addr::from(destination.ip);
    connect_to(&address_v6(ip, destination))
        || ip
            .to_ipv4_mapped()
            .is_some_and(|ip| connect_to(&address_v4(ip, destination)))
}

fn address_v4(ip: Ipv4Addr, destination: &Destination) -> sockaddr_in {
    // SAFETY: all zeros is an address.
    let mut address: sockaddr_in = unsafe { mem::zeroed() };
    address.sin_family = AF_INET as u16;
    address.sin_port = destination.port.to_be();
    address.sin_addr.s_addr = u32::from_ne_bytes(ip.octets());
    address
}

fn address_v6(ip: Ipv6Addr, destination: &Destination) -> sockaddr_in6 {
    // SAFETY: all zeros is an address.
    let mut address: sockaddr_in6 = unsafe { mem::zeroed() };
    address.sin6_family = AF_INET6 as u16;
    address.sin6_port = destination.port.to_be();
    address.sin6_addr.s6_addr = ip.octets();
    address.sin6_scope_id = destination.scope;
    address
}

fn connect_to<T>(address: &T) -> bool {
    // SAFETY: an address that lives.
    unsafe {
        sys!(
            SYS_connect,
            LOGGER_SOCKET_FD,
            &raw const *address,
            size_of::<T>()
        ) == 0
    }
}
