//! The logger as a service on a machine of its own: sockets, clock, randomness, and a loop around
//! [`Sessions`].
//!
//! One thread. The datagrams of the links come first, because a datagram that finds no space in the socket's buffer
//! is lost. Control streams follow when no datagrams are left, or after [`BATCHES`]. The answer to a barrier of a
//! service leaves when the datagrams before the barrier are recorded.

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

/// Batches of datagrams per loop iteration, before control streams get a turn.
const BATCHES: usize = 16;
/// Longest delay of all other work, plus one [`ServiceConfig::busy_poll`], while single datagrams arrive.
const LONGEST_AWAKE: Duration = Duration::from_micros(200);
/// Interval of freeing memory, reading keys again and dropping sessions.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);

/// Configuration of a logger.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// Addresses for control streams and datagrams. Port 0 stands for any free port.
    pub listen: Vec<SocketAddr>,
    /// The keys that may attach.
    pub keys: KeyRing,
    /// Retention time of the records of an absent service.
    pub keep: Duration,
    /// Limit of all records together, bytes.
    pub limit_total: u64,
    /// When segments are acknowledged.
    pub acks: AckPolicy,
    /// How long the logger waits awake for the next datagram after a datagram.
    pub busy_poll: Duration,
    /// Directory of the durable log, written before the acknowledgement. `None`: records are only in memory.
    pub directory: Option<PathBuf>,
    /// Address of the metrics for Prometheus.
    pub metrics: Option<SocketAddr>,
    /// Length of the lease of a service that has a standby. `None`: as short as the host's steady requests allow
    /// ([`lease::Terms::default`]).
    pub lease: Option<Duration>,
    /// Send zero-window ACKs to the clients of a service without a serving host.
    pub tell_clients: bool,
}

/// Why the logger does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {error}{}", hint(.error))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        error: io::Error,
    },
    /// The metrics cannot be served.
    #[error("cannot show metrics on {address}: {error}{}", hint(.error))]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        error: io::Error,
    },
    /// The key file cannot be used.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// The directory of the log cannot be used or read.
    #[error("cannot keep records in {}: {error}", .directory.display())]
    Log {
        /// The directory.
        directory: PathBuf,
        /// The reason.
        error: String,
    },
    /// Another process writes the log in this directory.
    #[error("another logger uses {}: stop it, or choose another --dir", .0.display())]
    LogTaken(PathBuf),
    /// No host can get a lease of this length.
    #[error("--lease: {0}")]
    Lease(#[from] lease::TermsError),
    /// A system call failed.
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
    /// Space for received datagrams.
    buffers: Buffers,
    awake: Awake,
    /// The metrics, and the counts behind the metrics.
    shown: Option<Shown>,
    counts: Counts,
    /// The event about the log that was read.
    found: Option<Event>,
    started: Instant,
    tidied: Instant,
}

impl Service {
    /// Binds the sockets, and reads the log if there is a directory.
    ///
    /// # Errors
    /// [`ServiceError`].
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
        // The leases are read after the log: by then this process owns the directory.
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

    /// The addresses on which the logger listens.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().map(Sockets::local).collect()
    }

    /// Keeps records until `stop` can be read.
    ///
    /// # Errors
    /// [`ServiceError::Io`]: waiting fails, or there is no randomness.
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
        // Without NOTIFY_SOCKET no service manager waits.
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

    /// Reads the datagrams of the links. Returns whether more may wait.
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

    /// Reads a batch from each socket. Returns whether datagrams arrived, and whether more may wait.
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

    /// Sends the waiting datagrams. A datagram that cannot be sent counts as lost on the way.
    fn send(&mut self) {
        let sockets = &self.sockets;
        self.out.drain(|to, datagram| {
            if let Err(error) = sockets[to.via].send(to, datagram) {
                tracing::debug!(to = %to.address, %error, "not sent");
            }
        });
    }

    /// Time until the next work without new input.
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

/// The ready descriptors.
struct Ready {
    stop: bool,
    /// A peer connects.
    listener: bool,
    /// In the order of the clients.
    clients: Vec<bool>,
}
