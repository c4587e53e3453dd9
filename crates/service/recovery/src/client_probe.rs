//! Clients of another host that must confirm their sequence numbers before a splice (FT-TCP IV.E). Each client is
//! probed with growing pauses until the client answers or a timeout ends. Only a server that knows such a connection
//! waits ([`super::graft`]).

use std::time::Duration;

use south_model::Flow;
use wire::FlowKey;

use crate::{action::Action, config::Stage, event::LostReason, service::Recovery};

/// First pause before a client is asked again; doubles up to [`PROBE_DELAY_MAX`].
const PROBE_FIRST_DELAY: Duration = Duration::from_millis(50);
const PROBE_DELAY_MAX: Duration = Duration::from_secs(15);

/// A client that has not answered.
#[derive(Debug, Clone)]
pub(crate) struct SilentClient {
    pub(crate) key: FlowKey,
    /// Deadline of the answer.
    until: Duration,
    ask_at: Duration,
    pause: Duration,
    /// The server knows the connection and waits for this client.
    pub(crate) is_known: bool,
}

impl Recovery {
    /// The client of this flow has not answered yet: probes begin.
    pub(crate) fn probe(&mut self, key: FlowKey, flow: &Flow, is_known: bool, now: Duration) {
        // A client without any data or acknowledgement may not exist: a SYN may have an invented source.
        let spoken = flow.client.nxt != flow.client.isn + 1;
        let patience = if spoken || flow.client.ack != flow.server.isn + 1 {
            self.config.answer_timeout
        } else {
            self.config.half_open_timeout
        };
        self.silent.entry(flow.id).or_insert(SilentClient {
            key,
            until: now + patience,
            ask_at: now,
            pause: PROBE_FIRST_DELAY,
            is_known,
        });
    }

    /// Connections whose clients have not answered yet.
    #[must_use]
    pub fn silent(&self) -> usize {
        self.silent.len()
    }

    pub(crate) fn repeat_probes(&mut self, now: Duration) {
        let mut given_up = Vec::new();
        for (flow, silent) in &mut self.silent {
            if now >= silent.until {
                given_up.push(*flow);
            } else if now >= silent.ask_at {
                silent.ask_at = now + silent.pause;
                silent.pause = (silent.pause * 2).min(PROBE_DELAY_MAX);
                self.actions.push_back(Action::ProbeClient {
                    key: silent.key,
                    flow: *flow,
                });
            }
        }
        for flow in given_up {
            if let Some(silent) = self.silent.remove(&flow) {
                self.lose(flow, silent.key, LostReason::ClientSilent);
            }
        }
    }

    pub(crate) fn next_probe(&self) -> Option<Duration> {
        let asks = matches!(self.stage, Stage::Recovering | Stage::Serving);
        let due = self.silent.values().map(|silent| silent.ask_at);
        due.min().filter(|_| asks)
    }
}
