//! Clients while the server is down. The server starts again when a test creates the file of `--need`.

use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::thread;

use e2e::arrange::{StartGate, run, tcp_counter, wait_until};
use e2e::clients::{read_exactly, read_to_end, write};
use e2e::exchange::{assert_all_recovered, assert_same, assert_untouched, end};
use e2e::servers::{SERVER_PORT, test_server};
use e2e::sockets::{dial_from, reset};
use e2e::{EVENT_TIMEOUT, Protected, Scene, Seed, pattern};
use lab::Signal;
use wire::{IpPacket, Segment};

/// The test server behind a door, protected.
struct Gated {
    server: Protected,
    gate: StartGate,
}

impl Gated {
    fn new(scene: &Scene) -> Self {
        let (server, gate) = StartGate::before(scene, test_server(scene));
        let server = scene.protect(&server);
        Self { server, gate }
    }

    /// Kills the server and returns when the death is known: the server is down until [`Gated::come_back`].
    fn go_down(&self) {
        let deaths = self.server.events_of("died").len();
        self.gate.shut();
        self.server.kill_main(Signal::KILL);
        self.server.wait_for("died", deaths + 1);
    }

    /// Lets the server start, and returns at once.
    fn come_back(&self) {
        self.gate.open();
    }
}

/// An exchange in the middle of an echo: the connection works.
#[track_caller]
fn echo_works(stream: &TcpStream) {
    write(stream, b"are you there?");
    assert_eq!(read_exactly(stream, 14), b"are you there?");
}

fn begin_echo(stream: &TcpStream) {
    write(stream, b"echo\n");
    echo_works(stream);
}

#[test]
fn client_sends_fin() {
    let scene = Scene::new("fin");
    let mut seed = Seed::choose("fin");
    let gated = Gated::new(&scene);
    let recording = scene.record(SERVER_PORT);
    let expected = pattern(12 << 20);
    let streams: Vec<TcpStream> = (0..2).map(|_| scene.connect(SERVER_PORT)).collect();
    let [download, echo] = &streams[..] else {
        panic!("two")
    };
    write(download, format!("pattern {}\n", expected.len()).as_bytes());
    let read = seed.between(1, 2 << 20);
    assert_same(
        &read_exactly(download, read),
        &expected[..read],
        0,
        "before",
    );
    begin_echo(echo);

    gated.go_down();
    download.shutdown(Shutdown::Write).expect("a FIN");
    write(echo, b"the last words");
    echo.shutdown(Shutdown::Write).expect("a FIN");
    gated.come_back();

    assert_eq!(read_to_end(echo), b"the last words");
    assert_same(&read_to_end(download), &expected[read..], read, "after");
    assert_untouched(recording, 2);
    assert_all_recovered(&gated.server);
}

/// Also where the FIN came before the crash, and the answer is still under way.
#[test]
fn client_fin_before_outage() {
    let scene = Scene::new("fin-before");
    let gated = Gated::new(&scene);
    let recording = scene.record(SERVER_PORT);
    let expected = pattern(12 << 20);
    let download = scene.connect(SERVER_PORT);
    write(
        &download,
        format!("pattern {}\n", expected.len()).as_bytes(),
    );
    download.shutdown(Shutdown::Write).expect("a FIN");
    let begin = read_exactly(&download, 100_000);
    assert_same(&begin, &expected[..100_000], 0, "before");
    gated.go_down();
    gated.come_back();
    assert_same(
        &read_to_end(&download),
        &expected[100_000..],
        100_000,
        "after",
    );
    assert_untouched(recording, 1);
    assert_all_recovered(&gated.server);
}

/// The connection is forgotten, and the new server never sees the connection.
#[test]
fn client_sends_rst() {
    let scene = Scene::new("rst");
    let gated = Gated::new(&scene);
    let (gone, witness) = (scene.connect(SERVER_PORT), scene.connect(SERVER_PORT));
    begin_echo(&gone);
    begin_echo(&witness);
    let name = gone.local_addr().expect("an address").to_string();

    gated.go_down();
    reset(gone);
    gated.come_back();
    let told = gated.server.wait_for("client_reset", 1);
    assert!(
        told["connection"]
            .as_str()
            .is_some_and(|c| c.contains(&name)),
        "{told}"
    );
    let serving = gated.server.wait_serving(1);
    assert_eq!(
        (&serving["recovered"], &serving["reset"]),
        (&1.into(), &0.into()),
        "{serving}"
    );
    let established = established(&scene);
    assert!(
        !established.contains(&name),
        "the server has it: {established}"
    );
    echo_works(&witness);
    end(&witness);
    assert_all_recovered(&gated.server);
}

/// The connections of the server's host, seen from there.
fn established(scene: &Scene) -> String {
    let output = scene
        .server
        .command("ss")
        .args(["-Htn", "state", "established"])
        .output();
    String::from_utf8(output.expect("ss of iproute2").stdout).expect("text")
}

/// The number of connections that the client's host asks for without an answer.
fn knocking(scene: &Scene) -> usize {
    run(&scene.client, "ss -Htn state syn-sent").lines().count()
}

#[test]
fn client_sends_more_data() {
    let scene = Scene::new("more");
    let gated = Gated::new(&scene);
    let recording = scene.record(SERVER_PORT);
    let stream = scene.connect(SERVER_PORT);
    begin_echo(&stream);
    let all = pattern(3 * 60_000);
    for (recoveries, piece) in all.chunks(60_000).enumerate() {
        gated.go_down();
        // Repeated and first transmissions meet the gate.
        let (at_once, later) = piece.split_at(20_000);
        let before = tcp_counter(&scene.client, "RetransSegs");
        write(&stream, at_once);
        wait_until("the client sends it again", || {
            tcp_counter(&scene.client, "RetransSegs") > before
        });
        write(&stream, later);
        gated.come_back();
        let echoed = read_exactly(&stream, piece.len());
        assert_same(&echoed, piece, recoveries * 60_000, "echo");
        gated.server.wait_serving(recoveries + 1);
    }
    end(&stream);
    assert_untouched(recording, 1);
    assert_all_recovered(&gated.server);
}

/// The client's host loses power silently, and comes back without memory.
#[test]
fn client_loses_power() {
    let scene = Scene::new("power");
    let other = scene.lab.add_host_at("other", 2).expect("another client");
    let gated = Gated::new(&scene);
    let (idle, busy) = (40_001, 40_002);
    let open =
        |port| dial_from(&scene.client, port, scene.ipv4(SERVER_PORT)).expect("a connection");
    let (idle_stream, busy_stream) = (open(idle), open(busy));
    begin_echo(&idle_stream);
    // The server has many bytes left to send to a client that loses power.
    write(&busy_stream, b"pattern 20000000\n");
    let _ = read_exactly(&busy_stream, 1000);
    let witness = dial_from(&other, 40_003, scene.ipv4(SERVER_PORT)).expect("a connection");
    begin_echo(&witness);

    gated.go_down();
    scene.client.power_off().expect("power off");
    gated.come_back();
    drop((idle_stream, busy_stream)); // of a host that is no more

    gated.server.wait_serving(1);
    echo_works(&witness);
    scene.client.power_on().expect("power on");
    for port in [idle, busy] {
        // The server's host knows this connection; after a challenge ACK the host gives the connection up.
        let again = dial_from(&scene.client, port, scene.ipv4(SERVER_PORT)).expect("a connection");
        begin_echo(&again);
        end(&again);
    }
    gated.go_down();
    gated.come_back();
    gated.server.wait_serving(2);
    echo_works(&witness);
    end(&witness);
}

/// A client resets, and uses the same port again at once, still before the server is back.
#[test]
fn client_reuses_source_port() {
    let scene = Scene::new("same-port");
    let gated = Gated::new(&scene);
    let dial = || dial_from(&scene.client, 40_000, scene.ipv4(SERVER_PORT));
    for recoveries in 0..2 {
        let first = dial().expect("a connection");
        begin_echo(&first);
        gated.go_down();
        reset(first);
        let second = thread::scope(|scope| {
            let dialling = scope.spawn(dial);
            wait_until("the client knocks", || knocking(&scene) == 1);
            gated.come_back();
            dialling.join().expect("no panic").expect("a connection")
        });
        begin_echo(&second);
        gated.server.wait_serving(recoveries + 1);
        echo_works(&second);
        end_by_server(second);
    }
    assert_all_recovered(&gated.server);
}

/// The client's FIN comes first, the server has read the end, and the socket disappears: the port can be used again.
fn end_by_server(stream: TcpStream) {
    end(&stream);
    reset(stream);
}

#[test]
fn new_connections_are_accepted_late() {
    let scene = Scene::new("late");
    let gated = Gated::new(&scene);
    let old = scene.connect(SERVER_PORT);
    begin_echo(&old);
    gated.go_down();
    let before = tcp_counter(&scene.client, "RetransSegs");
    let connect = || TcpStream::connect_timeout(&scene.ipv4(SERVER_PORT), EVENT_TIMEOUT);
    let streams: Vec<io::Result<TcpStream>> = thread::scope(|scope| {
        let dialling: Vec<_> = (0..10)
            .map(|_| scope.spawn(|| scene.client.enter(connect).expect("it is on")))
            .collect();
        // No host answers: each client retransmits the SYN.
        wait_until("all knock again", || {
            tcp_counter(&scene.client, "RetransSegs") >= before + 10
        });
        assert_eq!(knocking(&scene), 10, "answered by nobody");
        gated.come_back();
        dialling
            .into_iter()
            .map(|dial| dial.join().expect("no panic"))
            .collect()
    });
    for stream in streams {
        let stream = stream.expect("not refused");
        stream
            .set_read_timeout(Some(EVENT_TIMEOUT))
            .expect("a timeout");
        begin_echo(&stream);
        end(&stream);
    }
    echo_works(&old);
    // No further byte comes unprompted.
    old.set_nonblocking(true).expect("a socket");
    let more = (&old).read(&mut [0]);
    assert_eq!(
        more.map_err(|error| error.kind()),
        Err(io::ErrorKind::WouldBlock)
    );
    assert_all_recovered(&gated.server);
}

/// The client is told that there is no room; and of room, before the client has asked, as soon as there is.
#[test]
fn long_client_wait() {
    let scene = Scene::new("long");
    let gated = Gated::new(&scene);
    let echo = scene.connect(SERVER_PORT);
    begin_echo(&echo);
    let answers = format!("tcp src port {SERVER_PORT}");
    gated.go_down();
    let capture = scene.client.capture(&answers).expect("a capture");
    let before = tcp_counter(&scene.client, "InSegs");
    write(&echo, b"are you there?");
    wait_until("the client is told", || {
        tcp_counter(&scene.client, "InSegs") > before
    });
    gated.come_back();
    assert_eq!(read_exactly(&echo, 14), b"are you there?");
    gated.server.wait_serving(1);
    let captured = capture.finish().expect("a capture");
    assert_eq!(captured.missed, Some(0));
    let heard: Vec<(u16, usize)> = captured
        .packets
        .iter()
        .map(|packet| {
            let ip = IpPacket::parse(&packet.frame[14..]).expect("IP");
            let segment = Segment::of(&ip).expect("TCP");
            (segment.window(), segment.payload().len())
        })
        .collect();
    assert_eq!(heard[0], (0, 0), "{heard:?}");
    let opened = heard.iter().find(|(window, _)| *window > 0);
    let (_, length) = opened.expect("room");
    assert_eq!(*length, 0, "first told, then answered: {heard:?}");
    end(&echo);
    assert_all_recovered(&gated.server);
    gated.server.stop();
}
