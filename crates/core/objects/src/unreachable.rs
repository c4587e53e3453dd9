//! A message that keeps a client's retransmissions close together (RFC 6069).
//!
//! While a response is under way, nobody acknowledges the request, and the client's TCP sends the request again with
//! pauses that double. After the death of a member the next of these brings the request to another member. By then the
//! pause could be as long as the download. ICMP *host unreachable* about the repeated segment says that the network
//! lost it, and not for want of room: Linux takes one doubling back. So the pause stays one retransmission timeout.

use alloc::vec::Vec;

use wire::checksum::{fold, pseudo_header, sum};
use wire::{ChecksumMode, Flags, FlowKey, SegmentSpec, SeqNumber};

const V4_HEADER: usize = 20;
const V6_HEADER: usize = 40;
const TCP_HEADER: usize = 20;
const ICMP_HEADER: usize = 8;
const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_ICMPV6: u8 = 58;
/// Destination unreachable: host unreachable (RFC 792).
const V4_UNREACHABLE: [u8; 2] = [3, 1];
/// Destination unreachable: no route to destination (RFC 4443, 3.1).
const V6_UNREACHABLE: [u8; 2] = [1, 0];

/// An IP packet for the client, about its segment with this number. `None` if the addresses are of two families.
#[must_use]
pub fn about(key: FlowKey, seq: SeqNumber) -> Option<Vec<u8>> {
    let quoted = packet(key.client(), key.server(), seq, &[])?;
    let is_v6 = quoted.len() > V4_HEADER + TCP_HEADER;
    // A segment of the same length gives the network header.
    let fill = [0; ICMP_HEADER + V6_HEADER];
    let fill = &fill[..ICMP_HEADER + quoted.len() - TCP_HEADER];
    let mut message = packet(key.server(), key.client(), SeqNumber(0), fill)?;
    let header_len = if is_v6 { V6_HEADER } else { V4_HEADER };
    let (header, icmp) = message.split_at_mut(header_len);
    icmp.fill(0);
    icmp[..2].copy_from_slice(if is_v6 {
        &V6_UNREACHABLE
    } else {
        &V4_UNREACHABLE
    });
    icmp[ICMP_HEADER..].copy_from_slice(&quoted);
    let mut pseudo = 0;
    if is_v6 {
        header[6] = PROTOCOL_ICMPV6;
        let (source, destination) = (key.server().ip(), key.client().ip());
        let len = u32::try_from(icmp.len()).ok()?;
        pseudo = pseudo_header(source, destination, PROTOCOL_ICMPV6, len);
    } else {
        header[9] = PROTOCOL_ICMP;
        header[10..12].fill(0);
        let checksum = !fold(sum(header));
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    let checksum = !fold(pseudo + sum(icmp));
    icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
    Some(message)
}

fn packet(
    source: core::net::SocketAddr,
    destination: core::net::SocketAddr,
    seq: SeqNumber,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let mut packet = Vec::new();
    let spec = SegmentSpec {
        source,
        destination,
        seq,
        ack: SeqNumber(0),
        flags: Flags::ACK,
        window: 0,
        options: &[],
        payload,
    };
    spec.emit(&mut packet, ChecksumMode::Full).ok()?;
    Some(packet)
}

#[cfg(test)]
mod tests {
    use wire::IpPacket;

    use super::*;

    #[test]
    fn message_quotes_the_segment_and_sums_to_zero() {
        for (client, server) in [
            ("10.0.0.3:4000", "10.0.9.9:80"),
            ("[fd00::3]:4000", "[fd00::9]:80"),
        ] {
            let (client, server) = (client.parse().unwrap(), server.parse().unwrap());
            let key = FlowKey::new(client, server);
            let message = about(key, SeqNumber(0x0102_0304)).unwrap();
            let ip = IpPacket::parse(&message).unwrap();
            assert_eq!((ip.source(), ip.destination()), (server.ip(), client.ip()));
            let icmp = ip.payload();
            let pseudo = match ip.protocol() {
                PROTOCOL_ICMP => 0,
                _ => pseudo_header(
                    server.ip(),
                    client.ip(),
                    PROTOCOL_ICMPV6,
                    u32::try_from(icmp.len()).unwrap(),
                ),
            };
            assert_eq!(fold(pseudo + sum(icmp)), 0xffff);
            let quoted = IpPacket::parse(&icmp[ICMP_HEADER..]).unwrap();
            assert_eq!(
                (quoted.source(), quoted.destination()),
                (client.ip(), server.ip())
            );
            assert_eq!(
                wire::Segment::of(&quoted).unwrap().seq(),
                SeqNumber(0x0102_0304)
            );
        }
    }
}
