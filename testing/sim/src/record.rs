//! The logger: it reads the ring when it gets round to it, and keeps the record.

use std::collections::VecDeque;

use journal::{
    InstreamSegment, Journal, Limits, Mark, OutstreamSegment, Refused, ServerProgress, Unprotected,
};
use logger::record_summary;
use protocol::control::Request;
use rand::rngs::SmallRng;
use recovery::RecordSummary;
use south_model::{Digest, DigestSeed, Flow, MirrorFrame, MirrorKind, SouthSide};
use wire::{Flags, FlowId, IpPacket, Segment, SeqNumber};

use crate::{
    length32,
    link::Remote,
    scenario::{LinkSetup, ServiceSetup},
};

/// Most bytes that all records together may hold.
const TOTAL: u64 = 64 << 20;

/// What it says unasked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    Drained(u64),
    Unprotected(FlowId, types::UnprotectedReason),
    /// Segments come to it of a connection that it does not know: the low half of its number.
    Unknown(u32),
}

/// The logger.
pub(crate) struct Logger {
    /// The record, if it is on the server's host.
    local: Journal,
    /// On another machine.
    pub(crate) remote: Option<Remote>,
    pub(crate) notices: VecDeque<Notice>,
    /// It was told to begin no turns.
    holds_turns: bool,
    /// What it is to drain when it is there again.
    draining: Option<u64>,
    /// When it reads the ring next, ns.
    pub(crate) reads_at: u64,
    /// How often it found nothing.
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
            local: Journal::new(limits, setup.mode),
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
        remote.unwrap_or(&self.local)
    }

    /// Nobody answers at present.
    pub(crate) fn is_away(&self) -> bool {
        self.remote.as_ref().is_some_and(Remote::is_away)
    }

    /// One that is mortal dies or returns, if it is time; then it is told what it has missed. Answers
    /// whether it returns.
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

    /// No turn begins while this holds.
    pub(crate) fn hold_turns(&mut self, hold: bool) {
        self.holds_turns = hold;
        match &mut self.remote {
            Some(remote) => remote.tell(&Request::HoldTurns { hold }),
            None => self.local.hold_turns(hold),
        }
    }

    /// The record of this connection is of no use any more.
    pub(crate) fn unprotect(&mut self, flow: FlowId) {
        match &mut self.remote {
            Some(remote) => remote.unprotect(flow),
            None => {
                self.local.unprotect(flow, Unprotected::Requested);
            }
        }
    }

    /// What comes before these places is needed no more.
    pub(crate) fn release(&mut self, places: Vec<(FlowId, SeqNumber)>) {
        match &mut self.remote {
            Some(remote) => remote.tell(&Request::Release { places }),
            None => {
                for (flow, to) in places {
                    self.local.release(flow, to);
                }
            }
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
        // The ring may be full of what has not been read yet; it is being read.
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
        match frame.kind {
            MirrorKind::Barrier { token } => self.notices.push_back(Notice::Drained(token)),
            MirrorKind::Opened {
                client_isn,
                server_isn,
            } => {
                // The limit of connections is beyond what any run has.
                let _ = self.local.open(flow, client_isn, server_isn);
            }
            MirrorKind::Closed { .. } => {
                self.local.close(flow);
            }
            MirrorKind::Instream | MirrorKind::Outstream { .. } | MirrorKind::Digest => {
                if let Err(Refused::BecameUnprotected(reason)) = self.segment(frame) {
                    self.notices
                        .push_back(Notice::Unprotected(flow, reason.into()));
                }
            }
        }
    }

    fn segment(&mut self, frame: &MirrorFrame) -> Result<(), Refused> {
        if frame.kind == MirrorKind::Digest {
            let bytes = frame.packet[..].try_into().unwrap_or_default();
            let mark = mark_of(Digest::from_bytes(bytes));
            return self
                .local
                .mark(frame.flow_id, mark, (mark.next, None))
                .map(drop);
        }
        let whole = crate::index(frame.packet_len);
        let Ok(packet) = IpPacket::parse_captured(&frame.packet, whole) else {
            return Ok(());
        };
        let Ok(segment) = Segment::of(&packet) else {
            return Ok(());
        };
        if let MirrorKind::Outstream { from, asked } = frame.kind {
            let earlier = from.distance_from(segment.seq()).map_or(0, crate::index);
            let said = OutstreamSegment {
                asked: Some(asked),
                ..OutstreamSegment::in_order(from, &segment.payload()[earlier..])
            };
            return self.local.outstream(frame.flow_id, &said).map(drop);
        }
        let arrival = InstreamSegment {
            seq: segment.seq(),
            payload: segment.payload(),
            fin: segment.flags().contains(Flags::FIN),
            client_ack: segment.ack(),
            heard_all: segment.ack() == frame.server_nxt,
            heads_known: false,
            doubted: None,
            server: Some(ServerProgress {
                nxt: frame.server_nxt,
                ack: frame.server_ack,
            }),
        };
        self.local.instream(frame.flow_id, &arrival).map(|_| ())
    }

    /// The summary of a connection's record for the recovery.
    pub(crate) fn record(&self, flow: FlowId) -> Option<RecordSummary> {
        let summary = self.journal().summary(flow)?;
        Some(record_summary(self.journal(), &summary))
    }

    /// The recorded bytes; `None` if they are not all there.
    pub(crate) fn bytes(&self, flow: FlowId, from: SeqNumber, length: u32) -> Option<Vec<u8>> {
        let bytes = self.at_most(flow, from, length);
        (length32(bytes.len()) == length).then_some(bytes)
    }

    /// The recorded bytes, as many as there are.
    pub(crate) fn at_most(&self, flow: FlowId, from: SeqNumber, length: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        if length > 0 {
            // What is not recorded is not there.
            let _ = self
                .journal()
                .read(flow, from, crate::index(length), &mut bytes);
        }
        bytes
    }

    /// Digests of what the server had said.
    pub(crate) fn digests(&self, flow: FlowId) -> Vec<Digest> {
        let marks = self.journal().marks(flow);
        let digests = marks.map(|mark| {
            let [folded, sum] = mark.digest;
            Digest {
                folded,
                sum,
                base: mark.base,
                next: mark.next,
            }
        });
        digests.collect()
    }

    pub(crate) fn heads(&self, flow: FlowId) -> Vec<(SeqNumber, Vec<u8>)> {
        let ranges = self.journal().outstream_ranges(flow);
        ranges.map(|(from, bytes)| (from, bytes.to_vec())).collect()
    }
}

const fn mark_of(digest: Digest) -> Mark {
    Mark {
        base: digest.base,
        next: digest.next,
        digest: [digest.folded, digest.sum],
    }
}

/// The record of a connection of which nothing has arrived.
pub(crate) fn fresh(flow: &Flow) -> RecordSummary {
    RecordSummary::fresh(flow.id, flow.client.isn, flow.server.isn)
}
