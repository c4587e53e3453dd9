//! The service's own record: its server's next incarnation replays it.

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
    /// The server is about to be started: what its next incarnation needs, if it is to have a record.
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
        // In any case: without it the next try would know of no earlier incarnation.
        self.north = Some(north);
        prepared?;
        self.set_sender_destination()?;
        self.compare_determinants()
    }

    /// If there was an earlier incarnation: what is replayed of it.
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

    /// A server that has turned out not to be one that can be rebuilt is served without a record, with the clients
    /// that it has, if that was wanted. Is it?
    pub(super) fn continue_without_record(
        &mut self,
        error: &ServeError,
    ) -> Result<bool, ServeError> {
        let is_at_start = self.recovery.stage() == Stage::Starting && self.server.is_none();
        if self.config.otherwise.is_none() || !is_at_start || !error.is_of_the_north() {
            return Ok(false);
        }
        // Another host, or this one after a boot, would take what the logger has for the server's state: if the logger
        // does not hear that it is not, the service begins anew.
        if !self.report_no_record()? && self.config.address_device.is_some() {
            return Ok(false);
        }
        self.drop_record(error.and_without())?;
        self.start_at = Some(clock::now());
        Ok(true)
    }

    /// From now on the service is one without a record, if that was wanted: a record was only preferred.
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

    /// The logger is told that the server has no record, if a host which takes over could look for one: what there is
    /// of it is nobody's state any more. Does it know?
    pub(super) fn report_no_record(&mut self) -> Result<bool, ServeError> {
        let is_preferred = self.config.without || self.config.otherwise.is_some();
        if self.config.link.is_none() || !is_preferred {
            return Ok(true);
        }
        let tell = |logger: &mut LoggerClient| logger.determinants_of(Edition::WITHOUT, Vec::new());
        Ok(self.ask_logger(tell)?.is_some())
    }

    /// A server without a record has nothing to replay.
    pub(crate) fn north_started(&mut self) {
        if self.north.as_ref().is_some_and(|north| !north.replays()) {
            self.recovery.replayed(clock::now());
        }
    }

    /// The server has died. If it has left by itself, where its record says that it went on, and has not said why,
    /// that is told: its next incarnation may well do the same.
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

    /// Why the incarnation that serves now would not be rebuilt; `None`: it would be, or it has no state.
    pub(super) fn record_ended(&self) -> Option<&'static str> {
        let north = self.north.as_ref()?;
        let is_lost = self.recovery.stage() == Stage::Serving && north.is_lost();
        let lost = "the beginning of the record is lost, or a checkpoint is gone";
        north.end_reason().or(is_lost.then_some(lost))
    }

    /// An incarnation that was found running goes on, and would not be rebuilt: that is told.
    pub(super) fn check_adopted_record(&mut self) {
        let is_lost = self.north.as_ref().is_some_and(North::is_lost);
        if let Some(reason) = self.record_ended().filter(|_| is_lost) {
            self.emit(Event::RecordingStopped {
                reason: reason.to_owned(),
                record_bytes: 0,
            });
        }
    }

    /// Has the server replayed its record?
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
                // It dies of that, as of a crash, and begins without a record.
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

    /// Where the server stands with this connection, if it has replayed its record and knows it.
    pub(crate) fn replay_position(&self, key: FlowKey, flow: &Flow) -> Option<ReplayPosition> {
        self.north.as_ref()?.replay_position(key, flow)
    }

    /// Make the socket with which the server goes on, then let what concerns it pass, then say what is still to be
    /// said. One that cannot be made is lost: the recovery finds out that it is not taken.
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
        // One whose client is gone has nobody who lacks anything: the server finds it reset.
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

    /// A server that has died meanwhile is heard of otherwise. One that lives waits for its connections, and nobody
    /// would ever give it those: it begins again, which is no fault of its own.
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
