use std::time::Duration;

use store::{Cursor, Failure, Operation, Outcome};

use crate::server::{Server, get, hash, put, values};

#[test]
fn full_memory_is_reported_and_reads_succeed() {
    let server = Server::redis(&["--maxmemory", "3mb", "--maxmemory-policy", "noeviction"]);
    let mut client = server.redis_client();
    let results: Vec<_> = (0..200)
        .map(|port| client.perform(put("web1", port, &[7; 60 << 10])))
        .collect();
    let full = results
        .iter()
        .position(Result::is_err)
        .expect("a full memory");
    assert!(
        matches!(results[full], Err(Failure::OutOfMemory(_))),
        "{:?}",
        results[full]
    );
    for (port, result) in (0..).zip(&results) {
        let is_stored = *result == Ok(Outcome::Stored);
        assert!(is_stored || matches!(result, Err(Failure::OutOfMemory(_))));
        assert_eq!(
            values(client.perform(get(&["web1"], port))).len(),
            usize::from(is_stored),
            "{port}"
        );
    }
}

#[test]
fn evicted_record_is_missing_and_other_records_are_read() {
    let server = Server::redis(&["--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru"]);
    let mut client = server.redis_client();
    let members: Vec<String> = (0..100).map(|number| format!("web{number}")).collect();
    for member in &members {
        let result = client.perform(put(member, 1, &[7; 60 << 10]));
        let is_typed = matches!(
            result,
            Ok(Outcome::Stored) | Err(Failure::Evicted | Failure::OutOfMemory(_))
        );
        assert!(is_typed, "{result:?}");
    }
    let all: Vec<&str> = members.iter().map(String::as_str).collect();
    let count = values(client.perform(get(&all, 1))).len();
    assert!((1..100).contains(&count), "{count}");
}

#[test]
fn copy_of_a_store_does_not_write() {
    let server = Server::redis(&[]);
    let mut client = server.redis_client();
    client.perform(put("web1", 1, b"a")).unwrap();
    // Of a server that is not there.
    redis::cmd("REPLICAOF")
        .arg("127.0.0.1")
        .arg(1)
        .exec(&mut server.reader())
        .unwrap();
    let refused = client.perform(put("web1", 1, b"b"));
    assert!(matches!(refused, Err(Failure::ReadOnly(_))), "{refused:?}");
    assert_eq!(values(client.perform(get(&["web1"], 1))), [b"a"]);
    redis::cmd("CONFIG")
        .arg("SET")
        .arg("replica-serve-stale-data")
        .arg("no")
        .exec(&mut server.reader())
        .unwrap();
    let refused = client.perform(get(&["web1"], 1));
    assert!(matches!(refused, Err(Failure::Busy(_))), "{refused:?}");
}

#[test]
fn name_of_another_program_is_reported() {
    let server = Server::redis(&[]);
    let mut client = server.redis_client();
    redis::cmd("SET")
        .arg(hash("web1").to_string())
        .arg("x")
        .exec(&mut server.reader())
        .unwrap();
    let scan = Operation::Scan {
        hash: hash("web1"),
        cursor: Cursor::START,
    };
    for operation in [put("web1", 1, b"a"), get(&["web2", "web1"], 1), scan] {
        let refused = client.perform(operation);
        assert!(matches!(refused, Err(Failure::WrongType(_))), "{refused:?}");
    }
}

#[test]
fn user_without_rights_is_denied() {
    let server = Server::redis(&[]);
    let mut reader = server.reader();
    let user = [
        "SETUSER",
        "reads",
        "on",
        ">p",
        "~*",
        "+@connection",
        "+hget",
    ];
    redis::cmd("ACL").arg(&user).exec(&mut reader).unwrap();
    let mut client = server.client("redis://", "reads:p@", Duration::from_secs(10));
    let denied = client.perform(put("web1", 1, b"a"));
    assert!(matches!(denied, Err(Failure::Denied(_))), "{denied:?}");
    assert_eq!(
        values(client.perform(get(&["web1"], 1))),
        Vec::<Vec<u8>>::new()
    );
}

#[test]
fn silent_store_is_a_time_limit_and_not_a_missing_record() {
    let server = Server::redis(&[]);
    let mut client = server.client("redis://", "", Duration::from_millis(50));
    client.wait_until_connected();
    server.stop();
    assert_eq!(client.perform(get(&["web1"], 1)), Err(Failure::TimedOut));
    server.go_on();
}

/// The put of the old connection is in the buffers of the stopped store.
#[test]
fn old_put_is_not_performed_behind_a_newer_put() {
    let server = Server::redis(&[]);
    let mut client = server.client("redis://", "", Duration::from_millis(20));
    client.wait_until_connected();
    server.stop();
    assert_eq!(
        client.perform(put("web1", 1, b"old")),
        Err(Failure::TimedOut)
    );
    assert_eq!(client.wait_until_lost(), Failure::TimedOut);
    server.go_on();
    client.wait_until_connected();
    let newer = client.perform(put("web1", 1, b"new"));
    if newer == Ok(Outcome::Stored) {
        let name = hash("web1").to_string();
        let mut reader = server.reader();
        let read: String = redis::cmd("HGET")
            .arg(name)
            .arg("10.0.0.1:1>10.0.0.10:80")
            .query(&mut reader)
            .unwrap();
        assert_eq!(read, "new");
    }
}
