//! The loop's side of those who follow a service.

use protocol::control::{Edition, Response};

use super::{Service, client::ClientError};
use crate::link::ReplicaFeed;

impl Service {
    /// Somebody wants to hear what the processes of a service are told.
    pub(super) fn follow(
        &mut self,
        at: usize,
        service: String,
        edition: Option<Edition>,
        streams: &[(u32, u64)],
    ) {
        self.clients[at].replica_feed = Some(ReplicaFeed::new(service, edition, streams));
    }

    /// The connections of the service that a client replicates.
    pub(super) fn connections_followed(&mut self, at: usize) -> Result<(), ClientError> {
        let client = &mut self.clients[at];
        let Some(feed) = &client.replica_feed else {
            return Err(ClientError::OutOfOrder);
        };
        let session = self.sessions.followed(feed.service(), client.key_name());
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
    pub(super) fn feed_replicas(&mut self) {
        for client in &mut self.clients {
            let Some(mut feed) = client.replica_feed.take() else {
                continue;
            };
            while client.wants_read()
                && let Some(message) = feed.next(&self.sessions, client.key_name())
            {
                if client.say(&message).is_err() {
                    break; // it is found to be gone when it is read from
                }
            }
            client.replica_feed = Some(feed);
        }
    }
}
