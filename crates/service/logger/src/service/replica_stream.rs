//! The loop's side of those who follow a service.

use protocol::control::{Edition, Response};

use super::{Service, client::ClientError};
use crate::link::Follower;

impl Service {
    /// Somebody wants to hear what the processes of a service are told.
    pub(super) fn follow(
        &mut self,
        at: usize,
        service: String,
        edition: Option<Edition>,
        streams: &[(u32, u64)],
    ) {
        self.clients[at].follows = Some(Follower::new(service, edition, streams));
    }

    /// Which connections has the service that a client follows?
    pub(super) fn connections_followed(&mut self, at: usize) -> Result<(), ClientError> {
        let client = &mut self.clients[at];
        let Some(follower) = &client.follows else {
            return Err(ClientError::OutOfOrder);
        };
        let session = self
            .sessions
            .followed(follower.service(), client.key_name());
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

    /// Those who follow hear what has come, as fast as they read it.
    pub(super) fn tell_followers(&mut self) {
        for client in &mut self.clients {
            let Some(mut follower) = client.follows.take() else {
                continue;
            };
            while client.wants_read()
                && let Some(news) = follower.next(&self.sessions, client.key_name())
            {
                if client.say(&news).is_err() {
                    break; // it is found to be gone when it is read from
                }
            }
            client.follows = Some(follower);
        }
    }
}
