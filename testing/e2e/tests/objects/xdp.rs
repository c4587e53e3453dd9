//! A balancer that forwards at XDP.

use e2e::arrange::run;
use e2e::pool::{Pool, pool_addresses};
use serde_json::Value;

use crate::Download;

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
    let mut downloads: Vec<Download> = (0..4)
        .map(|number| Download::begin(&pool, pool_addresses()[number % 2]))
        .collect();
    // The next process of the balancer goes on with the places on the devices.
    pool.balancer.restart();
    pool.balancer.wait_for("listening", 2);
    let before = status(&pool);
    assert_eq!(before["forward"], "xdp");
    assert_eq!(before["xdp_devices"], serde_json::json!(["eth0"]));
    let dies = pool.server_of(downloads[0].client());
    let on_it = { downloads.iter() }
        .filter(|download| pool.server_of(download.client()) == dies)
        .count();
    pool.members[dies].program.host.power_off().expect("off");
    downloads.drain(..).for_each(Download::finish);
    pool.await_revived(on_it);
    pool.assert_none_refused();
    let after = status(&pool);
    let count = |of: &Value, what: &str| of[what].as_u64().expect("a number");
    let all = count(&after, "packets") - count(&before, "packets");
    let by_xdp = count(&after, "xdp_packets") - count(&before, "xdp_packets");
    // Once a second, tc looks for the neighbour.
    assert!(by_xdp > all / 2, "{by_xdp} of {all}");
    pool.stop();
}

#[test]
fn device_without_native_xdp_is_an_error_that_names_the_device() {
    let scene = e2e::Scene::new("objects-no-xdp");
    let keys = e2e::loggers::key_file(&scene, "pool.keys");
    run(&scene.server, "ip link add br0 type bridge");
    let mut command = scene
        .server
        .command(&e2e::binaries::outlive().to_string_lossy());
    let own = scene.ipv4(80).to_string();
    let listen = scene.ipv4(e2e::pool::POOL_PORT).to_string();
    command.args(["balance", "--address", &own, "--listen", &listen]);
    command.arg("--key-file").arg(keys);
    command.args(["--forward", "xdp", "--forward-device", "br0"]);
    command.env("OUTLIVE_RUN_DIR", scene.run_dir());
    let ended = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(71), "{said}");
    assert!(
        said.contains("br0 takes no program at native XDP"),
        "{said}"
    );
    assert!(said.contains("--forward tc"), "{said}");
}
