//! The loggers on other machines: the logger in use, its liveness, and the messages to it.
//!
//! A logger is in use when three things are present: the control stream ([`LoggerClient`]), the keys from the logger,
//! and answers to probes ([`prober`]). The probes also show the data plane the route to the logger. The logger is lost
//! when control stream or answers are missing for longer than the operator allows. Then `serve` tries the next logger
//! of the list, and all loggers again each second. With `--on-logger-loss=hold` only the same logger is tried, because
//! only this logger has the records of the waiting connections.
//!
//! Consequences are [`LinkEvent`]s, which `service::link` handles.

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
    dial::AttachRequest,
    preflight::check,
    survey::{Survey, SurveyTimeouts},
};
use self::{dial::DialAttempt, frames::Frames, session::Session};
use crate::{
    config::{LinkConfig, OnLoggerLoss},
    error::{ServeError, SystemContext},
    events::Code,
    logger_client::LoggerClient,
};

/// Interval between probes of a logger that answers.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between tries of all loggers while no logger answers.
const RETRY: Duration = Duration::from_secs(1);
/// Lifetime of the link keys.
const REKEY: Duration = Duration::from_secs(3600);
/// Interval between looks at the key file.
const KEY_FILE_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// MTU until a size is known: every IPv6 host accepts this size.
const LEAST_MTU: u16 = 1280;
/// Most reads of the ring in a row: writers of the ring may be as fast as `serve`.
const ROUNDS: usize = 16;

/// A change that concerns the data plane or the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkEvent {
    /// Attached to a logger, perhaps again: the logger needs the state of the service.
    Attached,
    /// The data plane needs other settings: see [`Link::settings`].
    Settings,
    /// A logger is in use. `kept`: the logger still has the earlier records.
    Up { kept: bool },
    /// A logger that is in use was started again, without the records.
    Emptied,
    /// The logger is lost.
    Lost { logger: SocketAddr, why: String },
    /// Something else that the operator should know.
    Warning(Code, String),
}

/// Settings of the link for the data plane.
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
    request: AttachRequest,
    /// Another service has an address of this service, as a logger answered before this service served.
    claimed: Option<String>,
    keys: KeyRing,
    session: Option<Session>,
    dial_attempt: Option<(DialAttempt, UdpSocket)>,
    /// Next logger to try, and the time of the try.
    next: usize,
    retry_at: Duration,
    /// Loggers tried since a logger was in use, or since all loggers were tried.
    tried: usize,
    /// Why each logger could not be reached, as last reported.
    refused: Vec<Option<Refused>>,
    /// The operator knows that there is no logger.
    is_loss_reported: bool,
    poll_keys_at: Duration,
    frames: Frames,
    /// A barrier that no logger has answered.
    draining: Option<u64>,
    events: VecDeque<LinkEvent>,
    /// The logger that was taken in use last, also by an earlier `serve`, and which of the service's
    /// sessions that is.
    latest: Option<SocketAddr>,
    number: u64,
    /// The logger with the records of an earlier incarnation that is unknown on this host.
    inherited_from: Option<usize>,
    /// The inherited records are not read yet: no other logger will do.
    awaits_inherited_records: bool,
}

/// Why a logger was not reached.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refused {
    why: String,
    /// Waiting will not change the reason.
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
    /// Makes the link without calling a logger.
    pub(crate) fn new(
        config: LinkConfig,
        request: AttachRequest,
        (latest, number): (Option<SocketAddr>, u64),
        pins: &PinDirectory,
    ) -> Result<Self, ServeError> {
        let keys = KeyRing::load(&config.key_file)?;
        let next = config.loggers.iter().position(|at| Some(*at) == latest);
        Ok(Self {
            next: next.unwrap_or(0),
            refused: vec![None; config.loggers.len()],
            config,
            request,
            claimed: None,
            keys,
            session: None,
            dial_attempt: None,
            retry_at: Duration::ZERO,
            tried: 0,
            is_loss_reported: false,
            poll_keys_at: Duration::ZERO,
            frames: Frames::of(pins)?,
            draining: None,
            events: VecDeque::new(),
            latest,
            number,
            inherited_from: None,
            awaits_inherited_records: false,
        })
    }

    /// The logger in use, if the control stream is open.
    pub(crate) fn client(&mut self) -> Option<&mut LoggerClient> {
        self.session.as_mut()?.client.as_mut()
    }

    /// The control stream has failed.
    pub(crate) fn broken(&mut self, why: &ServeError, now: Duration) {
        if let Some(session) = &mut self.session {
            session.client = None;
            session.disconnected.get_or_insert((now, why.to_string()));
            self.next = session.logger;
            self.retry_at = now;
        }
    }

    /// A logger is in use, as far as is known.
    pub(crate) fn is_up(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.up) && !self.is_loss_reported
    }

    /// A logger has records of an earlier incarnation that are not read yet.
    pub(crate) fn awaits_inherited_records(&self) -> bool {
        self.awaits_inherited_records
    }

    /// Seed of the digest key of the inherited records, if known: from now on also the seed of this instance.
    pub(crate) fn inherit_digests(&mut self) -> Option<DigestSeed> {
        let inherited = self.session.as_ref().and_then(|session| session.digests);
        self.request.digests = inherited.or(self.request.digests);
        inherited
    }

    /// The inherited records are read.
    pub(crate) fn on_records_inherited(&mut self) {
        self.awaits_inherited_records = false;
    }

    /// Records at loggers are of no use: the service has this instance number from now on.
    pub(crate) fn register_instance(&mut self, instance: u64) {
        self.request.attach.instance = instance;
        (self.session, self.dial_attempt) = (None, None);
        (self.latest, self.inherited_from) = (None, None);
        self.awaits_inherited_records = false;
        self.next = 0;
        self.events.clear();
    }

    /// Clients are served from here on.
    pub(crate) fn on_serving(&mut self) {
        if let Some(claim) = &mut self.request.claim {
            claim.serves = true;
        }
    }

    /// The other service with an address of this service, if a logger refuses this service for that reason.
    pub(crate) fn claimed(&self) -> Option<&str> {
        self.claimed.as_deref()
    }

    /// Number of the instance at loggers.
    pub(crate) fn instance(&self) -> u64 {
        self.request.attach.instance
    }

    /// The logger in use, and which of our sessions that is.
    pub(crate) fn in_use(&self) -> Option<(SocketAddr, u64)> {
        Some((self.address()?, self.number))
    }

    /// The only logger that will do, because only this logger has the awaited records.
    fn required_logger(&self) -> Option<usize> {
        if self.awaits_inherited_records {
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

    /// Why all loggers refuse this service; `None`: not all loggers refuse.
    pub(crate) fn refused_by_all(&self) -> Option<String> {
        let each = |refused: &Option<Refused>| {
            let refused = refused.as_ref().filter(|refused| refused.for_good)?;
            Some(refused.why.clone())
        };
        let reasons: Option<Vec<String>> = self.refused.iter().map(each).collect();
        reasons.map(|reasons| reasons.join("; "))
    }

    /// The logger's line of `outlive status`.
    pub(crate) fn status_text(&self, now: Duration) -> String {
        let hold = match self.config.on_loss {
            OnLoggerLoss::Hold => "clients wait for it",
            OnLoggerLoss::Unprotect => "connections are unprotected",
        };
        match &self.session {
            Some(session) if session.up && !self.is_loss_reported => {
                let at = self.config.loggers[session.logger];
                let mtu = session.prober.mtu().unwrap_or(0);
                let round_trip = session.prober.round_trip().unwrap_or_default();
                format!(
                    "{at}, answers in {:.2} ms, packets of {mtu} bytes",
                    round_trip.as_secs_f64() * 1000.0
                )
            }
            Some(session) if self.is_loss_reported => format!(
                "{} does not answer for {:.1} s: {hold}",
                self.config.loggers[session.logger],
                session.missing(now).as_secs_f64(),
            ),
            Some(session) => format!("{}, attaching", self.config.loggers[session.logger]),
            None => format!("none answers: {hold}"),
        }
    }

    /// Text about the logger at a standby, which records no input.
    pub(crate) fn granter_status_text(&self) -> String {
        match self.config.loggers.first() {
            Some(at) => format!("{at} answers, and keeps the record of the host that serves"),
            None => "none".into(),
        }
    }

    /// Sets the policy for the loss of all loggers.
    pub(crate) fn set_policy(&mut self, on_loss: OnLoggerLoss) {
        self.config.on_loss = on_loss;
    }

    /// The logger in use.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        let session = self.session.as_ref()?;
        Some(self.config.loggers[session.logger])
    }

    /// The present settings for the data plane.
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

    /// The programs have seen this many probes.
    pub(crate) fn observe_probes(&mut self, probes: u32, now: Duration) {
        if let Some(session) = &mut self.session {
            let answered = session.prober.answered();
            session.route.observe(probes, answered, now);
        }
    }

    /// The data plane knows the link now: a probe shows the route before the link comes up.
    pub(crate) fn send_probe(&mut self, now: Duration) {
        if let Some(session) = &mut self.session {
            let probe = session.prober.probe_now(now);
            let _ = session.socket.send(&probe); // as any other
        }
    }

    /// The logger in use is alive: acknowledgements reach the data plane.
    pub(crate) fn on_activity(&mut self, now: Duration) {
        if let Some(session) = &mut self.session {
            session.prober.on_activity(now);
        }
    }

    /// Silence of the logger; `None`: no logger is attached.
    pub(crate) fn silence(&self, now: Duration) -> Option<Duration> {
        let session = self.session.as_ref()?;
        Some(session.prober.silence(now))
    }

    /// Ask the logger to report when everything up to here is recorded; a logger that is absent now is asked after its
    /// return.
    pub(crate) fn drain(&mut self, token: u64, now: Duration) -> Result<(), ServeError> {
        self.draining = Some(token);
        // The whole content of the ring goes first, whatever the length: the gate is shut, and the ring does not grow.
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

    /// Repeats the request for a barrier that an earlier control stream has not answered.
    pub(crate) fn repeat_drain(&mut self, now: Duration) -> Result<(), ServeError> {
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

    /// A barrier without an answer.
    pub(crate) fn draining(&self) -> Option<u64> {
        self.draining
    }

    /// Read the ring for the logger, at most as much as the logger takes. Call this before reading the events of the
    /// data plane: such an event says that a connection is recorded again, and the logger must learn this before the
    /// segments that follow, which may be in the ring already.
    pub(crate) fn fetch(&mut self) -> Result<(), ServeError> {
        let discard = self.is_loss_reported && self.config.on_loss == OnLoggerLoss::Unprotect;
        for _ in 0..ROUNDS {
            let queued = self.client().map(|client| client.queued());
            let accepts = queued.is_some_and(|queued| self.frames.accepts_more(queued));
            // While the logger is absent and may come back, the frames are safe in the ring.
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

    /// Forwards the fetched frames to the logger, if connected.
    fn forward(&mut self, now: Duration) {
        let client = self.session.as_mut().and_then(|one| one.client.as_mut());
        if let Some(client) = client
            && let Err(error) = self.frames.forward(client, now)
        {
            self.broken(&error, now);
        }
    }

    /// Polls everything. [`Self::next_event`] has the results.
    pub(crate) fn poll(&mut self, now: Duration) {
        self.poll_keys(now);
        self.poll_dial(now);
        self.receive(now);
        self.probe(now);
        self.rekey(now);
        self.detect_loss(now);
        self.dial(now);
        self.forward(now);
    }

    /// The oldest event.
    pub(crate) fn next_event(&mut self) -> Option<LinkEvent> {
        self.events.pop_front()
    }

    /// Time of the next action of [`Self::poll`] without input.
    pub(crate) fn due_at(&self) -> Duration {
        let probe = self.session.as_ref().map(|session| session.prober.due_at());
        let dial = (self.needs_dial()).then_some(self.retry_at);
        let due = [probe, dial, Some(self.poll_keys_at)].into_iter().flatten();
        due.min().unwrap_or(self.poll_keys_at)
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

    /// Descriptors of the loggers' messages; [`Self::poll`] reads the messages.
    pub(crate) fn watch_loggers<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let dialing = self
            .dial_attempt
            .as_ref()
            .map(|(dialing, _)| dialing.as_fd());
        let session = self.session.as_ref();
        let socket = session.map(|session| session.socket.as_fd());
        let client = session.and_then(|session| session.client.as_ref());
        let all = [dialing, socket, client.map(LoggerClient::as_fd)];
        let watched = all.into_iter().flatten();
        fds.extend(watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    }

    /// The operator wants other keys: read the key file now, and take new keys for the link.
    pub(crate) fn replace_keys(&mut self) {
        self.poll_keys_at = Duration::ZERO;
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

    fn warn(&mut self, code: Code, message: String) {
        self.events.push_back(LinkEvent::Warning(code, message));
    }
}
