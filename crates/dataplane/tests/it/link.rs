//! The log link: what goes to the logger, and what its word does.

use protocol::link::{
    Ack, KeySet, KeySlot, LinkKey, LinkKeys, Open, Probe, ProbeKind, SegmentView,
};
use ssw::{AckStrategy, LinkSettings, Packet, Unprotected};
use wire::{ChecksumMode, Flags, FlowId, IpPacket, Segment, SeqNumber, checksum};

use crate::harness::*;

const UP: LinkKey = LinkKey([7; 16]);
const DOWN: LinkKey = LinkKey([9; 16]);
const MTU: u16 = 1500;

fn link(strategy: AckStrategy, v6: bool) -> LinkSettings {
    let end = |text: &str| text.parse().unwrap();
    LinkSettings {
        local: end(if v6 {
            "[fd00::20]:9000"
        } else {
            "10.0.0.20:9000"
        }),
        remote: end(if v6 {
            "[fd00::99]:7600"
        } else {
            "10.0.0.99:7600"
        }),
        keys: LinkKeys {
            slot: KeySlot::One,
            up: UP,
            down: DOWN,
        },
        mtu: MTU,
        strategy,
    }
}

fn keys(key: LinkKey) -> KeySet {
    let mut keys = KeySet::EMPTY;
    keys.put(KeySlot::One, key);
    keys
}

/// A UDP packet, as the two ends of the link send them.
fn datagram(link: &LinkSettings, to_logger: bool, payload: &[u8]) -> Packet {
    let (from, to) = if to_logger {
        (link.local, link.remote)
    } else {
        (link.remote, link.local)
    };
    let mut udp = Vec::new();
    let len = u16::try_from(payload.len() + 8).unwrap();
    for field in [from.port(), to.port(), len, 0] {
        udp.extend(field.to_be_bytes());
    }
    udp.extend(payload);
    let bytes = match (from.ip(), to.ip()) {
        (std::net::IpAddr::V4(from), std::net::IpAddr::V4(to)) => {
            let total = (len + 20).to_be_bytes();
            let mut header = vec![0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 17, 0, 0];
            header.extend(from.octets());
            header.extend(to.octets());
            let sum = !checksum::fold(checksum::sum(&header));
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            header
        }
        (std::net::IpAddr::V6(from), std::net::IpAddr::V6(to)) => {
            let len = len.to_be_bytes();
            let mut header = vec![0x60, 0, 0, 0, len[0], len[1], 17, 64];
            header.extend(from.octets());
            header.extend(to.octets());
            header
        }
        _ => unreachable!("one family"),
    };
    Packet {
        bytes: [bytes, udp].concat(),
        mark: 0,
        ifindex: IFINDEX,
        checksum: ChecksumMode::Full,
    }
}

/// A service with a log link, whose logger the test plays.
struct Linked {
    both: Both,
    link: LinkSettings,
    counter: u64,
}

impl Linked {
    fn new(strategy: AckStrategy) -> Self {
        Self::over(strategy, false, false)
    }

    /// The connection's, and the link's IP version.
    fn over(strategy: AckStrategy, v6: bool, link_v6: bool) -> Self {
        let mut settings = settings();
        settings.link = true;
        let mut both = Both::with(&settings);
        both.key = other_key(v6, 0);
        both.c = CLIENT_ISN;
        let link = link(strategy, link_v6);
        both.set_link(link);
        both.link_up(true);
        let mut linked = Self {
            both,
            link,
            counter: 0,
        };
        linked.probe();
        linked
    }

    /// `serve` sends one, and the programs see the way.
    fn probe(&mut self) {
        let probe = Probe {
            kind: ProbeKind::Probe,
            slot: KeySlot::One,
            counter: 1,
        };
        let probe = datagram(&self.link, true, &probe.encode(&UP));
        let out = self.both.egress(probe.clone());
        assert_eq!((out.verdict, out.packet), (Verdict::Next, probe));
    }

    /// The logger's word.
    fn word(&mut self, stable: u32, ranges: &[(u32, u32)]) -> Ack {
        self.counter += 1;
        let mut all = [None; 3];
        for (place, (start, end)) in all.iter_mut().zip(ranges) {
            *place = Some((self.both.c + *start, self.both.c + *end));
        }
        Ack {
            slot: KeySlot::One,
            counter: self.counter,
            flow: FlowId(1),
            key: self.both.key,
            stable_seq: self.both.c + stable,
            ranges: all,
        }
    }

    /// It has all before `stable`, and these ranges; relative to the client's ISN.
    fn logged(&mut self, stable: u32, ranges: &[(u32, u32)]) -> Out {
        let word = self.word(stable, ranges);
        self.hear(&word)
    }

    fn hear(&mut self, word: &Ack) -> Out {
        self.both
            .ingress(datagram(&self.link, false, &word.encode(&DOWN)))
    }

    /// The handshake, with the detour.
    fn open(mut self) -> Self {
        assert_eq!(self.both.client(self.both.syn()).verdict, Verdict::Next);
        let (open, _) = self.answer();
        assert_eq!(open.flow, FlowId(1));
        let out = self.logged(1, &[]);
        assert_eq!(out.verdict, Verdict::Redirect);
        let third = segment(self.both.c + 1, self.both.s + 1).timestamps(11, 900);
        assert_eq!(self.both.client(third).verdict, Verdict::Next);
        assert_eq!(self.both.flow().id, FlowId(1));
        assert!(self.both.notes().is_empty(), "the ring holds no handshakes");
        self
    }

    /// The server's SYN-ACK: what the logger gets instead of the client.
    fn answer(&mut self) -> (Open, Vec<u8>) {
        let packet = self
            .both
            .syn_ack()
            .packet(self.both.key.server(), self.both.key.client());
        let out = self.both.egress(packet);
        assert_eq!(out.verdict, Verdict::Redirect);
        let payload = self.payload(&out.packet);
        let open = Open::decode(&payload, &keys(UP)).expect("the logger understands it");
        (open, payload[protocol::link::OPEN_LEN..].to_vec())
    }

    /// Of a packet to the logger.
    fn payload(&self, packet: &Packet) -> Vec<u8> {
        let v6 = self.link.remote.is_ipv6();
        let (headers, payload) = packet.bytes.split_at(if v6 { 48 } else { 28 });
        let whole = datagram(&self.link, true, payload);
        let mut wanted = whole.bytes[..headers.len()].to_vec();
        if !v6 {
            wanted[6] = 0x40; // the kernel's are not to be fragmented
            wanted[10..12].fill(0);
            let sum = !checksum::fold(checksum::sum(&wanted[..20]));
            wanted[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        assert_eq!(headers, wanted);
        payload.to_vec()
    }

    /// The client says this, at the place relative to its ISN.
    fn says(&mut self, at: u32, payload: &[u8]) -> Verdict {
        let segment = segment(self.both.c + at, self.both.s + 1)
            .timestamps(20 + at, 901)
            .payload(payload);
        self.both.client(segment).verdict
    }

    /// The server's pure ACK, relative to the client's ISN.
    fn server_acks(&mut self, ack: u32) -> Out {
        let segment = segment(self.both.s + 1, self.both.c + ack).timestamps(902, 20);
        self.both.server(segment)
    }
}

/// The client's initial sequence number in these tests: in the upper half of the sequence space, and
/// most of them come round to 0.
const CLIENT_ISN: SeqNumber = SeqNumber(u32::MAX - 150);

/// What the client reads: acknowledgement, window and SACK blocks, relative to its ISN.
fn told(out: &Out) -> (u32, u32, Vec<(u32, u32)>) {
    let segment = out.segment();
    let from = |seq: SeqNumber| seq.0.wrapping_sub(CLIENT_ISN.0);
    let blocks = segment.options().find_map(|option| match option {
        Ok(wire::TcpOption::Sack(blocks)) => Some(blocks),
        _ => None,
    });
    let blocks = blocks.iter().flat_map(|blocks| blocks.as_slice());
    let window = u32::from(segment.window()) << SERVER_SCALE;
    (
        from(segment.ack()),
        window,
        blocks
            .map(|block| (from(block.left), from(block.right)))
            .collect(),
    )
}

#[test]
fn a_syn_ack_waits_for_the_logger() {
    for (v6, link_v6) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut linked = Linked::over(AckStrategy::Eager, v6, link_v6);
        // What a longer header leaves behind must not get into the next one's checksum.
        let long = segment(linked.both.s, linked.both.c).options(&[1; 40]);
        linked.both.server(long);
        linked.both.client(linked.both.syn());
        let (open, waiting) = linked.answer();
        assert_eq!(open.key, linked.both.key);
        assert_eq!(open.client_isn, linked.both.c);
        assert_eq!(open.server_isn, linked.both.s);
        let overhead = if link_v6 { 48 } else { 28 };
        let most = MTU - overhead - if v6 { 60 } else { 40 };
        let packet = IpPacket::parse(&waiting).unwrap();
        let segment = Segment::of(&packet).unwrap();
        let mss = |segment: &Segment<'_>| {
            segment.options().find_map(|option| match option {
                Ok(wire::TcpOption::MaxSegmentSize(mss)) => Some(mss),
                _ => None,
            })
        };
        assert_eq!(mss(&segment), Some(most), "v6 {v6}, link {link_v6}");

        let out = linked.logged(1, &[]);
        assert_eq!(out.verdict, Verdict::Redirect);
        let sent = out.segment();
        assert_eq!(sent.flags(), SYN_ACK);
        assert_eq!((sent.seq(), sent.ack()), (linked.both.s, linked.both.c + 1));
        assert_eq!(mss(&sent), Some(most));
    }
}

#[test]
fn a_syn_ack_that_nobody_records_stays() {
    let mut linked = Linked::new(AckStrategy::Eager);
    linked.both.client(linked.both.syn());
    linked.answer();
    let mut word = linked.word(1, &[]);
    word.flow = FlowId(2);
    assert_eq!(
        linked.hear(&word).verdict,
        Verdict::Drop,
        "another's number"
    );
    let word = linked.word(0, &[]);
    assert_eq!(linked.hear(&word).verdict, Verdict::Drop, "another's ISN");
    linked.answer(); // sent again
    assert_eq!(linked.logged(1, &[]).verdict, Verdict::Redirect);
}

#[test]
fn without_a_logger_a_connection_is_not_protected() {
    let mut linked = Linked::new(AckStrategy::Eager);
    linked.both.link_up(false);
    linked.both.client(linked.both.syn());
    let out = linked.both.server(linked.both.syn_ack());
    assert_eq!(out.verdict, Verdict::Next);
    let third = segment(linked.both.c + 1, linked.both.s + 1).timestamps(11, 900);
    linked.both.client(third);
    let lost = Some(Unprotected::LoggerLost);
    assert_eq!(linked.both.flow().unprotected, lost);
    assert_eq!(linked.says(1, b"hello"), Verdict::Next);
    assert!(linked.both.copies().is_empty());
    assert_eq!(told(&linked.server_acks(6)).0, 6);
}

#[test]
fn the_logger_gets_a_copy_of_what_the_server_gets() {
    for (v6, link_v6) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut linked = Linked::over(AckStrategy::Eager, v6, link_v6).open();
        assert_eq!(linked.says(1, b"hello"), Verdict::Next);
        let copies = linked.both.copies();
        let [copy] = &copies[..] else {
            panic!("{} copies", copies.len());
        };
        let payload = linked.payload(copy);
        let view = SegmentView::parse(&payload).expect("a segment");
        assert!(view.verify(&keys(UP), FlowId(1)));
        assert!(!view.verify(&keys(UP), FlowId(2)));
        assert!(view.flags().turn);
        assert_eq!(view.base_seq(), linked.both.c + 1);
        assert_eq!(view.segment().payload(), b"hello");
        assert!(view.is_undamaged(&linked.both.key));
    }
}

#[test]
fn without_a_way_to_the_logger_a_connection_is_not_protected() {
    let mut settings = settings();
    settings.link = true;
    let mut both = Both::with(&settings);
    both.set_link(link(AckStrategy::Eager, false));
    both.link_up(true);
    both.client(both.syn());
    let out = both.server(both.syn_ack());
    assert_eq!(out.verdict, Verdict::Next, "its probes leave unseen");
    let third = segment(both.c + 1, both.s + 1).timestamps(11, 900);
    assert_eq!(both.client(third).verdict, Verdict::Next);
    assert_eq!(both.flow().unprotected, Some(Unprotected::LoggerLost));
}

#[test]
fn the_client_is_told_of_no_more_than_is_logged() {
    let mut linked = Linked::new(AckStrategy::Basic).open();
    let handshake = linked.both.flow().server.edge;
    linked.says(1, &[b'x'; 100]);
    let out = linked.server_acks(101);
    // 1000 << 7 bytes from 101 on: the right edge is kept.
    let edge = 101 + (1000 << SERVER_SCALE);
    assert!(linked.both.c + edge != handshake);
    assert_eq!(told(&out), (1, (edge - 1) & !127, vec![]));
    assert_eq!(
        linked.logged(101, &[]).verdict,
        Verdict::Drop,
        "basic makes no ACK"
    );
    let answer = segment(linked.both.s + 1, linked.both.c + 101)
        .timestamps(903, 21)
        .payload(b"answer");
    assert_eq!(told(&linked.both.server(answer)).0, 101);
}

#[test]
fn a_pure_ack_that_brings_nothing_stays() {
    let mut linked = Linked::new(AckStrategy::Basic).open();
    linked.says(1, &[b'x'; 100]);
    assert_eq!(
        linked.server_acks(101).verdict,
        Verdict::Next,
        "a larger window"
    );
    linked.says(101, b"y");
    let narrow = segment(linked.both.s + 1, linked.both.c + 102)
        .window(900)
        .timestamps(904, 21);
    assert_eq!(linked.both.server(narrow).verdict, Verdict::Drop);
    assert_eq!(linked.both.counted("acks_withheld"), 1);
    let again = segment(linked.both.s + 1, linked.both.c + 102)
        .window(900)
        .timestamps(905, 21);
    let out = linked.both.server(again);
    assert_eq!(
        out.verdict,
        Verdict::Next,
        "it repeats itself, for a reason"
    );
    assert_eq!(told(&out).0, 1);
}

#[test]
fn eager_makes_an_ack_of_the_loggers_word() {
    for (v6, link_v6) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut linked = Linked::over(AckStrategy::Eager, v6, link_v6).open();
        linked.says(1, &[b'x'; 100]);
        assert_eq!(
            linked.logged(51, &[]).verdict,
            Verdict::Drop,
            "the server has nothing yet"
        );
        linked.server_acks(101);
        let out = linked.logged(101, &[]);
        assert_eq!(out.verdict, Verdict::Redirect);
        let edge = 101 + (1000 << SERVER_SCALE);
        assert_eq!(told(&out), (101, edge - 101, vec![]));
        let segment = out.segment();
        assert_eq!(segment.seq(), linked.both.s + 1);
        let stamps = segment.timestamps().expect("agreed");
        assert_eq!(
            (stamps.value, stamps.echo),
            (902, 20),
            "as the server sent them"
        );
        assert_eq!(linked.logged(101, &[]).verdict, Verdict::Drop, "no news");
    }
}

#[test]
fn a_gap_at_the_logger_is_told_at_once() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    for at in [1, 101, 201, 301] {
        linked.says(at, &[b'x'; 100]);
    }
    linked.server_acks(401);
    let out = linked.logged(101, &[(201, 301)]);
    assert_eq!(told(&out).0, 101);
    assert_eq!(told(&out).2, [(201, 301)]);
    let out = linked.logged(101, &[(301, 401), (201, 301)]);
    assert_eq!(told(&out).2, [(301, 401), (201, 301)]);
    let out = linked.logged(401, &[]);
    assert_eq!((told(&out).0, told(&out).2.len()), (401, 0));
}

#[test]
fn a_block_is_told_when_both_have_it() {
    let sack = |blocks: &[(SeqNumber, SeqNumber)]| {
        let mut option = vec![1, 1, 5, u8::try_from(2 + 8 * blocks.len()).unwrap()];
        for (left, right) in blocks {
            option.extend(left.0.to_be_bytes());
            option.extend(right.0.to_be_bytes());
        }
        [timestamps(903, 21), option].concat()
    };
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.says(101, &[b'x'; 200]);
    let c = linked.both.c;
    let acks = segment(linked.both.s + 1, c + 1).options(&sack(&[(c + 101, c + 301)]));
    let out = linked.both.server(acks.clone());
    assert_eq!(told(&out).2, [], "the logger has nothing yet");
    let out = linked.logged(1, &[(101, 201), (401, 501)]);
    assert_eq!(told(&out).2, [(101, 201)], "the server has not the other");
    let out = linked.both.server(acks);
    assert_eq!(told(&out).2, [(101, 201)]);
}

#[test]
fn lazy_holds_pure_acks_until_they_are_logged() {
    let mut linked = Linked::new(AckStrategy::Lazy).open();
    for at in [1, 101, 201] {
        linked.says(at, &[b'x'; 100]);
        assert_eq!(linked.server_acks(at + 100).verdict, Verdict::Drop);
    }
    assert_eq!(linked.both.flow().log.held.len(), 3);
    assert_eq!(
        linked.logged(100, &[]).verdict,
        Verdict::Drop,
        "one byte is missing"
    );
    let out = linked.logged(250, &[]);
    assert_eq!(told(&out).0, 201, "the second, not more");
    let out = linked.logged(301, &[]);
    assert_eq!(told(&out).0, 301);
    // With data nothing is held.
    linked.says(301, b"more");
    let answer = segment(linked.both.s + 1, linked.both.c + 305)
        .timestamps(903, 21)
        .payload(b"answer");
    assert_eq!(told(&linked.both.server(answer)).0, 301);
}

#[test]
fn of_many_held_acks_the_newest_take_each_others_place() {
    let mut linked = Linked::new(AckStrategy::Lazy).open();
    for n in 0..12 {
        linked.says(1 + n * 10, &[b'x'; 10]);
        linked.server_acks(11 + n * 10);
    }
    assert_eq!(linked.both.flow().log.held.len(), 8);
    let out = linked.logged(105, &[]);
    assert_eq!(told(&out).0, 71);
    let out = linked.logged(121, &[]);
    assert_eq!(told(&out).0, 121);
}

#[test]
fn conditional_waits_for_the_newest() {
    let mut linked = Linked::new(AckStrategy::Conditional).open();
    linked.says(1, &[b'x'; 100]);
    linked.says(101, &[b'x'; 100]);
    linked.server_acks(201);
    assert_eq!(
        linked.logged(101, &[]).verdict,
        Verdict::Drop,
        "another has come since"
    );
    assert_eq!(told(&linked.logged(201, &[])).0, 201);
}

#[test]
fn who_has_no_key_is_not_heard() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.says(1, b"hello");
    linked.server_acks(6);
    let word = linked.word(6, &[]);
    let forged = word.encode(&LinkKey([1; 16]));
    let out = linked.both.ingress(datagram(&linked.link, false, &forged));
    assert_eq!(out.verdict, Verdict::Drop);
    assert_eq!(linked.both.counted("link_forged"), 1);
    let mut damaged = word.encode(&DOWN);
    damaged[60] ^= 1;
    let out = linked.both.ingress(datagram(&linked.link, false, &damaged));
    assert_eq!(out.verdict, Verdict::Drop);
    assert_eq!(linked.both.flow().log.stable, linked.both.c + 1);
    assert_eq!(linked.hear(&word).verdict, Verdict::Redirect);
}

#[test]
fn what_is_played_again_is_not_heard() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    for at in [1, 101, 201] {
        linked.says(at, &[b'x'; 100]);
    }
    linked.server_acks(301);
    let gap = linked.word(101, &[(201, 301)]);
    assert_eq!(linked.hear(&gap).verdict, Verdict::Redirect);
    assert_eq!(linked.hear(&gap).verdict, Verdict::Drop);
    let (old, new) = (linked.word(101, &[(201, 301)]), linked.word(301, &[]));
    assert_eq!(linked.hear(&new).verdict, Verdict::Redirect);
    assert_eq!(linked.hear(&old).verdict, Verdict::Drop, "overtaken");
    linked.both.link_up(true); // another logger: it counts anew
    linked.says(301, b"x");
    linked.server_acks(302);
    linked.counter = 0;
    assert_eq!(linked.logged(302, &[]).verdict, Verdict::Redirect);
}

#[test]
fn old_keys_are_valid_until_their_slot_is_used_again() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    let new = LinkKeys {
        slot: KeySlot::Zero,
        up: LinkKey([1; 16]),
        down: LinkKey([2; 16]),
    };
    linked.both.set_link(LinkSettings {
        keys: new,
        ..linked.link
    });
    linked.says(1, b"hello");
    linked.server_acks(6);
    let copies = linked.both.copies();
    let payload = linked.payload(&copies[0]);
    let view = SegmentView::parse(&payload).unwrap();
    let mut up = KeySet::EMPTY;
    up.put(KeySlot::Zero, new.up);
    assert!(view.verify(&up, FlowId(1)), "made with the new key");
    let out = linked.logged(3, &[]);
    assert_eq!(told(&out).0, 3, "the old one is still good");
    let word = Ack {
        slot: KeySlot::Zero,
        ..linked.word(6, &[])
    };
    let word = datagram(&linked.link, false, &word.encode(&new.down));
    assert_eq!(linked.both.ingress(word).verdict, Verdict::Redirect);
}

#[test]
fn the_answer_to_a_probe_is_for_the_socket() {
    let mut linked = Linked::new(AckStrategy::Eager);
    let probed = Probe {
        kind: ProbeKind::Probed,
        slot: KeySlot::One,
        counter: 1,
    };
    let packet = datagram(&linked.link, false, &probed.encode(&DOWN));
    let out = linked.both.ingress(packet.clone());
    assert_eq!((out.verdict, out.packet), (Verdict::Next, packet));
    let strange = datagram(&linked.link, false, b"who are you?");
    assert_eq!(linked.both.ingress(strange).verdict, Verdict::Next);
}

#[test]
fn who_lost_the_logger_is_told_what_the_server_has() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.says(1, b"hello");
    assert_eq!(told(&linked.server_acks(6)).0, 1);
    linked.both.link_up(false);
    assert!(
        linked
            .both
            .unprotect(linked.both.key, Unprotected::LoggerLost)
    );
    assert_eq!(told(&linked.server_acks(6)).0, 6);
    assert_eq!(linked.says(6, b"more"), Verdict::Next);
}

#[test]
fn a_connection_is_recorded_again_from_its_next_turn() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.both.link_up(false);
    linked
        .both
        .unprotect(linked.both.key, Unprotected::LoggerLost);
    linked.says(1, b"hello");
    linked.server_acks(6);
    linked.both.link_up(true);
    assert!(linked.both.reprotect(linked.both.key));
    assert!(!linked.both.reprotect(linked.both.key), "it waits already");
    linked.both.copies();
    assert_eq!(
        linked.says(1, b"hello"),
        Verdict::Next,
        "sent again: no turn"
    );
    assert!(linked.both.copies().is_empty());
    let answer = segment(linked.both.s + 1, linked.both.c + 6)
        .timestamps(903, 21)
        .payload(b"answer");
    linked.both.server(answer);
    linked.says(6, b"of the same turn");
    assert!(linked.both.copies().is_empty());
    let answer = segment(linked.both.s + 7, linked.both.c + 22)
        .timestamps(903, 21)
        .payload(b"to all");
    assert_eq!(told(&linked.both.server(answer)).0, 22);
    linked.both.events();
    let next = segment(linked.both.c + 22, linked.both.s + 13)
        .timestamps(60, 903)
        .payload(b"next");
    assert_eq!(linked.both.client(next).verdict, Verdict::Next);
    let (c, s) = (linked.both.c, linked.both.s);
    let events = linked.both.events();
    let wanted = ssw::EventKind::Reprotected {
        key: linked.both.key,
        flow_id: FlowId(1),
        instream: c + 22,
        outstream: s + 13,
    };
    assert_eq!(events, [wanted]);
    assert_eq!(linked.both.copies().len(), 1);
    let acks = segment(s + 13, c + 26).timestamps(904, 60);
    assert_eq!(linked.both.server(acks).verdict, DROP, "clamped again");
    assert_eq!(told(&linked.logged(26, &[])).0, 26);
}

#[test]
fn at_the_gate_the_loggers_word_is_noted_and_not_told() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.says(1, b"hello");
    linked.server_acks(6);
    linked.both.gate();
    assert_eq!(linked.logged(6, &[]).verdict, Verdict::Drop);
    assert_eq!(linked.both.flow().log.stable, linked.both.c + 6);
    assert_eq!(linked.both.flow().server.ack, linked.both.c + 1);
    assert_eq!(
        linked.says(6, b"more"),
        Verdict::Drop,
        "recorded, not delivered"
    );
    linked.both.copies();
    assert_eq!(linked.logged(10, &[]).verdict, Verdict::Drop);
}

#[test]
fn a_later_server_tells_no_more_than_is_logged() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.says(1, b"hello");
    linked.server_acks(6);
    linked.logged(6, &[]);
    let second = SeqNumber(77_000);
    linked.both.splice(second);
    // What follows has not been logged: it is delivered, and not acknowledged.
    let more = segment(linked.both.c + 6, linked.both.s + 1)
        .timestamps(40, 902)
        .payload(b"more");
    assert_eq!(linked.both.client(more).verdict, Verdict::Next);
    let acks = segment(second + 1, linked.both.c + 10).timestamps(80, 40);
    assert_eq!(
        linked.both.server(acks).verdict,
        DROP,
        "nothing new is logged"
    );
    let out = linked.logged(10, &[]);
    assert_eq!(out.segment().ack(), linked.both.c + 10);
    assert_eq!(out.segment().flags(), Flags::ACK);
    assert_eq!(
        out.segment().seq(),
        linked.both.s + 1,
        "as the client knows it"
    );
}

#[test]
fn what_does_not_fit_the_link_costs_the_record_and_not_the_upload() {
    // A client whose handshake nobody could ask for shorter segments, or a link that carries less now.
    let overhead = 28 + 20 + 32;
    let mut linked = Linked::new(AckStrategy::Eager).open();
    let most = usize::from(MTU) - overhead;
    assert_eq!(linked.says(1, &vec![b'x'; most]), Verdict::Next);
    assert_eq!(linked.both.flow().unprotected, None);
    assert_eq!(linked.both.copies().len(), 1);
    let at = 1 + u32::try_from(most).unwrap();
    assert_eq!(linked.says(at, &vec![b'y'; most + 1]), Verdict::Next);
    let lost = Some(Unprotected::MirrorLost);
    assert_eq!(linked.both.flow().unprotected, lost);
    assert!(linked.both.copies().is_empty());
    let all = at + u32::try_from(most).unwrap() + 1;
    assert_eq!(told(&linked.server_acks(all)).0, all);
}

#[test]
fn no_record_begins_in_the_middle_of_a_request() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.both.link_up(false);
    linked
        .both
        .unprotect(linked.both.key, Unprotected::LoggerLost);
    linked.says(1, b"half of ");
    linked.server_acks(9);
    linked.both.link_up(true);
    assert!(linked.both.reprotect(linked.both.key));
    let waits = Some(Unprotected::AwaitsTurn);
    // The client has heard all, and the server has all: and yet it is not the beginning.
    assert_eq!(linked.says(9, b"a request"), Verdict::Next);
    assert_eq!(linked.both.flow().unprotected, waits, "the second half");
    linked.server_acks(18);
    let (c, s) = (linked.both.c, linked.both.s);
    let mut said = s + 1;
    let mut heard = c + 18;
    for (answer, protected) in [
        (&b"HTTP/1.1 100 Continue\r\n\r\n"[..], false),
        (b"HTTP/1.1 1", false),
        (b"HTTP/1.1 200 OK\r\n\r\n", true),
    ] {
        let segment_out = segment(said, heard).timestamps(903, 21).payload(answer);
        linked.both.server(segment_out);
        said += u32::try_from(answer.len()).unwrap();
        let next = segment(heard, said).timestamps(60, 903).payload(b"next");
        assert_eq!(linked.both.client(next).verdict, Verdict::Next);
        let state = linked.both.flow().unprotected;
        assert_eq!(state.is_none(), protected, "{state:?}");
        heard += 4;
        let acks = segment(said, heard).timestamps(904, 60);
        linked.both.server(acks);
    }
}

#[test]
fn no_record_begins_again_when_the_protocol_has_changed() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.both.link_up(false);
    linked
        .both
        .unprotect(linked.both.key, Unprotected::LoggerLost);
    let (c, s) = (linked.both.c, linked.both.s);
    linked.says(1, b"upgrade");
    let switch = b"HTTP/1.1 101 Switching Protocols\r\n\r\n";
    let out = segment(s + 1, c + 8).timestamps(903, 21).payload(switch);
    linked.both.server(out);
    linked.both.link_up(true);
    assert!(linked.both.reprotect(linked.both.key));
    let mut said = s + 1 + u32::try_from(switch.len()).unwrap();
    let mut heard = c + 8;
    for _ in 0..2 {
        let next = segment(heard, said).timestamps(60, 903).payload(b"frame");
        linked.both.client(next);
        let state = linked.both.flow().unprotected;
        assert_eq!(state, Some(Unprotected::AwaitsTurn));
        heard += 5;
        let out = segment(said, heard).timestamps(903, 21).payload(b"other");
        linked.both.server(out);
        said += 5;
    }
}

#[test]
fn the_mark_of_others_stays() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    let marked = segment(linked.both.c + 1, linked.both.s + 1)
        .timestamps(21, 901)
        .payload(b"hello")
        .mark(7);
    assert_eq!(linked.both.client(marked).packet.mark, 7);
}

#[test]
fn a_handshake_that_is_answered_anew_is_another_connection_for_the_logger() {
    // A request socket that expired while the logger was away, or a SYN cookie of another minute.
    let mut linked = Linked::new(AckStrategy::Eager);
    linked.both.client(linked.both.syn());
    assert_eq!(linked.answer().0.flow, FlowId(1));
    assert_eq!(linked.answer().0.flow, FlowId(1), "the same one again");
    linked.both.client(linked.both.syn());
    linked.both.s += 777;
    let (open, _) = linked.answer();
    assert_eq!(open.server_isn, linked.both.s);
    assert_eq!(open.flow, FlowId(2), "the first has another number");
}
