use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Instant,
};

use channel::Received;
use protocol::Versions;
use protocol::control::{Former, Standing, Verdict};
use protocol::link::{KeySlot, LinkKey};

use super::*;

const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A logger that takes as many streams as there are lists of answers. On each stream the logger answers the opening,
/// and then sends a message for each request; the next request ends the stream. Returns the requests.
fn logger(answers: Vec<Vec<Response>>) -> (SocketAddr, Key, thread::JoinHandle<Vec<Request>>) {
    listening(move |channel, at| {
        let mut requests = Decoder::<Request>::at_opening(VERSIONS);
        let mut heard = Vec::new();
        let agreed = loop {
            match requests.open().expect("an opening") {
                Some(agreed) => break agreed,
                None => assert!(receive_once(channel, &mut requests)),
            }
        };
        say(channel, &Opening::of(Role::Answers).encode());
        for answer in &answers[at] {
            heard.extend(next_request(channel, &mut requests));
            let mut bytes = Vec::new();
            encode(answer, agreed, &mut bytes).expect("a message");
            say(channel, &bytes);
        }
        heard.extend(next_request(channel, &mut requests)); // the end, behind the last
        (heard, at + 1 < answers.len())
    })
}

/// A logger that answers each stream with these bytes after the first bytes of the client, and ends the stream.
fn logger_with_bytes(answers: Vec<Vec<u8>>) -> (SocketAddr, Key, thread::JoinHandle<Vec<Request>>) {
    listening(move |channel, at| {
        while let Ok(Received::Plain(bytes)) = channel.receive() {
            channel.flush().expect("it reads");
            if !bytes.is_empty() {
                break;
            }
        }
        say(channel, &answers[at]);
        (Vec::new(), at + 1 < answers.len())
    })
}

/// `talk` runs on each stream, with the number of the stream, until `talk` reports the last stream.
fn listening(
    talk: impl Fn(&mut Channel<TcpStream>, usize) -> (Vec<Request>, bool) + Send + 'static,
) -> (SocketAddr, Key, thread::JoinHandle<Vec<Request>>) {
    let key = Key::generate("test").expect("randomness");
    let ring = Arc::new(KeyRing::of(vec![key.clone()]));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("it is bound");
    let thread = thread::spawn(move || {
        let mut all = Vec::new();
        for number in 0.. {
            let (stream, _) = listener.accept().expect("a stream");
            let mut channel = Channel::accept(stream, Arc::clone(&ring), Instant::now());
            let (heard, more) = talk(&mut channel, number);
            all.extend(heard);
            if !more {
                break;
            }
        }
        all
    });
    (at, key, thread)
}

fn say(channel: &mut Channel<TcpStream>, bytes: &[u8]) {
    channel.say(bytes).expect("open");
    channel.flush().expect("it reads");
}

/// Reads once; false: the stream has ended.
fn receive_once(channel: &mut Channel<TcpStream>, requests: &mut Decoder<Request>) -> bool {
    match channel.receive() {
        Ok(Received::Plain(bytes)) => requests.feed(&bytes),
        Ok(Received::Nothing) => {}
        _ => return false,
    }
    channel.flush().is_ok()
}

/// `None`: the stream has ended.
fn next_request(
    channel: &mut Channel<TcpStream>,
    requests: &mut Decoder<Request>,
) -> Option<Request> {
    loop {
        if let Some(request) = requests.pull().expect("a request") {
            return Some(request);
        }
        if !receive_once(channel, requests) {
            return None;
        }
    }
}

fn claim() -> Claim {
    Claim {
        host: 1,
        serves: false,
        shared: false,
        host_name: "host-a".into(),
        service: "web".into(),
        addresses: vec!["10.0.0.10:80".parse().expect("an address")],
        determinants: 0,
    }
}

fn asks() -> AttachRequest {
    AttachRequest {
        claim: Some(claim()),
        attach: attach(),
        digests: Some(DigestSeed([3, 4])),
    }
}

fn attached(link: u8) -> Response {
    attached_with(link, mirror::VERSION)
}

fn attached_with(link: u8, frames: u8) -> Response {
    Response::Attached {
        pid: 7,
        kept: false,
        session: 0,
        keys: LinkKeys {
            version: link,
            slot: KeySlot::Zero,
            up: LinkKey([1; 16]),
            down: LinkKey([2; 16]),
        },
        frames,
    }
}

fn claimed() -> Response {
    Response::Claimed {
        beside: String::new(),
    }
}

#[test]
fn logger_is_attached_by_claim_and_seed() {
    let seed = DigestSeed([1, 2]);
    let none = Response::Summaries {
        summaries: Vec::new(),
        last: true,
    };
    let link = protocol::link::VERSIONS.newest();
    let answers = vec![claimed(), attached(link), Response::DigestSeed(seed), none];
    let (at, key, logger) = logger(vec![answers]);
    let client = LoggerClient::dial(at, &key, TEST_TIMEOUT).expect("it listens");
    let (mut client, attached, beside) = client.attaching(&asks()).expect("it answers");
    assert_eq!((attached.digests, beside), (Some(seed), None));
    assert_eq!((attached.keys.version, client.pid), (link, 7));
    assert_eq!(client.summaries().expect("they are told"), []);
    drop(client);
    let said = [
        Request::Claim(claim()),
        Request::Attach(attach()),
        Request::DigestSeed(DigestSeed([3, 4])),
        Request::Summaries,
    ];
    assert_eq!(logger.join().expect("no panic"), said);
}

#[test]
fn version_that_was_not_offered_is_an_error() {
    let link = protocol::link::VERSIONS.newest();
    let frames = mirror::VERSIONS.newest();
    for attached in [
        attached_with(link + 1, frames),
        attached_with(link, frames + 1),
    ] {
        let (at, key, logger) = logger(vec![vec![claimed(), attached]]);
        let client = LoggerClient::dial(at, &key, TEST_TIMEOUT).expect("it listens");
        let error = client.attaching(&asks()).err().expect("it is refused");
        assert!(matches!(error, ServeError::Logger(_)), "{error}");
        logger.join().expect("no panic");
    }
}

#[test]
fn new_keys_of_other_link_version_are_refused() {
    let link = protocol::link::VERSIONS.newest();
    let keys = |version| LinkKeys {
        version,
        slot: KeySlot::One,
        up: LinkKey([3; 16]),
        down: LinkKey([4; 16]),
    };
    let answers = [link, link + 1, link - 1].map(|version| Response::Keys(keys(version)));
    let answers = [claimed(), attached(link)].into_iter().chain(answers);
    let request = AttachRequest {
        digests: None,
        ..asks()
    };
    let (at, key, logger) = logger(vec![answers.collect()]);
    let client = LoggerClient::dial(at, &key, TEST_TIMEOUT).expect("it listens");
    let (mut client, ..) = client.attaching(&request).expect("it answers");
    assert_eq!(client.rekey().expect("the agreed version"), keys(link));
    for _ in 0..2 {
        let error = client.rekey().expect_err("another version");
        assert!(matches!(error, ServeError::Logger(_)), "{error}");
    }
    drop(client);
    logger.join().expect("no panic");
}

#[test]
fn logger_without_common_link_version_is_named() {
    let refused = Response::Error {
        code: ErrorCode::NoCommonVersion,
        message: "the logger speaks version 3".into(),
    };
    let (at, key, logger) = logger(vec![vec![claimed(), refused]]);
    let client = LoggerClient::dial(at, &key, TEST_TIMEOUT).expect("it listens");
    let error = client.attaching(&asks()).err().expect("it is refused");
    assert_eq!(
        error.to_string(),
        "the logger has another version: the logger speaks version 3"
    );
    logger.join().expect("no panic");
}

fn lease_request() -> LeaseRequest {
    LeaseRequest {
        instance: 1,
        host: 2,
        number: 3,
        life: 4,
        preference: 5,
        standing: Standing::First,
        service: "web".into(),
    }
}

#[test]
fn lease_arrives_unasked() {
    let verdict = Verdict::Lease {
        epoch: 6,
        term_us: 1_000_000,
        standby: true,
        former: Former::Other,
    };
    let answer = LeaseAnswer {
        instance: 1,
        number: 3,
        life: 4,
        verdict,
    };
    let (at, key, logger) = logger(vec![vec![claimed(), Response::Lease(answer)]]);
    let client = LoggerClient::dial(at, &key, TEST_TIMEOUT).expect("it listens");
    let (mut client, _) = client.claiming(&claim()).expect("it answers");
    client.ask_for_lease(lease_request()).expect("it reads");
    let until = Instant::now() + TEST_TIMEOUT;
    while !client.has_message() && Instant::now() < until {
        client.listen().expect("it answers");
    }
    assert_eq!(client.next_message(), Some(LoggerMessage::Lease(answer)));
    drop(client);
    let said = [Request::Claim(claim()), Request::Lease(lease_request())];
    assert_eq!(logger.join().expect("no panic"), said);
}

#[test]
fn logger_without_common_version_is_named() {
    let newest = VERSIONS.newest();
    let theirs = Versions::new(newest + 1, newest + 2).expect("a range");
    let opening = Opening {
        role: Role::Answers,
        versions: theirs,
    };
    let (at, key, logger) = logger_with_bytes(vec![opening.encode().to_vec()]);
    let error = LoggerClient::dial(at, &key, TEST_TIMEOUT);
    let error = error.err().expect("it is not understood");
    let told = format!(
        "the logger has another version: this program speaks {VERSIONS} of the control stream, the peer {theirs}: upgrade the older program, one version at a time"
    );
    assert_eq!(error.to_string(), told);
    logger.join().expect("no panic");
}

/// A logger of version 8 takes an opening for the length of a message, and ends the stream without a word.
#[test]
fn possibly_older_logger_is_named() {
    let (at, key, logger) = logger_with_bytes(vec![Vec::new(), vec![3, 0, 0, 0, 7, 0x88, 4]]);
    let error = LoggerClient::dial(at, &key, TEST_TIMEOUT);
    let error = error.err().expect("it is not understood");
    assert!(matches!(error, ServeError::LoggerMayBeOlder), "{error}");
    assert!(error.to_string().ends_with("upgrade an older logger"));
    let error = LoggerClient::dial(at, &key, TEST_TIMEOUT);
    let error = error.err().expect("it is not understood");
    assert!(
        error.to_string().ends_with("upgrade the older version"),
        "{error}"
    );
    logger.join().expect("no panic");
}

fn attach() -> Attach {
    Attach {
        instance: 1,
        replay: types::ReplayMode::Request,
        per_connection: 1 << 20,
        total: 1 << 30,
        connections: 10,
        udp_port: 7000,
        inherit: false,
        service: "web".into(),
        ..Attach::PLAIN
    }
}

#[test]
fn refused_claim_has_its_own_error() {
    let refused = Response::Error {
        code: ErrorCode::Taken,
        message: "10.0.0.10:80 is another's".into(),
    };
    let beside = Response::Claimed {
        beside: "site".into(),
    };
    let (at, key, logger) = logger(vec![vec![refused], vec![beside]]);
    let dial = || LoggerClient::dial(at, &key, TEST_TIMEOUT).expect("it listens");
    let error = dial().claiming(&claim()).err();
    let error = error.expect("it is refused");
    assert!(
        matches!(&error, ServeError::AddressClaimed(why) if why == "10.0.0.10:80 is another's"),
        "{error}"
    );
    assert_eq!(error.fault(), crate::Fault::InTheWay);
    let (client, beside) = dial().claiming(&claim()).expect("it serves");
    assert_eq!(beside.as_deref(), Some("site"));
    drop(client);
    logger.join().expect("no panic");
}

#[test]
fn unkillable_process_is_named_after_timeout() {
    let sleeps = || Command::new("sleep").arg("1000").spawn().expect("sleep");
    let ends = |mut child: Child| {
        child.kill().expect("it runs");
        reap(child, TEST_TIMEOUT)
    };
    assert_eq!(ends(sleeps()), None);
    // Like a killed process that waits in the kernel.
    let waits = sleeps();
    let pid = waits.id();
    let unended = reap(waits, Duration::ZERO).expect("it runs");
    assert_eq!(unended, Unended(pid));
    assert!(unended.to_string().contains(&pid.to_string()));
    // After a late end, no zombie is left.
    let process = Pid::from_raw(i32::try_from(pid).expect("a number")).expect("not 0");
    let pidfd = pidfd_open(process, PidfdFlags::empty()).expect("it runs");
    pidfd_send_signal(&pidfd, Signal::KILL).expect("it runs");
    while std::path::Path::new(&format!("/proc/{pid}")).exists() {
        thread::sleep(EXIT_POLL_INTERVAL);
    }
}

/// On a busy machine a process takes long to begin.
#[test]
fn slow_logger_start_is_awaited() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = directory.path().join(SOCKET);
    let listener = UnixListener::bind(&at).expect("a socket");
    let timeouts = [Duration::from_millis(20), FIRST_START_TIMEOUT];
    let answers = thread::scope(|scope| {
        scope.spawn(|| {
            for _ in timeouts {
                let (mut stream, _) = listener.accept().expect("a stream");
                thread::sleep(Duration::from_millis(200));
                let mut bytes = Opening::of(Role::Answers).encode().to_vec();
                let hello = Response::Hello {
                    pid: 7,
                    frames: mirror::VERSION,
                };
                encode(&hello, Agreed::OWN, &mut bytes).expect("a message");
                // The client may have left.
                let _ = stream.write_all(&bytes);
                let _ = stream.read_to_end(&mut Vec::new());
            }
        });
        timeouts.map(|timeout| LoggerClient::connect(&at, "web", timeout).map(|client| client.pid))
    });
    assert!(
        matches!(&answers, [Err(ServeError::Logger(_)), Ok(7)]),
        "{answers:?}"
    );
}
