//! Hosts reach each other like hosts on a real switch.

mod common;

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use common::{EVENT_TIMEOUT, Udp, addresses, connect, pattern, transfer, two_hosts};
use lab::{Address, Direction, Error, Impairment, Lab, Output, Signal};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, sendto};

/// An ICMP echo request and the reply, through the kernel's ping socket.
fn ping(from: &lab::Host, to: IpAddr) {
    let (family, protocol, request, reply) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 8, 0),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 128, 129),
    };
    let got = from
        .enter(|| {
            let socket = rustix::net::socket(family, SocketType::DGRAM, Some(protocol))?;
            let timeout = rustix::net::sockopt::Timeout::Recv;
            rustix::net::sockopt::set_socket_timeout(&socket, timeout, Some(EVENT_TIMEOUT))?;
            let message = [request, 0, 0, 0, 0, 0, 0, 1, b'h', b'i'];
            sendto(
                &socket,
                &message,
                SendFlags::empty(),
                &SocketAddr::new(to, 0),
            )?;
            let mut buffer = [0; 64];
            let (_, length) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
            Ok::<_, rustix::io::Errno>(buffer[..length].to_vec())
        })
        .unwrap()
        .unwrap();
    assert_eq!((got[0], &got[8..]), (reply, &b"hi"[..]), "{to}");
}

#[test]
fn hosts_ping_each_other() {
    let (_lab, server, client) = two_hosts("ping");
    for address in addresses(&server) {
        ping(&client, address);
    }
    for address in addresses(&client) {
        ping(&server, address);
    }
}

#[test]
fn tcp_passes_both_ways_with_and_without_relay() {
    let (_lab, server, client) = two_hosts("tcp");
    let bytes = pattern(3_000_000);
    for relayed in [false, true] {
        if relayed {
            server.impair(&Impairment::with_seed(1)).unwrap();
        }
        for address in addresses(&server) {
            let (theirs, ours) = connect(&server, &client, address);
            assert!(transfer(&ours, &theirs, &bytes) == bytes);
            assert!(transfer(&theirs, &ours, &bytes) == bytes);
        }
    }
}

#[test]
fn connection_survives_relay_start_and_stop() {
    let (_lab, server, client) = two_hosts("swap");
    let (theirs, ours) = connect(&server, &client, addresses(&server)[0]);
    let bytes = pattern(500_000);
    for _ in 0..3 {
        server.impair(&Impairment::with_seed(1)).unwrap();
        assert!(transfer(&theirs, &ours, &bytes) == bytes);
        server.clear_impairment().unwrap();
        assert!(transfer(&ours, &theirs, &bytes) == bytes);
    }
}

#[test]
fn full_size_frames_pass_relay() {
    let (_lab, server, client) = two_hosts("full");
    let udp = Udp::new(&server, &client);
    server.impair(&Impairment::with_seed(1)).unwrap();
    // 1500 bytes with the headers of UDP and IPv4; then a datagram of several fragments.
    for length in [1472, 9000] {
        udp.send(7, length);
        assert_eq!(udp.received(1, EVENT_TIMEOUT), [7]);
    }
}

#[test]
fn two_labs_may_share_addresses() {
    let (_first, server, _) = two_hosts("first");
    let (_second, other_server, other_client) = two_hosts("second");
    assert_ne!(server.namespace(), other_server.namespace());
    let address: SocketAddr = "10.0.0.1:80".parse().unwrap();
    let listen = || TcpListener::bind(address);
    let _listener = server.enter(listen).unwrap().unwrap();
    // The other lab's 10.0.0.1 is another host, without a listener.
    let refused = other_client.enter(|| TcpStream::connect(address)).unwrap();
    assert_eq!(
        refused.unwrap_err().kind(),
        std::io::ErrorKind::ConnectionRefused
    );
    other_server.enter(listen).unwrap().unwrap();
}

#[test]
fn second_interface_is_separate_link() {
    let (lab, server, client) = two_hosts("second interface");
    let at = |number| Address::new(7, number).unwrap();
    let second = lab.add_link(&server, "eth1", at(1)).unwrap();
    lab.add_link(&client, "eth1", at(2)).unwrap();
    for address in [IpAddr::from(at(1).ipv4()), at(1).ipv6().into()] {
        let (theirs, ours) = connect(&server, &client, address);
        assert_eq!(transfer(&ours, &theirs, b"by eth1"), b"by eth1");
    }
    let (theirs, ours) = connect(&server, &client, at(1).ipv4().into());
    server.cut().unwrap();
    assert_eq!(transfer(&ours, &theirs, b"still"), b"still");
    server.heal().unwrap();
    second.cut().unwrap();
    ping(&client, addresses(&server)[0]);
    assert_ne!(
        server.ifindex("eth0").unwrap(),
        server.ifindex("eth1").unwrap()
    );
    assert_ne!(server.mac("eth0").unwrap(), server.mac("eth1").unwrap());
    // And two on the same switch.
    let third = Address::new(0, 77).unwrap();
    lab.add_link(&server, "eth2", third).unwrap();
    ping(&client, third.ipv4().into());
    ping(&client, third.ipv6().into());
}

#[test]
fn host_settings_are_applied() {
    let lab = Lab::new("settings").unwrap();
    let host = lab.add_host_at("web", 10).unwrap();
    assert_eq!(host.address().ipv4().to_string(), "10.0.0.10");
    assert_eq!(host.address().ipv6().to_string(), "fd00::10");
    host.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
    let path = "/proc/sys/net/ipv4/tcp_syncookies";
    let inside = host.enter(|| fs::read_to_string(path)).unwrap().unwrap();
    assert_eq!(inside.trim(), "2");
    let output = host.command("cat").arg(path).output().unwrap();
    assert_eq!(output.stdout, b"2\n");
    let shown = host.command("ip").args(["link", "show", "eth0"]).output();
    let shown = String::from_utf8(shown.unwrap().stdout).unwrap();
    assert!(
        shown.contains(&host.mac("eth0").unwrap().to_string()),
        "{shown}"
    );
    assert!(shown.starts_with(&format!("{}: eth0@", host.ifindex("eth0").unwrap())));
    assert_eq!(lab.add_host("next").unwrap().address().number(), 1);
}

#[test]
fn invalid_input_is_refused_with_reason() {
    let (lab, server, _) = two_hosts("nonsense");
    let invalid = |result: Result<(), Error>, what: &str| {
        let error = result.expect_err(what);
        assert!(matches!(error, Error::Invalid(_)), "{what}: {error}");
    };
    invalid(lab.add_host("server").map(drop), "the same name");
    invalid(lab.add_host_at("other", 1).map(drop), "the same number");
    invalid(lab.add_host_at("other", 255).map(drop), "broadcast");
    invalid(lab.add_host("../x").map(drop), "a path");
    invalid(lab.add_host("switch").map(drop), "the switch");
    let free = Address::new(0, 99).unwrap();
    invalid(
        lab.add_link(&server, "eth0", free).map(drop),
        "a taken interface",
    );
    invalid(server.link("eth9").map(drop), "no such interface");
    invalid(server.sysctl("net/../../etc/x", "1"), "a path out");
    let loss = |percent| server.impair(&Impairment::with_seed(1).loss(percent));
    invalid(loss(100.1), "more than everything");
    invalid(loss(f64::NAN), "no number");
    let one_way = |i: &Impairment| server.impair_one_way(Direction::ToHost, i);
    invalid(one_way(&Impairment::with_seed(1).rate(0)), "no rate");
    assert!(matches!(
        server.sysctl("net.ipv4.nothing", "1"),
        Err(Error::Io { .. })
    ));
    // A command's own words are in the error: here `ip` refuses a name that the lab allows.
    let error = lab.add_link(&server, "all", free).unwrap_err();
    assert!(
        matches!(&error, Error::Command { stderr, .. } if !stderr.is_empty()),
        "{error}"
    );
}

#[test]
fn guard_kills_process_and_children() {
    let (lab, server, _) = two_hosts("guard");
    let log = lab.directory().join("log");
    let script = "sleep 1000 & echo started; echo bad >&2; wait";
    let mut command = server.command("sh");
    command.args(["-c", script]);
    let process = server
        .spawn(&mut command, &Output::File(log.clone()))
        .unwrap();
    let deadline = std::time::Instant::now() + EVENT_TIMEOUT;
    while fs::read_to_string(&log).unwrap() != "started\nbad\n" {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut pids = server.pids().unwrap();
    assert_eq!(pids.len(), 2);
    assert!(pids.contains(&process.pid()));
    assert_eq!(process.wait_with_timeout(Duration::ZERO).unwrap(), None);
    drop(process);
    let deadline = std::time::Instant::now() + EVENT_TIMEOUT;
    while !pids.is_empty() {
        assert!(std::time::Instant::now() < deadline, "{pids:?} live on");
        pids = server.pids().unwrap();
    }
}

#[test]
fn process_reports_exit_status() {
    use std::os::unix::process::ExitStatusExt;
    let (_lab, server, client) = two_hosts("status");
    let run = |script: &str| {
        let mut command = server.command("sh");
        let command = command.args(["-c", script]);
        server.spawn(command, &Output::Null).unwrap()
    };
    let exits = run("exit 3");
    let status = exits.wait_with_timeout(EVENT_TIMEOUT).unwrap().unwrap();
    assert_eq!(status.code(), Some(3));
    let again = exits.wait_with_timeout(EVENT_TIMEOUT).unwrap().unwrap();
    assert_eq!(again, status);
    let sleeps = run("exec sleep 1000");
    sleeps.kill(Signal::TERM).unwrap();
    let status = sleeps.wait_with_timeout(EVENT_TIMEOUT).unwrap().unwrap();
    assert_eq!(status.signal(), Some(15));
    // A host kills only processes of that host.
    let sleeps = run("exec sleep 1000");
    client.kill(&[sleeps.pid()]).unwrap();
    assert_eq!(sleeps.wait_with_timeout(Duration::ZERO).unwrap(), None);
    server.kill(&[sleeps.pid()]).unwrap();
    let status = sleeps.wait_with_timeout(Duration::ZERO).unwrap().unwrap();
    assert_eq!(status.signal(), Some(9));
}

#[test]
fn panic_in_host_reaches_caller() {
    let (_lab, server, _) = two_hosts("panic");
    let panics = std::panic::AssertUnwindSafe(|| server.enter(|| panic!("inside")));
    let payload = std::panic::catch_unwind(panics).unwrap_err();
    assert_eq!(payload.downcast_ref(), Some(&"inside"));
    assert_eq!(server.enter(|| 5).unwrap(), 5);
}
