//! Clients that wait for longer than a moment (FT-TCP IV.E.1): each is told that there is no room now, again
//! and again, so that it neither gives up nor sends what nobody takes; and of room as soon as it is
//! served, so that it does not wait for its next question (IV.E.2).
//!
//! Until the connections are listed, when the server listens, the flows themselves say who waits. A
//! client of another host that has not spoken yet is asked where it stands instead (`calling`).

use std::{collections::BTreeMap, time::Duration};

use south_model::{Flow, Mode};
use wire::{FlowId, FlowKey};

use crate::{action::Action, config::Stage, service::Recovery};

/// A shorter recovery is covered by the retransmissions of the clients.
const ZERO_WINDOW_DELAY: Duration = Duration::from_secs(1);
/// Interval between two zero-window ACKs to a client, and between two lists of waiting clients.
const ZERO_WINDOW_INTERVAL: Duration = Duration::from_secs(5);
/// Clients that are sent an ACK in one pass: others have to be heard meanwhile.
const ZERO_WINDOW_BATCH: usize = 64;

/// A client that waits.
#[derive(Debug, Clone)]
pub(crate) struct WaitingClient {
    key: FlowKey,
    zero_window_at: Duration,
    /// It was told that there is no room.
    told: bool,
    /// It must say first where it stands.
    silent: bool,
}

impl Recovery {
    /// The flows of earlier incarnations, as they are now; asked for by [`Action::ListWaiting`].
    pub fn waiting<'a>(&mut self, flows: impl Iterator<Item = (FlowKey, &'a Flow)>, now: Duration) {
        if !self.is_down() {
            return; // they were listed meanwhile
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

    /// Nobody serves, and it is not known yet which connections there are.
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

    /// All connections are known: whoever is not among them does not wait.
    pub(crate) fn retain_recovered_clients(&mut self) {
        let kept = &self.connections;
        self.waiting.retain(|flow, _| kept.contains_key(flow));
    }

    pub(crate) fn send_zero_windows(&mut self, now: Duration) {
        if self.is_down() && now >= self.list_waiting_at {
            self.list_waiting_at = now + ZERO_WINDOW_INTERVAL;
            self.actions.push_back(Action::ListWaiting);
            return; // who has spoken meanwhile is asked no more
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

/// It waits no more. Whether it was told that there is no room.
pub(crate) fn remove(waiting: &mut BTreeMap<FlowId, WaitingClient>, flow: FlowId) -> bool {
    waiting.remove(&flow).is_some_and(|waiting| waiting.told)
}

/// Whether somebody at the other end waits for a server: whoever is lost anyway is told so in the end,
/// and whom a living server has closed the kernel looks after.
fn waits(flow: &Flow) -> bool {
    let over = flow.server_closing || flow.closed_ns != 0 || flow.client.reset;
    !over && flow.unprotected.is_none() && flow.mode != Mode::Diverged
}
