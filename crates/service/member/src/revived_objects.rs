//! Request targets of revived responses, for the status: the programs do not keep the target of a request.

use std::collections::{HashMap, VecDeque};

use objects::flow::{Flow, Phase};
use wire::{FlowKey, SeqNumber};

/// Most targets that are kept: the oldest go first.
const TARGET_COUNT_MAX: usize = 4096;

/// A response: its connection, and the first byte of its request.
type Response = (FlowKey, SeqNumber);

/// The latest revived responses.
#[derive(Debug, Default)]
pub(crate) struct RevivedObjects {
    targets: HashMap<Response, String>,
    order: VecDeque<Response>,
}

impl RevivedObjects {
    /// A response goes on.
    pub(crate) fn add(&mut self, key: FlowKey, flow: &Flow, target: String) {
        let response = (key, flow.turn.request_start);
        if self.targets.insert(response, target).is_none() {
            self.order.push_back(response);
        }
        if self.order.len() > TARGET_COUNT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.targets.remove(&oldest);
        }
    }

    /// The target of the response under way, if that was revived.
    pub(crate) fn of(&self, key: FlowKey, flow: &Flow) -> Option<&str> {
        let target = self.targets.get(&(key, flow.turn.request_start))?;
        (flow.turn.phase != Phase::Idle).then_some(target)
    }
}
