use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use netlink_packet_sock_diag::inet::{InetResponseHeader, SocketId};
use netlink_packet_sock_diag::{AF_INET, AF_INET6, SockDiagDestroy, SockDiagMessage};
use proptest::prelude::*;

use super::{DestroyError, Entry, Outcome, dump_error, encode, outcome, request};
use crate::netlink::decode;
use crate::tcp_state::TcpState;

fn id() -> SocketId {
    SocketId {
        source_port: 80,
        destination_port: 0xabcd,
        source_address: IpAddr::from([10, 0, 0, 1]),
        destination_address: IpAddr::from([10, 0, 0, 2]),
        interface_id: 3,
        cookie: [1, 2, 3, 4, 5, 6, 7, 8],
    }
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2` of `include/uapi/linux`, field by
/// field, for [`id`].
fn expected(message_type: u16, flags: u16) -> Vec<u8> {
    // All states but CLOSE (7) and LISTEN (10), which are numbered from 1 to 11.
    let states: u32 = 0b1011_0111_1110;
    let mut out = Vec::new();
    out.extend(72u32.to_ne_bytes());
    out.extend(message_type.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    out.extend(9u32.to_ne_bytes()); // sequence
    out.extend(0u32.to_ne_bytes()); // port
    out.extend([2, 6, 0, 0]); // AF_INET, IPPROTO_TCP, extensions, padding
    out.extend(states.to_ne_bytes());
    out.extend([0, 80, 0xab, 0xcd]);
    out.extend([10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    out.extend([10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    out.extend(3u32.to_ne_bytes());
    out.extend([1, 2, 3, 4, 5, 6, 7, 8]);
    out
}

#[test]
fn dump_request_has_kernel_layout() {
    let mut bytes = Vec::new();
    let message = SockDiagMessage::InetRequest(request(AF_INET, id()));
    encode(message, NLM_F_REQUEST | NLM_F_DUMP, 9, &mut bytes);
    assert_eq!(bytes, expected(20, 0x301));
}

#[test]
fn destroy_requests_are_packed() {
    let mut bytes = Vec::new();
    for _ in 0..2 {
        let message = SockDiagMessage::InetRequest(request(AF_INET, id()));
        let message = SockDiagDestroy::new(message);
        encode(message, NLM_F_REQUEST | NLM_F_ACK, 9, &mut bytes);
    }
    assert_eq!(bytes, [expected(21, 5), expected(21, 5)].concat());
}

#[test]
fn mapped_connection_is_parsed_as_ipv4() {
    let mapped = |ip: [u8; 4]| IpAddr::V6(Ipv4Addr::from(ip).to_ipv6_mapped());
    let header = InetResponseHeader {
        family: AF_INET6,
        state: 5,
        timer: None,
        socket_id: SocketId {
            source_address: mapped([10, 0, 0, 1]),
            destination_address: mapped([10, 0, 0, 2]),
            ..id()
        },
        recv_queue: 0,
        send_queue: 0,
        uid: 0,
        inode: 0,
    };
    let entry = Entry::from_response(&header).expect("a TCP state");
    assert_eq!(entry.local.to_string(), "10.0.0.1:80");
    assert_eq!(entry.remote.to_string(), "10.0.0.2:43981");
    assert_eq!(entry.state, TcpState::FinWait2);
    assert_eq!(entry.id, header.socket_id, "the kernel wants its own back");
}

#[test]
fn responses_are_distinguished() {
    assert_eq!(outcome(0).expect("no error"), Outcome::Destroyed);
    assert_eq!(outcome(-2).expect("ENOENT is none"), Outcome::Gone);
    assert_eq!(outcome(-95).expect("EOPNOTSUPP is none"), Outcome::Refused);
    assert!(matches!(outcome(-1), Err(DestroyError::NotPermitted)));
    assert!(matches!(outcome(-12), Err(DestroyError::Netlink(_))));
    assert!(matches!(dump_error(-2), DestroyError::NoDiag));
    assert!(matches!(dump_error(i32::MIN), DestroyError::Netlink(_)));
}

proptest! {
    #[test]
    fn arbitrary_datagram_is_parsed(bytes: Vec<u8>) {
        if let Ok(messages) = decode::<SockDiagMessage>(&bytes) {
            prop_assert!(messages.len() * 16 <= bytes.len() + 16);
        }
    }
}
