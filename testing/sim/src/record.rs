//! The logger: reads the ring from time to time, and keeps the record.

use std::collections::VecDeque;

use journal::{Journal, Limits};
pub(crate) use logger::Notice;
use logger::{Ingest, RpcHandler, digest_of, record_summary};
use protocol::{control::Request, mirror};
use rand::rngs::SmallRng;
use recovery::RecordSummary;
use south_model::{Digest, DigestSeed, Flow, MirrorFrame, SouthSide};
use wire::{FlowId, SeqNumber};

use crate::{
    length32,
    link::Remote,
    scenario::{LinkSetup, ServiceSetup},
};

/// Most bytes that all records together may hold.
const TOTAL: u64 = 64 << 20;

/// The logger.
pub(crate) struct Logger {
    /// The record on the server's host, if any.
    local: Ingest,
    /// On another machine.
    pub(crate) remote: Option<Remote>,
    pub(crate) notices: VecDeque<Notice>,
    /// New requests are held back.
    holds_turns: bool,
    /// The barrier to pass when the logger is back.
    draining: Option<u64>,
    /// Time of the next read of the ring, ns.
    pub(crate) reads_at: u64,
    /// Number of reads of an empty ring.
    pub(crate) idle: u32,
}

impl Logger {
    pub(crate) fn new(
        setup: &ServiceSetup,
        link: Option<&LinkSetup>,
        digests: Option<DigestSeed>,
    ) -> Self {
        let limits = Limits {
            per_connection: setup.record_limit,
            total: TOTAL,
            connections: 64,
        };
        Self {
            local: Ingest::new(limits, setup.mode),
            remote: link.map(|link| Remote::new(link, (setup, digests), TOTAL)),
            notices: VecDeque::new(),
            holds_turns: false,
            draining: None,
            reads_at: 0,
            idle: 0,
        }
    }

    /// When a logger on another machine has something to say by itself, ns.
    pub(crate) fn due(&self) -> Option<u64> {
        let due = self.remote.as_ref()?.due()?;
        u64::try_from(due.as_nanos()).ok()
    }

    /// The record.
    pub(crate) fn journal(&self) -> &Journal {
        let remote = self.remote.as_ref().and_then(Remote::journal);
        remote.unwrap_or(&self.local.journal)
    }

    /// Whether no logger answers at present.
    pub(crate) fn is_away(&self) -> bool {
        self.remote.as_ref().is_some_and(Remote::is_away)
    }

    /// A mortal logger dies or returns, if due; a returned logger gets the missed data. Returns whether the logger
    /// returned.
    pub(crate) fn live(&mut self, south: &mut SouthSide, rng: &mut SmallRng, now: u64) -> bool {
        let Some(remote) = &mut self.remote else {
            return false;
        };
        if !remote.live(rng, now) {
            return false;
        }
        self.hold_turns(self.holds_turns);
        if let Some(token) = self.draining.take() {
            self.drain(token, south, now);
        }
        true
    }

    /// A request to the logger on the server's host that has no answer.
    fn ask(&mut self, request: &Request) {
        let answers = RpcHandler::new(1).answer(&mut self.local, request);
        debug_assert!(answers.is_empty(), "{answers:?}");
    }

    /// No turn begins while this holds.
    pub(crate) fn hold_turns(&mut self, hold: bool) {
        self.holds_turns = hold;
        match &mut self.remote {
            Some(remote) => remote.tell(&Request::HoldTurns { hold }),
            None => self.ask(&Request::HoldTurns { hold }),
        }
    }

    /// The record of this connection is of no use any more.
    pub(crate) fn unprotect(&mut self, flow: FlowId) {
        match &mut self.remote {
            Some(remote) => remote.unprotect(flow),
            None => self.ask(&Request::Unprotect { flow }),
        }
    }

    /// Bytes before these places are needed no more.
    pub(crate) fn release(&mut self, places: Vec<(FlowId, SeqNumber)>) {
        match &mut self.remote {
            Some(remote) => remote.tell(&Request::Release { places }),
            None => self.ask(&Request::Release { places }),
        }
    }

    /// Everything up to here is to be recorded, and the token told then.
    pub(crate) fn drain(&mut self, token: u64, south: &mut SouthSide, now: u64) {
        if let Some(remote) = &mut self.remote {
            if remote.is_away() {
                self.draining = Some(token);
                return;
            }
            remote.forward(south);
            self.notices.push_back(Notice::Drained(token));
            return;
        }
        // The ring may be full of unread frames; the loop reads them.
        while south.barrier(token, now).is_err() {
            self.read(south, 16);
        }
    }

    /// Read at most `frames` frames. Answers whether the ring is empty now.
    pub(crate) fn read(&mut self, south: &mut SouthSide, frames: usize) -> bool {
        self.idle += 1;
        if let Some(remote) = &mut self.remote {
            remote.forward(south);
            self.notices.extend(remote.notices());
            return true;
        }
        for _ in 0..frames {
            match south.take_mirror() {
                Some(frame) => {
                    self.idle = 0;
                    self.take(&frame);
                }
                None => return true,
            }
        }
        false
    }

    fn take(&mut self, frame: &MirrorFrame) {
        let flow = frame.flow_id;
        crate::trace::note(frame.timestamp_ns, || {
            format!(
                "the logger takes {:?} of {flow}: {} bytes, told {} {}",
                frame.kind, frame.packet_len, frame.server_nxt, frame.server_ack
            )
        });
        let mut bytes = Vec::new();
        let written = frame.encode(mirror::VERSION, &mut bytes);
        written.expect("a frame of the programs");
        self.local.take(&bytes);
        self.notices.extend(self.local.notices.drain(..));
    }

    /// The summary of a connection's record for the recovery.
    pub(crate) fn record(&self, flow: FlowId) -> Option<RecordSummary> {
        let summary = self.journal().summary(flow)?;
        Some(record_summary(self.journal(), &summary))
    }

    /// The recorded bytes; `None` if some are missing.
    pub(crate) fn bytes(&self, flow: FlowId, from: SeqNumber, length: u32) -> Option<Vec<u8>> {
        let bytes = self.at_most(flow, from, length);
        (length32(bytes.len()) == length).then_some(bytes)
    }

    /// The recorded bytes, as many as there are.
    pub(crate) fn at_most(&self, flow: FlowId, from: SeqNumber, length: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        if length > 0 {
            // Bytes outside the record are missing.
            let _ = self
                .journal()
                .read(flow, from, crate::index(length), &mut bytes);
        }
        bytes
    }

    /// Digests of the output of the server.
    pub(crate) fn digests(&self, flow: FlowId) -> Vec<Digest> {
        self.journal().marks(flow).map(digest_of).collect()
    }

    pub(crate) fn heads(&self, flow: FlowId) -> Vec<(SeqNumber, Vec<u8>)> {
        let ranges = self.journal().outstream_ranges(flow);
        ranges.map(|(from, bytes)| (from, bytes.to_vec())).collect()
    }
}

/// The record of a connection without arrivals.
pub(crate) fn fresh(flow: &Flow) -> RecordSummary {
    RecordSummary::fresh(flow.id, flow.client.isn, flow.server.isn)
}
