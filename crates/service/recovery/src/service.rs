//! The life of a service: from a death to serving again.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use south_model::Flow;
use types::UnprotectedReason;
use wire::{FlowId, FlowKey};

use crate::{
    action::Action,
    client_probe::SilentClient,
    config::{Config, Stage},
    connection::{Candidate, Connection, ConnectionStep, Verdict, contradiction, judge},
    event::{Cause, Event, GaveUp, LostReason, Timings, millis},
    replay::Given,
    serving_report::ServingReport,
    suspicion::Suspicion,
    waiting_client::{self, WaitingClient},
};

/// The decisions for one service.
#[derive(Debug)]
pub struct Recovery {
    pub(crate) config: Config,
    pub(crate) stage: Stage,
    pub(crate) connections: BTreeMap<FlowId, Connection>,
    pub(crate) suspicion: Suspicion,
    /// Those whose clients must say where they stand.
    pub(crate) silent: BTreeMap<FlowId, SilentClient>,
    /// Those whose clients wait.
    pub(crate) waiting: BTreeMap<FlowId, WaitingClient>,
    /// When the flows are looked at again for those.
    pub(crate) list_waiting_at: Duration,
    /// Those that are reset when the recovery is over.
    pub(crate) lost: BTreeMap<FlowId, Loss>,
    /// How many were reset since the clients began to wait.
    pub(crate) resets: usize,
    pub(crate) actions: VecDeque<Action>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) drain_token: u64,
    pub(crate) drained: bool,
    pub(crate) listening: bool,
    /// The server has replayed its own record, or has none.
    pub(crate) replayed: bool,
    /// The server knows nothing of its connections, and has no record of its own.
    pub(crate) state_lost: bool,
    /// The next splice waits: the logger does not answer.
    pub(crate) awaits_logger: bool,
    /// The server waits for its connections, until then at the most.
    pub(crate) hand_over_by: Option<Duration>,
    /// Connections were given up, and why.
    pub(crate) gave_up: Option<GaveUp>,
    pub(crate) died_at: Duration,
    /// Since when clients have been waiting: the first of several deaths in a row.
    pub(crate) down_since: Duration,
    pub(crate) timings: Timings,
    pub(crate) spliced_all: bool,
    pub(crate) kept: usize,
    pub(crate) verified: Verified,
    pub(crate) serving_report: ServingReport,
}

/// A connection that is to be reset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loss {
    pub(crate) key: FlowKey,
    pub(crate) reason: LostReason,
    /// The part of the input that the server had been given.
    pub(crate) given: Given,
}

impl Loss {
    /// The loss of a connection of which the server was given no input.
    pub(crate) fn of(key: FlowKey, reason: LostReason) -> Self {
        let given = Given::default();
        Self { key, reason, given }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Verified {
    pub(crate) connections: usize,
    pub(crate) compared: u64,
    pub(crate) tolerated: u64,
    pub(crate) sampled: u64,
    pub(crate) unverified: u64,
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
            silent: BTreeMap::new(),
            waiting: BTreeMap::new(),
            list_waiting_at: Duration::ZERO,
            lost: BTreeMap::new(),
            resets: 0,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            drain_token: 0,
            drained: false,
            listening: false,
            replayed: false,
            state_lost: false,
            awaits_logger: false,
            hand_over_by: None,
            gave_up: None,
            died_at: Duration::ZERO,
            down_since: Duration::ZERO,
            timings: Timings::default(),
            spliced_all: false,
            kept: 0,
            verified: Verified::default(),
            serving_report: ServingReport::default(),
        }
    }

    /// Where the service stands.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Why clients that had waited were reset, if the server has not come back since.
    #[must_use]
    pub fn gave_up(&self) -> Option<GaveUp> {
        self.gave_up
    }

    /// Connections that are on the way back, or were so a moment ago. Late connections do not count: a server may never
    /// repeat the old output.
    #[must_use]
    pub fn unsettled(&self) -> usize {
        self.connections.values().filter(|one| !one.is_late).count()
    }

    /// The next thing to be done.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The action could not be carried out now: it is the next one again, if it is indispensable.
    pub fn failed(&mut self, action: Action) {
        if action.is_indispensable() {
            self.actions.push_front(action);
        }
    }

    /// What is to be done after that, as far as it is known, in order. A death may change it.
    pub fn upcoming(&self) -> impl Iterator<Item = &Action> {
        self.actions.iter()
    }

    /// The next thing to be told.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(crate) fn since_death(&self, now: Duration) -> f64 {
        millis(now.saturating_sub(self.died_at))
    }

    /// The server died at `at`; we know it `now`. In any stage.
    pub fn on_death(&mut self, cause: Cause, at: Duration, now: Duration) {
        if self.stage == Stage::Clearing {
            return; // one death has many witnesses
        }
        let unsettled: Vec<FlowId> = self
            .connections
            .values()
            .filter(|connection| connection.in_replay(at, self.config.settle))
            .map(|connection| connection.flow)
            .collect();
        self.suspicion
            .accuse(unsettled.into_iter(), cause.is_sigkill());
        if self.stage == Stage::Serving {
            self.down_since = at;
            self.gave_up = None;
            self.resets = 0;
        }
        self.flush_serving_report();
        self.start_client_waits(now);
        self.stage = Stage::Clearing;
        self.died_at = at;
        self.timings = Timings {
            detected_ms: self.since_death(now),
            ..Timings::default()
        };
        self.spliced_all = false;
        self.kept = 0;
        // They are found, and judged, again.
        self.lost.clear();
        self.silent.clear();
        self.awaits_logger = false;
        self.hand_over_by = None;
        self.verified = Verified::default();
        // What was still to be done for the dead incarnation must not be done to the next one.
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
        if !cause.is_asked_for() {
            self.events.push_back(Event::Died {
                cause,
                detected_ms: self.timings.detected_ms,
            });
        }
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
        self.replayed = !self.config.wrapped;
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

    /// The host that served has ended, and the server is here already: it has followed what that one did. It is neither
    /// ended nor started.
    pub fn promote(&mut self, cause: Cause, now: Duration) {
        self.on_death(cause, now, now);
        self.service_empty(now);
        let concerns =
            |action: &Action| matches!(action, Action::KillService | Action::StartServer);
        self.actions.retain(|action| !concerns(action));
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

    /// The server has died so often in replaying its record, and each time of what this connection has said.
    pub fn quarantine(&mut self, flow: FlowId, deaths: u32) {
        self.suspicion.quarantine(flow, deaths);
    }

    /// There is nothing that it could replay, or it has replayed something else: it knows nothing of its connections.
    /// Until it serves.
    pub fn on_state_lost(&mut self) {
        self.state_lost = true;
    }

    /// The server goes on without a record of the server's own input: as a server without state.
    pub fn continue_without_record(&mut self, now: Duration) {
        self.config.wrapped = false;
        self.state_lost = false;
        self.replayed(now);
    }

    /// It has replayed its own record, and waits for its connections.
    pub fn replayed(&mut self, now: Duration) {
        if self.stage == Stage::Starting && !self.replayed {
            self.replayed = true;
            self.timings.replayed_ms = self.since_death(now);
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
    pub fn give_up(&mut self, why: GaveUp) {
        if self.stage == Stage::Serving {
            return self.reset_unfinished(why);
        }
        if self.gave_up.is_some() {
            return;
        }
        self.gave_up = Some(why);
        self.waiting.clear();
        match self.stage {
            Stage::Clearing | Stage::Starting => self.actions.push_back(Action::ListConnections),
            Stage::Recovering => self.reset_unfinished(why),
            Stage::Serving | Stage::Listing => {} // nobody waits; the list is on its way
        }
    }

    fn reset_unfinished(&mut self, why: GaveUp) {
        let waiting: Vec<FlowId> = self
            .connections
            .values()
            .filter(|connection| connection.to_be_replayed())
            .map(|connection| connection.flow)
            .collect();
        for flow in waiting {
            self.drop_connection(flow, why.into());
        }
        for (flow, silent) in std::mem::take(&mut self.silent) {
            self.lose(flow, silent.key, why.into());
        }
        self.reset_lost();
    }

    fn list_when_ready(&mut self) {
        let ready = self.listening && self.replayed && self.drained;
        if self.stage == Stage::Starting && ready {
            self.stage = Stage::Listing;
            self.actions.push_back(Action::ListConnections);
        }
    }

    /// All connections of earlier incarnations, with their records.
    pub fn connections(&mut self, candidates: Vec<Candidate>, now: Duration) {
        match (self.stage, self.gave_up) {
            (Stage::Clearing | Stage::Starting, Some(why)) => self.reset_all(&candidates, why),
            (Stage::Listing, _) => {
                self.stage = Stage::Recovering;
                if let Some(why) = self.gave_up {
                    self.reset_all(&candidates, why);
                } else {
                    for candidate in &candidates {
                        self.consider(candidate, now);
                    }
                }
                self.retain_recovered_clients();
                self.start_grafts(now);
                self.poll(now);
            }
            _ => {} // of an incarnation that has ended meanwhile
        }
    }

    /// Nobody serves and the clients have waited long enough.
    fn reset_all(&mut self, candidates: &[Candidate], why: GaveUp) {
        for Candidate { key, flow, .. } in candidates {
            if flow.server_closing || flow.closed_ns != 0 {
                continue; // the kernel's to finish
            }
            if flow.client.reset {
                self.forget_reset(flow.id, *key);
            } else {
                self.reset(flow.id, Loss::of(*key, why.into()));
            }
        }
    }

    /// The client is gone.
    pub(crate) fn forget_reset(&mut self, flow: FlowId, key: FlowKey) {
        self.events
            .push_back(Event::ClientReset { connection: key });
        self.actions.push_back(Action::Forget { key, flow });
    }

    /// A client completed its handshake with an earlier incarnation of the server just now.
    pub fn late_connection(&mut self, candidate: &Candidate, now: Duration) {
        match self.stage {
            // It will be among those listed.
            Stage::Clearing | Stage::Starting | Stage::Listing => {}
            Stage::Serving | Stage::Recovering => {
                self.consider(candidate, now);
                self.poll(now);
            }
        }
    }

    /// The service was found serving this connection, of which nobody knows yet whether its client has to send again
    /// what the host before had acknowledged ([`south_model::LogHalf::snd_beyond_stable`]); or whose client waits until
    /// all that it was sent is said again ([`Flow::is_behind`]).
    pub fn track_unacked(&mut self, key: FlowKey, flow: &Flow, now: Duration) {
        if self.stage == Stage::Serving {
            let found = Connection::found(key, flow, now);
            self.connections.entry(flow.id).or_insert(found);
        }
    }

    fn consider(&mut self, candidate: &Candidate, now: Duration) {
        let (key, id) = (candidate.key, candidate.flow.id);
        // It may have been listed, and then be reported as late.
        if self.connections.contains_key(&id) || self.lost.contains_key(&id) {
            return;
        }
        self.silent.remove(&id);
        let deaths = self.suspicion.deaths(id);
        match judge(candidate, self.config.replay, deaths, &self.config) {
            Verdict::Keep { .. } | Verdict::Silent if self.state_lost => {
                self.lose(id, key, LostReason::Forgotten);
            }
            Verdict::Keep { point, end, fin } => {
                let connection = Connection::new(candidate, point, end, fin, deaths > 0);
                self.kept += 1;
                self.connections.insert(connection.flow, connection);
                self.add_waiting_client(id, key, now);
            }
            Verdict::Silent => {
                let standing = candidate.replay_position;
                let is_known = standing.is_some_and(|standing| !standing.is_closed);
                self.probe(key, &candidate.flow, is_known, now);
            }
            Verdict::Finished => {}
            Verdict::Reset => self.forget_reset(id, key),
            Verdict::Lose(reason) => self.lose(id, key, reason),
        }
    }

    /// It is told when it happens: until then another death may give the connection a new chance.
    pub(crate) fn lose(&mut self, flow: FlowId, key: FlowKey, reason: LostReason) {
        self.lose_given(flow, Loss::of(key, reason));
    }

    fn lose_given(&mut self, flow: FlowId, loss: Loss) {
        if self.stage == Stage::Serving {
            self.reset(flow, loss);
        } else {
            self.lost.insert(flow, loss);
        }
    }

    pub(crate) fn reset_lost(&mut self) {
        for (flow, loss) in std::mem::take(&mut self.lost) {
            self.reset(flow, loss);
        }
    }

    pub(crate) fn reset(&mut self, flow: FlowId, loss: Loss) {
        let Loss { key, reason, given } = loss;
        self.resets += 1;
        self.events.push_back(Event::ConnectionReset {
            connection: key,
            reason,
            replayed_requests: given.requests,
            replayed_bytes: given.bytes,
        });
        self.actions
            .push_back(Action::ResetClient { key, flow, reason });
    }

    /// A connection that was to be kept cannot be.
    pub(crate) fn drop_connection(&mut self, flow: FlowId, reason: LostReason) {
        if let Some(connection) = self.remove_connection(flow) {
            let (key, given) = (connection.key, connection.given);
            self.lose_given(flow, Loss { key, reason, given });
        }
    }

    pub(crate) fn remove_connection(&mut self, flow: FlowId) -> Option<Connection> {
        let connection = self.connections.remove(&flow)?;
        if matches!(connection.step, ConnectionStep::Splicing { .. }) {
            self.withdraw_splice(flow);
        }
        self.kept = self.kept.saturating_sub(1);
        self.count_dropped(&connection);
        waiting_client::remove(&mut self.waiting, flow);
        self.actions.push_back(Action::ForgetExpected { flow });
        self.emit_verified();
        Some(connection)
    }

    /// The record of a connection is gone, for this reason. A replay that has not read the whole record fails; a
    /// connection whose whole record was read goes on.
    pub fn unprotected(&mut self, flow: FlowId, reason: UnprotectedReason) {
        if let Some(silent) = self.silent.remove(&flow) {
            return self.lose(flow, silent.key, LostReason::Unprotected { reason });
        }
        let connection = self.connections.get(&flow);
        if connection.is_some_and(Connection::to_be_replayed) {
            self.drop_connection(flow, LostReason::Unprotected { reason });
        }
    }

    /// The data plane saw a replay contradict its record; `flow` is its state there. Whether the
    /// replay is over for us or not: nothing of this flow reaches the client any more.
    pub fn diverged(&mut self, key: FlowKey, flow: &Flow) {
        let reason = contradiction(flow);
        match self.stage {
            // It will be among those listed, and the next server may say the right thing.
            Stage::Clearing | Stage::Starting | Stage::Listing => {}
            _ if self.connections.contains_key(&flow.id) => self.drop_connection(flow.id, reason),
            _ if self.lost.contains_key(&flow.id) => {}
            Stage::Serving | Stage::Recovering => self.lose(flow.id, key, reason),
        }
    }
}
