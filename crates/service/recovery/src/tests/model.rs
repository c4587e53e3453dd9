//! A model of everything around a [`Recovery`]: the data plane's flows, the logger's records, the server's TCP, and a
//! clock. The model carries out each action at once, as `serve` does, and panics at an action that is wrong in any
//! circumstances: a piece outside of the record or the window, a splice while the server is dead, a second reset.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use south_model::{Mode, Restored};
use wire::{FlowId, FlowKey, SeqNumber};

use crate::{
    Action, Beginning, Candidate, Cause, Config, Event, LostReason, Recovery, Segment, Stage,
};

pub(super) use super::peer::{CLIENT, Manner, Peer, SERVER};

pub(super) const SEGFAULT: Cause = Cause::Signal { pid: 7, signal: 11 };
pub(super) const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(super) fn key(id: u64) -> FlowKey {
    let port = u16::try_from(id).expect("a small number");
    let at = |host, port| SocketAddr::from((Ipv4Addr::new(10, 0, 0, host), port));
    FlowKey::new(at(1, port), at(2, 80))
}

/// Behaviour of the logger when asked for old output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Logger {
    Answers,
    IsAway,
    KnowsNothing,
}

/// Everything around the decisions.
pub(super) struct Model {
    pub(super) recovery: Recovery,
    pub(super) now: Duration,
    pub(super) peers: BTreeMap<FlowKey, Peer>,
    pub(super) done: Vec<Action>,
    pub(super) told: Vec<Event>,
    pub(super) drain: Option<u64>,
    pub(super) incarnation: u32,
    /// Cause of the next death.
    pub(super) cause: Cause,
    pub(super) start_wanted: bool,
    pub(super) logger: Logger,
    /// A server runs, or may run.
    alive: bool,
    pub(super) reset: BTreeMap<FlowKey, LostReason>,
    pub(super) forgotten: BTreeSet<FlowKey>,
    /// Clients with a zero window that have not been sent a window update yet.
    pub(super) closed: BTreeSet<FlowKey>,
    /// The server was given its connections.
    pub(super) handed_over: bool,
    /// Most SYNs that waited for an answer at a time.
    pub(super) most_splicing: usize,
    /// Connections in the order of their (first) splice, by number.
    pub(super) spliced: Vec<u64>,
    /// Each action that is indispensable fails at first.
    pub(super) fails: bool,
    failed: Option<Action>,
}

impl Model {
    pub(super) fn new(peers: impl IntoIterator<Item = Peer>) -> Self {
        Self::with(Config::default(), peers)
    }

    pub(super) fn with(config: Config, peers: impl IntoIterator<Item = Peer>) -> Self {
        Self {
            recovery: Recovery::new(config),
            now: ms(10_000),
            peers: peers
                .into_iter()
                .map(|peer| (key(peer.flow.id.0), peer))
                .collect(),
            done: Vec::new(),
            told: Vec::new(),
            drain: None,
            incarnation: 1,
            cause: SEGFAULT,
            start_wanted: false,
            logger: Logger::Answers,
            alive: true,
            reset: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            closed: BTreeSet::new(),
            handed_over: false,
            most_splicing: 0,
            spliced: Vec::new(),
            fails: false,
            failed: None,
        }
    }

    pub(super) fn peer(&mut self, id: u64) -> &mut Peer {
        self.peers
            .get_mut(&key(id))
            .expect("a connection that is still there")
    }

    pub(super) fn stage(&self) -> Stage {
        self.recovery.stage()
    }

    // Events.

    pub(super) fn die(&mut self) {
        self.alive = false;
        self.recovery.on_death(self.cause, self.now, self.now);
        self.act();
    }

    pub(super) fn clear(&mut self) {
        self.recovery.service_empty(self.now);
        self.act();
    }

    pub(super) fn start(&mut self) {
        self.start_wanted = false;
        self.recovery.started(42, self.now);
        self.act();
    }

    pub(super) fn listen(&mut self) {
        self.recovery.listening(self.now);
        self.act();
    }

    pub(super) fn drained(&mut self) {
        if let Some(token) = self.drain.take() {
            self.recovery.drained(token);
            self.act();
        }
    }

    /// From a death to the point where connections are being spliced.
    pub(super) fn die_and_return(&mut self) {
        self.die();
        self.come_back();
    }

    pub(super) fn come_back(&mut self) {
        self.clear();
        self.start();
        self.listen();
        self.drained();
    }

    pub(super) fn late(&mut self, peer: Peer) {
        let candidate = candidate(key(peer.flow.id.0), &peer);
        self.peers.insert(candidate.key, peer);
        self.recovery.late_connection(&candidate, self.now);
        self.act();
    }

    /// Time passes: the server works on each connection, and the recovery looks at the flows.
    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        if self.alive {
            let (now, incarnation) = (self.now, self.incarnation);
            self.peers
                .values_mut()
                .filter(|peer| peer.flow.incarnation == incarnation)
                .for_each(|p| p.live(now));
        }
        self.look();
        let incarnation = self.incarnation;
        let killer = |peer: &Peer| {
            peer.manner == Manner::Kills
                && peer.flow.incarnation == incarnation
                && peer.received() > 0
        };
        let killed = self.alive && self.peers.values().any(killer);
        if killed {
            self.die();
        }
    }

    pub(super) fn look(&mut self) {
        let watched: Vec<_> = self.recovery.watched(self.now).collect();
        for (id, key) in watched {
            self.recovery
                .observe(id, self.peers.get(&key).map(|peer| &peer.flow), self.now);
        }
        self.recovery.poll(self.now);
        self.act();
    }

    pub(super) fn pass_in_steps(&mut self, time: Duration, step: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.pass(step);
        }
    }

    /// The model behaves until the service serves again, in at most `steps` milliseconds.
    pub(super) fn until_serving(&mut self, steps: u32) {
        for _ in 0..steps {
            match self.stage() {
                Stage::Serving => return,
                Stage::Clearing => self.clear(),
                Stage::Starting if self.start_wanted => self.start(),
                Stage::Starting => {
                    self.listen();
                    self.drained();
                }
                Stage::Listing | Stage::Recovering => {}
            }
            self.pass(ms(1));
        }
        panic!("not serving again: {:#?}", self.recovery);
    }

    // Actions.

    pub(super) fn act(&mut self) {
        while let Some(action) = self.recovery.next_action() {
            if self.fails && action.is_indispensable() && self.failed != Some(action) {
                self.failed = Some(action);
                self.recovery.failed(action);
                break;
            }
            self.perform(action);
            self.done.push(action);
        }
        while let Some(event) = self.recovery.next_event() {
            self.told.push(event);
        }
        let splicing =
            |p: &&Peer| p.flow.mode == Mode::Splicing && p.flow.incarnation == self.incarnation;
        let waiting = self.peers.values().filter(splicing).count();
        self.most_splicing = self.most_splicing.max(waiting);
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Gate | Action::KillService => self.alive = false,
            Action::Drain { token } => self.drain = Some(token),
            Action::NewIncarnation => {
                assert!(!self.alive, "a new incarnation while the old one lasts");
                self.incarnation += 1;
            }
            Action::StartServer => {
                self.handed_over = false;
                self.start_wanted = true;
                self.alive = true;
            }
            Action::ListConnections => {
                let list = self.candidates();
                self.recovery.connections(list, self.now);
            }
            Action::Splice { key, flow, point } => {
                assert!(self.alive, "spliced to a dead server");
                let (now, incarnation) = (self.now, self.incarnation);
                let wanted = self.recovery.compared_first(flow);
                let peer = self.known(key, flow);
                assert_ne!(peer.flow.incarnation, incarnation, "spliced a second time");
                peer.flow.mode = Mode::Splicing;
                peer.flow.incarnation = incarnation;
                peer.flow.splice = south_model::SpliceHalf {
                    instream: point.instream,
                    outstream: point.outstream,
                    isn: SeqNumber(77),
                    nxt: SeqNumber(78),
                    ack: point.instream + 1,
                    rcv_wnd_edge: point.instream + 1,
                    delta_seq: point.outstream.0.wrapping_sub(78),
                    ..south_model::SpliceHalf::default()
                };
                peer.flow.verify = south_model::VerifyHalf {
                    end: point.verify_end,
                    ..south_model::VerifyHalf::default()
                };
                peer.arrived.clear();
                peer.syn_at = None;
                peer.flow.digest.wanted = wanted;
                let id = peer.flow.id.0;
                self.spliced.push(id);
                self.syn(key, flow, now);
            }
            Action::Compare { key, flow, digest } => {
                assert!(self.alive, "a dead server says nothing again");
                self.known(key, flow).flow.digest.wanted = Some(digest);
            }
            Action::Graft { key, flow, point } => {
                assert!(self.alive, "grafted to a dead server");
                let (incarnation, handed_over) = (self.incarnation, self.handed_over);
                let peer = self.known(key, flow);
                let closed = peer
                    .replay_position
                    .is_some_and(|standing| standing.is_closed);
                assert!(!handed_over || closed, "the server goes on already");
                assert_ne!(peer.flow.incarnation, incarnation, "grafted a second time");
                peer.graft(incarnation, point);
            }
            Action::HandOver => {
                assert!(self.alive, "a dead server goes on");
                self.handed_over = true;
            }
            Action::RepeatSyn { key, flow } => self.syn(key, flow, self.now),
            Action::Replay { key, flow, segment } => {
                assert!(self.alive, "replayed to a dead server");
                let peer = self.known(key, flow);
                assert_ne!(
                    peer.flow.mode,
                    Mode::Splicing,
                    "replayed before the handshake"
                );
                peer.take(segment);
            }
            Action::MoreRecord { flow, from } => {
                let record = self.peer(flow.0).record;
                let end = record.map_or(from, |record| record.stable_seq);
                self.recovery.more_record(flow, end.max_seq(from), self.now);
            }
            Action::ListWaiting => {
                let list = self.candidates();
                let flows = list.iter().map(|one| (one.key, &one.flow));
                self.recovery.waiting(flows, self.now);
            }
            Action::ZeroWindow { key, flow } => {
                let peer = self.known(key, flow);
                assert_ne!(
                    peer.flow.log.restored,
                    Restored::Unconfirmed,
                    "it has not spoken"
                );
                self.closed.insert(key);
            }
            Action::UpdateWindow { key, flow } => {
                let waited = self.closed.remove(&key);
                let peer = self.known(key, flow);
                let other = peer.flow.log.restored == Restored::Confirmed;
                assert!(other || waited, "it knows");
            }
            Action::ProbeClient { key, flow } => {
                let peer = self.known(key, flow);
                assert!(peer.flow.is_silent(), "it has said all");
            }
            Action::OpenWindow { key, flow } => {
                assert!(self.alive, "a window for a dead server");
                let peer = self.known(key, flow);
                assert!(
                    peer.received() >= peer.owed(),
                    "not everything was delivered"
                );
            }
            Action::Forget { key, flow } => {
                self.known(key, flow);
                self.peers.remove(&key);
                assert!(self.forgotten.insert(key), "forgotten twice");
            }
            Action::ResetClient { key, flow, reason } => {
                self.known(key, flow);
                self.peers.remove(&key);
                assert_eq!(self.reset.insert(key, reason), None, "reset twice");
            }
            Action::Expect { flow } if self.logger == Logger::IsAway => {
                self.recovery.unanswered(flow);
            }
            Action::Expect { flow } if self.logger == Logger::KnowsNothing => {
                self.recovery.no_record(flow);
            }
            Action::Expect { flow } => {
                let peer = self.peer(flow.0);
                let (client, server) = (peer.flow.client.isn + 1, peer.flow.server.isn + 1);
                let place = |&(instream, heard): &(u32, u32)| Beginning {
                    instream: client + instream,
                    heard: server + heard,
                    said: peer
                        .digests
                        .iter()
                        .copied()
                        .find(|said| said.next == server + heard),
                };
                let beginnings = peer.beginnings.iter().map(place).collect();
                let digests = peer.digests.clone();
                self.recovery.beginnings(flow, beginnings, digests);
            }
            Action::RemoveOrphans | Action::ForgetExpected { .. } | Action::Recovered => {}
        }
    }

    /// The data plane sees a divergence at `at`, and reports the divergence.
    pub(super) fn diverge(&mut self, id: u64, at: SeqNumber) {
        let flow = &mut self.peer(id).flow;
        flow.mode = Mode::Diverged;
        flow.verify.diverged_at = at;
        self.report_diverged(id);
    }

    /// The event about a divergence is read, if the flow still exists.
    pub(super) fn report_diverged(&mut self, id: u64) {
        if let Some(peer) = self.peers.get(&key(id)) {
            self.recovery.diverged(key(id), &peer.flow);
        }
    }

    fn known(&mut self, key: FlowKey, flow: FlowId) -> &mut Peer {
        let peer = self.peers.get_mut(&key);
        let peer = peer.expect("something was asked for a connection that is not there");
        assert_eq!(peer.flow.id, flow, "it was meant for another connection");
        peer
    }

    fn syn(&mut self, key: FlowKey, flow: FlowId, now: Duration) {
        assert!(self.alive, "a SYN for a dead server");
        let peer = self.known(key, flow);
        if peer.syns_lost > 0 {
            peer.syns_lost -= 1;
        } else {
            peer.syn_at.get_or_insert(now);
        }
    }

    pub(super) fn candidates(&self) -> Vec<Candidate> {
        let earlier = |(_, peer): &(&FlowKey, &Peer)| {
            !self.alive || peer.flow.incarnation != self.incarnation
        };
        // Not in the order of the handshakes: a map has none.
        self.peers
            .iter()
            .rev()
            .filter(earlier)
            .map(|(key, peer)| candidate(*key, peer))
            .collect()
    }

    // Observations.

    /// Forgets all actions and events so far.
    pub(super) fn turn_page(&mut self) {
        self.done.clear();
        self.told.clear();
    }

    /// Kept, lost and replayed bytes of the last `Serving` event.
    pub(super) fn serving(&mut self) -> (usize, usize, u64) {
        let deadline = self.now + ms(2_000);
        while self.recovery.is_serving_pending() && self.now < deadline {
            self.pass(ms(1));
        }
        let numbers = |event: &Event| match event {
            Event::Serving {
                recovered,
                reset,
                replayed_bytes,
                ..
            } => Some((*recovered, *reset, *replayed_bytes)),
            _ => None,
        };
        self.told
            .iter()
            .rev()
            .find_map(numbers)
            .expect("a Serving event")
    }

    pub(super) fn reported_losses(&self) -> Vec<(FlowKey, LostReason)> {
        let lost = |event: &Event| match event {
            Event::ConnectionReset {
                connection, reason, ..
            } => Some((*connection, *reason)),
            _ => None,
        };
        self.told.iter().filter_map(lost).collect()
    }

    pub(super) fn pieces(&self, id: u64) -> Vec<Segment> {
        let piece = |action: &Action| match action {
            Action::Replay { flow, segment, .. } if flow.0 == id => Some(*segment),
            _ => None,
        };
        self.done.iter().filter_map(piece).collect()
    }
}

pub(super) fn candidate(key: FlowKey, peer: &Peer) -> Candidate {
    Candidate {
        key,
        flow: peer.flow.clone(),
        record: peer.record,
        replay_position: peer.replay_position,
    }
}
