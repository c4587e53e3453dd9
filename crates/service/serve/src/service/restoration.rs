//! Recovery of a service whose host has stopped. The connections come from a logger on another machine (FT-TCP IV.E),
//! or from a logger on this host with a log on disk (VI.C).
//!
//! This host has no programs, no sockets and no instance number of the service. The logger knows the service by the
//! service's name and the host's address. The order matters: the flows are known and the gate is shut before the
//! address is up, or the kernel would reset every client that sends a segment. The clients are probed while the server
//! starts. The rest is a recovery like any other.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use protocol::control::{Edition, RecordSummary, Recorded};
use recovery::Cause;
use rustix::event::{Timespec, poll};
use south_model::{DigestKey, Flow, Restored, keepalive_probe, newest_records, restored_flow};
use wire::{EmitError, FlowId, FlowKey};

use super::Service;
use crate::{
    clock,
    config::OnLoggerLoss,
    error::{ServeError, SystemContext},
    events::{Code, Event, FormerInstance},
    link::{Link, Survey, SurveyTimeouts},
    logger::Logger,
    north::North,
};
use service_addresses::VirtualAddresses;

/// Wait for loggers that are down or about to start, before an earlier incarnation is ruled out: a switch that lost
/// power needs time, too.
const ALL_LOGGERS_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for the logger to list the record, and delay of the event about this wait.
const RECORD_REPLY_TIMEOUT: Duration = Duration::from_secs(30);
const WAITING_EVENT_DELAY: Duration = Duration::from_secs(2);

/// Interval between two looks at other work while only loggers are awaited.
const IDLE_INTERVAL: Duration = Duration::from_millis(2);

/// The record of an earlier instance at a logger.
struct Inheritance {
    connections: Vec<Recorded>,
    /// Older records with the 4-tuple of another connection.
    others: Vec<FlowId>,
    summaries: Vec<RecordSummary>,
    /// Number of the determinant log of a server with state.
    record: Option<u64>,
    /// The determinant log is complete.
    is_whole: bool,
}

/// Reply to the request for that record.
enum InheritReply {
    /// No logger to ask, or no reason any more.
    NoLogger,
    /// The logger with the record does not answer.
    Silent,
    Inherited(Inheritance),
}

impl Service {
    /// Ask all loggers for an earlier incarnation of the service.
    ///
    /// # Errors
    /// All loggers refuse this service, and waiting will not change the reason.
    pub(super) fn survey_loggers(&mut self) -> Result<(), ServeError> {
        let Some(mut survey) = self.link().map(|link| Survey::of(link, clock::now())) else {
            return Ok(());
        };
        let timeouts = self.survey_timeouts();
        let mut tell_at = Some(clock::now() + WAITING_EVENT_DELAY);
        while !self.should_stop() {
            let now = clock::now();
            let Some(link) = self.link() else { break };
            if survey.poll(link, timeouts, now)? {
                break;
            }
            while let Some(event) = self.link().and_then(Link::next_event) {
                self.handle(event)?;
            }
            if tell_at.take_if(|at| now >= *at).is_some() {
                self.emit(Event::WaitingForLogger {
                    at_most_ms: timeouts.none.map(clock::millis),
                });
            }
            self.idle_in(Some(&survey))?;
        }
        let stops = self.should_stop();
        if let Some(link) = self.link().filter(|_| !stops) {
            survey.choose(link);
        }
        Ok(())
    }

    pub(super) fn link(&mut self) -> Option<&mut Link> {
        self.resources.logger.link()
    }

    pub(super) fn survey_timeouts(&self) -> SurveyTimeouts {
        match (&self.config.address_device, self.policy()) {
            // The kernel has reset every client that sent a segment meanwhile: a wait is useless.
            (None, _) => SurveyTimeouts {
                none: Some(Duration::ZERO),
                some: Duration::ZERO,
            },
            (Some(_), Some(OnLoggerLoss::Hold)) => SurveyTimeouts {
                none: None,
                some: ALL_LOGGERS_TIMEOUT,
            },
            (Some(_), _) => SurveyTimeouts {
                none: Some(ALL_LOGGERS_TIMEOUT),
                some: ALL_LOGGERS_TIMEOUT,
            },
        }
    }

    /// Take up the connections of an earlier incarnation, if there are any. Tells whether there are.
    pub(super) fn restore(&mut self) -> Result<bool, ServeError> {
        let inheritance = match self.ask_for_connections()? {
            InheritReply::NoLogger => {
                self.stop_replica()?;
                return Ok(false);
            }
            InheritReply::Silent => {
                self.stop_replica()?;
                self.disinherit()?;
                return Ok(false);
            }
            InheritReply::Inherited(inheritance) => inheritance,
        };
        // Whatever the logger knows of, no number is used twice.
        let last = inheritance.summaries.iter().map(|one| one.flow.0).max();
        let next = last.map_or(0, |last| last.saturating_add(1));
        self.resources.plane.number_from(FlowId(next))?;
        // Shut the gate before any flow is known: even if the server listens at once, no client must get in.
        if !inheritance.connections.is_empty() {
            self.resources.plane.gate()?;
        }
        self.inherit_digests()?;
        let record = match inheritance.record {
            Some(Edition::WITHOUT) => self.no_record()?,
            _ => self.whole_record(&inheritance),
        };
        let stateful = self.config.wrapped && record.is_some();
        let restored = self.insert(&inheritance, stateful)?;
        self.drop_foreign_records(&inheritance, &restored)?;
        let has_state = self.inherit_record(record)?;
        if let Some(link) = self.link() {
            link.on_records_inherited();
        }
        if inheritance.connections.is_empty() && !has_state {
            return Ok(false);
        }
        if self.config.wrapped && !has_state {
            // No server knows the restored connections: the state is lost.
            let directory = self.resources.lock.directory();
            let mut north = North::new(directory, self.config.limits.total)?;
            let images = north.take_images(&self.config, directory);
            north.mark_lost();
            self.north = Some(north);
            if let Err(error) = images {
                let message = format!("no checkpoints are made: {error}");
                self.warn(Code::NoCheckpoints, message);
            }
        }
        let lost = inheritance.connections.len() - restored.len();
        self.recover_restored(restored, lost)?;
        Ok(true)
    }

    /// Output of another host's server is compared with the output here.
    fn inherit_digests(&mut self) -> Result<(), ServeError> {
        if !self.config.digests() {
            return Ok(());
        }
        let inherited = self.link().and_then(Link::inherit_digests);
        if let Some(seed) = inherited {
            self.resources
                .plane
                .set_digest_key(&DigestKey::made_of(seed))?;
        }
        Ok(())
    }

    /// An incomplete record would lead the server to a state without output that clients already have.
    fn whole_record(&mut self, inheritance: &Inheritance) -> Option<u64> {
        if inheritance.record.is_some() && !inheritance.is_whole {
            let reason = "the logger has begun anew, and the host that served has ended before it could tell it all of the server's record again: its server's state is lost, and so are its connections";
            self.warn(Code::StateLost, reason);
            return None;
        }
        inheritance.record
    }

    /// The active host found that the server cannot be rebuilt, and served without a record.
    fn no_record(&mut self) -> Result<Option<u64>, ServeError> {
        if self.config.otherwise.is_some() {
            self.drop_record(
                "the other host has found that this server cannot be rebuilt from a record; the server's state is not protected (--stateful=prefer)"
                    .into(),
            )?;
        } else if self.config.wrapped {
            let reason = "the other host served without a record (--stateful=prefer), and this host needs a record (--stateful=require): the server's state and all connections are lost. Give all hosts the same options";
            self.warn(Code::StateLost, reason);
        }
        Ok(None)
    }

    /// The connections are known behind the gate: from here on this is a recovery like any other.
    fn recover_restored(
        &mut self,
        restored: Vec<(FlowKey, FlowId)>,
        lost: usize,
    ) -> Result<(), ServeError> {
        self.resources.begins(0)?;
        let former = self.former_instance();
        let lease = self.resources.lease.as_ref();
        let host = lease.and_then(|lease| lease.position().hosts.serves);
        self.emit(Event::Restored {
            former,
            host: host.filter(|_| former != FormerInstance::Restarted),
            connections: restored.len(),
            lost,
        });
        if self.config.address_device.is_none() {
            let reason = "the addresses were up before the service was: clients that spoke meanwhile were reset by the kernel (--address-device prevents that)";
            self.warn(Code::AddressesWereUp, reason);
        }
        if self.server.is_some() {
            self.take_over_with_replica()?;
        } else {
            let now = clock::now();
            self.recovery.on_death(self.restore_cause(), now, now);
            self.execute()?; // the gate
        }
        self.bring_addresses_up()?;
        for (key, flow) in restored {
            self.send_to_client(key, flow, keepalive_probe)?;
        }
        self.readiness.begins(); // the server has begun
        Ok(())
    }

    fn former_instance(&self) -> FormerInstance {
        let lease = self.resources.lease.as_ref();
        let former = lease.map(|lease| lease.position().former);
        former.unwrap_or_default().into()
    }

    /// A service that was handed over has not died.
    pub(super) fn restore_cause(&self) -> Cause {
        match self.former_instance() {
            FormerInstance::HandedOver => Cause::Moved,
            FormerInstance::Restarted | FormerInstance::Silent => Cause::Host,
        }
    }

    /// The logger with the connections of an earlier incarnation does not list the connections. Whatever the logger
    /// knows, this is another service from now on.
    fn disinherit(&mut self) -> Result<(), ServeError> {
        let reason = "the logger has connections of an earlier life of this service, and does not say which: they are lost";
        self.warn(Code::InheritanceUnknown, reason);
        self.resources.instance.disinherit()?;
        let number = self.resources.instance.number();
        if let Some(link) = self.link() {
            link.register_instance(number);
        }
        self.reach_logger()
    }

    /// Records of connections that this host cannot have, or has another record of.
    fn drop_foreign_records(
        &mut self,
        inheritance: &Inheritance,
        restored: &[(FlowKey, FlowId)],
    ) -> Result<(), ServeError> {
        let restored: BTreeSet<FlowId> = restored.iter().map(|(_, flow)| *flow).collect();
        let known = inheritance.connections.iter();
        let known = known.map(|one| one.beginning.flow);
        let not_here = known.filter(|flow| !restored.contains(flow));
        for flow in inheritance.others.iter().copied().chain(not_here) {
            let _ = self.ask_logger(|logger| logger.unprotect(flow))?;
        }
        Ok(())
    }

    /// Once the addresses are up, clients reach us.
    pub(super) fn bring_addresses_up(&mut self) -> Result<(), ServeError> {
        if let Some(device) = &self.config.address_device {
            let (directory, addresses) = (self.resources.lock.directory(), &self.config.addresses);
            self.vip = VirtualAddresses::bring_up(directory, device, addresses, clock::now())?;
        }
        Ok(())
    }

    /// Holds the service addresses, and announces the addresses.
    pub(super) fn poll_addresses(&mut self) -> Result<(), ServeError> {
        let Some(vip) = &mut self.vip else {
            return Ok(());
        };
        for ip in vip.poll(clock::now())? {
            let reason = format!("the address {ip} had been taken from this host; it is up again");
            self.warn(Code::AddressTaken, reason);
        }
        Ok(())
    }

    fn ask_for_connections(&mut self) -> Result<InheritReply, ServeError> {
        let hold = self.policy() == Some(OnLoggerLoss::Hold);
        let until = Instant::now() + RECORD_REPLY_TIMEOUT;
        while self
            .link()
            .is_some_and(|link| link.awaits_inherited_records())
        {
            if self.should_stop() {
                return Ok(InheritReply::NoLogger);
            }
            let inheritance = self.ask_logger(|logger| {
                let (connections, others) = newest_records(logger.connections()?);
                let summaries = logger.summaries()?;
                let streams = logger.determinants()?;
                Ok(Inheritance {
                    connections,
                    others,
                    summaries,
                    record: streams.edition.map(|one| one.record),
                    is_whole: streams.is_whole,
                })
            })?;
            if let Some(inheritance) = inheritance {
                return Ok(InheritReply::Inherited(inheritance));
            }
            if !hold && Instant::now() >= until {
                return Ok(InheritReply::Silent);
            }
            self.look_at_link()?;
            self.idle()?;
        }
        Ok(InheritReply::NoLogger)
    }

    /// Waits for a message of a logger, at most [`IDLE_INTERVAL`].
    pub(super) fn idle(&mut self) -> Result<(), ServeError> {
        self.idle_in(None)
    }

    fn idle_in(&mut self, survey: Option<&Survey>) -> Result<(), ServeError> {
        self.heartbeat()?;
        self.extend_start();
        self.answer_control();
        self.await_loggers(survey)
    }

    /// Wait for the loggers, or for a moment.
    pub(super) fn await_loggers(&self, survey: Option<&Survey>) -> Result<(), ServeError> {
        let mut fds = Vec::new();
        if let Logger::Remote(link) = &self.resources.logger {
            link.watch_loggers(&mut fds);
        }
        if let Some(survey) = survey {
            survey.watch(&mut fds);
        }
        let moment = Timespec::try_from(IDLE_INTERVAL).unwrap_or_default();
        match poll(&mut fds, Some(&moment)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).doing("wait for a logger"),
        }
    }

    /// `stateful`: the server has a determinant log, too.
    fn insert(
        &mut self,
        inheritance: &Inheritance,
        stateful: bool,
    ) -> Result<Vec<(FlowKey, FlowId)>, ServeError> {
        let summaries = inheritance.summaries.iter();
        let summaries: BTreeMap<FlowId, &RecordSummary> =
            summaries.map(|one| (one.flow, one)).collect();
        let mut restored = Vec::with_capacity(inheritance.connections.len());
        let former = self.former_instance();
        // Half-open connections may have no client any more, and come last.
        let (half_open, grown): (Vec<&Recorded>, Vec<&Recorded>) = inheritance
            .connections
            .iter()
            .partition(|one| one.acknowledged == 0);
        for recorded in grown.into_iter().chain(half_open) {
            let (id, key) = (recorded.beginning.flow, recorded.beginning.key);
            let Some(summary) = summaries.get(&id) else {
                continue;
            };
            let mut flow = restored_flow(recorded, summary, self.config.verify_head());
            if !self.is_ours(key, &flow) {
                continue;
            }
            flow.log.stateful = stateful;
            // All response heads are recorded. (A client that can report data beyond a gap is probed nevertheless.)
            if former == FormerInstance::HandedOver && !flow.server.sack {
                flow.log.restored = Restored::GapKnown;
            }
            match self.resources.plane.restore(key, &flow) {
                Ok(()) => restored.push((key, id)),
                Err(error) => tracing::warn!(%key, %error, "a connection was not restored"),
            }
        }
        Ok(restored)
    }

    /// A segment to a client, made from the client's flow.
    pub(crate) fn send_to_client(
        &self,
        key: FlowKey,
        id: FlowId,
        make: fn(FlowKey, &Flow) -> Result<Vec<u8>, EmitError>,
    ) -> Result<(), ServeError> {
        let Some(mut flow) = self.flow_with_id(key, id)? else {
            return Ok(());
        };
        // The record may lag behind the ACKs that the client has; the determinant log does not.
        if self.config.link.is_some()
            && let Some(position) = self.replay_position(key, &flow)
        {
            flow.server.ack = flow.server.ack.max_seq(position.instream);
        }
        let packet = make(key, &flow)?;
        // The queue is full: the client is probed again, or sends a segment itself.
        if let Err(error) = self.resources.send_to_client(&flow, &packet) {
            tracing::debug!(%error, %key, "a client was not spoken to");
        }
        Ok(())
    }
}
