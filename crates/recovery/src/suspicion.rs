//! Which connection kills the server?
//!
//! A request that crashed the server crashes it again when it is replayed. Whoever was being
//! replayed when the server died is a suspect; suspects are replayed last and one at a time, so
//! that the next death names its culprit; a connection in whose replay the server died a few
//! times is poison. Whoever lives through its replay is cleared.

use std::collections::BTreeMap;

use wire::FlowId;

/// Deaths of the server during each connection's replay.
#[derive(Debug, Clone, Default)]
pub(crate) struct Suspicion(BTreeMap<FlowId, u32>);

impl Suspicion {
    /// The server died while these were being replayed.
    pub(crate) fn accuse(&mut self, flows: impl Iterator<Item = FlowId>) {
        for flow in flows {
            *self.0.entry(flow).or_default() += 1;
        }
    }

    /// The connection was replayed and the server lives.
    pub(crate) fn clear(&mut self, flow: FlowId) {
        self.0.remove(&flow);
    }

    /// In how many deaths it was involved.
    pub(crate) fn deaths(&self, flow: FlowId) -> u32 {
        self.0.get(&flow).copied().unwrap_or(0)
    }
}
