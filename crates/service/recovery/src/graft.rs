//! Connections that the server knows after the replay of the determinant log. Each connection gets a socket that
//! continues the connection, and the server waits for all sockets.
//!
//! A client of another host must first confirm its sequence numbers, which takes about a round trip. A silent client's
//! connection is lost after a timeout: an absent client must not delay the other clients.
//!
//! The server does not wait for a connection that the server has closed. The socket of such a connection is never
//! handed over; the socket is made when the client answers, even after the server has continued.

use std::time::Duration;

use wire::FlowId;

use crate::{action::Action, connection::ConnectionStep, event::LostReason, service::Recovery};

impl Recovery {
    /// The connections are known, together with the server's positions.
    pub(crate) fn start_grafts(&mut self, now: Duration) {
        if self.config.wrapped {
            self.hand_over_by = Some(now + self.config.hear_timeout);
        }
    }

    /// Whether the server has received all sockets, if the server waits for sockets.
    pub(crate) fn has_handed_over(&self) -> bool {
        self.hand_over_by.is_none()
    }

    /// Connections of clients that have answered continue at once. When no client is missing any more, the server
    /// continues.
    pub(crate) fn graft_ready(&mut self, now: Duration) {
        for connection in self.connections.values_mut() {
            if connection.is_graft && matches!(connection.step, ConnectionStep::Waiting) {
                connection.begin(now);
                self.actions.push_back(Action::Graft {
                    key: connection.key,
                    flow: connection.flow,
                    point: connection.point,
                });
            }
        }
        let Some(hand_over_by) = self.hand_over_by else {
            return;
        };
        let awaited = self.silent.iter().filter(|(_, silent)| silent.is_known);
        let awaited: Vec<FlowId> = awaited.map(|(flow, _)| *flow).collect();
        if !awaited.is_empty() && now < hand_over_by {
            return;
        }
        for flow in awaited {
            if let Some(silent) = self.silent.remove(&flow) {
                self.lose(flow, silent.key, LostReason::ClientSilent);
            }
        }
        self.hand_over_by = None;
        self.actions.push_back(Action::HandOver);
    }
}
