//! Two balancers with a common register.

use e2e::arrange::wait_until;
use e2e::pool::{Member, Pool, PoolProgram, pool_addresses};
use serde_json::Value;

use crate::{Download, survive_their_member};

fn warnings(balancer: &PoolProgram, code: &str) -> usize {
    let warnings = balancer.events_of("warning");
    warnings.iter().filter(|it| it["code"] == code).count()
}

fn declared_dead(balancer: &PoolProgram) -> Vec<Value> {
    balancer.events_of("declared_dead")
}

/// Powers the download's member off.
fn lose_member(pool: &Pool, download: &Download) -> usize {
    let dies = pool.server_of(download.client());
    pool.members[dies].program.host.power_off().expect("off");
    dies
}

#[test]
fn second_balancer_declares_a_member_dead_after_the_death_of_the_first() {
    for address in pool_addresses() {
        let pool = Pool::with_two_balancers("objects-balancers", 2);
        let mut download = Download::begin(&pool, address);
        pool.balancer.host.power_off().expect("off");
        let (second, _) = pool.second.as_ref().expect("a second balancer");
        pool.route_to_balancers(std::slice::from_ref(&second.host));
        second.await_table(1, 2);
        download.read_up_to(download.bytes.len() + (1 << 20));
        lose_member(&pool, &download);
        download.finish();
        assert_eq!(declared_dead(second).len(), 1);
        pool.await_revived(1);
        pool.assert_none_refused();
        pool.stop();
    }
}

#[test]
fn downloads_go_on_without_the_register() {
    let mut pool = Pool::with_two_balancers("objects-register", 2);
    let mut download = Download::begin(&pool, pool_addresses()[0]);
    let (_, etcd) = pool.second.as_mut().expect("etcd");
    etcd.kill();
    for balancer in pool.balancers() {
        wait_until("the loss is told", || {
            warnings(balancer, "register_lost") > 0
        });
    }
    download.read_up_to(download.bytes.len() + (1 << 20));
    // Without the register, no member is declared dead: the download waits.
    lose_member(&pool, &download);
    let (_, etcd) = pool.second.as_mut().expect("etcd");
    etcd.run();
    download.finish();
    for balancer in pool.balancers() {
        balancer.wait_for("register_back", 1);
        balancer.await_table(2, 1);
    }
    pool.await_revived(1);
    pool.assert_none_refused();
    pool.stop();
}

#[test]
fn killed_balancer_comes_back() {
    let mut pool = Pool::with_two_balancers("objects-back", 2);
    let download = Download::begin(&pool, pool_addresses()[0]);
    pool.balancer.kill();
    let (second, _) = pool.second.as_ref().expect("a second balancer");
    second.await_table(1, 2);
    pool.restart_balancer();
    for balancer in pool.balancers() {
        balancer.await_table(2, 2);
    }
    download.finish();
    assert_eq!(pool.revived(), Vec::<Value>::new());
    pool.assert_none_refused();
    pool.stop();
}

#[test]
fn stopped_balancer_costs_no_connection() {
    let pool = Pool::with_two_balancers("objects-stop", 3);
    let hosts: Vec<_> = pool.balancers().map(|it| it.host.clone()).collect();
    // As a router with equal-cost paths.
    pool.route_to_balancers(&hosts);
    let downloads: Vec<Download> = (0..8)
        .map(|_| Download::begin(&pool, pool_addresses()[0]))
        .collect();
    pool.route_to_balancers(&hosts[1..]);
    let Pool {
        balancer, second, ..
    } = &pool;
    let status = || -> Value {
        let status = balancer.outlive(&["balance", "status", "--json"]);
        serde_json::from_slice(&status.stdout).expect("JSON")
    };
    // On a busy machine the other balancer may be silent for a moment.
    wait_until("both balancers are known", || status()["balancers"] == 2);
    assert_eq!(status()["grants"], true);
    let (second, _) = second.as_ref().expect("a second balancer");
    balancer.ask_to_stop();
    second.await_table(1, 3);
    for download in downloads {
        download.finish();
    }
    // A member that a busy machine silences for longer than its lease is dead for the pool, and its downloads go on
    // elsewhere.
    let is_expelled = |member: &Member| !member.program.events_of("expelled").is_empty();
    if !pool.members.iter().any(is_expelled) {
        assert_eq!(pool.revived(), Vec::<Value>::new());
    }
    pool.assert_none_refused();
    pool.stop();
}

#[test]
fn download_behind_nftables_survives_its_member() {
    download_survives_its_member(Pool::behind_nftables("objects-nft", 2));
}

/// The routes to the members are the balancer: no program of `outlive` sees a packet before a member.
#[test]
fn download_behind_a_router_with_equal_cost_paths_survives_its_member() {
    download_survives_its_member(Pool::behind_ecmp("objects-ecmp", 2));
}

fn download_survives_its_member(mut pool: Pool) {
    let downloads: Vec<Download> = (0..6)
        .map(|number| Download::begin(&pool, pool_addresses()[number % 2]))
        .collect();
    // Another modulus: most connections come to another member, and are forwarded.
    pool.add_member(&[]);
    assert_eq!(pool.revived(), Vec::<Value>::new());
    survive_their_member(&pool, downloads);
    assert_eq!(warnings(&pool.balancer, "on_change_failed"), 0);
    pool.stop();
}
