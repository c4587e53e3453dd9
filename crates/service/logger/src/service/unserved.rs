//! Telling the clients of a service that no host serves (FT-TCP IV.E.1).
//!
//! Between two epochs nobody may speak for a service but its granter. A client that is not answered gives
//! up at last; so, when that has lasted for [`ZERO_WINDOW_DELAY`], each is told that all that is recorded has
//! arrived and that there is no room now, and again after [`ZERO_WINDOW_INTERVAL`]: a few at a time, datagrams and
//! leases come first. The next epoch is granted when the last of that has left ([`lease::Granter::record_speech`]), and
//! whoever serves then opens the windows.
//!
//! That is for who asks for it (`--zero-window-acks`): a packet may wait in this host for the link-layer address of
//! its next hop, for up to three seconds, and leave when another speaks already. It says nothing wrong then, but
//! closes a window for a moment.
//!
//! The packets have the service's address as their source, which is not ours: that takes raw sockets, and so
//! `CAP_NET_RAW`, and a network that lets such packets pass. Without them nothing else changes.

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

/// How long nobody serves before clients are told: what takes no longer is covered by their
/// retransmissions.
const ZERO_WINDOW_DELAY: Duration = Duration::from_secs(1);
/// Between two words to a client: nobody answers its questions for room, and it gives up when some are not
/// answered, if late (Linux after 15 of them).
const ZERO_WINDOW_INTERVAL: Duration = Duration::from_secs(5);
/// Connections that are looked at in one turn of the loop, and the pause after that: 10,000 take 0.2 s.
const AT_A_TIME: usize = 64;
const SCAN_PAUSE: Duration = Duration::from_millis(1);
/// How soon is looked again whether what is to be written has been.
const DISK_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What was told to whom.
pub(super) struct Unserved {
    /// `None`: that is not wanted.
    sockets: Option<Result<Raw, io::Error>>,
    /// By service.
    rounds: BTreeMap<String, Round>,
    told: u64,
}

/// One word to each client of a service.
struct Round {
    /// When it goes on.
    next: Duration,
    /// When it began.
    begun: Duration,
    /// The last connection that was looked at.
    at: Option<FlowId>,
    told: usize,
    /// The first one is an event.
    is_first: bool,
}

impl Unserved {
    /// One who tells clients, if that is wanted.
    pub(super) fn new(wanted: bool) -> Self {
        Self {
            sockets: if wanted { Some(Raw::open()) } else { None },
            rounds: BTreeMap::new(),
            told: 0,
        }
    }

    /// Why nobody will be told anything, if so.
    pub(super) fn trouble(&self) -> Option<Event> {
        let error = self.sockets.as_ref()?.as_ref().err()?;
        let reason = format!(
            "clients are told nothing while no host serves them: no raw sockets ({error}), which take CAP_NET_RAW"
        );
        let code = Code::ClientsNotTold;
        Some(Event::Warning { code, reason })
    }

    /// Words so far.
    pub(super) const fn told(&self) -> u64 {
        self.told
    }
}

impl Service {
    /// When [`Service::tell_unserved`] has something to do, if nothing comes.
    pub(super) fn unserved_due(&self) -> Option<Duration> {
        self.unserved.sockets.as_ref()?.as_ref().ok()?;
        let due = self.leases.leased().map(|(service, over)| {
            let round = self.unserved.rounds.get(service);
            round.map_or(over + ZERO_WINDOW_DELAY, |round| round.next)
        });
        due.min()
    }

    /// Tells some of the clients that are to be told.
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
        // What is acknowledged is never sent again.
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
    /// All have been looked at.
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
            // With this protocol the header is ours.
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
