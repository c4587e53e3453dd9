//! Which connection kills the server?
//!
//! A request that crashed the server crashes the server again in a replay. A connection whose replay was under way at a
//! death is a suspect. Suspects are replayed last and alone, because then the next death names the culprit. A
//! connection is quarantined after a few deaths during the replay. A connection whose replay the server survives is
//! cleared.
//!
//! SIGKILL usually comes from a person and says little about a request. But the kernel may send SIGKILL when a request
//! exhausts the memory. Such deaths count for less.

use std::collections::BTreeMap;

use wire::FlowId;

/// Number of deaths by SIGKILL that count as a crash.
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
    /// The server died during the replay of these connections; `killed` means by SIGKILL.
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

    /// A request of this connection is the known cause of the deaths.
    pub(crate) fn quarantine(&mut self, flow: FlowId, deaths: u32) {
        self.0.entry(flow).or_default().crashes += deaths;
    }

    /// The connection was replayed and the server lives, or the connection is gone.
    pub(crate) fn clear(&mut self, flow: FlowId) {
        self.0.remove(&flow);
    }

    /// Number of deaths during replays of the connection.
    pub(crate) fn deaths(&self, flow: FlowId) -> u32 {
        self.0
            .get(&flow)
            .map_or(0, |deaths| deaths.crashes + deaths.kills / KILLS_PER_DEATH)
    }
}
