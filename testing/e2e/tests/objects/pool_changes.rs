//! Changes of a pool that move no connection.

use e2e::clients::Http;
use e2e::pool::{Pool, pool_addresses};
use serde_json::Value;

use crate::Download;

#[test]
fn growth_of_a_pool_by_the_modulo_moves_no_connection() {
    let mut pool = Pool::with("objects-modulo", 3, &["--hash", "mod"]);
    let mut idle: Vec<Http> = (0..190)
        .map(|number| {
            let mut http = Http::new(pool.scene.connect_to(pool_addresses()[number % 2]));
            http.get("/small/3");
            http
        })
        .collect();
    let first = idle[0].get("/small/4").body;
    let downloads: Vec<Download> = (0..10)
        .map(|number| Download::begin(&pool, pool_addresses()[number % 2]))
        .collect();
    pool.add_member(&[]);
    for http in &mut idle {
        assert_eq!(http.get("/small/4").body, first);
    }
    for download in downloads {
        download.finish();
    }
    assert_eq!(pool.revived(), Vec::<Value>::new());
    pool.assert_none_refused();
    let forwarded = { pool.members.iter() }
        .map(|member| member.program.events_of("forwarded").len())
        .sum::<usize>();
    // The hash gives most connections to another member: these are forwarded.
    assert!(forwarded > 50, "{forwarded}");
    pool.stop();
}

#[test]
fn stopped_member_serves_its_downloads_to_the_end() {
    let mut pool = Pool::of("objects-drain", 0);
    pool.add_member(&["--drain", "10min"]);
    pool.add_member(&[]);
    let (mut downloads, mut on_first) = (Vec::new(), 0);
    // The hash has the pool's key: each download is on the one member or on the other by chance.
    while downloads.len() < 8 || on_first == 0 {
        let download = Download::begin(&pool, pool_addresses()[0]);
        on_first += usize::from(pool.server_of(download.client()) == 0);
        downloads.push(download);
    }
    pool.members[0].program.ask_to_stop();
    let draining = pool.members[0].program.wait_for("draining", 1);
    assert_eq!(draining["connections"], on_first);
    e2e::arrange::wait_until("the pool knows of the drain", || {
        let status = pool.balancer.outlive(&["balance", "status", "--json"]);
        let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
        status["members"][0]["draining"] == true
    });
    let fresh = Download::begin(&pool, pool_addresses()[0]);
    assert_eq!(pool.server_of(fresh.client()), 1);
    fresh.finish();
    downloads.into_iter().for_each(Download::finish);
    assert_eq!(pool.revived(), Vec::<Value>::new());
    pool.assert_none_refused();
    pool.balancer.wait_for("drained", 1);
    pool.members.remove(0).program.stop();
    pool.stop();
}
