//! The last read of a server, and the client whose data was read.

use std::{net::SocketAddr, sync::atomic::Ordering};

use north_abi::{AcceptedConnection, HEADER_MAX, Record, Which};
use north_host::{Call, Ends, Memory, Suspect};

const SERVER: &str = "10.0.0.10:80";

fn sockaddr(address: &str) -> Vec<u8> {
    let SocketAddr::V4(address) = address.parse().expect("an address") else {
        panic!("of IPv4");
    };
    let mut bytes = 2u16.to_ne_bytes().to_vec();
    bytes.extend(address.port().to_be_bytes());
    bytes.extend(address.ip().octets());
    bytes.resize(16, 0);
    bytes
}

/// Appends a record. Returns the offset of the record.
fn append(memory: &Memory, call: Call, fd: u32, outcome: i64, payload: &[u8]) -> u64 {
    let record = Record {
        call,
        fd,
        outcome,
        payload,
    };
    let mut header = [0; HEADER_MAX];
    let length = record.header().write(&mut header);
    let at = memory.length(0);
    let bytes = [&header[..length], payload].concat();
    memory.append(0, &bytes).expect("room");
    at
}

fn accept(memory: &Memory, fd: i64, client: &str) {
    let arrival = AcceptedConnection {
        which: Which::Isn(7),
        peer: &sockaddr(client),
        local: &sockaddr(SERVER),
    };
    let mut payload = vec![0; arrival.length()];
    arrival.write(&mut payload);
    append(memory, Call::Accept, 5, fd, &payload);
}

fn ends(client: &str) -> Ends {
    let [client, server] = [client, SERVER].map(|text| text.parse().expect("an address"));
    Ends::new(client, server)
}

#[test]
fn reused_descriptor_names_last_client() {
    let memory = Memory::new().expect("memory");
    let process = &memory.page().processes.0[0];
    assert_eq!(Suspect::of(&memory, &[]).expect("read"), None);
    accept(&memory, 7, "10.0.0.1:1000");
    append(&memory, Call::Read, 7, 5, b"hello");
    // A record longer than a read of the stream. Afterwards the descriptor has another connection.
    let long = vec![b'x'; 3 << 20];
    append(&memory, Call::Read, 7, long.len() as i64, &long);
    accept(&memory, 7, "10.0.0.1:2000");
    let at = append(&memory, Call::Read, 7, 5, b"hello");
    append(&memory, Call::Read, 7, 0, b"");
    process.said.store(at, Ordering::Relaxed);
    let suspect = Suspect {
        at,
        ends: Some(ends("10.0.0.1:2000")),
        is_answered: false,
    };
    assert_eq!(Suspect::of(&memory, &[]).expect("read"), Some(suspect));
    process.said.store(at + 1, Ordering::Relaxed);
    let answered = Suspect {
        is_answered: true,
        ..suspect
    };
    assert_eq!(Suspect::of(&memory, &[]).expect("read"), Some(answered));
}

/// The earlier host may have answered a read of a record from elsewhere.
#[test]
fn read_on_earlier_host_is_answered() {
    let memory = Memory::new().expect("memory");
    accept(&memory, 7, "10.0.0.1:1000");
    append(&memory, Call::Read, 9, 5, b"hello");
    let suspect = Suspect::of(&memory, &[]).expect("read").expect("one");
    assert_eq!((suspect.ends, suspect.is_answered), (None, true));
}

/// The image knows the connections at its snapshot point, until a descriptor is reused.
#[test]
fn connection_older_than_log_is_known() {
    let memory = Memory::new().expect("memory");
    let known = [(7, ends("10.0.0.1:1000")), (8, ends("10.0.0.1:2000"))];
    let whose = || {
        let suspect = Suspect::of(&memory, &known).expect("read");
        suspect.expect("one").ends
    };
    append(&memory, Call::Read, 8, 5, b"hello");
    assert_eq!(whose(), Some(ends("10.0.0.1:2000")));
    accept(&memory, 8, "10.0.0.1:3000");
    append(&memory, Call::Read, 8, 5, b"hello");
    assert_eq!(whose(), Some(ends("10.0.0.1:3000")));
}
