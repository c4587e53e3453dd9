use std::collections::BTreeMap;

use store::{Cursor, Failure, Operation, Outcome};

use crate::server::{Server, check_lists, get, hash, key, lists, put, values};

#[test]
fn record_is_read_by_an_independent_reader() {
    let server = Server::redis(&[]);
    let mut client = server.redis_client();
    let value: Vec<u8> = (0..=255).collect();
    assert_eq!(client.perform(put("web1", 1, &value)), Ok(Outcome::Stored));
    let mut reader = server.reader();
    let name = hash("web1").to_string();
    let ask = |command: &str, field: Option<String>| {
        let mut command = redis::cmd(command);
        command.arg(&name).arg(field);
        command
    };
    let read: Vec<u8> = ask("HGET", Some("10.0.0.1:1>10.0.0.10:80".to_owned()))
        .query(&mut reader)
        .unwrap();
    assert_eq!(read, value);
    let ttl: u64 = ask("TTL", None).query(&mut reader).unwrap();
    assert!((1..=7200).contains(&ttl), "{ttl}");
}

#[test]
fn look_up_reads_the_hashes_of_all_members() {
    let server = Server::redis(&[]);
    let mut client = server.redis_client();
    client.perform(put("web1", 1, b"old")).unwrap();
    client.perform(put("web3", 1, b"new")).unwrap();
    client.perform(put("web3", 2, b"other")).unwrap();
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
            (key("web3", 1), b"new".to_vec())
        ]
    );
    assert_eq!(
        values(client.perform(get(&["web2"], 1))),
        Vec::<Vec<u8>>::new()
    );
    assert_eq!(
        client.perform(Operation::Delete {
            key: key("web1", 1)
        }),
        Ok(Outcome::Deleted { existed: true })
    );
    assert_eq!(
        client.perform(Operation::Delete {
            key: key("web1", 1)
        }),
        Ok(Outcome::Deleted { existed: false })
    );
    assert_eq!(
        values(client.perform(get(&["web1"], 1))),
        Vec::<Vec<u8>>::new()
    );
    assert_eq!(values(client.perform(get(&["web3"], 1))), [b"new"]);
}

#[test]
fn renewed_record_has_a_whole_time_to_live() {
    let server = Server::redis(&[]);
    let mut client = server.redis_client();
    let renew = |member| Operation::Renew {
        key: key(member, 1),
    };
    client.perform(put("web1", 1, b"a")).unwrap();
    let mut reader = server.reader();
    let name = hash("web1").to_string();
    redis::cmd("EXPIRE")
        .arg(&name)
        .arg(100)
        .exec(&mut reader)
        .unwrap();
    assert_eq!(
        client.perform(renew("web1")),
        Ok(Outcome::Renewed { exists: true })
    );
    assert_eq!(
        client.perform(renew("web2")),
        Ok(Outcome::Renewed { exists: false })
    );
    let ttl: u64 = redis::cmd("TTL").arg(&name).query(&mut reader).unwrap();
    assert!(ttl > 100, "{ttl}");
}

#[test]
fn lists_of_members_are_read_each_name_once() {
    let server = Server::redis(&[]);
    check_lists(&mut server.redis_client());
    let mut reader = server.reader();
    let ttl: u64 = redis::cmd("TTL")
        .arg(lists()[1].to_string())
        .query(&mut reader)
        .unwrap();
    assert!(ttl > 2 * 7200, "{ttl}");
}

#[test]
fn scan_reads_all_records_of_a_member_in_pages() {
    let server = Server::redis(&[]);
    let mut client = server.redis_client();
    let tickets: Vec<_> = (0..2000_u16)
        .map(|port| client.submit(put("web1", port, &[7; 600].map(|_| port.to_le_bytes()[0]))))
        .collect();
    client.perform(put("web2", 1, b"other")).unwrap();
    for ticket in tickets {
        assert_eq!(client.wait(ticket), Ok(Outcome::Stored));
    }
    let name = hash("web1").to_string();
    redis::cmd("HSET")
        .arg(&name)
        .arg("a foreign field")
        .arg("x")
        .exec(&mut server.reader())
        .unwrap();
    let (mut cursor, mut records, mut pages, mut foreign) =
        (Some(Cursor::START), BTreeMap::new(), 0, 0);
    while let Some(at) = cursor {
        let page = client.perform(Operation::Scan {
            hash: hash("web1"),
            cursor: at,
        });
        let Ok(Outcome::Page(page)) = page else {
            panic!("{page:?}")
        };
        cursor = page.next;
        pages += 1;
        foreign += page.foreign;
        records.extend(
            page.values
                .into_iter()
                .map(|value| (value.key, value.value)),
        );
    }
    assert_eq!(records.len(), 2000);
    assert!(
        records
            .iter()
            .all(|(key, value)| key.flow.client().port().to_le_bytes()[0] == value[0])
    );
    assert!(pages > 10, "{pages}");
    assert_eq!(foreign, 1);
    let none = client.perform(Operation::Scan {
        hash: hash("web3"),
        cursor: Cursor::START,
    });
    assert!(
        matches!(none, Ok(Outcome::Page(page)) if page.values.is_empty() && page.next.is_none())
    );
}

#[test]
fn login_and_database_come_from_the_url() {
    let server = Server::redis(&["--requirepass", "a b@c"]);
    let limit = std::time::Duration::from_secs(10);
    let mut client = server.client("valkey://", ":a%20b%40c@", limit);
    assert_eq!(client.perform(put("web1", 1, b"a")), Ok(Outcome::Stored));
    for login in ["", ":wrong@", "user:a%20b%40c@"] {
        let mut client = server.client("redis://", login, limit);
        let denied = client.perform(put("web1", 1, b"b"));
        assert!(matches!(denied, Err(Failure::Denied(_))), "{denied:?}");
        let denied = client.perform(get(&["web1"], 1));
        assert!(matches!(denied, Err(Failure::Denied(_))), "{denied:?}");
    }
    let url = format!("redis://:a%20b%40c@127.0.0.1:{}/3", server.port)
        .parse()
        .unwrap();
    let store = store::StoreClient::open(&url, store::Settings::default()).unwrap();
    let mut other = crate::server::Client::new(store);
    assert_eq!(
        values(other.perform(get(&["web1"], 1))),
        Vec::<Vec<u8>>::new()
    );
    assert_eq!(values(client.perform(get(&["web1"], 1))), [b"a"]);
}
