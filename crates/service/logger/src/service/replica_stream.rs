//! The loop's side of the replicas of a service.

use protocol::control::{Edition, Response};

use super::{Service, client::ClientError};
use crate::link::Replication;

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
