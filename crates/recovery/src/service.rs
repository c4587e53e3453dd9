//! The life of a service: from a death to serving again.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use ssw::{Flow, Mode};
use wire::{FlowId, FlowKey, SeqNumber};

use crate::{
    action::Action,
    connection::{Candidate, Connection, Step, Verdict, judge},
    event::{Cause, Event, LostReason, Timings, millis},
    suspicion::Suspicion,
};

/// How much of a connection's instream the restarted server is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplayMode {
    /// All of it, from the SYN, as FT-TCP does: earlier requests are executed again.
    #[default]
    Connection,
    /// From the beginning of the last unanswered turn: for servers that keep nothing between
    /// turns.
    Turn,
}

/// What the decisions depend on.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where replays begin.
    pub replay: ReplayMode,
    /// Connections that may wait for the answer to their fabricated SYN at the same time.
    pub splice_window: usize,
    /// How long connections wait for a server that does not come back before they are reset.
    pub give_up_after: Duration,
    /// How long the restarted server may leave a fabricated SYN unanswered.
    pub accept_timeout: Duration,
    /// How long it may leave a replay unread.
    pub replay_timeout: Duration,
    /// How long a server must survive a replay before it is thought to have done so.
    pub settle: Duration,
    /// Deaths during a connection's replay after which it is given up.
    pub quarantine_after: u32,
    /// Longest piece of record delivered at a time, bytes.
    pub max_segment: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            replay: ReplayMode::Connection,
            splice_window: 64,
            give_up_after: Duration::from_secs(60),
            accept_timeout: Duration::from_secs(10),
            replay_timeout: Duration::from_secs(30),
            settle: Duration::from_millis(100),
            quarantine_after: 3,
            max_segment: 60_000,
        }
    }
}

/// Where the service stands; see the crate's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// All is well.
    Serving,
    /// What is left of a dead server is being removed.
    Clearing,
    /// The server is being started.
    Starting,
    /// It listens; flows and records are being read.
    Listing,
    /// Connections are being spliced and replayed.
    Recovering,
}

/// The decisions for one service.
#[derive(Debug)]
pub struct Recovery {
    config: Config,
    stage: Stage,
    connections: BTreeMap<FlowId, Connection>,
    suspicion: Suspicion,
    /// Those that are reset when the recovery is over.
    lost: BTreeMap<FlowId, (FlowKey, LostReason)>,
    /// How many were reset since the clients began to wait.
    resets: usize,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    drain_token: u64,
    drained: bool,
    listening: bool,
    /// Connections were given up because the server was down too long.
    gave_up: bool,
    died_at: Duration,
    /// Since when clients have been waiting: the first of several deaths in a row.
    down_since: Duration,
    timings: Timings,
    replayed_bytes: u64,
    spliced_all: bool,
    kept: usize,
    verified: Verified,
}

#[derive(Debug, Default)]
struct Verified {
    connections: usize,
    compared: u64,
    tolerated: u64,
    unverified: u64,
}

impl Recovery {
    /// A service that was just started and has no connections.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            stage: Stage::Serving,
            connections: BTreeMap::new(),
            suspicion: Suspicion::default(),
            lost: BTreeMap::new(),
            resets: 0,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            drain_token: 0,
            drained: false,
            listening: false,
            gave_up: false,
            died_at: Duration::ZERO,
            down_since: Duration::ZERO,
            timings: Timings::default(),
            replayed_bytes: 0,
            spliced_all: false,
            kept: 0,
            verified: Verified::default(),
        }
    }

    /// Where the service stands.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The next thing to be done.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next thing to be told.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn since_death(&self, now: Duration) -> f64 {
        millis(now.saturating_sub(self.died_at))
    }

    /// The server died at `at`; we know it `now`. In any stage.
    pub fn died(&mut self, cause: Cause, at: Duration, now: Duration) {
        if self.stage == Stage::Clearing {
            return; // one death has many witnesses
        }
        let unsettled: Vec<FlowId> = self
            .connections
            .values()
            .filter(|connection| connection.in_replay())
            .map(|connection| connection.flow)
            .collect();
        self.suspicion
            .accuse(unsettled.into_iter(), cause.is_sigkill());
        if self.stage == Stage::Serving {
            self.down_since = at;
            self.gave_up = false;
            self.resets = 0;
        }
        self.stage = Stage::Clearing;
        self.died_at = at;
        self.timings = Timings {
            detected_ms: self.since_death(now),
            ..Timings::default()
        };
        self.replayed_bytes = 0;
        self.spliced_all = false;
        self.kept = 0;
        self.lost.clear(); // they are found, and judged, again
        self.verified = Verified::default();
        // What was still to be done for the dead life must not be done to the next one.
        self.actions.retain(|action| {
            matches!(
                action,
                Action::Forget { .. }
                    | Action::ResetClient { .. }
                    | Action::ForgetExpected { .. }
                    | Action::ListConnections
            )
        });
        for connection in std::mem::take(&mut self.connections).into_values() {
            self.actions.push_back(Action::ForgetExpected {
                flow: connection.flow,
            });
        }
        self.events.push_back(Event::Died {
            cause,
            detected_ms: self.timings.detected_ms,
        });
        self.actions.extend([Action::Gate, Action::KillService]);
    }

    /// No process of the service is left.
    pub fn service_empty(&mut self, now: Duration) {
        if self.stage != Stage::Clearing {
            return;
        }
        self.timings.cleared_ms = self.since_death(now);
        self.stage = Stage::Starting;
        self.listening = false;
        self.drained = false;
        self.drain_token += 1;
        self.actions.extend([
            Action::RemoveOrphans,
            Action::Drain {
                token: self.drain_token,
            },
            Action::NewIncarnation,
            Action::StartServer,
        ]);
    }

    /// The server's main process runs.
    pub fn started(&mut self, pid: u32, now: Duration) {
        if self.stage == Stage::Starting {
            self.timings.restarted_ms = self.since_death(now);
            self.events.push_back(Event::Restarted {
                pid,
                after_ms: self.timings.restarted_ms,
            });
        }
    }

    /// It listens on a protected port.
    pub fn listening(&mut self, now: Duration) {
        if self.stage == Stage::Starting && !self.listening {
            self.listening = true;
            self.timings.listening_ms = self.since_death(now);
            self.events.push_back(Event::Listening {
                after_ms: self.timings.listening_ms,
            });
            self.list_when_ready();
        }
    }

    /// The logger has read everything recorded before the drain with this token.
    pub fn drained(&mut self, token: u64) {
        if self.stage == Stage::Starting && token == self.drain_token {
            self.drained = true;
            self.list_when_ready();
        }
    }

    /// The logger process is another one now. What it was to drain may have been drained by the
    /// old one, which cannot say so any more.
    pub fn logger_restarted(&mut self) {
        if self.stage == Stage::Starting && !self.drained {
            self.drain_token += 1;
            self.actions.push_back(Action::Drain {
                token: self.drain_token,
            });
        }
    }

    /// Nobody will serve any more: reset what waits. Connections that are served already, by a
    /// server that is to be stopped in an orderly way, are not touched.
    pub fn give_up(&mut self) {
        if self.gave_up || self.stage == Stage::Serving {
            return;
        }
        self.gave_up = true;
        match self.stage {
            Stage::Clearing | Stage::Starting => self.actions.push_back(Action::ListConnections),
            Stage::Recovering => self.reset_unfinished(),
            Stage::Serving | Stage::Listing => {} // nobody waits; the list is on its way
        }
    }

    fn reset_unfinished(&mut self) {
        let waiting: Vec<FlowId> = self
            .connections
            .values()
            .filter(|connection| connection.to_be_replayed())
            .map(|connection| connection.flow)
            .collect();
        for flow in waiting {
            self.drop_kept(flow, LostReason::ServerDown);
        }
        self.reset_lost();
    }

    fn list_when_ready(&mut self) {
        if self.stage == Stage::Starting && self.listening && self.drained {
            self.stage = Stage::Listing;
            self.actions.push_back(Action::ListConnections);
        }
    }

    /// All connections of earlier lives, with their records.
    pub fn connections(&mut self, candidates: Vec<Candidate>, now: Duration) {
        match self.stage {
            Stage::Clearing | Stage::Starting if self.gave_up => self.reset_all(&candidates),
            Stage::Listing => {
                self.stage = Stage::Recovering;
                if self.gave_up {
                    self.reset_all(&candidates);
                } else {
                    for candidate in &candidates {
                        self.consider(candidate);
                    }
                }
                self.poll(now);
            }
            _ => {} // of a life that has ended meanwhile
        }
    }

    /// Nobody serves and the clients have waited long enough.
    fn reset_all(&mut self, candidates: &[Candidate]) {
        for Candidate { key, flow, .. } in candidates {
            if flow.server_closing || flow.closed_ns != 0 {
                continue; // the kernel's to finish
            }
            if flow.client.reset {
                self.forget_reset(*key);
            } else {
                self.reset(*key, LostReason::ServerDown);
            }
        }
    }

    /// The client is gone.
    fn forget_reset(&mut self, key: FlowKey) {
        self.events
            .push_back(Event::ClientReset { connection: key });
        self.actions.push_back(Action::Forget { key });
    }

    /// A client completed its handshake with an earlier life of the server just now.
    pub fn late_connection(&mut self, candidate: &Candidate, now: Duration) {
        match self.stage {
            // It will be among those listed.
            Stage::Clearing | Stage::Starting | Stage::Listing => {}
            Stage::Serving | Stage::Recovering => {
                self.consider(candidate);
                self.poll(now);
            }
        }
    }

    fn consider(&mut self, candidate: &Candidate) {
        let (key, id) = (candidate.key, candidate.flow.id);
        // It may have been listed, and then be reported as late.
        if self.connections.contains_key(&id) || self.lost.contains_key(&id) {
            return;
        }
        let deaths = self.suspicion.deaths(id);
        match judge(candidate, self.config.replay, deaths, &self.config) {
            Verdict::Keep { point, end, fin } => {
                let connection = Connection::new(candidate, point, end, fin, deaths > 0);
                self.kept += 1;
                self.connections.insert(connection.flow, connection);
            }
            Verdict::Finished => {}
            Verdict::Reset => self.forget_reset(key),
            Verdict::Lose(reason) => self.lose(id, key, reason),
        }
    }

    /// It is told when it happens: until then another death may give the connection a new chance.
    fn lose(&mut self, flow: FlowId, key: FlowKey, reason: LostReason) {
        if self.stage == Stage::Serving {
            self.reset(key, reason);
        } else {
            self.lost.insert(flow, (key, reason));
        }
    }

    fn reset_lost(&mut self) {
        for (key, reason) in std::mem::take(&mut self.lost).into_values() {
            self.reset(key, reason);
        }
    }

    fn reset(&mut self, key: FlowKey, reason: LostReason) {
        self.resets += 1;
        self.events.push_back(Event::Lost {
            connection: key,
            reason,
        });
        self.actions.push_back(Action::ResetClient { key, reason });
    }

    /// A connection that was to be kept cannot be.
    fn drop_kept(&mut self, flow: FlowId, reason: LostReason) {
        if let Some(connection) = self.remove_kept(flow) {
            self.lose(flow, connection.key, reason);
        }
    }

    fn remove_kept(&mut self, flow: FlowId) -> Option<Connection> {
        let connection = self.connections.remove(&flow)?;
        self.kept = self.kept.saturating_sub(1);
        self.actions.push_back(Action::ForgetExpected { flow });
        self.tell_verified();
        Some(connection)
    }

    /// The data plane saw a replay say something else than its record.
    pub fn diverged(&mut self, flow: FlowId, at: SeqNumber) {
        if let Some(connection) = self.connections.get(&flow) {
            let offset = at.0.wrapping_sub(connection.server_isn.0).wrapping_sub(1);
            self.drop_kept(flow, LostReason::Diverged { offset });
        }
    }

    /// Connections whose flows should be looked at now, for [`Recovery::observe`].
    pub fn watched(&self, now: Duration) -> impl Iterator<Item = (FlowId, FlowKey)> + '_ {
        self.connections
            .values()
            .filter(move |connection| match &connection.step {
                Step::Waiting => false,
                Step::Splicing { .. } | Step::Replaying(_) => true,
                Step::Settling { look_at, .. } => now >= *look_at,
            })
            .map(|connection| (connection.flow, connection.key))
    }

    /// The present state of a connection in the data plane; `None`: it is gone, or another
    /// connection has its 4-tuple.
    pub fn observe(&mut self, id: FlowId, flow: Option<&Flow>, now: Duration) {
        let flow = flow.filter(|flow| flow.id == id);
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let key = connection.key;
        let awaited = connection.to_be_replayed();
        match flow {
            _ if matches!(connection.step, Step::Waiting) => return,
            // It was spliced and has ended since we looked last; its 4-tuple is not ours any more.
            None if awaited => return self.settle(id, None),
            Some(flow) if awaited && flow.client.reset => {
                self.remove_kept(id);
                return self.forget_reset(key);
            }
            // The splice was asked for, but not carried out: this is its state in an earlier life.
            Some(flow) if flow.incarnation == connection.incarnation => return,
            Some(flow) if flow.mode == Mode::Diverged => {
                return self.diverged(id, flow.verify.diverged_at);
            }
            _ => {}
        }
        let ended = flow.is_none_or(|flow| flow.closed_ns != 0 || flow.server_closing);
        if connection.observe(flow, now) && self.timings.first_spliced_ms == 0.0 {
            self.timings.first_spliced_ms = millis(now.saturating_sub(self.died_at));
        }
        match &mut connection.step {
            Step::Replaying(replay) if replay.complete() => {
                self.replayed_bytes += connection.replayed();
                connection.step = Step::Settling {
                    since: now,
                    look_at: now + self.config.settle,
                };
                self.actions.push_back(Action::OpenWindow { key });
            }
            // A server may answer without having read everything, and close: its own affair.
            Step::Replaying(_) if ended => self.settle(id, flow),
            Step::Settling { since, look_at } => {
                if now >= *look_at {
                    *look_at = now + self.config.settle;
                }
                let settled = now.saturating_sub(*since) >= self.config.settle;
                let compared = flow.is_none_or(|f| said_again(f) || ended);
                let patience = now.saturating_sub(*since) >= self.config.replay_timeout;
                if settled && (compared || patience) {
                    self.settle(id, flow);
                }
            }
            _ => {}
        }
    }

    fn settle(&mut self, id: FlowId, flow: Option<&Flow>) {
        self.connections.remove(&id);
        self.suspicion.clear(id);
        self.actions.push_back(Action::ForgetExpected { flow: id });
        if let Some(flow) = flow {
            self.verified.connections += 1;
            self.verified.compared += u64::from(flow.verify.compared);
            self.verified.tolerated += u64::from(flow.verify.tolerated);
            self.verified.unverified += u64::from(flow.verify.unverified);
        }
        self.tell_verified();
    }

    /// Once for all of them.
    fn tell_verified(&mut self) {
        if self.connections.is_empty() && self.verified.connections > 0 {
            let verified = std::mem::take(&mut self.verified);
            self.events.push_back(Event::Verified {
                connections: verified.connections,
                compared: verified.compared,
                tolerated: verified.tolerated,
                unverified: verified.unverified,
            });
        }
    }

    /// Time has passed: decide what is due.
    pub fn poll(&mut self, now: Duration) {
        if matches!(self.stage, Stage::Clearing | Stage::Starting) {
            self.give_up_when_late(now);
        }
        if !matches!(self.stage, Stage::Recovering | Stage::Serving) {
            return;
        }
        self.splice_next(now);
        self.send(now);
        self.finish_when_done(now);
    }

    fn give_up_when_late(&mut self, now: Duration) {
        if !self.gave_up && now.saturating_sub(self.down_since) >= self.config.give_up_after {
            self.give_up();
        }
    }

    /// Begin with the connections whose turn it is: in the order of their handshakes, as many at
    /// a time as may wait for an answer; suspects after all others, and one at a time.
    fn splice_next(&mut self, now: Duration) {
        let waiting_for_answer = |c: &&Connection| matches!(c.step, Step::Splicing { .. });
        let mut room = self
            .config
            .splice_window
            .saturating_sub(self.connections.values().filter(waiting_for_answer).count());
        let others_done = self
            .connections
            .values()
            .all(|c| c.suspect || matches!(c.step, Step::Settling { .. }));
        let mut suspect_may_go = others_done
            && self
                .connections
                .values()
                .all(|c| matches!(c.step, Step::Waiting));
        for connection in self.connections.values_mut() {
            if room == 0 {
                break;
            }
            if !matches!(connection.step, Step::Waiting) || (connection.suspect && !suspect_may_go)
            {
                continue;
            }
            suspect_may_go = false;
            room -= 1;
            connection.begin(now);
            if connection.point.verify_end != connection.point.outstream {
                self.actions.push_back(Action::Expect {
                    flow: connection.flow,
                });
            }
            self.actions.push_back(Action::Splice {
                key: connection.key,
                point: connection.point,
            });
        }
    }

    fn send(&mut self, now: Duration) {
        let mut failed = Vec::new();
        for connection in self.connections.values_mut() {
            let key = connection.key;
            if connection.repeat_syn(now) {
                self.actions.push_back(Action::RepeatSyn { key });
            }
            match &mut connection.step {
                Step::Splicing { since, .. }
                    if now.saturating_sub(*since) >= self.config.accept_timeout =>
                {
                    failed.push((connection.flow, LostReason::NotAccepted));
                }
                Step::Replaying(replay) if replay.idle(now) >= self.config.replay_timeout => {
                    failed.push((
                        connection.flow,
                        LostReason::ReplayStalled {
                            missing: replay.missing(),
                        },
                    ));
                }
                Step::Replaying(replay) => {
                    while let Some(segment) = replay.next_segment(self.config.max_segment, now) {
                        let flow = connection.flow;
                        self.actions
                            .push_back(Action::Replay { key, flow, segment });
                    }
                }
                _ => {}
            }
        }
        for (flow, reason) in failed {
            self.drop_kept(flow, reason);
        }
    }

    fn finish_when_done(&mut self, now: Duration) {
        if self.stage != Stage::Recovering {
            return;
        }
        let unspliced = |c: &Connection| matches!(c.step, Step::Waiting | Step::Splicing { .. });
        if !self.spliced_all && !self.connections.values().any(unspliced) {
            self.spliced_all = true;
            self.timings.spliced_ms = self.since_death(now);
            self.events.push_back(Event::Spliced {
                connections: self.kept,
                after_ms: self.timings.spliced_ms,
            });
        }
        if self.connections.values().any(Connection::to_be_replayed) {
            return;
        }
        self.stage = Stage::Serving;
        self.timings.live_ms = self.since_death(now);
        self.actions.push_back(Action::Recovered);
        self.reset_lost();
        self.events.push_back(Event::Serving {
            kept: self.kept,
            lost: self.resets,
            replayed_bytes: self.replayed_bytes,
            timings: self.timings,
        });
    }

    /// When to call [`Recovery::poll`] at the latest; `None`: nothing is due by itself.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        if matches!(self.stage, Stage::Clearing | Stage::Starting) && !self.gave_up {
            return Some(self.down_since + self.config.give_up_after);
        }
        self.connections
            .values()
            .filter_map(|connection| match &connection.step {
                Step::Waiting => None,
                Step::Splicing { repeat_at, .. } => Some(*repeat_at),
                Step::Replaying(replay) => Some(replay.deadline()),
                Step::Settling { look_at, .. } => Some(*look_at),
            })
            .min()
    }
}

/// The new server has said everything again that can be compared.
fn said_again(flow: &Flow) -> bool {
    flow.mode != Mode::Spliced
        || (SeqNumber(flow.splice.nxt.0.wrapping_add(flow.splice.delta_seq)))
            .at_or_after(flow.verify.end)
}
