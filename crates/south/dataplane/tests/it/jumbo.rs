//! IPv6 super-segments of more than 64 KiB, whose TCP header stands behind a jumbo header: the
//! programs handle super-segments like any other segment. (With the loopback's MTU, Linux sends
//! super-segments for any `gso_max_size`.)

use south_model::{DEFAULT_FIELDS, expectations};
use wire::{FlowId, IpPacket, Segment, SeqNumber};

use crate::harness::*;

fn opened() -> Both {
    Both::numbered(1000, 5000, true).open()
}

#[test]
fn super_segment_of_server_is_observed() {
    let mut both = opened();
    let (c, s) = (both.c + 1, both.s + 1);
    let out = both.server(segment(s, c).timestamps(901, 11).payload(b"long").jumbo());
    assert_eq!((out.verdict, both.flow().server.nxt), (Next, s + 4));
    assert_eq!(both.counted("heads"), 1);
    both.frames();
    let answer = segment(c, s + 4).timestamps(12, 901).payload(b"data");
    assert_eq!(both.client(answer).verdict, Next);
    assert_eq!(both.frames().len(), 1, "acknowledges the output");
}

#[test]
fn the_clients_super_segment_is_recorded_whole() {
    let mut both = opened();
    both.frames();
    let spec = segment(both.c + 1, both.s + 1).timestamps(12, 900);
    let spec = spec.payload(&[7; 3000]).jumbo();
    let packet = spec.packet(both.key.client(), both.key.server());
    assert_eq!(both.ingress(packet.clone()).verdict, Next);
    let [frame] = &both.frames()[..] else {
        panic!("one frame")
    };
    assert_eq!(frame.packet, packet.bytes);
    assert_eq!(frame.packet_len, length(&packet.bytes));
    assert_eq!(both.flow().client.nxt, both.c + 3001);
}

#[test]
fn no_super_segment_of_the_dying_leaves() {
    let mut both = opened();
    both.gate();
    let (c, s) = (both.c + 1, both.s + 1);
    let dying = segment(s, c).payload(b"dying").jumbo();
    assert_eq!(both.server(dying).verdict, DROP);
    let late = segment(c, s).timestamps(12, 900).payload(b"x").jumbo();
    assert_eq!(both.client(late).verdict, DROP);
}

#[test]
fn a_super_segment_is_translated() {
    for s2 in [SeqNumber(7000), SeqNumber(u32::MAX - 2)] {
        let mut both = opened();
        let (c, s) = (both.c + 1, both.s + 1);
        both.splice(s2);
        let spec = segment(s2 + 1, c).timestamps(80, 11).payload(b"new");
        let out = both.server(spec.jumbo());
        let plain = without_jumbo_header(&out.packet.bytes);
        let seen = Segment::of(&IpPacket::parse(&plain).unwrap()).unwrap();
        assert_eq!((out.verdict, seen.seq()), (Next, s));
        assert_eq!(out.packet.bytes[6], 0, "it is still a super-segment");
    }
}

#[test]
fn the_acknowledgement_of_what_is_said_again_has_no_jumbo_header() {
    for timestamps in [true, false] {
        let both = Both::numbered(1000, 5000, true);
        let mut both = if timestamps {
            both.open()
        } else {
            both.open_bare()
        };
        let (c, s, s2) = (both.c + 1, both.s + 1, SeqNumber(7000));
        let stamped = |spec: Spec, value, echo| match timestamps {
            true => spec.timestamps(value, echo),
            false => spec,
        };
        let said = [b'y'; 700];
        both.server(stamped(segment(s, c), 901, 11).payload(&said));
        both.client(stamped(segment(c, s + 700), 12, 901));
        let chunks = expectations(&[(s, said.to_vec())], &[], DEFAULT_FIELDS);
        both.expect(FlowId(1), chunks.into_iter().collect());
        both.revive(s + 700);
        let syn_ack = both.second_syn_ack(s2);
        let options = if timestamps {
            syn_ack.options.clone()
        } else {
            Vec::new()
        };
        both.server(syn_ack.options(&options));
        let again = stamped(segment(s2 + 1, c), 80, 12).payload(&said);
        let plain = both.server(again.clone());
        let out = both.server(again.jumbo());
        assert_eq!(
            (out.verdict, &out.packet.bytes),
            (RedirectIngress, &plain.packet.bytes)
        );
        assert_eq!(out.segment().ack(), s2 + 701);
        assert_eq!(both.flow().verify.compared, 1400, "twice, and equal");
    }
}

#[test]
fn other_extension_headers_go_their_way() {
    let mut both = opened();
    let (c, s) = (both.c + 1, both.s + 1);
    let spec = segment(s, c).payload(b"x").jumbo();
    let packet = spec.packet(both.key.server(), both.key.client());
    let before = both.flow().clone();
    for at in [5, 6, 40, 41, 42, 43, 46, 47] {
        let mut other = packet.clone();
        other.bytes[at] ^= 0x11;
        assert_eq!(both.egress(other).verdict, Next, "byte {at}");
    }
    assert_eq!(both.flow(), &before);
}
