//! Executes the actions of the recovery, as `serve`'s executor does, with models.

use rand::Rng;
use recovery::{Action, Beginning, Candidate, Segment, SplicePoint, Stage};
use south_model::{
    DEFAULT_FIELDS, Digest, Flow, MARK_CLIENT_SPACE, MARK_SERVER_SPACE, expectations,
    fabricated_syn, keepalive_probe, replayed_segment, resets_to_client, window_update,
    window_update_ack, zero_window_ack,
};
use wire::{EmitError, FlowId, FlowKey};

use crate::{
    MS,
    driver::{Context, Driver, time},
    invariants::Violation,
    record::fresh,
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
        context: &mut Context<'_>,
    ) -> Result<(), Violation> {
        let now = context.now;
        match action {
            Action::Gate => {
                context.node.south.gate(now);
                context.logger.hold_turns(true);
            }
            Action::KillService if !context.node.populated() => {}
            Action::KillService => self.empty_at = Some(now + context.rng.random_range(0..3 * MS)),
            Action::RemoveOrphans => context.node.remove_orphans(context.checker, now)?,
            Action::Drain { token } => context.logger.drain(token, &mut context.node.south, now),
            Action::NewIncarnation => {
                context.node.south.new_incarnation();
                context.checker.new_incarnation();
            }
            Action::StartServer => self.start_at = Some(now + context.rng.random_range(0..5 * MS)),
            Action::ListConnections => self.list_connections(context),
            Action::Expect { flow } => self.expect(flow, context),
            Action::Splice { key, flow, point } => {
                if let Some(before) = self.recovery.output_before(flow) {
                    let south = &mut context.node.south;
                    let _ = south.inherit_digest(key, flow, before.said, before.turn); // gone: as well
                }
                splice(key, flow, point, context)?;
                if let Some(digest) = self.recovery.compared_first(flow) {
                    compare(key, flow, digest, context);
                }
                self.send_syn(key, flow, context)?;
            }
            Action::Compare { key, flow, digest } => compare(key, flow, digest, context),
            Action::Graft { key, flow, point } => graft(key, flow, point, context)?,
            Action::HandOver => {
                if let Some(north) = &context.node.north {
                    context.checker.all_follows_from(&north.determinants)?;
                }
                context.node.hand_over();
            }
            Action::ProbeClient { key, flow } => probe_client(key, flow, context)?,
            Action::ListWaiting => self.list_waiting(context),
            Action::ZeroWindow { key, flow } => {
                to_client(key, flow, zero_window_ack, context)?;
            }
            Action::UpdateWindow { key, flow } => {
                to_client(key, flow, window_update_ack, context)?;
            }
            Action::RepeatSyn { key, flow } => self.send_syn(key, flow, context)?,
            Action::Replay { key, flow, segment } => self.replay(key, flow, segment, context)?,
            Action::MoreRecord { flow, from } => {
                let more = context
                    .logger
                    .at_most(flow, from, recovery::MORE_RECORD_BYTES);
                self.recovery
                    .more_record(flow, from + crate::length32(more.len()), time(now));
            }
            Action::OpenWindow { key, flow } => self.open_window(key, flow, context)?,
            Action::ForgetExpected { flow } => {
                let chunks = self.expected.remove(&flow).unwrap_or_default();
                context.node.south.forget_expected(flow, chunks);
            }
            Action::Recovered => {
                context.node.south.recovered();
                context.logger.hold_turns(false);
            }
            Action::Forget { key, flow } => forget(key, flow, context)?,
            Action::ResetClient { key, flow, .. } => reset_client(key, flow, context)?,
        }
        Ok(())
    }

    /// Lists again later, while the logger is away.
    pub(crate) fn list_connections(&mut self, context: &mut Context<'_>) {
        self.list_again = context.logger.is_away();
        if self.list_again {
            return;
        }
        let stands = context.node.replay_positions();
        if !stands.is_empty() {
            context.logger.release(stands);
        }
        let all = self.recovery.stage() == Stage::Clearing;
        let candidates = context
            .node
            .south
            .flows()
            .filter(|(_, flow)| all || flow.incarnation != self.incarnation)
            .map(|(key, flow)| Candidate {
                key: *key,
                flow: flow.clone(),
                // The frame of the handshake may still be in the ring.
                record: Some(
                    context
                        .logger
                        .record(flow.id)
                        .unwrap_or_else(|| fresh(flow)),
                ),
                replay_position: context.node.standing(*key, flow),
            })
            .collect();
        self.recovery.connections(candidates, time(context.now));
    }

    fn list_waiting(&mut self, context: &mut Context<'_>) {
        let all = self.recovery.stage() == Stage::Clearing;
        let flows = context.node.south.flows();
        let earlier = flows.filter(|(_, flow)| all || flow.incarnation != self.incarnation);
        let earlier = earlier.map(|(key, flow)| (*key, flow));
        self.recovery.waiting(earlier, time(context.now));
    }

    fn expect(&mut self, flow: FlowId, context: &mut Context<'_>) {
        if context.logger.is_away() {
            self.recovery.unanswered(flow);
            return;
        }
        let places = context.logger.journal().beginnings(flow);
        let answers: Vec<_> = places.map(|at| at.outstream).collect();
        let chunks = expectations(&context.logger.heads(flow), &answers, DEFAULT_FIELDS);
        self.expected.insert(flow, chunks.keys().copied().collect());
        context.node.south.expect(flow, chunks);
        let known = context.logger.digests(flow);
        let mut digests = known.clone();
        digests.retain(|_| self.setup.compares_before_requests);
        let places = context.logger.journal().beginnings(flow);
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

    fn send_syn(
        &self,
        key: FlowKey,
        id: FlowId,
        context: &mut Context<'_>,
    ) -> Result<(), Violation> {
        let Some(flow) = context.node.numbered(key, id) else {
            return Ok(());
        };
        let syn = fabricated_syn(key, &flow).map_err(not_written)?;
        self.inject(syn, MARK_SERVER_SPACE, context)
    }

    fn replay(
        &self,
        key: FlowKey,
        id: FlowId,
        segment: Segment,
        context: &mut Context<'_>,
    ) -> Result<(), Violation> {
        // Never replay a gap: without the bytes the replay stalls, and is then given up.
        let Some(bytes) = context.logger.bytes(id, segment.from, segment.len) else {
            let ranges = context.logger.journal().summary(id);
            crate::trace::note(context.now, || format!("not in the record: {ranges:?}"));
            return Ok(());
        };
        let Some(flow) = context.node.numbered(key, id) else {
            return Ok(());
        };
        context
            .checker
            .replayed(key, segment.from, &bytes, segment.fin)?;
        let packet =
            replayed_segment(key, &flow, segment.from, &bytes, segment.fin).map_err(not_written)?;
        self.inject(packet, MARK_CLIENT_SPACE, context)
    }

    fn open_window(
        &self,
        key: FlowKey,
        id: FlowId,
        context: &mut Context<'_>,
    ) -> Result<(), Violation> {
        let Some(flow) = context.node.numbered(key, id) else {
            return Ok(());
        };
        let packet = window_update(key, &flow).map_err(not_written)?;
        self.inject(packet, MARK_CLIENT_SPACE, context)
    }

    /// A full queue drops: the sender's timer repeats.
    fn inject(
        &self,
        packet: Vec<u8>,
        mark: u32,
        context: &mut Context<'_>,
    ) -> Result<(), Violation> {
        if context.rng.random_ratio(self.setup.injections_lost, 1000) {
            return Ok(());
        }
        context
            .node
            .inject(packet, mark, context.checker, context.now)
    }
}

fn splice(
    key: FlowKey,
    id: FlowId,
    point: SplicePoint,
    context: &mut Context<'_>,
) -> Result<(), Violation> {
    let determinants = context.node.north.as_ref().map(|north| &north.determinants);
    if determinants.is_some_and(|determinants| determinants.read_of(key).is_some()) {
        let twice = format!("{key} is spliced: what it asked for is executed again");
        return Err(Violation::new(twice));
    }
    let south = &mut context.node.south;
    let (instream, outstream, verify_end) = (point.instream, point.outstream, point.verify_end);
    match south.splice(key, id, instream, outstream, verify_end, context.now) {
        Ok(()) => context.checker.spliced(key, point),
        Err(_) => Ok(()), // gone
    }
}

fn compare(key: FlowKey, id: FlowId, digest: Digest, context: &mut Context<'_>) {
    let _ = context.node.south.want(key, id, digest); // gone: as well
}

fn graft(
    key: FlowKey,
    id: FlowId,
    point: SplicePoint,
    context: &mut Context<'_>,
) -> Result<(), Violation> {
    let Some(flow) = context.node.numbered(key, id) else {
        return Ok(());
    };
    if let Some(north) = &context.node.north {
        context.checker.grafted(key, point, &north.determinants)?;
    }
    context
        .node
        .graft(key, &flow, point, context.checker, context.now)
}

fn forget(key: FlowKey, id: FlowId, context: &mut Context<'_>) -> Result<(), Violation> {
    if context.node.numbered(key, id).is_none() {
        return Ok(());
    }
    // Later output of the server would leave untranslated: the flow is gone.
    context
        .node
        .destroy_socket(key, context.checker, context.now)?;
    let _ = context.node.south.abandon(key, id, context.now); // gone already: as well
    Ok(())
}

pub(crate) fn probe_client(
    key: FlowKey,
    id: FlowId,
    context: &mut Context<'_>,
) -> Result<(), Violation> {
    to_client(key, id, keepalive_probe, context)
}

/// A segment to a client, made from the client's flow.
fn to_client(
    key: FlowKey,
    id: FlowId,
    make: fn(FlowKey, &Flow) -> Result<Vec<u8>, EmitError>,
    context: &mut Context<'_>,
) -> Result<(), Violation> {
    let Some(mut flow) = context.node.numbered(key, id) else {
        return Ok(());
    };
    // The record may lag behind the client's acknowledgements; the determinant log does not.
    if let Some(standing) = context.node.standing(key, &flow) {
        flow.server.ack = flow.server.ack.max_seq(standing.instream);
    }
    let packet = make(key, &flow).map_err(not_written)?;
    context
        .node
        .send_to_client(packet, context.checker, context.now)
}

fn reset_client(key: FlowKey, id: FlowId, context: &mut Context<'_>) -> Result<(), Violation> {
    let Some(flow) = context.node.numbered(key, id) else {
        return Ok(());
    };
    forget(key, id, context)?;
    for packet in resets_to_client(key, &flow).map_err(not_written)? {
        context
            .node
            .send_to_client(packet, context.checker, context.now)?;
    }
    Ok(())
}

fn not_written(error: EmitError) -> Violation {
    Violation::new(format!("a segment of ours cannot be written: {error}"))
}
