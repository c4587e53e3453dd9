//! The heads of answers, which the logger has before the client.

use super::*;
use wire::TcpOption;

/// Bytes of a response in a datagram, without the headers of both, timestamps, and the end of the
/// server's reads.
const ROOM_V4: usize = MTU as usize - 28 - 20 - 32 - 4;
const ROOM_V6: usize = MTU as usize - 48 - 40 - 32 - 4;

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("short")
}

impl Linked {
    /// The server sends `payload` at `at`, relative to the server's ISN, and the logger gets these
    /// heads.
    fn answers(&mut self, at: u32, payload: &[u8]) -> Vec<(u32, u32, Vec<u8>, u32)> {
        let acked = self.both.flow().log.ack;
        let said = segment(self.both.s + at, acked)
            .timestamps(910 + at, 20)
            .payload(payload);
        assert_eq!(self.both.server(said).verdict, Next);
        self.heads()
    }

    /// Sequence number, end of the previous head, bytes, and length of the whole head.
    fn heads(&mut self) -> Vec<(u32, u32, Vec<u8>, u32)> {
        let key = self.both.key;
        let from = |seq: SeqNumber, isn: SeqNumber| seq.0.wrapping_sub(isn.0);
        let copies = self.both.copies();
        let payloads = copies.iter().map(|copy| self.payload(copy));
        let heads = payloads.filter_map(|payload| {
            let view = SegmentView::parse(&payload).expect("the logger understands it");
            assert!(view.verify(&keys(UP), FlowId(1)) && view.is_undamaged(&key));
            let segment = view.segment();
            let timed = segment
                .options()
                .any(|option| matches!(option, Ok(TcpOption::Timestamps { .. })));
            assert!(timed, "the options are where they were");
            (view.flags().kind == SegmentKind::Head).then(|| {
                let (seq, known, more) = view.head();
                let [at, after] = [seq, view.after()].map(|seq| from(seq, self.both.s));
                let whole = length(known.len()) + more;
                (at, after, known.to_vec(), whole)
            })
        });
        heads.collect()
    }

    fn asks(&mut self, at: u32, heard: u32, payload: &[u8]) {
        let request = segment(self.both.c + at, self.both.s + heard)
            .timestamps(20 + at, 901)
            .payload(payload);
        assert_eq!(self.both.client(request).verdict, Next);
        assert_eq!(self.heads(), []);
    }
}

#[test]
fn the_head_of_each_answer_goes_to_the_logger_and_says_what_was_before_it() {
    for (v6, link_v6) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut linked = Linked::over(AckStrategy::Eager, v6, link_v6).open();
        linked.asks(1, 1, b"question");
        assert_eq!(linked.answers(1, b"ans"), [(1, 1, b"ans".to_vec(), 3)]);
        assert_eq!(linked.answers(4, b"wer"), [(4, 4, b"wer".to_vec(), 3)]);
        assert_eq!(linked.answers(1, b"answer"), [], "sent again");
        linked.asks(9, 7, b"another");
        assert_eq!(linked.answers(7, b"x"), [(7, 7, b"x".to_vec(), 1)]);
        assert_eq!(linked.both.counted("link_heads"), 3);
        let ring = linked.both.frames();
        assert_eq!(ring.len(), 3, "they are in the ring, too");
    }
}

/// The fence has withheld the first segment, and lets the second segment pass: a timer retransmits
/// the first.
#[test]
fn head_that_comes_behind_the_rest_of_its_answer_is_recorded() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.asks(1, 1, b"question");
    assert_eq!(linked.answers(4, b"wer"), []);
    assert_eq!(linked.answers(1, b"ans"), [(1, 1, b"ans".to_vec(), 3)]);
    assert_eq!(linked.answers(4, b"wer"), [(4, 4, b"wer".to_vec(), 3)]);
    // No retransmission is that late.
    linked.asks(9, 7, b"another");
    assert_eq!(linked.answers(7 + (1 << 30) + 1, b"far"), []);
    assert_eq!(linked.answers(7, b"near"), []);
}

#[test]
fn a_long_head_is_cut_to_what_the_link_carries() {
    for (v6, room) in [(false, ROOM_V4), (true, ROOM_V6)] {
        let mut linked = Linked::over(AckStrategy::Eager, v6, v6).open();
        linked.asks(1, 1, b"question");
        let long: Vec<u8> = (0..3000u32).map(|n| n.to_le_bytes()[0]).collect();
        assert_eq!(
            linked.answers(1, &long),
            [(1, 1, long[..room].to_vec(), 3000)]
        );
        // The rest of the 4096 bytes, in the middle of a segment.
        let rest = linked.answers(3001, &long);
        assert_eq!(rest, [(3001, 3001, long[..1096].to_vec(), 1096)]);
        assert_eq!(linked.answers(6001, b"no head"), []);
    }
}

/// A new server has both responses in the send queue, and TCP makes one segment of both.
#[test]
fn a_head_goes_to_the_logger_whatever_a_segment_holds_before_it() {
    for (v6, room) in [(false, ROOM_V4), (true, ROOM_V6)] {
        let mut linked = Linked::over(AckStrategy::Eager, v6, v6).open();
        linked.asks(1, 1, b"question");
        assert_eq!(linked.answers(1, b"answer").len(), 1);
        linked.asks(9, 7, b"another");
        assert_eq!(linked.answers(4, b"werx"), [(7, 7, b"x".to_vec(), 1)]);
        assert_eq!(linked.answers(8, b"y"), [(8, 8, b"y".to_vec(), 1)]);
        assert_eq!(linked.both.frames().len(), 3);

        // As many bytes as a datagram holds. The rest comes by the ring.
        let begins = 9;
        for (skip, fits) in [(room - 2, 2), (room - 1, 1), (room, 0), (room + 1, 0)] {
            let mut linked = Linked::over(AckStrategy::Eager, v6, v6).open();
            linked.asks(1, 1, b"question");
            let long = vec![b'l'; skip];
            assert_eq!(linked.answers(1, &long).len(), 1);
            let heard = 1 + length(skip);
            linked.asks(begins, heard, b"another");
            linked.both.frames();
            let both = [&long[..], b"abc"].concat();
            let expected =
                (fits > 0).then(|| (heard, heard, b"abc"[..fits].to_vec(), length(fits)));
            assert_eq!(linked.answers(1, &both), Vec::from_iter(expected), "{skip}");
            assert_eq!(linked.both.frames().len(), 1);
        }
    }
}

#[test]
fn without_a_logger_no_head_is_sent() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.asks(1, 1, b"question");
    linked.both.link_up(false);
    assert_eq!(linked.answers(1, b"answer"), []);
    assert_eq!(linked.both.counted("link_heads"), 0);
}

/// A retransmitted segment of a client may have been answered before: the segment carries the end
/// of the newest head, so that the logger knows whether that head has arrived.
#[test]
fn a_segment_tells_where_the_heads_ended_when_it_came() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    let says = |linked: &mut Linked, at: u32, heard: u32, text: &[u8]| {
        let segment = segment(linked.both.c + at, linked.both.s + heard)
            .timestamps(20 + at, 901)
            .payload(text);
        assert_eq!(linked.both.client(segment).verdict, Next);
        let copies = linked.both.copies();
        let payload = linked.payload(copies.last().expect("it is recorded"));
        let view = SegmentView::parse(&payload).expect("a segment");
        assert!(view.is_undamaged(&linked.both.key));
        (view.flags().kind, view.heads())
    };
    let ends = |linked: &Linked, at: u32| heads_digest(linked.both.s + at);
    let first = says(&mut linked, 1, 1, b"question");
    assert_eq!(first, (SegmentKind::Turn, ends(&linked, 1)));
    linked.server_acks(9);
    let again = says(&mut linked, 1, 1, b"question");
    assert_eq!(
        again,
        (SegmentKind::HeardAll, ends(&linked, 1)),
        "no answer yet"
    );
    assert_eq!(linked.answers(1, &[b'x'; 3000]).len(), 1);
    assert_eq!(linked.answers(3001, &[b'x'; 3000]).len(), 1);
    let again = says(&mut linked, 1, 6001, b"question");
    assert_eq!(again, (SegmentKind::HeardAll, ends(&linked, 4097)));
    linked.answers(6001, b"and");
    let meanwhile = says(&mut linked, 9, 6001, b"another");
    assert_eq!(meanwhile, (SegmentKind::Plain, ends(&linked, 6004)));
}
