//! Record reset: a server that keeps no state across connections is restarted with an empty record when no client is
//! connected.
//!
//! A cut of the record at such a moment, without a restart, would not do. The behaviour of a process depends on more
//! than the data of the clients: addresses of objects, due times of timers, free descriptors. After a cut, the record
//! would be of a process that no replay can make.
//!
//! A record reset is a death like any other. A client that connects just then is carried over with the whole record;
//! the record is emptied only when the dead server had no clients.

use recovery::{Cause, Stage};

use super::Service;
use crate::{clock, control::Restarted, error::ServeError, events::Event, north::North};

/// Progress of a reset or of a restart.
#[derive(Debug, Default)]
pub(super) struct RecordReset {
    /// The server was killed, and has not died yet.
    is_under_way: bool,
    /// Size of the record at the last reset, bytes.
    at: u64,
    /// An operator waits for a restart.
    is_asked_for: bool,
}

impl RecordReset {
    /// The cause of a death, which may be a reset.
    pub(super) fn cause(&mut self, cause: Cause) -> Cause {
        match std::mem::take(&mut self.is_under_way) {
            true => Cause::RecordReset,
            false => cause,
        }
    }
}

impl Service {
    /// Handles a request for a restart. The restart is a recovery like any other, but from a death after the gate is
    /// shut: no process of a server with several processes can report an end of connections.
    pub(super) fn poll_restart_request(&mut self) -> Result<(), ServeError> {
        self.refuse_restart();
        if !self.control.wants_restart() || self.record_reset.is_asked_for {
            return Ok(());
        }
        self.record_reset.is_asked_for = true;
        self.emit(Event::Restarting);
        self.died(Cause::Restart, clock::now());
        self.execute()?;
        Ok(())
    }

    /// Refuses requests for a restart when no server can be restarted. A standby, or a host that waits for a logger,
    /// refuses, too: an answer would come only after the takeover.
    pub(super) fn refuse_restart(&mut self) {
        let serves = self.recovery.stage() == Stage::Serving && self.readiness.has_begun();
        if serves || self.record_reset.is_asked_for || !self.control.wants_restart() {
            return;
        }
        let why = format!(
            "the service is {} here: try again when it serves",
            self.stage_name()
        );
        self.control.answer_restart(&Restarted::Refused(why));
    }

    /// The service serves again: answers the request for the restart with the result.
    pub(crate) fn answer_restart(&mut self, recovered: usize, reset: usize) {
        if std::mem::take(&mut self.record_reset.is_asked_for) {
            let restarted = Restarted::Restarted { recovered, reset };
            self.control.answer_restart(&restarted);
        }
    }

    /// Answers a restart request after which the server did not come up in time.
    pub(crate) fn fail_restart(&mut self) {
        if std::mem::take(&mut self.record_reset.is_asked_for) {
            let waited = self.config.give_up_after.as_secs_f64();
            let why = format!(
                "its server has not come up within {waited} s, and its connections were reset; it is tried on"
            );
            self.control.answer_restart(&Restarted::Failed(why));
        }
    }

    /// To be called every second while the service serves.
    pub(super) fn reset_record_if_idle(&mut self) -> Result<(), ServeError> {
        let (Some(at), Some(north)) = (self.config.renew_at, &self.north) else {
            return Ok(());
        };
        let record_bytes = north.record_bytes();
        if record_bytes < self.record_reset.at {
            self.record_reset.at = 0; // the record was emptied since
        }
        let is_due = north.is_lost() || record_bytes >= self.record_reset.at.saturating_add(at);
        if !self.readiness.has_begun() || !is_due || self.is_connected()? {
            return Ok(());
        }
        self.record_reset = RecordReset {
            is_under_way: true,
            at: record_bytes,
            is_asked_for: false,
        };
        self.emit(Event::RecordReset { record_bytes });
        self.resources.cgroup.kill()?;
        Ok(())
    }

    /// Is any client connected, according to the data plane or the kernel? Only the kernel knows unprotected
    /// connections.
    fn is_connected(&self) -> Result<bool, ServeError> {
        let flows = self.resources.plane.flows()?;
        if North::has_clients(&flows) {
            return Ok(true);
        }
        let addresses = &self.config.addresses;
        Ok(supervise::is_connected(addresses)?)
    }
}
