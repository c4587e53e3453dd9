//! The logger as a service on a machine of its own: sockets, clock, randomness, and a loop around
//! [`Sessions`].
//!
//! One thread. The datagrams of the links come first, because what finds no room in the socket's
//! buffer is lost: control streams are looked after when there are none left, or after
//! [`BATCHES`]. A barrier that a service asks for is answered after the datagrams that had come
//! before it have been recorded.

mod client;
mod events;
mod no_checksum;
mod sockets;

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use channel::{KeyFileError, KeyRing};
use protocol::{
    control::{Attach, ErrorCode, Request, Response},
    link::LinkKey,
};
use rand::{TryRngCore, rngs::OsRng};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    desk::Desk,
    link::{AckPolicy, Greeting, Outbox, Sessions},
};
use client::{Client, ClientError};
pub use events::Event;
use events::Refusals;
pub use no_checksum::without_checksums;
use sockets::{Buffers, Sockets, peer_of};

/// Batches of datagrams that are read before control streams are looked after.
const BATCHES: usize = 16;
/// How often memory is given back, keys are read again, and sessions are forgotten.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);
/// Control streams at a time, those included that have not proven to have a key.
const MAX_CLIENTS: usize = 1024;

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
    /// The key file cannot be used.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
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
    clients: Vec<Client>,
    desk: Desk,
    refusals: Refusals,
    out: Outbox,
    started: Instant,
    tidied: Instant,
}

impl Service {
    /// Binds the sockets.
    ///
    /// # Errors
    /// [`ServiceError::Listen`].
    pub fn bind(config: ServiceConfig) -> Result<Self, ServiceError> {
        let mut sockets = Vec::new();
        for address in config.listen {
            let bound =
                Sockets::bind(address).map_err(|error| ServiceError::Listen { address, error })?;
            sockets.push(bound);
        }
        let now = Instant::now();
        Ok(Self {
            sockets,
            keys: Arc::new(config.keys),
            sessions: Sessions::new(config.acks, config.limit_total, config.keep),
            clients: Vec::new(),
            desk: Desk::new(std::process::id()),
            refusals: Refusals::default(),
            out: Outbox::default(),
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
        tell(&Event::Listening {
            addresses: self.addresses(),
        });
        // Nobody waits for it, if there is no NOTIFY_SOCKET.
        let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
        let mut buffers = Buffers::new();
        loop {
            let more = self.datagrams(&mut buffers, tell);
            let wait = if more { Duration::ZERO } else { self.pause() };
            let ready = self.wait(stop, wait)?;
            if ready.stop {
                tell(&Event::Stopping);
                let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
                return Ok(());
            }
            self.accept(tell);
            self.hear(&ready.clients, tell);
            self.tell_notices();
            self.flush(tell);
            let now = Instant::now();
            if now.duration_since(self.tidied) >= TIDY_INTERVAL {
                self.tidied = now;
                self.tidy(now, tell);
            }
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Reads what has come over the links. Answers whether there may be more.
    fn datagrams(&mut self, buffers: &mut Buffers, tell: &mut dyn FnMut(&Event)) -> bool {
        let mut more = false;
        for _ in 0..BATCHES {
            more = false;
            let now = self.started.elapsed();
            for (via, sockets) in self.sockets.iter().enumerate() {
                let (sessions, out) = (&mut self.sessions, &mut self.out);
                let take = |peer, datagram: &[u8]| sessions.take(peer, datagram, now, out);
                match sockets.receive(via, buffers, take) {
                    Ok(full) => more |= full,
                    Err(error) => tell(&Event::Trouble {
                        message: format!("cannot read datagrams: {error}"),
                    }),
                }
            }
            self.sessions.settle(now, &mut self.out);
            self.send();
            if !more {
                break;
            }
        }
        more
    }

    /// Sends what is to be sent. What cannot be sent is lost, as on the way.
    fn send(&mut self) {
        for datagram in self.out.datagrams() {
            if let Err(error) = self.sockets[datagram.to.via].send(datagram) {
                tracing::debug!(to = %datagram.to.address, %error, "not sent");
            }
        }
        self.out.clear();
    }

    /// How long there is nothing to do, if nothing comes.
    fn pause(&self) -> Duration {
        let tidy = TIDY_INTERVAL.saturating_sub(self.tidied.elapsed());
        match self.sessions.due_at() {
            Some(due) => tidy.min(due.saturating_sub(self.now())),
            None => tidy,
        }
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
        Ok(Ready {
            stop: has(&fds[0]),
            clients: fds[first_client..].iter().map(has).collect(),
        })
    }

    fn accept(&mut self, tell: &mut dyn FnMut(&Event)) {
        let now = Instant::now();
        for (via, sockets) in self.sockets.iter().enumerate() {
            loop {
                let (stream, remote) = match sockets.listener.accept() {
                    Ok(accepted) => accepted,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // Gone again, or we have too many descriptors: the next look will tell.
                    Err(_) => break,
                };
                if self.clients.len() >= MAX_CLIENTS {
                    let reason = format!("there are {MAX_CLIENTS} connections already");
                    self.refusals
                        .refused(remote, reason, now)
                        .iter()
                        .for_each(&mut *tell);
                    continue;
                }
                match Client::accept(stream, remote, via, Arc::clone(&self.keys), now) {
                    Ok(client) => self.clients.push(client),
                    Err(error) => {
                        let refused = self.refusals.refused(remote, error.to_string(), now);
                        refused.iter().for_each(&mut *tell);
                    }
                }
            }
        }
    }

    /// Reads from the clients that have something to say, and answers.
    fn hear(&mut self, ready: &[bool], tell: &mut dyn FnMut(&Event)) {
        // Those that were accepted since are heard next time. From the last on: one that goes is
        // replaced by one that has been heard.
        for at in (0..ready.len().min(self.clients.len())).rev() {
            if let Err(error) = self.hear_one(at, ready[at], tell) {
                self.dismiss(at, &error, tell);
            }
        }
    }

    fn hear_one(
        &mut self,
        at: usize,
        ready: bool,
        tell: &mut dyn FnMut(&Event),
    ) -> Result<(), ClientError> {
        if ready && self.clients[at].wants_read() {
            self.clients[at].read()?;
        }
        while let Some(request) = self.clients[at].request()? {
            match (self.clients[at].instance, request) {
                (None, Request::Attach(attach)) => self.attach(at, &attach, tell)?,
                (Some(instance), Request::Rekey) => {
                    if let (Ok((up, down)), Some(session)) =
                        (fresh_keys(), self.sessions.get_mut(instance))
                    {
                        let keys = session.rekey(up, down);
                        self.clients[at].say(&Response::Keys(keys))?;
                    }
                }
                (Some(instance), request) => {
                    let Some(session) = self.sessions.get_mut(instance) else {
                        return Err(ClientError::Replaced);
                    };
                    for answer in session.answer(self.desk, &request) {
                        self.clients[at].say(&answer)?;
                    }
                }
                (None, _) => return Err(ClientError::OutOfOrder),
            }
        }
        Ok(())
    }

    fn attach(
        &mut self,
        at: usize,
        attach: &Attach,
        tell: &mut dyn FnMut(&Event),
    ) -> Result<(), ClientError> {
        let greeting = match greeting() {
            Ok(greeting) => greeting,
            Err(error) => {
                let message = format!("no randomness for keys: {error}");
                return self.clients[at].say(&Response::Error {
                    code: ErrorCode::Internal,
                    message,
                });
            }
        };
        let instance = attach.instance;
        // The older stream of the same instance is not heard any more.
        for client in &mut self.clients {
            if client.instance == Some(instance) {
                client.instance = None;
                client.replaced = true;
            }
        }
        let client = &mut self.clients[at];
        let peer = peer_of(client.via, client.local, client.remote, attach.udp_port);
        let (kept, keys) = self.sessions.attach(attach, peer, &greeting);
        client.instance = Some(instance);
        tell(&Event::Attached {
            service: attach.service.clone(),
            instance: format!("{instance:016x}"),
            from: client.remote,
            key: client.key_name().to_owned(),
            kept,
        });
        client.say(&Response::Attached {
            pid: std::process::id(),
            kept,
            keys,
        })
    }

    /// A control stream has ended, or has to.
    fn dismiss(&mut self, at: usize, why: &ClientError, tell: &mut dyn FnMut(&Event)) {
        let client = self.clients.swap_remove(at);
        let Some(instance) = client.instance else {
            if !client.replaced {
                let refused = self
                    .refusals
                    .refused(client.remote, why.to_string(), Instant::now());
                refused.iter().for_each(&mut *tell);
            }
            return;
        };
        let now = self.now();
        self.sessions.detach(instance, now);
        for (number, service, session) in self.sessions.iter_mut() {
            if number == instance {
                let counts = session.statistics();
                tell(&Event::Detached {
                    service: service.to_owned(),
                    instance: format!("{instance:016x}"),
                    reason: why.to_string(),
                    segments: counts.segments,
                    refused: counts.refused(),
                });
            }
        }
    }

    /// What the services must hear of, unasked.
    fn tell_notices(&mut self) {
        for client in &mut self.clients {
            let session = client.instance.and_then(|i| self.sessions.get_mut(i));
            let Some(session) = session else { continue };
            while client.wants_read()
                && let Some(notice) = session.notice()
            {
                if client.say(&notice).is_err() {
                    // It is found to be gone when it is read from.
                    break;
                }
            }
        }
    }

    fn flush(&mut self, tell: &mut dyn FnMut(&Event)) {
        for at in (0..self.clients.len()).rev() {
            if self.clients[at].wants_write()
                && let Err(error) = self.clients[at].flush()
            {
                self.dismiss(at, &error, tell);
            }
        }
    }

    fn tidy(&mut self, now: Instant, tell: &mut dyn FnMut(&Event)) {
        match Arc::make_mut(&mut self.keys).reload_if_changed() {
            Ok(false) => {}
            Ok(true) => tell(&Event::KeysChanged),
            Err(error) => tell(&Event::Trouble {
                message: error.to_string(),
            }),
        }
        for at in (0..self.clients.len()).rev() {
            let stays = self.clients[at].check(&self.keys, now);
            if let Err(error) = stays {
                self.dismiss(at, &error, tell);
            }
        }
        for forgotten in self.sessions.tidy(now.duration_since(self.started)) {
            tell(&Event::Forgotten {
                service: forgotten.service,
                instance: format!("{:016x}", forgotten.instance),
            });
        }
        self.refusals.rest(now).iter().for_each(&mut *tell);
    }
}

/// What a look at the descriptors told.
struct Ready {
    stop: bool,
    /// In the order of the clients.
    clients: Vec<bool>,
}

fn fresh_keys() -> io::Result<(LinkKey, LinkKey)> {
    let mut keys = ([0; 16], [0; 16]);
    OsRng
        .try_fill_bytes(&mut keys.0)
        .map_err(io::Error::other)?;
    OsRng
        .try_fill_bytes(&mut keys.1)
        .map_err(io::Error::other)?;
    Ok((LinkKey(keys.0), LinkKey(keys.1)))
}

fn greeting() -> io::Result<Greeting> {
    let (up, down) = fresh_keys()?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanoseconds = since.unwrap_or_default().as_nanos();
    Ok(Greeting {
        up,
        down,
        counter: u64::try_from(nanoseconds).unwrap_or(u64::MAX / 2),
    })
}
