//! `outlive logger` with a log, killed again and again while clients upload: what they were told has
//! been received is there afterwards.

#[path = "../../logger/tests/it/host.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "shared with the tests of the logger, which need more of it"
)]
mod host;

use std::{
    io::{BufRead, BufReader, ErrorKind},
    net::{SocketAddr, UdpSocket},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use channel::{Channel, Key, Received};
use host::{Host, attach};
use protocol::control::{Decoder, FlowSummary, Request, Response, encode};
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::SliceRandom};
use wire::FlowId;

const PATIENCE: Duration = Duration::from_secs(5);
const INSTANCE: u64 = 0xabcd;
/// Deaths of the logger.
const KILLS: u32 = 40;
/// Connections that upload at a time, and how much each.
const UPLOADS: usize = 4;
const LENGTH: usize = 400_000;

/// A logger of its own process. It is killed when this is dropped.
struct Logger {
    process: Child,
    address: SocketAddr,
}

impl Logger {
    fn start(key_file: &Path, directory: &Path, listen: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_outlive"))
            .arg("logger")
            .args(["--listen", listen])
            .arg("--key-file")
            .arg(key_file)
            .arg("--dir")
            .arg(directory)
            .arg("--json")
            .stderr(Stdio::piped())
            .spawn()
            .expect("our own binary");
        let output = process.stderr.take().expect("a pipe");
        let mut lines = BufReader::new(output).lines();
        let listening = lines.next().expect("a line").expect("text");
        let listening: serde_json::Value = serde_json::from_str(&listening).expect(&listening);
        assert_eq!(listening["event"], "listening");
        let address = listening["addresses"][0].as_str().expect("an address");
        // Who does not read holds it up.
        thread::spawn(move || lines.for_each(drop));
        Self {
            process,
            address: address.parse().expect("an address"),
        }
    }
}

impl Drop for Logger {
    /// SIGKILL.
    fn drop(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it is our child");
    }
}

/// The control stream of a serving host.
struct Control {
    channel: Channel<std::net::TcpStream>,
    decoder: Decoder<Response>,
}

impl Control {
    fn ask(&mut self, request: &Request) -> Response {
        let mut bytes = Vec::new();
        encode(request, &mut bytes).expect("a message");
        self.channel.say(&bytes).expect("open");
        self.channel.flush().expect("it reads");
        self.next()
    }

    fn next(&mut self) -> Response {
        loop {
            if let Some(response) = self.decoder.pull().expect("a message") {
                return response;
            }
            match self.channel.receive().expect("open") {
                Received::Plain(bytes) => self.decoder.feed(&bytes),
                other => panic!("{other:?}"),
            }
        }
    }

    fn summaries(&mut self) -> Vec<FlowSummary> {
        let mut all = Vec::new();
        let mut response = self.ask(&Request::Summaries);
        loop {
            match response {
                Response::Summaries { summaries, last } => {
                    all.extend(summaries);
                    if last {
                        return all;
                    }
                }
                other => panic!("{other:?}"),
            }
            response = self.next();
        }
    }
}

fn connect(logger: &Logger, key: &Key, link: &UdpSocket, host: &mut Host) -> (Control, bool) {
    let channel = Channel::connect(logger.address, key, PATIENCE, PATIENCE);
    let mut control = Control {
        channel: channel.expect("it listens"),
        decoder: Decoder::new(),
    };
    let port = link.local_addr().expect("bound").port();
    match control.ask(&Request::Attach(attach(INSTANCE, port))) {
        Response::Attached { kept, keys, .. } => {
            host.use_keys(keys);
            (control, kept)
        }
        other => panic!("{other:?}"),
    }
}

fn hear(link: &UdpSocket, host: &mut Host) {
    let mut buffer = [0; 2048];
    loop {
        match link.recv(&mut buffer) {
            Ok(len) => drop(host.hear(&buffer[..len])),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Clients upload for a while.
fn traffic(link: &UdpSocket, host: &mut Host, end: Instant) {
    while Instant::now() < end {
        let mut datagrams = Vec::new();
        for _ in 0..4 {
            datagrams.extend(host.datagrams(20_000, 100_000));
        }
        datagrams.shuffle(&mut host.random);
        for datagram in datagrams {
            // Nobody may be there.
            let _ = link.send(&datagram);
        }
        thread::sleep(Duration::from_micros(300));
        hear(link, host);
        host.connections
            .retain(|_, connection| !connection.is_recorded());
        while host.connections.len() < UPLOADS {
            let next = host.random.random_range(0..u64::from(u32::MAX));
            host.connect(next, LENGTH);
        }
    }
}

/// What clients were told is in the record, and what is in the record is what they sent.
fn check(control: &mut Control, host: &Host) {
    let summaries = control.summaries();
    for (flow, connection) in &host.connections {
        let found = summaries.iter().find(|summary| summary.flow == *flow);
        let Some(summary) = found else {
            assert!(!connection.opened, "flow {flow} is gone");
            continue;
        };
        let told = connection.stable.min(connection.data.len());
        let told = connection.client_isn + 1 + u32::try_from(told).expect("short");
        assert!(
            summary.stable_seq.at_or_after(told),
            "flow {flow}: {} is recorded, {told} was acknowledged",
            summary.stable_seq
        );
        assert!(read(control, *flow, summary.start) == connection.data[..recorded(summary)]);
    }
}

fn recorded(summary: &FlowSummary) -> usize {
    let recorded = summary.stable_seq.distance_from(summary.start);
    usize::try_from(recorded.expect("after it")).expect("short")
}

fn read(control: &mut Control, flow: FlowId, start: wire::SeqNumber) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let request = Request::Read {
            flow,
            from: start + u32::try_from(all.len()).expect("short"),
            max_len: 1 << 20,
        };
        match control.ask(&request) {
            Response::Data { bytes, .. } if bytes.is_empty() => return all,
            Response::Data { bytes, .. } => all.extend_from_slice(&bytes),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    let directory = tempfile::tempdir().expect("a directory");
    let key_file = directory.path().join("keys");
    let key = Key::generate("test").expect("randomness");
    std::fs::write(&key_file, key.line()).expect("written");
    let owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&key_file, owner).expect("ours");
    let log = directory.path().join("log");

    let mut logger = Logger::start(&key_file, &log, "127.0.0.1:0");
    let listen = logger.address.to_string();
    let link = UdpSocket::bind("127.0.0.1:0").expect("a port");
    link.connect(logger.address).expect("an address");
    link.set_nonblocking(true).expect("a socket");
    let unknown = protocol::link::LinkKey([0; 16]);
    let mut host = Host::new(
        protocol::link::LinkKeys {
            slot: protocol::link::KeySlot::Zero,
            up: unknown,
            down: unknown,
        },
        1,
    );
    let mut random = SmallRng::seed_from_u64(2);
    let (mut acknowledged, mut found) = (0, 0);
    for life in 0..=KILLS {
        let (mut control, kept) = connect(&logger, &key, &link, &mut host);
        assert_eq!(kept, life > 0);
        check(&mut control, &host);
        found += usize::from(!host.connections.is_empty());
        let end = Instant::now() + Duration::from_millis(random.random_range(20..120));
        traffic(&link, &mut host, end);
        acknowledged += host.connections.values().map(|c| c.stable).sum::<usize>();
        drop(control);
        drop(logger);
        // What it had sent is still under way, and the client is told.
        hear(&link, &mut host);
        logger = Logger::start(&key_file, &log, &listen);
    }
    assert!(found >= usize::try_from(KILLS).expect("few"));
    assert!(
        acknowledged > 1 << 20,
        "{acknowledged} bytes: too few to tell"
    );
}
