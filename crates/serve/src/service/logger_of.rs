//! The logger of the service: hearing it, asking it, replacing it.

use protocol::UnprotectedReason;
use wire::FlowId;

use super::Service;
use crate::{
    error::ServeError,
    events::Happening,
    logger_client::{LoggerClient, Said},
};

impl Service {
    pub(super) fn look_at_logger(&mut self) -> Result<(), ServeError> {
        if self.ground.logger.is_dead() {
            return self.restart_logger();
        }
        while let Some(said) = self.ground.logger.said() {
            match said {
                Said::Drained(token) => self.recovery.drained(token),
                Said::Unprotected(flow, reason) => self.unprotect(flow, reason)?,
            }
        }
        Ok(())
    }

    fn unprotect(&mut self, flow: FlowId, reason: UnprotectedReason) -> Result<(), ServeError> {
        let found = self
            .ground
            .plane
            .flows()?
            .into_iter()
            .find(|(_, known)| known.id == flow);
        let connection = found
            .as_ref()
            .map_or_else(|| format!("connection {flow}"), |(key, _)| key.to_string());
        if let Some((key, _)) = found {
            let _ = self.ground.plane.unprotect(key, flow, reason.code()); // gone meanwhile: as well
        }
        self.tell(Happening::Unprotected {
            connection,
            reason: reason.to_string(),
        });
        self.recovery.unprotected(flow, reason.code());
        Ok(())
    }

    /// Ask the logger something. If it does not answer it is started anew, and the answer is
    /// `None`: what it knew is lost, which the connections are told.
    pub(crate) fn ask_logger<T>(
        &mut self,
        ask: impl FnOnce(&mut LoggerClient) -> Result<T, ServeError>,
    ) -> Result<Option<T>, ServeError> {
        match ask(&mut self.ground.logger) {
            Ok(answer) => Ok(Some(answer)),
            // The connection has ended meanwhile, or lost its protection.
            Err(ServeError::NotKnown(_)) => Ok(None),
            Err(error) => {
                tracing::warn!(%error, "the logger did not answer");
                self.restart_logger()?;
                Ok(None)
            }
        }
    }

    fn restart_logger(&mut self) -> Result<(), ServeError> {
        let new = LoggerClient::start(&self.config, self.ground.plane.pins().path())?;
        std::mem::replace(&mut self.ground.logger, new).kill();
        let reason = UnprotectedReason::LoggerRestarted.code();
        let mut connections = 0;
        for (key, flow) in self.ground.plane.flows()? {
            if flow.unprotected.is_none() {
                connections += 1;
                let _ = self.ground.plane.unprotect(key, flow.id, reason);
                self.recovery.unprotected(flow.id, reason);
            }
        }
        self.tell(Happening::LoggerRestarted { connections });
        // What was to be drained is not lost with the old process: it is in the ring.
        self.recovery.logger_restarted();
        Ok(())
    }
}
