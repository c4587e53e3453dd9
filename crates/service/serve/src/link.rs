//! The loggers on other machines: which of them is in use, whether it lives, and what is said to it.
//!
//! A logger is in use when three things are there: its control stream ([`LoggerClient`]), the keys
//! that it gave, and its answers to our probes ([`prober`]), which also show the data plane the way
//! to it. It is lost when one of the two is missing for longer than the operator allows. Then the
//! next in the list is tried, and all of them again each second; but with `--on-logger-loss=hold` only
//! the same one, because it alone has the records of the connections that wait.
//!
//! What is to be done about it is told as [`News`] and done by `service::link`.

mod attachment;
mod dial;
mod frames;
mod liveness;
mod preflight;
mod prober;
mod session;
mod survey;
mod unconfirmed_frames;

use std::{
    collections::VecDeque,
    net::{SocketAddr, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use channel::KeyRing;
use dataplane::PinDirectory;
use protocol::{DigestSeed, link::LinkKeys};
use rustix::event::{PollFd, PollFlags};

pub(crate) use self::{
    dial::Asks,
    preflight::check,
    survey::{Patience, Survey},
};
use self::{dial::Dialing, frames::Frames, session::Session};
use crate::{
    config::{LinkConfig, OnLoggerLoss},
    error::{ServeError, SystemContext},
    events::Code,
    logger_client::LoggerClient,
};

/// How often a logger that lives is asked whether it does.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// How often all loggers are tried when none answers.
const RETRY: Duration = Duration::from_secs(1);
/// How long keys are used.
const REKEY: Duration = Duration::from_secs(3600);
/// How often the key file is looked at.
const LOOK_AT_KEYS: Duration = Duration::from_secs(1);
/// Until a size is known: what every host must take, by IPv6.
const LEAST_MTU: u16 = 1280;
/// How often the ring is looked into in a row: its writers may be as fast as we are.
const ROUNDS: usize = 16;

/// Something that the data plane or the operator has to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    /// A logger was attached to, perhaps again: it has to be told how things stand.
    Attached,
    /// The data plane needs other settings: see [`Link::settings`].
    Settings,
    /// A logger is in use. `kept`: it has the records that it had.
    Up { kept: bool },
    /// A logger that is in use was started again, without the records.
    Emptied,
    /// The logger is lost.
    Lost { logger: SocketAddr, why: String },
    /// Something else that the operator should know.
    Trouble(Code, String),
}

/// What the data plane has to know of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) keys: LinkKeys,
    /// Largest IP packet, bytes.
    pub(crate) mtu: u16,
    /// The logger takes digests.
    pub(crate) digests: bool,
}

/// The loggers of a service.
pub(crate) struct Link {
    config: LinkConfig,
    asks: Asks,
    /// Another service has one of the addresses, as a logger has said to this one that did not serve.
    claimed: Option<String>,
    keys: KeyRing,
    session: Option<Session>,
    dialing: Option<(Dialing, UdpSocket)>,
    /// The one to be tried next, and when.
    next: usize,
    retry_at: Duration,
    /// Loggers that were tried since one was in use, or since all were.
    tried: usize,
    /// Why each could not be reached when that was last told.
    refused: Vec<Option<Refused>>,
    /// The operator knows that there is no logger.
    told_lost: bool,
    look_at_keys: Duration,
    frames: Frames,
    /// A barrier that no logger has answered.
    draining: Option<u64>,
    news: VecDeque<News>,
    /// The logger that was taken in use last, also by an earlier `serve`, and which of the service's
    /// sessions that is.
    latest: Option<SocketAddr>,
    number: u64,
    /// The logger that had the records of an earlier life, of which nothing here knew.
    inherited_from: Option<usize>,
    /// They are not known here yet: nobody else will do.
    awaits_heritage: bool,
}

/// Why a logger was not reached.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refused {
    why: String,
    /// No waiting will change it.
    for_good: bool,
}

impl Refused {
    fn of(error: &ServeError) -> Self {
        Self {
            why: error.to_string(),
            for_good: matches!(error, ServeError::LoggerUnreachable { error, .. } if error.is_configuration()),
        }
    }
}

impl Link {
    /// Nobody is called yet.
    pub(crate) fn new(
        config: LinkConfig,
        asks: Asks,
        (latest, number): (Option<SocketAddr>, u64),
        pins: &PinDirectory,
    ) -> Result<Self, ServeError> {
        let keys = KeyRing::load(&config.key_file)?;
        let next = config.loggers.iter().position(|at| Some(*at) == latest);
        Ok(Self {
            next: next.unwrap_or(0),
            refused: vec![None; config.loggers.len()],
            config,
            asks,
            claimed: None,
            keys,
            session: None,
            dialing: None,
            retry_at: Duration::ZERO,
            tried: 0,
            told_lost: false,
            look_at_keys: Duration::ZERO,
            frames: Frames::of(pins)?,
            draining: None,
            news: VecDeque::new(),
            latest,
            number,
            inherited_from: None,
            awaits_heritage: false,
        })
    }

    /// The logger in use, if its control stream is there.
    pub(crate) fn client(&mut self) -> Option<&mut LoggerClient> {
        self.session.as_mut()?.client.as_mut()
    }

    /// Something has gone wrong on the control stream.
    pub(crate) fn broken(&mut self, why: &ServeError, now: Duration) {
        if let Some(session) = &mut self.session {
            session.client = None;
            session.deaf.get_or_insert((now, why.to_string()));
            self.next = session.logger;
            self.retry_at = now;
        }
    }

    /// A logger is in use, as far as is known.
    pub(crate) fn is_up(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.up) && !self.told_lost
    }

    /// A logger has the records of an earlier life that nobody has taken up yet.
    pub(crate) fn awaits_heritage(&self) -> bool {
        self.awaits_heritage
    }

    /// What the key of the digests in those records is made of, if it is known: from now on that of ours, too.
    pub(crate) fn inherit_digests(&mut self) -> Option<DigestSeed> {
        let inherited = self.session.as_ref().and_then(|session| session.digests);
        self.asks.digests = inherited.or(self.asks.digests);
        inherited
    }

    /// They were taken up.
    pub(crate) fn has_heritage(&mut self) {
        self.awaits_heritage = false;
    }

    /// What loggers know is of no use: the service is this instance from now on.
    pub(crate) fn begin_anew(&mut self, instance: u64) {
        self.asks.attach.instance = instance;
        (self.session, self.dialing) = (None, None);
        (self.latest, self.inherited_from) = (None, None);
        self.awaits_heritage = false;
        self.next = 0;
        self.news.clear();
    }

    /// Clients are served from here on.
    pub(crate) fn serves(&mut self) {
        if let Some(claim) = &mut self.asks.claim {
            claim.serves = true;
        }
    }

    /// The other service that has one of the addresses, if that is why a logger refuses this one.
    pub(crate) fn claimed(&self) -> Option<&str> {
        self.claimed.as_deref()
    }

    /// By which number loggers know the service.
    pub(crate) fn instance(&self) -> u64 {
        self.asks.attach.instance
    }

    /// The logger in use, and which of our sessions that is.
    pub(crate) fn in_use(&self) -> Option<(SocketAddr, u64)> {
        Some((self.address()?, self.number))
    }

    /// The only logger that will do: nobody else has what is waited for.
    fn only_one(&self) -> Option<usize> {
        if self.awaits_heritage {
            return self.inherited_from;
        }
        if let Some(session) = &self.session {
            return Some(session.logger);
        }
        let hold = self.config.on_loss == OnLoggerLoss::Hold;
        let latest = |at: &SocketAddr| Some(*at) == self.latest;
        let latest = self.config.loggers.iter().position(latest);
        latest.filter(|_| hold)
    }

    /// All loggers were tried, and none is in use.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        self.tried >= self.config.loggers.len() && self.session.is_none()
    }

    /// Why all loggers refuse us, if they do.
    pub(crate) fn refused_by_all(&self) -> Option<String> {
        let each = |refused: &Option<Refused>| {
            let refused = refused.as_ref().filter(|refused| refused.for_good)?;
            Some(refused.why.clone())
        };
        let reasons: Option<Vec<String>> = self.refused.iter().map(each).collect();
        reasons.map(|reasons| reasons.join("; "))
    }

    /// What is said about the logger in `outlive status`.
    pub(crate) fn in_words(&self, now: Duration) -> String {
        let hold = match self.config.on_loss {
            OnLoggerLoss::Hold => "clients wait for it",
            OnLoggerLoss::Unprotect => "connections are unprotected",
        };
        match &self.session {
            Some(session) if session.up && !self.told_lost => {
                let at = self.config.loggers[session.logger];
                let mtu = session.prober.mtu().unwrap_or(0);
                let round_trip = session.prober.round_trip().unwrap_or_default();
                format!(
                    "{at}, answers in {:.2} ms, packets of {mtu} bytes",
                    round_trip.as_secs_f64() * 1000.0
                )
            }
            Some(session) if self.told_lost => format!(
                "{} does not answer for {:.1} s: {hold}",
                self.config.loggers[session.logger],
                session.missing(now).as_secs_f64(),
            ),
            Some(session) => format!("{}, attaching", self.config.loggers[session.logger]),
            None => format!("none answers: {hold}"),
        }
    }

    /// The logger, for a host that stands by and records nothing.
    pub(crate) fn granter_in_words(&self) -> String {
        match self.config.loggers.first() {
            Some(at) => format!("{at} answers, and keeps the record of the host that serves"),
            None => "none".into(),
        }
    }

    /// What happens when none answers, from now on.
    pub(crate) fn set_policy(&mut self, on_loss: OnLoggerLoss) {
        self.config.on_loss = on_loss;
    }

    /// The logger in use.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        let session = self.session.as_ref()?;
        Some(self.config.loggers[session.logger])
    }

    /// What the data plane has to know now.
    pub(crate) fn settings(&self) -> Result<Option<Settings>, ServeError> {
        let Some(session) = &self.session else {
            return Ok(None);
        };
        let local = session.socket.local_addr().doing("ask for our own port")?;
        Ok(Some(Settings {
            local,
            remote: self.config.loggers[session.logger],
            keys: session.keys,
            mtu: session.prober.mtu().unwrap_or(LEAST_MTU),
            digests: session.digests.is_some(),
        }))
    }

    /// How many probes the programs have seen.
    pub(crate) fn seen(&mut self, probes: u32, now: Duration) {
        if let Some(session) = &mut self.session {
            let answered = session.prober.answered();
            session.way.look(probes, answered, now);
        }
    }

    /// The data plane knows the link now: let it see the way, before it is told that there is a logger.
    pub(crate) fn show_the_way(&mut self, now: Duration) {
        if let Some(session) = &mut self.session {
            let probe = session.prober.one(now);
            let _ = session.socket.send(&probe); // as any other
        }
    }

    /// The logger in use was heard of: the data plane has its acknowledgements.
    pub(crate) fn alive(&mut self, now: Duration) {
        if let Some(session) = &mut self.session {
            session.prober.alive(now);
        }
    }

    /// How long nothing was heard of the logger; `None`: no logger is attached to.
    pub(crate) fn silence(&self, now: Duration) -> Option<Duration> {
        let session = self.session.as_ref()?;
        Some(session.prober.silence(now))
    }

    /// Ask the logger to say when it has recorded everything up to here; one that is not there now is
    /// asked when it is.
    pub(crate) fn drain(&mut self, token: u64, now: Duration) -> Result<(), ServeError> {
        self.draining = Some(token);
        // All that is in the ring goes first, however much waits by then: the gate is shut, it will
        // not be more.
        while self.client().is_some() {
            let more = self.frames.fetch()?;
            self.forward(now);
            if !more {
                break;
            }
        }
        if let Some(client) = self.client()
            && let Err(error) = client.barrier(token)
        {
            self.broken(&error, now);
        }
        Ok(())
    }

    /// A barrier that an earlier conversation has not answered is asked for anew.
    pub(crate) fn drain_again(&mut self, now: Duration) -> Result<(), ServeError> {
        self.draining.map_or(Ok(()), |token| self.drain(token, now))
    }

    /// The barrier with this token is over: answered, or without a logger. Tells whether the barrier belongs to
    /// the frames.
    pub(crate) fn drained(&mut self, token: u64) -> bool {
        if self.draining == Some(token) {
            self.draining = None;
        }
        self.frames.confirmed(token)
    }

    /// A barrier that nobody has answered.
    pub(crate) fn draining(&self) -> Option<u64> {
        self.draining
    }

    /// Read what the ring holds for the logger, but not more than it takes. To be called before the
    /// events of the data plane are heard: that a connection is recorded again is told there, the
    /// logger must know it before what follows, and that may be in the ring already.
    pub(crate) fn fetch(&mut self) -> Result<(), ServeError> {
        let discard = self.told_lost && self.config.on_loss == OnLoggerLoss::Unprotect;
        for _ in 0..ROUNDS {
            let queued = self.client().map(|client| client.queued());
            let accepts = queued.is_some_and(|queued| self.frames.accepts_more(queued));
            // Without a logger, and if it may come back, they are safe where they are.
            if !accepts && !discard {
                break;
            }
            let more = self.frames.fetch()?;
            if discard {
                self.frames.discard();
            }
            if !more {
                break;
            }
        }
        Ok(())
    }

    /// What was fetched, to the logger if there is one.
    fn forward(&mut self, now: Duration) {
        let client = self.session.as_mut().and_then(|one| one.client.as_mut());
        if let Some(client) = client
            && let Err(error) = self.frames.forward(client, now)
        {
            self.broken(&error, now);
        }
    }

    /// One look at everything. What came of it is told by [`Self::news`].
    pub(crate) fn poll(&mut self, now: Duration) {
        self.look_at_keys(now);
        self.look_at_dialing(now);
        self.hear(now);
        self.ask(now);
        self.rekey(now);
        self.judge(now);
        self.dial(now);
        self.forward(now);
    }

    /// What is to be told, oldest first.
    pub(crate) fn news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// When [`Self::poll`] has something to do by itself.
    pub(crate) fn due_at(&self) -> Duration {
        let probe = self.session.as_ref().map(|session| session.prober.due_at());
        let dial = (self.wants_dial()).then_some(self.retry_at);
        let due = [probe, dial, Some(self.look_at_keys)].into_iter().flatten();
        due.min().unwrap_or(self.look_at_keys)
    }

    /// Everything to be waited for.
    pub(crate) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        self.watch_loggers(fds);
        let session = self.session.as_ref();
        if let Some(client) = session.and_then(|session| session.client.as_ref()) {
            let queued = client.queued();
            if queued > 0 {
                fds.push(PollFd::from_borrowed_fd(client.as_fd(), PollFlags::OUT));
            }
            if self.frames.accepts_more(queued) {
                let ring: BorrowedFd<'a> = self.frames.as_fd();
                fds.push(PollFd::from_borrowed_fd(ring, PollFlags::IN));
            }
        }
    }

    /// What loggers say; [`Self::poll`] hears it.
    pub(crate) fn watch_loggers<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let dialing = self.dialing.as_ref().map(|(dialing, _)| dialing.as_fd());
        let session = self.session.as_ref();
        let socket = session.map(|session| session.socket.as_fd());
        let client = session.and_then(|session| session.client.as_ref());
        let all = [dialing, socket, client.map(LoggerClient::as_fd)];
        let watched = all.into_iter().flatten();
        fds.extend(watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    }

    /// Somebody wants other keys to be used: read the file now, and take new ones for the link.
    pub(crate) fn other_keys(&mut self) {
        self.look_at_keys = Duration::ZERO;
        if let Some(session) = &mut self.session {
            session.rekey_at = Duration::ZERO;
        }
    }

    /// The service ends.
    pub(crate) fn shut_down(self) {
        if let Some(client) = self.session.and_then(|session| session.client) {
            client.shut_down();
        }
    }

    fn trouble(&mut self, code: Code, message: String) {
        self.news.push_back(News::Trouble(code, message));
    }
}
