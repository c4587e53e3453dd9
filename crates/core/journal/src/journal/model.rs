//! The journal against a naive model: a table from position to byte.

mod steps;

use super::{Journal, Limits, ReplayMode};
use crate::error::{ReadError, Refused};
use crate::len64;
use crate::record::{InstreamSegment, OutstreamSegment, ServerProgress};
use crate::summary::{State, Summary};
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, proptest};
use steps::{MODEL_BYTES, Step, Where, bytes, steps};
use types::ClientFin;
use wire::{FlowId, SeqNumber};

/// A naive stream: `start` is the first position that is kept.
struct Stream {
    table: Vec<Option<u8>>,
    start: usize,
}

impl Stream {
    fn new() -> Self {
        let table = Vec::new();
        Self { table, start: 1 }
    }

    fn get(&self, position: usize) -> Option<u8> {
        self.table.get(position).copied().flatten()
    }

    /// Writes new bytes; returns the number of known bytes that differ.
    fn write(&mut self, at: usize, bytes: &[u8], end: usize) -> u64 {
        let mut differ = 0;
        for (position, byte) in (at..end).zip(bytes) {
            if position >= self.start {
                let length = self.table.len().max(position + 1);
                self.table.resize(length, None);
                let first = *self.table[position].get_or_insert(*byte);
                differ += u64::from(first != *byte);
            }
        }
        differ
    }

    fn restart(&mut self, start: usize) {
        let dropped = start.min(self.table.len());
        self.table[..dropped].fill(None);
        self.start = start;
    }

    /// The position of the first gap.
    fn data_end(&self) -> usize {
        self.start + self.run(self.start).len()
    }

    /// The number of bytes beyond the first gap.
    fn bytes_beyond_gap(&self) -> u64 {
        let beyond = self.table.get(self.data_end()..).unwrap_or_default();
        len64(beyond.iter().flatten().count())
    }

    /// The position after the last byte.
    fn end(&self) -> usize {
        self.table.len().max(self.start)
    }

    fn run(&self, from: usize) -> Vec<u8> {
        (from..).map_while(|position| self.get(position)).collect()
    }

    fn runs(&self) -> Vec<(usize, Vec<u8>)> {
        let mut runs = Vec::new();
        let mut at = self.start;
        while at < self.table.len() {
            let run = self.run(at);
            let length = run.len();
            if length > 0 {
                runs.push((at, run));
            }
            at += length + 1;
        }
        runs
    }
}

/// A naive connection.
struct Naive {
    client_isn: SeqNumber,
    server_isn: SeqNumber,
    instream: Stream,
    outstream: Stream,
    fin: Option<usize>,
    fin_heard: SeqNumber,
    turn_outstream: usize,
    /// The end of the output when the client's newest byte arrived, if known.
    spoken: Option<usize>,
}

impl Naive {
    fn new(client_isn: SeqNumber, server_isn: SeqNumber) -> Self {
        Self {
            client_isn,
            server_isn,
            instream: Stream::new(),
            outstream: Stream::new(),
            fin: None,
            fin_heard: SeqNumber(0),
            turn_outstream: 1,
            spoken: Some(1),
        }
    }

    fn place(&self, at: Where) -> usize {
        let next = self.instream.data_end();
        let at = match at {
            Where::Next => next,
            Where::Near(offset) => {
                next.saturating_add_signed(isize::try_from(offset).expect("small"))
            }
            Where::At(position) => position,
        };
        at.min(MODEL_BYTES - 70_001)
    }

    /// Drops the bytes before `to`.
    fn release(&mut self, to: usize) {
        if to <= self.instream.start || self.fin.is_some_and(|fin| to > fin) {
            return;
        }
        if to > self.instream.data_end() {
            self.spoken = None;
        }
        self.instream.restart(to);
    }

    fn stable(&self) -> usize {
        let end = self.instream.data_end();
        end + usize::from(self.fin == Some(end))
    }

    fn begins_request(&self, at: usize, arrival: &InstreamSegment<'_>, server_nxt: usize) -> bool {
        at == self.instream.data_end()
            && at == self.instream.end()
            && self.fin.is_none()
            && !arrival.payload.is_empty()
            && arrival
                .server
                .is_some_and(|server| server.ack == arrival.seq && server.nxt == arrival.client_ack)
            && self.spoken.is_some_and(|spoken| server_nxt > spoken)
            && self.outstream.get(self.turn_outstream).is_some()
    }

    /// Answers the bytes that conflict.
    fn arrive(
        &mut self,
        at: usize,
        arrival: &InstreamSegment<'_>,
        nxt: usize,
        mode: ReplayMode,
    ) -> u64 {
        if self.begins_request(at, arrival, nxt) {
            self.turn_outstream = nxt;
            if mode == ReplayMode::Request {
                self.instream.restart(at);
                self.outstream.restart(nxt);
            }
        }
        if at + arrival.payload.len() > self.instream.end() {
            self.spoken = Some(self.spoken.map_or(nxt, |spoken| spoken.max(nxt)));
        }
        let fin = self.fin.unwrap_or(MODEL_BYTES);
        let differ = self.instream.write(at, arrival.payload, fin);
        let end = at + arrival.payload.len();
        if arrival.fin && self.fin.is_none() && end >= self.instream.end() {
            self.fin = Some(end);
            self.fin_heard = arrival.client_ack;
        }
        differ
    }
}

fn seq(isn: SeqNumber, position: usize) -> SeqNumber {
    isn + u32::try_from(position).expect("a small space")
}

/// A journal, and the models of the protected connections.
struct Pair {
    journal: Journal,
    limits: Limits,
    mode: ReplayMode,
    models: [Option<Naive>; 3],
    conflicting: (u64, u64),
}

impl Pair {
    fn new(limits: Limits, mode: ReplayMode) -> Self {
        Self {
            journal: Journal::new(limits, mode),
            limits,
            mode,
            models: [const { None }; 3],
            conflicting: (0, 0),
        }
    }

    fn step(&mut self, which: usize, step: Step) {
        let flow = FlowId(len64(which));
        match step {
            Step::Open(client, server) => {
                self.journal.open(flow, client, server).expect("few");
                let known = self.models[which].as_ref();
                if known
                    .is_none_or(|known| (known.client_isn, known.server_isn) != (client, server))
                {
                    self.models[which] = Some(Naive::new(client, server));
                }
            }
            Step::Close => {
                self.journal.close(flow);
                self.models[which] = None;
            }
            Step::Read(from, max) => self.read(which, from, max),
            Step::Sent { at, length, salt } => {
                let bytes = bytes(at, length, salt);
                let isn = self.models[which].as_ref().map(|model| model.server_isn);
                let seq = seq(isn.unwrap_or(SeqNumber(0)), at);
                let done = self
                    .journal
                    .outstream(flow, &OutstreamSegment::in_order(seq, &bytes));
                if self.accepted(which, done) {
                    let model = self.models[which].as_mut().expect("accepted");
                    self.conflicting.1 += model.outstream.write(at, &bytes, MODEL_BYTES);
                }
            }
            Step::Arrive { .. } => self.arrive(which, step),
            Step::Release(to) => self.release(which, to),
        }
        self.check(which);
    }

    fn arrive(&mut self, which: usize, step: Step) {
        let Step::Arrive {
            at,
            length,
            salt,
            fin,
            client_ack,
            server_nxt,
            server_behind,
        } = step
        else {
            return;
        };
        let fresh = Naive::new(SeqNumber(0), SeqNumber(0));
        let model = self.models[which].as_ref().unwrap_or(&fresh);
        let at = model.place(at);
        let payload = bytes(at, length, salt);
        let seq_of = |position| seq(model.client_isn, position);
        let out_of = |position| seq(model.server_isn, position);
        let arrival = InstreamSegment {
            seq: seq_of(at),
            payload: &payload,
            fin,
            client_ack: out_of(client_ack),
            heard_all: client_ack == server_nxt,
            heads_known: false,
            doubted: None,
            server: Some(ServerProgress {
                nxt: out_of(server_nxt),
                ack: seq_of(at) - server_behind,
            }),
        };
        let done = self.journal.instream(FlowId(len64(which)), &arrival);
        if self.accepted(which, done) {
            let model = self.models[which].as_mut().expect("accepted");
            self.conflicting.0 += model.arrive(at, &arrival, server_nxt, self.mode);
        }
    }

    fn release(&mut self, which: usize, to: Where) {
        let flow = FlowId(len64(which));
        let Some(model) = &mut self.models[which] else {
            self.journal.release(flow, SeqNumber(77));
            return;
        };
        let to = model.place(to);
        self.journal.release(flow, seq(model.client_isn, to));
        if self.mode == ReplayMode::Request {
            return;
        }
        // Without memory to move the kept bytes, the release changes no byte.
        let Some(Summary {
            state: State::Protected(record),
            ..
        }) = self.journal.summary(flow)
        else {
            panic!("unprotected");
        };
        let was_done = record.start.instream == seq(model.client_isn, to);
        if was_done || self.limits.total == 1 << 30 {
            model.release(to);
        }
    }

    /// Whether the model has to follow. Also checks that a refusal is justified.
    fn accepted<T: Copy>(&mut self, which: usize, done: Result<T, Refused>) -> bool {
        match done {
            Ok(_) => assert!(self.models[which].is_some(), "accepted for no connection"),
            Err(Refused::BecameUnprotected(_)) => {
                assert!(self.limits.total < 1 << 30, "there was no limit to meet");
                assert!(self.models[which].take().is_some(), "told once");
            }
            Err(Refused::Unknown | Refused::Unprotected(_)) => {
                assert!(self.models[which].is_none(), "refused for no reason");
            }
            Err(Refused::Implausible) => panic!("everything is near"),
        }
        done.is_ok()
    }

    fn read(&self, which: usize, from: usize, max: usize) {
        let isn = self.models[which].as_ref().map(|model| model.client_isn);
        let from_seq = seq(isn.unwrap_or(SeqNumber(0)), from);
        let mut into = b"before".to_vec();
        let flow = FlowId(len64(which));
        let read = self.journal.read(flow, from_seq, max, &mut into);
        let Some(model) = &self.models[which] else {
            assert!(matches!(
                read,
                Err(ReadError::Unknown | ReadError::Unprotected(_))
            ));
            return;
        };
        let (start, stable) = (model.instream.start, model.stable());
        if from < start {
            assert_eq!(read, Err(ReadError::Dropped(seq(model.client_isn, start))));
        } else if from > stable {
            let stable = seq(model.client_isn, stable);
            assert_eq!(read, Err(ReadError::NotRecorded(stable)));
        } else {
            let mut expected = model.instream.run(from);
            expected.truncate(max);
            assert_eq!(read, Ok(expected.len()));
            assert!(into.strip_prefix(b"before") == Some(&expected));
        }
    }

    /// Everything that is known of the connection, and the accounts.
    fn check(&self, which: usize) {
        let flow = FlowId(len64(which));
        let parts: Vec<_> = self.journal.outstream_ranges(flow).collect();
        if let Some(model) = &self.models[which] {
            let place = |at| seq(model.client_isn, at);
            let summary = self.journal.summary(flow).expect("known");
            let State::Protected(record) = summary.state else {
                panic!("unprotected");
            };
            assert_eq!(record.stable_seq, place(model.stable()));
            assert_eq!(record.start.instream, place(model.instream.start));
            assert_eq!(record.ahead, model.instream.bytes_beyond_gap());
            let fin = model.fin.map(|at| ClientFin {
                seq: place(at),
                heard: model.fin_heard,
            });
            assert_eq!(record.fin, fin);
            let turn = seq(model.server_isn, model.turn_outstream);
            assert_eq!(record.turn.outstream, turn);
            let runs = model.outstream.runs();
            let runs: Vec<_> = runs
                .iter()
                .map(|(at, run)| (seq(model.server_isn, *at), &**run))
                .collect();
            assert!(parts == runs);
        } else {
            assert!(parts.is_empty());
            assert_eq!(self.journal.stable_seq(flow), None);
        }
        let statistics = self.journal.statistics();
        assert_eq!(statistics.held, len64(self.journal.really_held()));
        assert!(statistics.held + statistics.idle <= self.limits.total);
        let conflicting = (
            statistics.instream.conflicting,
            statistics.outstream.conflicting,
        );
        if self.limits.total == 1 << 30 {
            assert_eq!(conflicting, self.conflicting);
        }
    }
}

fn run(limits: Limits, mode: ReplayMode, script: &[(usize, Step)]) {
    let mut pair = Pair::new(limits, mode);
    for (which, isn) in [u32::MAX - 1, u32::MAX - 3000, 77].into_iter().enumerate() {
        pair.step(which, Step::Open(SeqNumber(isn), SeqNumber(isn - 70)));
    }
    for (which, step) in script {
        pair.step(*which, *step);
    }
    for which in 0..pair.models.len() {
        let end = pair.models[which]
            .as_ref()
            .map_or(1, |model| model.instream.start);
        pair.read(which, end, usize::MAX);
        pair.step(which, Step::Close);
    }
    assert_eq!(pair.journal.statistics().held, 0);
    assert_eq!(pair.journal.statistics().connections, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Without limits the journal and the model agree on every step.
    #[test]
    fn journal_equals_naive_model(
        turn in any::<bool>(),
        script in vec((0usize..3, steps()), 1..80),
    ) {
        let mode = if turn { ReplayMode::Request } else { ReplayMode::Connection };
        let limits = Limits { per_connection: 1 << 30, total: 1 << 30, connections: 3 };
        run(limits, mode, &script);
    }

    /// With limits, the journal agrees on all protected connections, and uses no more memory than allowed.
    #[test]
    fn limits_affect_single_connections(
        turn in any::<bool>(),
        per_connection in 0u64..400_000,
        total in 0u64..600_000,
        script in vec((0usize..3, steps()), 1..80),
    ) {
        let mode = if turn { ReplayMode::Request } else { ReplayMode::Connection };
        run(Limits { per_connection, total, connections: 3 }, mode, &script);
    }
}
