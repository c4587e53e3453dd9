//! Leftover connections and foreign listeners, on the loopback interface.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};

use crate::common::{eventually, require_root};
use rustix::net::{AddressFamily, SocketType, bind, listen, socket, sockopt};
use supervise::{
    Destroyed, TcpState, address_is_local, check_destroy_supported, destroy_socket,
    destroy_sockets, is_listened_on, listener_on, local_addresses,
};

fn everything(_: SocketAddr, _: SocketAddr, _: TcpState) -> bool {
    true
}

/// The kernel's sockets with the local address `service`, except listeners. No socket is destroyed.
fn leftovers(service: SocketAddr) -> Vec<(SocketAddr, TcpState)> {
    let mut found = Vec::new();
    let look = |_, remote, state| {
        found.push((remote, state));
        false
    };
    let destroyed = destroy_sockets(&[service], look).expect("listed");
    assert_eq!(destroyed, Destroyed::default());
    found
}

fn states(service: SocketAddr) -> Vec<TcpState> {
    leftovers(service).into_iter().map(|(_, s)| s).collect()
}

/// A listener and `n` clients whose connections the server has closed: FIN_WAIT2.
fn closed_by_server(listener: &TcpListener, service: SocketAddr, n: usize) -> Vec<TcpStream> {
    let connect = |_| {
        let client = TcpStream::connect(service).expect("connected");
        let (server, _) = listener.accept().expect("accepted");
        drop(server);
        client
    };
    (0..n).map(connect).collect()
}

fn listener(ip: impl Into<IpAddr>) -> (TcpListener, SocketAddr) {
    require_root();
    let listener = TcpListener::bind((ip.into(), 0)).expect("bound");
    let address = listener.local_addr().expect("it has one");
    (listener, address)
}

#[test]
fn fin_wait_connections_are_destroyed_and_listener_stays() {
    for ip in [
        IpAddr::from(Ipv4Addr::LOCALHOST),
        Ipv6Addr::LOCALHOST.into(),
    ] {
        let (listener, service) = listener(ip);
        let mut clients = closed_by_server(&listener, service, 3);
        eventually("all in FIN_WAIT2", || {
            states(service) == [TcpState::FinWait2; 3]
        });
        let result = destroy_sockets(&[service], everything).expect("destroyed");
        assert_eq!(
            result,
            Destroyed {
                destroyed: 3,
                remaining: 0
            }
        );
        assert_eq!(states(service), []);

        // The clients' own sockets have other addresses, and live on until the clients learn that the peer is gone.
        for client in &mut clients {
            assert_eq!(client.read(&mut [0]).unwrap_or(0), 0);
            eventually("reset", || client.write_all(b"x").is_err());
        }
        TcpStream::connect(service).expect("it still listens");
    }
}

#[test]
fn only_selected_connections_are_destroyed() {
    let (listener, service) = listener(Ipv4Addr::LOCALHOST);
    let clients = closed_by_server(&listener, service, 3);
    eventually("all in FIN_WAIT2", || {
        states(service) == [TcpState::FinWait2; 3]
    });
    let doomed = clients[1].local_addr().expect("connected");
    let choose = |local, remote, state| {
        assert_eq!(local, service);
        assert_eq!(state, TcpState::FinWait2);
        remote == doomed
    };
    let result = destroy_sockets(&[service], choose).expect("destroyed");
    assert_eq!(result.destroyed, 1);
    let left = leftovers(service);
    assert_eq!(left.len(), 2);
    assert!(!left.iter().any(|(remote, _)| *remote == doomed));
}

#[test]
fn several_ports_are_searched_exactly() {
    let all: Vec<_> = (0..8).map(|_| listener(Ipv4Addr::LOCALHOST)).collect();
    let addresses: Vec<SocketAddr> = all.iter().map(|(_, address)| *address).collect();
    let connect = |address: &SocketAddr| TcpStream::connect(address).expect("connected");
    let clients: Vec<TcpStream> = addresses.iter().map(connect).collect();
    for few in [&addresses[..2], &addresses[..7]] {
        let mut found = Vec::new();
        let look = |local, remote, _| {
            found.push((local, remote));
            false
        };
        destroy_sockets(few, look).expect("listed");
        let ends = clients.iter().zip(few);
        let ends = ends.map(|(client, server)| (*server, client.local_addr().expect("an end")));
        assert_eq!(
            found.into_iter().collect::<BTreeSet<_>>(),
            ends.collect::<BTreeSet<_>>()
        );
    }
}

#[test]
fn open_connections_are_destroyed_under_owner() {
    let (listener, service) = listener(Ipv4Addr::LOCALHOST);
    let client = TcpStream::connect(service).expect("connected");
    let (mut server, _) = listener.accept().expect("accepted");
    assert_eq!(states(service), [TcpState::Established]);
    client
        .shutdown(std::net::Shutdown::Write)
        .expect("half closed");
    eventually("CLOSE_WAIT", || states(service) == [TcpState::CloseWait]);
    assert_eq!(
        destroy_sockets(&[service], everything)
            .expect("destroyed")
            .destroyed,
        1
    );
    let error = server.write_all(b"x").expect_err("aborted");
    assert_ne!(error.kind(), std::io::ErrorKind::TimedOut);
}

#[test]
fn connection_is_destroyed_and_listener_stays() {
    for ip in [
        IpAddr::from(Ipv4Addr::LOCALHOST),
        Ipv6Addr::LOCALHOST.into(),
    ] {
        let (listener, service) = listener(ip);
        let clients = [0, 1].map(|_| TcpStream::connect(service).expect("connected"));
        let mut servers = [0, 1].map(|_| listener.accept().expect("accepted").0);
        let doomed = clients[0].local_addr().expect("connected");
        let spared = clients[1].local_addr().expect("connected");
        assert!(destroy_socket(service, doomed).expect("destroyed"));
        assert_eq!(leftovers(service), [(spared, TcpState::Established)]);
        servers[0].write_all(b"x").expect_err("aborted");
        servers[1].write_all(b"x").expect("it lives");
        // Only the listener has that address now.
        assert!(!destroy_socket(service, doomed).expect("nothing there"));
        TcpStream::connect(service).expect("it still listens");
    }
}

#[test]
fn mapped_connection_is_destroyed_by_ipv4_address() {
    let (listener, wildcard) = listener(Ipv6Addr::UNSPECIFIED);
    let service = SocketAddr::from((Ipv4Addr::LOCALHOST, wildcard.port()));
    let client = TcpStream::connect(service).expect("connected");
    let (mut server, _) = listener.accept().expect("accepted");
    let remote = client.local_addr().expect("connected");
    assert!(destroy_socket(service, remote).expect("destroyed"));
    server.write_all(b"x").expect_err("aborted");
}

/// Destroys the single socket with the address `service`, and checks the report: a kernel that cannot destroy sockets
/// must report so.
fn assert_report_is_true(service: SocketAddr) {
    let result = destroy_sockets(&[service], everything).expect("no error");
    assert_eq!(result.destroyed + result.remaining, 1);
    assert_eq!(states(service).len(), result.remaining);
}

/// Older kernels refuse these.
#[test]
fn time_wait_is_reported() {
    let (listener, service) = listener(Ipv4Addr::LOCALHOST);
    drop(closed_by_server(&listener, service, 1));
    eventually("TIME_WAIT", || states(service) == [TcpState::TimeWait]);
    assert_report_is_true(service);
}

/// A full socket without a process, with data that the client has not taken: the remains of a download from a killed
/// server. Before Linux 6.12 such orphans survive.
#[test]
fn orphans_with_unsent_data_are_reported() {
    let (listener, service) = listener(Ipv4Addr::LOCALHOST);
    let _client = TcpStream::connect(service).expect("connected");
    let (mut server, _) = listener.accept().expect("accepted");
    server.set_nonblocking(true).expect("set");
    while server.write(&[0; 65536]).is_ok() {}
    drop(server);
    eventually("FIN_WAIT1", || states(service) == [TcpState::FinWait1]);
    assert_report_is_true(service);
}

#[test]
fn mapped_connections_are_found_by_ipv4_address() {
    let (listener, address) = listener(Ipv6Addr::UNSPECIFIED);
    let service = SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()));
    let client = TcpStream::connect(service).expect("connected");
    drop(listener.accept().expect("accepted"));
    eventually("FIN_WAIT2", || states(service) == [TcpState::FinWait2]);
    assert_eq!(
        leftovers(service)[0].0,
        client.local_addr().expect("connected")
    );
    let mapped = SocketAddr::from((Ipv4Addr::LOCALHOST.to_ipv6_mapped(), address.port()));
    assert_eq!(
        destroy_sockets(&[mapped], everything)
            .expect("destroyed")
            .destroyed,
        1
    );
    assert_eq!(states(service), []);
}

#[test]
fn other_addresses_and_ports_are_untouched() {
    let (listener, service) = listener(Ipv4Addr::LOCALHOST);
    let _clients = closed_by_server(&listener, service, 1);
    eventually("FIN_WAIT2", || states(service) == [TcpState::FinWait2]);
    let elsewhere = SocketAddr::from(([127, 0, 0, 2], service.port()));
    let result = destroy_sockets(&[elsewhere], everything).expect("nothing to do");
    assert_eq!(result, Destroyed::default());
    assert_eq!(states(service).len(), 1);
}

#[test]
fn thousand_sockets_are_destroyed_at_once() {
    let files = rustix::process::Resource::Nofile;
    let mut limit = rustix::process::getrlimit(files);
    limit.current = limit.maximum;
    rustix::process::setrlimit(files, limit).expect("up to the hard limit");
    let (listener, service) = listener(Ipv4Addr::LOCALHOST);
    let _clients = closed_by_server(&listener, service, 1000);
    let result = destroy_sockets(&[service], everything).expect("destroyed");
    assert_eq!(
        result,
        Destroyed {
            destroyed: 1000,
            remaining: 0
        }
    );
}

#[test]
fn kernel_destroys_sockets() {
    require_root();
    check_destroy_supported().expect("CONFIG_INET_DIAG_DESTROY");
}

/// A fork in another test may hold the closed socket until its exec.
fn assert_no_listener_soon(address: SocketAddr) {
    eventually("nobody listens", || {
        listener_on(address).expect("/proc/net").is_none()
    });
}

#[test]
fn listener_is_found_with_owner() {
    let (listener, address) = listener(Ipv4Addr::LOCALHOST);
    let owner = listener_on(address)
        .expect("/proc/net")
        .expect("it listens");
    assert_eq!(owner.address, address);
    assert_eq!(owner.pid, Some(rustix::process::getpid()));
    assert!(owner.program.is_some());
    let elsewhere = SocketAddr::from(([127, 0, 0, 2], address.port()));
    assert_eq!(listener_on(elsewhere).expect("/proc/net"), None);
    let is_there = |address| is_listened_on(address).expect("/proc/net");
    assert!(is_there(address) && !is_there(elsewhere));
    drop(listener);
    assert_no_listener_soon(address);
}

#[test]
fn connections_are_not_listeners() {
    let (listener, service) = listener(Ipv4Addr::LOCALHOST);
    let _clients = closed_by_server(&listener, service, 1);
    let _living = TcpStream::connect(service).expect("connected");
    let _accepted = listener.accept().expect("accepted");
    drop(listener);
    assert_no_listener_soon(service);
}

#[test]
fn wildcard_coverage_matches_kernel() {
    let (v4, address) = listener(Ipv4Addr::UNSPECIFIED);
    let on = |ip: IpAddr, port| {
        let address = SocketAddr::new(ip, port);
        let owner = listener_on(address).expect("/proc/net");
        let is_there = is_listened_on(address).expect("sock_diag");
        assert_eq!(is_there, owner.is_some(), "{address}");
        owner
    };
    assert!(on(Ipv4Addr::LOCALHOST.into(), address.port()).is_some());
    assert!(on(Ipv6Addr::LOCALHOST.into(), address.port()).is_none());
    drop(v4);

    // The standard library's listener on :: takes IPv4, too.
    let (_v6, address) = listener(Ipv6Addr::UNSPECIFIED);
    assert!(on(Ipv6Addr::LOCALHOST.into(), address.port()).is_some());
    assert!(on(Ipv4Addr::LOCALHOST.into(), address.port()).is_some());

    let only_v6 = socket(AddressFamily::INET6, SocketType::STREAM, None).expect("a socket");
    sockopt::set_ipv6_v6only(&only_v6, true).expect("set");
    bind(&only_v6, &SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))).expect("bound");
    listen(&only_v6, 1).expect("listens");
    let address: SocketAddr = rustix::net::getsockname(&only_v6)
        .expect("bound")
        .try_into()
        .expect("an IP address");
    assert!(on(Ipv6Addr::LOCALHOST.into(), address.port()).is_some());
    assert!(on(Ipv4Addr::LOCALHOST.into(), address.port()).is_none());
}

#[test]
fn local_addresses_match_interfaces() {
    let all = local_addresses().expect("the kernel's list");
    let loopback = all.iter().find(|a| a.interface == "lo" && a.ip.is_ipv4());
    let loopback = loopback.expect("lo is up").to_string();
    assert_eq!(loopback, "127.0.0.1 (lo)");
    for ip in [
        "127.0.0.1",
        "127.1.2.3",
        "::1",
        "0.0.0.0",
        "::",
        "::ffff:127.0.0.1",
    ] {
        let ip = ip.parse().expect("an address");
        assert!(address_is_local(ip).expect("the kernel's list"), "{ip}");
    }
    for local in all {
        assert!(address_is_local(local.ip).expect("the kernel's list"));
    }
    // Addresses for documentation (RFC 5737, RFC 3849).
    for ip in ["192.0.2.1", "2001:db8::1"] {
        let ip = ip.parse().expect("an address");
        assert!(!address_is_local(ip).expect("the kernel's list"), "{ip}");
    }
}
