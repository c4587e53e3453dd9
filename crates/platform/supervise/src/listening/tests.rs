use std::net::SocketAddr;

use proptest::prelude::*;
use rustix::process::Pid;

use super::proc_net::{Row, parse};
use super::{Owner, covers};
use crate::tcp_state::TcpState;

fn address(text: &str) -> SocketAddr {
    text.parse().expect("address of a test")
}

/// A word of an address as the kernel prints it on this host.
fn word(bytes: [u8; 4]) -> String {
    format!("{:08X}", u32::from_ne_bytes(bytes))
}

#[test]
fn ipv4_socket_table() {
    let local = word([127, 0, 0, 1]);
    let table = format!(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  \
         timeout inode\n   \
         0: {local}:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        \
         0 12345 1 0000000000000000 100 0 0 10 0\n   \
         1: {local}:1F90 {local}:C350 06 00000000:00000000 03:00000EE2 00000000     0        0 \
         0 3 0000000000000000\n"
    );
    let local = address("127.0.0.1:8080");
    assert_eq!(
        parse(table.as_bytes()).collect::<Vec<_>>(),
        [
            Row {
                local,
                state: TcpState::Listen,
                inode: Some(12345)
            },
            Row {
                local,
                state: TcpState::TimeWait,
                inode: None
            },
        ]
    );
}

#[test]
fn ipv6_socket_table() {
    let ip = [
        word([0x20, 0x01, 0x0d, 0xb8]),
        word([0; 4]),
        word([0; 4]),
        word([0, 0, 0, 0x17]),
    ]
    .concat();
    let table = format!(
        " 0: {ip}:0050 00000000000000000000000000000000:0000 0A 0:0 00:0 0 33 0 7 1 0 100 0\n"
    );
    let rows: Vec<Row> = parse(table.as_bytes()).collect();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].local, address("[2001:db8::17]:80"));
    assert_eq!(rows[0].inode, Some(7));
}

#[test]
fn listener_covers_address_and_wildcard_covers_family() {
    let check = |listening, wanted| covers(address(listening), address(wanted)).expect("no probe");
    assert!(check("10.0.0.1:80", "10.0.0.1:80"));
    assert!(check("0.0.0.0:80", "10.0.0.1:80"));
    assert!(check("[::]:80", "[2001:db8::1]:80"));
    assert!(check("[::ffff:10.0.0.1]:80", "10.0.0.1:80"));
    assert!(check("10.0.0.1:80", "0.0.0.0:80"));
    assert!(!check("10.0.0.1:80", "10.0.0.1:81"));
    assert!(!check("10.0.0.2:80", "10.0.0.1:80"));
    assert!(!check("0.0.0.0:80", "[2001:db8::1]:80"));
    assert!(!check("[2001:db8::2]:80", "[2001:db8::1]:80"));
}

#[test]
fn owners_are_printed() {
    let mut owner = Owner {
        address: address("0.0.0.0:80"),
        pid: Pid::from_raw(12),
        program: Some("nginx".to_owned()),
    };
    assert_eq!(owner.to_string(), "nginx (pid 12) listens on 0.0.0.0:80");
    owner.pid = None;
    assert_eq!(
        owner.to_string(),
        "a process that is not visible from here listens on 0.0.0.0:80"
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_parsed(table: Vec<u8>) {
        let lines = table.split(|&b| b == b'\n').count();
        prop_assert!(parse(&table).count() <= lines);
    }

    /// Text that is almost right reaches deeper than random bytes do.
    #[test]
    fn arbitrary_fields_are_parsed(table in "( 0: [0-9A-F:é]{0,40} [0-9A-F:]{0,14} [0-9A-F]{1,2} ([0-9]{1,21} ){0,8}\n){0,4}") {
        for row in parse(table.as_bytes()) {
            prop_assert!(row.inode != Some(0));
        }
    }

    #[test]
    fn addresses_round_trip(ip: std::net::Ipv6Addr, port: u16, inode in 1u64..) {
        let words: String = ip.octets().chunks(4)
            .map(|w| word(w.try_into().expect("a word"))).collect();
        let line = format!("7: {words}:{port:04X} 0:0 0A 0:0 0:0 0 0 0 {inode} 1");
        let row = parse(line.as_bytes()).next().expect("one row");
        prop_assert_eq!(row.local, SocketAddr::from((ip, port)));
        prop_assert_eq!(row.inode, Some(inode));
    }
}
