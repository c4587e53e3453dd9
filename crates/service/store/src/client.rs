//! The thread of a store.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, ErrorKind, Read as _, Write as _},
    net::{SocketAddr, ToSocketAddrs as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
    net::sockopt,
};
use socket2::{Domain, Socket, Type};

use crate::dialect::Dialect;
use crate::memcached::Memcached;
use crate::session::Session;
use crate::url::Protocol;
use crate::valkey::Valkey;
use crate::{Failure, Operation, QueueFull, Report, Settings, Statistics, Store, StoreUrl, Ticket};

/// Bytes that are read at a time.
const READ_LEN: usize = 64 << 10;
/// Reads before the thread looks at new operations again.
const READS_MAX: usize = 16;
/// Pause before a probe of a connection without operations, and between probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Probes without an answer that end a connection.
const KEEPALIVE_COUNT: u32 = 3;
/// Pause between two copies of the statistics for readers: a copy costs more than an operation.
const STATISTICS_PERIOD: Duration = Duration::from_millis(100);

/// A store with a thread and a connection of its own.
pub struct StoreClient {
    name: String,
    queue_len: usize,
    next: u64,
    /// Operations that were submitted, and whose outcomes were not polled.
    outstanding: usize,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Between the thread and the client.
#[derive(Debug)]
struct Shared {
    submitted: Mutex<VecDeque<(Ticket, Operation, Duration)>>,
    reports: Mutex<Vec<Report>>,
    statistics: Mutex<Statistics>,
    is_over: AtomicBool,
    /// Readable while operations are submitted.
    wake: OwnedFd,
    /// Readable while reports wait.
    ready: OwnedFd,
    began: Instant,
}

/// No thread panics with a lock, and every value of these is a valid value.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn signal(fd: &OwnedFd) {
    // The counter never gets full: a reader clears it.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

fn clear(fd: &OwnedFd) {
    let _ = rustix::io::read(fd, &mut [0; 8]);
}

impl StoreClient {
    /// Resolves the host, and begins to connect. The store need not be there yet: see [`Report::Connected`].
    ///
    /// # Errors
    /// The host has no address, or the system has no descriptors or threads left.
    pub fn open(url: &StoreUrl, settings: Settings) -> io::Result<Self> {
        let addresses: Vec<SocketAddr> = (url.host.as_str(), url.port).to_socket_addrs()?.collect();
        if addresses.is_empty() {
            return Err(ErrorKind::NotFound.into());
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared = Arc::new(Shared {
            submitted: Mutex::default(),
            reports: Mutex::default(),
            statistics: Mutex::default(),
            is_over: AtomicBool::new(false),
            wake: eventfd(0, flags)?,
            ready: eventfd(0, flags)?,
            began: Instant::now(),
        });
        let of_thread = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("store".to_owned());
        let thread = match url.protocol.clone() {
            Protocol::Resp(login) => {
                let session = Session::new(Valkey::new(login, &settings), settings);
                builder.spawn(move || Worker::new(session, of_thread, addresses).run())?
            }
            Protocol::Meta => {
                let session = Session::new(Memcached::new(&settings), settings);
                builder.spawn(move || Worker::new(session, of_thread, addresses).run())?
            }
        };
        let (name, queue_len) = (url.to_string(), settings.queue_len);
        Ok(Self {
            name,
            queue_len,
            next: 0,
            outstanding: 0,
            shared,
            thread: Some(thread),
        })
    }

    /// Readable while [`Store::poll`] has a report.
    #[must_use]
    pub fn readiness(&self) -> BorrowedFd<'_> {
        self.shared.ready.as_fd()
    }

    /// Counts and times since the beginning, at most a tenth of a second old.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        locked(&self.shared.statistics).clone()
    }

    /// Waits until reports can be polled.
    ///
    /// # Errors
    /// [`Failure::TimedOut`].
    pub fn wait(&self, until: Instant) -> Result<(), Failure> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            let ready = poll(
                &mut [PollFd::new(&self.shared.ready, PollFlags::IN)],
                timeout.as_ref(),
            );
            match ready {
                Ok(0) => return Err(Failure::TimedOut),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(Failure::Other(error.to_string())),
            }
        }
    }
}

impl Store for StoreClient {
    fn submit(&mut self, operation: Operation) -> Result<Ticket, QueueFull> {
        if self.outstanding >= self.queue_len {
            return Err(QueueFull);
        }
        self.outstanding += 1;
        self.next += 1;
        let ticket = Ticket(self.next);
        let mut submitted = locked(&self.shared.submitted);
        let was_empty = submitted.is_empty();
        submitted.push_back((ticket, operation, self.shared.began.elapsed()));
        drop(submitted);
        if was_empty {
            signal(&self.shared.wake);
        }
        Ok(ticket)
    }

    fn poll(&mut self, reports: &mut Vec<Report>) {
        clear(&self.shared.ready);
        let new = std::mem::take(&mut *locked(&self.shared.reports));
        let completed = new
            .iter()
            .filter(|report| matches!(report, Report::Completed(_)));
        self.outstanding -= completed.count();
        reports.extend(new);
    }

    fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for StoreClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "StoreClient({}, {} outstanding)",
            self.name, self.outstanding
        )
    }
}

/// Ends the thread. Operations without an outcome may be performed, or not.
impl Drop for StoreClient {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        signal(&self.shared.wake);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
    }
}

struct Worker<D: Dialect> {
    session: Session<D>,
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    attempts: usize,
    socket: Option<Socket>,
    buffer: Vec<u8>,
    /// Readers do not have the newest statistics.
    has_statistics: bool,
    /// When readers may get these.
    statistics_at: Duration,
}

impl<D: Dialect> Worker<D> {
    fn new(session: Session<D>, shared: Arc<Shared>, addresses: Vec<SocketAddr>) -> Self {
        Self {
            session,
            shared,
            addresses,
            attempts: 0,
            socket: None,
            buffer: vec![0; READ_LEN],
            has_statistics: false,
            statistics_at: Duration::ZERO,
        }
    }

    fn now(&self) -> Duration {
        self.shared.began.elapsed()
    }

    fn run(mut self) {
        while !self.shared.is_over.load(Ordering::Acquire) {
            clear(&self.shared.wake);
            let submitted = std::mem::take(&mut *locked(&self.shared.submitted));
            let now = self.now();
            for (ticket, operation, began) in submitted {
                self.session.submit(ticket, operation, began, now);
            }
            self.session.on_time(now);
            if self.session.poll_connect(now) {
                self.connect();
            }
            self.transfer();
            if !self.session.has_socket() {
                self.socket = None;
            }
            self.report();
            self.publish_statistics();
            self.wait();
        }
    }

    fn connect(&mut self) {
        let address = self.addresses[self.attempts % self.addresses.len()];
        self.attempts += 1;
        match connecting(address) {
            Ok(socket) => self.socket = Some(socket),
            Err(error) => self.session.on_failure(&error.to_string(), self.now()),
        }
    }

    /// Writes and reads until the socket has no more.
    fn transfer(&mut self) {
        if self.session.is_connecting() {
            match self.socket.as_ref().map(is_connected) {
                Some(Ok(true)) => self.session.on_connected(),
                Some(Ok(false)) | None => return,
                Some(Err(error)) => return self.session.on_failure(&error.to_string(), self.now()),
            }
        }
        // Replies make place for more requests.
        for _ in 0..READS_MAX {
            let moved = self.write().and_then(|()| self.read());
            match moved {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return self.session.on_failure(&error.to_string(), self.now()),
            }
        }
    }

    fn write(&mut self) -> io::Result<()> {
        while let (Some(socket), [_, ..]) = (&mut self.socket, self.session.output()) {
            match socket.write(self.session.output()) {
                Ok(len) => self.session.on_written(len, self.shared.began.elapsed()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether bytes were read.
    fn read(&mut self) -> io::Result<bool> {
        let Some(socket) = self.socket.as_mut().filter(|_| self.session.has_socket()) else {
            return Ok(false);
        };
        match socket.read(&mut self.buffer) {
            Ok(0) => Err(io::Error::new(
                ErrorKind::UnexpectedEof,
                "the store has closed the connection",
            )),
            Ok(len) => {
                self.session
                    .on_received(&self.buffer[..len], self.shared.began.elapsed());
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn report(&mut self) {
        let new = self.session.reports();
        if new.is_empty() {
            return;
        }
        self.has_statistics = true;
        for report in &new {
            match report {
                Report::Lost(failure) => tracing::debug!(%failure, "store lost"),
                Report::Connected { is_other_instance } => {
                    tracing::debug!(is_other_instance, "store connected")
                }
                Report::Completed(_) => {}
            }
        }
        let mut reports = locked(&self.shared.reports);
        let was_empty = reports.is_empty();
        reports.extend(new);
        drop(reports);
        if was_empty {
            signal(&self.shared.ready);
        }
    }

    fn publish_statistics(&mut self) {
        let now = self.now();
        if self.has_statistics && now >= self.statistics_at {
            self.has_statistics = false;
            self.statistics_at = now + STATISTICS_PERIOD;
            locked(&self.shared.statistics).clone_from(self.session.statistics());
        }
    }

    fn wait(&self) {
        let statistics = self.has_statistics.then_some(self.statistics_at);
        let deadlines = [self.session.deadline(), statistics];
        let first = deadlines.into_iter().flatten().min();
        let pause = first.map(|at| at.saturating_sub(self.now()));
        let timeout = pause.and_then(|pause| Timespec::try_from(pause).ok());
        let mut fds = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        if let Some(socket) = &self.socket {
            let mut flags = PollFlags::IN;
            if self.session.is_connecting() || !self.session.output().is_empty() {
                flags |= PollFlags::OUT;
            }
            fds.push(PollFd::new(socket, flags));
        }
        // Interrupted, or out of memory for a moment: the loop begins again.
        let _ = poll(&mut fds, timeout.as_ref());
    }
}

fn connecting(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    // A closed socket sends no old command again behind the commands of the next connection.
    socket.set_linger(Some(Duration::ZERO))?;
    // A host without power ends no connection. Without operations only probes find that out.
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_COUNT)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => Err(error),
        _ => Ok(socket),
    }
}

fn is_connected(socket: &Socket) -> io::Result<bool> {
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    match socket.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}
