//! Digests of outstreams: sent to the logger, and inherited from another host.

use protocol::mirror::FrameKind;
use south_model::{Digest, Mode, restored_flow};
use wire::FlowKey;

use super::{restored::record, *};

/// Bytes that differ from neighbouring bytes.
fn noise(length: usize) -> Vec<u8> {
    let byte = |i: u32| i.wrapping_mul(2_654_435_761).to_be_bytes()[0];
    (0..u32::try_from(length).expect("short"))
        .map(byte)
        .collect()
}

impl Linked {
    fn digesting(v6: bool, link_v6: bool) -> Self {
        Self::on(
            Both::linked_and_digesting(),
            AckStrategy::Eager,
            v6,
            link_v6,
        )
    }

    /// The server sends `said` at `at`, relative to the server's ISN.
    fn tells(&mut self, at: u32, said: &[u8]) {
        for (n, piece) in said.chunks(1000).enumerate() {
            let from = at + 1000 * u32::try_from(n).expect("few");
            let asked = self.both.flow().log.ack;
            let spec = segment(self.both.s + from, asked).timestamps(910, 20);
            assert_eq!(self.both.server(spec.payload(piece)).verdict, Next);
        }
    }

    /// The client has received `heard` bytes, and sends `payload`.
    fn hears(&mut self, at: u32, heard: u32, payload: &[u8]) -> Vec<(SegmentKind, Option<Digest>)> {
        let spec = segment(self.both.c + at, self.both.s + heard).timestamps(30, 910);
        assert_eq!(self.both.client(spec.payload(payload)).verdict, Next);
        self.said()
    }

    fn said(&mut self) -> Vec<(SegmentKind, Option<Digest>)> {
        let key = self.both.key;
        let copies = self.both.copies();
        let views = copies.iter().map(|copy| {
            let payload = self.payload(copy);
            let view = SegmentView::parse(&payload).expect("the logger understands it");
            assert!(view.verify(&keys(UP), FlowId(1)) && view.is_undamaged(&key));
            (view.flags().kind, view.said())
        });
        views.collect()
    }
}

#[test]
fn the_logger_is_told_when_a_client_has_heard_more_than_heads_are_recorded_of() {
    for (v6, link_v6) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut linked = Linked::digesting(v6, link_v6).open();
        linked.hears(1, 1, b"question");
        linked.tells(1, &noise(6000));
        linked.said();
        let digest = linked.both.flow().digest.now;
        assert_eq!(digest.next, linked.both.s + 6001);
        assert_eq!(linked.hears(9, 5001, b""), [], "not all");
        let told = (SegmentKind::Said, Some(digest));
        assert_eq!(linked.hears(9, 6001, b""), [told]);
        assert_eq!(linked.hears(9, 6001, b""), [], "it is told");
        // Heads are recorded of all that is said to this.
        let request = linked.hears(9, 6001, b"more");
        assert_eq!(request.len(), 1);
        linked.tells(6001, &noise(4096));
        linked.said();
        assert_eq!(linked.hears(13, 10_097, b""), []);
    }
}

/// A replay of this turn alone compares from there on.
#[test]
fn digest_of_a_long_answer_comes_with_the_one_of_its_beginning() {
    let mut linked = Linked::digesting(false, false).open();
    linked.hears(1, 1, b"question");
    linked.tells(1, &noise(500));
    linked.said();
    let before = linked.both.flow().digest.now;
    linked.hears(9, 501, b"more");
    linked.both.frames();
    linked.tells(501, &noise(150_000));
    let frames = linked.both.frames();
    let told = frames
        .iter()
        .filter(|frame| frame.kind == FrameKind::Digest);
    let told = told.map(|frame| Digest::from_bytes(frame.packet[..].try_into().expect("a digest")));
    let told: Vec<Digest> = told.collect();
    assert_eq!(told[0], before);
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told.iter().all(|digest| digest.base == before.base));
}

/// The next host has no request without that.
#[test]
fn the_logger_is_told_before_it_has_what_the_client_says_then() {
    let mut linked = Linked::digesting(false, false).open();
    linked.hears(1, 1, b"question");
    linked.tells(1, &noise(6000));
    linked.said();
    let digest = linked.both.flow().digest.now;
    let said = linked.hears(9, 6001, b"more");
    assert_eq!(said[0], (SegmentKind::Said, Some(digest)));
    assert_eq!((said[1].1, said.len()), (None, 2));
}

#[test]
fn a_logger_that_takes_no_digests_is_told_none() {
    let mut linked = Linked::digesting(false, false).open();
    let link = LinkSettings {
        digests: false,
        ..linked.link
    };
    linked.both.set_link(link);
    linked.hears(1, 1, b"question");
    linked.tells(1, &noise(6000));
    linked.said();
    assert_eq!(linked.hears(9, 6001, b""), []);
}

/// Output of another host is compared, before output leaves that the client lacks.
#[test]
fn what_another_host_has_said_is_compared() {
    for spoilt in [None, Some(5), Some(5999)] {
        let mut before = Linked::digesting(false, false).open();
        before.hears(1, 1, &[b'q'; 100]);
        before.tells(1, &noise(6000));
        let said = before.both.flow().digest.now;
        let (c, s) = (before.both.c, before.both.s);
        drop(before);

        let mut linked = Linked::digesting(false, false);
        let key: FlowKey = linked.both.key;
        let (mut recorded, mut summary) = record(key, (c, s), FlowId(1));
        recorded.acknowledged = 6000;
        summary.outstream_end = Some(s + 6001);
        linked
            .both
            .restore(key, &restored_flow(&recorded, &summary, 4096));
        let call = segment(c + 101, s + 6001).timestamps(33, 977);
        assert_eq!(linked.both.client(call).verdict, DROP);
        let nothing = Digest {
            base: s + 1,
            next: s + 1,
            ..Digest::default()
        };
        assert!(linked.both.inherit_digest(key, said, nothing));
        assert_eq!(linked.both.flow().digest.sent, said);
        // The digest is known by now.
        assert!(linked.both.inherit_digest(key, nothing, nothing));
        assert_eq!(linked.both.flow().digest.sent, said);

        linked.both.new_incarnation();
        let point = dataplane::SplicePoint {
            instream: c,
            outstream: s + 1,
            verify_end: s + 1,
        };
        assert!(linked.both.splice_at(key, point));
        let theirs = SeqNumber(77_000);
        let synack = segment(theirs, c + 1)
            .flags(SYN_ACK)
            .window(50_000)
            .options(&syn_options(70, 33, LATER_SCALE));
        assert_eq!(linked.both.server(synack).verdict, Verdict::RedirectIngress);
        let mut again = noise(6001);
        if let Some(at) = spoilt {
            again[at] ^= 1;
        }
        for (n, piece) in again.chunks(1000).enumerate() {
            let at = theirs + 1 + 1000 * u32::try_from(n).expect("few");
            let spec = segment(at, c + 101).timestamps(71, 33).payload(piece);
            let out = linked.both.server(spec);
            let is_new = piece.len() == 1;
            let leaves = is_new && spoilt.is_none();
            assert_eq!(out.verdict == Next, leaves, "{spoilt:?}, piece {n}");
        }
        let is_found = linked.both.flow().mode == Mode::Diverged;
        assert_eq!(is_found, spoilt.is_some());
        assert_eq!(linked.both.flow().verify.by_digest, spoilt.is_some());
    }
}

/// The dead host had read unrecorded input, and the digest of the client's outstream shows how far.
/// The replay has no doubt, because the replay knows which input waits for the comparison; input
/// from the client waits.
#[test]
fn what_a_digest_is_of_comes_not_too_soon_in_a_replay() {
    for (heard, given) in [(6001, Next), (6002, DROP)] {
        let mut linked = Linked::digesting(false, false);
        let (key, c, s) = (linked.both.key, linked.both.c, linked.both.s);
        let (recorded, mut summary) = record(key, (c, s), FlowId(1));
        summary.outstream_end = Some(s + 4097);
        let flow = restored_flow(&recorded, &summary, 4096);
        linked.both.restore(key, &flow);
        let asks = segment(c + 101, s + heard).timestamps(33, 977);
        linked.both.client(asks.clone());
        let from = |next| Digest {
            base: s + 1,
            next,
            ..Digest::default()
        };
        let (said, nothing) = (from(s + 6001), from(s + 1));
        assert!(linked.both.inherit_digest(key, said, nothing));
        linked.both.new_incarnation();
        let point = dataplane::SplicePoint {
            instream: c,
            outstream: s + 1,
            verify_end: s + 1,
        };
        assert!(linked.both.splice_at(key, point));
        let synack = segment(SeqNumber(77_000), c + 1)
            .flags(SYN_ACK)
            .window(50_000)
            .options(&syn_options(70, 33, LATER_SCALE));
        linked.both.server(synack);
        let asks = asks.payload(b"what next?");
        assert_eq!(linked.both.client(asks.clone()).verdict, DROP);
        let replayed = asks.mark(MARK + south_model::MARK_CLIENT_SPACE);
        assert_eq!(linked.both.client(replayed).verdict, given, "{heard}");
    }
}
