//! Addresses of a service on the serving host (`--address-device`): neighbours learn the place at once, and the
//! addresses expire.

use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};

use e2e::arrange::{run, wait_until};
use e2e::clients::{read_exactly, read_some, read_to_end, write};
use e2e::exchange::talks;
use e2e::servers::{Server, test_server_at};
use e2e::{EVENT_TIMEOUT, Protected, Scene, assert_same_bytes, binaries, pattern};
use lab::{Host, Impairment, Mac, Signal};
use rustix::process::test_kill_process;
use serde_json::Value;

/// More than fits in the buffers of both sides.
const DOWNLOAD_BYTES: usize = 32 << 20;
/// Less than waits in the server's socket while the link is slow.
const UNSENT_BYTES: usize = 64 << 10;
const ADDRESS_DEVICE_FLAGS: [&str; 2] = ["--address-device", "eth0"];

fn addresses() -> [SocketAddr; 2] {
    ["10.0.0.110:8080", "[fd00::110]:8080"].map(|text| text.parse().expect("an address"))
}

fn server(scene: &Scene) -> Server {
    test_server_at(scene, addresses().to_vec(), &[])
}

/// `ip address add` or `del`, as by an administrator.
fn by_hand(host: &Host, what: &str, ip: IpAddr) {
    match ip {
        IpAddr::V4(_) => run(host, &format!("ip address {what} {ip}/32 dev eth0")),
        IpAddr::V6(_) if what == "add" => {
            run(host, &format!("ip address add {ip}/128 dev eth0 nodad"))
        }
        IpAddr::V6(_) => run(host, &format!("ip address {what} {ip}/128 dev eth0")),
    };
}

/// The attributes of an address in the kernel of the host; `None` without the address.
fn address_of(host: &Host, ip: IpAddr) -> Option<Value> {
    let shown = run(host, "ip -json address show dev eth0");
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    let addresses = shown[0]["addr_info"].as_array().expect("a list").clone();
    addresses
        .into_iter()
        .find(|address| address["local"] == ip.to_string())
}

fn for_ever(address: &Value) -> bool {
    address["valid_life_time"] == u64::from(u32::MAX)
}

/// The link-layer address to which the host sends packets for `ip`.
fn neighbour(host: &Host, ip: IpAddr) -> String {
    let shown = run(host, &format!("ip -json neighbour show {ip}"));
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    shown[0]["lladdr"].as_str().unwrap_or_default().to_owned()
}

/// The claim of a frame about an address.
#[derive(Debug, PartialEq, Eq)]
enum Claim<'a> {
    /// An ARP packet with this operation, from and for the same address, or an advertisement.
    At(&'a [u8], u8),
    /// A request for the address.
    Asked,
    /// The duplicate detection of a host without an address.
    Probed,
    /// A segment for the address, and the link-layer destination.
    Segment(&'a [u8]),
}

/// Relates a frame to `ip`, field by field: RFC 826, RFC 4861 4.3 and 4.4.
fn parse_claim(frame: &[u8], ip: IpAddr) -> Option<Claim<'_>> {
    let packet = frame.get(14..)?;
    match (frame.get(12..14)?, ip) {
        ([8, 6], IpAddr::V4(ip)) if packet.get(24..28)? == ip.octets() => {
            if packet[14..18] == ip.octets() {
                assert_eq!(frame[..6], [0xff; 6], "a broadcast");
                Some(Claim::At(&packet[8..14], packet[7]))
            } else if packet[14..18] == [0; 4] {
                Some(Claim::Probed)
            } else {
                Some(Claim::Asked)
            }
        }
        ([8, 0], IpAddr::V4(ip)) if packet.get(16..20)? == ip.octets() => {
            Some(Claim::Segment(&frame[..6]))
        }
        ([0x86, 0xdd], IpAddr::V6(ip)) => match *packet.get(40)? {
            _ if packet[24..40] == ip.octets() => Some(Claim::Segment(&frame[..6])),
            // An unsolicited advertisement with the override flag and hop limit 255.
            136 if packet[6] == 58 && packet.get(48..64)? == ip.octets() => {
                let unasked = packet[44] == 0x20 && packet[24] == 0xff && packet[7] == 255;
                unasked.then(|| Claim::At(&packet[66..72], 2))
            }
            135 if packet[6] == 58 && packet.get(48..64)? == ip.octets() => {
                let nowhere = packet[8..24] == [0; 16];
                Some(if nowhere { Claim::Probed } else { Claim::Asked })
            }
            _ => None,
        },
        _ => None,
    }
}

/// A download of which much waits in the server's socket, and the server is stopped.
fn stopped_in_a_download(
    scene: &Scene,
    flags: &[&str],
    before: impl FnOnce(&TcpStream),
) -> (Protected, TcpStream) {
    let flags = [&ADDRESS_DEVICE_FLAGS, flags].concat();
    let protected = scene.protect_with(&server(scene), &flags);
    // The data in the socket take seconds to send.
    let slow = Impairment::with_seed(1).rate(10_000_000);
    scene.client.impair(&slow).expect("a slow link");
    let stream = scene.connect_to(addresses()[0]);
    write(&stream, format!("pattern {DOWNLOAD_BYTES}\n").as_bytes());
    let main = protected.main_pid();
    assert_eq!(read_exactly(&stream, 1000), pattern(DOWNLOAD_BYTES)[..1000]);
    before(&stream);
    protected.kill_serve(Signal::TERM);
    wait_until("the server ends", || test_kill_process(main).is_err());
    (protected, stream)
}

#[track_caller]
fn ends_well(mut protected: Protected) {
    let ended = protected.ended(EVENT_TIMEOUT).expect("serve ends");
    assert!(ended.success(), "{ended}: {}", protected.log());
    protected.assert_nothing_left();
}

#[track_caller]
fn is_sent_the_rest(stream: &TcpStream) {
    let rest = read_to_end(stream);
    assert!(rest.len() > UNSENT_BYTES, "{} bytes", rest.len());
    assert_same_bytes(
        "rest",
        &pattern(DOWNLOAD_BYTES)[1000..][..rest.len()],
        &rest,
    );
}

#[test]
fn output_is_drained_before_address_removal() {
    let scene = Scene::new("stop-download");
    let (protected, stream) = stopped_in_a_download(&scene, &["--stop-timeout", "60s"], |_| ());
    is_sent_the_rest(&stream);
    ends_well(protected);
}

#[test]
fn output_is_drained_by_permanent_address() {
    let scene = Scene::new("stop-stays");
    for address in addresses() {
        by_hand(&scene.server, "add", address.ip());
    }
    let (protected, stream) = stopped_in_a_download(&scene, &["--stop-timeout", "1s"], |_| ());
    ends_well(protected);
    is_sent_the_rest(&stream);
}

/// The address would be gone before the client wants the rest.
fn reset_if_it_does_not_read(label: &str, before: impl FnOnce(&TcpStream)) {
    let scene = Scene::new(label);
    let (protected, stream) = stopped_in_a_download(&scene, &["--stop-timeout", "1s"], before);
    ends_well(protected);
    let mut buffer = vec![0; 1 << 16];
    let error = loop {
        match read_some(&stream, &mut buffer) {
            Ok(0) => panic!("a proper end, not a reset"),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
}

#[test]
fn non_reading_client_is_reset() {
    reset_if_it_does_not_read("stop-stalled", |_| ());
}

/// The server's socket is in LAST_ACK, and the kernel destroys the socket silently.
#[test]
fn half_closed_non_reading_client_is_reset() {
    reset_if_it_does_not_read("stop-half", |stream| {
        stream.shutdown(Shutdown::Write).expect("a FIN");
    });
}

#[test]
fn neighbours_learn_address_holder_at_once() {
    let scene = Scene::new("address-moves");
    let former = scene.lab.add_host_at("former", 30).expect("a host");
    let mac = |host: &Host| -> Mac { host.mac("eth0").expect("it has eth0") };
    for address in addresses() {
        by_hand(&former, "add", address.ip());
        let connect = || TcpStream::connect_timeout(&address, EVENT_TIMEOUT);
        let refused = scene.client.enter(connect).expect("it is on");
        let refused = refused.expect_err("nobody listens there");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(
            neighbour(&scene.client, address.ip()),
            mac(&former).to_string()
        );
    }
    former.power_off().expect("power off");

    let capture = scene.client.capture("").expect("a capture");
    let protected = scene.protect_with(&server(&scene), &ADDRESS_DEVICE_FLAGS);
    for address in addresses() {
        // The client has not said a word meanwhile.
        wait_until("the client's table is right", || {
            neighbour(&scene.client, address.ip()) == mac(&scene.server).to_string()
        });
        talks(&scene.connect_to(address), "hello");
    }
    let captured = capture.finish().expect("a capture");
    assert_eq!(captured.missed, Some(0));
    for address in addresses() {
        let frames = captured.packets.iter();
        let all: Vec<Claim<'_>> = frames
            .filter_map(|packet| parse_claim(&packet.frame, address.ip()))
            .collect();
        let first = all
            .iter()
            .position(|told| matches!(told, Claim::Segment(_)));
        let before = &all[..first.expect("it has connected")];
        let here = mac(&scene.server).0;
        let is_here = |form| before.contains(&Claim::At(&here, form));
        assert!(is_here(2), "{all:02x?}");
        assert!(address.is_ipv6() || is_here(1), "{all:02x?}");
        // No host asked, and no segment went to the former link-layer address.
        assert!(!before.contains(&Claim::Asked), "{all:02x?}");
        let right = |told: &Claim<'_>| !matches!(told, Claim::Segment(to) if *to != here);
        assert!(all.iter().all(right), "{all:02x?}");
    }
    protected.stop();
}

/// Two services of an address with two names: each service would answer the other's clients.
#[test]
fn address_of_other_host_is_refused_by_name() {
    let scene = Scene::new("address-in-use");
    let other = scene.lab.add_host_at("other", 30).expect("a host");
    let mac = other.mac("eth0").expect("it has eth0").to_string();
    let begin = |more: &[&str]| {
        let server = server(&scene);
        let mut command = scene.server.command(&binaries::outlive().to_string_lossy());
        command.args(["serve", "--name", "second", "--run-dir"]);
        command
            .arg(scene.run_dir())
            .args(ADDRESS_DEVICE_FLAGS)
            .args(more);
        for address in addresses() {
            command.args(["--address", &address.to_string()]);
        }
        command.arg("--").args(&server.command);
        let output = command.output().expect("outlive");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    for address in addresses() {
        by_hand(&other, "add", address.ip());
        let (code, said) = begin(&[]);
        assert_eq!(code, Some(75), "{said}");
        let expected = format!("another host on eth0 has {} ({mac}):", address.ip());
        assert!(said.contains(&expected), "{said}");
        for address in addresses() {
            assert!(address_of(&scene.server, address.ip()).is_none(), "{said}");
        }
        by_hand(&other, "del", address.ip());
    }
    // As a router with proxy ARP.
    by_hand(&other, "add", addresses()[0].ip());
    let flags = [&ADDRESS_DEVICE_FLAGS[..], &["--take-address"]].concat();
    scene.protect_with(&server(&scene), &flags).stop();
}

#[test]
fn addresses_expire_unless_adopted() {
    let scene = Scene::new("address-held");
    let (host, server) = (&scene.server, server(&scene));
    let mut protected = scene.protect_with(&server, &ADDRESS_DEVICE_FLAGS);
    for address in addresses() {
        let held = address_of(host, address.ip()).expect("it is up");
        let seconds = held["valid_life_time"].as_u64().expect("a number");
        assert!((1..=600).contains(&seconds), "{held}");
        assert_ne!(held["tentative"], true, "{held}");
        // Deprecated over IPv6: not for connections that the host itself opens.
        assert_eq!(held["deprecated"] == true, address.is_ipv6(), "{held}");
    }
    let streams = addresses().map(|address| scene.connect_to(address));
    protected.kill_serve_itself();
    protected.succeed(&scene, &server, &ADDRESS_DEVICE_FLAGS);
    for stream in &streams {
        talks(stream, "the address has stayed");
    }
    for (number, address) in addresses().into_iter().enumerate() {
        by_hand(host, "del", address.ip());
        let trouble = protected.wait_for("warning", number + 1);
        let message = trouble["message"].as_str().unwrap_or_default();
        assert!(message.contains(&address.ip().to_string()), "{trouble}");
        assert!(address_of(host, address.ip()).is_some(), "{trouble}");
    }
    for stream in &streams {
        talks(stream, "the address is there again");
    }
    protected.kill_serve(Signal::TERM);
    assert!(
        protected.ended(EVENT_TIMEOUT).is_some(),
        "{}",
        protected.log()
    );
    for address in addresses() {
        assert!(address_of(host, address.ip()).is_none());
    }
}

#[test]
fn system_address_is_untouched() {
    let scene = Scene::new("address-there");
    let host = &scene.server;
    for address in addresses() {
        by_hand(host, "add", address.ip());
    }
    let capture = scene.client.capture("arp or icmp6").expect("a capture");
    let protected = scene.protect_with(&server(&scene), &ADDRESS_DEVICE_FLAGS);
    protected.kill_serve(Signal::TERM);
    assert!(
        protected.ended(EVENT_TIMEOUT).is_some(),
        "{}",
        protected.log()
    );
    let captured = capture.finish().expect("a capture");
    assert_eq!(captured.missed, Some(0));
    for address in addresses() {
        let there = address_of(host, address.ip()).expect("it stays");
        assert!(for_ever(&there), "{there}");
        for packet in &captured.packets {
            let told = parse_claim(&packet.frame, address.ip());
            assert!(!matches!(told, Some(Claim::At(..))), "{told:02x?}");
        }
    }
}
