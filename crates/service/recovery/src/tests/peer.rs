//! A connection of the model: the flow in the data plane, the record, and the restarted server's TCP, which receives
//! the replay.

use std::{collections::BTreeSet, time::Duration};

use south_model::{Digest, Flow, Mode};
use wire::{FlowId, SeqNumber};

use super::model::ms;
use crate::{ClientFin, RecordSummary, ReplayPosition, Segment, SplicePoint};

/// First instream and outstream sequence numbers of a model connection, unless a test says else.
pub(super) const CLIENT: SeqNumber = SeqNumber(1_000);
pub(super) const SERVER: SeqNumber = SeqNumber(500_000);

/// How the restarted server's side of a connection behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// The server takes all input.
    Reads,
    /// The server never answers the SYN.
    Deaf,
    /// The server answers the SYN, and then acknowledges no input.
    Stuck,
    /// The server reads this many bytes and closes.
    ClosesAfter(u32),
    /// The server takes all input, but does not repeat the output.
    Mute,
    /// Repeated output differs from this offset on.
    SaysElse(u32),
    /// The server dies as soon as it has read a byte.
    Kills,
}

/// A connection.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub(super) flow: Flow,
    pub(super) record: Option<RecordSummary>,
    /// Places at which the client sent after the client had output, as offsets.
    pub(super) beginnings: Vec<(u32, u32)>,
    /// Digests of the output that the client had at these places.
    pub(super) digests: Vec<Digest>,
    /// The server replays the determinant log, and ends at this position.
    pub(super) replay_position: Option<ReplayPosition>,
    pub(super) manner: Manner,
    /// Receive window of the server's socket, bytes.
    pub(super) window: u32,
    /// Number of fabricated SYNs that are still to be lost.
    pub(super) syns_lost: u32,
    /// Pieces of replay still to be lost.
    pub(super) pieces_lost: u32,
    /// When a SYN arrived in this incarnation.
    pub(super) syn_at: Option<Duration>,
    /// Pieces that arrived in this incarnation, in server order: [from, to), as offsets from the start.
    pub(super) arrived: BTreeSet<(u32, u32)>,
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
        flow.server.synack_seen = true;
        flow.server.sent = u64::from(outstream);
        let record = RecordSummary {
            stable_seq,
            turn_instream: client + instream / 2,
            turn_outstream: server + outstream / 2,
            answers: [server + outstream / 2; 2],
            outstream_end: Some(outstream_end),
            ..RecordSummary::fresh(flow.id, client - 1, server - 1)
        };
        Self {
            flow,
            record: Some(record),
            beginnings: Vec::new(),
            digests: Vec::new(),
            replay_position: None,
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
        record.client_fin = Some(ClientFin {
            seq: record.stable_seq,
            heard: self.flow.server.isn + 1,
        });
        self.flow.server.ack = record.stable_seq + 1;
        self
    }

    pub(super) fn change(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Sets the position of the server at the end of the determinant log.
    pub(super) fn stands(mut self, instream: u32, outstream: u32) -> Self {
        self.replay_position = Some(ReplayPosition {
            instream: self.flow.client.isn + 1 + instream,
            outstream: self.flow.server.isn + 1 + outstream,
            is_closed: false,
            is_certain: false,
        });
        self
    }

    /// A socket at the numbers of the connection, in this incarnation.
    pub(super) fn graft(&mut self, incarnation: u32, point: SplicePoint) {
        self.flow.mode = Mode::Spliced;
        self.flow.incarnation = incarnation;
        self.flow.splice = south_model::SpliceHalf {
            instream: point.instream,
            outstream: point.outstream,
            isn: point.outstream - 1,
            nxt: point.outstream,
            ack: point.instream + 1,
            rcv_wnd_edge: point.instream + 1 + self.window,
            ..south_model::SpliceHalf::default()
        };
        self.flow.verify = south_model::VerifyHalf {
            end: point.verify_end,
            ..south_model::VerifyHalf::default()
        };
        self.arrived.clear();
    }

    fn start(&self) -> SeqNumber {
        self.flow.splice.instream + 1
    }

    /// Number of sequence numbers to be replayed from the splice on, FIN included.
    pub(super) fn owed(&self) -> u32 {
        let record = self.record.expect("a spliced connection has a record");
        let end = record.stable_seq + u32::from(record.client_fin.is_some());
        end.distance_from(self.start())
            .expect("a record that ends after it began")
    }

    /// Number of sequence numbers that arrived without a gap.
    pub(super) fn received(&self) -> u32 {
        self.arrived.iter().fold(
            0,
            |end, &(from, to)| if from <= end { end.max(to) } else { end },
        )
    }

    pub(super) fn take(&mut self, segment: Segment) {
        let from = segment
            .from
            .distance_from(self.start())
            .expect("a piece before the start");
        let to = from + segment.len + u32::from(segment.fin);
        if to == from {
            return; // the segment only carries the client's window
        }
        assert!(to <= self.owed(), "{segment:?} is beyond the record");
        let edge = self
            .flow
            .splice
            .rcv_wnd_edge
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
    pub(super) fn live(&mut self, now: Duration) {
        if self.flow.mode == Mode::Splicing {
            let answered = self.syn_at.is_some_and(|at| now >= at + ms(1));
            if answered && self.manner != Manner::Deaf {
                self.flow.mode = Mode::Spliced;
                self.flow.splice.ack = self.start();
                self.flow.splice.rcv_wnd_edge = self.start() + self.window;
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
        self.flow.splice.rcv_wnd_edge = self.flow.splice.ack + self.window;
        if self.manner == Manner::Mute {
            return;
        }
        if received < self.owed() {
            let heard = self.beginnings.iter().filter(|(at, _)| *at <= received);
            let said = heard.map(|(_, heard)| *heard).max().unwrap_or(0);
            return self.say(said);
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
        self.say(said);
        self.flow.verify.compared = said;
    }

    /// The server has sent `said` bytes of the outstream.
    fn say(&mut self, said: u32) {
        self.flow.splice.nxt = self.flow.splice.isn + 1 + said;
        let (first, digest) = (self.flow.server.isn + 1, &mut self.flow.digest);
        let reached = digest
            .wanted
            .take_if(|wanted| (first + said).at_or_after(wanted.next));
        if let (Some(wanted), Manner::SaysElse(offset)) = (reached, self.manner)
            && wanted.next.after(first + offset)
        {
            self.flow.mode = Mode::Diverged;
            self.flow.verify.by_digest = true;
            self.flow.verify.diverged_at = wanted.next;
        }
    }
}
