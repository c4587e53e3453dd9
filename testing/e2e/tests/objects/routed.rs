//! Members in other network segments than the balancer and each other (`--encapsulate`).

use std::net::SocketAddr;

use e2e::clients::{Http, write};
use e2e::pool::{Pool, pool_addresses};
use serde_json::Value;

use crate::Download;

/// More than any hash needs to give a member connections of both families.
const DOWNLOAD_COUNT_MAX: usize = 40;
/// Several super-segments.
const UPLOAD_BYTES: usize = 512 << 10;

/// Downloads over IPv4 and IPv6 from one member; downloads from the other member are finished.
fn downloads_from_one(pool: &Pool) -> (usize, Vec<Download>) {
    let mut found: [Vec<Download>; 2] = [Vec::new(), Vec::new()];
    for number in 0..DOWNLOAD_COUNT_MAX {
        let download = Download::begin(pool, pool_addresses()[number % 2]);
        let member = pool.server_of(download.client());
        found[member].push(download);
        let has = |v6: bool| found[member].iter().any(|it| it.client().is_ipv6() == v6);
        if has(false) && has(true) {
            let [first, second] = found;
            let (on, other) = if member == 0 {
                (first, second)
            } else {
                (second, first)
            };
            other.into_iter().for_each(Download::finish);
            return (member, on);
        }
    }
    panic!("no member has connections of both families");
}

#[test]
fn download_through_routers_survives_power_off_of_its_member() {
    let pool = Pool::routed("objects-routed", false, &[]);
    let (dies, downloads) = downloads_from_one(&pool);
    pool.members[dies].program.host.power_off().expect("off");
    let count = downloads.len();
    downloads.into_iter().for_each(Download::finish);
    pool.await_revived(count);
    pool.assert_none_refused();
    let status = pool.balancer.outlive(&["balance", "status", "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!(status["dropped_not_wrapped"], 0);
    pool.stop();
}

/// A request with a body that is longer than a segment: the balancer gets super-segments. Returns the connection.
fn upload(pool: &Pool, address: SocketAddr) -> Http {
    let stream = pool.scene.connect_to(address);
    let head =
        format!("POST /small/1 HTTP/1.1\r\nHost: a\r\nContent-Length: {UPLOAD_BYTES}\r\n\r\n");
    write(
        &stream,
        &[head.as_bytes(), &vec![b'x'; UPLOAD_BYTES]].concat(),
    );
    let mut http = Http::new(stream);
    let answer = http.response(|_| {});
    assert_eq!(answer.status, 405);
    http
}

#[test]
fn member_behind_router_that_joins_moves_no_connection() {
    let mut pool = Pool::routed("objects-routed-join", true, &["--hash", "mod"]);
    let mut connections: Vec<Http> = (0..12)
        .map(|number| upload(&pool, pool_addresses()[number % 2]))
        .collect();
    let expected = connections[0].get("/small/3").body;
    pool.add_member_behind_router(true);
    for http in &mut connections {
        assert_eq!(http.get("/small/3").body, expected);
    }
    assert_eq!(pool.revived(), Vec::<Value>::new());
    pool.assert_none_refused();
    let forwarded = { pool.members.iter() }
        .map(|member| member.program.events_of("forwarded").len())
        .sum::<usize>();
    assert_ne!(
        forwarded, 0,
        "the hash gives most connections to another member"
    );
    pool.stop();
}
