//! Hostile and damaged packets: connections, records and a later replay are the same as without such packets.

use std::net::{SocketAddr, SocketAddrV4, TcpStream};

use e2e::arrange::StartGate;
use e2e::clients::{read_exactly, write};
use e2e::exchange::{assert_all_recovered, assert_same, assert_untouched, end};
use e2e::forge::{Forged, Forger, flag, packet};
use e2e::servers::{SERVER_PORT, test_server};
use e2e::{Protected, Scene, Seed, pattern};
use lab::{Signal, TcpSegment};

/// A connection in the middle of an echo, with the numbers that an attacker would have to guess.
struct Target {
    stream: TcpStream,
    client: SocketAddrV4,
    server: SocketAddrV4,
    /// The next sequence number of the client, and of the server.
    client_nxt: u32,
    server_nxt: u32,
}

fn v4(address: SocketAddr) -> SocketAddrV4 {
    match address {
        SocketAddr::V4(address) => address,
        SocketAddr::V6(_) => panic!("the scene is IPv4"),
    }
}

impl Target {
    fn new(scene: &Scene) -> Self {
        let capture = scene
            .client
            .capture(&format!("tcp port {SERVER_PORT}"))
            .expect("a capture");
        let stream = scene.connect(SERVER_PORT);
        write(&stream, b"echo\n");
        write(&stream, b"hello");
        assert_eq!(read_exactly(&stream, 5), b"hello");
        let client = v4(stream.local_addr().expect("an address"));
        let captured = capture.finish().expect("a capture");
        let segments = captured
            .packets
            .iter()
            .filter_map(|packet| TcpSegment::parse(&packet.frame));
        // The SYN takes a sequence number, and the sizes of the data so far are known.
        let isn_of = |port: u16| {
            let mut syns = segments
                .clone()
                .filter(|s| s.source == port && s.flags & flag::SYN != 0);
            syns.next().expect("a SYN").sequence
        };
        Self {
            client_nxt: isn_of(client.port()).wrapping_add(1 + 10),
            server_nxt: isn_of(SERVER_PORT).wrapping_add(1 + 5),
            client,
            server: v4(scene.ipv4(SERVER_PORT)),
            stream,
        }
    }

    /// A segment that claims to be the client's.
    fn forge(&self, flags: u8, offset: u32, payload: &[u8]) -> Forged {
        Forged {
            sequence: self.client_nxt.wrapping_add(offset),
            acknowledgment: self.server_nxt,
            payload: payload.to_vec(),
            ..Forged::new(self.client, self.server, flags)
        }
    }

    /// The echo continues, with the right bytes.
    #[track_caller]
    fn echoes(&mut self, length: usize) {
        let bytes = pattern(length);
        write(&self.stream, &bytes);
        assert_same(&read_exactly(&self.stream, length), &bytes, 0, "echo");
        let length = u32::try_from(length).expect("a few bytes");
        self.client_nxt = self.client_nxt.wrapping_add(length);
        self.server_nxt = self.server_nxt.wrapping_add(length);
    }
}

/// Kills the server and waits until it serves again.
fn kill_and_recover(server: &Protected, recoveries: usize) {
    server.kill_main(Signal::KILL);
    server.wait_serving(recoveries);
}

/// The network damages segments: the server's TCP drops the segments, and the record must not contain the bytes. The
/// client's own bytes arrive later, at the same sequence numbers.
#[test]
fn damaged_segments_are_not_recorded() {
    let scene = Scene::new("damaged");
    let server = scene.protect(&test_server(&scene));
    let recording = scene.record(SERVER_PORT);
    let mut target = Target::new(&scene);
    let forger = Forger::on(&scene.client);
    for recoveries in 1..=2 {
        // Where the client's next bytes belong, behind a hole, and a FIN.
        for (offset, flags) in [(0, flag::PSH), (3000, flag::PSH), (0, flag::FIN)] {
            let forged = target.forge(flags | flag::ACK, offset, &[b'!'; 700]);
            let damaged = Forged {
                checksum_error: 1,
                ..forged.clone()
            };
            for segment in [damaged, forged.unfinished()] {
                forger.send(&segment.packet());
            }
        }
        target.echoes(2000);
        kill_and_recover(&server, recoveries);
        target.echoes(5000);
    }
    end(&target.stream);
    assert_untouched(recording, 1);
    assert_all_recovered(&server);
}

/// An off-path attacker can neither spoil the record nor end the connection, neither while the server lives nor while
/// the server is down.
#[test]
fn out_of_window_segments() {
    let scene = Scene::new("out-of-window");
    let (server, gate) = StartGate::before(&scene, test_server(&scene));
    let server = scene.protect(&server);
    let mut target = Target::new(&scene);
    let forger = Forger::on(&scene.client);
    let mut seed = Seed::choose("out-of-window");
    for recoveries in 1..=3 {
        spray(&target, &forger, &mut seed);
        target.echoes(3000);
        gate.shut();
        server.kill_main(Signal::KILL);
        server.wait_for("died", recoveries);
        spray(&target, &forger, &mut seed);
        gate.open();
        server.wait_serving(recoveries);
        spray(&target, &forger, &mut seed);
        target.echoes(3000);
    }
    assert_eq!(server.events_of("client_reset").len(), 0);
    end(&target.stream);
    assert_all_recovered(&server);
}

/// RSTs, FINs, SYNs and data with sequence numbers that are not in any window, old or new.
fn spray(target: &Target, forger: &Forger, seed: &mut Seed) {
    for _ in 0..300 {
        // Half of all numbers is "before"; the rest is beyond the largest window.
        let offset = u32::try_from(seed.between(1 << 27, 0xf800_0000)).expect("32 bits");
        for flags in [
            flag::RST,
            flag::RST | flag::ACK,
            flag::FIN | flag::ACK,
            flag::SYN,
            flag::PSH | flag::ACK,
        ] {
            let payload: &[u8] = if flags & flag::PSH == 0 {
                b""
            } else {
                b"spoofed"
            };
            forger.send(&target.forge(flags, offset, payload).packet());
        }
    }
}

/// Malformed headers, within the connection and outside.
#[test]
fn malformed_packets() {
    let scene = Scene::new("malformed");
    let server = scene.protect(&test_server(&scene));
    let recording = scene.record(SERVER_PORT);
    let mut target = Target::new(&scene);
    let forger = Forger::on(&scene.client);
    let mut seed = Seed::choose("malformed");
    for recoveries in 1..=2 {
        for _ in 0..2000 {
            forger.send(&garbage(&target, &mut seed));
        }
        target.echoes(3000);
        kill_and_recover(&server, recoveries);
        target.echoes(3000);
    }
    end(&target.stream);
    drop(recording); // strangers' SYNs and the RSTs that they get are in it
    assert_all_recovered(&server);
    let status = server.outlive("status", &["--json", server.name()]);
    assert_eq!(status.json()[0]["stage"], "serving", "{status:?}");
}

/// A packet of random nonsense. A packet that might be valid for the connection has a damaged checksum.
fn garbage(target: &Target, seed: &mut Seed) -> Vec<u8> {
    let bytes = |seed: &mut Seed, most: usize| -> Vec<u8> {
        let length = seed.between(0, most);
        (0..length).map(|_| byte(seed)).collect()
    };
    let stranger = SocketAddrV4::new(*target.client.ip(), 1 + u16::from(byte(seed)));
    let source = if seed.between(0, 1) == 0 {
        target.client
    } else {
        stranger
    };
    let whole = Forged {
        sequence: target.client_nxt,
        acknowledgment: target.server_nxt,
        options: bytes(seed, 40),
        payload: bytes(seed, 100),
        data_offset: (seed.between(0, 1) == 0).then(|| byte(seed) & 15),
        checksum_error: u16::from(source == target.client),
        ..Forged::new(source, target.server, byte(seed))
    };
    match seed.between(0, 2) {
        // Only ports, or a part of the ports, or a truncated header.
        0 => {
            let mut segment = whole.segment();
            segment.truncate(seed.between(0, 19));
            packet(*source.ip(), *target.server.ip(), &segment)
        }
        // An option longer than the header, or without a length.
        1 => {
            let kind = [2, 3, 4, 5, 8, 19, 29, 30, 34][seed.between(0, 8)];
            let length = [0, 1, 2, 3, 10, 40, 255][seed.between(0, 6)];
            Forged {
                options: [1, 1, kind, length].to_vec(),
                data_offset: None,
                ..whole
            }
            .packet()
        }
        _ => whole.packet(),
    }
}

fn byte(seed: &mut Seed) -> u8 {
    u8::try_from(seed.between(0, 255)).expect("a byte")
}

#[test]
fn syn_flood() {
    let scene = Scene::new("flood");
    let server = scene.protect(&test_server(&scene));
    let mut target = Target::new(&scene);
    let forger = Forger::on(&scene.client);
    let mut seed = Seed::choose("flood");
    for number in 0..50_000_u32 {
        // Addresses without a host: no host answers.
        let host = u8::try_from(100 + number % 100).expect("a byte");
        let port = u16::try_from(1024 + number / 100).expect("a port");
        let source = SocketAddrV4::new([10, 0, 0, host].into(), port);
        let sequence = u32::try_from(seed.between(0, 0xffff_ffff)).expect("32 bits");
        let options = vec![2, 4, 5, 180, 4, 2, 1, 1];
        forger.send(
            &Forged {
                sequence,
                options,
                ..Forged::new(source, target.server, flag::SYN)
            }
            .packet(),
        );
    }
    target.echoes(3000);
    kill_and_recover(&server, 1);
    target.echoes(3000);
    end(&target.stream);
    let status = server.outlive("status", &["--json", server.name()]);
    let connections = status.json()[0]["connections"].as_u64().expect("a number");
    assert!(connections <= 1, "strangers became connections: {status:?}");
    let new = scene.connect(SERVER_PORT);
    write(&new, b"echo\nhello");
    assert_eq!(read_exactly(&new, 5), b"hello");
    end(&new);
    assert_all_recovered(&server);
}
