//! Renews the lease of this host, or waits for a lease.
//!
//! A separate thread, with a separate stream to the logger: no work of `serve` may cost the lease. The crate `lease`
//! makes the decisions; the data plane enforces the lease, even after the death of `serve` ([`Fence`]).

use std::{
    io::Write,
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

use dataplane::Fence;
use lease::{Holder, Speech};
use protocol::control::{Claim, Former};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    clock,
    error::{ServeError, SystemContext},
    logger_client::{LoggerClient, LoggerMessage},
};

/// Time for a connection to the logger.
pub(crate) const LOGGER_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay after a failed connection.
const RECONNECT_DELAY: Duration = Duration::from_millis(100);
/// Time for the logger to acknowledge a released epoch, and to report the position before the release.
const POSITION_REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// A stream is given up after this many renewal intervals without an answer, and at least this time.
const UNANSWERED_INTERVALS: u32 = 8;
const UNANSWERED_TIMEOUT_MIN: Duration = Duration::from_millis(600);

/// State of the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Position {
    /// Epoch of this instance, until the release of the epoch.
    pub(crate) epoch: Option<u32>,
    /// End of the permission to send, by [`clock::boot`].
    pub(crate) speech: Speech,
    /// Epoch of another serving host: this instance is over.
    pub(crate) superseded: Option<u32>,
    /// Epoch of another host that serves, if this host is an effective standby of that host.
    pub(crate) stands_by: Option<u32>,
    /// Another host would serve as soon as this host is silent.
    pub(crate) standby: bool,
    /// End of the epoch before.
    pub(crate) former: Former,
    /// The logger has answered.
    pub(crate) has_answered: bool,
    /// Reason of a missing answer.
    pub(crate) failure: Option<String>,
    /// Another service has an address of this service, as the logger told a host that did not serve.
    pub(crate) claimed: Option<String>,
    pub(crate) hosts: Hosts,
    /// Number of the present stream to the logger, counted from 1. A new number means that the stream before had ended
    /// or hung.
    pub(crate) stream: u64,
}

/// Names of the other hosts of the service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Hosts {
    /// The serving host, or the last serving host.
    pub(crate) serves: Option<String>,
    /// The standby, or the last standby.
    pub(crate) stands_by: Option<String>,
    /// The version of determinants of the serving host; 0: unknown.
    pub(crate) determinants: u32,
}

impl Hosts {
    /// Keeps the name of a host that is gone: events name the host later.
    fn learn(&mut self, serves: String, stands_by: String, determinants: u32) {
        if !serves.is_empty() {
            self.determinants = determinants;
        }
        for (known, name) in [(&mut self.serves, serves), (&mut self.stands_by, stands_by)] {
            if !name.is_empty() {
                *known = Some(name);
            }
        }
    }
}

/// The logger that grants epochs.
pub(crate) struct Granting {
    pub(crate) at: SocketAddr,
    pub(crate) key_file: PathBuf,
    /// The first message.
    pub(crate) claim: Claim,
}

/// Handle of the renewal thread.
pub(crate) struct LeaseClient {
    shared: Arc<Shared>,
    /// Readable when the position has changed.
    changed: UnixStream,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    inner: Mutex<Inner>,
    changed: UnixStream,
}

struct Inner {
    holder: Holder,
    fence: Fence,
    /// The fence has the permission of the holder.
    enforced: bool,
    /// The fence stays shut.
    silenced: bool,
    has_answered: bool,
    /// Requests and answers of the present stream. The stream keeps the order.
    asked: u64,
    answered: u64,
    /// Number of streams up to now.
    streams: u64,
    /// The next request is due.
    request_due: bool,
    failure: Option<String>,
    claimed: Option<String>,
    hosts: Hosts,
    ends: bool,
}

impl LeaseClient {
    /// Starts the renewal. The fence enforces the permission from here on.
    pub(crate) fn start(
        holder: Holder,
        fence: Fence,
        logger: Granting,
    ) -> Result<Self, ServeError> {
        let doing = "start the thread that keeps the lease";
        let (changed, tell) = UnixStream::pair().doing(doing)?;
        let (wake, woken) = UnixStream::pair().doing(doing)?;
        for end in [&changed, &tell, &wake, &woken] {
            end.set_nonblocking(true).doing(doing)?;
        }
        let mut inner = Inner {
            holder,
            fence,
            enforced: false,
            silenced: false,
            has_answered: false,
            asked: 0,
            answered: 0,
            streams: 0,
            request_due: false,
            failure: None,
            claimed: None,
            hosts: Hosts::default(),
            ends: false,
        };
        inner.enforce()?;
        let shared = Arc::new(Shared {
            inner: Mutex::new(inner),
            changed: tell,
        });
        let renewal = RenewalThread {
            shared: Arc::clone(&shared),
            woken,
            logger,
            client: None,
            connect_at: Duration::ZERO,
            answered_at: clock::boot(),
        };
        let thread = std::thread::Builder::new()
            .name("lease".into())
            .spawn(move || renewal.run())
            .doing(doing)?;
        Ok(Self {
            shared,
            changed,
            wake,
            thread: Some(thread),
        })
    }

    pub(crate) fn position(&self) -> Position {
        let inner = self.shared.lock();
        let holder = &inner.holder;
        Position {
            epoch: holder.epoch(),
            speech: holder.speech(),
            superseded: holder.superseded(),
            stands_by: holder.stands_by(),
            standby: holder.has_standby(),
            former: holder.former(),
            has_answered: inner.has_answered,
            failure: inner.failure.clone(),
            claimed: inner.claimed.clone(),
            hosts: inner.hosts.clone(),
            stream: inner.streams,
        }
    }

    /// The epoch in which this host serves.
    pub(crate) fn epoch(&self) -> Option<u32> {
        self.position().epoch
    }

    /// Another host serves, and this host is a standby, as the logger has just said.
    pub(crate) fn stands_by(&self) -> bool {
        let position = self.position();
        position.stands_by.is_some() && position.failure.is_none()
    }

    /// For people.
    pub(crate) fn in_words(&self) -> String {
        let position = self.position();
        let failure = position.failure;
        let failure = failure.map_or_else(String::new, |why| format!("; {why}"));
        let now = clock::boot();
        match (position.epoch, position.speech) {
            (Some(epoch), Speech::Free) => {
                format!("epoch {epoch}, without an end: there is no standby{failure}")
            }
            (Some(epoch), Speech::Until(end)) if now < end => {
                let left = (end - now).as_millis();
                format!("epoch {epoch}, for {left} ms more{failure}")
            }
            (Some(epoch), _) => format!("epoch {epoch} is over: this host is silent{failure}"),
            (None, _) => match position.stands_by {
                Some(epoch) => format!("standing by for epoch {epoch}{failure}"),
                None => format!("none yet{failure}"),
            },
        }
    }

    /// The position may have changed since this was readable last.
    pub(crate) fn seen(&self) {
        let mut drain = [0u8; 64];
        while rustix::io::read(&self.changed, &mut drain).is_ok_and(|len| len > 0) {}
    }

    /// If the logger has never answered, and the operator has asserted that no other host serves: send without a lease.
    /// Returns whether this host now sends without a lease.
    pub(crate) fn serve_alone(&self) -> Result<bool, ServeError> {
        let mut inner = self.shared.lock();
        if inner.has_answered {
            return Ok(false);
        }
        inner.holder = inner.holder.clone().resumed(0, Speech::Free);
        inner.enforce()?;
        Ok(true)
    }

    /// The position that the logger knows now; `None`: the logger does not answer.
    pub(crate) fn position_now(&self) -> Option<Position> {
        let mut inner = self.shared.lock();
        inner.request_due = true;
        let next = inner.asked + 1;
        drop(inner);
        self.wake();
        let until = clock::boot() + POSITION_REPLY_TIMEOUT;
        while clock::boot() < until {
            let answered = self.shared.lock().answered;
            if answered >= next {
                return Some(self.position());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// Speak no more, whatever is granted.
    pub(crate) fn silence(&self) -> Result<(), ServeError> {
        let mut inner = self.shared.lock();
        inner.silenced = true;
        inner.enforce()
    }

    /// Stop sending, and let a standby take over at once; or stop being a standby. Waits for the logger, but not for
    /// long: without this message, the logger sees the lease expire.
    pub(crate) fn release(self) -> Result<(), ServeError> {
        self.silence()?;
        let mut inner = self.shared.lock();
        let nobody_knows = !inner.has_answered && inner.holder.epoch().is_none();
        if nobody_knows || inner.holder.superseded().is_some() {
            return Ok(());
        }
        inner.holder.release();
        drop(inner);
        self.wake();
        let until = clock::boot() + POSITION_REPLY_TIMEOUT;
        while clock::boot() < until && self.position().superseded.is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn wake(&self) {
        let _ = (&self.wake).write(&[0]); // a full pipe wakes the thread as well
    }
}

impl AsFd for LeaseClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changed.as_fd()
    }
}

impl Drop for LeaseClient {
    fn drop(&mut self) {
        self.shared.lock().ends = true;
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// A thread that panicked left a consistent state: each change is a single assignment.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self) {
        let _ = (&self.changed).write(&[0]);
    }
}

/// The part of the holder's state that wakes the service.
#[derive(Debug, PartialEq, Eq)]
struct State {
    epoch: Option<u32>,
    superseded: Option<u32>,
    stands_by: Option<u32>,
    standby: bool,
    free: bool,
}

impl Inner {
    /// Gives the data plane the end of the permission to send.
    fn enforce(&mut self) -> Result<(), ServeError> {
        self.enforced = false;
        let speech = if self.silenced {
            Speech::Silent
        } else {
            self.holder.speech()
        };
        self.fence.set_lease(match speech {
            Speech::Silent => Some(Duration::ZERO),
            Speech::Until(end) => Some(end),
            Speech::Free => None,
        })?;
        self.enforced = true;
        Ok(())
    }

    fn state(&self) -> State {
        let holder = &self.holder;
        State {
            epoch: holder.epoch(),
            superseded: holder.superseded(),
            stands_by: holder.stands_by(),
            standby: holder.has_standby(),
            free: holder.speech() == Speech::Free,
        }
    }
}

/// State of the renewal thread.
struct RenewalThread {
    shared: Arc<Shared>,
    woken: UnixStream,
    logger: Granting,
    client: Option<LoggerClient>,
    connect_at: Duration,
    /// Time of the last message of the logger, or of the connection.
    answered_at: Duration,
}

impl RenewalThread {
    fn run(mut self) {
        if let Err(error) = supervise::become_urgent() {
            tracing::warn!(%error, "the lease waits for a processor like others: it may expire before it is renewed");
        }
        while !self.shared.lock().ends {
            if let Err(error) = self.run_once() {
                self.client = None;
                self.connect_at = clock::boot() + RECONNECT_DELAY;
                if let ServeError::AddressClaimed(why) = &error {
                    self.shared.lock().claimed = Some(why.clone());
                }
                self.note(Some(error.to_string()));
            }
        }
    }

    fn run_once(&mut self) -> Result<(), ServeError> {
        let now = clock::boot();
        if self.client.is_none() {
            if now < self.connect_at {
                self.wait(self.connect_at - now)?;
                return Ok(());
            }
            self.client = Some(self.connect()?);
            self.answered_at = clock::boot();
            let mut inner = self.shared.lock();
            (inner.asked, inner.answered) = (0, 0);
            inner.streams += 1;
        }
        let due = self.ask()?;
        self.wait(due.saturating_sub(clock::boot()))?;
        self.listen()
    }

    fn connect(&self) -> Result<LoggerClient, ServeError> {
        let Granting {
            at,
            key_file,
            claim,
        } = &self.logger;
        let claim = Claim {
            serves: self.shared.lock().holder.epoch().is_some(),
            ..claim.clone()
        };
        // The stream that attaches reports another owner of an address.
        let client = LoggerClient::call(*at, key_file, LOGGER_CONNECT_TIMEOUT)?;
        let (client, _) = client.claiming(&claim)?;
        Ok(client)
    }

    /// Sends a request if a request is due. Returns when the next request is due.
    fn ask(&mut self) -> Result<Duration, ServeError> {
        let mut inner = self.shared.lock();
        // A request reports the state of the data plane.
        if !inner.enforced {
            inner.enforce()?;
        }
        let now = clock::boot();
        let request = if now >= inner.holder.asks_at() || std::mem::take(&mut inner.request_due) {
            inner.holder.ask(now)
        } else {
            None
        };
        let due = inner.holder.asks_at();
        let over = inner.holder.superseded().is_some();
        inner.asked += u64::from(request.is_some());
        drop(inner);
        if let (Some(request), Some(client)) = (request, &mut self.client) {
            client.ask_for_lease(request)?;
        }
        // Then no request is due any more.
        Ok(if over {
            now + LOGGER_CONNECT_TIMEOUT
        } else {
            due
        })
    }

    fn wait(&self, most: Duration) -> Result<(), ServeError> {
        let timeout = Timespec::try_from(most).unwrap_or_default();
        let mut fds = vec![PollFd::new(&self.woken, PollFlags::IN)];
        let client = self.client.as_ref();
        fds.extend(client.map(|client| PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN)));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).doing("wait for the answer about the lease"),
        }
        let mut drain = [0u8; 16];
        let _ = rustix::io::read(&self.woken, &mut drain);
        Ok(())
    }

    fn listen(&mut self) -> Result<(), ServeError> {
        let Some(client) = &mut self.client else {
            return Ok(());
        };
        client.listen()?;
        let mut answers = Vec::new();
        while let Some(said) = client.next_message() {
            match said {
                LoggerMessage::Lease(answer) => answers.push(answer),
                LoggerMessage::Hosts(serves, stands_by, determinants) => {
                    let hosts = &mut self.shared.lock().hosts;
                    hosts.learn(serves, stands_by, determinants);
                }
                _ => {}
            }
        }
        let mut inner = self.shared.lock();
        let now = clock::boot();
        let before = inner.state();
        for answer in &answers {
            inner.holder.on_answer(now, answer);
        }
        if !answers.is_empty() {
            inner.has_answered = true;
            inner.answered += u64::try_from(answers.len()).unwrap_or_default();
            inner.enforce()?;
        }
        let after = inner.state();
        let patience = (inner.holder.interval() * UNANSWERED_INTERVALS).max(UNANSWERED_TIMEOUT_MIN);
        drop(inner);
        if answers.is_empty() {
            if now.saturating_sub(self.answered_at) > patience {
                return Err(ServeError::Logger(
                    "it does not answer about the lease".into(),
                ));
            }
            return Ok(());
        }
        self.answered_at = now;
        if before != after {
            self.shared.notify();
        }
        self.note(None);
        Ok(())
    }

    fn note(&self, failure: Option<String>) {
        let mut inner = self.shared.lock();
        if inner.failure != failure {
            inner.failure = failure;
            drop(inner);
            self.shared.notify();
        }
    }
}
