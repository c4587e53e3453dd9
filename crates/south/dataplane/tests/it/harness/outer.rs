//! A view of the outer headers of a wrapped packet (`bpf/intf/encapsulation.h`).

use std::net::IpAddr;

use dataplane::encapsulation_port;
use wire::checksum;

use super::Frame;

/// The outer headers of a wrapped packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outer {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) source_port: u16,
    pub(crate) is_forwarded: bool,
    pub(crate) tag: [u8; 8],
}

/// Bytes of UDP and of the header of ours.
const OWN_LEN: usize = 20;
const OUTER_MAGIC: [u8; 2] = *b"ol";
const OUTER_VERSION: u8 = 1;

/// Takes the outer headers off, and checks these.
pub(crate) fn unwrap(frame: &mut Frame) -> Outer {
    let (outer, inner) = outer_of(&frame.bytes[14..]);
    let inner = inner.to_vec();
    frame.bytes.truncate(14);
    frame.bytes.extend(inner);
    outer
}

/// The outer headers of an IP packet, which are right, and the inner packet.
pub(crate) fn outer_of(packet: &[u8]) -> (Outer, &[u8]) {
    let v6 = packet[0] >> 4 == 6;
    let (ip, rest) = packet.split_at(if v6 { 40 } else { 20 });
    let length = |bytes: &[u8]| usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    let (source, destination): (IpAddr, IpAddr) = if v6 {
        let address = |at: usize| <[u8; 16]>::try_from(&ip[at..at + 16]).expect("16 bytes");
        assert_eq!((length(&ip[4..]), ip[6], ip[7]), (rest.len(), 17, 64));
        (address(8).into(), address(24).into())
    } else {
        let address = |at: usize| <[u8; 4]>::try_from(&ip[at..at + 4]).expect("4 bytes");
        assert_eq!((length(&ip[2..]), ip[8], ip[9]), (packet.len(), 64, 17));
        assert_eq!(
            (ip[0], length(&ip[6..])),
            (0x45, 0x4000),
            "no options, and DF"
        );
        assert_eq!(
            checksum::fold(checksum::sum(ip)),
            0xffff,
            "the header's sum"
        );
        (address(12).into(), address(16).into())
    };
    let (own, inner) = rest.split_at(OWN_LEN);
    assert_eq!(length(&own[2..]), usize::from(encapsulation_port()));
    assert_eq!(length(&own[4..]), rest.len());
    assert_eq!((length(&own[6..]), &own[8..10]), (0, &OUTER_MAGIC[..]));
    assert_eq!((own[10], own[11] & !1), (OUTER_VERSION, 0));
    let outer = Outer {
        source,
        destination,
        source_port: u16::from_be_bytes([own[0], own[1]]),
        is_forwarded: own[11] == 1,
        tag: own[12..20].try_into().expect("8 bytes"),
    };
    (outer, inner)
}
