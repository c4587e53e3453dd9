//! A time without a serving host: one host has lost power, the other host hangs (FT-TCP IV.E.1-2).

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use e2e::arrange::{StartGate, tcp_counter, wait_until};
use e2e::clients::{read_exactly, read_some, write};
use e2e::exchange::{assert_untouched, end, talks};
use e2e::servers::{SERVER_PORT, test_server_at};
use e2e::{Checksum, EVENT_TIMEOUT, Scene, assert_same_bytes, pattern};
use lab::pcap::Packet;
use lab::{Host, Signal};
use wire::{Flags, IpPacket, Segment};

use e2e::pair::{Pair, addresses};

/// A pair whose logger tells clients to wait.
fn pair_with_zero_window_acks(label: &str) -> Pair {
    Pair::with(label, &["--zero-window-acks"], &[], |scene| {
        test_server_at(scene, addresses().to_vec(), &[])
    })
}

/// Sends for a second, in spite of all, and asserts that the client has not given up.
fn upload(stream: &TcpStream) {
    let bytes = pattern(12 << 20);
    write(stream, format!("sink {}\n", bytes.len()).as_bytes());
    for piece in bytes.chunks(16 << 10) {
        write(stream, piece);
        thread::sleep(Duration::from_millis(1));
    }
    let expected = format!("{} {:016x}\n", bytes.len(), Checksum::of(&bytes));
    let answer = read_exactly(stream, expected.len());
    assert_same_bytes("upload", expected.as_bytes(), &answer);
}

fn connect_from(host: &Host, address: SocketAddr) -> TcpStream {
    let connect = || TcpStream::connect_timeout(&address, EVENT_TIMEOUT);
    let stream = host.enter(connect).expect("it is on");
    let stream = stream.expect("connected");
    stream
        .set_read_timeout(Some(EVENT_TIMEOUT))
        .expect("a timeout");
    stream
        .set_write_timeout(Some(EVENT_TIMEOUT))
        .expect("a timeout");
    stream
}

/// A connection to a server on a host without a standby. (A power-off closes the other end.)
fn unprotected(scene: &Scene) -> (TcpStream, TcpStream, Host) {
    let host = scene.lab.add_host_at("mute", 40).expect("a host");
    let address = SocketAddr::from((host.address().ipv4(), SERVER_PORT));
    let listener = host.enter(|| TcpListener::bind(address));
    let listener = listener.expect("it is on").expect("a listener");
    let stream = scene.connect_to(address);
    let (accepted, _) = listener.accept().expect("a connection");
    (stream, accepted, host)
}

/// A captured frame of the service: the sending network card, and the segment.
struct Seen<'a> {
    from: &'a [u8],
    client: SocketAddr,
    of_service: bool,
    segment: Segment<'a>,
}

fn seen(packet: &Packet) -> Option<Seen<'_>> {
    let ip = IpPacket::parse(packet.frame.get(14..)?).ok()?;
    let segment = Segment::of(&ip).ok()?;
    let source = SocketAddr::new(ip.source(), segment.source_port());
    let destination = SocketAddr::new(ip.destination(), segment.destination_port());
    let of_service = addresses().contains(&source);
    let (client, server) = match of_service {
        true => (destination, source),
        false => (source, destination),
    };
    addresses().contains(&server).then_some(Seen {
        from: packet.frame.get(6..12)?,
        client,
        of_service,
        segment,
    })
}

/// The fate of a client without an answer: a timeout.
fn gives_up(stream: &TcpStream) {
    let error = read_some(stream, &mut [0]).expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert_eq!(
        error.raw_os_error(),
        Some(rustix::io::Errno::TIMEDOUT.raw_os_error())
    );
}

#[test]
fn clients_wait_for_zero_window_acks_during_outage() {
    let mut pair = pair_with_zero_window_acks("closed");
    let scene = &pair.scene;
    // A client that is not answered gives up after four retransmissions, or questions for room, and 6 s in all.
    let retries = ("net.ipv4.tcp_retries2", "4");
    scene.client.sysctl(retries.0, retries.1).expect("set");
    let (unserved, _other_end, mute) = unprotected(scene);
    let busy = scene.lab.add_host_at("busy", 50).expect("a host");
    // Not the uploads themselves: the capture could miss segments on a busy machine.
    let answers = format!("tcp src port {SERVER_PORT}");
    let captures = [(&scene.client, "tcp"), (&busy, &answers)]
        .map(|(host, filter)| host.capture(filter).expect("a capture"));
    let recording = scene.record(SERVER_PORT);
    let uploads = addresses().map(|address| connect_from(&busy, address));
    let idle = addresses().map(|address| scene.connect_to(address));
    idle.iter().for_each(|idle| talks(idle, "before"));
    let sent = || tcp_counter(&busy, "OutSegs");
    let before = sent();
    let newcomer = thread::scope(|scope| {
        let uploading = uploads.each_ref().map(|one| scope.spawn(|| upload(one)));
        wait_until("the uploads are under way", || sent() > before + 1000);
        let standby = pair.second.serve_pid();
        lab::signal(standby, Signal::STOP).expect("it runs");
        pair.first.power_off();
        mute.power_off().expect("power off");
        write(&unserved, b"anybody?");
        let unanswered = Instant::now();
        wait_until("the logger tells them", || {
            pair.logger.log().contains("get zero-window ACKs")
        });
        idle.iter().for_each(|idle| write(idle, b"say during\n"));
        let told = Instant::now();
        let newcomer = scope.spawn(|| scene.connect_to(addresses()[0]));
        gives_up(&unserved);
        // Clients that are told to wait must wait for longer than that.
        thread::sleep((unanswered.elapsed() * 4 / 3).saturating_sub(told.elapsed()));
        assert!(!newcomer.is_finished(), "nobody is there");
        lab::signal(standby, Signal::CONT).expect("it runs");
        let restored = pair.second.wait_for("restored", 1);
        assert_eq!(restored["lost"], 0, "{restored}");
        pair.second.wait_serving(1);
        for idle in &idle {
            assert_same_bytes("answer", b"during\n", &read_exactly(idle, 7));
        }
        for one in uploading {
            assert!(one.join().is_ok(), "{}", pair.second.log());
        }
        newcomer.join().expect("it is let in late")
    });
    talks(&newcomer, "afterwards");
    pair.second.assert_none_of("connection_reset");
    let waited = idle
        .each_ref()
        .map(|one| one.local_addr().expect("it has one"));
    let sent = uploads
        .each_ref()
        .map(|one| one.local_addr().expect("it has one"));
    for stream in uploads.iter().chain(&idle).chain([&newcomer]) {
        end(stream);
    }
    assert_untouched(recording, 3);
    let logger = pair.logger.host().mac("eth0").expect("it has eth0").0;
    for (capture, clients) in captures.into_iter().zip([waited, sent]) {
        let captured = capture.finish().expect("a capture");
        assert_eq!(captured.missed, Some(0));
        let seen: Vec<Seen<'_>> = captured.packets.iter().filter_map(seen).collect();
        assert_speaker_order(&seen, logger);
        for client in clients {
            assert_zero_window_ack(&seen, logger, client);
            if waited.contains(&client) {
                assert_resumes_after_window_update(&seen, client);
            }
        }
    }
    pair.change_places();
    pair.stop();
}

/// The server starts slowly, and no other client has to be recovered.
#[test]
fn new_client_during_takeover_is_accepted_late() {
    let mut gate = None;
    let mut pair = Pair::new("knocks", |scene| {
        let server = test_server_at(scene, addresses().to_vec(), &[]);
        let (server, door) = StartGate::before(scene, server);
        gate = Some(door);
        server
    });
    let gate = gate.expect("the door of the server");
    gate.shut();
    pair.first.power_off();
    let connect = || TcpStream::connect_timeout(&addresses()[0], Duration::from_millis(20));
    let mut in_vain = 0;
    let mut stream = None;
    wait_until("the client is let in", || {
        match pair.scene.client.enter(connect).expect("it is on") {
            Ok(connected) => stream = Some(connected),
            Err(error) => assert_ne!(error.kind(), ErrorKind::ConnectionRefused),
        }
        // The host serves, but the server does not yet.
        in_vain += usize::from(!pair.second.events_of("granted").is_empty());
        if in_vain == 20 {
            assert!(stream.is_none(), "nobody is there");
            gate.open();
        }
        stream.is_some()
    });
    let stream = stream.expect("connected");
    talks(&stream, "hello");
    pair.second.wait_for("protecting", 1);
    end(&stream);
    pair.change_places();
    pair.stop();
}

/// Asserts the order of senders: first a host, then the logger with zero windows only, then the other host.
fn assert_speaker_order(seen: &[Seen<'_>], logger: [u8; 6]) {
    let mut speakers: Vec<&[u8]> = Vec::new();
    for one in seen.iter().filter(|one| one.of_service) {
        if speakers.last() != Some(&one.from) {
            speakers.push(one.from);
        }
        if one.from == logger {
            let segment = &one.segment;
            assert_eq!((segment.flags(), segment.window()), (Flags::ACK, 0));
            assert!(segment.payload().is_empty(), "{segment:?}");
        }
    }
    assert!(
        matches!(speakers[..], [_, two, _] if two == logger),
        "{speakers:?}"
    );
}

fn assert_zero_window_ack(seen: &[Seen<'_>], logger: [u8; 6], client: SocketAddr) {
    let told = seen
        .iter()
        .any(|one| one.from == logger && one.client == client);
    assert!(told, "{client} was told nothing");
}

/// The first segment after the wait tells the client of room; only then the client sends the waiting data.
fn assert_resumes_after_window_update(seen: &[Seen<'_>], client: SocketAddr) {
    let mut of_it = seen.iter().filter(|one| one.client == client);
    let closed = |one: &&Seen<'_>| one.of_service && one.segment.window() == 0;
    of_it.find(closed).expect("it was told to wait");
    let open = |one: &&Seen<'_>| one.of_service && one.segment.window() > 0;
    let open = of_it.find(open).expect("it was told of room");
    assert!(open.segment.payload().is_empty(), "{:?}", open.segment);
    let said = |one: &&Seen<'_>| !one.of_service && !one.segment.payload().is_empty();
    of_it.find(said).expect("it has something to say");
}
