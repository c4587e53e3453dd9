//! The determinant log of the service: the server's next incarnation replays this log.

use north_host::repair::is_gone;
use protocol::control::Edition;
use recovery::{Candidate, Cause, ReplayPosition, SplicePoint, Stage};
use south_model::Flow;
use wire::{FlowId, FlowKey};

use super::Service;
use crate::{
    clock,
    config::ServeConfig,
    error::ServeError,
    events::{Code, Event},
    logger_client::LoggerClient,
    north::{North, Outgoing, Replayed},
    options,
};

impl Service {
    /// Prepares the start of the server: everything that the next incarnation needs, if the server shall have a record.
    pub(crate) fn prepare_north(&mut self) -> Result<(), ServeError> {
        if !self.config.wrapped {
            return self.report_no_record().map(drop);
        }
        let mut north = match self.north.take() {
            Some(north) => north,
            None => {
                let directory = self.resources.lock.directory();
                North::new(directory, self.config.limits.total)?
                    .with_images(&self.config, directory)?
            }
        };
        let prepared = self.prepare_replay(&mut north);
        if north.is_lost() {
            self.recovery.on_state_lost();
        }
        north.memory().hold(self.hold());
        // In any case: without `north` the next try would know of no earlier incarnation.
        self.north = Some(north);
        prepared?;
        self.set_sender_destination()?;
        self.compare_determinants()
    }

    /// Prepares the replay of an earlier incarnation, if there was an earlier incarnation.
    fn prepare_replay(&mut self, north: &mut North) -> Result<(), ServeError> {
        if !north.has_record() && !north.is_lost() {
            return Ok(());
        }
        if let Some(why) = north.is_not_replayable() {
            return Err(ServeError::not_replayable(&self.config.command, why));
        }
        if let Some(divergence) = north.divergence() {
            let message = format!("the server's record could not be replayed: {divergence}");
            self.warn(Code::ReplayDiverged, message);
        }
        if let Some(message) = north.torn_image().filter(|_| !north.is_lost()) {
            north.mark_lost();
            self.warn(Code::ImageNotStarted, message);
        }
        let flows = self.resources.plane.flows()?;
        if let Some(quarantined) = north.quarantine(self.config.quarantine_after)? {
            let its = flows.iter().filter(|(key, _)| quarantined.is(*key));
            for (_, flow) in its {
                self.recovery.quarantine(flow.id, quarantined.deaths);
            }
            if let Some(child) = quarantined.child {
                let message = format!(
                    "a child of the server (process {child} of its record) has crashed {} times: it is not begun again",
                    quarantined.deaths
                );
                self.warn(Code::ChildQuarantined, message);
            }
        }
        if let Err(error) = north.died(&flows, self.config.renew_at.is_some())? {
            let message = format!(
                "the server's record cannot be replayed: its state is lost, and so are its connections: {error}"
            );
            self.warn(Code::StateLost, message);
        }
        Ok(())
    }

    /// Serves a server that cannot be rebuilt without a record, with the present clients, if the configuration permits
    /// this. Returns whether.
    pub(super) fn continue_without_record(
        &mut self,
        error: &ServeError,
    ) -> Result<bool, ServeError> {
        let is_at_start = self.recovery.stage() == Stage::Starting && self.server.is_none();
        if self.config.otherwise.is_none() || !is_at_start || !error.is_of_the_north() {
            return Ok(false);
        }
        // Another host, or this host after a boot, would take the logger's determinants for the server's state. If the
        // logger does not learn that the determinants are void, the service starts again.
        if !self.report_no_record()? && self.config.address_device.is_some() {
            return Ok(false);
        }
        self.drop_record(error.and_without())?;
        self.start_at = Some(clock::now());
        Ok(true)
    }

    /// From now on the service has no record, if a record was only preferred.
    pub(super) fn drop_record(&mut self, why: String) -> Result<(), ServeError> {
        let Some(otherwise) = &self.config.otherwise else {
            return Ok(());
        };
        self.config = ServeConfig::clone(otherwise);
        self.warn(Code::NotRebuilt, why);
        options::keep(self.resources.lock.directory(), &self.config)?;
        drop(self.north.take());
        self.update_loss_policy();
        self.recovery.continue_without_record(clock::now());
        Ok(())
    }

    /// Tells the logger that the server has no record, if a host that takes over could look for a record: old
    /// determinants are void. Returns whether the logger knows.
    pub(super) fn report_no_record(&mut self) -> Result<bool, ServeError> {
        let is_preferred = self.config.without || self.config.otherwise.is_some();
        if self.config.link.is_none() || !is_preferred {
            return Ok(true);
        }
        let tell = |logger: &mut LoggerClient| logger.determinants_of(Edition::WITHOUT, Vec::new());
        Ok(self.ask_logger(tell)?.is_some())
    }

    /// The replay of a server without a record is over at once.
    pub(crate) fn north_started(&mut self) {
        if self.north.as_ref().is_some_and(|north| !north.replays()) {
            self.recovery.replayed(clock::now());
        }
    }

    /// The server has died. Warns of an exit without a reported divergence during the replay: the next incarnation may
    /// well exit in the same way.
    pub(super) fn warn_exit_in_replay(&mut self, cause: Cause) {
        let replays = self
            .north
            .as_ref()
            .is_some_and(|north| north.replays() && north.divergence().is_none());
        if replays && !matches!(cause, Cause::Signal { .. }) {
            let message = format!("the server exited during the replay of the record: {cause}");
            self.warn(Code::EndedInReplay, message);
        }
    }

    /// Why the present incarnation could not be rebuilt; `None`: a rebuild is possible, or the server has no state.
    pub(super) fn record_ended(&self) -> Option<&'static str> {
        let north = self.north.as_ref()?;
        let is_lost = self.recovery.stage() == Stage::Serving && north.is_lost();
        let lost = "the beginning of the record is lost, or a checkpoint is gone";
        north.end_reason().or(is_lost.then_some(lost))
    }

    /// Reports that an adopted incarnation goes on and could not be rebuilt.
    pub(super) fn check_adopted_record(&mut self) {
        let is_lost = self.north.as_ref().is_some_and(North::is_lost);
        if let Some(reason) = self.record_ended().filter(|_| is_lost) {
            self.emit(Event::RecordingStopped {
                reason: reason.to_owned(),
                record_bytes: 0,
            });
        }
    }

    /// Polls the record: end of the recording, warnings, end of the replay.
    pub(super) fn poll_north(&mut self) -> Result<(), ServeError> {
        let Some(north) = &mut self.north else {
            return Ok(());
        };
        if let Some(reason) = north.take_end_reason() {
            let record_bytes = north.record_bytes();
            self.emit(Event::RecordingStopped {
                reason: reason.to_owned(),
                record_bytes,
            });
            return Ok(());
        }
        if let Some(reason) = north.threads_not_awaited() {
            let message = format!(
                "outlive no longer waits for threads of the server other than the first: {reason}. If the first thread depends on these threads, the record may not be replayable from here on"
            );
            self.warn(Code::ThreadsNotAwaited, message);
        }
        let Some(north) = &mut self.north else {
            return Ok(());
        };
        if self.config.link.is_some() {
            north.set_read_cursors(self.resources.plane.read_cursors());
        }
        let replayed = north.poll(clock::now())?;
        self.register_outbound()?;
        match replayed {
            Replayed::NotYet => {}
            Replayed::Whole => self.recovery.replayed(clock::now()),
            Replayed::Not(message) => {
                self.warn(Code::ReplayDiverged, message);
                // The server dies of the divergence as of a crash, and starts without a record.
                if let Some(north) = &mut self.north {
                    north.give_up();
                    north.mark_lost();
                }
                self.resources.cgroup.kill()?;
            }
        }
        Ok(())
    }

    pub(crate) fn with_replay_position(&self, mut candidate: Candidate) -> Candidate {
        candidate.replay_position = self.replay_position(candidate.key, &candidate.flow);
        candidate
    }

    /// Position of the server in this connection, if the server has replayed the record and knows the connection.
    pub(crate) fn replay_position(&self, key: FlowKey, flow: &Flow) -> Option<ReplayPosition> {
        self.north.as_ref()?.replay_position(key, flow)
    }

    /// Make the socket with which the server continues, then let the segments of the connection pass, then send missing
    /// output. A connection whose socket cannot be made is reset: the recovery notices that no graft arrives.
    pub(crate) fn graft(
        &mut self,
        key: FlowKey,
        id: FlowId,
        point: SplicePoint,
    ) -> Result<(), ServeError> {
        let Some(flow) = self.flow_with_id(key, id)? else {
            return Ok(());
        };
        let Some(north) = &mut self.north else {
            return Ok(());
        };
        let made = north.graft(key, &flow, point.outstream);
        let graft = match made {
            Ok(Some(graft)) => graft,
            Ok(None) => return Ok(()),
            Err(error) => {
                let message = format!("no socket can be made for {key}: {error}");
                self.warn(Code::SocketNotMade, message);
                return Ok(());
            }
        };
        let point = dataplane::SplicePoint {
            instream: point.instream,
            outstream: point.outstream,
            verify_end: point.verify_end,
        };
        match self.resources.plane.graft(key, id, point, graft.window) {
            Err(dataplane::DataplaneError::Control { .. }) => return Ok(()), // gone
            result => result?,
        }
        // A connection without a client has no missing output: the server finds a reset.
        if let Some(Err(error)) = self.north.as_mut().map(|north| north.join(graft))
            && !is_gone(&error)
        {
            let message =
                format!("missing output of {key} cannot be written to the socket: {error}");
            self.warn(Code::NotSaidAgain, message);
        }
        Ok(())
    }

    pub(crate) fn hand_over_connections(&mut self) -> Result<(), ServeError> {
        let Some(north) = &mut self.north else {
            return Ok(());
        };
        north.restart_record();
        match north.hand_over() {
            Ok(Outgoing { kept: 0, reset: 0 }) => {}
            Ok(Outgoing { kept, reset }) => self.emit(Event::UpstreamConnections {
                recovered: kept,
                reset,
            }),
            Err(error) => self.restart_after_failed_handover(&error),
        }
        Ok(())
    }

    /// The death of a server is detected elsewhere. A living server waits for connections that will never come: the
    /// server is restarted, and the server is not to blame for that.
    fn restart_after_failed_handover(&mut self, error: &std::io::Error) {
        let server = self.server.as_mut();
        let lives = server.is_some_and(|server| matches!(server.try_wait(), Ok(None)));
        if !lives {
            tracing::warn!(%error, "the server could not be given its connections");
            return;
        }
        let message =
            format!("the server cannot be given its connections, and is started again: {error}");
        self.warn(Code::SocketNotMade, message);
        self.died(Cause::NotServing, clock::now());
        if let Some(north) = &mut self.north {
            north.has_not_crashed();
        }
    }
}
