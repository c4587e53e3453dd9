//! The death latch and the ends of connections (`latch.h`).

use wire::FlowKey;

use super::{Event, Plane, Shared, Tombstone};
use crate::flow::{Flow, Mode};
use crate::timestamp::Timestamp;

/// A process of the server has crashed.
pub(super) fn on_crash(shared: &mut Shared) {
    let life = &mut shared.life;
    if life.is_stopping || life.is_gated {
        return;
    }
    life.is_gated = true;
    shared.events.push_back(Event::Death);
}

/// A socket of the server is gone. A part of the connection stays for a while: a late packet of the client is no packet
/// of a connection that another member served.
pub(super) fn on_close(plane: &mut Plane, key: &FlowKey) {
    let life = &plane.shared.life;
    let is_over = |flow: &&Flow| {
        flow.mode != Mode::Reviving && flow.incarnation == life.incarnation && !life.is_gated
    };
    let Some(flow) = plane.flows.get(key).filter(is_over) else {
        return;
    };
    if flow.mode == Mode::Served {
        let echoes = flow.echoes.parts();
        let tombstone = Tombstone {
            slot: flow.slot,
            delta: flow.server.delta,
            tsval: echoes.newest_tsval,
            value: Timestamp::value(echoes.newest.advanced(1), flow.states.bare),
        };
        plane.tombstones.insert(*key, tombstone);
    }
    plane.flows.remove(key);
}
