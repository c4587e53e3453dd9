//! A model of everything around a [`Recovery`]: the data plane's flows, the logger's records, the
//! server's TCP, and a clock. It carries out each action the moment it is asked for, as `serve`
//! does, and panics where an action would be wrong whatever the circumstances: a piece outside of
//! the record or of the window, a splice while the server is dead, a second reset.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use ssw::{Flow, Mode};
use wire::{FlowId, FlowKey, SeqNumber};

use crate::{
    Action, Candidate, Cause, Config, Event, LostReason, Record, Recovery, Segment, Stage,
};

pub(super) const KILLED: Cause = Cause::Signal { pid: 7, signal: 9 };
/// First instream and outstream sequence numbers of a model connection, unless a test says else.
pub(super) const CLIENT: SeqNumber = SeqNumber(1_000);
pub(super) const SERVER: SeqNumber = SeqNumber(500_000);

pub(super) const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(super) fn key(id: u64) -> FlowKey {
    let port = u16::try_from(id).expect("a small number");
    let at = |host, port| SocketAddr::from((Ipv4Addr::new(10, 0, 0, host), port));
    FlowKey::new(at(1, port), at(2, 80))
}

/// How the restarted server's side of a connection behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// It takes everything.
    Reads,
    /// It never answers the SYN.
    Deaf,
    /// It answers the SYN, and then acknowledges nothing.
    Stuck,
    /// It reads this many bytes and closes.
    ClosesAfter(u32),
    /// It takes everything, but does not say again what it had said.
    Mute,
    /// What it says again differs from this offset on.
    SaysElse(u32),
    /// The server dies as soon as it has read a byte.
    Kills,
}

/// One connection.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub(super) flow: Flow,
    pub(super) record: Option<Record>,
    pub(super) manner: Manner,
    /// Receive window of the server's socket, bytes.
    pub(super) window: u32,
    /// So many fabricated SYNs are still to be lost.
    pub(super) syns_lost: u32,
    /// Pieces of replay still to be lost.
    pub(super) pieces_lost: u32,
    /// When a SYN arrived in this life.
    syn_at: Option<Duration>,
    /// Pieces that arrived in this life, in server order: [from, to), as offsets from the start.
    arrived: BTreeSet<(u32, u32)>,
}

impl Peer {
    /// A living connection that received `instream` bytes and was sent `outstream` bytes.
    pub(super) fn new(id: u64, instream: u32, outstream: u32) -> Self {
        Self::at(id, CLIENT, SERVER, instream, outstream)
    }

    pub(super) fn at(
        id: u64,
        client: SeqNumber,
        server: SeqNumber,
        instream: u32,
        outstream: u32,
    ) -> Self {
        let (stable_seq, outstream_end) = (client + instream, server + outstream);
        let mut flow = Flow {
            id: FlowId(id),
            incarnation: 1,
            ..Flow::default()
        };
        (flow.client.isn, flow.client.nxt, flow.client.ack) =
            (client - 1, stable_seq, outstream_end);
        (flow.server.isn, flow.server.nxt, flow.server.ack) =
            (server - 1, outstream_end, stable_seq);
        flow.server.answered = true;
        let record = Record {
            start: client,
            stable_seq,
            client_fin: None,
            turn_instream: client + instream / 2,
            turn_outstream: server + outstream / 2,
            outstream_end: Some(outstream_end),
            unprotected: None,
        };
        Self {
            flow,
            record: Some(record),
            manner: Manner::Reads,
            window: 64_000,
            syns_lost: 0,
            pieces_lost: 0,
            syn_at: None,
            arrived: BTreeSet::new(),
        }
    }

    pub(super) fn manner(mut self, manner: Manner) -> Self {
        self.manner = manner;
        self
    }

    pub(super) fn window(mut self, window: u32) -> Self {
        self.window = window;
        self
    }

    pub(super) fn with_fin(mut self) -> Self {
        let record = self.record.as_mut().expect("a record");
        record.client_fin = Some(record.stable_seq);
        self.flow.server.ack = record.stable_seq + 1;
        self
    }

    pub(super) fn change(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn start(&self) -> SeqNumber {
        self.flow.splice.instream + 1
    }

    /// Length of what is to be replayed from the splice on, FIN included.
    pub(super) fn owed(&self) -> u32 {
        let record = self.record.expect("a spliced connection has a record");
        let end = record.stable_seq + u32::from(record.client_fin.is_some());
        end.distance_from(self.start())
            .expect("a record that ends after it began")
    }

    /// How much of it arrived without a gap.
    pub(super) fn received(&self) -> u32 {
        self.arrived.iter().fold(
            0,
            |end, &(from, to)| if from <= end { end.max(to) } else { end },
        )
    }

    fn take(&mut self, segment: Segment) {
        let from = segment
            .from
            .distance_from(self.start())
            .expect("a piece before the start");
        let to = from + segment.len + u32::from(segment.fin);
        assert!(to > from, "an empty piece");
        assert!(to <= self.owed(), "{segment:?} is beyond the record");
        let edge = self
            .flow
            .splice
            .edge
            .distance_from(self.start())
            .expect("an edge");
        assert!(
            to <= edge,
            "{segment:?} is beyond the window, which ends at {edge}"
        );
        let record = self.record.expect("a record");
        assert_eq!(
            segment.fin,
            record.client_fin.is_some() && to == self.owed(),
            "{segment:?}: its FIN"
        );
        if self.pieces_lost > 0 {
            self.pieces_lost -= 1;
        } else {
            self.arrived.insert((from, to));
        }
    }

    /// The server's TCP has the time to do something.
    fn live(&mut self, now: Duration) {
        if self.flow.mode == Mode::Splicing {
            let answered = self.syn_at.is_some_and(|at| now >= at + ms(1));
            if answered && self.manner != Manner::Deaf {
                self.flow.mode = Mode::Spliced;
                self.flow.splice.ack = self.start();
                self.flow.splice.edge = self.start() + self.window;
            }
        } else if self.flow.mode == Mode::Spliced && self.flow.closed_ns == 0 {
            self.read();
        }
    }

    fn read(&mut self) {
        let received = self.received();
        if self.manner == Manner::Stuck {
            return;
        }
        if let Manner::ClosesAfter(bytes) = self.manner
            && received >= bytes
        {
            self.flow.server_closing = true;
            self.flow.closed_ns = 1;
            return;
        }
        self.flow.splice.ack = self.start() + received;
        self.flow.splice.edge = self.flow.splice.ack + self.window;
        if received < self.owed() || self.manner == Manner::Mute {
            return;
        }
        if let Manner::SaysElse(offset) = self.manner {
            self.flow.mode = Mode::Diverged;
            self.flow.verify.diverged_at = self.flow.server.isn + 1 + offset;
            return;
        }
        let said = self
            .flow
            .verify
            .end
            .distance_from(self.flow.splice.outstream)
            .unwrap_or(0);
        self.flow.splice.nxt = self.flow.splice.isn + 1 + said;
        self.flow.verify.compared = said;
    }
}

/// Everything around the decisions.
pub(super) struct World {
    pub(super) recovery: Recovery,
    pub(super) now: Duration,
    pub(super) peers: BTreeMap<FlowKey, Peer>,
    pub(super) done: Vec<Action>,
    pub(super) told: Vec<Event>,
    pub(super) drain: Option<u64>,
    pub(super) incarnation: u32,
    pub(super) start_wanted: bool,
    /// A server runs, or may.
    alive: bool,
    pub(super) reset: BTreeMap<FlowKey, LostReason>,
    pub(super) forgotten: BTreeSet<FlowKey>,
    /// Most SYNs that waited for an answer at a time.
    pub(super) most_splicing: usize,
    /// Connections in the order of their (first) splice, by number.
    pub(super) spliced: Vec<u64>,
}

impl World {
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
            start_wanted: false,
            alive: true,
            reset: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            most_splicing: 0,
            spliced: Vec::new(),
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

    // What happens.

    pub(super) fn die(&mut self) {
        self.alive = false;
        self.recovery.died(KILLED, self.now, self.now);
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

    /// Time passes; whoever can do something does it, and is looked at.
    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        if self.alive {
            let (now, life) = (self.now, self.incarnation);
            self.peers
                .values_mut()
                .filter(|peer| peer.flow.incarnation == life)
                .for_each(|p| p.live(now));
        }
        self.look();
        let life = self.incarnation;
        let killer = |peer: &Peer| {
            peer.manner == Manner::Kills && peer.flow.incarnation == life && peer.received() > 0
        };
        let killed = self.alive && self.peers.values().any(killer);
        if killed {
            self.die();
        }
    }

    pub(super) fn look(&mut self) {
        let watched: Vec<_> = self.recovery.watched().collect();
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

    /// The world behaves until the service serves again, in at most `steps` milliseconds.
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

    // What is asked for.

    pub(super) fn act(&mut self) {
        while let Some(action) = self.recovery.next_action() {
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
                assert!(!self.alive, "a new life while the old one lasts");
                self.incarnation += 1;
            }
            Action::StartServer => {
                self.start_wanted = true;
                self.alive = true;
            }
            Action::ListConnections => {
                let list = self.candidates();
                self.recovery.connections(list, self.now);
            }
            Action::Splice { key, point } => {
                assert!(self.alive, "spliced to a dead server");
                let (now, life) = (self.now, self.incarnation);
                let peer = self.known(key);
                assert_ne!(peer.flow.incarnation, life, "spliced a second time");
                peer.flow.mode = Mode::Splicing;
                peer.flow.incarnation = life;
                peer.flow.splice = ssw::SpliceHalf {
                    instream: point.instream,
                    outstream: point.outstream,
                    isn: SeqNumber(77),
                    nxt: SeqNumber(78),
                    ack: point.instream + 1,
                    edge: point.instream + 1,
                    delta_seq: point.outstream.0.wrapping_sub(78),
                    ..ssw::SpliceHalf::default()
                };
                peer.flow.verify = ssw::VerifyHalf {
                    end: point.verify_end,
                    ..ssw::VerifyHalf::default()
                };
                peer.arrived.clear();
                peer.syn_at = None;
                let id = peer.flow.id.0;
                self.spliced.push(id);
                self.syn(key, now);
            }
            Action::RepeatSyn { key } => self.syn(key, self.now),
            Action::Replay { key, flow, segment } => {
                assert!(self.alive, "replayed to a dead server");
                let peer = self.known(key);
                assert_eq!(peer.flow.id, flow, "the record of another connection");
                assert_ne!(
                    peer.flow.mode,
                    Mode::Splicing,
                    "replayed before the handshake"
                );
                peer.take(segment);
            }
            Action::OpenWindow { key } => {
                assert!(self.alive, "a window for a dead server");
                let peer = self.known(key);
                assert!(
                    peer.received() >= peer.owed(),
                    "not everything was delivered"
                );
            }
            Action::Forget { key } => {
                self.peers
                    .remove(&key)
                    .expect("forgot an unknown connection");
                assert!(self.forgotten.insert(key), "forgotten twice");
            }
            Action::ResetClient { key, reason } => {
                self.peers
                    .remove(&key)
                    .expect("reset an unknown connection");
                assert_eq!(self.reset.insert(key, reason), None, "reset twice");
            }
            Action::RemoveOrphans
            | Action::Expect { .. }
            | Action::ForgetExpected { .. }
            | Action::Recovered => {}
        }
    }

    fn known(&mut self, key: FlowKey) -> &mut Peer {
        self.peers
            .get_mut(&key)
            .expect("something was asked for a connection that is not there")
    }

    fn syn(&mut self, key: FlowKey, now: Duration) {
        assert!(self.alive, "a SYN for a dead server");
        let peer = self.known(key);
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

    // What was seen.

    /// Forget what was done and told so far.
    pub(super) fn turn_page(&mut self) {
        self.done.clear();
        self.told.clear();
    }

    /// Kept, lost and replayed bytes of the last `Serving` event.
    pub(super) fn serving(&self) -> (usize, usize, u64) {
        let numbers = |event: &Event| match event {
            Event::Serving {
                kept,
                lost,
                replayed_bytes,
                ..
            } => Some((*kept, *lost, *replayed_bytes)),
            _ => None,
        };
        self.told
            .iter()
            .rev()
            .find_map(numbers)
            .expect("a Serving event")
    }

    pub(super) fn lost_told(&self) -> Vec<(FlowKey, LostReason)> {
        let lost = |event: &Event| match event {
            Event::Lost { connection, reason } => Some((*connection, *reason)),
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
    }
}
