//! The member's stream to the balancer: settings, the lease, and the table of the pool.
//!
//! A separate thread: no work of the member may cost the lease. The crate `lease` makes the decisions; the programs
//! enforce the lease, even after the death of this process ([`MemberFence`]).

use std::{
    io,
    net::{SocketAddr, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use channel::{Channel, KeyRing, Received};
use dataplane::MemberFence;
use lease::{Speech, Terms, pool::MemberLease};
use protocol::{
    control::{Agreed, Decoder, Opening, Role, encode},
    pool::{
        BalancerMessage, Config, Hello, MemberMessage, MembershipState, Refused, STREAM_VERSIONS,
        Table,
    },
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    clock,
    error::{MemberError, SystemContext},
};

/// Time for a connection to the balancer: of a member that joins, and of a member with a lease.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after a failed connection.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
/// Time for the first answers of the balancer.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(5);
/// A stream is given up after this time without an answer.
const UNANSWERED_TIMEOUT: Duration = Duration::from_secs(2);

/// Where the balancer is, and who asks.
#[derive(Debug, Clone)]
pub(crate) struct PoolSettings {
    /// The balancer.
    pub balancer: SocketAddr,
    /// The file with the keys that balancer and members share.
    pub key_file: PathBuf,
    /// The first message.
    pub hello: Hello,
}

/// State of the pool, as the balancer has told.
#[derive(Debug, Clone)]
pub(crate) struct PoolView {
    /// The newest table.
    pub(crate) table: Table,
    /// Until when the member may send (`CLOCK_BOOTTIME`).
    pub(crate) speech: Speech,
    /// Why the member is no member any more.
    pub(crate) refused: Option<Refused>,
    /// Why there is no stream.
    pub(crate) failure: Option<String>,
}

/// An admitted member.
pub(crate) struct Admission {
    stream: Stream,
    settings: PoolSettings,
    /// Settings of the pool.
    pub config: Config,
    table: Table,
    terms: Terms,
}

/// A stream with the balancer.
struct Stream {
    channel: Channel<TcpStream>,
    decoder: Decoder<BalancerMessage>,
    agreed: Agreed,
}

/// Settings and members of the pool of a balancer, without a membership.
///
/// # Errors
/// The balancer does not answer.
pub(crate) fn pool_of(
    balancer: SocketAddr,
    keys: &KeyRing,
) -> Result<(Config, Table), MemberError> {
    let mut stream = Stream::begin(balancer, keys, JOIN_TIMEOUT)?;
    stream.send(&MemberMessage::AskMembers)?;
    stream.config_and_table()
}

impl Stream {
    fn open(settings: &PoolSettings, hello: Hello, limit: Duration) -> Result<Self, MemberError> {
        let keys = KeyRing::load(&settings.key_file).map_err(MemberError::KeyFile)?;
        let mut stream = Self::begin(settings.balancer, &keys, limit)?;
        stream.send(&MemberMessage::Hello(hello))?;
        Ok(stream)
    }

    fn begin(at: SocketAddr, keys: &KeyRing, limit: Duration) -> Result<Self, MemberError> {
        let channel = Channel::connect(at, keys.first(), limit, RECONNECT_TIMEOUT);
        let channel = channel.map_err(|source| MemberError::Balancer { at, source })?;
        let mut stream = Self {
            channel,
            decoder: Decoder::at_opening(STREAM_VERSIONS),
            agreed: Agreed::own(Role::Member),
        };
        let opening = Opening::of(Role::Member).encode();
        stream.say(&opening)?;
        stream.agreed = stream.wait_for(|decoder| decoder.open())?;
        Ok(stream)
    }

    /// The first answers of a balancer.
    fn config_and_table(&mut self) -> Result<(Config, Table), MemberError> {
        let (mut config, mut table) = (None, None);
        loop {
            match self.wait_for(Decoder::pull)? {
                BalancerMessage::Config(told) => config = Some(told),
                BalancerMessage::Table(told) => table = Some(told),
                BalancerMessage::Refused { reason } => return Err(MemberError::Refused(reason)),
                BalancerMessage::Lease { .. } => {}
            }
            if let (Some(config), Some(table)) = (&config, &table) {
                return Ok((config.clone(), table.clone()));
            }
        }
    }

    fn failed(&self, source: channel::ChannelError) -> MemberError {
        let at = self.channel.stream().peer_addr();
        let at = at.unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
        MemberError::Balancer { at, source }
    }

    fn say(&mut self, bytes: &[u8]) -> Result<(), MemberError> {
        let said = self.channel.say(bytes).and_then(|()| self.channel.flush());
        said.map_err(|source| self.failed(source))
    }

    fn send(&mut self, message: &MemberMessage) -> Result<(), MemberError> {
        let mut bytes = Vec::new();
        encode(message, self.agreed, &mut bytes).map_err(MemberError::Protocol)?;
        self.say(&bytes)
    }

    /// Reads the bytes that have come. Whether the stream goes on.
    fn read(&mut self) -> Result<bool, MemberError> {
        match self.channel.receive() {
            Ok(Received::Plain(bytes)) => {
                self.decoder.feed(&bytes);
                Ok(true)
            }
            Ok(Received::Nothing) => Ok(true),
            Ok(Received::End) => Ok(false),
            Err(source) => Err(self.failed(source)),
        }
    }

    fn wait_for<T>(
        &mut self,
        mut pull: impl FnMut(
            &mut Decoder<BalancerMessage>,
        ) -> Result<Option<T>, protocol::control::ControlError>,
    ) -> Result<T, MemberError> {
        let deadline = clock::now() + ADMISSION_TIMEOUT;
        loop {
            if let Some(value) = pull(&mut self.decoder).map_err(MemberError::Protocol)? {
                return Ok(value);
            }
            if clock::now() >= deadline || !self.read()? {
                return Err(MemberError::NoAnswer);
            }
        }
    }
}

impl Admission {
    /// Joins the pool, or continues a membership.
    ///
    /// # Errors
    /// The balancer cannot be reached, or refuses the member.
    pub(crate) fn join(settings: PoolSettings) -> Result<Self, MemberError> {
        let mut stream = Stream::open(&settings, settings.hello.clone(), JOIN_TIMEOUT)?;
        let (config, table) = stream.config_and_table()?;
        Ok(Self {
            terms: Terms::of_config(&config).map_err(MemberError::Terms)?,
            stream,
            settings,
            config,
            table,
        })
    }

    /// The settings of the pool, without a membership: a member needs the addresses before its server can listen, and a
    /// lease only after.
    ///
    /// # Errors
    /// As [`Admission::join`].
    pub(crate) fn settings(settings: PoolSettings) -> Result<Config, MemberError> {
        let mut admission = Self::join(settings)?;
        admission.stream.send(&MemberMessage::Leave)?;
        Ok(admission.config)
    }

    /// Keeps the lease from now on.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn keep(self, fence: MemberFence) -> Result<PoolClient, MemberError> {
        let (changed, tell) = UnixStream::pair().doing("make a socket pair")?;
        let (wake, woken) = UnixStream::pair().doing("make a socket pair")?;
        for end in [&changed, &tell, &woken] {
            end.set_nonblocking(true).doing("make a socket pair")?;
        }
        let view = PoolView {
            table: self.table,
            speech: Speech::Silent,
            refused: None,
            failure: None,
        };
        let shared = Arc::new(Mutex::new(view));
        let quiescence = Duration::from_millis(self.config.quiescence_ms.into());
        fence.set_quiescence(clock::boot() + quiescence)?;
        let mut keeper = Keeper {
            shared: Arc::clone(&shared),
            settings: self.settings,
            lease: MemberLease::new(self.terms),
            stream: Some(self.stream),
            fence,
            quiescence,
            tell,
            heard_at: clock::boot(),
        };
        let thread = std::thread::Builder::new()
            .name("lease".into())
            .spawn(move || keeper.run(&woken))
            .doing("start a thread")?;
        Ok(PoolClient {
            shared,
            changed,
            wake: Some(wake),
            thread: Some(thread),
        })
    }
}

/// Handle of the thread that keeps the lease.
pub(crate) struct PoolClient {
    shared: Arc<Mutex<PoolView>>,
    changed: UnixStream,
    /// The thread ends when this is closed.
    wake: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl PoolClient {
    /// State of the pool so far.
    pub(crate) fn view(&self) -> PoolView {
        let mut sink = [0; 64];
        while io::Read::read(&mut &self.changed, &mut sink).is_ok_and(|read| read == sink.len()) {}
        lock(&self.shared).clone()
    }

    /// The same, for a reader that does not act on changes.
    pub(crate) fn peek(&self) -> PoolView {
        lock(&self.shared).clone()
    }

    /// Readable when the view has changed.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.changed.as_fd()
    }

    /// Silences the member, and leaves the pool.
    pub(crate) fn leave(mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(shared: &Mutex<PoolView>) -> MutexGuard<'_, PoolView> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Keeper {
    shared: Arc<Mutex<PoolView>>,
    settings: PoolSettings,
    lease: MemberLease,
    stream: Option<Stream>,
    fence: MemberFence,
    quiescence: Duration,
    tell: UnixStream,
    heard_at: Duration,
}

impl Keeper {
    fn run(&mut self, woken: &UnixStream) {
        if let Err(error) = supervise::become_urgent() {
            tracing::debug!(%error, "the lease is kept with the urgency of other threads");
        }
        while !self.is_over() {
            let result = self.step(woken);
            match result {
                Ok(true) => {}
                Ok(false) => return self.leave(),
                Err(error) => self.lose_stream(&error),
            }
        }
    }

    fn is_over(&self) -> bool {
        lock(&self.shared).refused.is_some()
    }

    /// Whether the member stays in the pool.
    fn step(&mut self, woken: &UnixStream) -> Result<bool, MemberError> {
        let now = clock::boot();
        let Some(stream) = &mut self.stream else {
            let stays = wait(&[woken.as_fd()], RECONNECT_PAUSE)? == 0;
            if stays {
                self.reconnect()?;
            }
            return Ok(stays);
        };
        if now >= self.lease.asks_at()
            && let Some((number, answered)) = self.lease.ask(now)
        {
            stream.send(&MemberMessage::LeaseRequest { number, answered })?;
        }
        let pause = self.lease.asks_at().saturating_sub(clock::boot());
        let ready = wait(&[stream.channel.as_fd(), woken.as_fd()], pause)?;
        if ready & 2 != 0 {
            return Ok(false);
        }
        if ready & 1 != 0 {
            if !stream.read()? {
                return Err(MemberError::NoAnswer);
            }
            self.messages()?;
        }
        if clock::boot().saturating_sub(self.heard_at) > UNANSWERED_TIMEOUT {
            return Err(MemberError::NoAnswer);
        }
        Ok(true)
    }

    fn messages(&mut self) -> Result<(), MemberError> {
        while let Some(stream) = &mut self.stream
            && let Some(message) = stream.decoder.pull().map_err(MemberError::Protocol)?
        {
            self.heard_at = clock::boot();
            match message {
                BalancerMessage::Lease { number, term_us } => {
                    let term = Duration::from_micros(term_us.into());
                    if self.lease.on_grant(number, term) {
                        self.enforce()?;
                    }
                }
                BalancerMessage::Table(table) => self.on_table(table)?,
                BalancerMessage::Config(_) => {}
                BalancerMessage::Refused { reason } => {
                    self.lease.silence();
                    self.enforce()?;
                    self.update(|view| view.refused = Some(reason));
                }
            }
        }
        Ok(())
    }

    fn on_table(&mut self, table: Table) -> Result<(), MemberError> {
        let is_newer = table.epoch > lock(&self.shared).table.epoch;
        if is_newer {
            self.fence.set_quiescence(clock::boot() + self.quiescence)?;
            self.update(|view| view.table = table);
        }
        Ok(())
    }

    fn enforce(&self) -> Result<(), MemberError> {
        let speech = self.lease.speech();
        let end = match speech {
            Speech::Until(end) => end,
            Speech::Silent => Duration::ZERO,
            // A member of a pool always needs a lease.
            Speech::Free => Duration::ZERO,
        };
        self.fence.set_lease(end)?;
        let was_silent = lock(&self.shared).speech == Speech::Silent;
        if was_silent || speech == Speech::Silent {
            self.update(|view| view.speech = speech);
        } else {
            lock(&self.shared).speech = speech;
        }
        Ok(())
    }

    fn update(&self, change: impl FnOnce(&mut PoolView)) {
        change(&mut lock(&self.shared));
        let _ = io::Write::write(&mut &self.tell, &[1]);
    }

    fn lose_stream(&mut self, error: &MemberError) {
        tracing::debug!(%error, "no stream to the balancer");
        self.stream = None;
        self.update(|view| view.failure = Some(error.to_string()));
    }

    fn reconnect(&mut self) -> Result<(), MemberError> {
        let speaks = matches!(self.lease.speech(), Speech::Until(end) if clock::boot() < end);
        let hello = Hello {
            state: if speaks {
                MembershipState::Speaks
            } else {
                MembershipState::Silent
            },
            ..self.settings.hello.clone()
        };
        self.stream = Some(Stream::open(&self.settings, hello, RECONNECT_TIMEOUT)?);
        self.heard_at = clock::boot();
        self.lease.on_reconnect();
        self.update(|view| view.failure = None);
        Ok(())
    }

    /// Silent first: another member may take the connections over as soon as the balancer knows.
    fn leave(&mut self) {
        self.lease.silence();
        if let Err(error) = self.enforce() {
            tracing::error!(%error, "the member is not silent, and leaves no pool");
            return;
        }
        if let Some(stream) = &mut self.stream {
            let _ = stream.send(&MemberMessage::Leave);
        }
    }
}

/// Waits until one of the descriptors can be read. Bit *n* says that the descriptor *n* can.
fn wait(fds: &[BorrowedFd<'_>], pause: Duration) -> Result<u32, MemberError> {
    let timeout = Timespec::try_from(pause).unwrap_or_default();
    let mut polled: Vec<PollFd<'_>> = fds
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(io::Error::from(error)).doing("wait"),
    }
    let ready = polled.iter().enumerate().map(|(index, fd)| {
        let is_ready = !fd.revents().is_empty();
        u32::from(is_ready) << index
    });
    Ok(ready.sum())
}
