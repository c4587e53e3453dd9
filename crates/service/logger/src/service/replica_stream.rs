//! The loop's side of the replicas of a service.

use protocol::control::{Edition, Request, Response};

use super::{Service, client::ClientError};
use crate::link::{Replication, Session};

impl Service {
    /// A hot standby replicates the determinants of a service.
    pub(super) fn follow(
        &mut self,
        at: usize,
        service: String,
        edition: Option<Edition>,
        streams: &[(u32, u64)],
    ) {
        self.clients[at].replication = Some(Replication::new(service, edition, streams));
    }

    /// The connections of the service that a client replicates.
    pub(super) fn connections_followed(&mut self, at: usize) -> Result<(), ClientError> {
        let client = &mut self.clients[at];
        let Some(replication) = &client.replication else {
            return Err(ClientError::OutOfOrder);
        };
        let session = self
            .sessions
            .followed(replication.service(), client.key_name());
        let none = || {
            vec![Response::Connections {
                connections: Vec::new(),
                last: true,
            }]
        };
        for answer in session.map_or_else(none, crate::link::Session::connections) {
            client.say(&answer)?;
        }
        Ok(())
    }

    /// A standby asks for the image at the beginning of a service's record, or for a part of the image.
    pub(super) fn image_for_standby(
        &mut self,
        at: usize,
        service: &str,
        request: &Request,
    ) -> Result<(), ClientError> {
        let client = &mut self.clients[at];
        client.asks_for_images = true;
        let session = self.sessions.followed(service, client.key_name());
        client.say(&Session::image_for_standby(session, request))
    }

    /// Sends new determinants to the replicas, as fast as they read.
    pub(super) fn send_to_replicas(&mut self) {
        for client in &mut self.clients {
            let Some(mut replication) = client.replication.take() else {
                continue;
            };
            while client.wants_read()
                && let Some(message) = replication.next(&self.sessions, client.key_name())
            {
                if client.say(&message).is_err() {
                    break; // the next read finds the broken stream
                }
            }
            client.replication = Some(replication);
        }
    }
}
