//! `outlive logger` with a log, killed again and again while clients upload: acknowledged bytes are in the log
//! afterwards.

#[path = "../../service/logger/tests/it/host.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "shared with the tests of the logger, which need more of it"
)]
mod host;

use std::{
    io::{BufRead, BufReader, ErrorKind},
    net::{SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use channel::{Channel, Key, Received};
use host::{Host, attach};
use protocol::{
    control::{Agreed, Decoder, Opening, RecordSummary, Request, Response, Role, VERSIONS, encode},
    link::{Ack, KeySlot, LinkKey, LinkKeys},
    mirror::{CloseReason, FrameKind},
};
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::SliceRandom};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use wire::{FlowId, SeqNumber};

const PATIENCE: Duration = Duration::from_secs(30);
const INSTANCE: u64 = 0xabcd;
/// Deaths of the logger; OUTLIVE_KILLS is another number.
const KILLS: u32 = 40;
/// Connections that upload at a time, and how much each.
const UPLOADS: usize = 4;
const LENGTH: usize = 400_000;

/// A logger in a separate process. A drop kills the process.
struct Logger {
    process: Child,
    address: SocketAddr,
    events: mpsc::Receiver<serde_json::Value>,
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
        let (tell, events) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let line = line.expect("text");
                // A reader that stops would block the logger; the test may need no more events.
                let _ = tell.send(serde_json::from_str(&line).expect(&line));
            }
        });
        let mut logger = Self {
            process,
            address: ([0; 4], 0).into(),
            events,
        };
        let listening = logger.event("listening");
        let address = listening["addresses"][0].as_str().expect("an address");
        logger.address = address.parse().expect("an address");
        logger
    }

    /// Waits for an event of this name.
    fn event(&self, name: &str) -> serde_json::Value {
        loop {
            let event = self.events.recv_timeout(4 * PATIENCE).expect(name);
            if event["event"] == name {
                return event;
            }
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
    fn tell(&mut self, request: &Request) {
        let mut bytes = Vec::new();
        encode(request, Agreed::OWN, &mut bytes).expect("a message");
        self.channel.say(&bytes).expect("open");
        self.channel.flush().expect("it reads");
    }

    fn ask(&mut self, request: &Request) -> Response {
        self.tell(request);
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

    fn summaries(&mut self) -> Vec<RecordSummary> {
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
        decoder: Decoder::at_opening(VERSIONS),
    };
    let opening = Opening::of(Role::Asks).encode();
    control.channel.say(&opening).expect("open");
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
            Ok(len) => {
                for ack in Ack::each(&buffer[..len]) {
                    host.hear(ack);
                }
            }
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
            // The logger may be dead.
            let _ = link.send(&datagram);
        }
        thread::sleep(Duration::from_micros(300));
        hear(link, host);
    }
}

/// Clients come and go.
fn next_clients(host: &mut Host, control: &mut Control) {
    host.connections.retain(|flow, connection| {
        if connection.is_recorded() {
            let bytes = closed(*flow);
            control.tell(&Request::Frames { bytes });
        }
        !connection.is_recorded()
    });
    while host.connections.len() < UPLOADS {
        let next = host.random.random_range(0..u64::from(u32::MAX));
        host.connect(next, LENGTH);
    }
}

/// Acknowledged bytes are in the record, and the record has only bytes that the clients sent.
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

fn recorded(summary: &RecordSummary) -> usize {
    let recorded = summary.stable_seq.distance_from(summary.start);
    usize::try_from(recorded.expect("after it")).expect("short")
}

fn read(control: &mut Control, flow: FlowId, start: SeqNumber) -> Vec<u8> {
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

/// Common parts of every test: a key, a directory for the log, and a serving host with its link.
struct Place {
    directory: tempfile::TempDir,
    key: Key,
    link: UdpSocket,
    host: Host,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let key = Key::generate("test").expect("randomness");
        let key_file = directory.path().join("keys");
        std::fs::write(&key_file, key.line()).expect("written");
        let owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&key_file, owner).expect("ours");
        let link = UdpSocket::bind("127.0.0.1:0").expect("a port");
        link.set_nonblocking(true).expect("a socket");
        let unknown = LinkKey([0; 16]);
        let keys = LinkKeys {
            version: protocol::link::VERSION,
            slot: KeySlot::Zero,
            up: unknown,
            down: unknown,
        };
        Self {
            directory,
            key,
            link,
            host: Host::new(keys, 1),
        }
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn start(&self, listen: &str) -> Logger {
        let key_file = self.directory.path().join("keys");
        let logger = Logger::start(&key_file, &self.log(), listen);
        self.link.connect(logger.address).expect("an address");
        logger
    }
}

#[test]
fn acknowledged_bytes_survive_kill_9() {
    let mut place = Place::new();
    let mut logger = place.start("127.0.0.1:0");
    let listen = logger.address.to_string();
    let mut random = SmallRng::seed_from_u64(2);
    let (mut acknowledged, mut found) = (0, 0);
    let kills = std::env::var("OUTLIVE_KILLS").map_or(Ok(KILLS), |kills| kills.parse());
    let kills = kills.expect("a number");
    for life in 0..=kills {
        let Place {
            key, link, host, ..
        } = &mut place;
        let (mut control, kept) = connect(&logger, key, link, host);
        assert_eq!(kept, life > 0);
        check(&mut control, host);
        found += usize::from(!host.connections.is_empty());
        for _ in 0..random.random_range(1..8) {
            next_clients(host, &mut control);
            traffic(link, host, Instant::now() + Duration::from_millis(15));
        }
        acknowledged += host.connections.values().map(|c| c.stable).sum::<usize>();
        drop(control);
        drop(logger);
        // The logger's last ACKs are still under way, and reach the client.
        hear(link, host);
        logger = place.start(&listen);
    }
    assert!(found >= usize::try_from(kills).expect("few"));
    assert!(
        acknowledged > 1 << 20,
        "{acknowledged} bytes: too few to tell"
    );
}

/// A file system of 1 MiB, for as long as this lives.
struct Small(PathBuf);

impl Small {
    fn at(path: PathBuf) -> Self {
        std::fs::create_dir(&path).expect("a directory");
        let flags = MountFlags::empty();
        mount("outlive-test", &path, "tmpfs", flags, c"size=1m").expect("we may mount");
        Self(path)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).expect("it is mounted");
    }
}

#[test]
fn full_disk_does_not_block() {
    let mut place = Place::new();
    let _small = Small::at(place.log());
    let logger = place.start("127.0.0.1:0");
    let listen = logger.address.to_string();
    let Place {
        key, link, host, ..
    } = &mut place;
    let (mut control, _) = connect(&logger, key, link, host);
    next_clients(host, &mut control);
    let deadline = Instant::now() + 4 * PATIENCE;
    while !host.is_recorded() {
        assert!(Instant::now() < deadline, "it is held up");
        traffic(link, host, Instant::now() + Duration::from_millis(15));
    }
    let failed = logger.event("log_failed");
    assert!(
        failed["reason"].to_string().contains("No space"),
        "{failed}"
    );

    // When there is room again a new log is begun, with all that is recorded.
    let mut over: Vec<FlowId> = host.connections.keys().copied().collect();
    over.pop();
    for flow in over {
        host.connections.remove(&flow);
        control.tell(&Request::Frames {
            bytes: closed(flow),
        });
    }
    check(&mut control, host);
    logger.event("log_recovered");
    drop(control);
    drop(logger);
    let logger = place.start(&listen);
    let Place {
        key, link, host, ..
    } = &mut place;
    let (mut control, kept) = connect(&logger, key, link, host);
    assert!(kept);
    assert_eq!(control.summaries().len(), 1);
    check(&mut control, host);
}

/// The frame that a connection is over.
fn closed(flow: FlowId) -> Vec<u8> {
    host::frame(flow, FrameKind::Closed(CloseReason::Finished), &[])
}
