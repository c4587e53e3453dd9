//! The loop of one service.

use std::{
    collections::{BTreeMap, HashMap},
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use dataplane::{Event as KernelEvent, EventKind, Ring};
use protocol::UnprotectedReason;
use rand::Rng;
use recovery::{Cause, Recovery, Stage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sd_notify::NotifyState;
use signal_hook::consts::SIGTERM;
use ssw::Flow;
use supervise::{Backoff, BackoffConfig, Exit, Server};
use wire::{FlowId, FlowKey, SeqNumber};

use crate::{
    adopting::Adopted,
    changes, clock,
    config::ServeConfig,
    control::Control,
    error::{ServeError, SystemContext},
    events::{Happening, Reports},
    logger::Logger,
    logger_client::LoggerClient,
    preflight,
    read_ahead::ReadAhead,
    setup::Ground,
    status::ConnectionStatus,
    together::Answers,
};

/// How often we say that we live, and look for new interfaces.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How often we look at flows while connections are being spliced or replayed.
const PROGRESS: Duration = Duration::from_micros(200);
/// How often, while it is only left to be seen whether they agree with their records.
const SETTLING: Duration = Duration::from_millis(5);
/// More flows than this are read all at once ...
const MANY: usize = 100;
/// ... if they are this part of all: reading one alone takes as long as reading so many at once.
const PART: usize = 8;
/// How often closed flows are forgotten, and after how long: TIME_WAIT lasts a minute.
const SWEEP: Duration = Duration::from_secs(5);
const SWEEP_AGE: Duration = Duration::from_secs(65);

/// Turns that may fail in a row, and the pause after each, before we give up.
const MOST_FAILURES: u32 = 100;
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// What follows a turn of the loop.
enum Next {
    End(Ending),
    Go { acted: bool },
}

/// How the service ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// We were asked to stop it.
    Stopped,
    /// The server ended by itself with status 0.
    Ended,
}

/// One protected service.
pub struct Service {
    pub(crate) config: ServeConfig,
    pub(crate) ground: Ground,
    /// It was found running, and nothing was done about it yet.
    adopted: Option<Adopted>,
    /// Added to the numbers of barriers: an earlier `serve` may have asked for some, too.
    pub(crate) barriers: u64,
    pub(crate) recovery: Recovery,
    pub(crate) server: Option<Server>,
    pub(crate) backoff: Backoff,
    /// The next start waits this long.
    pub(crate) pause: Duration,
    pub(crate) start_at: Option<Duration>,
    /// Chunks of expected outstream that are in the data plane.
    pub(crate) expected: BTreeMap<FlowId, Vec<u32>>,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) answers: Answers,
    /// Flows that there were when they were listed last.
    pub(crate) flows_listed: usize,
    pub(crate) reports: Reports,
    control: Control,
    /// The signal that asked us to stop, 0 if none did, and what becomes readable then.
    signal: Arc<AtomicUsize>,
    signalled: UnixStream,
    tell: Box<dyn FnMut(&crate::Report)>,
    began: Duration,
    pub(crate) incarnation: u32,
    has_listened: bool,
    /// The next turn is to follow at once.
    hurry: bool,
    /// No logger on another machine answers, and that was told.
    was_lost: bool,
    /// Acknowledgements that the data plane had when the logger began to be silent.
    link_acks: Option<u64>,
    /// Where records begin anew on a logger, and when that was said.
    resumed: BTreeMap<FlowId, ((SeqNumber, SeqNumber), Duration)>,
    /// The connections are to be listed when a logger answers.
    pub(crate) list_again: bool,
    next_heartbeat: Duration,
    next_sweep: Duration,
}

impl Service {
    /// Set everything up. `tell` is given each report as it happens.
    ///
    /// # Errors
    /// Something stands in the way; nothing is left behind.
    pub fn new(
        config: ServeConfig,
        tell: impl FnMut(&crate::Report) + 'static,
    ) -> Result<Self, ServeError> {
        preflight::privileges()?;
        // First of all: being asked to stop while things are set up must leave nothing behind.
        let signal = Arc::new(AtomicUsize::new(0));
        let signalled = stopping::watch_signals(&signal)?;
        let (ground, adopted) = Ground::prepare(&config)?;
        let control = match Control::bind(&config.run_dir.socket(&config.name)) {
            Ok(control) => control,
            Err(error) if adopted.is_some() => {
                ground.leave(); // for the next one
                return Err(error);
            }
            Err(error) => {
                ground.remove()?;
                return Err(error);
            }
        };
        let recovery = Recovery::new(recovery::Config {
            replay: config.replay,
            give_up_after: config.give_up_after,
            quarantine_after: config.quarantine_after,
            ..recovery::Config::default()
        });
        let now = clock::now();
        Ok(Self {
            config,
            ground,
            adopted,
            barriers: rand::rng().random(),
            recovery,
            server: None,
            backoff: Backoff::new(BackoffConfig::default()),
            pause: Duration::ZERO,
            start_at: None,
            expected: BTreeMap::new(),
            read_ahead: ReadAhead::default(),
            answers: Answers::default(),
            flows_listed: 0,
            reports: Reports::default(),
            control,
            signal,
            signalled,
            tell: Box::new(tell),
            began: now,
            incarnation: 1,
            has_listened: false,
            hurry: false,
            was_lost: false,
            link_acks: None,
            list_again: false,
            resumed: BTreeMap::new(),
            next_heartbeat: now,
            next_sweep: now,
        })
    }

    pub(crate) fn tell(&mut self, happening: Happening) {
        let report = self.reports.add(&self.config.name, happening);
        (self.tell)(report);
    }

    /// Start the server and protect it until it ends or we are asked to stop.
    ///
    /// # Errors
    /// The server did not come up the first time, or something of ours failed. Everything is
    /// taken down.
    pub fn run(mut self) -> Result<Ending, ServeError> {
        let result = self.start_and_watch();
        if result.is_err() {
            // Whatever went wrong, the server must not run on behind a gate that nobody opens.
            let _ = self.ground.plane.stopping(true);
            let _ = self.ground.cgroup.kill();
            let _ = self.ground.cgroup.wait_empty(Duration::from_secs(5));
            self.reap();
        }
        self.control.reply(&self.reports, None);
        self.control.close();
        let removed = self.ground.remove();
        let ending = result?;
        removed?;
        Ok(ending)
    }

    fn start_and_watch(&mut self) -> Result<Ending, ServeError> {
        let (send, kernel_events) = mpsc::channel();
        let ring = Ring::events(&self.ground.plane.event_ring()?, move |event| {
            let _ = send.send(event);
        })?;
        if let Some(adopted) = self.adopted.take() {
            self.take_over(adopted, &ring, &kernel_events)?;
        } else {
            self.reach_logger()?;
            self.start_at = Some(clock::now());
            self.start_if_due()?;
            if let Some(server) = &self.server {
                let pid = server.pid().as_raw_pid().unsigned_abs();
                self.tell(Happening::Started { pid });
            }
        }
        let mut failures = 0;
        loop {
            match self.turn(&ring, &kernel_events) {
                Ok(Next::End(ending)) => return Ok(ending),
                Ok(Next::Go { acted }) => {
                    failures = 0;
                    self.wait(&ring, acted)?;
                }
                Err(error @ ServeError::FirstStart { .. }) => return Err(error),
                // A healthy server is not ended because something of ours failed once.
                Err(error) => {
                    failures += 1;
                    if failures == MOST_FAILURES {
                        return Err(error);
                    }
                    self.tell(Happening::Trouble {
                        message: error.to_string(),
                    });
                    std::thread::sleep(AFTER_FAILURE);
                }
            }
            match self.signal.swap(0, Ordering::Relaxed) {
                0 => {}
                stopping::HUP => {
                    if let Some(link) = self.ground.logger.link() {
                        link.other_keys();
                    }
                }
                signal => return self.stop(i32::try_from(signal).unwrap_or(SIGTERM)),
            }
        }
    }

    /// Hear, decide, act: once.
    fn turn(
        &mut self,
        ring: &Ring<'_>,
        kernel_events: &mpsc::Receiver<KernelEvent>,
    ) -> Result<Next, ServeError> {
        ring.consume()?;
        while let Ok(event) = kernel_events.try_recv() {
            self.kernel_event(event)?;
        }
        if let Some(ending) = self.look_at_server()? {
            return Ok(Next::End(ending));
        }
        self.look_at_logger()?;
        self.progress()?;
        let acted = self.act()?;
        self.start_if_due()?;
        self.periodic()?;
        self.answer_control();
        Ok(Next::Go { acted })
    }

    fn kernel_event(&mut self, event: KernelEvent) -> Result<(), ServeError> {
        let now = clock::now();
        match event.kind {
            EventKind::Death { pid, status } if event.incarnation == self.incarnation => {
                self.died(cause_of(pid, status), event.at);
            }
            EventKind::Death { .. } => {}
            EventKind::Listening if event.incarnation != self.incarnation => {}
            EventKind::Listening => {
                if !self.has_listened {
                    self.has_listened = true;
                    let addresses = self
                        .config
                        .addresses
                        .iter()
                        .map(ToString::to_string)
                        .collect();
                    self.tell(Happening::Protecting { addresses });
                    tell_manager(NotifyState::Ready);
                }
                self.recovery.listening(now);
            }
            EventKind::Unprotected { key, flow, reason } => {
                self.recovery.unprotected(flow, reason);
                let reason = UnprotectedReason::from_code(reason)
                    .map_or_else(|| format!("reason {reason}"), |reason| reason.to_string());
                self.tell(Happening::Unprotected {
                    connection: key.to_string(),
                    reason,
                });
                let _ = self.ask_logger(|logger| logger.unprotect(flow))?;
            }
            EventKind::Diverged { key, flow, .. } => {
                if let Some(state) = self.ground.plane.flow(key)?.filter(|f| f.id == flow) {
                    self.recovery.diverged(key, &state);
                }
            }
            EventKind::Late { key, flow } => self.late_connection(key, flow)?,
            EventKind::Reprotected {
                key,
                flow,
                instream,
                outstream,
            } => self.reprotected(key, flow, instream, outstream)?,
        }
        Ok(())
    }

    fn died(&mut self, cause: Cause, at: Duration) {
        let now = clock::now();
        if self.recovery.stage() != Stage::Clearing {
            self.pause = self.backoff.died(now);
        }
        self.recovery.died(cause, at, now);
    }

    /// Notice the end of the main process, and of all of them.
    fn look_at_server(&mut self) -> Result<Option<Ending>, ServeError> {
        let exit = match &mut self.server {
            None => None,
            Some(server) => server.try_wait().doing("wait for the server")?,
        };
        if let Some(exit) = exit {
            let pid = self
                .server
                .take()
                .map_or(0, |server| server.pid().as_raw_pid().unsigned_abs());
            self.reap();
            if exit == Exit::Unseen && self.recovery.stage() != Stage::Clearing {
                // Whether it crashed is for the kernel to say, and it has said it by now: that is
                // heard at the beginning of the next turn.
                self.hurry = true;
                return Ok(None);
            }
            if !self.has_listened && (exit.is_failure() || !self.ground.cgroup.populated()?) {
                let addresses: Vec<_> = self
                    .config
                    .addresses
                    .iter()
                    .map(ToString::to_string)
                    .collect();
                return Err(ServeError::FirstStart {
                    exit,
                    addresses: addresses.join(", "),
                });
            }
            // Usually the kernel has told us already.
            if exit.is_failure() && self.recovery.stage() != Stage::Clearing {
                self.died(cause_of_exit(pid, exit), clock::now());
                self.act()?;
            }
        }
        match self.recovery.stage() {
            Stage::Clearing if !self.ground.cgroup.populated()? => {
                self.reap();
                self.server = None;
                self.recovery.service_empty(clock::now());
                self.incarnation += 1;
            }
            // Its main process has left quietly, and what it may have left behind too.
            Stage::Serving if self.has_ended()? => {
                self.tell(Happening::Ended);
                self.linger()?;
                return Ok(Some(Ending::Ended));
            }
            Stage::Starting | Stage::Listing | Stage::Recovering if self.has_ended()? => {
                self.died(Cause::NotServing, clock::now());
            }
            _ => {}
        }
        Ok(None)
    }

    /// No process of the service is left, and none is to be started.
    fn has_ended(&self) -> Result<bool, ServeError> {
        Ok(self.server.is_none() && self.start_at.is_none() && !self.ground.cgroup.populated()?)
    }

    /// Look at the flows that are on their way back.
    fn progress(&mut self) -> Result<(), ServeError> {
        let watched: Vec<(FlowId, FlowKey)> = self.recovery.watched(clock::now()).collect();
        if watched.len() > MANY && watched.len() * PART > self.flows_listed {
            // One call for a thousand flows, instead of one for each.
            let all: HashMap<FlowKey, Flow> = self.ground.plane.flows()?.into_iter().collect();
            for (id, key) in watched {
                self.recovery.observe(id, all.get(&key), clock::now());
            }
        } else {
            for (id, key) in watched {
                let flow = self.ground.plane.flow(key)?;
                self.recovery.observe(id, flow.as_ref(), clock::now());
            }
        }
        self.recovery.poll(clock::now());
        Ok(())
    }

    fn periodic(&mut self) -> Result<(), ServeError> {
        let now = clock::now();
        if now >= self.next_heartbeat {
            self.next_heartbeat = now + HEARTBEAT;
            self.ground.plane.heartbeat()?;
            // One that hangs would fill the ring and stop all uploads.
            if self.config.link.is_none() {
                let _ = self.ask_logger(LoggerClient::ping)?;
            }
            self.reap();
            if self.recovery.stage() == Stage::Starting && self.listens()? {
                self.recovery.listening(now); // the kernel's word of it was lost
            }
            let before = self.ground.plane.interfaces().count();
            for interface in dataplane::ethernet_interfaces()? {
                self.ground
                    .plane
                    .attach_interface(&interface, self.config.attach)?;
            }
            if self.ground.plane.interfaces().count() != before {
                changes::keep(self.ground.lock.directory(), &self.ground.plane)?;
            }
        }
        if now >= self.next_sweep {
            self.next_sweep = now + SWEEP;
            self.ground.plane.sweep(SWEEP_AGE)?;
        }
        Ok(())
    }

    fn listens(&self) -> Result<bool, ServeError> {
        for address in &self.config.addresses {
            if supervise::listener_on(*address)
                .doing("list the listening sockets")?
                .is_some()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Wait for something to happen; not at all if something was just `acted` upon, because that
    /// usually has consequences.
    fn wait(&mut self, ring: &Ring<'_>, acted: bool) -> Result<(), ServeError> {
        let now = clock::now();
        let working = matches!(self.recovery.stage(), Stage::Recovering | Stage::Listing);
        let pace = if working { PROGRESS } else { SETTLING };
        let mut until = self.next_heartbeat.min(self.next_sweep);
        for due in [self.recovery.deadline(), self.start_at]
            .into_iter()
            .flatten()
        {
            until = until.min(due.max(now + pace));
        }
        if working {
            until = until.min(now + PROGRESS);
        }
        if let Some(link) = self.ground.logger.link() {
            until = until.min(link.due_at());
        }
        let said = self
            .ground
            .logger
            .client()
            .is_some_and(|client| client.has_said());
        if acted || said || std::mem::take(&mut self.hurry) {
            until = now;
        }
        let timeout = Timespec::try_from(until.saturating_sub(now)).unwrap_or_default();
        let ring = ring.as_fd();
        let mut fds = vec![
            PollFd::from_borrowed_fd(ring, PollFlags::IN),
            PollFd::new(&self.signalled, PollFlags::IN),
            PollFd::from_borrowed_fd(self.ground.cgroup.events_fd(), PollFlags::PRI),
        ];
        let logger_at = fds.len();
        match &self.ground.logger {
            Logger::Local(client) => {
                fds.push(PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN));
            }
            Logger::Remote(link) => link.watch(&mut fds), // and looked at in any case
        }
        if let Some(server) = &self.server {
            fds.push(PollFd::from_borrowed_fd(server.as_fd(), PollFlags::IN));
        }
        self.control.watch(&mut fds);
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).doing("wait for something to happen"),
        }
        let local = matches!(self.ground.logger, Logger::Local(_));
        let logger_speaks = local && !fds[logger_at].revents().is_empty();
        let cgroup_changed = !fds[2].revents().is_empty();
        let signalled = !fds[1].revents().is_empty();
        drop(fds);
        if signalled {
            let mut drain = [0u8; 16];
            let _ = rustix::io::read(&self.signalled, &mut drain);
        }
        if logger_speaks {
            let _ = self.ask_logger(LoggerClient::listen)?;
        }
        if cgroup_changed {
            // Whoever needs to know asks again; but only reading it makes the next poll wait.
            self.ground.cgroup.populated()?;
        }
        Ok(())
    }

    fn answer_control(&mut self) {
        let status = self.control.receive().map(|list| self.status_of(list));
        if let Some(Err(error)) = &status {
            self.tell(Happening::Trouble {
                message: format!("no status: {error}"),
            });
        }
        let status = status.and_then(Result::ok);
        self.control.reply(&self.reports, status.as_ref());
    }
}

mod link_of;
mod logger_of;
mod status_of;
mod stopping;
mod taking_over;

/// Tell the service manager that started us, if one did and wants to know.
fn tell_manager(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(false, &[state]) {
        tracing::warn!(%error, "the service manager cannot be told how we are");
    }
}

fn cause_of(pid: u32, status: u32) -> Cause {
    match status & 0x7f {
        0 => Cause::Status {
            pid,
            status: (status >> 8) & 0xff,
        },
        signal => Cause::Signal { pid, signal },
    }
}

fn cause_of_exit(pid: u32, exit: Exit) -> Cause {
    match exit {
        Exit::Status(status) => Cause::Status {
            pid,
            status: status.unsigned_abs(),
        },
        Exit::Signal { signal, .. } => Cause::Signal {
            pid,
            signal: signal.unsigned_abs(),
        },
        Exit::Unseen => Cause::NotServing,
    }
}
