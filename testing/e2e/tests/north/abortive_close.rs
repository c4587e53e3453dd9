//! Servers that close connections with unread input or without a response: before a death and after a death.

use std::{
    fs,
    io::{self, ErrorKind},
    net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream},
    os::unix::fs::FileExt as _,
    path::PathBuf,
};

use e2e::{
    EVENT_TIMEOUT, Protected, Scene,
    clients::{read_exactly, read_some, read_to_end, write},
    exchange::assert_all_recovered,
    servers::{SERVER_PORT, interpreter, unread_close},
};
use lab::Signal;
use rustix::net;

use super::{STATEFUL_REQUIRE, await_condition, rare_calls::kill};

fn client_is_reset(label: &str, flags: &[&str]) {
    let scene = Scene::new(label);
    let server = scene.protect_with(&unread_close(&scene), flags);
    let clients = [scene.connect(SERVER_PORT), scene.connect(SERVER_PORT)];
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
    assert_all_recovered(&server);
}

#[test]
fn close_with_unread_input_resets_client() {
    client_is_reset("rude", &STATEFUL_REQUIRE);
}

#[test]
fn close_with_unread_input_resets_client_unrecorded() {
    client_is_reset("rudesouth", &[]);
}

/// Says this, and no more.
fn say(client: &TcpStream, words: &[u8]) {
    write(client, words);
    client.shutdown(Shutdown::Write).expect("a FIN");
}

/// Asserts that the server has not answered yet.
#[track_caller]
fn assert_silent(client: &TcpStream) {
    client.set_nonblocking(true).expect("a flag");
    let heard = read_some(client, &mut [0; 1]).map_err(|error| error.kind());
    assert_eq!(heard, Err(ErrorKind::WouldBlock));
    client.set_nonblocking(false).expect("a flag");
}

/// Reads the input of a client up to the end, and then thinks without a call to the kernel. Then the server echoes an
/// input that began with `+`, and closes. The server shares two bytes with the test: the first counts the clients that
/// the server has read to the end, the second counts the clients that the server may answer.
const HESITANT_SCRIPT: &str = r#"
import itertools, mmap, socket, sys
with open(sys.argv[3], "r+b") as file:
    shared = mmap.mmap(file.fileno(), 0)
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
for number in itertools.count(1):
    client, _ = listener.accept()
    heard = b""
    while piece := client.recv(1 << 16):
        heard += piece
    shared[0] = number
    while shared[1] < number:
        pass
    if heard.startswith(b"+"):
        client.sendall(heard)
    client.close()
"#;

/// A server that sends no byte, and does not close, before the test allows the answer.
struct Hesitant {
    server: Protected,
    shared: PathBuf,
}

impl Hesitant {
    fn new(scene: &Scene) -> Self {
        let shared = scene.write("shared", [0; 2]);
        let script = scene.write("hesitant/hesitant.py", HESITANT_SCRIPT);
        let (ip, port) = (
            scene.ipv4(SERVER_PORT).ip().to_string(),
            SERVER_PORT.to_string(),
        );
        let (script, file) = (script.to_string_lossy(), shared.to_string_lossy());
        let mut server = interpreter(scene);
        let command = ["/usr/bin/python3", "-u", &script, &ip, &port, &file];
        server.command = command.map(str::to_owned).to_vec();
        let server = scene.protect_with(&server, &STATEFUL_REQUIRE);
        Self { server, shared }
    }

    /// Waits until the server has read this many clients to the end.
    fn hears(&self, clients: u8) {
        await_condition("the server has heard all", || {
            fs::read(&self.shared).expect("a file")[0] == clients
        });
    }

    /// Allows the server to answer this many clients.
    fn answers(&self, clients: u8) {
        let file = fs::File::options().write(true).open(&self.shared);
        let written = file.and_then(|file| file.write_all_at(&[clients], 1));
        written.expect("the file is there");
    }

    /// Kills the server during the thinking; the next life may answer this many clients.
    fn dies(&self, kills: usize, clients: u8) {
        self.server.kill_main(Signal::KILL);
        self.server.wait_for("died", kills);
        self.answers(clients);
        self.server.wait_serving(kills);
    }
}

/// The dead incarnation has neither closed the connection nor sent a byte; the record ends with the whole input. The
/// next incarnation closes the connection within the replay.
#[test]
fn close_before_response_is_replayed() {
    let scene = Scene::new("hesitant");
    let server = Hesitant::new(&scene);
    for (number, words) in (1..).zip([&b"mere words"[..], b"+words", b"-", b"+"]) {
        let client = scene.connect(SERVER_PORT);
        say(&client, words);
        server.hears(number);
        assert_silent(&client);
        server.dies(number.into(), number);
        let heard = read_to_end(&client);
        let is_answered = words.starts_with(b"+");
        assert_eq!(heard, if is_answered { words } else { b"" });
    }
    assert_all_recovered(&server.server);
}

/// A connection from this port, as soon as the earlier connection is gone.
fn connect_from(scene: &Scene, port: u16) -> TcpStream {
    let own = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
    let connect = || -> io::Result<TcpStream> {
        let socket = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None)?;
        net::sockopt::set_socket_reuseaddr(&socket, true)?;
        net::bind(&socket, &own)?;
        net::connect(&socket, &scene.ipv4(SERVER_PORT))?;
        Ok(socket.into())
    };
    let mut connected = None;
    await_condition("the port is free", || {
        match scene.client.enter(connect).expect("the client is on") {
            Ok(stream) => connected = Some(stream),
            Err(error) => assert_eq!(error.kind(), ErrorKind::AddrNotAvailable, "{error}"),
        }
        connected.is_some()
    });
    let stream = connected.expect("it was made");
    let limited = stream.set_read_timeout(Some(EVENT_TIMEOUT));
    limited.expect("a timeout");
    stream
}

/// A connection that the server has closed long ago, and a connection with the same 4-tuple that is unaccepted at the
/// server's death.
#[test]
fn reused_source_port_is_new_client() {
    const FIRST_PORT: u16 = 30_000;
    let scene = Scene::new("sameends");
    // A second after its end, a connection makes room for the next.
    let reuse = scene.client.sysctl("net.ipv4.tcp_tw_reuse", "1");
    reuse.expect("a kernel parameter");
    let server = Hesitant::new(&scene);
    for (kills, words) in (1..).zip([&b"+first"[..], b"+second", b"nothing"]) {
        // Three clients each time.
        let number = 3 * kills - 2;
        server.answers(number);
        let first = connect_from(&scene, FIRST_PORT);
        say(&first, words);
        let answer = if kills < 3 { words } else { b"" };
        assert_eq!(read_to_end(&first), answer);
        drop(first);
        let other = scene.connect(SERVER_PORT);
        say(&other, b"+other");
        server.hears(number + 1);
        let again = connect_from(&scene, FIRST_PORT);
        say(&again, b"+again");
        assert_silent(&other);
        server.dies(kills.into(), number + 2);
        assert_eq!(read_to_end(&other), b"+other");
        assert_eq!(read_to_end(&again), b"+again");
    }
    assert_all_recovered(&server.server);
}
