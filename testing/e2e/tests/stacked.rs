//! A served address on a stacked device: a VLAN, a bond, ipvlan, macvtap, stacks of these, and an interface of a VRF.
//! The frames pass both devices. The server is killed at random moments while clients work, and the clients see no
//! crash.
//!
//! A kernel may lack such devices. Then the test reports that, and passes; with `OUTLIVE_STACKED=all`, as in
//! `make kernels`, the test fails.

use std::net::SocketAddr;

use e2e::arrange::{run, test_server_at};
use e2e::exchange::{Exchange, assert_all_recovered};
use e2e::servers::SERVER_PORT;
use e2e::{Scene, Seed};
use lab::{Address, Host};

/// The service's address.
fn address() -> SocketAddr {
    SocketAddr::from(([10, 9, 1, 1], SERVER_PORT))
}

/// Runs the lines on a host. Answers whether the kernel has all these devices.
fn arranged(host: &Host, lines: &[&str]) -> bool {
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let output = host.command(words[0]).args(&words[1..]).output();
        let output = output.unwrap_or_else(|error| panic!("{line}: {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("Unknown device type") || said.contains("not supported") {
            eprintln!("not tested: {line}: {}", said.trim());
            let all = std::env::var("OUTLIVE_STACKED").is_ok_and(|which| which == "all");
            assert!(!all, "OUTLIVE_STACKED=all, and {line}: {said}");
            return false;
        }
        assert!(output.status.success(), "{line}: {said}");
    }
    true
}

/// The exchange between hosts with these devices; `before_kill` as in [`Exchange::run`].
fn survives(
    label: &str,
    server_lines: &[&str],
    client_lines: &[&str],
    before_kill: impl Fn(&Scene, usize),
) {
    let scene = Scene::new(label);
    // A second interface on the same switch, for a bond.
    let second = Address::new(0, 11).expect("an address");
    let second = scene.lab.add_link(&scene.server, "eth1", second);
    second.expect("a second link");
    if !arranged(&scene.server, server_lines) || !arranged(&scene.client, client_lines) {
        return;
    }
    let mut server = test_server_at(&scene, &[address()]);
    if label == "vrf" {
        // There is no address of ours to bind to, but connections come to who listens everywhere.
        let listen = server.command.last_mut().expect("an address");
        *listen = format!("0.0.0.0:{SERVER_PORT}");
    }
    let vlans = kinds_of_vlans(&scene.server);
    let server = scene.protect(&server);
    let exchange = Exchange {
        // An emulated processor is slow.
        download: 1 << 20,
        echo: 256 << 10,
        upload: 512 << 10,
        ..Exchange::default()
    };
    let seed = &mut Seed::choose(label);
    let connect = || scene.connect_to(address());
    exchange.run(&server, seed, connect, |kill| before_kill(&scene, kill));
    assert_all_recovered(&server);
    server.assert_none_of("unseen");
    server.stop();
    assert_eq!(kinds_of_vlans(&scene.server), vlans, "put back");
}

/// Lines as `vlan protocol 802.1Q id 10 <REORDER_HDR>`.
fn kinds_of_vlans(host: &Host) -> Vec<String> {
    let output = host.command("ip").args(["-details", "link"]).output();
    let said = String::from_utf8(output.expect("runs").stdout).expect("text");
    let kinds = said.lines().filter(|line| line.contains("vlan protocol"));
    kinds.map(str::to_owned).collect()
}

fn stacked(label: &str, server_lines: &[&str], client_lines: &[&str]) {
    survives(label, server_lines, client_lines, |_, _| {});
}

/// In the server's network, without more ado.
const NEIGHBOUR_ADDRESS_COMMAND: &str = "ip address add 10.9.1.2/24 dev eth0";

/// The other end of a VLAN.
const IN_VLAN: [&str; 3] = [
    "ip link add link eth0 name eth0.10 type vlan id 10",
    "ip address add 10.9.1.2/24 dev eth0.10",
    "ip link set eth0.10 up",
];

const BOND_COMMANDS: [&str; 5] = [
    "ip link add bond0 type bond mode active-backup miimon 20",
    "ip link set eth0 down",
    "ip link set eth1 down",
    "ip link set eth0 master bond0",
    "ip link set eth1 master bond0",
];

#[test]
fn vlan() {
    let lines = [
        "ip link add link eth0 name eth0.10 type vlan id 10",
        "ip address add 10.9.1.1/24 dev eth0.10",
        "ip link set eth0.10 up",
    ];
    stacked("vlan", &lines, &IN_VLAN);
}

/// The tag would stay in the frame's data: `serve` has the interface take tags out, and puts that back.
#[test]
fn vlan_with_tags_in_frames() {
    let lines = [
        "ip link add link eth0 name eth0.10 type vlan id 10 reorder_hdr off",
        "ip address add 10.9.1.1/24 dev eth0.10",
        "ip link set eth0.10 up",
    ];
    stacked("vlan-tags", &lines, &IN_VLAN);
}

#[test]
fn ipvlan() {
    for mode in ["l2", "l3", "l3s"] {
        let device = format!("ip link add link eth0 name ipv0 type ipvlan mode {mode}");
        let lines = [
            &device,
            "ip address add 10.9.1.1/32 dev ipv0",
            "ip link set ipv0 up",
        ];
        // In the modes of layer 3 no host answers for such an address.
        let route = "ip route add 10.9.1.1/32 via 10.0.0.10";
        stacked(&format!("ipvlan-{mode}"), &lines, &[route]);
    }
}

/// Both directions pass both devices.
#[test]
fn ipvlan_in_separate_network() {
    let lines = [
        "ip link add link eth0 name ipv0 type ipvlan mode l2",
        "ip address add 10.9.1.1/24 dev ipv0",
        "ip link set ipv0 up",
    ];
    stacked("ipvlan-network", &lines, &[NEIGHBOUR_ADDRESS_COMMAND]);
}

#[test]
fn macvtap() {
    let lines = [
        "ip link add link eth0 name tap0 type macvtap mode bridge",
        "ip address add 10.9.1.1/24 dev tap0",
        "ip link set tap0 up",
    ];
    stacked("macvtap", &lines, &[NEIGHBOUR_ADDRESS_COMMAND]);
}

/// The interfaces fail in turn, too.
#[test]
fn bond_with_failing_interfaces() {
    let mut lines = BOND_COMMANDS.to_vec();
    lines.extend([
        "ip link set bond0 up",
        "ip address add 10.9.1.1/24 dev bond0",
    ]);
    survives(
        "bond",
        &lines,
        &[NEIGHBOUR_ADDRESS_COMMAND],
        |scene, kill| {
            let (fails, takes_over) = [("eth0", "eth1"), ("eth1", "eth0")][kill % 2];
            run(&scene.server, &format!("ip link set {takes_over} up"));
            run(&scene.server, &format!("ip link set {fails} down"));
        },
    );
}

#[test]
fn vlan_on_bond() {
    let mut lines = BOND_COMMANDS.to_vec();
    lines.extend([
        "ip link set bond0 up",
        "ip link add link bond0 name bond0.10 type vlan id 10",
        "ip address add 10.9.1.1/24 dev bond0.10",
        "ip link set bond0.10 up",
    ]);
    stacked("vlan-bond", &lines, &IN_VLAN);
}

#[test]
fn macvlan_on_vlan() {
    let lines = [
        "ip link add link eth0 name eth0.10 type vlan id 10",
        "ip link set eth0.10 up",
        "ip link add link eth0.10 name mv0 type macvlan mode bridge",
        "ip address add 10.9.1.1/24 dev mv0",
        "ip link set mv0 up",
    ];
    stacked("macvlan-vlan", &lines, &IN_VLAN);
}

#[test]
fn vlan_on_macvlan() {
    let lines = [
        "ip link add link eth0 name mv0 type macvlan mode bridge",
        "ip link set mv0 up",
        "ip link add link mv0 name mv0.10 type vlan id 10",
        "ip address add 10.9.1.1/24 dev mv0.10",
        "ip link set mv0.10 up",
    ];
    stacked("vlan-macvlan", &lines, &IN_VLAN);
}

/// An interface that belongs to a routing domain keeps its packets: the domain's own device sees none of them come in.
#[test]
fn vrf_interface() {
    let lines = [
        "ip link add vrf0 type vrf table 100",
        "ip link set vrf0 up",
        "ip link set eth0 master vrf0",
        "ip address add 10.9.1.1/24 dev eth0",
        "sysctl -q -w net.ipv4.tcp_l3mdev_accept=1",
    ];
    stacked("vrf", &lines, &[NEIGHBOUR_ADDRESS_COMMAND]);
}

#[test]
fn bridge_with_vlan_port() {
    let lines = [
        "ip link add link eth0 name eth0.10 type vlan id 10",
        "ip link set eth0.10 up",
        "ip link add br0 type bridge",
        "ip link set eth0.10 master br0",
        "ip address add 10.9.1.1/24 dev br0",
        "ip link set br0 up",
    ];
    stacked("bridge-vlan", &lines, &IN_VLAN);
}
