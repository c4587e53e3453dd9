//! Built frames are read by another implementation (smoltcp) and compared with frames of Linux.

use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    HardwareAddress, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr,
    NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
};

use super::*;

fn ethernet_of(frame: &[u8]) -> EthernetFrame<&[u8]> {
    EthernetFrame::new_checked(frame).unwrap()
}

proptest! {
    #[test]
    fn arp_announcements_are_parsed_by_smoltcp(
        mac: MacAddress,
        ip: [u8; 4],
        reply: bool,
    ) {
        let ip = Ipv4Addr::from(ip);
        let form = if reply { ArpForm::Reply } else { ArpForm::Request };
        let bytes = gratuitous_arp(mac, ip, form);
        let frame = ethernet_of(&bytes);
        prop_assert_eq!(frame.src_addr(), EthernetAddress(mac));
        prop_assert!(frame.dst_addr().is_broadcast());
        prop_assert_eq!(frame.ethertype(), EthernetProtocol::Arp);
        let packet = ArpPacket::new_checked(frame.payload()).unwrap();
        prop_assert_eq!(
            ArpRepr::parse(&packet).unwrap(),
            ArpRepr::EthernetIpv4 {
                operation: if reply { ArpOperation::Reply } else { ArpOperation::Request },
                source_hardware_addr: EthernetAddress(mac),
                source_protocol_addr: ip,
                target_hardware_addr: EthernetAddress(if reply { mac } else { [0; 6] }),
                target_protocol_addr: ip,
            }
        );
    }

    #[test]
    fn advertisement_is_parsed_by_smoltcp(mac: MacAddress, ip: [u8; 16], router: bool) {
        let ip = Ipv6Addr::from(ip);
        let bytes = neighbor_advertisement(mac, ip, router);
        let frame = ethernet_of(&bytes);
        prop_assert_eq!(frame.src_addr(), EthernetAddress(mac));
        prop_assert_eq!(frame.dst_addr(), EthernetAddress(ALL_NODES_MAC));
        prop_assert_eq!(frame.ethertype(), EthernetProtocol::Ipv6);
        let packet = Ipv6Packet::new_checked(frame.payload()).unwrap();
        prop_assert_eq!(packet.total_len(), frame.payload().len());
        // The test does not ask whether a host can have the address.
        let header = Ipv6Repr {
            src_addr: ip,
            dst_addr: ALL_NODES,
            next_header: IpProtocol::Icmpv6,
            payload_len: usize::from(ADVERTISEMENT),
            hop_limit: 255,
        };
        prop_assert_eq!(Ipv6Repr::parse(&packet), Ok(header));
        let message = Icmpv6Packet::new_checked(packet.payload()).unwrap();
        let read = Icmpv6Repr::parse(&ip, &ALL_NODES, &message, &ChecksumCapabilities::default());
        let flags = if router { NdiscNeighborFlags::ROUTER } else { NdiscNeighborFlags::empty() };
        prop_assert_eq!(
            read.unwrap(),
            Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert {
                flags: flags | NdiscNeighborFlags::OVERRIDE,
                target_addr: ip,
                lladdr: Some(RawHardwareAddress::from(HardwareAddress::Ethernet(
                    EthernetAddress(mac)
                ))),
            })
        );
    }
}

proptest! {
    #[test]
    fn probe_for_ipv4_claims_nothing(mac: MacAddress, ip: [u8; 4]) {
        prop_assume!(ip != [0; 4]);
        let ip = Ipv4Addr::from(ip);
        let bytes = arp_probe(mac, ip);
        let frame = ethernet_of(&bytes);
        prop_assert!(frame.dst_addr().is_broadcast());
        let packet = ArpPacket::new_checked(frame.payload()).unwrap();
        prop_assert_eq!(
            ArpRepr::parse(&packet).unwrap(),
            ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Request,
                source_hardware_addr: EthernetAddress(mac),
                source_protocol_addr: Ipv4Addr::UNSPECIFIED,
                target_hardware_addr: EthernetAddress([0; 6]),
                target_protocol_addr: ip,
            }
        );
        prop_assert_eq!(holder(&bytes, ip.into()), None);
    }

    #[test]
    fn probe_for_ipv6_claims_nothing(mac: MacAddress, ip: [u8; 16]) {
        let ip = Ipv6Addr::from(ip);
        let bytes = neighbor_probe(mac, ip);
        let frame = ethernet_of(&bytes);
        let packet = Ipv6Packet::new_checked(frame.payload()).unwrap();
        let group = packet.dst_addr();
        prop_assert_eq!(packet.src_addr(), Ipv6Addr::UNSPECIFIED);
        prop_assert_eq!(&group.octets()[..13], &[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff]);
        prop_assert_eq!(&group.octets()[13..], &ip.octets()[13..]);
        let message = Icmpv6Packet::new_checked(packet.payload()).unwrap();
        let checked = ChecksumCapabilities::default();
        let read = Icmpv6Repr::parse(&packet.src_addr(), &group, &message, &checked);
        prop_assert_eq!(
            read.unwrap(),
            Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr: ip, lladdr: None })
        );
        prop_assert_eq!(holder(&bytes, ip.into()), None);
    }

    #[test]
    fn announcement_names_address_holder(
        mac: MacAddress,
        v4: [u8; 4],
        v6: [u8; 16],
        other: u32,
        damage in 0usize..ADVERTISEMENT_FRAME,
    ) {
        let (v4, v6) = (Ipv4Addr::from(v4), Ipv6Addr::from(v6));
        let stranger = Ipv4Addr::from(other);
        for form in [ArpForm::Request, ArpForm::Reply] {
            let frame = gratuitous_arp(mac, v4, form);
            prop_assert_eq!(holder(&frame, v4.into()), Some(mac));
            prop_assert_eq!(holder(&frame, stranger.into()).is_some(), stranger == v4);
            prop_assert_eq!(holder(&frame[..frame.len() - 1], v4.into()), None);
        }
        let mut frame = neighbor_advertisement(mac, v6, false);
        prop_assert_eq!(holder(&frame, v6.into()), Some(mac));
        frame[damage] ^= 0x55;
        // Only the link-layer header is without a checksum here.
        let is_seen = damage >= ETHERNET_HEADER + 4 && damage != ETHERNET_HEADER + 7;
        if is_seen {
            prop_assert_eq!(holder(&frame, v6.into()), None);
        }
    }

    #[test]
    fn arbitrary_bytes_have_holder_or_none(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        v4: [u8; 4],
        v6: [u8; 16],
    ) {
        let _ = holder(&bytes, Ipv4Addr::from(v4).into());
        let _ = holder(&bytes, Ipv6Addr::from(v6).into());
    }
}

/// Captured: the frames of Linux 6.18, sent by `arp_notify` and `ndisc_notify` after a change of the link-layer
/// address.
#[test]
fn announcements_equal_linux() {
    let mac = [2, 0, 0, 0, 0, 9];
    let arp = "ffffffffffff02000000000908060001080006040001\
               0200000000090a0000010000000000000a000001";
    let request = gratuitous_arp(mac, Ipv4Addr::new(10, 0, 0, 1), ArpForm::Request);
    assert_eq!(hex(&request), arp);
    let advertisement = "33330000000102000000000986dd6000000000203aff\
                         fd000000000000000000000000000001ff020000000000000000000000000001\
                         88005a9320000000fd000000000000000000000000000001\
                         0201020000000009";
    let ip = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    assert_eq!(hex(&neighbor_advertisement(mac, ip, false)), advertisement);
}

fn hex(bytes: &[u8]) -> std::string::String {
    bytes
        .iter()
        .map(|byte| std::format!("{byte:02x}"))
        .collect()
}
