//! Clients with unusual TCP options: each client works while the server is killed twice at random moments, and sees no
//! crash.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use e2e::arrange::{StartGate, await_closed_window, run, tcp_counter, wait_until};
use e2e::clients::{read_exactly, read_to_end, write};
use e2e::exchange::{Exchange, assert_all_recovered, assert_same, assert_untouched, end};
use e2e::servers::{SERVER_PORT, test_server};
use e2e::sockets::{dial, dial_from, reset};
use e2e::{Protected, Scene, Seed, pattern};
use lab::{Host, Impairment, Signal};
use nix::sys::socket::{setsockopt, sockopt};
use rustix::io::ioctl_fionread;
use rustix::net::{ipproto, sockopt as options};

/// Runs an exchange in a scene after `tell` has configured the client.
fn survives_with(label: &str, tell: impl FnOnce(&Scene)) {
    let scene = Scene::new(label);
    tell(&scene);
    let server = scene.protect(&test_server(&scene));
    let connect = || scene.connect(SERVER_PORT);
    Exchange::default().survives(&scene, &server, &mut Seed::choose(label), connect);
}

fn client_sysctl(scene: &Scene, key: &str, value: &str) {
    scene.client.sysctl(key, value).expect("a kernel parameter");
}

/// The reference for all other tests: the same exchange without a crash, and without `outlive`.
#[test]
fn crash_free_run() {
    let scene = Scene::new("crash-free");
    let plain = scene.plain(&test_server(&scene));
    let recording = scene.record(SERVER_PORT);
    for _ in 0..3 {
        let stream = scene.connect(SERVER_PORT);
        write(&stream, b"say hello\n");
        assert_eq!(read_exactly(&stream, 6), b"hello\n");
        end(&stream);
    }
    assert_untouched(recording, 3);
    drop(plain);
}

#[test]
fn without_timestamps() {
    survives_with("no-timestamps", |scene| {
        client_sysctl(scene, "net.ipv4.tcp_timestamps", "0");
    });
}

#[test]
fn without_sack() {
    survives_with("no-sack", |scene| {
        client_sysctl(scene, "net.ipv4.tcp_sack", "0")
    });
}

#[test]
fn without_window_scaling() {
    survives_with("no-scaling", |scene| {
        client_sysctl(scene, "net.ipv4.tcp_window_scaling", "0");
    });
}

#[test]
fn without_any_option() {
    survives_with("no-options", |scene| {
        for key in ["timestamps", "sack", "window_scaling"] {
            client_sysctl(scene, &format!("net.ipv4.tcp_{key}"), "0");
        }
    });
}

#[test]
fn with_small_segments() {
    survives_with("small-mss", |scene| {
        let route =
            "route replace 10.0.0.0/24 dev eth0 proto kernel scope link src 10.0.0.1 advmss 536";
        let words: Vec<_> = route.split(' ').collect();
        assert!(scene.on_client("ip", &words).status.success());
    });
}

#[test]
fn over_ipv6() {
    let scene = Scene::new("ipv6");
    let server = scene.protect(&test_server(&scene));
    let connect = || scene.connect_to(scene.ipv6(SERVER_PORT));
    Exchange::default().survives(&scene, &server, &mut Seed::choose("ipv6"), connect);
}

/// A client 100 ms away, behind 40 Mbit/s. Self-ACKs have round trips of microseconds: a congestion window inflated
/// by self-ACKs would overrun the queue of that line after the splice. The share of retransmissions may be only a
/// little larger than without crashes.
#[test]
fn distant_client_is_not_overrun() {
    let exchange = Exchange {
        pace: Duration::ZERO,
        ..Exchange::default()
    };
    let share_sent_again = |kills: usize| {
        let scene = Scene::new("far");
        let far = Impairment::with_seed(1)
            .delay(Duration::from_millis(50))
            .rate(40_000_000);
        scene.client.impair(&far).expect("a long line");
        let server = scene.protect(&test_server(&scene));
        let exchange = Exchange { kills, ..exchange };
        let seed = &mut Seed::choose("far");
        let before = ["RetransSegs", "OutSegs"].map(|name| tcp_counter(&scene.server, name));
        exchange.survives(&scene, &server, seed, || scene.connect(SERVER_PORT));
        let after = ["RetransSegs", "OutSegs"].map(|name| tcp_counter(&scene.server, name));
        let [again, all] = [after[0] - before[0], after[1] - before[1]];
        eprintln!("{kills} kills: {again} of {all} segments sent again");
        // Counts stay small: a float holds them exactly.
        #[allow(clippy::cast_precision_loss)]
        let share = again as f64 / all as f64;
        share
    };
    let (without, with) = (share_sent_again(0), share_sent_again(2));
    assert!(
        with < without + 0.25,
        "{without} sent again without a crash, {with} with crashes"
    );
}

/// The client asks once a second whether the server is there, and gives up after four questions without an answer: more
/// than that are answered after the crash, by the new server's host.
#[test]
fn with_one_second_keepalives() {
    let scene = Scene::new("keepalive");
    let (server, gate) = StartGate::before(&scene, test_server(&scene));
    let server = scene.protect(&server);
    let stream = dial(&scene.client, scene.ipv4(SERVER_PORT), None, |socket| {
        options::set_socket_keepalive(socket, true).expect("keepalive");
        options::set_tcp_keepidle(socket, Duration::from_secs(1)).expect("idle time");
        options::set_tcp_keepintvl(socket, Duration::from_secs(1)).expect("interval");
        options::set_tcp_keepcnt(socket, 4).expect("probes");
    });
    let stream = stream.expect("a connection");
    let recording = scene.client.capture(&format!(
        "tcp src port {SERVER_PORT} and tcp[tcpflags] & 5 != 0"
    ));
    let recording = recording.expect("a capture");
    write(&stream, b"say before\n");
    assert_eq!(read_exactly(&stream, 7), b"before\n");
    gate.shut();
    server.kill_main(Signal::KILL);
    server.wait_for("died", 1);
    // Down for as long as the client's first probe takes.
    await_probes(&scene, 1);
    gate.open();
    server.wait_serving(1);
    await_probes(&scene, 7);
    write(&stream, b"say after\n");
    assert_eq!(read_exactly(&stream, 6), b"after\n");
    let captured = recording.finish().expect("a capture");
    assert_eq!(captured.missed, Some(0));
    assert_eq!(captured.packets.len(), 0, "a RST or FIN");
    end(&stream);
    assert_all_recovered(&server);
}

/// Waits until the client has sent this many more keepalive probes. The client sends no other segment meanwhile.
fn await_probes(scene: &Scene, probes: u64) {
    let before = tcp_counter(&scene.client, "OutSegs");
    wait_until("the client probes", || {
        tcp_counter(&scene.client, "OutSegs") >= before + probes
    });
}

#[test]
fn offering_mptcp() {
    let scene = Scene::new("mptcp");
    client_sysctl(&scene, "net.mptcp.enabled", "1");
    scene
        .server
        .sysctl("net.mptcp.enabled", "1")
        .expect("MPTCP");
    let server = scene.protect(&test_server(&scene));
    let connect = || {
        let dialled = dial(
            &scene.client,
            scene.ipv4(SERVER_PORT),
            Some(ipproto::MPTCP),
            |_| {},
        );
        dialled.expect("a connection")
    };
    Exchange::default().survives(&scene, &server, &mut Seed::choose("mptcp"), connect);
    assert_stripped(&server, 3);
}

/// Offers of options that cannot be carried over are taken out of the SYN.
#[track_caller]
fn assert_stripped(server: &Protected, at_least: u64) {
    let status = server.outlive("status", &["--json", server.name()]);
    let stripped = status.json()[0]["counters"]["stripped"]
        .as_u64()
        .expect("a counter");
    assert!(stripped >= at_least, "{status:?}");
}

/// Twice: with a server that uses Fast Open, the first connection would get a cookie, and the second would send data
/// with the SYN.
#[test]
fn offering_fast_open() {
    let scene = Scene::new("fast-open");
    client_sysctl(&scene, "net.ipv4.tcp_fastopen", "3");
    // 0x400: for every listener.
    scene
        .server
        .sysctl("net.ipv4.tcp_fastopen", "1027")
        .expect("Fast Open");
    let server = scene.protect(&test_server(&scene));
    let connect = || -> TcpStream {
        let dialled = dial(&scene.client, scene.ipv4(SERVER_PORT), None, |socket| {
            setsockopt(socket, sockopt::TcpFastOpenConnect, &true).expect("Fast Open");
        });
        dialled.expect("a connection")
    };
    let exchange = Exchange {
        kills: 1,
        download: 2 << 20,
        ..Exchange::default()
    };
    let seed = &mut Seed::choose("fast-open");
    exchange.run(&server, seed, connect, |_| {});
    exchange.run(&server, seed, connect, |_| {});
    assert_all_recovered(&server);
    assert_stripped(&server, 3);
}

/// The client pauses: the window is closed at the server's death, stays closed through the recovery, and opens
/// afterwards.
#[test]
fn zero_window() {
    let scene = Scene::new("closed-window");
    // A client that reads much at once may be given a buffer for all that is to come.
    client_sysctl(&scene, "net.ipv4.tcp_rmem", "4096 131072 4194304");
    let mut seed = Seed::choose("closed-window");
    let server = scene.protect(&test_server(&scene));
    let recording = scene.record(SERVER_PORT);
    let stream = scene.connect(SERVER_PORT);
    // More than both sides' buffers take.
    let expected = pattern(24 << 20);
    write(&stream, format!("pattern {}\n", expected.len()).as_bytes());
    let mut read = seed.between(1, 1 << 20);
    assert_same(&read_exactly(&stream, read), &expected[..read], 0, "before");
    for recovery in 1..=2 {
        await_closed_window(&scene);
        server.kill_main(Signal::KILL);
        server.wait_serving(recovery);
        await_closed_window(&scene);
        let more = seed.between(1, 9 << 20);
        let got = read_exactly(&stream, more);
        assert_same(&got, &expected[read..read + more], read, "after a crash");
        read += more;
    }
    let rest = read_exactly(&stream, expected.len() - read);
    assert_same(&rest, &expected[read..], read, "the rest");
    end(&stream);
    assert_untouched(recording, 1);
    assert_all_recovered(&server);
}

/// The server's TCP asks at times that double whether there is room: the client's word that there is must be enough.
#[test]
fn download_resumes_after_long_zero_window() {
    let scene = Scene::new("long-closed");
    client_sysctl(&scene, "net.ipv4.tcp_rmem", "4096 131072 4194304");
    let mut seed = Seed::choose("long-closed");
    let server = scene.protect(&test_server(&scene));
    let stream = scene.connect(SERVER_PORT);
    let expected = pattern(24 << 20);
    write(&stream, format!("pattern {}\n", expected.len()).as_bytes());
    let read = seed.between(1, 1 << 20);
    assert_same(&read_exactly(&stream, read), &expected[..read], 0, "before");
    await_closed_window(&scene);
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
    server.wait_for("verified", 1);
    // The next time that the server asks by itself is 13 s away, or more.
    wait_until("the server asks seldom", || is_backed_off(&scene));
    let before = timeouts(&scene.server);
    let waits = ioctl_fionread(&stream).expect("a socket");
    let new = usize::try_from(waits).expect("some MiB") + 1;
    let mut rest = read_exactly(&stream, new);
    assert_eq!(timeouts(&scene.server), before, "the server has waited");
    rest.extend(read_exactly(&stream, expected.len() - read - new));
    assert_same(&rest, &expected[read..], read, "the rest");
    end(&stream);
    assert_all_recovered(&server);
}

/// Has a socket of the server's host retransmitted, or probed for room, six times in a row?
fn is_backed_off(scene: &Scene) -> bool {
    let said = run(&scene.server, "ss -tnoHi state established");
    let backoff = said.split_once("backoff:").map(|(_, rest)| rest);
    let times = backoff.and_then(|rest| rest.split(' ').next());
    times
        .and_then(|times| times.parse().ok())
        .is_some_and(|times: u32| times >= 6)
}

/// The number of retransmission timeouts of the host's TCP.
fn timeouts(host: &Host) -> u64 {
    let read = || std::fs::read_to_string("/proc/thread-self/net/netstat");
    let text = host.enter(read).expect("it is on").expect("counters");
    let mut lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("TcpExt: "));
    let [names, values] = [(); 2].map(|()| lines.next().expect("names and values"));
    let found = names
        .split(' ')
        .position(|name| name == "TCPTimeouts")
        .expect("a counter");
    values
        .split(' ')
        .nth(found)
        .expect("a value")
        .parse()
        .expect("a number")
}

/// A single source port for consecutive connections, which end in all ways that free the port at once; the server
/// dies in the middle of some.
#[test]
fn source_port_reuse() {
    let scene = Scene::new("one-port");
    let server = scene.protect(&test_server(&scene));
    let expected = pattern(200_000);
    let mut recoveries = 0;
    for number in 0..30 {
        // The client's own host may keep the port for a moment.
        let mut dialled = None;
        wait_until("the port is free again", || {
            let again = dial_from(&scene.client, 40_000, scene.ipv4(SERVER_PORT));
            let taken = |error: &io::Error| error.kind() == io::ErrorKind::AddrNotAvailable;
            dialled = (!again.as_ref().is_err_and(taken)).then_some(again);
            dialled.is_some()
        });
        let stream = dialled.expect("it was dialled");
        let stream = stream.unwrap_or_else(|error| panic!("connection {number}: {error}"));
        write(&stream, b"pattern 200000\n");
        assert_same(
            &read_exactly(&stream, 5000),
            &expected[..5000],
            0,
            "beginning",
        );
        if number % 8 == 3 {
            server.kill_main(Signal::KILL);
            recoveries += 1;
            if number % 16 == 3 {
                server.wait_serving(recoveries);
            }
        }
        if number % 3 == 2 {
            reset(stream);
            continue;
        }
        let rest = read_exactly(&stream, expected.len() - 5000);
        assert_same(&rest, &expected[5000..], 5000, "rest");
        // The server closes first: only the server's host keeps the connection.
        write(&stream, b"close\n");
        assert_eq!(read_to_end(&stream), b"");
    }
    server.wait_serving(recoveries);
    assert_all_recovered(&server);
}
