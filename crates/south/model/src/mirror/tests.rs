use super::*;
use crate::{Settings, Verdict, testing::*};

#[test]
fn records_have_the_sizes_of_the_rings() {
    for (len, size) in [
        (40, Some(HEADER + 128)),
        (128, Some(HEADER + 128)),
        (129, Some(HEADER + 256)),
        (256, Some(HEADER + 256)),
        (257, Some(HEADER + 512)),
        (1024, Some(HEADER + 1024)),
        (1025, Some(HEADER + 2048)),
        (2048, Some(HEADER + 2048)),
        (2049, Some(HEADER + 4096)),
        (4097, Some(HEADER + 8192)),
        (65 * 4096 - 1, Some(HEADER + 65 * 4096)),
        (65 * 4096, None),
    ] {
        assert_eq!(record_size(len), size, "{len}");
    }
}

#[test]
fn exactly_as_many_frames_fit_as_in_the_ring() {
    // With the header of the ring; and one byte stays free.
    let (opened, data) = (HEADER + 8, HEADER + 128 + 8);
    let full = opened + 2 * data;
    for (capacity, fits) in [(full, 1), (full + 1, 2)] {
        let settings = Settings {
            mirror_capacity: capacity,
            ..settings()
        };
        let mut lab = Lab::with(settings, 1000, 5000, false).open();
        let data = || segment(SeqNumber(1001), SeqNumber(5001)).payload(b"x");
        let passed = (0..5)
            .filter(|_| lab.client(data()).verdict == Verdict::Next)
            .count();
        assert_eq!(passed, fits, "{capacity}");
    }
}

#[test]
fn a_packet_that_no_record_holds_costs_the_protection() {
    let mut lab = Lab::new().open();
    let mut packet = lab.client_packet(&segment(lab.c + 1, lab.s + 1));
    // BIG TCP: the length field is 0, the length that of the buffer.
    packet.bytes[2..4].fill(0);
    packet.bytes.resize(65 * 4096, 7);
    assert_eq!(lab.ingress(packet).verdict, Verdict::Next);
    assert_eq!(lab.flow().unprotected, Some(UnprotectedReason::MirrorLost));
    assert_eq!(
        (lab.events().len(), lab.south.counters().mirror_full),
        (1, 1)
    );
}

#[test]
fn padding_of_the_link_is_not_recorded() {
    let mut lab = Lab::new().open();
    lab.mirrored();
    let mut packet = lab.client_packet(&segment(lab.c + 1, lab.s + 1).payload(b"x"));
    packet.bytes.extend([0; 5]);
    lab.ingress(packet);
    let frame = lab.south.take_mirror().unwrap();
    assert_eq!((frame.packet.len(), frame.packet_len), (41, 41));
    assert_eq!(lab.flow().client.nxt, lab.c + 2);
}

#[test]
fn a_frame_tells_whether_the_checksum_is_unfinished() {
    let mut lab = Lab::new().open();
    lab.mirrored();
    let data = segment(lab.c + 1, lab.s + 1).payload(b"x");
    lab.client(data.clone());
    assert!(!lab.south.take_mirror().unwrap().unfinished);
    lab.client(data.partial());
    assert!(lab.south.take_mirror().unwrap().unfinished);
}
