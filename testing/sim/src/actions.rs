//! Carrying out what the recovery asks for: `serve`'s `act`, with models.

use rand::Rng;
use recovery::{Action, Beginning, Candidate, Segment, SplicePoint, Stage};
use south_model::{
    DEFAULT_FIELDS, Digest, Flow, MARK_CLIENT_SPACE, MARK_SERVER_SPACE, call_to_client,
    expectations, fabricated_syn, no_room_for_client, replayed_segment, resets_to_client,
    window_update, word_to_client,
};
use wire::{EmitError, FlowId, FlowKey};

use crate::{
    MS,
    driver::{Driver, Ground, time},
    record::fresh,
    witness::Violation,
};

/// The kind of an action, below [`crate::scenario::ACTION_KINDS`].
pub(crate) const fn kind_of(action: &Action) -> usize {
    match action {
        Action::Gate => 0,
        Action::KillService => 1,
        Action::RemoveOrphans => 2,
        Action::Drain { .. } => 3,
        Action::NewIncarnation => 4,
        Action::StartServer => 5,
        Action::ListConnections => 6,
        Action::Expect { .. } => 7,
        Action::Splice { .. } => 8,
        Action::RepeatSyn { .. } => 9,
        Action::Replay { .. } => 10,
        Action::OpenWindow { .. } => 11,
        Action::ForgetExpected { .. } => 12,
        Action::Recovered => 13,
        Action::Forget { .. } => 14,
        Action::ResetClient { .. } => 15,
        Action::MoreRecord { .. } => 16,
        Action::ProbeClient { .. } => 17,
        Action::UpdateWindow { .. } => 18,
        Action::ListWaiting => 19,
        Action::ZeroWindow { .. } => 20,
        Action::Graft { .. } => 21,
        Action::HandOver => 22,
        Action::Compare { .. } => 23,
    }
}

impl Driver {
    pub(crate) fn perform(
        &mut self,
        action: Action,
        ground: &mut Ground<'_>,
    ) -> Result<(), Violation> {
        let now = ground.now;
        match action {
            Action::Gate => {
                ground.node.south.gate(now);
                ground.logger.hold_turns(true);
            }
            Action::KillService if !ground.node.populated() => {}
            Action::KillService => self.empty_at = Some(now + ground.rng.random_range(0..3 * MS)),
            Action::RemoveOrphans => ground.node.remove_orphans(ground.witness, now)?,
            Action::Drain { token } => ground.logger.drain(token, &mut ground.node.south, now),
            Action::NewIncarnation => {
                ground.node.south.new_incarnation();
                ground.witness.new_incarnation();
            }
            Action::StartServer => self.start_at = Some(now + ground.rng.random_range(0..5 * MS)),
            Action::ListConnections => self.list_connections(ground),
            Action::Expect { flow } => self.expect(flow, ground),
            Action::Splice { key, flow, point } => {
                if let Some(before) = self.recovery.output_before(flow) {
                    let south = &mut ground.node.south;
                    let _ = south.said_before(key, flow, before.said, before.turn); // gone: as well
                }
                splice(key, flow, point, ground)?;
                if let Some(digest) = self.recovery.compared_first(flow) {
                    compare(key, flow, digest, ground);
                }
                self.send_syn(key, flow, ground)?;
            }
            Action::Compare { key, flow, digest } => compare(key, flow, digest, ground),
            Action::Graft { key, flow, point } => graft(key, flow, point, ground)?,
            Action::HandOver => {
                if let Some(north) = &ground.node.north {
                    ground.witness.all_follows_from(&north.notes)?;
                }
                ground.node.hand_over();
            }
            Action::ProbeClient { key, flow } => call(key, flow, ground)?,
            Action::ListWaiting => self.list_waiting(ground),
            Action::ZeroWindow { key, flow } => {
                to_client(key, flow, no_room_for_client, ground)?;
            }
            Action::UpdateWindow { key, flow } => {
                to_client(key, flow, word_to_client, ground)?;
            }
            Action::RepeatSyn { key, flow } => self.send_syn(key, flow, ground)?,
            Action::Replay { key, flow, segment } => self.replay(key, flow, segment, ground)?,
            Action::MoreRecord { flow, from } => {
                let more = ground
                    .logger
                    .at_most(flow, from, recovery::MORE_RECORD_BYTES);
                self.recovery
                    .more_record(flow, from + crate::length32(more.len()), time(now));
            }
            Action::OpenWindow { key, flow } => self.open_window(key, flow, ground)?,
            Action::ForgetExpected { flow } => {
                let chunks = self.expected.remove(&flow).unwrap_or_default();
                ground.node.south.forget_expected(flow, chunks);
            }
            Action::Recovered => {
                ground.node.south.recovered();
                ground.logger.hold_turns(false);
            }
            Action::Forget { key, flow } => forget(key, flow, ground)?,
            Action::ResetClient { key, flow, .. } => reset_client(key, flow, ground)?,
        }
        Ok(())
    }

    /// When the logger does not answer now, this waits for it.
    pub(crate) fn list_connections(&mut self, ground: &mut Ground<'_>) {
        self.list_again = ground.logger.is_away();
        if self.list_again {
            return;
        }
        let stands = ground.node.where_it_stands();
        if !stands.is_empty() {
            ground.logger.release(stands);
        }
        let all = self.recovery.stage() == Stage::Clearing;
        let candidates = ground
            .node
            .south
            .flows()
            .filter(|(_, flow)| all || flow.incarnation != self.incarnation)
            .map(|(key, flow)| Candidate {
                key: *key,
                flow: flow.clone(),
                // The frame that opened it may still be in the ring.
                record: Some(ground.logger.record(flow.id).unwrap_or_else(|| fresh(flow))),
                replay_position: ground.node.standing(*key, flow),
            })
            .collect();
        self.recovery.connections(candidates, time(ground.now));
    }

    fn list_waiting(&mut self, ground: &mut Ground<'_>) {
        let all = self.recovery.stage() == Stage::Clearing;
        let flows = ground.node.south.flows();
        let earlier = flows.filter(|(_, flow)| all || flow.incarnation != self.incarnation);
        let earlier = earlier.map(|(key, flow)| (*key, flow));
        self.recovery.waiting(earlier, time(ground.now));
    }

    fn expect(&mut self, flow: FlowId, ground: &mut Ground<'_>) {
        if ground.logger.is_away() {
            self.recovery.unanswered(flow);
            return;
        }
        let places = ground.logger.journal().beginnings(flow);
        let answers: Vec<_> = places.map(|at| at.outstream).collect();
        let chunks = expectations(&ground.logger.heads(flow), &answers, DEFAULT_FIELDS);
        self.expected.insert(flow, chunks.keys().copied().collect());
        ground.node.south.expect(flow, chunks);
        let known = ground.logger.digests(flow);
        let mut digests = known.clone();
        digests.retain(|_| self.setup.compares_before_requests);
        let places = ground.logger.journal().beginnings(flow);
        let beginnings = places.map(|at| Beginning {
            instream: at.instream,
            heard: at.outstream,
            said: digests
                .iter()
                .copied()
                .find(|said| said.next == at.outstream),
        });
        let beginnings = beginnings.collect();
        self.recovery.beginnings(flow, beginnings, known);
    }

    fn send_syn(&self, key: FlowKey, id: FlowId, ground: &mut Ground<'_>) -> Result<(), Violation> {
        let Some(flow) = ground.node.numbered(key, id) else {
            return Ok(());
        };
        let syn = fabricated_syn(key, &flow).map_err(not_written)?;
        self.inject(syn, MARK_SERVER_SPACE, ground)
    }

    fn replay(
        &self,
        key: FlowKey,
        id: FlowId,
        segment: Segment,
        ground: &mut Ground<'_>,
    ) -> Result<(), Violation> {
        // Never replay a hole: without the bytes it stalls, and is then given up.
        let Some(bytes) = ground.logger.bytes(id, segment.from, segment.len) else {
            let ranges = ground.logger.journal().summary(id);
            crate::trace::note(ground.now, || format!("not in the record: {ranges:?}"));
            return Ok(());
        };
        let Some(flow) = ground.node.numbered(key, id) else {
            return Ok(());
        };
        ground
            .witness
            .replayed(key, segment.from, &bytes, segment.fin)?;
        let packet =
            replayed_segment(key, &flow, segment.from, &bytes, segment.fin).map_err(not_written)?;
        self.inject(packet, MARK_CLIENT_SPACE, ground)
    }

    fn open_window(
        &self,
        key: FlowKey,
        id: FlowId,
        ground: &mut Ground<'_>,
    ) -> Result<(), Violation> {
        let Some(flow) = ground.node.numbered(key, id) else {
            return Ok(());
        };
        let packet = window_update(key, &flow).map_err(not_written)?;
        self.inject(packet, MARK_CLIENT_SPACE, ground)
    }

    /// A full queue drops: the sender's timer repeats.
    fn inject(&self, packet: Vec<u8>, mark: u32, ground: &mut Ground<'_>) -> Result<(), Violation> {
        if ground.rng.random_ratio(self.setup.injections_lost, 1000) {
            return Ok(());
        }
        ground.node.inject(packet, mark, ground.witness, ground.now)
    }
}

fn splice(
    key: FlowKey,
    id: FlowId,
    point: SplicePoint,
    ground: &mut Ground<'_>,
) -> Result<(), Violation> {
    let notes = ground.node.north.as_ref().map(|north| &north.notes);
    if notes.is_some_and(|notes| notes.read_of(key).is_some()) {
        let twice = format!("{key} is spliced: what it asked for is executed again");
        return Err(Violation::new(twice));
    }
    let south = &mut ground.node.south;
    let (instream, outstream, verify_end) = (point.instream, point.outstream, point.verify_end);
    match south.splice(key, id, instream, outstream, verify_end, ground.now) {
        Ok(()) => ground.witness.spliced(key, point),
        Err(_) => Ok(()), // gone
    }
}

fn compare(key: FlowKey, id: FlowId, digest: Digest, ground: &mut Ground<'_>) {
    let _ = ground.node.south.want(key, id, digest); // gone: as well
}

fn graft(
    key: FlowKey,
    id: FlowId,
    point: SplicePoint,
    ground: &mut Ground<'_>,
) -> Result<(), Violation> {
    let Some(flow) = ground.node.numbered(key, id) else {
        return Ok(());
    };
    if let Some(north) = &ground.node.north {
        ground.witness.grafted(key, point, &north.notes)?;
    }
    ground
        .node
        .graft(key, &flow, point, ground.witness, ground.now)
}

fn forget(key: FlowKey, id: FlowId, ground: &mut Ground<'_>) -> Result<(), Violation> {
    if ground.node.numbered(key, id).is_none() {
        return Ok(());
    }
    // What the server says next would leave as it is: nobody knows the connection any more.
    ground
        .node
        .destroy_socket(key, ground.witness, ground.now)?;
    let _ = ground.node.south.abandon(key, id, ground.now); // gone already: as well
    Ok(())
}

pub(crate) fn call(key: FlowKey, id: FlowId, ground: &mut Ground<'_>) -> Result<(), Violation> {
    to_client(key, id, call_to_client, ground)
}

/// A segment of ours to a client, made from its flow.
fn to_client(
    key: FlowKey,
    id: FlowId,
    make: fn(FlowKey, &Flow) -> Result<Vec<u8>, EmitError>,
    ground: &mut Ground<'_>,
) -> Result<(), Violation> {
    let Some(mut flow) = ground.node.numbered(key, id) else {
        return Ok(());
    };
    // The record may be behind what its client was told: the server's own is not.
    if let Some(standing) = ground.node.standing(key, &flow) {
        flow.server.ack = flow.server.ack.max_seq(standing.instream);
    }
    let packet = make(key, &flow).map_err(not_written)?;
    ground
        .node
        .send_to_client(packet, ground.witness, ground.now)
}

fn reset_client(key: FlowKey, id: FlowId, ground: &mut Ground<'_>) -> Result<(), Violation> {
    let Some(flow) = ground.node.numbered(key, id) else {
        return Ok(());
    };
    forget(key, id, ground)?;
    for packet in resets_to_client(key, &flow).map_err(not_written)? {
        ground
            .node
            .send_to_client(packet, ground.witness, ground.now)?;
    }
    Ok(())
}

fn not_written(error: EmitError) -> Violation {
    Violation::new(format!("a segment of ours cannot be written: {error}"))
}
