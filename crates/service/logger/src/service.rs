//! The logger as a service on a machine of its own: sockets, clock, randomness, and a loop around
//! [`Sessions`].
//!
//! One thread. The datagrams of the links come first, because what finds no room in the socket's
//! buffer is lost: control streams are looked after when there are none left, or after
//! [`BATCHES`]. A barrier that a service asks for is answered when the datagrams that had come
//! before it have been recorded.

mod busy_poll;
mod claims;
mod client;
mod disk;
mod events;
mod leases;
mod log;
mod metrics;
mod no_checksum;
mod replica_stream;
mod sockets;
mod streams;
mod unserved;
mod writer;

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use channel::{KeyFileError, KeyRing};
use protocol::awake::Awake;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    link::{AckPolicy, Outbox, Sessions},
    rpc::RpcHandler,
};
use client::Client;
use events::Refusals;
pub use events::{Code, Event};
pub use leases::FORMAT as LEASES_FORMAT;
use leases::Leases;
use log::open_log;
use metrics::{Counts, Shown};
pub use no_checksum::without_checksums;
use sockets::{BATCH, Buffers, Sockets};
use unserved::Unserved;
use writer::Writer;

/// Batches of datagrams that are read before control streams are looked after.
const BATCHES: usize = 16;
/// Nothing else waits for longer than this, and one more [`ServiceConfig::busy_poll`], while single datagrams come.
const LONGEST_AWAKE: Duration = Duration::from_micros(200);
/// How often memory is given back, keys are read again, and sessions are forgotten.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);

/// What a logger is told at its start.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// Where services connect to, and their datagrams go to. Port 0 stands for any that is free.
    pub listen: Vec<SocketAddr>,
    /// The keys of those who may attach.
    pub keys: KeyRing,
    /// How long records are kept of a service that has gone away.
    pub keep: Duration,
    /// What all records together may hold, bytes.
    pub limit_total: u64,
    /// When segments are acknowledged.
    pub acks: AckPolicy,
    /// For how long after a datagram the next one is waited for without sleeping.
    pub busy_poll: Duration,
    /// Where records are written to before they are acknowledged. Without it they are only in
    /// memory.
    pub directory: Option<PathBuf>,
    /// Where Prometheus finds the numbers.
    pub metrics: Option<SocketAddr>,
    /// For how long a host may speak for a service that has a standby, once it was granted that; `None`: as
    /// short as it asks steadily ([`lease::Terms::default`]).
    pub lease: Option<Duration>,
    /// Tell clients of a service that no host serves it.
    pub tell_clients: bool,
}

/// Why the logger does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {error}{}", hint(.error))]
    Listen {
        /// Which.
        address: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// The numbers cannot be shown there.
    #[error("cannot show metrics on {address}: {error}{}", hint(.error))]
    Metrics {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// The key file cannot be used.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// The directory of the log cannot be used, or not be read.
    #[error("cannot keep records in {}: {error}", .directory.display())]
    Log {
        /// Which.
        directory: PathBuf,
        /// Why.
        error: String,
    },
    /// Another process writes the log in this directory.
    #[error("another logger uses {}: stop it, or choose another --dir", .0.display())]
    LogTaken(PathBuf),
    /// Nobody can be granted such a lease.
    #[error("--lease: {0}")]
    Lease(#[from] lease::TermsError),
    /// The system failed us.
    #[error("the logger cannot go on: {0}")]
    Io(#[from] io::Error),
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => " (another logger, or another program, uses the port)",
        io::ErrorKind::AddrNotAvailable => " (this host does not have the address)",
        io::ErrorKind::PermissionDenied => " (ports below 1024 need privileges)",
        _ => "",
    }
}

/// A logger that listens.
pub struct Service {
    sockets: Vec<Sockets>,
    keys: Arc<KeyRing>,
    sessions: Sessions,
    leases: Leases,
    unserved: Unserved,
    clients: Vec<Client>,
    rpc: RpcHandler,
    refusals: Refusals,
    out: Outbox,
    writer: Option<Writer>,
    /// Where datagrams are read to.
    buffers: Buffers,
    awake: Awake,
    /// What others are shown, and what is counted for that.
    shown: Option<Shown>,
    counts: Counts,
    /// What was found in the log.
    found: Option<Event>,
    started: Instant,
    tidied: Instant,
}

impl Service {
    /// Binds the sockets, and reads the log, if there is to be one.
    ///
    /// # Errors
    /// [`ServiceError::Listen`] and [`ServiceError::Log`].
    pub fn bind(config: ServiceConfig) -> Result<Self, ServiceError> {
        let mut sockets = Vec::new();
        for address in config.listen {
            let bound =
                Sockets::bind(address).map_err(|error| ServiceError::Listen { address, error })?;
            sockets.push(bound);
        }
        let shown = Shown::at(config.metrics)?;
        let mut sessions = Sessions::new(config.acks, config.limit_total, config.keep);
        let (mut out, mut writer, mut found) = (Outbox::default(), None, None);
        // After the directory is ours.
        let term = config.lease;
        let dir = config.directory.clone();
        if let Some(directory) = config.directory {
            let restored = open_log(&directory, &mut sessions)?;
            found = Some(Event::Restored {
                services: restored.sessions,
                connections: restored.connections,
                damaged: restored.damaged,
                removed: restored.removed.into_iter().map(disk::name).collect(),
            });
            out = Outbox::with_log(restored.ledger);
            writer = Some(Writer::start(restored.log)?);
        }
        let leases = Leases::new(term, dir.as_deref())?;
        let now = Instant::now();
        Ok(Self {
            sockets,
            keys: Arc::new(config.keys),
            sessions,
            leases,
            unserved: Unserved::new(config.tell_clients),
            clients: Vec::new(),
            rpc: RpcHandler::new(std::process::id()),
            refusals: Refusals::default(),
            out,
            writer,
            buffers: Buffers::new(),
            awake: Awake::of(u64::try_from(config.busy_poll.as_nanos()).unwrap_or(u64::MAX)),
            shown,
            counts: Counts::new(config.limit_total),
            found,
            started: now,
            tidied: now,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().map(Sockets::local).collect()
    }

    /// Keeps records until `stop` can be read.
    ///
    /// # Errors
    /// [`ServiceError::Io`]: the system does not let us wait, or has no randomness.
    pub fn run(
        mut self,
        stop: BorrowedFd<'_>,
        tell: &mut dyn FnMut(&Event),
    ) -> Result<(), ServiceError> {
        let events = self.counts.events();
        let tell = &mut |event: &Event| {
            events.count(event);
            tell(event);
        };
        tell(&Event::Listening {
            addresses: self.addresses(),
        });
        self.found.take().iter().for_each(&mut *tell);
        self.unserved.trouble().iter().for_each(&mut *tell);
        // Nobody waits for it, if there is no NOTIFY_SOCKET.
        let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
        self.show();
        loop {
            let more = self.datagrams(tell);
            let more = more || self.clients.iter().any(Client::has_backlog);
            let wait = if more { Duration::ZERO } else { self.pause() };
            let ready = self.wait(stop, wait)?;
            if ready.stop {
                tell(&Event::Stopping);
                let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
                self.finish(tell);
                return Ok(());
            }
            if ready.listener {
                self.accept(tell);
            }
            self.hear(&ready.clients, tell);
            self.tell_unserved(tell);
            self.look_after_log(tell);
            self.tell_notices();
            self.answer_barriers();
            self.send_to_replicas();
            self.tell_kept();
            self.flush(tell);
            let now = Instant::now();
            if now.duration_since(self.tidied) >= TIDY_INTERVAL {
                self.tidied = now;
                self.tidy(now, tell);
                if sd_notify::watchdog_enabled(false, &mut 0) {
                    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Watchdog]);
                }
            }
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Reads what has come over the links. Answers whether there may be more.
    fn datagrams(&mut self, tell: &mut dyn FnMut(&Event)) -> bool {
        let begun = Instant::now();
        for _ in 0..BATCHES {
            let (any, more) = self.batch(tell);
            let goes_on = more || {
                let stays = any && begun.elapsed() < LONGEST_AWAKE;
                stays && self.comes_another()
            };
            if !goes_on {
                return false;
            }
        }
        true
    }

    /// Reads a batch from each socket. Were there any, and may there be more?
    fn batch(&mut self, tell: &mut dyn FnMut(&Event)) -> (bool, bool) {
        let (mut any, mut more) = (false, false);
        let now = self.started.elapsed();
        for (via, sockets) in self.sockets.iter().enumerate() {
            let (sessions, out) = (&mut self.sessions, &mut self.out);
            let take = |peer, datagram: &[u8]| sessions.take(peer, datagram, now, out);
            match sockets.receive(via, &mut self.buffers, take) {
                Ok(count) => {
                    any |= count > 0;
                    more |= count == BATCH;
                }
                Err(error) => tell(&Event::Warning {
                    code: Code::DatagramsNotRead,
                    reason: format!("cannot read datagrams: {error}"),
                }),
            }
        }
        self.sessions.settle(now, &mut self.out);
        self.order(now);
        self.send();
        (any, more)
    }

    /// Sends what is to be sent. What cannot be sent is lost, as on the way.
    fn send(&mut self) {
        let sockets = &self.sockets;
        self.out.drain(|to, datagram| {
            if let Err(error) = sockets[to.via].send(to, datagram) {
                tracing::debug!(to = %to.address, %error, "not sent");
            }
        });
    }

    /// How long there is nothing to do, if nothing comes.
    fn pause(&self) -> Duration {
        let tidy = TIDY_INTERVAL.saturating_sub(self.tidied.elapsed());
        let due = self.sessions.due_at().into_iter().chain(self.out.due_at());
        let due = due.chain(self.unserved_due());
        let now = self.now();
        due.map(|due| due.saturating_sub(now))
            .chain(self.kept_due())
            .fold(tidy, Duration::min)
    }

    fn wait(&self, stop: BorrowedFd<'_>, most: Duration) -> io::Result<Ready> {
        let mut fds = vec![PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        for sockets in &self.sockets {
            fds.push(PollFd::from_borrowed_fd(
                sockets.listener.as_fd(),
                PollFlags::IN,
            ));
            fds.push(PollFd::from_borrowed_fd(
                sockets.datagrams().as_fd(),
                PollFlags::IN,
            ));
        }
        if let Some(writer) = &self.writer {
            fds.push(PollFd::from_borrowed_fd(writer.as_fd(), PollFlags::IN));
        }
        let first_client = fds.len();
        for client in &self.clients {
            let mut interest = PollFlags::empty();
            interest.set(PollFlags::IN, client.wants_read());
            interest.set(PollFlags::OUT, client.wants_write());
            fds.push(PollFd::from_borrowed_fd(client.as_fd(), interest));
        }
        let timeout = Timespec::try_from(most).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let has = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let listeners = fds[1..].chunks(2).take(self.sockets.len());
        Ok(Ready {
            stop: has(&fds[0]),
            listener: listeners.into_iter().any(|both| has(&both[0])),
            clients: fds[first_client..].iter().map(has).collect(),
        })
    }

    fn tidy(&mut self, now: Instant, tell: &mut dyn FnMut(&Event)) {
        reload(&mut self.keys, tell);
        for at in (0..self.clients.len()).rev() {
            let stays = self.clients[at].check(&self.keys, now);
            if let Err(error) = stays {
                self.dismiss(at, &error, tell);
            }
        }
        for forgotten in self
            .sessions
            .tidy(now.duration_since(self.started), &mut self.out)
        {
            tell(&Event::Forgotten {
                service: forgotten.service,
                instance: format!("{:016x}", forgotten.instance),
            });
        }
        self.renew_claims();
        self.refusals.rest(now).iter().for_each(&mut *tell);
        self.show();
    }
}

/// Reads the key file again, if it has changed.
fn reload(keys: &mut Arc<KeyRing>, tell: &mut dyn FnMut(&Event)) {
    match Arc::make_mut(keys).reload_if_changed() {
        Ok(false) => {}
        Ok(true) => tell(&Event::KeysChanged),
        Err(error) => tell(&Event::Warning {
            code: Code::KeysNotRead,
            reason: error.to_string(),
        }),
    }
}

/// What a look at the descriptors told.
struct Ready {
    stop: bool,
    /// Somebody connects.
    listener: bool,
    /// In the order of the clients.
    clients: Vec<bool>,
}
