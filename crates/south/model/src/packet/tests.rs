use super::*;
use crate::testing::{client_end, segment, server_end};

fn parse(bytes: &[u8]) -> Option<Segment> {
    Segment::parse(bytes, Network::parse(bytes)?)
}

fn sample(v6: bool) -> Vec<u8> {
    let spec = segment(SeqNumber(1), SeqNumber(2))
        .timestamps(3, 4)
        .payload(b"abc");
    spec.packet(client_end(v6), server_end(v6)).bytes
}

#[test]
fn a_segment_of_either_version_is_read() {
    for v6 in [false, true] {
        let bytes = sample(v6);
        let network = Network::parse(&bytes).unwrap();
        assert_eq!(network.ends(&bytes), Some((client_end(v6), server_end(v6))));
        let segment = parse(&bytes).unwrap();
        assert_eq!(
            (segment.seq, segment.ack, segment.window),
            (SeqNumber(1), SeqNumber(2), 1000)
        );
        assert_eq!(
            (segment.payload(&bytes), segment.header.len()),
            (&b"abc"[..], 32)
        );
        assert_eq!((segment.sequence_len(), segment.end()), (3, SeqNumber(4)));
    }
}

#[test]
fn what_is_not_a_whole_tcp_segment_is_not_read() {
    let changed = |v6, at: usize, value| {
        let mut bytes = sample(v6);
        bytes[at] = value;
        bytes
    };
    for (what, bytes) in [
        ("UDP", changed(false, 9, 17)),
        ("UDP", changed(true, 6, 17)),
        ("more fragments", changed(false, 6, 0x20)),
        ("a later fragment", changed(false, 7, 1)),
        ("a header of 4 words", changed(false, 0, 0x44)),
        ("another version", changed(false, 0, 0x55)),
        ("a packet longer than the frame", changed(false, 3, 200)),
        ("a packet shorter than its header", changed(false, 3, 51)),
        ("a TCP header of 4 words", changed(false, 32, 0x40)),
        (
            "a TCP header longer than the packet",
            changed(false, 32, 0xf0),
        ),
        ("no bytes", Vec::new()),
    ] {
        assert!(parse(&bytes).is_none(), "{what}");
    }
    for v6 in [false, true] {
        for len in 0..sample(v6).len() {
            assert!(parse(&sample(v6)[..len]).is_none(), "{len}");
        }
    }
}

#[test]
fn a_length_of_zero_is_that_of_the_buffer() {
    for (v6, at) in [(false, 2), (true, 4)] {
        let mut bytes = sample(v6);
        bytes[at..at + 2].fill(0);
        bytes.extend([9; 70_000]);
        assert_eq!(parse(&bytes).unwrap().payload_len, 70_003);
    }
}

/// As Linux makes it for the loopback, with `more` bytes of payload behind those of the sample.
fn jumbo(more: usize) -> Vec<u8> {
    let mut bytes = sample(true);
    bytes[4..7].fill(0);
    let length = length32(bytes.len() - V6_HEADER + JUMBO_HEADER + more);
    bytes.splice(V6_HEADER..V6_HEADER, length.to_be_bytes());
    bytes.splice(V6_HEADER..V6_HEADER, JUMBO);
    bytes.resize(bytes.len() + more, 9);
    bytes
}

#[test]
fn a_super_segment_is_read_behind_its_jumbo_header() {
    let bytes = jumbo(130_000);
    let network = Network::parse(&bytes).unwrap();
    assert_eq!(
        network.ends(&bytes),
        Some((client_end(true), server_end(true)))
    );
    let segment = parse(&bytes).unwrap();
    assert_eq!((segment.seq, segment.payload_len), (SeqNumber(1), 130_003));
    assert!(segment.payload(&bytes).starts_with(b"abc\x09"));
    for at in [5, 40, 41, 42, 43, 47] {
        let mut other = bytes.clone();
        other[at] ^= 1;
        assert!(parse(&other).is_none(), "another byte {at}");
    }
    assert!(parse(&bytes[..bytes.len() - 1]).is_none(), "cut short");
}

fn options(options: &[u8]) -> Options {
    find_options(&[&[0; 20], options].concat())
}

#[test]
fn options_are_found_until_the_first_malformed_one() {
    let all = [
        1, 3, 3, 9, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6,
    ];
    let found = options(&all);
    assert_eq!(
        (found.window_scale, found.sack_edges.clone()),
        (Some(9), 26..34)
    );
    let header = [&[0; 20], &all[..]].concat();
    assert_eq!(
        (found.tsval(&header), found.tsecr(&header)),
        (Some(5), Some(6))
    );
    for malformed in [&[8, 10, 0][..], &[7, 1], &[7, 0], &[7]] {
        let found = options(&[&[3, 3, 9], malformed].concat());
        assert_eq!((found.window_scale, found.tsval_at()), (Some(9), None));
    }
    assert_eq!(
        options(&[0, 3, 3, 9]).window_scale,
        None,
        "behind the end of the list"
    );
    assert_eq!(
        options(&[8, 4, 0, 0, 3, 4, 0, 0, 5, 4, 0, 0]).tsval_at(),
        None,
        "wrong lengths"
    );
    assert_eq!(options(&[3, 3, 200]).scale(), 14);
    assert_eq!(options(&[]).scale(), 0);
}

#[test]
fn the_last_of_two_equal_options_counts() {
    assert_eq!(options(&[3, 3, 1, 3, 3, 2]).window_scale, Some(2));
}
