//! Connections that the server knows, since it has replayed a record of its own: each gets a socket that goes on
//! with it, and the server waits until it has them all. Clients of which another host knew more have to say
//! first where they stand, which takes a round trip or so; who does not say it in time is lost, so that one that is
//! away does not keep all others waiting. One that the server has closed nobody waits for: its socket is never the
//! server's, and is made when its client speaks, even after the server has gone on.

use std::time::Duration;

use wire::FlowId;

use crate::{action::Action, connection::ConnectionStep, event::LostReason, service::Recovery};

impl Recovery {
    /// The connections are known, and what the server knows of them.
    pub(crate) fn start_grafts(&mut self, now: Duration) {
        if self.config.wrapped {
            self.hand_over_by = Some(now + self.config.hear_timeout);
        }
    }

    /// Has the server got its connections, if it waits for them?
    pub(crate) fn has_handed_over(&self) -> bool {
        self.hand_over_by.is_none()
    }

    /// Those whose clients have spoken go on at once, and when nobody is missing any more, the server does.
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
