//! The loop of a service.

use std::{collections::BTreeMap, path::Path, sync::mpsc, time::Duration};

use dataplane::Ring;
use protocol::{UnprotectedReason, control::Statistics};
use rand::Rng;
use recovery::{GaveUp, HEARTBEAT_INTERVAL, Recovery};
use sd_notify::NotifyState;
use signal_hook::consts::SIGHUP;
use supervise::{Backoff, BackoffConfig, Server};
use wire::{FlowId, FlowKey, SeqNumber};

use crate::{
    adoption::Adopted,
    clock,
    config::ServeConfig,
    control::Control,
    counters::EventCounters,
    error::ServeError,
    event_log::EventLog,
    events::{Code, Event, EventBuffer},
    metrics,
    north::North,
    prefetch::Prefetched,
    preflight,
    read_ahead::ReadAhead,
    setup::Resources,
    standby_eligibility,
    status::ConnectionStatus,
};
use service_addresses::VirtualAddresses;

/// Poll interval of flows that are being spliced or replayed.
const REPLAY_POLL_INTERVAL: Duration = Duration::from_micros(200);
/// Poll interval while only the comparison with the records is left.
const VERIFICATION_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Poll interval of a checkpoint, and of a process that is restored from a checkpoint.
const CHECKPOINT_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Passes of the loop that may fail in a row, and the delay after each failed pass.
const CONSECUTIVE_FAILURES_MAX: u32 = 100;
const FAILURE_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Result of a pass of the loop.
enum Next {
    End(Ending),
    Go { acted: bool },
}

/// Ending of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// A signal asked for the stop.
    Stopped,
    /// The server ended by itself with status 0.
    Ended,
    /// A signal asked for the stop, and a standby serves instead.
    HandedOver,
    /// The operator asked for a switchover. This host may become a standby.
    Moved,
    /// Another host serves. This host may become a standby.
    Superseded,
}

/// Events and counters of this process, across restarts of the service.
#[derive(Debug, Default)]
pub struct History {
    events: EventBuffer,
    counters: EventCounters,
}

/// A protected service.
pub struct Service {
    pub(crate) config: ServeConfig,
    pub(crate) resources: Resources,
    /// A server that was found running, until the first pass of the loop.
    adopted: Option<Adopted>,
    /// Random offset of barrier numbers: an earlier `serve` may have sent barriers, too.
    pub(crate) barriers: u64,
    pub(crate) recovery: Recovery,
    pub(crate) server: Option<Server>,
    pub(crate) backoff: Backoff,
    /// Delay of the next start.
    pub(crate) pause: Duration,
    pub(crate) start_at: Option<Duration>,
    /// Chunks of expected outstream in the data plane.
    pub(crate) expected: BTreeMap<FlowId, Vec<u32>>,
    pub(crate) read_ahead: ReadAhead,
    /// Determinant log of a server with state.
    pub(crate) north: Option<North>,
    hot_replica: hot_replica::HotReplica,
    log_truncation: log_truncation::LogTruncation,
    record_reset: record_reset::RecordReset,
    /// Connections whose handshake or probe was completed late.
    pub(crate) late: Vec<(FlowKey, FlowId)>,
    pub(crate) prefetched: Prefetched,
    /// Number of flows in the last list.
    pub(crate) flows_listed: usize,
    pub(crate) events: EventBuffer,
    control: Control,
    counters: EventCounters,
    /// The last statistics of the logger.
    recorded: Option<Statistics>,
    /// The endpoint ends with the service.
    _metrics: Option<::metrics::Running>,
    signals: Signals,
    /// This host serves by leases.
    pub(crate) is_leased: bool,
    standby: standby::Standby,
    /// The operator asked for a switchover.
    switchover_requested: bool,
    sink: Box<dyn FnMut(&crate::EventRecord)>,
    began: Duration,
    pub(crate) incarnation: u32,
    pub(crate) readiness: readiness::Readiness,
    /// The next pass follows without a wait.
    skips_wait: bool,
    /// Addresses that this host has only while the service is here.
    vip: Option<VirtualAddresses>,
    /// The event `logger_lost` was the last event about the logger.
    logger_loss_reported: bool,
    /// Acknowledgements in the data plane at the beginning of the logger's silence.
    link_acks: Option<u64>,
    /// Where records begin again at a logger, and when the logger was told. Only connections that were open when the
    /// logger was reached have an entry, at most a single entry each.
    resumed: BTreeMap<FlowId, ((SeqNumber, SeqNumber), Duration)>,
    /// The connections are to be listed when a logger answers.
    pub(crate) listing_pending: bool,
    lost_events: lost_events::LostEvents,
    /// Time of the warning about killed processes that do not end.
    kill_warning_at: Option<Duration>,
    /// The gate was shut at the last heartbeat, without a known death.
    was_gated: bool,
    next_heartbeat: Duration,
    next_sweep: Duration,
    unseen: unseen::Unseen,
    socket_renewal: socket_renewal::Renewal,
}

impl Service {
    /// Set everything up. `past` has the earlier events of this process. `sink` gets each event at once; `signals` were
    /// watched before: a request to stop during the setup leaves no remains.
    ///
    /// # Errors
    /// The setup has met an obstacle; all parts are removed again.
    pub fn new(
        config: ServeConfig,
        signals: &Signals,
        past: History,
        sink: impl FnMut(&crate::EventRecord) + 'static,
    ) -> Result<Self, ServeError> {
        preflight::pass_first(&config)?;
        let signals = signals.try_clone()?;
        let metrics = metrics::show(&config)?;
        let (resources, adopted) = Resources::prepare(&config)?;
        let control = match Control::bind(&config.run_dir.socket(&config.name)) {
            Ok(control) => control,
            Err(error) => {
                match adopted {
                    Some(adopted) => {
                        adopted.leave();
                        resources.leave();
                    }
                    None => resources.remove(false)?,
                }
                return Err(error);
            }
        };
        let recovery = Recovery::new(recovery::Config {
            replay: config.replay,
            wrapped: config.wrapped,
            give_up_after: config.give_up_after,
            quarantine_after: config.quarantine_after,
            verify_head: config.verify_head(),
            ..recovery::Config::default()
        });
        let now = clock::now();
        let mut events = past.events;
        let program = config.command.first().map(Path::new);
        let program = program.and_then(Path::file_name).unwrap_or_default();
        events.begin(program.to_string_lossy().into_owned(), || {
            EventLog::begin(config.history.as_deref()?, &config.name)
        });
        Ok(Self {
            config,
            resources,
            adopted,
            barriers: rand::rng().random(),
            recovery,
            server: None,
            backoff: Backoff::new(BackoffConfig::default()),
            pause: Duration::ZERO,
            start_at: None,
            expected: BTreeMap::new(),
            read_ahead: ReadAhead::default(),
            north: None,
            hot_replica: hot_replica::HotReplica::default(),
            log_truncation: log_truncation::LogTruncation::default(),
            record_reset: record_reset::RecordReset::default(),
            late: Vec::new(),
            prefetched: Prefetched::default(),
            flows_listed: 0,
            events,
            control,
            counters: past.counters,
            recorded: None,
            _metrics: metrics,
            signals,
            is_leased: false,
            standby: standby::Standby::default(),
            switchover_requested: false,
            sink: Box::new(sink),
            began: now,
            incarnation: 1,
            readiness: readiness::Readiness::default(),
            skips_wait: false,
            vip: None,
            logger_loss_reported: false,
            link_acks: None,
            listing_pending: false,
            resumed: BTreeMap::new(),
            lost_events: lost_events::LostEvents::default(),
            kill_warning_at: None,
            was_gated: false,
            next_heartbeat: now,
            next_sweep: now,
            unseen: unseen::Unseen::default(),
            socket_renewal: socket_renewal::Renewal::default(),
        })
    }

    pub(crate) fn emit(&mut self, event: Event) {
        self.counters.add(&event);
        let report = self.events.add(&self.config.name, event);
        (self.sink)(report);
    }

    /// Emits a warning: the service continues.
    pub(crate) fn warn(&mut self, code: Code, reason: impl Into<String>) {
        let reason = reason.into();
        self.emit(Event::Warning { code, reason });
    }

    /// Start the server and protect the server until it ends or a signal asks `serve` to stop.
    ///
    /// # Errors
    /// The server did not come up the first time, or a part of `serve` failed. Everything is taken down.
    pub fn run(mut self) -> Result<(Ending, History), ServeError> {
        let result = self.start_and_watch();
        if let Err(error) = self.stop_replica() {
            tracing::warn!(%error, "the server that followed may not be ended");
        }
        let refused = matches!(result, Err(ServeError::NotReplayable { .. }));
        if result.is_err() {
            // After any failure, the server must not run on behind a gate that no `serve` opens. If another host can
            // continue, clients receive no reset.
            let ended = match &self.resources.lease {
                Some(_) => self.kill_behind_fence(),
                None => self.kill_and_reset(refused),
            };
            if let Err(error) = ended {
                tracing::warn!(%error, "the server may not be ended");
            }
        }
        let nobody_goes_on = match &result {
            Ok(ending) => matches!(ending, Ending::Stopped | Ending::Ended),
            Err(_) => self.resources.lease.is_none(),
        };
        if nobody_goes_on && let Err(error) = self.close_connections() {
            let message = format!("clients may not have been sent all, nor reset: {error}");
            self.warn(Code::ClientsNotTold, message);
        }
        if self.resources.lease.is_some()
            && let Err(error) = self
                .kill_behind_fence()
                .and_then(|()| self.destroy_all_sockets())
        {
            // Then the service stays silent as it is: the next `serve` adopts or removes the service.
            self.control.close();
            if let Some(north) = self.north.take() {
                north.leave();
            }
            self.resources.leave();
            return Err(error);
        }
        self.control.reply(&self.events, None);
        self.control.close();
        // Records at a remote logger are useless only after a regular end. After a failure, before any client was
        // served, or when another host serves, the records are still needed.
        let ended = matches!(result, Ok(Ending::Stopped | Ending::Ended))
            || refused && self.resources.lease.is_none();
        let over = ended && self.resources.instance.has_begun();
        drop(self.north.take());
        self.standby.images = None;
        let removed = self.resources.remove(over);
        if matches!(result, Ok(Ending::Moved)) && removed.is_ok() {
            self.control.moved();
        } else {
            self.control
                .refuse_move("the service has ended otherwise: see its events");
        }
        let ending = result?;
        removed?;
        let history = History {
            events: self.events,
            counters: self.counters,
        };
        Ok((ending, history))
    }

    fn kill_and_reset(&mut self, is_not_replayable: bool) -> Result<(), ServeError> {
        self.resources.plane.stopping(true)?;
        let told = self.reset_waiting_clients(match is_not_replayable {
            true => GaveUp::NotReplayable,
            false => GaveUp::Failed,
        });
        self.resources.cgroup.kill()?;
        self.resources.cgroup.wait_empty(Duration::from_secs(5))?;
        self.reap();
        told
    }

    fn start_and_watch(&mut self) -> Result<Ending, ServeError> {
        let (send, kernel_events) = mpsc::channel();
        let ring = Ring::events(&self.resources.plane.event_ring()?, move |event| {
            let _ = send.send(event);
        })?;
        if let Some(adopted) = self.adopted.take() {
            self.resume_adopted(adopted, &ring, &kernel_events)?;
        } else {
            if let Some(why) = standby_eligibility::why_alone(&self.config)? {
                let message = format!("no other host can take over: {why}");
                self.warn(Code::NoTakeover, message);
            }
            // Not when clients wait already: while this host waits for an epoch, the loop looks for new interfaces,
            // too.
            self.attach_new_interfaces()?;
            if let Some(ending) = self.await_epoch()? {
                return Ok(ending);
            }
            self.survey_loggers()?;
            self.reach_logger()?;
            let restored = self.restore()?;
            // A host that serves makes its own images.
            self.standby.images = None;
            if let Some(ending) = self.poll_lease()? {
                return Ok(ending);
            }
            if !restored && self.should_stop() {
                return Ok(Ending::Stopped); // no client was served
            }
            if !restored {
                self.start_first()?;
            }
            self.reset_lost_events()?;
        }
        // Only now that clients are served, which does not take long: a heartbeat may be overdue for hours.
        self.heartbeat()?;
        self.next_heartbeat = clock::now() + HEARTBEAT_INTERVAL;
        let mut failures = 0;
        loop {
            match self.run_once(&ring, &kernel_events) {
                Ok(Next::End(ending)) => return Ok(ending),
                Ok(Next::Go { acted }) => {
                    failures = 0;
                    self.wait(&ring, acted)?;
                }
                Err(error) if self.continue_without_record(&error)? => {}
                Err(
                    error @ (ServeError::FirstStart { .. }
                    | ServeError::NotWrapped
                    | ServeError::NotRecorded
                    | ServeError::NotReplayable { .. }),
                ) => return Err(error),
                // A healthy server is not ended because something of ours failed once.
                Err(error) => {
                    failures += 1;
                    if failures == CONSECUTIVE_FAILURES_MAX {
                        return Err(error);
                    }
                    self.warn(Code::StepFailed, error.to_string());
                    std::thread::sleep(FAILURE_RETRY_DELAY);
                }
            }
            match self.signals.take() {
                None if self.switchover_requested => return self.hand_over(Ending::Moved),
                None => {}
                Some(SIGHUP) => {
                    if let Some(link) = self.resources.logger.link() {
                        link.replace_keys();
                    }
                }
                Some(signal) => return self.stop(signal),
            }
        }
    }

    /// Heartbeat for the programs in the kernel, and for a service manager with a watchdog (`WatchdogSec=`).
    fn heartbeat(&self) -> Result<(), ServeError> {
        self.resources.plane.heartbeat()?;
        if sd_notify::watchdog_enabled(false, &mut 0) {
            notify_manager(NotifyState::Watchdog);
        }
        Ok(())
    }

    /// A signal asks for the stop, or another host serves.
    fn should_stop(&self) -> bool {
        let lease = self.resources.lease.as_ref();
        let superseded = lease.is_some_and(|lease| lease.position().superseded.is_some());
        self.signals.stop() || superseded
    }

    /// Starts the server of a new instance.
    fn start_first(&mut self) -> Result<(), ServeError> {
        preflight::neighbours(&self.config)?;
        self.resources
            .begins(u32::from(self.config.address_device.is_some()))?;
        if self.config.address_device.is_some() {
            // Clients may know the addresses from another host. As in a recovery, the kernel refuses no client until
            // the server listens.
            self.resources.plane.new_incarnation()?;
            self.incarnation += 1;
        }
        self.bring_addresses_up()?;
        self.start_at = Some(clock::now());
        self.start_if_due()?;
        if let Some(server) = &self.server {
            let pid = server.pid().as_raw_pid().unsigned_abs();
            self.emit(Event::Started { pid });
        }
        Ok(())
    }
}

pub use shutdown::Signals;

mod checkpoints;
mod hot_replica;
mod images;
mod outbound;
pub(crate) use outbound::opened_by_server;
mod adoption;
mod determinant_sender;
mod event_loop;
mod link;
mod log_truncation;
mod logger;
mod lost_events;
mod north;
mod readiness;
mod record_reset;
mod restoration;
mod server;
mod shutdown;
mod socket_renewal;
mod standby;
mod status;
mod unseen;
mod wait;

/// Notify the service manager that started `serve`, if a manager wants notifications.
fn notify_manager(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(false, &[state]) {
        tracing::warn!(%error, "the service manager cannot be told how we are");
    }
}
