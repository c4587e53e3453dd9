//! A client that asks, and a server that reads with stable determinants.

use super::*;

pub(super) const REQUEST: &[u8] = b"get it";
pub(super) const ANSWER: &[u8] = b"here it is";

/// As long as a request may be that is left out.
pub(super) const LONGEST: usize = 1400;
/// Distance between mirrored segments, bytes of the instream and of the outstream.
pub(super) const INSTREAM: u32 = 32 * 1024;
pub(super) const OUTSTREAM: u32 = 64 * 1024;

/// A mirrored segment: the beginning, the kind, and the read cursor, relative to the client's ISN.
pub(super) type Copied = (u32, SegmentKind, Option<u32>);

pub(super) fn noted(at: u32, up_to: u32) -> Copied {
    (at, SegmentKind::Noted, Some(up_to))
}

/// A client that sends requests, and a server that reads before each response.
pub(super) struct Exchange {
    pub(super) linked: Linked,
    /// Next numbers of client and server, relative to both ISNs.
    pub(super) client: u32,
    pub(super) server: u32,
    /// The present server's own ISN.
    pub(super) theirs: SeqNumber,
}

impl Exchange {
    /// Before the first read.
    pub(super) fn open(linked: Linked) -> Self {
        let linked = linked.open();
        Self {
            client: 1,
            server: 1,
            theirs: linked.both.s,
            linked,
        }
    }

    /// All requests are read and answered.
    pub(super) fn settled() -> Self {
        Self::settled_on(Linked::new(AckStrategy::Eager))
    }

    pub(super) fn settled_on(linked: Linked) -> Self {
        let mut exchange = Self::open(linked);
        exchange.settle();
        exchange
    }

    pub(super) fn settle(&mut self) {
        self.read_all();
        let at = self.client;
        assert_eq!(self.round(REQUEST), self.client);
        assert_eq!(
            self.copies(),
            [noted(at, at)],
            "nothing was answered before"
        );
    }

    pub(super) fn c(&self) -> SeqNumber {
        self.linked.both.c
    }

    /// The client's next request.
    pub(super) fn request(&self, payload: &[u8]) -> Spec {
        segment(self.c() + self.client, self.linked.both.s + self.server)
            .timestamps(20 + self.client, 901)
            .payload(payload)
    }

    pub(super) fn asks(&mut self, payload: &[u8]) -> Verdict {
        let out = self.linked.both.client(self.request(payload));
        self.client += length(payload);
        out.verdict
    }

    /// The server has read all input, and the determinants of the reads are stable.
    pub(super) fn read_all(&mut self) {
        self.read_up_to(self.client);
    }

    pub(super) fn read_up_to(&mut self, at: u32) {
        let (key, c) = (self.linked.both.key, self.c());
        self.linked.both.advance_cursor(key, c, c + at);
    }

    /// Output of the server, a pure ACK without payload. Returns the client's segment.
    pub(super) fn says(&mut self, payload: &[u8]) -> Out {
        let said = segment(self.theirs + self.server, self.c() + self.client)
            .timestamps(910, 21)
            .payload(payload);
        self.server += length(payload);
        self.linked.both.server(said)
    }

    /// Sends a response. Returns the acknowledgement to the client, relative to the client's ISN.
    pub(super) fn answers(&mut self) -> u32 {
        let out = self.says(ANSWER);
        assert_eq!(out.verdict, Next);
        told(&out).0
    }

    pub(super) fn round(&mut self, payload: &[u8]) -> u32 {
        assert_eq!(self.asks(payload), Next);
        self.read_all();
        self.answers()
    }

    /// The client's mirrored segments since the last call.
    pub(super) fn copies(&mut self) -> Vec<Copied> {
        let (key, c) = (self.linked.both.key, self.c());
        let flow = self.linked.both.flow().id;
        let from = |seq: SeqNumber| seq.0.wrapping_sub(c.0);
        let copies = self.linked.both.copies();
        let payloads = copies.iter().map(|copy| self.linked.payload(copy));
        let seen = payloads.filter_map(|payload| {
            let view = SegmentView::parse(&payload).expect("the logger understands it");
            assert!(view.verify(&keys(UP), flow) && view.is_undamaged(&key));
            let (at, kind) = (from(view.base_seq()), view.flags().kind);
            let noted = view.noted().map(from);
            if let Some(noted) = noted {
                assert_eq!(u32::from(view.segment().window()), at - noted);
            }
            (kind != SegmentKind::Head).then_some((at, kind, noted))
        });
        seen.collect()
    }

    /// Number of segments that were not mirrored so far.
    pub(super) fn left(&self) -> u64 {
        let left = self.linked.both.counted("mirror_skipped");
        assert_eq!(left, self.linked.both.model.counters().mirror_skipped);
        left
    }

    /// The logger's stable position, relative to the client's ISN.
    pub(super) fn stable(&self) -> u32 {
        let stable = self.linked.both.flow().log.stable;
        stable.0.wrapping_sub(self.c().0)
    }

    pub(super) fn assert_next_is_left_out(&mut self) {
        let left = self.left();
        assert_eq!(self.asks(REQUEST), Next);
        assert_eq!(self.copies(), []);
        assert_eq!(self.left(), left + 1);
    }

    /// The present server's socket was grafted at the client's numbers, and the server has read all
    /// input.
    pub(super) fn graft(&mut self) {
        let both = &mut self.linked.both;
        let outstream = both.s + self.server;
        let point = SplicePoint {
            instream: both.c + self.client - 1,
            outstream,
            verify_end: outstream,
        };
        assert!(both.graft_at(both.key, point, 30_000));
    }
}
