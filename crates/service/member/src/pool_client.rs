//! The member's streams to the balancers: settings, the leases, and the table of the pool.
//!
//! A separate thread: no work of the member may cost a lease. [`pool::Leases`] makes the decisions; the programs
//! enforce the leases, even after the death of this process ([`MemberFence`]).

mod stream;

use std::{
    io,
    net::SocketAddr,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use channel::KeyRing;
use dataplane::MemberFence;
use lease::{Speech, Terms};
use pool::{Leases, Link};
use protocol::pool::{BalancerMessage, Config, Hello, MemberMessage, Refused, Table};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    clock,
    error::{MemberError, SystemContext},
};
use stream::{Connecting, RECONNECT_TIMEOUT, Stream};

/// Time for a connection to a balancer, of a member that joins.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed connection.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
/// A stream is given up after this time without an answer.
const UNANSWERED_TIMEOUT: Duration = Duration::from_secs(2);

/// Where the balancers are, and who asks.
#[derive(Debug, Clone)]
pub(crate) struct PoolSettings {
    /// The balancers, at least one.
    pub balancers: Vec<SocketAddr>,
    /// The file with the keys that balancers and members share.
    pub key_file: PathBuf,
    /// The first message.
    pub hello: Hello,
}

/// State of the pool, as the balancers have told.
#[derive(Debug, Clone)]
pub(crate) struct PoolView {
    /// The newest table.
    pub(crate) table: Table,
    /// Until when the member may send (`CLOCK_BOOTTIME`).
    pub(crate) speech: Speech,
    /// Why the member is no member any more.
    pub(crate) refused: Option<Refused>,
    /// Why a balancer has no stream.
    pub(crate) failure: Option<String>,
    /// A balancer was started anew with settings that the member does not have.
    pub(crate) has_other_settings: bool,
}

/// An admitted member.
pub(crate) struct Admission {
    stream: Stream,
    link: Link,
    settings: PoolSettings,
    /// Settings of the pool.
    pub config: Config,
    first: Vec<BalancerMessage>,
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
    let (mut config, mut table) = (None, None);
    loop {
        match stream.wait_for(protocol::control::Decoder::pull)? {
            BalancerMessage::Config(received) => config = Some(received),
            BalancerMessage::Table(received) => table = Some(received),
            BalancerMessage::Refused { reason } => return Err(MemberError::Refused(reason)),
            _ => {}
        }
        if let (Some(config), Some(table)) = (&config, &table) {
            return Ok((config.clone(), table.clone()));
        }
    }
}

impl Admission {
    /// Joins the pool, or continues a membership, with the first balancer that answers.
    ///
    /// # Errors
    /// No balancer can be reached, or a balancer refuses the member.
    pub(crate) fn join(settings: PoolSettings) -> Result<Self, MemberError> {
        let limit = match settings.balancers.len() {
            1 => JOIN_TIMEOUT,
            _ => RECONNECT_TIMEOUT,
        };
        let mut failure = MemberError::NoAnswer;
        for (index, at) in settings.balancers.iter().enumerate() {
            match Self::at(Link(index), *at, &settings, limit) {
                Ok(admission) => return Ok(admission),
                Err(error @ MemberError::Refused(_)) => return Err(error),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn at(
        link: Link,
        at: SocketAddr,
        settings: &PoolSettings,
        limit: Duration,
    ) -> Result<Self, MemberError> {
        let mut stream = Stream::open(at, &settings.key_file, settings.hello.clone(), limit)?;
        let (mut config, mut first) = (None, Vec::new());
        while !matches!(first.last(), Some(BalancerMessage::Table(_))) {
            match stream.wait_for(protocol::control::Decoder::pull)? {
                BalancerMessage::Config(received) => config = Some(received),
                BalancerMessage::Refused { reason } => return Err(MemberError::Refused(reason)),
                message => first.push(message),
            }
        }
        Ok(Self {
            stream,
            link,
            settings: settings.clone(),
            config: config.ok_or(MemberError::NoAnswer)?,
            first,
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
        let doing = "make a socket pair";
        let (changed, tell) = UnixStream::pair().doing(doing)?;
        let (wake, woken) = UnixStream::pair().doing(doing)?;
        let (connected, connect_done) = UnixStream::pair().doing(doing)?;
        for end in [&changed, &tell, &woken, &connected] {
            end.set_nonblocking(true).doing(doing)?;
        }
        let terms = Terms::of_config(&self.config).map_err(MemberError::Terms)?;
        let now = clock::boot();
        let balancers = self.settings.balancers.len();
        let leases = Leases::new(self.settings.hello.membership, terms, balancers, now);
        let view = PoolView {
            table: leases.table().clone(),
            speech: Speech::Silent,
            refused: None,
            failure: None,
            has_other_settings: false,
        };
        let shared = Arc::new(Mutex::new(view));
        let mut keeper = Keeper {
            shared: Arc::clone(&shared),
            slots: (0..balancers).map(|_| Slot::default()).collect(),
            quiescence: Duration::from_millis(self.config.quiescence_ms.into()),
            settings: self.settings,
            config: self.config,
            leases,
            fence,
            drains: false,
            tell,
            connected,
            connect_done,
        };
        keeper.adopt(self.link, self.stream);
        for message in self.first {
            keeper.on_message(self.link, message)?;
        }
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
    /// A byte asks to drain. The thread ends when this is closed.
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

    /// Asks the balancers for no new connections.
    pub(crate) fn drain(&self) {
        if let Some(wake) = &self.wake {
            let _ = io::Write::write(&mut &*wake, &[1]);
        }
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

/// The stream to a balancer, if there is one.
#[derive(Default)]
struct Slot {
    stream: Option<Stream>,
    connecting: Option<Connecting>,
    /// The balancer has admitted the member.
    is_admitted: bool,
    heard_at: Duration,
    /// Next connection.
    retry_at: Duration,
    failure: Option<String>,
}

struct Keeper {
    shared: Arc<Mutex<PoolView>>,
    slots: Vec<Slot>,
    settings: PoolSettings,
    /// Of the first balancer that has admitted the member.
    config: Config,
    leases: Leases,
    fence: MemberFence,
    quiescence: Duration,
    drains: bool,
    tell: UnixStream,
    /// A connection is open, or has failed.
    connected: UnixStream,
    connect_done: UnixStream,
}

impl Keeper {
    fn run(&mut self, woken: &UnixStream) {
        if let Err(error) = supervise::become_urgent() {
            tracing::debug!(%error, "the lease is kept with the urgency of other threads");
        }
        while !self.is_over() {
            match self.step(woken) {
                Ok(true) => {}
                Ok(false) => return self.leave(),
                // The lease ends by itself.
                Err(error) => tracing::error!(%error, "the lease is not kept"),
            }
        }
    }

    fn is_over(&self) -> bool {
        lock(&self.shared).refused.is_some()
    }

    fn links(&self) -> impl Iterator<Item = Link> + use<> {
        (0..self.slots.len()).map(Link)
    }

    /// Whether the member stays in the pool.
    fn step(&mut self, woken: &UnixStream) -> Result<bool, MemberError> {
        for link in self.links() {
            if let Err(error) = self.advance(link) {
                self.lose_stream(link, &error);
            }
        }
        let (stops, ready) = self.wait(woken)?;
        if stops && !self.begin_drain(woken) {
            return Ok(false);
        }
        for link in self.links() {
            let received = match ready.contains(&link) {
                true => self.receive(link),
                false => self.check(link),
            };
            if let Err(error) = received {
                self.lose_stream(link, &error);
            }
        }
        Ok(true)
    }

    /// Whether the member is asked to drain, not to leave.
    fn begin_drain(&mut self, mut woken: &UnixStream) -> bool {
        self.drains = io::Read::read(&mut woken, &mut [0; 8]).is_ok_and(|read| read > 0);
        if self.drains {
            for slot in self.slots.iter_mut().filter(|slot| slot.is_admitted) {
                if let Some(stream) = &mut slot.stream {
                    // The next stream repeats the message.
                    let _ = stream.send(&MemberMessage::Drain);
                }
            }
        }
        self.drains
    }

    /// Connects, or sends the messages that are due.
    fn advance(&mut self, link: Link) -> Result<(), MemberError> {
        let (now, slot) = (clock::boot(), &mut self.slots[link.0]);
        let Some(stream) = &mut slot.stream else {
            match slot.connecting.as_ref().map(Connecting::take) {
                None if slot.retry_at <= now => self.connect(link)?,
                Some(Some(opened)) => {
                    slot.connecting = None;
                    self.adopt(link, opened?);
                }
                None | Some(None) => {}
            }
            return Ok(());
        };
        for message in self.leases.due(link, now) {
            stream.send(&message)?;
        }
        Ok(())
    }

    fn connect(&mut self, link: Link) -> Result<(), MemberError> {
        let hello = Hello {
            state: self.leases.state(clock::boot()),
            epoch: self.leases.table().epoch,
            ..self.settings.hello.clone()
        };
        let (at, key_file) = (self.settings.balancers[link.0], &self.settings.key_file);
        let connecting = Connecting::begin(at, key_file, hello, &self.connect_done);
        self.slots[link.0].connecting = Some(connecting.doing("start a thread")?);
        Ok(())
    }

    fn adopt(&mut self, link: Link, stream: Stream) {
        self.slots[link.0] = Slot {
            stream: Some(stream),
            heard_at: clock::boot(),
            failure: self.slots[link.0].failure.take(),
            ..Slot::default()
        };
    }

    /// Whether the member leaves, and the links with something to read.
    fn wait(&self, woken: &UnixStream) -> Result<(bool, Vec<Link>), MemberError> {
        let now = clock::boot();
        let mut fds = vec![woken.as_fd(), self.connected.as_fd()];
        let (mut links, mut due) = (Vec::new(), now + UNANSWERED_TIMEOUT);
        for (link, slot) in self.links().zip(&self.slots) {
            match &slot.stream {
                Some(stream) => {
                    fds.push(stream.as_fd());
                    links.push(link);
                    due = due.min(self.leases.due_at(link, now).unwrap_or(due));
                }
                None if slot.connecting.is_none() => due = due.min(slot.retry_at),
                None => {}
            }
        }
        let ready = wait(&fds, due.saturating_sub(now))?;
        let mut sink = [0; 64];
        while io::Read::read(&mut &self.connected, &mut sink).is_ok_and(|read| read == sink.len()) {
        }
        links.retain(|link| {
            let place = { self.links() }.filter(|it| self.slots[it.0].stream.is_some());
            let place = place.take_while(|it| it != link).count();
            ready & (4 << place) != 0
        });
        Ok((ready & 1 != 0, links))
    }

    fn receive(&mut self, link: Link) -> Result<(), MemberError> {
        let Some(stream) = &mut self.slots[link.0].stream else {
            return Ok(());
        };
        if !stream.read()? {
            return Err(MemberError::NoAnswer);
        }
        while let Some(stream) = &mut self.slots[link.0].stream
            && let Some(message) = stream.message()?
        {
            self.slots[link.0].heard_at = clock::boot();
            self.on_message(link, message)?;
        }
        Ok(())
    }

    fn check(&self, link: Link) -> Result<(), MemberError> {
        let slot = &self.slots[link.0];
        let silent = clock::boot().saturating_sub(slot.heard_at);
        match slot.stream.is_some() && silent > UNANSWERED_TIMEOUT {
            true => Err(MemberError::NoAnswer),
            false => Ok(()),
        }
    }

    fn on_message(&mut self, link: Link, message: BalancerMessage) -> Result<(), MemberError> {
        match message {
            BalancerMessage::Lease { number, term_us } => {
                let term = Duration::from_micros(term_us.into());
                if self.leases.on_grant(link, number, term) {
                    self.enforce()?;
                }
            }
            BalancerMessage::Granter { balancer } => self.leases.on_granter(link, balancer),
            BalancerMessage::Table(table) => self.on_table(link, table)?,
            BalancerMessage::Config(config) => self.compare(link, &config)?,
            BalancerMessage::Refused { reason } => self.on_refusal(reason)?,
        }
        Ok(())
    }

    fn on_table(&mut self, link: Link, table: Table) -> Result<(), MemberError> {
        let is_alone = self.slots.len() == 1;
        if !is_alone && !self.leases.is_granter(link) {
            return Err(MemberError::NoRegister {
                at: self.settings.balancers[link.0],
            });
        }
        if !std::mem::replace(&mut self.slots[link.0].is_admitted, true) {
            self.leases.on_connect(link);
            self.slots[link.0].failure = None;
            if let Some(stream) = self.slots[link.0].stream.as_mut().filter(|_| self.drains) {
                stream.send(&MemberMessage::Drain)?;
            }
            self.show_failures();
        }
        if self.leases.on_table(table, clock::boot()) {
            self.fence.set_quiescence(clock::boot() + self.quiescence)?;
            let table = self.leases.table().clone();
            self.update(|view| view.table = table);
            self.enforce()?;
        }
        if self.leases.is_over() {
            self.update(|view| view.refused = Some(Refused::Dead));
        }
        Ok(())
    }

    /// Two balancers of the same pool have the same settings.
    fn compare(&self, link: Link, config: &Config) -> Result<(), MemberError> {
        let is_same = config.key == self.config.key && config.addresses == self.config.addresses;
        match is_same || self.slots.len() == 1 {
            true => {
                let has_other = *config != self.config;
                if has_other != lock(&self.shared).has_other_settings {
                    self.update(|view| view.has_other_settings = has_other);
                }
                Ok(())
            }
            false => Err(MemberError::OtherSettings {
                at: self.settings.balancers[link.0],
            }),
        }
    }

    /// Of several balancers, one that does not admit the member has no more to say than one that does not answer.
    fn on_refusal(&mut self, reason: Refused) -> Result<(), MemberError> {
        if self.slots.len() > 1 && reason != Refused::Dead {
            return Err(MemberError::Refused(reason));
        }
        self.leases.silence();
        self.enforce()?;
        self.update(|view| view.refused = Some(reason));
        Ok(())
    }

    fn enforce(&self) -> Result<(), MemberError> {
        let speech = self.leases.speech();
        let end = match speech {
            Speech::Until(end) => end,
            // A member of a pool always needs a lease.
            Speech::Silent | Speech::Free => Duration::ZERO,
        };
        self.fence.set_lease(end)?;
        let was_silent = lock(&self.shared).speech == Speech::Silent;
        if was_silent != (speech == Speech::Silent) {
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

    fn lose_stream(&mut self, link: Link, error: &MemberError) {
        tracing::debug!(%error, "no stream to a balancer");
        self.leases.on_lost(link);
        self.slots[link.0] = Slot {
            retry_at: clock::boot() + RECONNECT_PAUSE,
            failure: Some(error.to_string()),
            ..Slot::default()
        };
        self.show_failures();
    }

    fn show_failures(&self) {
        let failures = self.slots.iter().filter_map(|slot| slot.failure.clone());
        let failures: Vec<String> = failures.collect();
        let failure = (!failures.is_empty()).then(|| failures.join("; "));
        self.update(|view| view.failure = failure);
    }

    /// Silent first: another member may take the connections over as soon as a balancer knows.
    fn leave(&mut self) {
        self.leases.silence();
        if let Err(error) = self.enforce() {
            tracing::error!(%error, "the member is not silent, and leaves no pool");
            return;
        }
        for slot in &mut self.slots {
            if let Some(stream) = &mut slot.stream {
                let _ = stream.send(&MemberMessage::Leave);
            }
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
