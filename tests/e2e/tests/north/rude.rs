//! Servers that close connections, in ways in which their clients hear something else: before a death and after it.

use std::{
    io::{self, ErrorKind},
    net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream},
    thread,
    time::Duration,
};

use e2e::{
    Scene,
    clients::{read_exactly, read_some, read_to_end, write},
    exchange::assert_all_kept,
    servers::{PORT, hesitant, rude},
};

use rustix::net;

use super::{REQUIRE, seldom::kill};

fn hears_the_reset(label: &str, flags: &[&str]) {
    let scene = Scene::new(label);
    let server = scene.protect_with(&rude(&scene), flags);
    let clients = [scene.connect(PORT), scene.connect(PORT)];
    for (kills, client) in clients.iter().enumerate() {
        for other in &clients[kills..] {
            write(other, b"a");
            assert_eq!(read_exactly(other, 1), b".");
        }
        write(client, b"!rest");
        let heard = read_some(client, &mut [0; 1]).map_err(|error| error.kind());
        assert_eq!(heard, Err(ErrorKind::ConnectionReset));
        if kills == 0 {
            kill(&server, 1);
        }
    }
    assert_all_kept(&server);
}

#[test]
fn who_is_not_read_hears_of_it() {
    hears_the_reset("rude", &REQUIRE);
}

#[test]
fn who_is_not_read_hears_of_it_without_a_record_of_the_server() {
    hears_the_reset("rudesouth", &[]);
}

/// Says this, and no more.
fn say(client: &TcpStream, words: &[u8]) {
    write(client, words);
    client.shutdown(Shutdown::Write).expect("a FIN");
}

/// The server thinks of it, and has not answered.
#[track_caller]
fn nothing_was_said(client: &TcpStream) {
    client.set_nonblocking(true).expect("a flag");
    let heard = read_some(client, &mut [0; 1]).map_err(|error| error.kind());
    assert_eq!(heard, Err(ErrorKind::WouldBlock));
    client.set_nonblocking(false).expect("a flag");
}

/// The dead life has not closed it, and has said nothing; its record ends where it had heard all. The next one closes it in its
/// replay already.
#[test]
fn who_was_not_told_anything_yet_is_known_when_it_is_closed() {
    let scene = Scene::new("hesitant");
    let server = scene.protect_with(&hesitant(&scene), &REQUIRE);
    for (kills, words) in (1..).zip([&b"mere words"[..], b"+words", b"-", b"+"]) {
        let client = scene.connect(PORT);
        say(&client, words);
        thread::sleep(Duration::from_millis(150));
        nothing_was_said(&client);
        kill(&server, kills);
        let heard = read_to_end(&client);
        let is_answered = words.starts_with(b"+");
        assert_eq!(heard, if is_answered { words } else { b"" });
    }
    assert_all_kept(&server);
}

/// A connection from this port.
fn connect_from(scene: &Scene, port: u16) -> TcpStream {
    let own = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
    let connect = || -> io::Result<TcpStream> {
        let socket = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None)?;
        net::sockopt::set_socket_reuseaddr(&socket, true)?;
        net::bind(&socket, &own)?;
        net::connect(&socket, &scene.ipv4(PORT))?;
        Ok(socket.into())
    };
    let connected = scene.client.enter(connect).expect("the client is on");
    connected.expect("the server listens")
}

/// One that the server has closed long ago, and one with the same ends that it has not looked at when it dies.
#[test]
fn who_comes_by_the_same_port_again_is_somebody_else() {
    const OWN: u16 = 30_000;
    let scene = Scene::new("sameends");
    // A second after its end, a connection makes room for the next.
    let reuse = scene.client.sysctl("net.ipv4.tcp_tw_reuse", "1");
    reuse.expect("a kernel parameter");
    let server = scene.protect_with(&hesitant(&scene), &REQUIRE);
    for (kills, words) in (1..).zip([&b"+first"[..], b"+second", b"nothing"]) {
        let first = connect_from(&scene, OWN);
        say(&first, words);
        let answer = if kills < 3 { words } else { b"" };
        assert_eq!(read_to_end(&first), answer);
        drop(first);
        thread::sleep(Duration::from_millis(1500));
        let other = scene.connect(PORT);
        say(&other, b"+other");
        let again = connect_from(&scene, OWN);
        say(&again, b"+again");
        thread::sleep(Duration::from_millis(150));
        nothing_was_said(&other);
        kill(&server, kills);
        assert_eq!(read_to_end(&other), b"+other");
        assert_eq!(read_to_end(&again), b"+again");
        drop(again);
        thread::sleep(Duration::from_millis(1500));
    }
    assert_all_kept(&server);
}
