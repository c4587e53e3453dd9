mod leases;

use std::{
    io::{ErrorKind, Write},
    net::{SocketAddr, UdpSocket},
    os::{fd::AsFd, unix::net::UnixStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use channel::{Channel, Key, KeyRing, Received};
use logger::{Event, Service, ServiceConfig, ServiceError, link::AckPolicy, without_checksums};
use protocol::{
    Versions,
    control::{
        Agreed, Attach, Claim, ControlError, Decoder, ErrorCode, LeaseRequest, Opening, Request,
        Response, Role, Standing, VERSIONS, Verdict, encode,
    },
    link::{Ack, LinkKeys},
};
use rand::{Rng, seq::SliceRandom};
use wire::FlowId;

use crate::host::{Host, attach};

const PATIENCE: Duration = Duration::from_secs(30);

/// A logger in a separate thread.
struct Running {
    address: SocketAddr,
    events: mpsc::Receiver<Event>,
    stop: UnixStream,
    thread: Option<thread::JoinHandle<Result<(), ServiceError>>>,
}

fn config(keys: KeyRing, listen: &str) -> ServiceConfig {
    ServiceConfig {
        listen: vec![listen.parse().expect("an address")],
        keys,
        keep: Duration::from_secs(60),
        limit_total: 1 << 30,
        acks: AckPolicy::EachBatch,
        busy_poll: Duration::from_micros(50),
        directory: None,
        metrics: None,
        lease: None,
        tell_clients: false,
    }
}

impl Running {
    fn start(config: ServiceConfig) -> Self {
        let service = Service::bind(config).expect("the port is free");
        let address = service.addresses()[0];
        let (stop, stopped) = UnixStream::pair().expect("a pair of sockets");
        let (tell, events) = mpsc::channel();
        let thread = thread::spawn(move || {
            // The test may have stopped listening to events.
            service.run(stopped.as_fd(), &mut |event| drop(tell.send(event.clone())))
        });
        Self {
            address,
            events,
            stop,
            thread: Some(thread),
        }
    }

    /// Waits for an event of this kind.
    fn event(&self, wanted: impl Fn(&Event) -> bool) -> Event {
        loop {
            let event = self.events.recv_timeout(PATIENCE).expect("an event");
            if wanted(&event) {
                return event;
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.write_all(b"x").expect("it waits");
        let ended = self.thread.take().expect("it runs").join();
        ended.expect("no panic").expect("no error");
    }
}

/// The serving host's side: control stream and link.
struct Attached {
    channel: Channel<std::net::TcpStream>,
    decoder: Decoder<Response>,
    link: UdpSocket,
    kept: bool,
    keys: LinkKeys,
}

impl Attached {
    fn to(logger: &Running, key: &Key, instance: u64) -> Self {
        Self::try_to(logger, key, &attach(instance, 0), || ())
            .unwrap_or_else(|other| panic!("{other:?}"))
    }

    /// `Err` with the response and whether the stream was closed afterwards, if the logger refuses the attachment.
    /// `last` runs just before the request.
    fn try_to(
        logger: &Running,
        key: &Key,
        attach: &Attach,
        last: impl FnOnce(),
    ) -> Result<Self, (Response, bool)> {
        let mut attached = Self::open(logger, key);
        last();
        match attached.attach(attach) {
            None => Ok(attached),
            Some(other) => Err((other, attached.next().is_none())),
        }
    }

    /// A stream without any message but the opening.
    fn open(logger: &Running, key: &Key) -> Self {
        Self::open_as(logger, key, VERSIONS)
    }

    /// A stream of a program with these versions.
    fn open_as(logger: &Running, key: &Key, versions: Versions) -> Self {
        let any: SocketAddr = match logger.address {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => ([0; 16], 0).into(),
        };
        let link = UdpSocket::bind(any).expect("a port");
        link.connect(logger.address).expect("an address");
        link.set_nonblocking(true).expect("a socket");
        without_checksums(&link, any.is_ipv6()).expect("a socket");
        let channel = Channel::connect(logger.address, key, PATIENCE, PATIENCE);
        let mut channel = channel.expect("it listens");
        let role = Role::Asks;
        let opening = Opening { role, versions };
        channel.say(&opening.encode()).expect("open");
        channel.flush().expect("it reads");
        Self {
            channel,
            decoder: Decoder::at_opening(versions),
            link,
            kept: false,
            keys: LinkKeys {
                version: protocol::link::VERSION,
                slot: protocol::link::KeySlot::Zero,
                up: protocol::link::LinkKey([0; 16]),
                down: protocol::link::LinkKey([0; 16]),
            },
        }
    }

    /// The response, if the logger refuses the attachment.
    fn attach(&mut self, attach: &Attach) -> Option<Response> {
        let attach = Attach {
            udp_port: self.link.local_addr().expect("bound").port(),
            ..attach.clone()
        };
        match self.ask(&Request::Attach(attach)) {
            Response::Attached { kept, keys, .. } => {
                (self.kept, self.keys) = (kept, keys);
                None
            }
            other => Some(other),
        }
    }

    fn say(&mut self, request: &Request) {
        let mut bytes = Vec::new();
        encode(request, Agreed::OWN, &mut bytes).expect("a message");
        self.channel.say(&bytes).expect("open");
        self.channel.flush().expect("it reads");
    }

    fn next(&mut self) -> Option<Response> {
        loop {
            if let Some(response) = self.decoder.pull().expect("a message") {
                return Some(response);
            }
            match self.channel.receive() {
                Ok(Received::Plain(bytes)) => self.decoder.feed(&bytes),
                Ok(Received::Nothing) => panic!("no answer"),
                Ok(Received::End) | Err(_) => return None,
            }
        }
    }

    fn ask(&mut self, request: &Request) -> Response {
        self.say(request);
        self.next().expect("an answer")
    }

    fn read(&mut self, host: &Host, flow: FlowId) -> Vec<u8> {
        let first = host.connections[&flow].client_isn + 1;
        let mut all = Vec::new();
        loop {
            let request = Request::Read {
                flow,
                from: first + u32::try_from(all.len()).expect("short"),
                max_len: 1 << 20,
            };
            match self.ask(&request) {
                Response::Data { bytes, .. } if bytes.is_empty() => return all,
                Response::Data { bytes, .. } => all.extend_from_slice(&bytes),
                other => panic!("{other:?}"),
            }
        }
    }

    fn hear(&self, host: &mut Host) {
        let mut buffer = [0; 2048];
        loop {
            match self.link.recv(&mut buffer) {
                Ok(len) => {
                    for ack in Ack::each(&buffer[..len]) {
                        host.hear(ack);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Sends until all input is recorded, over a link that loses, doubles, reorders, garbles and invents datagrams.
    fn upload(&self, host: &mut Host) {
        let deadline = Instant::now() + 6 * PATIENCE;
        while !host.is_recorded() {
            assert!(Instant::now() < deadline, "it does not end");
            let mut datagrams = Vec::new();
            for _ in 0..8 {
                datagrams.extend(host.datagrams(60_000, 300_000));
            }
            let mut random = host.random.clone();
            datagrams.retain(|_| random.random_bool(0.8));
            if let Some(first) = datagrams.first().cloned() {
                let mut garbled = first.clone();
                let view = protocol::link::SegmentView::parse(&garbled);
                if view.is_ok_and(|view| !view.flags().unfinished) {
                    let at = random.random_range(0..garbled.len());
                    garbled[at] ^= 0x10;
                }
                datagrams.extend([first, garbled, vec![0x45; 60], Vec::new()]);
            }
            datagrams.shuffle(&mut random);
            host.random = random;
            for datagram in datagrams {
                match self.link.send(&datagram) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => panic!("{error}"),
                }
            }
            thread::sleep(Duration::from_millis(1));
            self.hear(host);
        }
    }
}

fn keys() -> (Key, KeyRing) {
    let key = Key::generate("test").expect("randomness");
    (key.clone(), KeyRing::of(vec![key]))
}

fn uploads_are_recorded(listen: &str) {
    let (key, ring) = keys();
    let logger = Running::start(config(ring, listen));
    let mut service = Attached::to(&logger, &key, 1);
    assert!(!service.kept);
    let mut host = Host::new(service.keys, 1);
    for (flow, len) in [(1, 0), (2, 1), (3, 500_000), (4, 1_500_000)] {
        host.connect(flow, len);
    }
    service.upload(&mut host);
    for flow in host.connections.keys().copied().collect::<Vec<_>>() {
        assert!(service.read(&host, flow) == host.connections[&flow].data);
    }
    let Response::Statistics(statistics) = service.ask(&Request::Statistics) else {
        panic!("statistics");
    };
    assert_eq!(statistics.flows, 4);
    assert!(statistics.malformed_frames > 0);
}

#[test]
fn uploads_over_ipv4_are_recorded_byte_for_byte() {
    uploads_are_recorded("127.0.0.1:0");
}

#[test]
fn uploads_over_ipv6_are_recorded_byte_for_byte() {
    uploads_are_recorded("[::1]:0");
}

#[test]
fn answers_come_from_the_address_that_was_asked() {
    let (key, ring) = keys();
    let mut logger = Running::start(config(ring, "0.0.0.0:0"));
    // All addresses of 127.0.0.0/8 are local; without care a reply would come from 127.0.0.1.
    logger.address.set_ip([127, 0, 0, 9].into());
    let service = Attached::to(&logger, &key, 1);
    let mut host = Host::new(service.keys, 1);
    host.connect(1, 10_000);
    // The socket is connected, and receives only from this address.
    service.upload(&mut host);
}

#[test]
fn a_service_that_comes_again_takes_its_records_over() {
    let (key, ring) = keys();
    let logger = Running::start(config(ring, "127.0.0.1:0"));
    let mut first = Attached::to(&logger, &key, 7);
    let mut host = Host::new(first.keys, 1);
    host.connect(1, 100_000);
    first.upload(&mut host);
    // The first stream still exists, and is replaced.
    let mut second = Attached::to(&logger, &key, 7);
    assert!(second.kept);
    assert!(second.read(&host, FlowId(1)) == host.connections[&FlowId(1)].data);
    assert_eq!(first.next(), None);
    drop(second);
    let detached = logger.event(|event| matches!(event, Event::Detached { .. }));
    assert!(detached.to_string().contains("closed the connection"));
    assert!(Attached::to(&logger, &key, 7).kept);
    assert!(!Attached::to(&logger, &key, 8).kept);
}

#[test]
fn a_service_that_ends_is_forgotten_at_once() {
    let (key, ring) = keys();
    let logger = Running::start(config(ring, "127.0.0.1:0"));
    let mut serving = Attached::to(&logger, &key, 7);
    serving.say(&Request::Shutdown);
    drop(serving);
    logger.event(|event| matches!(event, Event::Forgotten { .. }));
}

#[test]
fn a_host_that_was_restarted_inherits_its_records() {
    let (key, ring) = keys();
    let logger = Running::start(config(ring, "127.0.0.1:0"));
    let mut first = Attached::to(&logger, &key, 7);
    let mut host = Host::new(first.keys, 1);
    host.connect(1, 100_000);
    first.upload(&mut host);
    let newborn = Attach {
        inherit: true,
        ..attach(8, 0)
    };
    // While datagrams of the first instance arrive, the first instance lives.
    let sign = host.open(&host.connections[&FlowId(1)]);
    let refused = Attached::try_to(&logger, &key, &newborn, || {
        first.link.send(&sign).expect("sent");
    });
    let (answer, closed) = refused.err().expect("it is still served");
    let Response::Error { code, message } = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(code, ErrorCode::StillServed);
    assert!(closed);
    let event = logger.event(|event| matches!(event, Event::Refused { .. }));
    assert!(event.to_string().contains(&message), "{event}");
    // Then the first host is dead: the stream stays open, but no datagrams arrive.
    let deadline = Instant::now() + PATIENCE;
    let mut second = loop {
        match Attached::try_to(&logger, &key, &newborn, || ()) {
            Ok(second) => break second,
            Err(_) => assert!(Instant::now() < deadline),
        }
        thread::sleep(Duration::from_millis(50));
    };
    assert!(second.kept);
    let event = logger.event(|event| matches!(event, Event::Inherited { .. }));
    let expected = Event::Inherited {
        service: "test".into(),
        instance: "0000000000000008".into(),
        earlier: "0000000000000007".into(),
        connections: 1,
    };
    assert_eq!(event, expected);
    let json = serde_json::to_string(&event).expect("JSON");
    assert!(json.contains(r#""event":"inherited""#), "{json}");
    assert_eq!(first.next(), None);
    let Response::Connections { connections, last } = second.ask(&Request::Connections) else {
        panic!("connections");
    };
    assert!(last && connections.len() == 1);
    assert_eq!(
        connections[0].beginning.key,
        host.connections[&FlowId(1)].key
    );
    assert!(second.read(&host, FlowId(1)) == host.connections[&FlowId(1)].data);
    host.use_keys(second.keys);
    host.connect(2, 10_000);
    second.upload(&mut host);
}

#[test]
fn keys_are_changed_under_way() {
    let (key, ring) = keys();
    let logger = Running::start(config(ring, "127.0.0.1:0"));
    let mut service = Attached::to(&logger, &key, 1);
    let mut host = Host::new(service.keys, 1);
    for flow in 1..5 {
        host.connect(flow, 20_000);
        service.upload(&mut host);
        match service.ask(&Request::Rekey) {
            Response::Keys(keys) => host.use_keys(keys),
            other => panic!("{other:?}"),
        }
    }
    host.connect(9, 20_000);
    service.upload(&mut host);
}

#[test]
fn what_is_unknown_is_told_unasked() {
    let (key, ring) = keys();
    let logger = Running::start(config(ring, "127.0.0.1:0"));
    let mut service = Attached::to(&logger, &key, 1);
    let mut host = Host::new(service.keys, 1);
    host.connect(0x0001_0000_0203, 100);
    for connection in host.connections.values_mut() {
        connection.opened = true;
    }
    service.link.send(&host.datagrams(10, 10)[0]).expect("sent");
    let unknown = Response::Unknown { flow_low: 0x0203 };
    assert_eq!(service.next(), Some(unknown));
}

#[test]
fn who_has_no_key_is_refused() {
    let (_, ring) = keys();
    let logger = Running::start(config(ring, "127.0.0.1:0"));
    let (other, _) = keys();
    assert!(Channel::connect(logger.address, &other, PATIENCE, PATIENCE).is_err());
    let refused = logger.event(|event| matches!(event, Event::Refused { .. }));
    assert!(refused.to_string().contains("key"), "{refused}");
}

#[test]
fn client_without_common_version_gets_the_versions_of_the_logger() {
    let (key, ring) = keys();
    let logger = Running::start(config(ring, "127.0.0.1:0"));
    let theirs = Versions::only(VERSIONS.newest() + 1);
    let mut client = Attached::open_as(&logger, &key, theirs);
    let error = loop {
        match client.decoder.open() {
            Ok(agreed) => assert_eq!(agreed, None),
            Err(error) => break error,
        }
        match client.channel.receive().expect("the opening comes first") {
            Received::Plain(bytes) => client.decoder.feed(&bytes),
            other => panic!("{other:?}"),
        }
    };
    let (ours, theirs) = (theirs, VERSIONS);
    assert_eq!(error, ControlError::NoCommonVersion { ours, theirs });
    let refused = logger.event(|event| matches!(event, Event::Refused { .. }));
    let (ours, theirs) = (theirs, ours);
    let why = ControlError::NoCommonVersion { ours, theirs }.to_string();
    assert!(refused.to_string().contains(&why), "{refused}");
}

#[test]
fn newer_client_is_served_in_the_version_of_the_logger() {
    let (key, ring) = keys();
    let logger = Running::start(config(ring, "127.0.0.1:0"));
    let newest = VERSIONS.newest();
    let theirs = Versions::new(newest, newest + 1).expect("a range");
    let mut client = Attached::open_as(&logger, &key, theirs);
    assert_eq!(client.attach(&attach(7, 0)), None);
    let agreed = client.decoder.agreed().expect("the stream is open");
    assert_eq!(agreed.version(), newest);
}

/// Programs did not send an opening to loggers of version 8 or earlier.
#[test]
fn client_without_opening_is_refused() {
    let (key, ring) = keys();
    let logger = Running::start(config(ring, "127.0.0.1:0"));
    let channel = Channel::connect(logger.address, &key, PATIENCE, PATIENCE);
    let mut channel = channel.expect("it listens");
    channel
        .say(&[5, 0, 0, 0, 7, 1, b'w', b'e', b'b'])
        .expect("open");
    channel.flush().expect("it reads");
    let refused = logger.event(|event| matches!(event, Event::Refused { .. }));
    let why = ControlError::NoOpening.to_string();
    assert!(refused.to_string().contains(&why), "{refused}");
}

#[test]
fn version_of_the_link_is_chosen_or_refused() {
    let (key, ring) = keys();
    let logger = Running::start(config(ring, "127.0.0.1:0"));
    let newest = protocol::link::VERSIONS.newest();
    let speaks = |oldest, newest| Attach {
        link: Versions::new(oldest, newest).expect("a range"),
        ..attach(7, 0)
    };
    let mut client = Attached::open(&logger, &key);
    match client.ask(&Request::Attach(speaks(newest, newest + 1))) {
        Response::Attached { keys, .. } => assert_eq!(keys.version, newest),
        other => panic!("{other:?}"),
    }
    let mut client = Attached::open(&logger, &key);
    let refused = client.attach(&speaks(newest + 1, newest + 2));
    let Some(Response::Error { code, message }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(code, ErrorCode::NoCommonVersion);
    let told = format!(
        "the logger speaks {} of the log link, the host versions {} to {}: upgrade the older outlive, one version at a time",
        protocol::link::VERSIONS,
        newest + 1,
        newest + 2
    );
    assert_eq!(message, told);
    assert_eq!(client.next(), None, "the stream is closed");
    logger.event(|event| matches!(event, Event::Refused { .. }));
}

#[test]
fn version_of_mirror_frames_is_chosen_or_refused() {
    let (key, ring) = keys();
    let logger = Running::start(config(ring, "127.0.0.1:0"));
    let newest = protocol::mirror::VERSIONS.newest();
    let speaks = |oldest, newest| Attach {
        frames: Versions::new(oldest, newest).expect("a range"),
        ..attach(7, 0)
    };
    let mut client = Attached::open(&logger, &key);
    match client.ask(&Request::Attach(speaks(newest, newest + 1))) {
        Response::Attached { frames, .. } => assert_eq!(frames, newest),
        other => panic!("{other:?}"),
    }
    let mut client = Attached::open(&logger, &key);
    let refused = client.attach(&speaks(newest + 1, newest + 2));
    let Some(Response::Error { code, message }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(code, ErrorCode::NoCommonVersion);
    assert!(message.contains("of the mirror frame"), "{message}");
    assert_eq!(client.next(), None, "the stream is closed");
}

#[test]
fn who_does_not_attach_first_is_refused() {
    let (key, ring) = keys();
    let logger = Running::start(config(ring, "127.0.0.1:0"));
    let channel = Channel::connect(logger.address, &key, PATIENCE, PATIENCE);
    let mut channel = channel.expect("it listens");
    let mut bytes = Opening::of(Role::Asks).encode().to_vec();
    encode(&Request::Summaries, Agreed::OWN, &mut bytes).expect("a message");
    channel.say(&bytes).expect("open");
    channel.flush().expect("it reads");
    logger.event(|event| matches!(event, Event::Refused { .. }));
}

#[test]
fn a_key_that_is_removed_from_the_file_ends_its_streams() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("keys");
    let write = |keys: &[&Key]| {
        let lines: Vec<String> = keys.iter().map(|key| key.line()).collect();
        std::fs::write(&path, lines.join("\n")).expect("written");
        let owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, owner).expect("ours");
    };
    let old = Key::generate("old").expect("randomness");
    let new = Key::generate("new").expect("randomness");
    write(&[&old]);
    let ring = KeyRing::load(&path).expect("a key file");
    let logger = Running::start(config(ring, "127.0.0.1:0"));
    let mut first = Attached::to(&logger, &old, 1);
    write(&[&new, &old]);
    logger.event(|event| *event == Event::KeysChanged);
    let mut second = Attached::to(&logger, &new, 2);
    write(&[&new]);
    let detached = logger.event(|event| matches!(event, Event::Detached { .. }));
    assert!(detached.to_string().contains("no longer in the key file"));
    assert_eq!(first.next(), None);
    assert!(matches!(
        second.ask(&Request::Statistics),
        Response::Statistics(_)
    ));
}

#[test]
fn an_address_that_is_in_use_is_named() {
    let (_, ring) = keys();
    let logger = Running::start(config(ring.clone(), "127.0.0.1:0"));
    let again = Service::bind(config(ring, &logger.address.to_string()));
    let error = again.err().expect("it is in use").to_string();
    assert!(error.contains(&logger.address.to_string()), "{error}");
    assert!(error.contains("another logger"), "{error}");
}

#[test]
fn records_outlive_the_logger_in_its_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let (key, ring) = keys();
    let durable = || ServiceConfig {
        directory: Some(directory.path().join("new")),
        ..config(ring.clone(), "127.0.0.1:0")
    };
    let logger = Running::start(durable());
    let service = Attached::to(&logger, &key, 3);
    let mut host = Host::new(service.keys, 1);
    for (flow, len) in [(1, 100_000), (2, 10), (3, 300_000)] {
        host.connect(flow, len);
    }
    service.upload(&mut host);
    let refused = Service::bind(durable()).err().expect("it is in use");
    assert!(refused.to_string().contains("another logger"), "{refused}");
    drop(logger);

    let logger = Running::start(durable());
    let found = logger.event(|event| matches!(event, Event::Restored { .. }));
    let expected = Event::Restored {
        services: 1,
        connections: 3,
        damaged: 0,
        removed: Vec::new(),
    };
    assert_eq!(found, expected);
    let mut service = Attached::to(&logger, &key, 3);
    assert!(service.kept);
    for flow in host.connections.keys().copied().collect::<Vec<_>>() {
        assert!(service.read(&host, flow) == host.connections[&flow].data);
    }
    // The connections continue without a difference.
    host.use_keys(service.keys);
    host.connect(4, 10_000);
    service.upload(&mut host);
}

#[test]
fn files_that_are_removed_unread_are_told() {
    let directory = tempfile::tempdir().expect("a directory");
    for number in [0, 1, 3] {
        let file = directory.path().join(format!("{number:016x}.segment"));
        std::fs::write(file, "").expect("written");
    }
    let (_, ring) = keys();
    let logger = Running::start(ServiceConfig {
        directory: Some(directory.path().to_owned()),
        ..config(ring, "127.0.0.1:0")
    });
    let found = logger.event(|event| matches!(event, Event::Restored { .. }));
    let Event::Restored { removed, .. } = &found else {
        panic!("{found}");
    };
    assert_eq!(removed, &["0000000000000000", "0000000000000001"]);
    assert!(found.to_string().contains("; 2 files"), "{found}");
}

#[test]
fn many_questions_at_once_are_answered_without_a_pause() {
    let (key, ring) = keys();
    let logger = Running::start(config(ring, "127.0.0.1:0"));
    let mut service = Attached::to(&logger, &key, 1);
    let mut host = Host::new(service.keys, 1);
    host.connect(1, 1 << 20);
    service.upload(&mut host);
    let connection = &host.connections[&FlowId(1)];
    let request = Request::Read {
        flow: FlowId(1),
        from: connection.client_isn + 1,
        max_len: 1 << 20,
    };
    let mut questions = Vec::new();
    for _ in 0..16 {
        encode(&request, Agreed::OWN, &mut questions).expect("a message");
    }
    let begun = Instant::now();
    service.channel.say(&questions).expect("open");
    service.channel.flush().expect("it reads");
    for _ in 0..16 {
        let answer = service.next().expect("an answer");
        assert!(matches!(answer, Response::Data { bytes, .. } if bytes == connection.data));
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_millis(900), "{took:?}");
}

/// Claims addresses of a service, on a separate stream.
fn claims(
    logger: &Running,
    key: &Key,
    (host, service): (u64, &str),
    serves: bool,
) -> (Attached, Response) {
    let mut stream = Attached::open(logger, key);
    let answer = stream.ask(&Request::Claim(Claim {
        host,
        serves,
        shared: false,
        host_name: "host-a".into(),
        service: service.into(),
        addresses: vec!["10.0.0.10:80".parse().expect("an address")],
        determinants: 0,
    }));
    (stream, answer)
}

#[test]
fn an_address_has_one_service() {
    let (key, ring) = keys();
    let logger = Running::start(config(ring, "127.0.0.1:0"));
    let nobody = Response::Claimed {
        beside: String::new(),
    };
    let (mut first, claimed) = claims(&logger, &key, (1, "web"), false);
    assert_eq!(claimed, nobody);
    let (mut second, refused) = claims(&logger, &key, (2, "website"), false);
    let Response::Error { code, message } = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(code, ErrorCode::Taken);
    assert_eq!(
        message,
        "10.0.0.10:80 is the address of the service web on the host 127.0.0.1"
    );
    assert!(second.next().is_none(), "the stream goes on");
    let event = logger.event(|event| matches!(event, Event::Refused { .. }));
    assert!(event.to_string().contains(&message), "{event}");
    assert_eq!(first.attach(&attach(7, 0)), None);
    // A service that serves already is accepted besides.
    let (mut second, claimed) = claims(&logger, &key, (2, "website"), true);
    assert_eq!(claimed, Response::Claimed { beside: message });
    let event = logger.event(|event| matches!(event, Event::TwoServices { .. }));
    let told = "website on 127.0.0.1 and web on 127.0.0.1 both serve 10.0.0.10:80: end one";
    assert!(event.to_string().starts_with(told), "{event}");
    // Services that end give the address up.
    assert_eq!(second.attach(&attach(8, 0)), None);
    second.say(&Request::Shutdown);
    first.say(&Request::Shutdown);
    for stream in [&mut second, &mut first] {
        stream.ask(&Request::Statistics); // heard after that
    }
    let (_third, claimed) = claims(&logger, &key, (3, "third"), false);
    assert_eq!(claimed, nobody);
}

/// A host without power, or cut off for long, closes no stream, and comes back with new streams. Without keep-alive
/// probes of the kernel the old streams would stay forever, up to the limit of streams.
#[test]
fn streams_are_asked_whether_somebody_is_there() {
    const KEEPALIVE: &str = "02"; // the timer that runs, as proc_pid_net(5) has it
    let (key, keys) = keys();
    let logger = Running::start(config(keys, "127.0.0.1:0"));
    let attached = Attached::open(&logger, &key);
    let ours = attached.channel.stream().local_addr().expect("bound");
    let ends = [logger.address, ours].map(|end| format!(":{:04X}", end.port()));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let sockets = std::fs::read_to_string("/proc/thread-self/net/tcp").expect("sockets");
        let timers = sockets.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let is_it = fields[1].ends_with(&ends[0]) && fields[2].ends_with(&ends[1]);
            is_it.then(|| fields[5].split_once(':').map(|(timer, _)| timer.to_owned()))
        });
        let timers: Vec<_> = timers.collect();
        if timers == [Some(KEEPALIVE.to_owned())] {
            break;
        }
        // The peer has not acknowledged the opening yet.
        assert!(Instant::now() < deadline, "{sockets}");
        thread::sleep(Duration::from_millis(1));
    }
}
