//! Clients that wait for longer than a moment. Each client gets zero-window ACKs, repeatedly, and therefore neither
//! gives up nor sends data that the gate drops (FT-TCP IV.E.1). When the client is served, the client gets a window
//! update at once, instead of waiting for its next window probe (IV.E.2).
//!
//! Until the connections are listed, when the server listens, the flows show which clients wait. A client of another
//! host that has not answered yet is probed instead ([`super::client_probe`]).

use std::{collections::BTreeMap, time::Duration};

use south_model::{Flow, Mode};
use wire::{FlowId, FlowKey};

use crate::{action::Action, config::Stage, service::Recovery};

/// A shorter recovery is covered by the retransmissions of the clients.
const ZERO_WINDOW_DELAY: Duration = Duration::from_secs(1);
/// Interval between two zero-window ACKs to a client, and between two lists of waiting clients.
const ZERO_WINDOW_INTERVAL: Duration = Duration::from_secs(5);
/// Clients that are sent an ACK in a pass: in between, the loop must handle other events.
const ZERO_WINDOW_BATCH: usize = 64;

/// A client that waits.
#[derive(Debug, Clone)]
pub(crate) struct WaitingClient {
    key: FlowKey,
    zero_window_at: Duration,
    /// The client was sent a zero window.
    told: bool,
    /// The client must first confirm its sequence numbers.
    silent: bool,
}

impl Recovery {
    /// The flows of earlier incarnations in the present state; asked for by [`Action::ListWaiting`].
    pub fn waiting<'a>(&mut self, flows: impl Iterator<Item = (FlowKey, &'a Flow)>, now: Duration) {
        if !self.is_down() {
            return; // the connections were listed meanwhile
        }
        let mut before = std::mem::take(&mut self.waiting);
        for (key, flow) in flows.filter(|(_, flow)| waits(flow)) {
            let known = before.remove(&flow.id);
            let told = known.as_ref().is_some_and(|known| known.told);
            let zero_window_at = known.map_or(now, |known| known.zero_window_at);
            let silent = flow.is_silent();
            let waiting = WaitingClient {
                key,
                zero_window_at,
                told,
                silent,
            };
            self.waiting.insert(flow.id, waiting);
        }
    }

    /// No server serves, and the connections are not known yet.
    const fn is_down(&self) -> bool {
        let down = matches!(
            self.stage,
            Stage::Clearing | Stage::Starting | Stage::Listing
        );
        down && self.gave_up.is_none()
    }

    /// The server has died.
    pub(crate) fn start_client_waits(&mut self, now: Duration) {
        if self.stage == Stage::Serving {
            self.waiting.clear();
        }
        self.list_waiting_at = now.max(self.down_since + ZERO_WINDOW_DELAY);
    }

    /// A connection is to be given to the server.
    pub(crate) fn add_waiting_client(&mut self, flow: FlowId, key: FlowKey, now: Duration) {
        let since = match self.stage {
            Stage::Serving => now,
            _ => self.down_since,
        };
        let waiting = self.waiting.entry(flow).or_insert(WaitingClient {
            key,
            zero_window_at: since + ZERO_WINDOW_DELAY,
            told: false,
            silent: false,
        });
        waiting.silent = false;
    }

    /// All connections are known: a client of no kept connection does not wait.
    pub(crate) fn retain_recovered_clients(&mut self) {
        let kept = &self.connections;
        self.waiting.retain(|flow, _| kept.contains_key(flow));
    }

    pub(crate) fn send_zero_windows(&mut self, now: Duration) {
        if self.is_down() && now >= self.list_waiting_at {
            self.list_waiting_at = now + ZERO_WINDOW_INTERVAL;
            self.actions.push_back(Action::ListWaiting);
            return; // a client that has answered meanwhile is not probed
        }
        let due = self.waiting.iter_mut();
        let due = due.filter(|(_, waiting)| now >= waiting.zero_window_at);
        for (flow, waiting) in due.take(ZERO_WINDOW_BATCH) {
            let (key, flow) = (waiting.key, *flow);
            waiting.zero_window_at = now + ZERO_WINDOW_INTERVAL;
            waiting.told |= !waiting.silent;
            self.actions.push_back(if waiting.silent {
                Action::ProbeClient { key, flow }
            } else {
                Action::ZeroWindow { key, flow }
            });
        }
    }

    pub(crate) fn next_zero_window(&self) -> Option<Duration> {
        let list = self.is_down().then_some(self.list_waiting_at);
        let words = self.waiting.values().map(|waiting| waiting.zero_window_at);
        words.chain(list).min()
    }
}

/// The client waits no more. Returns whether the client was sent a zero window.
pub(crate) fn remove(waiting: &mut BTreeMap<FlowId, WaitingClient>, flow: FlowId) -> bool {
    waiting.remove(&flow).is_some_and(|waiting| waiting.told)
}

/// Whether a client waits for a server. A client of a lost connection is reset in the end anyway, and the kernel
/// finishes a connection that a living server closed.
fn waits(flow: &Flow) -> bool {
    let over = flow.server_closing || flow.closed_ns != 0 || flow.client.reset;
    !over && flow.unprotected.is_none() && flow.mode != Mode::Diverged
}
