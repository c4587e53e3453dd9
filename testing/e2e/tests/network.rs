//! Networks and hosts beyond two hosts on a switch. The server is killed at random moments while clients work, and the
//! clients see no crash.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use e2e::arrange::{run, test_server_at};
use e2e::clients::{read_exactly, read_some, write};
use e2e::exchange::{Exchange, assert_all_recovered, assert_untouched, echo_survives_a_kill};
use e2e::servers::{SERVER_PORT, test_server};
use e2e::{EVENT_TIMEOUT, Recording, Scene, Seed, pattern};
use lab::{Address, Host, Impairment, Signal};

/// The usual exchange, with the server of a scene that was prepared.
fn survives(label: &str, scene: &Scene, flags: &[&str]) {
    let server = scene.protect_with(&test_server(scene), flags);
    let connect = || scene.connect(SERVER_PORT);
    Exchange::default().survives(scene, &server, &mut Seed::choose(label), connect);
}

fn sysctl(scene: &Scene, key: &str, value: &str) {
    scene.server.sysctl(key, value).expect("a kernel parameter");
}

/// With less work: losses cost time.
fn survives_impaired(
    label: &str,
    see: fn(Recording) -> Recording,
    impair: impl FnOnce(Impairment) -> Impairment,
) {
    let scene = Scene::new(label);
    let mut seed = Seed::choose(label);
    scene
        .client
        .impair(&impair(Impairment::with_seed(seed.value())))
        .expect("a worse link");
    let server = scene.protect(&test_server(&scene));
    let exchange = Exchange {
        download: 2 << 20,
        echo: 256 << 10,
        upload: 1 << 20,
        ..Exchange::default()
    };
    let recording = see(scene.record(SERVER_PORT));
    exchange.run(&server, &mut seed, || scene.connect(SERVER_PORT), |_| {});
    assert_untouched(recording, 3);
    assert_all_recovered(&server);
}

#[test]
fn loss() {
    survives_impaired("loss", |all| all, |link| link.loss(1.0));
}

#[test]
fn reordering() {
    survives_impaired(
        "reordering",
        |all| all,
        |link| link.reorder(5.0, Duration::from_millis(2)),
    );
}

#[test]
fn duplication() {
    survives_impaired("duplication", Recording::with_duplicates, |link| {
        link.duplicate(5.0)
    });
}

#[test]
fn loss_reordering_and_duplication() {
    survives_impaired("everything", Recording::with_duplicates, |link| {
        let worse = link
            .loss(0.5)
            .duplicate(2.0)
            .reorder(2.0, Duration::from_millis(3));
        worse.delay(Duration::from_millis(5))
    });
}

#[test]
fn reverse_path_filter() {
    let scene = Scene::new("rp-filter");
    for interface in ["all", "default", "eth0", "lo"] {
        sysctl(&scene, &format!("net.ipv4.conf.{interface}.rp_filter"), "1");
    }
    survives("rp-filter", &scene, &[]);
}

#[test]
fn syn_cookies() {
    let scene = Scene::new("syncookies");
    sysctl(&scene, "net.ipv4.tcp_syncookies", "2");
    survives("syncookies", &scene, &[]);
}

/// Each incarnation of the server has another window scale: none, a large scale, a small scale.
#[test]
fn window_scale_changes_between_incarnations() {
    let scene = Scene::new("window-scale");
    sysctl(&scene, "net.ipv4.tcp_rmem", "4096 131072 33554432");
    let server = scene.protect(&test_server(&scene));
    let exchange = Exchange {
        kills: 3,
        ..Exchange::default()
    };
    let recording = scene.record(SERVER_PORT);
    let seed = &mut Seed::choose("window-scale");
    let connect = || scene.connect(SERVER_PORT);
    exchange.run(&server, seed, connect, |kill| {
        let rmem = [
            "4096 16384 65535",
            "4096 131072 33554432",
            "4096 65536 262144",
        ][kill];
        sysctl(&scene, "net.ipv4.tcp_rmem", rmem);
    });
    assert_untouched(recording, 3);
    assert_all_recovered(&server);
}

/// The server's host stops offering timestamps between two incarnations. Clients have negotiated timestamps: a
/// recovery may reset these connections, with a report, but no byte may be wrong. New connections work.
#[test]
fn timestamps_vanish_between_incarnations() {
    let scene = Scene::new("timestamps-vanish");
    let server = scene.protect(&test_server(&scene));
    let stream = scene.connect(SERVER_PORT);
    let expected = pattern(4 << 20);
    write(&stream, format!("pattern {}\n", expected.len()).as_bytes());
    let mut got = read_exactly(&stream, 100_000);
    sysctl(&scene, "net.ipv4.tcp_timestamps", "0");
    server.kill_main(Signal::KILL);
    let serving = server.wait_serving(1);
    let outcome = read_up_to(&stream, expected.len() - got.len(), &mut got);
    assert!(
        expected.starts_with(&got),
        "a wrong byte before {}",
        got.len()
    );
    let lost = server.events_of("connection_reset");
    match &outcome {
        Ok(()) => assert_eq!((got.len(), lost.len()), (expected.len(), 0), "{serving}"),
        Err(error) => assert_eq!(lost.len(), 1, "broken without an event: {error}, {serving}"),
    }
    eprintln!("timestamps vanish: {outcome:?}, {serving}");

    echo_survives_a_kill(&scene, &server, 2);
}

/// Reads `length` bytes into `got`, or until the first error.
fn read_up_to(stream: &TcpStream, length: usize, got: &mut Vec<u8>) -> std::io::Result<()> {
    let mut buffer = vec![0; 65_536];
    let end = got.len() + length;
    while got.len() < end {
        let most = buffer.len().min(end - got.len());
        match read_some(stream, &mut buffer[..most])? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            more => got.extend(&buffer[..more]),
        }
    }
    Ok(())
}

/// A client on the server's own host: the packets go over the loopback, to the same address.
#[test]
fn client_on_server_host() {
    let scene = Scene::new("loopback");
    survives_at_home(&scene, &[scene.ipv4(SERVER_PORT), scene.ipv6(SERVER_PORT)]);
}

/// A service on loopback addresses.
#[test]
fn loopback_addresses() {
    let scene = Scene::new("localhost");
    let ipv6 = (Ipv6Addr::LOCALHOST, SERVER_PORT).into();
    survives_at_home(&scene, &[([127, 0, 0, 1], SERVER_PORT).into(), ipv6]);
}

/// Without pauses TCP sends two segments of the loopback's 64 KiB as a single segment. Over IPv6 such a frame has an
/// additional header; without timestamps the acknowledgement made from the frame is shortest. And a replayed response
/// of many segments is as fast as any other response.
#[test]
fn longest_segments() {
    for timestamps in ["1", "0"] {
        let scene = Scene::new("longest");
        sysctl(&scene, "net.ipv4.tcp_timestamps", timestamps);
        let addresses = [
            (Ipv4Addr::LOCALHOST, SERVER_PORT).into(),
            (Ipv6Addr::LOCALHOST, SERVER_PORT).into(),
        ];
        let server = scene.protect(&test_server_at(&scene, &addresses));
        for address in addresses {
            let exchange = Exchange {
                download: 32 << 20,
                echo: 16 << 20,
                upload: 16 << 20,
                pace: Duration::ZERO,
                ..Exchange::default()
            };
            let seed = &mut Seed::choose("longest");
            exchange.run(
                &server,
                seed,
                || connect_from(&scene.server, address),
                |_| {},
            );
        }
        assert_all_recovered(&server);
    }
}

fn survives_at_home(scene: &Scene, addresses: &[SocketAddr]) {
    let server = scene.protect(&test_server_at(scene, addresses));
    for address in addresses {
        let connect = || connect_from(&scene.server, *address);
        let exchange = Exchange {
            pace: Duration::from_micros(300),
            ..Exchange::default()
        };
        exchange.run(&server, &mut Seed::choose("loopback"), connect, |_| {});
    }
    assert_all_recovered(&server);
}

fn connect_from(host: &Host, address: SocketAddr) -> TcpStream {
    let connect = || TcpStream::connect_timeout(&address, EVENT_TIMEOUT);
    let stream = host
        .enter(connect)
        .expect("it is on")
        .expect("a connection");
    stream
        .set_read_timeout(Some(EVENT_TIMEOUT))
        .expect("a timeout");
    stream
        .set_write_timeout(Some(EVENT_TIMEOUT))
        .expect("a timeout");
    stream
}

/// Two interfaces, with an address of the service on each. Clients come over both interfaces, and over the first
/// interface to the address of the second.
#[test]
fn second_interface() {
    let scene = Scene::new("second");
    let place = |number| Address::new(1, number).expect("a place");
    scene
        .lab
        .add_link(&scene.server, "eth1", place(10))
        .expect("a link");
    scene
        .lab
        .add_link(&scene.client, "eth1", place(1))
        .expect("a link");
    let (first, second) = (
        scene.ipv4(SERVER_PORT),
        (place(10).ipv4(), SERVER_PORT).into(),
    );
    let server = scene.protect(&test_server_at(&scene, &[first, second]));
    let exchange = Exchange {
        download: 2 << 20,
        upload: 1 << 20,
        ..Exchange::default()
    };
    for address in [first, second] {
        let seed = &mut Seed::choose("second");
        exchange.run(&server, seed, || scene.connect_to(address), |_| {});
    }
    // In by eth0 and out by eth1: as a host with two ways is reached.
    run(
        &scene.client,
        "ip route replace 10.0.1.10/32 via 10.0.0.10 dev eth0 src 10.0.1.1",
    );
    let seed = &mut Seed::choose("second, crossed");
    exchange.run(&server, seed, || scene.connect_to(second), |_| {});
    assert_all_recovered(&server);
}

/// The service's address is on a bridge, and the wire is a port of the bridge: every packet passes two interfaces of
/// this host.
#[test]
fn bridge_address() {
    let scene = Scene::new("bridge");
    let mac = scene.server.mac("eth0").expect("an interface");
    for line in [
        "ip link add br0 type bridge".to_owned(),
        format!("ip link set br0 address {mac} up"),
        "ip address flush dev eth0".to_owned(),
        "ip link set eth0 master br0".to_owned(),
        "ip address add 10.0.0.10/24 dev br0".to_owned(),
    ] {
        run(&scene.server, &line);
    }
    let server = scene.protect(&test_server_at(&scene, &[scene.ipv4(SERVER_PORT)]));
    let seed = &mut Seed::choose("bridge");
    Exchange::default().survives(&scene, &server, seed, || scene.connect(SERVER_PORT));
}

#[test]
fn small_mtu() {
    let scene = Scene::new("mtu");
    for host in [&scene.client, &scene.server] {
        run(host, "ip link set eth0 mtu 576");
    }
    // Too small for IPv6.
    let server = scene.protect(&test_server_at(&scene, &[scene.ipv4(SERVER_PORT)]));
    let exchange = Exchange {
        download: 2 << 20,
        ..Exchange::default()
    };
    let seed = &mut Seed::choose("mtu");
    exchange.survives(&scene, &server, seed, || scene.connect(SERVER_PORT));

    // Records of every size about that of a segment are replayed, as whole segments or in parts.
    let streams: Vec<_> = (400..1400)
        .step_by(50)
        .map(|size| (size, scene.connect(SERVER_PORT)))
        .collect();
    let echo = |size: usize, stream: &TcpStream, command: &[u8]| {
        let bytes = pattern(size);
        write(stream, &[command, &bytes].concat());
        assert_eq!(read_exactly(stream, size), bytes, "echo of {size} bytes");
    };
    streams
        .iter()
        .for_each(|(size, stream)| echo(*size, stream, b"echo\n"));
    server.kill_main(Signal::KILL);
    streams
        .iter()
        .for_each(|(size, stream)| echo(*size, stream, b""));
    server.wait_serving(exchange.kills + 1);
    assert_all_recovered(&server);
}

/// The frames of a stacked device pass the programs of both devices.
#[test]
fn macvlan_survives_server_kill() {
    for mode in ["bridge", "private", "passthru"] {
        let scene = Scene::new(&format!("macvlan-{mode}"));
        let address = SocketAddr::from(([10, 9, 1, 1], SERVER_PORT));
        for line in [
            &format!("ip link add link eth0 name mv0 type macvlan mode {mode}"),
            "ip address add 10.9.1.1/24 dev mv0",
            "ip link set mv0 up",
        ] {
            run(&scene.server, line);
        }
        if mode == "passthru" {
            // Such a device takes all frames of the NIC, also frames for the NIC's own addresses.
            let own = scene.server.address().ipv4();
            run(&scene.server, &format!("ip address del {own}/24 dev eth0"));
            run(&scene.server, &format!("ip address add {own}/24 dev mv0"));
        }
        run(&scene.client, "ip address add 10.9.1.2/24 dev eth0");
        let server = scene.protect(&test_server_at(&scene, &[address]));
        let label = format!("macvlan-{mode}");
        Exchange::default().survives(&scene, &server, &mut Seed::choose(&label), || {
            scene.connect_to(address)
        });
    }
}

/// A port of the server's host that leads to the server's.
fn published_port(scene: &Scene) -> SocketAddr {
    let rules = format!(
        "table ip nat {{
            chain pre {{ type nat hook prerouting priority dstnat; tcp dport 9090 redirect to :{SERVER_PORT}; }}
        }}\n"
    );
    let file = scene.write("rules.nft", rules);
    run(&scene.server, &format!("nft -f {}", file.display()));
    scene.ipv4(9090)
}

/// A published port: on the interface the clients' packets have another address than the server's sockets.
#[test]
fn translated_port_warns_until_configured() {
    let scene = Scene::new("redirect");
    let (published, own) = (published_port(&scene), scene.ipv4(SERVER_PORT));
    let server = scene.protect(&test_server_at(&scene, &[own]));
    let seen = scene.connect_to(own);
    let through = scene.connect_to(published);
    for stream in [&seen, &through] {
        e2e::exchange::talks(stream, "hello");
    }
    let told = server.wait_for("unseen", 1);
    assert_eq!(told["connections"], 1, "{told}");
    let example = told["example"].as_str().expect("a connection");
    let client = through.local_addr().expect("an address").to_string();
    assert!(example.contains(&client), "{example}");
    assert_eq!(e2e::loggers::status(&server)["unseen"], 1);
    drop((seen, through));
    server.stop();

    let flags = ["--address", &published.to_string()];
    let server = scene.protect_with(&test_server_at(&scene, &[own]), &flags);
    let through = scene.connect_to(published);
    e2e::exchange::talks(&through, "before");
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
    e2e::exchange::talks(&through, "afterwards");
    server.assert_none_of("unseen");
    assert_all_recovered(&server);
    drop(through);
    server.stop();
}

/// The programs have seen the connection, without room in the table: only the lack of room is reported.
#[test]
fn connection_over_limit_is_not_reported_unseen() {
    let scene = Scene::new("no-room");
    let (published, own) = (published_port(&scene), scene.ipv4(SERVER_PORT));
    let flags = ["--max-connections", "1"];
    let server = scene.protect_with(&test_server_at(&scene, &[own]), &flags);
    let ends = [own, own, published];
    let all = ends.map(|address| {
        let stream = scene.connect_to(address);
        e2e::exchange::talks(&stream, "hello");
        stream
    });
    let told = server.wait_for("unprotected", 1);
    assert_eq!(told["reason"], "too many connections were open at once");
    let told = server.wait_for("unseen", 1);
    assert_eq!(told["connections"], 1, "{told}");
    let example = told["example"].as_str().expect("a connection");
    let client = all[2].local_addr().expect("an address").to_string();
    assert!(example.contains(&client), "{example}");
    drop(all);
    server.stop();
}

/// A field of the server's only socket, in milliseconds, from the output of `ss`.
fn round_trip(scene: &Scene, field: &str) -> Option<f64> {
    let all = run(
        &scene.server,
        &format!("ss -Htin state established sport = :{SERVER_PORT}"),
    );
    let (_, rest) = all.split_once(&format!("{field}:"))?;
    let number = rest.split(|c: char| c != '.' && !c.is_ascii_digit()).next();
    number.and_then(|number| number.parse().ok())
}

/// A replay is acknowledged within microseconds. Congestion control that remembers the shortest round trip then sends
/// almost no data for ten seconds.
#[test]
fn recovered_socket_learns_client_round_trip() {
    const ONE_WAY: Duration = Duration::from_millis(25);
    const MIN_RTT_SYSCTL: &str = "/proc/sys/net/ipv4/tcp_min_rtt_wlen";
    let scene = Scene::new("round-trip");
    let delay = Impairment::with_seed(1).delay(ONE_WAY);
    scene.client.impair(&delay).expect("a longer way");
    let setting = run(&scene.server, &format!("cat {MIN_RTT_SYSCTL}"));
    let server = scene.protect(&test_server(&scene));
    let stream = e2e::exchange::echoing(&scene);
    // Several segments: the kernel does not measure a round trip with a single segment, whose acknowledgement may be
    // delayed.
    let several = pattern(16 << 10);
    e2e::exchange::echoes(&stream, &several);
    for recovery in 1..=2 {
        server.kill_main(Signal::KILL);
        server.wait_serving(recovery);
        e2e::arrange::wait_until("the kernel knows the round trip", || {
            e2e::exchange::echoes(&stream, &several);
            let shortest = round_trip(&scene, "minrtt").expect("ss tells it");
            // BBR keeps a minimum of its own.
            let remembered = round_trip(&scene, "mrtt").unwrap_or(shortest);
            shortest.min(remembered) >= 2e3 * ONE_WAY.as_secs_f64()
        });
    }
    drop(stream);
    server.stop();
    assert_eq!(
        run(&scene.server, &format!("cat {MIN_RTT_SYSCTL}")),
        setting
    );
}
