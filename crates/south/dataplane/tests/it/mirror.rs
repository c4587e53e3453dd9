//! `mirror.h`: recorded packets, their length, and the behaviour of a full ring.

use std::cell::RefCell;

use dataplane::{Ring, Settings};
use protocol::mirror::{self, FrameKind};
use south_model::{EventKind, Packet, UnprotectedReason};
use wire::{ChecksumMode, SeqNumber};

use crate::harness::*;

/// Header of a frame, and of an IPv4 packet with TCP timestamps.
const FRAME_HEADER: usize = protocol::mirror::HEADER_LEN;
const HEADERS: usize = 20 + 32;

#[test]
fn a_frame_is_the_packet_in_a_record_of_one_of_few_sizes() {
    let slice = 4096;
    for (len, room) in [
        (HEADERS + 1, 128),
        (128, 128),
        (129, 256),
        (256, 256),
        (257, 512),
        (512, 512),
        (513, 1024),
        (1024, 1024),
        (1025, 2048),
        (2048, 2048),
        (2049, slice),
        (3000, slice),
    ] {
        let mut both = Both::new().open();
        both.frames();
        let packet = client_data(&both, len);
        assert_eq!(both.ingress(packet.clone()).verdict, Next);
        let [frame] = &both.frames()[..] else {
            panic!("one frame")
        };
        assert_eq!((frame.kind, frame.flow_id), (FrameKind::Instream, 1));
        assert_eq!(frame.packet, packet.bytes);
        assert_eq!(frame.room, FRAME_HEADER + room, "{len}");
        assert_eq!(
            (frame.server_nxt, frame.server_ack),
            (both.s + 1, both.c + 1)
        );
    }
}

fn client_data(both: &Both, len: usize) -> Packet {
    let payload: Vec<u8> = (0..len - HEADERS)
        .map(|i| u8::try_from(i % 251).unwrap())
        .collect();
    segment(both.c + 1, both.s + 1)
        .timestamps(12, 900)
        .payload(&payload)
        .packet(both.key.client(), both.key.server())
}

/// Packets as GRO makes them, up to the limit of this kernel's test run: before Linux 6.19 one page
/// with space for the skb, later up to 64 KiB.
#[test]
fn packets_of_several_segments_are_recorded_whole() {
    let both = Both::new();
    let taken = |len: usize| {
        let packet = client_data(&both, len);
        let mut other = Frame::of(&Packet {
            mark: MARK + south_model::MARK_SERVER_SPACE,
            ..packet
        });
        both.kernel.run_frame("ingress", &mut other).is_ok()
    };
    let largest = [65_000, 32_000, 9000, 4500]
        .into_iter()
        .find(|len| taken(*len))
        .unwrap_or(3400);
    println!("largest packet of this kernel's test run, of those tried: {largest}");
    for v6 in [false, true] {
        let mut both = Both::numbered(1000, 5000, v6).open();
        both.frames();
        let packet = client_data(&both, largest);
        assert_eq!(both.ingress(packet.clone()).verdict, Next);
        let [frame] = &both.frames()[..] else {
            panic!("one frame")
        };
        assert_eq!(frame.packet, packet.bytes);
        assert_eq!(packet.checksum, ChecksumMode::Full);
        let slices = packet.bytes.len().div_ceil(4096);
        assert_eq!(frame.room, FRAME_HEADER + slices * 4096);
    }
}

/// `serve` knows the versions, and the programs obey.
#[test]
fn frame_bears_version_of_setting() {
    let place = Pinned::nowhere_else();
    let kernel = Kernel::pinned(&settings(), &place);
    let versions = RefCell::new(Vec::new());
    let ring = Ring::mirror(&place.pins, |record| versions.borrow_mut().push(record[4]));
    let ring = ring.expect("the ring");
    kernel.plane().barrier(1).expect("it runs");
    for version in [mirror::VERSIONS.oldest(), mirror::VERSION + 1] {
        kernel.plane().set_mirror_version(version).expect("it runs");
        kernel.plane().barrier(1).expect("it runs");
    }
    ring.consume().expect("it is read");
    let (oldest, newest) = (mirror::VERSIONS.oldest(), mirror::VERSION);
    assert_eq!(*versions.borrow(), [newest, oldest, newest + 1]);
}

#[cfg(feature = "next-version")]
#[test]
fn field_of_next_version_is_in_frames_of_that_version() {
    let place = Pinned::nowhere_else();
    let kernel = Kernel::pinned(&settings(), &place);
    let fields = RefCell::new(Vec::new());
    let ring = Ring::mirror(&place.pins, |record| {
        let frame = mirror::MirrorFrame::decode(record).expect("a frame");
        fields.borrow_mut().push((frame.flow_id.0, frame.next));
    });
    let ring = ring.expect("the ring");
    for (port, version) in [(0, mirror::VERSION), (1, mirror::VERSION - 1)] {
        kernel.plane().set_mirror_version(version).expect("it runs");
        let key = other_key(false, port);
        let (c, s) = (SeqNumber(1000), SeqNumber(5000));
        let syn = segment(c, SeqNumber(0)).flags(SYN);
        let syn_ack = segment(s, c + 1).flags(SYN_ACK).window(60_000);
        kernel.ingress(&mut syn.packet(key.client(), key.server()));
        kernel.egress(&mut syn_ack.packet(key.server(), key.client()));
        let third = segment(c + 1, s + 1);
        kernel.ingress(&mut third.packet(key.client(), key.server()));
    }
    ring.consume().expect("it is read");
    assert_eq!(*fields.borrow(), [(1, 1), (2, 0)]);
}

/// The version of the model.
#[test]
fn frames_of_each_version_say_the_same() {
    for version in mirror::VERSIONS.oldest()..=mirror::VERSIONS.newest() {
        let mut both = Both::on(Leased::digesting(u32::MAX), &digesting_settings(u32::MAX));
        let plane = both.kernel.plane();
        plane.set_mirror_version(version).expect("it runs");
        (both.c, both.s) = (SeqNumber(1000), SeqNumber(5000));
        let mut both = both.open();
        let (c, s) = (both.c + 1, both.s + 1);
        let mut from = c;
        for len in [1, 76, 77, 460, 1000, 1996, 1997, 3000] {
            let payload = vec![7; len];
            both.client(segment(from, s).timestamps(12, 900).payload(&payload));
            from += u32::try_from(len).unwrap();
        }
        for piece in 0..3 {
            let payload = [8; 3000];
            let answer = segment(s + 3000 * piece, from).timestamps(901, 12);
            both.server(answer.payload(&payload));
        }
        both.client(segment(from, s + 9000).timestamps(13, 901).payload(b"x"));
        let answer = segment(s + 9000, from + 1).timestamps(902, 13);
        both.server(answer.payload(b"y"));
        both.barrier(3);
        both.abandon(both.key);
        let frames = both.frames();
        assert!(
            frames.iter().all(|frame| frame.version == version),
            "{frames:?}"
        );
        let codes: Vec<u8> = frames.iter().map(|frame| frame.kind.code()).collect();
        assert!((1..=6).all(|code| codes.contains(&code)), "{codes:?}");
    }
}

fn small_ring() -> Settings {
    Settings {
        mirror_bytes: 4096,
        verify_head: 10,
        ..settings()
    }
}

#[test]
fn what_finds_no_room_is_not_delivered_until_there_is_some() {
    let mut both = Both::with(&small_ring()).open();
    both.logger_hangs = true;
    let (c, s) = (both.c + 1, both.s + 1);
    let data = |i: u32| segment(c + i, s).timestamps(12, 900).payload(b"x");
    let delivered = (0..100)
        .take_while(|i| both.client(data(*i)).verdict == Next)
        .count();
    let record = FRAME_HEADER + 128 + 8; // with the header of the ring
    assert_eq!(delivered, 4096 / record, "in a ring of a page");
    let sent = u32::try_from(delivered).unwrap();
    assert_eq!(both.counted("mirror_full"), 1);
    // Other packets do not wait: pure ACKs, the server's output (whose head is a gap in the record
    // then).
    assert_eq!(
        both.client(segment(c + sent, s).timestamps(12, 900))
            .verdict,
        Next
    );
    assert_eq!(
        both.server(segment(s, c).timestamps(901, 12).payload(b"answer"))
            .verdict,
        Next
    );
    assert_eq!(both.counted("heads_lost"), 1);
    assert!(!both.barrier(3), "ENOSPC");
    assert_eq!(both.flow().unprotected, None);
    both.resume_logger();
    both.frames();
    assert_eq!(
        both.client(data(sent)).verdict,
        Next,
        "the client sends it again"
    );
    assert_eq!(both.frames().len(), 1);
}

#[test]
fn when_nobody_will_ever_read_the_connection_goes_on_unprotected() {
    let mut both = Both::with(&small_ring()).open();
    both.logger_hangs = true;
    let (c, s) = (both.c + 1, both.s + 1);
    let data = |i: u32| segment(c + i, s).timestamps(12, 900).payload(&[7; 1500]);
    assert_eq!(both.client(data(0)).verdict, Next);
    assert_eq!(both.client(data(1500)).verdict, DROP);
    both.fall_silent();
    assert_eq!(both.client(data(1500)).verdict, Next);
    assert_eq!(both.flow().unprotected, Some(UnprotectedReason::MirrorLost));
    let events = both.events();
    assert!(
        matches!(events[..], [EventKind::Unprotected { .. }]),
        "{events:?}"
    );
    both.resume_logger();
    both.frames();
    both.heartbeat();
    assert_eq!(both.client(data(3000)).verdict, Next);
    both.server(segment(s, c).timestamps(901, 12).payload(b"answer"));
    assert!(both.frames().is_empty(), "nothing more is recorded");
}

/// A connection that is answered, and a ring without room.
fn answered_without_room() -> Both {
    let mut both = Both::with(&small_ring());
    both.logger_hangs = true;
    for token in 0.. {
        if !both.barrier(token) {
            break;
        }
    }
    both.client(both.syn());
    both.server(both.syn_ack());
    both
}

#[test]
fn a_handshake_whose_opening_finds_no_room_is_completed_later() {
    let mut both = answered_without_room();
    let third = segment(both.c + 1, both.s + 1).timestamps(11, 900);
    assert_eq!(both.client(third.clone()).verdict, DROP);
    assert_eq!(both.model.flows().count(), 0);
    assert_eq!(both.counted("mirror_full"), 1);
    both.resume_logger();
    both.frames();
    assert_eq!(both.client(third).verdict, Next);
    assert_eq!(both.flow().unprotected, None);
    let [opened] = &both.frames()[..] else {
        panic!("one frame")
    };
    assert!(matches!(opened.kind, FrameKind::Opened { .. }));
    assert!(both.events().is_empty());
}

#[test]
fn when_nobody_will_ever_read_a_connection_is_opened_unprotected() {
    let mut both = answered_without_room();
    both.fall_silent();
    let third = segment(both.c + 1, both.s + 1).timestamps(11, 900);
    assert_eq!(both.client(third).verdict, Next);
    assert_eq!(both.flow().unprotected, Some(UnprotectedReason::MirrorLost));
    assert!(matches!(both.events()[..], [EventKind::Unprotected { .. }]));
}

#[test]
fn the_head_of_each_turn_is_recorded() {
    for v6 in [false, true] {
        let mut both = Both::with(&small_ring());
        both.key = other_key(v6, 0);
        let mut both = both.open();
        let (c, s) = (both.c + 1, both.s + 1);
        let head = |both: &mut Both| -> Vec<(FrameKind, u32, usize)> {
            let frames = both.frames();
            frames
                .iter()
                .map(|n| (n.kind, n.packet_len, n.packet.len()))
                .collect()
        };
        both.frames();
        let headers = if v6 { 40 + 32 } else { HEADERS };
        let whole = |payload: usize| u32::try_from(headers + payload).unwrap();
        // A server may speak first.
        both.server(segment(s, c).timestamps(901, 11).payload(b"220 hello"));
        assert_eq!(head(&mut both), [(begun(s, c), whole(9), headers + 9)]);
        both.server(segment(s + 9, c).timestamps(901, 11).payload(b"abc"));
        assert_eq!(
            head(&mut both),
            [(begun(s + 9, c), whole(3), headers + 1)],
            "10 in all"
        );
        both.server(segment(s + 12, c).timestamps(901, 11).payload(b"def"));
        assert_eq!(head(&mut both), []);
        // The client has not received all output: no request begins.
        both.client(segment(c, s + 9).timestamps(12, 901).payload(b"x"));
        both.frames();
        both.server(segment(s + 15, c + 1).timestamps(901, 12).payload(b"ghi"));
        assert_eq!(head(&mut both), []);
        both.client(segment(c + 1, s + 18).timestamps(12, 901).payload(b"y"));
        both.frames();
        both.server(segment(s + 18, c + 2).timestamps(901, 12).payload(b"jkl"));
        assert_eq!(
            head(&mut both),
            [(begun(s + 18, c + 2), whole(3), headers + 3)]
        );
        assert_eq!(both.counted("heads"), 3);
    }
}

fn begun(from: SeqNumber, asked: SeqNumber) -> FrameKind {
    FrameKind::Outstream { from, asked }
}

#[test]
fn after_a_splice_the_head_is_recorded_as_the_client_sees_it() {
    let mut both = Both::new().open();
    let (c, s) = (both.c + 1, both.s + 1);
    let s2 = both.s + 70_000;
    both.splice(s2);
    both.client(segment(c, s).timestamps(12, 900).payload(b"more"));
    both.frames();
    let out = both.server(segment(s2 + 1, c + 4).timestamps(80, 12).payload(b"answer"));
    let [frame] = &both.frames()[..] else {
        panic!("one frame")
    };
    assert_eq!(
        (frame.kind, &frame.packet),
        (begun(s, c + 4), &out.packet.bytes)
    );
    assert_eq!(frame.server_nxt, s + 6);
}

#[test]
fn a_head_begins_where_its_turn_does_whatever_a_segment_holds_before_it() {
    let mut both = Both::new().open();
    let (c, s) = (both.c + 1, both.s + 1);
    // An answer that the client has, and the next request; the server dies.
    both.server(segment(s, c).timestamps(901, 11).payload(b"one"));
    both.client(segment(c, s + 3).timestamps(12, 901).payload(b"more"));
    let s2 = both.s + 70_000;
    both.splice(s2);
    both.frames();
    // The new server has both responses in the send queue, and TCP makes one segment of both.
    let out = both.server(segment(s2 + 2, c + 4).timestamps(80, 12).payload(b"netwo"));
    let [frame] = &both.frames()[..] else {
        panic!("one frame")
    };
    let kind = begun(s + 3, c + 4);
    assert_eq!((frame.kind, &frame.packet), (kind, &out.packet.bytes));
    // Repeated output does not use the head up.
    both.server(segment(s2 + 4, c + 4).timestamps(80, 12).payload(b"two"));
    assert_eq!(both.frames(), []);
    both.server(segment(s2 + 7, c + 4).timestamps(80, 12).payload(b"!"));
    let kinds: Vec<_> = both.frames().iter().map(|frame| frame.kind).collect();
    assert_eq!(kinds, [begun(s + 6, c + 4)]);
}
