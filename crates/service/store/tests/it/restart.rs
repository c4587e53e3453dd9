//! The death of a store in the middle of pipelined writes.

use std::collections::BTreeMap;

use store::{Failure, Outcome, Ticket};

use crate::server::{Client, Server, get, hash, key, put, values};

/// Submits many puts, and kills the store when some are confirmed. Returns the confirmed ports.
fn killed_in_the_middle(server: &mut Server, client: &mut Client) -> Vec<u16> {
    let tickets: Vec<(u16, Ticket)> = (0..5000)
        .map(|port| (port, client.submit(put("web1", port, &port.to_le_bytes()))))
        .collect();
    assert_eq!(client.wait(tickets[100].1), Ok(Outcome::Stored));
    server.kill();
    let mut confirmed = vec![100];
    for (port, ticket) in tickets {
        match client.wait_unless_taken(ticket, port == 100) {
            None => {}
            Some(Ok(Outcome::Stored)) => confirmed.push(port),
            Some(Err(Failure::ConnectionLost(_) | Failure::Unreachable(_))) => {}
            Some(other) => panic!("{other:?}"),
        }
    }
    confirmed
}

#[test]
fn confirmed_puts_are_in_a_store_with_a_log() {
    let mut server = Server::redis(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut client = server.redis_client();
    client.wait_until_connected();
    let confirmed = killed_in_the_middle(&mut server, &mut client);
    server.respawn();
    let mut reader = server.reader();
    let written: BTreeMap<String, Vec<u8>> = redis::cmd("HGETALL")
        .arg(hash("web1").to_string())
        .query(&mut reader)
        .unwrap();
    for port in &confirmed {
        assert_eq!(
            written.get(&key("web1", *port).field()),
            Some(&port.to_le_bytes().to_vec()),
            "{port}"
        );
    }
    client.wait_until_connected();
    assert_eq!(
        values(client.perform(get(&["web1"], 100))),
        [100_u16.to_le_bytes()]
    );
}

#[test]
fn redis_without_a_log_is_empty_and_another_instance() {
    let mut server = Server::redis(&[]);
    let mut client = server.redis_client();
    assert!(!client.wait_until_connected());
    let confirmed = killed_in_the_middle(&mut server, &mut client);
    assert!(confirmed.len() > 100);
    server.respawn();
    assert!(client.wait_until_connected(), "another instance");
    for port in confirmed.into_iter().take(200) {
        assert_eq!(
            values(client.perform(get(&["web1"], port))),
            Vec::<Vec<u8>>::new()
        );
    }
    assert_eq!(client.perform(put("web1", 1, b"new")), Ok(Outcome::Stored));
}

#[test]
fn memcached_is_empty_and_another_instance() {
    let mut server = Server::memcached(&["-M"]);
    let mut client = server.memcached_client();
    assert!(!client.wait_until_connected());
    let confirmed = killed_in_the_middle(&mut server, &mut client);
    server.respawn();
    assert!(client.wait_until_connected(), "another instance");
    for port in confirmed.into_iter().take(200) {
        assert_eq!(
            values(client.perform(get(&["web1"], port))),
            Vec::<Vec<u8>>::new()
        );
    }
}

/// Nobody restarts the store; the clients of it do not wait.
#[test]
fn operations_fail_at_once_without_a_store() {
    let mut server = Server::redis(&[]);
    let mut client = server.redis_client();
    client.perform(put("web1", 1, b"a")).unwrap();
    server.kill();
    client.wait_until_lost();
    for _ in 0..100 {
        let failed = client.perform(get(&["web1"], 1));
        assert!(matches!(failed, Err(Failure::Unreachable(_))), "{failed:?}");
    }
}

#[test]
fn store_is_used_after_many_restarts() {
    let mut server = Server::redis(&[]);
    let mut client = server.redis_client();
    for round in 0..5_u16 {
        assert_eq!(client.wait_until_connected(), round > 0);
        assert_eq!(
            values(client.perform(get(&["web1"], 1))),
            Vec::<Vec<u8>>::new()
        );
        assert_eq!(
            client.perform(put("web1", 1, &round.to_le_bytes())),
            Ok(Outcome::Stored)
        );
        assert_eq!(
            values(client.perform(get(&["web1"], 1))),
            [round.to_le_bytes()]
        );
        server.restart();
    }
}
