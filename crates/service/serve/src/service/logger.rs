//! The logger of the service: messages, requests, replacement.

use protocol::UnprotectedReason;
use wire::{FlowId, FlowKey};

use super::Service;
use crate::{
    clock,
    error::ServeError,
    events::{Code, Event},
    logger::Logger,
    logger_client::{LoggerClient, LoggerMessage},
};

impl Service {
    pub(super) fn poll_logger(&mut self) -> Result<(), ServeError> {
        let died = match &mut self.resources.logger {
            Logger::Local(client) => client.is_dead(),
            Logger::Remote(_) => {
                self.look_at_link()?;
                false
            }
        };
        if died {
            return self.restart_logger(false);
        }
        while let Some(said) = self
            .resources
            .logger
            .client()
            .and_then(LoggerClient::next_message)
        {
            match said {
                LoggerMessage::Drained(token) => {
                    let link = self.resources.logger.link();
                    if !link.is_some_and(|link| link.drained(token)) {
                        self.recovery.drained(token.wrapping_sub(self.barriers));
                    }
                }
                LoggerMessage::Unprotected(flow, reason) => self.unprotect(flow, reason)?,
                LoggerMessage::Unknown(flow_low) => self.not_recorded(flow_low)?,
                LoggerMessage::Image(said) => self.handle_image_reply(said)?,
                // Messages of other streams.
                LoggerMessage::Lease(_)
                | LoggerMessage::Hosts(..)
                | LoggerMessage::Followed(_)
                | LoggerMessage::Grown(..) => {}
            }
        }
        Ok(())
    }

    pub(super) fn unprotect(
        &mut self,
        flow: FlowId,
        reason: UnprotectedReason,
    ) -> Result<(), ServeError> {
        let is_full = reason == UnprotectedReason::TooManyConnections;
        // A refused handshake is no flow yet, and the client would wait for the logger. Other handshakes may be refused
        // meanwhile: the search for this handshake comes before the read of all flows.
        let refused = is_full.then(|| self.resources.plane.refuse(flow, reason.code()).ok());
        let key = match refused.flatten() {
            Some(key) => Some(key),
            None => self.released(flow, reason)?,
        };
        if let Some(key) = key.filter(|_| is_full) {
            self.unseen.add_refused(key);
        }
        self.emit(Event::Unprotected {
            connection: key.map_or_else(|| format!("connection {flow}"), |key| key.to_string()),
            reason: reason.to_string(),
        });
        self.recovery.unprotected(flow, reason);
        Ok(())
    }

    /// The flow with this number goes on without a record; `None`: there is none.
    fn released(
        &mut self,
        flow: FlowId,
        reason: UnprotectedReason,
    ) -> Result<Option<FlowKey>, ServeError> {
        let flows = self.resources.plane.flows()?;
        let found = flows.into_iter().find(|(_, known)| known.id == flow);
        if let Some((key, flow)) = &found {
            self.release(*key, flow, reason);
        }
        Ok(found.map(|(key, _)| key))
    }

    /// Send a request to the logger. `None`: no answer. Then a logger process of this host is restarted, loses the
    /// records, and the connections become unprotected; a remote logger is attached to again.
    pub(crate) fn ask_logger<T>(
        &mut self,
        ask: impl FnOnce(&mut LoggerClient) -> Result<T, ServeError>,
    ) -> Result<Option<T>, ServeError> {
        let Some(client) = self.resources.logger.client() else {
            return Ok(None);
        };
        match ask(client) {
            Ok(answer) => Ok(Some(answer)),
            // The connection has ended meanwhile, or is unprotected.
            Err(ServeError::NotKnown(_)) => Ok(None),
            Err(error) => {
                tracing::warn!(%error, "the logger did not answer");
                match &mut self.resources.logger {
                    Logger::Local(_) => self.restart_logger(false)?,
                    Logger::Remote(link) => link.broken(&error, clock::now()),
                }
                Ok(None)
            }
        }
    }

    /// `is_planned`: the process before was no failure.
    pub(super) fn restart_logger(&mut self, is_planned: bool) -> Result<(), ServeError> {
        let plane = &self.resources.plane;
        if let Some(unended) = self.resources.logger.start_anew(&self.config, plane)? {
            self.warn(Code::LoggerNotEnded, unended.to_string());
        }
        // Also of a planned restart: a connection may have begun meanwhile.
        let connections = self.unprotect_all(UnprotectedReason::LoggerRestarted)?;
        if connections > 0 || !is_planned {
            self.emit(Event::LoggerRestarted { connections });
        }
        // The frames before the barrier are not lost with the old process, but still in the ring.
        self.recovery.logger_restarted();
        Ok(())
    }
}
