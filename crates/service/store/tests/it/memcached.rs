use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use store::{Cursor, Failure, Operation, Outcome};

use crate::server::{Server, check_lists, get, hash, key, put, values};

#[test]
fn record_is_read_by_an_independent_reader() {
    let server = Server::memcached(&["-M"]);
    let mut client = server.memcached_client();
    assert_eq!(
        client.perform(put("web1", 1, b"a\r\nb")),
        Ok(Outcome::Stored)
    );
    let mut socket = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    // The older protocol.
    write!(socket, "get {}\r\n", key("web1", 1).flat()).unwrap();
    let lines: Vec<String> = BufReader::new(socket)
        .lines()
        .take(4)
        .map(Result::unwrap)
        .collect();
    assert_eq!(
        lines,
        [
            &format!("VALUE {} 0 4", key("web1", 1).flat()),
            "a",
            "b",
            "END"
        ]
    );
}

#[test]
fn records_are_written_read_renewed_and_deleted() {
    let server = Server::memcached(&["-M"]);
    let mut client = server.memcached_client();
    client.perform(put("web1", 1, b"old")).unwrap();
    client.perform(put("web3", 1, b"")).unwrap();
    let found = client.perform(get(&["web1", "web2", "web3"], 1));
    let Ok(Outcome::Found(found)) = found else {
        panic!("{found:?}")
    };
    let found: Vec<_> = found
        .into_iter()
        .map(|found| (found.key, found.value))
        .collect();
    assert_eq!(
        found,
        [
            (key("web1", 1), b"old".to_vec()),
            (key("web3", 1), Vec::new())
        ]
    );
    let renew = |member| Operation::Renew {
        key: key(member, 1),
    };
    assert_eq!(
        client.perform(renew("web1")),
        Ok(Outcome::Renewed { exists: true })
    );
    assert_eq!(
        client.perform(renew("web2")),
        Ok(Outcome::Renewed { exists: false })
    );
    let delete = |client: &mut crate::server::Client| {
        client.perform(Operation::Delete {
            key: key("web1", 1),
        })
    };
    assert_eq!(delete(&mut client), Ok(Outcome::Deleted { existed: true }));
    assert_eq!(delete(&mut client), Ok(Outcome::Deleted { existed: false }));
    assert_eq!(
        values(client.perform(get(&["web1"], 1))),
        Vec::<Vec<u8>>::new()
    );
}

#[test]
fn lists_of_members_are_read_each_name_once() {
    let server = Server::memcached(&["-M"]);
    check_lists(&mut server.memcached_client());
}

#[test]
fn many_operations_in_flight_have_their_own_outcomes() {
    let server = Server::memcached(&["-M"]);
    let mut client = server.memcached_client();
    let tickets: Vec<_> = (0..3000_u16)
        .map(|port| {
            client.submit(put("web1", port, &port.to_le_bytes()));
            (port, client.submit(get(&["web2", "web1"], port)))
        })
        .collect();
    for (port, ticket) in tickets {
        assert_eq!(values(client.wait(ticket)), [port.to_le_bytes()]);
    }
}

#[test]
fn scan_is_not_supported() {
    let server = Server::memcached(&["-M"]);
    let scan = Operation::Scan {
        hash: hash("web1"),
        cursor: Cursor::START,
    };
    assert_eq!(
        server.memcached_client().perform(scan),
        Err(Failure::Unsupported)
    );
}

#[test]
fn full_memory_and_large_record_are_reported() {
    let server = Server::memcached(&["-M", "-m", "2"]);
    let mut client = server.memcached_client();
    let large = client.perform(put("web1", 1, &vec![7; 2 << 20]));
    assert!(matches!(large, Err(Failure::TooLarge(_))), "{large:?}");
    let full = (0..2000)
        .map(|port| client.perform(put("web1", port, &[7; 60 << 10])))
        .find(Result::is_err);
    assert!(
        matches!(full, Some(Err(Failure::OutOfMemory(_)))),
        "{full:?}"
    );
    // The connection goes on.
    assert_eq!(values(client.perform(get(&["web1"], 0))), [[7; 60 << 10]]);
    assert_eq!(client.store_connections(), 1);
}

#[test]
fn evicted_record_is_missing() {
    let server = Server::memcached(&["-m", "2"]);
    let mut client = server.memcached_client();
    for port in 0..200 {
        assert_eq!(
            client.perform(put("web1", port, &[7; 60 << 10])),
            Ok(Outcome::Stored)
        );
    }
    assert_eq!(
        values(client.perform(get(&["web1"], 0))),
        Vec::<Vec<u8>>::new()
    );
    assert_eq!(values(client.perform(get(&["web1"], 199))), [[7; 60 << 10]]);
}
