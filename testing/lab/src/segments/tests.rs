use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// A TCP header from port 80 to port 4000.
fn tcp(flags: u8) -> Vec<u8> {
    let mut header = vec![0, 80, 0x0f, 0xa0, 0, 0, 0, 7, 0, 0, 0, 9, 0x50, flags];
    header.resize(20, 0);
    header
}

fn ipv4(options: u8, protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap() + 20 + u16::from(options) * 4;
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x00, 0x45 + options, 0]);
    frame.extend(length.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(fragment.to_be_bytes());
    frame.extend([64, protocol]);
    frame.resize(14 + 20 + usize::from(options) * 4, 0);
    frame.extend(payload);
    frame
}

fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
    frame.push(next);
    frame.resize(14 + 40, 0);
    frame.extend(payload);
    frame
}

#[test]
fn tcp_behind_options_and_extension_headers() {
    let expected = |version| TcpSegment {
        version,
        source: 80,
        destination: 4000,
        sequence: 7,
        acknowledgment: 9,
        flags: RST,
        payload: 5,
    };
    let segment = [&tcp(RST)[..], b"bytes"].concat();
    // A routing header of 16 bytes that says TCP follows.
    let mut routed = vec![TCP_PROTOCOL, 1];
    routed.resize(16, 0);
    routed.extend(&segment);
    for (version, frame) in [
        (4, ipv4(0, TCP_PROTOCOL, 0x4000, &segment)),
        (4, ipv4(3, TCP_PROTOCOL, 0, &segment)),
        (6, ipv6(TCP_PROTOCOL, &segment)),
        (6, ipv6(43, &routed)),
    ] {
        // A device's padding behind a short packet is no data.
        let frame = [&frame[..], &[0; 6]].concat();
        assert_eq!(TcpSegment::parse(&frame), Some(expected(version)));
    }
}

#[test]
fn other_frames_are_not_tcp() {
    let arp = [&[0; 12][..], &[0x08, 0x06], &[0; 40]].concat();
    for frame in [
        arp,
        ipv4(0, 17, 0, &tcp(RST)),
        ipv4(0, TCP_PROTOCOL, 0x2000, &tcp(RST)),
        ipv4(0, TCP_PROTOCOL, 0x0010, &tcp(RST)),
        ipv6(44, &tcp(RST)),
    ] {
        assert_eq!(TcpSegment::parse(&frame), None);
    }
}

#[test]
fn endings_are_counted_per_sender() {
    let packets = [RST, FIN, FIN | 0x10, 0x10, RST | 0x10].map(|flags| Packet {
        time: Duration::ZERO,
        length: 54,
        frame: ipv4(0, TCP_PROTOCOL, 0, &tcp(flags)),
    });
    assert_eq!(endings(&packets, 80), Endings { rst: 2, fin: 2 });
    assert_eq!(endings(&packets, 4000), Endings::default());
}

proptest! {
    #[test]
    fn truncated_header_is_not_tcp(cut in 0usize..54 + 13) {
        let frame = ipv6(TCP_PROTOCOL, &tcp(FIN));
        prop_assert_eq!(TcpSegment::parse(&frame[..cut]), None);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(mut frame in prop::collection::vec(any::<u8>(), 14..120), six: bool) {
        frame[12..14].copy_from_slice(if six { &[0x86, 0xdd] } else { &[0x08, 0x00] });
        if let Some(segment) = TcpSegment::parse(&frame) {
            prop_assert!(frame.len() >= 48);
            prop_assert_eq!(segment.is_rst(), segment.flags & 4 == 4);
        }
    }
}
