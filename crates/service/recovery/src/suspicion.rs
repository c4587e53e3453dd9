//! Which connection kills the server?
//!
//! A request that crashed the server crashes it again when it is replayed. Whoever was being
//! replayed when the server died is a suspect; suspects are replayed last and one at a time, so
//! that the next death names its culprit; a connection in whose replay the server died a few
//! times is poison. Whoever lives through its replay is cleared.
//!
//! SIGKILL is usually somebody's hand and says nothing about a request; but it may be the kernel's,
//! out of memory because of one. Such deaths count for less.

use std::collections::BTreeMap;

use wire::FlowId;

/// As many deaths by SIGKILL make one.
const KILLS_PER_DEATH: u32 = 4;

#[derive(Debug, Clone, Copy, Default)]
struct Deaths {
    crashes: u32,
    kills: u32,
}

/// Deaths of the server during each connection's replay.
#[derive(Debug, Clone, Default)]
pub(crate) struct Suspicion(BTreeMap<FlowId, Deaths>);

impl Suspicion {
    /// The server died while these were being replayed; `killed`: by SIGKILL.
    pub(crate) fn accuse(&mut self, flows: impl Iterator<Item = FlowId>, killed: bool) {
        for flow in flows {
            let deaths = self.0.entry(flow).or_default();
            if killed {
                deaths.kills += 1;
            } else {
                deaths.crashes += 1;
            }
        }
    }

    /// It is known to be its request.
    pub(crate) fn quarantine(&mut self, flow: FlowId, deaths: u32) {
        self.0.entry(flow).or_default().crashes += deaths;
    }

    /// The connection was replayed and the server lives, or the connection is gone.
    pub(crate) fn clear(&mut self, flow: FlowId) {
        self.0.remove(&flow);
    }

    /// In how many deaths it was involved.
    pub(crate) fn deaths(&self, flow: FlowId) -> u32 {
        self.0
            .get(&flow)
            .map_or(0, |deaths| deaths.crashes + deaths.kills / KILLS_PER_DEATH)
    }
}
