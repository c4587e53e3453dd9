//! A balancer that forwards at XDP.

use e2e::arrange::run;
use e2e::binaries::outlive;
use e2e::pool::{Pool, pool_addresses};
use serde_json::Value;

use crate::{Download, survive_their_member};

/// Frames of XDP on veth need a switch that takes these, and a sender that finishes its checksums, as a network does.
fn pool_with_xdp(label: &str, members: u8) -> Pool {
    let pool = Pool::with(label, members, &["--forward", "xdp"]);
    let link = pool.balancer.host.link("eth0").expect("a link");
    link.carry_xdp().expect("ethtool runs");
    run(&pool.scene.client, "ethtool -K eth0 tx off");
    pool
}

fn status(pool: &Pool) -> Value {
    let status = pool.balancer.outlive(&["balance", "status", "--json"]);
    serde_json::from_slice(&status.stdout).expect("JSON")
}

#[test]
fn downloads_behind_xdp_survive_their_member() {
    let mut pool = pool_with_xdp("objects-xdp", 2);
    let downloads: Vec<Download> = (0..4)
        .map(|number| Download::begin(&pool, pool_addresses()[number % 2]))
        .collect();
    // The next process of the balancer goes on with the places on the devices.
    pool.balancer.restart();
    pool.balancer.wait_for("listening", 2);
    let before = status(&pool);
    assert_eq!(before["forward"], "xdp");
    assert_eq!(before["xdp_devices"], serde_json::json!(["eth0"]));
    survive_their_member(&pool, downloads);
    let after = status(&pool);
    let count = |of: &Value, what: &str| of[what].as_u64().expect("a number");
    let all = count(&after, "packets") - count(&before, "packets");
    let by_xdp = count(&after, "xdp_packets") - count(&before, "xdp_packets");
    // Once a second, tc looks for the neighbour.
    assert!(by_xdp > all / 2, "{by_xdp} of {all}");
    pool.stop();
}

#[test]
fn forwarding_that_xdp_cannot_do_is_refused() {
    let scene = e2e::Scene::new("objects-no-xdp");
    let keys = e2e::loggers::key_file(&scene, "pool.keys");
    run(&scene.server, "ip link add br0 type bridge");
    run(&scene.server, "ip tuntap add dev tun0 mode tun");
    let listen = scene.ipv4(e2e::pool::POOL_PORT).to_string();
    let outlive = || {
        let mut outlive = scene.server.command(&outlive().to_string_lossy());
        outlive.env("OUTLIVE_RUN_DIR", scene.run_dir());
        outlive
    };
    let own = scene.ipv4(80).to_string();
    let native = "br0 takes no program at native XDP";
    for (address, flags, status, reason) in [
        (
            &*own,
            &["--forward", "xdp", "--forward-device", "br0"][..],
            71,
            native,
        ),
        (
            &own,
            &["--forward", "xdp", "--forward-device", "tun0"],
            78,
            "tun0 has no Ethernet",
        ),
        (
            &own,
            &["--forward", "xdp", "--encapsulate", "udp"],
            78,
            "neighbours only",
        ),
        (
            &own,
            &["--forward-device", "br0"],
            78,
            "is for --forward xdp",
        ),
        (
            "127.0.0.1:80",
            &["--forward", "xdp"],
            78,
            "no device of this host has",
        ),
    ] {
        let mut balance = outlive();
        balance.args(["balance", "--address", address, "--listen", &listen]);
        let ended = balance.arg("--key-file").arg(&keys).args(flags).output();
        let ended = ended.expect("it runs");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(status), "{flags:?}: {said}");
        assert!(said.contains(reason), "{flags:?}: {said}");
    }
    let cleaned = outlive().arg("clean").output().expect("it runs");
    let said = String::from_utf8_lossy(&cleaned.stdout);
    assert!(said.contains("no programs were attached"), "{cleaned:?}");
}
