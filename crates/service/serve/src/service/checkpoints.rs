//! Checkpoints: when they are made, and what becomes of them. While the service is being recovered none is made: its
//! record is being replayed from where the last one is.

use recovery::Stage;

use super::Service;
use crate::{
    clock,
    error::{ServeError, SystemContext as _},
    events::{Code, Event},
};

impl Service {
    /// Go on with the checkpoint that is being made, or is on its way to the logger, or begin one that is due.
    pub(super) fn look_at_checkpoints(&mut self) -> Result<(), ServeError> {
        self.make_checkpoints()?;
        self.upload_image()
    }

    fn make_checkpoints(&mut self) -> Result<(), ServeError> {
        let serves = self.recovery.stage() == Stage::Serving && self.listening.has_begun();
        let Some(north) = self.north.as_mut() else {
            return Ok(());
        };
        if !serves || north.is_lost() || !north.memory().is_recording() {
            north.stop_rehearsal();
            return Ok(());
        }
        if north.rehearses() {
            let polled = north.poll_rehearsal(&self.config);
            return self.tell_of_checkpoint(polled);
        }
        if !north.checkpoint_is_due(&self.config, clock::now()) {
            return Ok(());
        }
        let flows = self.ground.plane.flows()?;
        let begun = self.north.as_mut().map(|north| north.rehearse(&flows));
        self.tell_of_checkpoint(begun.unwrap_or(Ok(())).map(|()| None))
    }

    pub(super) fn tell_of_checkpoint(
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

    /// A process was made from an image, and goes on as the server: it is the one that is watched.
    pub(super) fn look_at_room(&mut self) -> Result<(), ServeError> {
        let Some(north) = self.north.as_mut() else {
            return Ok(());
        };
        let first = self.server.as_ref().map(supervise::Server::pid);
        match north.look_at_room(first, &self.ground.cgroup) {
            Ok(None) => {}
            Ok(Some(pid)) => {
                let server = supervise::Server::adopt(pid, &self.ground.cgroup);
                if let Some(server) = server.doing("watch the server")? {
                    self.ground
                        .plane
                        .main_process(pid.as_raw_pid().unsigned_abs())?;
                    self.server = Some(server);
                }
            }
            Err(message) => {
                self.warn(Code::ImageNotStarted, message);
                self.ground.cgroup.kill()?;
            }
        }
        Ok(())
    }
}
