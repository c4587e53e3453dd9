//! A host without power is gone at once, silently, and comes back without memory.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use common::{EVENT_TIMEOUT, QUIET_TIME, Udp, addresses, connect, transfer, two_hosts};
use lab::{Direction, Endings, Error, Host, Impairment, Output, Process, endings};

/// A server on port 80 that greets a client and then reads no bytes, and the client, whose last bytes are unread: so
/// the server's kernel sends a RST when the server closes the connection.
fn greeted(server: &Host, client: &Host) -> (Process, TcpStream) {
    let script = "import socket, time\n\
        listener = socket.create_server(('10.0.0.1', 80))\n\
        connection, _ = listener.accept()\n\
        connection.send(b'hello')\n\
        time.sleep(1000)";
    let mut command = server.command("python3");
    let process = server
        .spawn(command.args(["-c", script]), &Output::Null)
        .unwrap();
    let mut ours = connect_when_listening(client);
    ours.set_read_timeout(Some(EVENT_TIMEOUT)).unwrap();
    ours.read_exact(&mut [0; 5]).unwrap();
    ours.write_all(b"unread").unwrap();
    (process, ours)
}

fn connect_when_listening(client: &Host) -> TcpStream {
    let deadline = Instant::now() + EVENT_TIMEOUT;
    loop {
        match client.enter(|| TcpStream::connect("10.0.0.1:80")).unwrap() {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn kill_is_visible_to_peer() {
    let (_lab, server, client) = two_hosts("kill");
    let capture = client.capture("tcp port 80").unwrap();
    let (process, mut ours) = greeted(&server, &client);
    server.kill(&[process.pid()]).unwrap();
    let error = ours.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let heard = endings(&capture.finish().unwrap().packets, 80);
    // RSTs from before the server listened are included.
    assert!(heard.rst >= 1, "{heard:?}");
}

#[test]
fn power_off_kills_all_and_sends_nothing() {
    for relayed in [false, true] {
        let (_lab, server, client) = two_hosts("power");
        if relayed {
            server.impair(&Impairment::with_seed(1)).unwrap();
        }
        let (process, mut ours) = greeted(&server, &client);
        let mut command = server.command("sleep");
        let sleeper = server.spawn(command.arg("1000"), &Output::Null).unwrap();
        let capture = client.capture("tcp port 80").unwrap();
        server.power_off().unwrap();
        for process in [&process, &sleeper] {
            let status = process.wait_with_timeout(Duration::ZERO).unwrap();
            assert!(status.is_some(), "power_off waits for their end");
        }
        assert!(matches!(server.pids(), Err(Error::Off { .. })));
        assert!(server.command("true").status().is_err());
        ours.write_all(b"are you there?").unwrap();
        thread::sleep(QUIET_TIME);
        let captured = capture.finish().unwrap();
        assert_eq!(captured.missed, Some(0));
        assert_eq!(endings(&captured.packets, 80), Endings::default());
        assert!(!captured.packets.is_empty(), "the client asked");
        // After the return of the power the host does not know the connection.
        server.power_on().unwrap();
        assert!(server.pids().unwrap().is_empty());
        let error = ours.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn power_on_restores_links_and_impairments() {
    let (_lab, server, client) = two_hosts("back");
    let mac = server.mac("eth0").unwrap();
    server.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
    server.cut_one_way(Direction::FromHost).unwrap();
    server.power_off().unwrap();
    server.power_off().unwrap();
    server.power_on().unwrap();
    server.power_on().unwrap();
    assert_eq!(server.mac("eth0").unwrap(), mac);
    let read = server
        .command("cat")
        .arg("/proc/sys/net/ipv4/tcp_syncookies")
        .output();
    assert_eq!(read.unwrap().stdout, b"1\n", "the default of the kernel");
    server.heal().unwrap();
    let udp = Udp::new(&client, &server);
    server.cut_one_way(Direction::FromHost).unwrap();
    assert!(udp.is_cut());
    server.heal().unwrap();
    server
        .impair(&Impairment::with_seed(1).loss(100.0))
        .unwrap();
    server.power_off().unwrap();
    server.power_on().unwrap();
    let udp = |host: &Host| {
        host.enter(|| UdpSocket::bind((host.address().ipv4(), 9)))
            .unwrap()
            .unwrap()
    };
    let (here, there) = (udp(&server), udp(&client));
    there.set_read_timeout(Some(QUIET_TIME)).unwrap();
    here.send_to(b"?", (client.address().ipv4(), 9)).unwrap();
    assert!(there.recv(&mut [0; 8]).is_err(), "the loss is still there");
    server.clear_impairment().unwrap();
    let (theirs, ours) = connect(&server, &client, addresses(&server)[1]);
    assert_eq!(transfer(&ours, &theirs, b"back"), b"back");
}

#[test]
fn cut_survives_power_on() {
    let (_lab, server, client) = two_hosts("cut and power");
    server.cut().unwrap();
    server.power_off().unwrap();
    server.power_on().unwrap();
    // A single listener for both attempts: a child that another test forks holds a closed listener until exec, and the
    // address would still be in use.
    let listener = server.enter(|| TcpListener::bind("10.0.0.1:80")).unwrap();
    let address = listener.as_ref().unwrap().local_addr().unwrap();
    let connect_to = |timeout| {
        client
            .enter(|| TcpStream::connect_timeout(&address, timeout))
            .unwrap()
    };
    assert!(connect_to(QUIET_TIME).is_err());
    server.heal().unwrap();
    connect_to(EVENT_TIMEOUT).unwrap();
}
