//! A stateful firewall on the server's host: connection tracking judges each packet, and invalid packets
//! are dropped.

use e2e::arrange::{StartGate, run, tcp_counter, wait_until};
use e2e::clients::{is_reset, read_exactly, write};
use e2e::exchange::Exchange;
use e2e::servers::{SERVER_PORT, test_server};
use e2e::{Scene, Seed};
use lab::Signal;

const RULES: &str = "table inet filter {
    chain in { type filter hook input priority 0; policy accept;
        ct state invalid counter drop; ct state established,new accept; }
    chain out { type filter hook output priority 0; policy accept;
        ct state invalid counter drop; ct state established,new accept; }
}\n";

fn behind_firewall(label: &str) -> Scene {
    let scene = Scene::new(label);
    let file = scene.write("rules.nft", RULES);
    run(&scene.server, &format!("nft -f {}", file.display()));
    scene
}

#[test]
fn exchange_survives_kills() {
    let scene = behind_firewall("conntrack");
    let server = scene.protect(&test_server(&scene));
    let connect = || scene.connect(SERVER_PORT);
    Exchange::default().survives(&scene, &server, &mut Seed::choose("conntrack"), connect);
}

/// The server sends its process number, which differs after the restart. The tracker knows the numbers of the new
/// server's TCP; the reset has the numbers that the client knows.
#[test]
fn client_of_differing_response_is_reset() {
    let scene = behind_firewall("conntrack-reset");
    let server = scene.protect(&test_server(&scene));
    let stream = scene.connect(SERVER_PORT);
    write(&stream, b"pid\n");
    let _ = read_exactly(&stream, 11);
    server.kill_main(Signal::KILL);
    let lost = server.wait_for("connection_reset", 1);
    assert!(lost["reason"].to_string().contains("differs"), "{lost}");
    is_reset(&stream);
    server.stop();
}

/// The sockets of the dead server say RST. The programs keep the RST from the client, but the tracker has seen the RST,
/// and forgets the connection soon. A word of `serve` to the client must not begin a connection in the other direction
/// then: the tracker would call the SYN for the new server invalid.
#[test]
fn server_restarts_after_tracker_forgot_connection() {
    let scene = behind_firewall("conntrack-forgets");
    let soon = ("net.netfilter.nf_conntrack_tcp_timeout_close", "1");
    scene
        .server
        .sysctl(soon.0, soon.1)
        .expect("a kernel parameter");
    let (server, gate) = StartGate::before(&scene, test_server(&scene));
    let server = scene.protect(&server);
    let stream = scene.connect(SERVER_PORT);
    write(&stream, b"echo\nbefore");
    assert_eq!(read_exactly(&stream, 6), b"before");

    gate.shut();
    server.kill_main(Signal::KILL);
    server.wait_for("died", 1);
    let tracked = || {
        let entries = std::fs::read_to_string("/proc/thread-self/net/nf_conntrack");
        entries.expect("the tracker's connections")
    };
    let port = format!("dport={SERVER_PORT} ");
    wait_until("the tracker has forgotten the connection", || {
        !scene
            .server
            .enter(tracked)
            .expect("it is on")
            .contains(&port)
    });
    let heard = tcp_counter(&scene.client, "InSegs");
    wait_until("the client is told that there is no room", || {
        tcp_counter(&scene.client, "InSegs") > heard
    });
    gate.open();
    server.wait_serving(1);
    write(&stream, b"after");
    assert_eq!(read_exactly(&stream, 5), b"after");
    server.stop();
}
