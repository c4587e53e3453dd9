//! Steps of the connections in a recovery: splicing, replaying, settling.

use std::time::Duration;

use south_model::{Flow, Mode};
use wire::{FlowId, FlowKey, SeqNumber};

use crate::{
    action::Action,
    config::Stage,
    connection::{Connection, ConnectionStep},
    event::{Event, GaveUp, LostReason, millis},
    replay::Replay,
    service::Recovery,
    waiting_client,
};

/// First poll delay of a comparison that is not over.
const COMPARISON_FIRST_DELAY: Duration = Duration::from_micros(200);

impl Recovery {
    /// Connections whose flows should be looked at now, for [`Recovery::observe`].
    pub fn watched(&self, now: Duration) -> impl Iterator<Item = (FlowId, FlowKey)> + '_ {
        self.connections
            .values()
            .filter(move |connection| match &connection.step {
                ConnectionStep::Waiting => false,
                ConnectionStep::Splicing { .. } | ConnectionStep::Replaying(_) => true,
                ConnectionStep::Settling { look_at, .. } => now >= *look_at,
            })
            .map(|connection| (connection.flow, connection.key))
    }

    /// Takes the present state of a connection in the data plane; `None` if the connection is gone, or another
    /// connection has the 4-tuple.
    pub fn observe(&mut self, id: FlowId, flow: Option<&Flow>, now: Duration) {
        let flow = flow.filter(|flow| flow.id == id);
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let key = connection.key;
        let awaited = connection.to_be_replayed();
        match flow {
            _ if matches!(connection.step, ConnectionStep::Waiting) => return,
            // The connection was spliced and has ended since the last look; the 4-tuple may belong to another
            // connection now.
            None if awaited => return self.settle(id, None),
            Some(flow) if awaited && flow.client.reset => {
                self.remove_connection(id);
                return self.forget_reset(id, key);
            }
            // The splice was asked for, but not carried out: this state belongs to an earlier incarnation.
            Some(flow) if flow.incarnation == connection.incarnation => return,
            Some(flow) if flow.mode == Mode::Diverged => {
                return self.diverged(key, flow);
            }
            _ => {}
        }
        let ended = flow.is_none_or(|flow| flow.closed_ns != 0 || flow.server_closing);
        if connection.observe(flow, now) && self.timings.first_spliced_ms == 0.0 {
            self.timings.first_spliced_ms = millis(now.saturating_sub(self.died_at));
        }
        if let Some(reason) = flow.and_then(|flow| connection.contradicted(flow, now)) {
            return self.drop_connection(id, reason);
        }
        let is_delivered = !connection.to_be_replayed();
        connection.is_compared |= is_delivered && (ended || flow.is_none_or(has_repeated_output));
        let (is_compared, doubted) = (connection.is_compared, connection.is_doubted());
        let is_behind = connection.is_behind;
        let all =
            matches!(&connection.step, ConnectionStep::Replaying(replay) if replay.has_all_bytes());
        if all
            && (waiting_client::remove(&mut self.waiting, id)
                | std::mem::take(&mut connection.to_be_told))
        {
            self.actions
                .push_back(Action::UpdateWindow { key, flow: id });
        }
        match &mut connection.step {
            // During a long replay the client has retransmitted bytes without an acknowledgement, and the client's
            // timer doubles with each try. The record has these bytes by now, and a delivery now spares the client the
            // next timeout. A single question is enough, even for a client that goes on sending.
            ConnectionStep::Replaying(replay) if replay.complete() => {
                let sent = flow.map_or(replay.end(), |flow| flow.client.nxt);
                if !ended && replay.ask_for_more(sent) {
                    let from = replay.end();
                    self.actions
                        .push_back(Action::MoreRecord { flow: id, from });
                } else {
                    self.delivered(id, now);
                }
            }
            // A server may answer without having read everything, and close. (After a half-close a server may read on,
            // and still needs the rest of the record: a half-close is no end of the flow.)
            ConnectionStep::Replaying(_) if ended => self.settle(id, flow),
            ConnectionStep::Settling { since, look_at } => {
                if now >= *look_at {
                    let is_sure = is_compared && !doubted && !is_behind;
                    *look_at = now + pause(*since, is_sure, now, self.config.settle);
                }
                let settled = now.saturating_sub(*since) >= self.config.settle;
                if settled {
                    self.suspicion.clear(id); // whatever is still to be compared
                }
                let (lasted, answer) = (now.saturating_sub(*since), self.config.answer_timeout);
                let ahead = flow.is_some_and(|f| f.log.snd_beyond_stable && !ended);
                // The missing bytes would have come by now: another host had acknowledged these bytes.
                if ahead && lasted >= answer {
                    return self.drop_connection(id, LostReason::ClientSilent);
                }
                if let Some(flow) = flow.filter(|_| !ended)
                    && connection.resume(flow, now)
                {
                    return;
                }
                if (doubted || is_behind) && !ended {
                    // A doubt without waiting input needs no timeout.
                    let waits = flow.map(|flow| connection.client_waits(flow, now));
                    if waits.is_some_and(|waits| waits >= self.config.output_repeat_timeout) {
                        let reason = connection.output_not_repeated();
                        return self.drop_connection(id, reason);
                    }
                } else if settled && !ahead && is_compared {
                    return self.settle(id, flow);
                }
                // A comparison needs the record: the record stays until the server has repeated all output.
                let is_late =
                    (!is_compared || doubted || is_behind) && lasted >= self.config.replay_timeout;
                if is_late && !connection.is_late {
                    connection.is_late = true;
                    self.emit_verified();
                }
            }
            _ => {}
        }
    }

    /// A replay waits for the next output of the server: an immediate look gives the server more input immediately.
    #[must_use]
    pub fn awaits_server(&self, now: Duration) -> bool {
        let awaits = |connection: &Connection| match &connection.step {
            ConnectionStep::Replaying(replay) => {
                replay.awaits().is_some() && !connection.rests(now)
            }
            _ => false,
        };
        self.connections.values().any(awaits)
    }

    /// A short step is under way: a server takes a connection, or the record of a connection.
    #[must_use]
    pub fn is_busy(&self, now: Duration) -> bool {
        let busy = |one: &Connection| {
            !matches!(one.step, ConnectionStep::Waiting) && one.to_be_replayed() && !one.rests(now)
        };
        self.connections.values().any(busy)
    }

    /// The record reaches up to `end` now; asked for by [`Action::MoreRecord`].
    pub fn more_record(&mut self, id: FlowId, end: SeqNumber, now: Duration) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let later = connection.later;
        if let ConnectionStep::Replaying(replay) = &mut connection.step {
            replay.extend(end, later, now);
            if replay.complete() {
                self.delivered(id, now);
            }
        }
    }

    /// A killed logger has lost bytes without an acknowledgement to any client: the record of this connection ends at
    /// `end`, and the client has acknowledgements up to `told`. The client still has the rest, and retransmits the rest
    /// after a window update. A replay that waited for the rest would never end.
    pub fn record_ends(&mut self, id: FlowId, end: SeqNumber, told: SeqNumber, now: Duration) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if end.before(told) {
            return; // more is lost than the client can retransmit
        }
        connection.record_ends(end);
        if matches!(&connection.step, ConnectionStep::Replaying(replay) if replay.complete()) {
            self.delivered(id, now);
        }
    }

    /// The server has the whole record.
    fn delivered(&mut self, id: FlowId, now: Duration) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.settles(now);
        let key = connection.key;
        self.actions.push_back(Action::OpenWindow { key, flow: id });
    }

    pub(crate) fn settle(&mut self, id: FlowId, flow: Option<&Flow>) {
        let connection = self.connections.remove(&id);
        if let Some(connection) = &connection {
            self.add_replayed(connection);
        }
        waiting_client::remove(&mut self.waiting, id);
        self.suspicion.clear(id);
        self.actions.push_back(Action::ForgetExpected { flow: id });
        if let Some((connection, flow)) = connection.zip(flow) {
            let of = connection.compared(flow);
            self.verified.connections += 1;
            self.verified.compared += u64::from(of.compared);
            self.verified.tolerated += u64::from(flow.verify.tolerated);
            self.verified.sampled += u64::from(of.sampled);
            self.verified.unverified += u64::from(of.unverified);
        }
        self.emit_verified();
    }

    /// Emits `verified`, once for all connections except late connections.
    pub(crate) fn emit_verified(&mut self) {
        self.emit_outcome(None);
        let others_done = self.connections.values().all(|one| one.is_late);
        if others_done && self.verified.connections > 0 {
            let verified = std::mem::take(&mut self.verified);
            self.events.push_back(Event::Verified {
                connections: verified.connections,
                compared: verified.compared,
                tolerated: verified.tolerated,
                sampled: verified.sampled,
                unverified: verified.unverified,
            });
        }
    }

    /// Time has passed: decide what is due.
    pub fn poll(&mut self, now: Duration) {
        if matches!(self.stage, Stage::Clearing | Stage::Starting) {
            self.give_up_when_late(now);
        }
        self.send_zero_windows(now);
        if !matches!(self.stage, Stage::Recovering | Stage::Serving) {
            return;
        }
        self.repeat_probes(now);
        self.graft_ready(now);
        self.splice_next(now);
        self.send(now);
        self.finish_when_done(now);
        self.emit_outcome(Some(now));
    }

    fn give_up_when_late(&mut self, now: Duration) {
        let is_late = now.saturating_sub(self.down_since) >= self.config.give_up_after;
        if self.gave_up.is_none() && is_late {
            self.give_up(GaveUp::ServerDown);
        }
    }

    /// Begins with the connections whose turn has come, in the order of the handshakes. At most `splice_window`
    /// connections wait for an answer at a time. Suspects follow after all other connections, and alone.
    fn splice_next(&mut self, now: Duration) {
        if self.awaits_logger {
            return;
        }
        let waiting_for_answer =
            |c: &&Connection| matches!(c.step, ConnectionStep::Splicing { .. });
        let mut room = self
            .config
            .splice_window
            .saturating_sub(self.connections.values().filter(waiting_for_answer).count());
        let others_done = self
            .connections
            .values()
            .all(|c| c.suspect || !c.is_waited_for(now));
        let settle = self.config.settle;
        let mut suspect_may_go = others_done
            && !self
                .connections
                .values()
                .any(|c| c.is_in_replay_slot(now, settle));
        for connection in self.connections.values_mut() {
            if room == 0 {
                break;
            }
            if !matches!(connection.step, ConnectionStep::Waiting)
                || (connection.suspect && !suspect_may_go)
            {
                continue;
            }
            suspect_may_go = false;
            room -= 1;
            connection.begin(now);
            // Also without a comparison: the requests wait for the output of the server.
            self.actions.push_back(Action::Expect {
                flow: connection.flow,
            });
            self.actions.push_back(Action::Splice {
                key: connection.key,
                flow: connection.flow,
                point: connection.point,
            });
        }
    }

    fn send(&mut self, now: Duration) {
        let mut failed = Vec::new();
        for connection in self.connections.values_mut() {
            let (key, flow) = (connection.key, connection.flow);
            if !connection.is_graft && connection.repeat_syn(now) {
                self.actions.push_back(Action::RepeatSyn { key, flow });
            }
            match &mut connection.step {
                ConnectionStep::Splicing { since, .. }
                    if now.saturating_sub(*since) >= self.config.accept_timeout =>
                {
                    failed.push((connection.flow, LostReason::NotAccepted));
                }
                ConnectionStep::Replaying(replay)
                    if !replay.holds_fin()
                        && replay.idle(now) >= self.config.stall_timeout(replay) =>
                {
                    let first = connection.point.outstream;
                    failed.push((connection.flow, stalled(replay, first)));
                }
                ConnectionStep::Replaying(replay) => {
                    if let Some(digest) = replay.want() {
                        self.actions
                            .push_back(Action::Compare { key, flow, digest });
                    }
                    while let Some(segment) = replay.next_segment(self.config.max_segment, now) {
                        self.actions
                            .push_back(Action::Replay { key, flow, segment });
                    }
                    let given = replay.given();
                    self.serving_report.count_given(connection.given, given);
                    connection.given = given;
                }
                _ => {}
            }
        }
        for (flow, reason) in failed {
            self.drop_connection(flow, reason);
        }
    }

    fn finish_when_done(&mut self, now: Duration) {
        if self.stage != Stage::Recovering {
            return;
        }
        let unspliced = |c: &Connection| {
            matches!(
                c.step,
                ConnectionStep::Waiting | ConnectionStep::Splicing { .. }
            )
        };
        if !self.spliced_all && !self.connections.values().any(unspliced) {
            self.spliced_all = true;
            self.timings.spliced_ms = self.since_death(now);
            self.events.push_back(Event::Spliced {
                connections: self.kept,
                after_ms: self.timings.spliced_ms,
            });
        }
        let unfinished = self.connections.values().any(|c| c.is_waited_for(now));
        if unfinished || !self.has_handed_over() {
            return;
        }
        self.stage = Stage::Serving;
        self.state_lost = false;
        self.timings.live_ms = self.since_death(now);
        self.actions.push_back(Action::Recovered);
        self.reset_lost();
        self.open_serving_report(now);
    }

    /// Latest time of the next call of [`Recovery::poll`]; `None` if no timer runs.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let is_down =
            matches!(self.stage, Stage::Clearing | Stage::Starting) && self.gave_up.is_none();
        let give_up = is_down.then(|| self.down_since + self.config.give_up_after);
        let steps = self
            .connections
            .values()
            .filter_map(|connection| match &connection.step {
                ConnectionStep::Waiting => None,
                ConnectionStep::Splicing { repeat_at, .. } => Some(*repeat_at),
                ConnectionStep::Replaying(replay) => Some(replay.deadline()),
                ConnectionStep::Settling { look_at, .. } => Some(*look_at),
            });
        let words = self.next_probe().into_iter().chain(self.next_zero_window());
        let words = words.chain(self.hand_over_by);
        let told = self.serving_due();
        steps.chain(words).chain(give_up).chain(told).min()
    }
}

/// The server takes no more input, or has not repeated the output before the next input.
fn stalled(replay: &Replay, first: SeqNumber) -> LostReason {
    let missing = replay.missing();
    match replay.awaits() {
        None => LostReason::ReplayStalled { missing },
        Some(heard) => LostReason::OutputNotRepeated {
            bytes: heard.distance_from(first).unwrap_or(0),
            missing,
        },
    }
}

/// The pause before the next look at a settling connection. Most comparisons end soon; a server may need long for the
/// repetition, or may never repeat.
fn pause(since: Duration, is_compared: bool, now: Duration, settle: Duration) -> Duration {
    let lasted = now.saturating_sub(since);
    match is_compared {
        true if lasted < settle => settle.saturating_sub(lasted),
        true => settle,
        false => (lasted / 2).clamp(COMPARISON_FIRST_DELAY, settle.max(lasted / 64)),
    }
}

/// The new server has repeated all output that can be compared.
fn has_repeated_output(flow: &Flow) -> bool {
    flow.mode != Mode::Spliced
        || !flow.digest.is_repeating()
            && (SeqNumber(flow.splice.nxt.0.wrapping_add(flow.splice.delta_seq)))
                .at_or_after(flow.verify.end)
}
