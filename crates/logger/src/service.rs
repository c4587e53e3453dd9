//! The logger as a service on a machine of its own: sockets, clock, randomness, and a loop around
//! [`Sessions`].
//!
//! One thread. The datagrams of the links come first, because what finds no room in the socket's
//! buffer is lost: control streams are looked after when there are none left, or after
//! [`BATCHES`]. A barrier that a service asks for is answered after the datagrams that had come
//! before it have been recorded.

mod client;
mod disk;
mod events;
mod no_checksum;
mod sockets;
mod writer;

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    path::PathBuf,
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
    durable::{Change, Restored, restore},
    link::{AckPolicy, Greeting, Outbox, Sessions},
};
use client::{Client, ClientError};
use disk::Disk;
pub use events::Event;
use events::Refusals;
pub use no_checksum::without_checksums;
use sockets::{Buffers, Sockets, peer_of};
use writer::{Report, Writer};

/// Batches of datagrams that are read before control streams are looked after.
const BATCHES: usize = 16;
/// How often memory is given back, keys are read again, and sessions are forgotten.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);
/// How long what is left is waited for at the end.
const FINISH: Duration = Duration::from_secs(5);
/// Bytes of a file of the log; a batch more is possible.
const SEGMENT_SIZE: u64 = 64 << 20;
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
    /// Where records are written to before they are acknowledged. Without it they are only in
    /// memory.
    pub directory: Option<PathBuf>,
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
    /// The directory of the log cannot be used, or not be read.
    #[error("cannot keep records in {}: {error}", .directory.display())]
    Log {
        /// Which.
        directory: PathBuf,
        /// Why.
        error: String,
    },
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
    writer: Option<Writer>,
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
        let mut sessions = Sessions::new(config.acks, config.limit_total, config.keep);
        let (mut out, mut writer, mut found) = (Outbox::default(), None, None);
        if let Some(directory) = config.directory {
            let restored = open_log(&directory, &mut sessions);
            let restored = restored.map_err(|error| ServiceError::Log { directory, error })?;
            found = Some(Event::Restored {
                services: restored.sessions,
                connections: restored.connections,
                damaged: restored.damaged,
            });
            out = Outbox::with_log(restored.ledger);
            writer = Some(Writer::start(restored.log)?);
        }
        let now = Instant::now();
        Ok(Self {
            sockets,
            keys: Arc::new(config.keys),
            sessions,
            clients: Vec::new(),
            desk: Desk::new(std::process::id()),
            refusals: Refusals::default(),
            out,
            writer,
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
        tell(&Event::Listening {
            addresses: self.addresses(),
        });
        self.found.take().iter().for_each(&mut *tell);
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
                self.finish(tell);
                return Ok(());
            }
            self.accept(tell);
            self.hear(&ready.clients, tell);
            self.look_after_log(tell);
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
            self.order(now);
            self.send();
            if !more {
                break;
            }
        }
        more
    }

    /// Gives the writer something to do, if it has nothing to do.
    fn order(&mut self, now: Duration) {
        if let Some(writer) = &self.writer
            && let Some(order) = self.out.next_order(&self.sessions, now)
        {
            writer.order(order);
        }
    }

    /// Hears what the writer has done, and whether it takes too long.
    fn look_after_log(&mut self, tell: &mut dyn FnMut(&Event)) {
        while let Some(report) = self.writer.as_mut().and_then(Writer::report) {
            self.reported(report, tell);
        }
        let now = self.now();
        let slow = self.out.check_log(now);
        slow.into_iter().for_each(|change| tell(&event_of(change)));
        self.order(now);
        self.send();
    }

    fn reported(&mut self, report: Report, tell: &mut dyn FnMut(&Event)) {
        let change = match report {
            Report::Written(batch) => self.out.written(batch),
            Report::Restarted(segment) => {
                self.out.restarted(segment, &self.sessions);
                None
            }
            Report::Failed(why) => self.out.failed(why, self.started.elapsed()),
        };
        change
            .into_iter()
            .for_each(|change| tell(&event_of(change)));
        self.order(self.now());
    }

    /// Writes what is still to be written.
    fn finish(&mut self, tell: &mut dyn FnMut(&Event)) {
        let deadline = Instant::now() + FINISH;
        self.order(self.now());
        while self.out.is_writing() {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.writer.as_ref().and_then(|writer| writer.wait(left)) {
                Some(report) => self.reported(report, tell),
                // A disk that does not answer must not keep us from ending.
                None => return,
            }
        }
        if let Some(writer) = self.writer.take() {
            writer.end();
        }
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
        let due = self.sessions.due_at().into_iter().chain(self.out.due_at());
        let now = self.now();
        due.map(|due| due.saturating_sub(now))
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
                    for answer in session.answer(self.desk, &request, &mut self.out) {
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
        let (kept, keys) = self.sessions.attach(attach, peer, &greeting, &mut self.out);
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
        for (attach, session) in self.sessions.iter() {
            if attach.instance == instance {
                let counts = session.statistics();
                tell(&Event::Detached {
                    service: attach.service.clone(),
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
        for forgotten in self
            .sessions
            .tidy(now.duration_since(self.started), &mut self.out)
        {
            tell(&Event::Forgotten {
                service: forgotten.service,
                instance: format!("{:016x}", forgotten.instance),
            });
        }
        self.refusals.rest(now).iter().for_each(&mut *tell);
    }
}

fn open_log(
    directory: &std::path::Path,
    sessions: &mut Sessions,
) -> Result<Restored<Disk>, String> {
    let disk = Disk::open(directory).map_err(|error| error.to_string())?;
    restore(disk, sessions, SEGMENT_SIZE).map_err(|error| error.to_string())
}

fn event_of(change: Change) -> Event {
    match change {
        Change::Volatile(reason) => Event::LogFailed { reason },
        Change::Durable => Event::LogWorks,
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
