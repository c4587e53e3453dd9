//! Checkpoints: due times and results. During a recovery no checkpoint is made: the record is being replayed from the
//! last checkpoint on.

use recovery::Stage;

use super::Service;
use crate::{
    clock,
    error::{ServeError, SystemContext as _},
    events::{Code, Event},
};

impl Service {
    /// Continue a checkpoint in production or in transfer, or begin a checkpoint that is due.
    pub(super) fn poll_checkpoints(&mut self) -> Result<(), ServeError> {
        self.make_checkpoints()?;
        self.upload_image()
    }

    fn make_checkpoints(&mut self) -> Result<(), ServeError> {
        let serves = self.recovery.stage() == Stage::Serving && self.readiness.has_begun();
        let Some(north) = self.north.as_mut() else {
            return Ok(());
        };
        if !serves || north.is_lost() || !north.memory().is_recording() {
            north.stop_shadow_replay();
            return Ok(());
        }
        if north.is_shadow_replaying() {
            let polled = north.poll_shadow_replay(&self.config);
            return self.report_checkpoint(polled);
        }
        if !north.checkpoint_is_due(&self.config, clock::now()) {
            return Ok(());
        }
        let flows = self.resources.plane.flows()?;
        let begun = self
            .north
            .as_mut()
            .map(|north| north.start_shadow_replay(&flows));
        self.report_checkpoint(begun.unwrap_or(Ok(())).map(|()| None))
    }

    pub(super) fn report_checkpoint(
        &mut self,
        made: Result<Option<Event>, String>,
    ) -> Result<(), ServeError> {
        match made {
            Ok(None) => {}
            Ok(Some(made)) => self.emit(made),
            Err(reason) => self.emit(Event::CheckpointFailed { reason }),
        }
        Ok(())
    }

    /// A process was started from an image, and continues as the server: this process is watched from now on.
    pub(super) fn poll_restored_process(&mut self) -> Result<(), ServeError> {
        let Some(north) = self.north.as_mut() else {
            return Ok(());
        };
        let first = self.server.as_ref().map(supervise::Server::pid);
        match north.poll_restored_process(first, &self.resources.cgroup) {
            Ok(None) => {}
            Ok(Some(pid)) => {
                let server = supervise::Server::adopt(pid, &self.resources.cgroup);
                if let Some(server) = server.doing("watch the server")? {
                    self.resources
                        .plane
                        .main_process(pid.as_raw_pid().unsigned_abs())?;
                    self.server = Some(server);
                }
            }
            Err(message) => {
                self.warn(Code::ImageNotStarted, message);
                self.resources.cgroup.kill()?;
            }
        }
        Ok(())
    }
}
