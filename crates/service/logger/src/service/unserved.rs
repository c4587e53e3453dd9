//! Zero-window ACKs to the clients of a service without a serving host (FT-TCP IV.E.1).
//!
//! Between two epochs only the granter may send for a service. A client without any answer gives up in the end. So
//! after [`ZERO_WINDOW_DELAY`] each client gets an ACK of all recorded bytes with a zero window, and again after
//! [`ZERO_WINDOW_INTERVAL`]. Each loop iteration serves a few clients, because datagrams and leases come first. The
//! next epoch is granted when the last of these ACKs has left ([`lease::Granter::record_speech`]); the next holder
//! then opens the windows.
//!
//! Only with `--zero-window-acks`: a packet may wait in this host for the link-layer address of the next hop, for
//! up to three seconds, and leave when another host already sends. Such a late packet is correct, but closes a
//! window for a moment.
//!
//! The packets have the service's address as source, which this host does not have. Raw sockets are needed, hence
//! `CAP_NET_RAW`, and a network that lets such packets pass. Without raw sockets all else works as before.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    time::Duration,
};

use rustix::net::{self, AddressFamily, Protocol, RawProtocol, SendFlags, SocketFlags, SocketType};
use wire::FlowId;

use super::{Code, Event, Service};

/// Time without a serving host before clients get ACKs: retransmissions of the clients cover a shorter time.
const ZERO_WINDOW_DELAY: Duration = Duration::from_secs(1);
/// Interval of ACKs to a client: the client's window probes are not answered, and a client gives up late after some
/// unanswered probes (Linux after 15).
const ZERO_WINDOW_INTERVAL: Duration = Duration::from_secs(5);
/// Connections per loop iteration, and the pause afterwards: 10,000 connections take 0.2 s.
const AT_A_TIME: usize = 64;
const SCAN_PAUSE: Duration = Duration::from_millis(1);
/// Interval of looks for the end of a write to the log.
const DISK_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The sender of zero-window ACKs.
pub(super) struct Unserved {
    /// `None` without `--zero-window-acks`.
    sockets: Option<Result<Raw, io::Error>>,
    /// By service.
    rounds: BTreeMap<String, Round>,
    told: u64,
}

/// One ACK to each client of a service.
struct Round {
    /// Time at which the round continues.
    next: Duration,
    /// Start of the round.
    begun: Duration,
    /// The last connection that was served.
    at: Option<FlowId>,
    told: usize,
    /// Only the first round with an ACK makes an event.
    is_first: bool,
}

impl Unserved {
    /// A sender, with sockets if `wanted`.
    pub(super) fn new(wanted: bool) -> Self {
        Self {
            sockets: if wanted { Some(Raw::open()) } else { None },
            rounds: BTreeMap::new(),
            told: 0,
        }
    }

    /// The warning that the raw sockets are missing.
    pub(super) fn trouble(&self) -> Option<Event> {
        let error = self.sockets.as_ref()?.as_ref().err()?;
        let reason = format!(
            "clients are told nothing while no host serves them: no raw sockets ({error}), which take CAP_NET_RAW"
        );
        let code = Code::ClientsNotTold;
        Some(Event::Warning { code, reason })
    }

    /// Number of ACKs.
    pub(super) const fn told(&self) -> u64 {
        self.told
    }
}

impl Service {
    /// Time of the next work of [`Service::tell_unserved`] without new input.
    pub(super) fn unserved_due(&self) -> Option<Duration> {
        self.unserved.sockets.as_ref()?.as_ref().ok()?;
        let due = self.leases.leased().map(|(service, over)| {
            let round = self.unserved.rounds.get(service);
            round.map_or(over + ZERO_WINDOW_DELAY, |round| round.next)
        });
        due.min()
    }

    /// Sends ACKs to some of the clients that are due.
    pub(super) fn tell_unserved(&mut self, tell: &mut dyn FnMut(&Event)) {
        let now = self.now();
        let leases = &self.leases;
        let rounds = &mut self.unserved.rounds;
        rounds.retain(|service, _| leases.unserved_since(service, now).is_some());
        for (service, over) in leases.leased() {
            if now >= over + ZERO_WINDOW_DELAY && !rounds.contains_key(service) {
                let round = Round {
                    next: now,
                    begun: now,
                    at: None,
                    told: 0,
                    is_first: true,
                };
                rounds.insert(service.to_owned(), round);
            }
        }
        let due = rounds.iter().filter(|(_, round)| now >= round.next);
        let due = due.min_by_key(|(_, round)| round.next);
        if let Some(service) = due.map(|(service, _)| service.clone()) {
            let event = self.tell_some(&service, now);
            event.iter().for_each(tell);
        }
    }

    fn tell_some(&mut self, service: &str, now: Duration) -> Option<Event> {
        let Unserved {
            sockets,
            rounds,
            told,
        } = &mut self.unserved;
        let round = rounds.get_mut(service)?;
        round.next = now + DISK_POLL_INTERVAL;
        let raw = sockets.as_ref()?.as_ref().ok()?;
        let Some(session) = self.sessions.newest_of(service) else {
            round.next = now + ZERO_WINDOW_INTERVAL;
            return None;
        };
        // Clients never retransmit acknowledged bytes: only durable bytes are acknowledged.
        if !session.is_written(&self.out) || !self.leases.is_kept(service) {
            return None;
        }
        round.next = now + SCAN_PAUSE;
        let mut event = None;
        for _ in 0..AT_A_TIME {
            let Some(flow) = session.next_protected(round.at) else {
                event = round.end(service, now);
                break;
            };
            if let Some((client, packet)) = session.closed_window(flow, now) {
                match raw.send(client, &packet) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => tracing::debug!(%client, %error, "a client was not told"),
                    Ok(()) => {
                        *told += 1;
                        round.told += 1;
                    }
                }
            }
            round.at = Some(flow);
        }
        let sent = self.now();
        self.leases.spoke(service, sent);
        event
    }
}

impl Round {
    /// All connections have been served.
    fn end(&mut self, service: &str, now: Duration) -> Option<Event> {
        let event = (self.is_first && self.told > 0).then(|| Event::Unserved {
            service: service.to_owned(),
            connections: self.told,
        });
        self.is_first &= event.is_none();
        self.begun = now.max(self.begun + ZERO_WINDOW_INTERVAL);
        self.next = self.begun;
        (self.at, self.told) = (None, 0);
        event
    }
}

/// Sockets for whole IP packets.
struct Raw {
    v4: OwnedFd,
    v6: OwnedFd,
}

impl Raw {
    fn open() -> io::Result<Self> {
        let socket = |family| {
            // With this protocol the sender provides the IP header.
            let whole = RawProtocol::new(libc::IPPROTO_RAW.unsigned_abs());
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let protocol = whole.map(Protocol::from_raw);
            net::socket_with(family, SocketType::RAW, flags, protocol)
        };
        Ok(Self {
            v4: socket(AddressFamily::INET)?,
            v6: socket(AddressFamily::INET6)?,
        })
    }

    fn send(&self, to: IpAddr, packet: &[u8]) -> io::Result<()> {
        let socket = if to.is_ipv4() { &self.v4 } else { &self.v6 };
        net::sendto(socket, packet, SendFlags::empty(), &SocketAddr::new(to, 0))?;
        Ok(())
    }
}
