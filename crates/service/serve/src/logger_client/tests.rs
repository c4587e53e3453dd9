use std::{
    io::Write,
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Instant,
};

use channel::Received;
use protocol::control::{Former, Standing, Verdict};
use protocol::link::{KeySlot, LinkKey};

use super::*;

const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A logger that takes as many streams as there are lists of answers, and says on each these, one whenever it has heard
/// something; then it ends the stream when it hears more. Answers with version and type of each thing that it has
/// heard.
fn logger(answers: Vec<Vec<Response>>) -> (SocketAddr, Key, thread::JoinHandle<Vec<[u8; 2]>>) {
    let written = |answer: &Response| {
        let mut bytes = Vec::new();
        encode(answer, &mut bytes).expect("a message");
        bytes
    };
    let streams = answers.iter();
    logger_with_bytes(
        streams
            .map(|all| all.iter().map(written).collect())
            .collect(),
    )
}

/// The same, whose answers are these bytes.
fn logger_with_bytes(
    answers: Vec<Vec<Vec<u8>>>,
) -> (SocketAddr, Key, thread::JoinHandle<Vec<[u8; 2]>>) {
    let key = Key::generate("test").expect("randomness");
    let ring = Arc::new(KeyRing::of(vec![key.clone()]));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("it is bound");
    let thread = thread::spawn(move || {
        let mut heard = Vec::new();
        for answers in answers {
            let (stream, _) = listener.accept().expect("a stream");
            let mut channel = Channel::accept(stream, Arc::clone(&ring), Instant::now());
            heard.extend(hear_something(&mut channel));
            for bytes in answers {
                channel.say(&bytes).expect("open");
                channel.flush().expect("it reads");
                heard.extend(hear_something(&mut channel)); // the end, behind the last
            }
        }
        heard
    });
    (at, key, thread)
}

/// Version and type of a message; `None`: the stream is at its end.
fn hear_something(channel: &mut Channel<TcpStream>) -> Option<[u8; 2]> {
    loop {
        match channel.receive() {
            Ok(Received::Plain(bytes)) if bytes.is_empty() => {}
            Ok(Received::Plain(bytes)) => return Some([bytes[4], bytes[5]]),
            Ok(Received::Nothing) => {}
            _ => return None,
        }
        channel.flush().expect("it reads");
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
    }
}

/// One of version 7 ends the stream at a claim.
#[test]
fn previous_version_logger_gets_no_claim() {
    let hello = Response::Hello { pid: 7 };
    let (at, key, logger) = logger(vec![vec![], vec![hello.clone()]]);
    let dial = || LoggerClient::dial(at, &key, TEST_TIMEOUT);
    let (mut client, beside) = LoggerClient::claiming(&claim(), dial).expect("it goes on");
    assert_eq!(beside, None);
    let service = "web".into();
    assert_eq!(
        client.ask(&Request::Hello { service }).expect("it answers"),
        hello
    );
    drop(client);
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

/// What a logger answers to who asks for a lease, in the bytes of version 7.
const GRANTED_BY_VERSION_7: [u8; 41] = [
    37, 0, 0, 0, 7, 0x8d, // a lease
    1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, // to whom
    2, 6, 0, 0, 0, 64, 66, 15, 0, 1,
    2, // epoch 6, for 1 s, with a standby, after another host
];

/// Asks for a lease on a stream without a claim, of a logger that ends the stream at one, and answers these bytes.
fn asks_for_a_lease(answer: Vec<u8>) -> Result<Option<LoggerMessage>, ServeError> {
    let (at, key, logger) = logger_with_bytes(vec![vec![], vec![answer]]);
    let dial = || LoggerClient::dial(at, &key, TEST_TIMEOUT);
    let (mut client, _) = LoggerClient::claiming(&claim(), dial).expect("it goes on");
    assert!(!client.reads_claims());
    client.ask_for_lease(lease_request()).expect("it reads");
    let until = Instant::now() + TEST_TIMEOUT;
    let mut heard = Ok(());
    while heard.is_ok() && !client.has_message() && Instant::now() < until {
        heard = client.listen();
    }
    let said = heard.map(|()| client.next_message());
    drop(client);
    let heard = logger.join().expect("no panic");
    assert_eq!(heard, [[8, 0x1d], [7, 15]]);
    said
}

#[test]
fn logger_of_version_7_grants_a_lease() {
    let said = asks_for_a_lease(GRANTED_BY_VERSION_7.to_vec());
    let Ok(Some(LoggerMessage::Lease(answer))) = said else {
        panic!("no lease");
    };
    let verdict = Verdict::Lease {
        epoch: 6,
        term_us: 1_000_000,
        standby: true,
        former: Former::Other,
    };
    assert_eq!((answer.number, answer.verdict), (3, verdict));
}

/// There were two versions 7 for an hour: where one has not all fields of the other, people are told what that means.
#[test]
fn other_logger_version_is_named() {
    let mut shorter = GRANTED_BY_VERSION_7[..40].to_vec();
    shorter[0] -= 1;
    let newer = vec![6, 0, 0, 0, 10, 0x8d, 0, 0, 0, 0];
    for (answer, what) in [
        (
            shorter,
            "the body of a control message is malformed: it ends within a field",
        ),
        (newer, "version 10 of the control protocol is not known"),
    ] {
        let Err(error) = asks_for_a_lease(answer) else {
            panic!("it is not understood");
        };
        let told = format!(
            "the logger has another version: {what}. Two versions of outlive in a row understand each other: upgrade the older version"
        );
        assert_eq!(error.to_string(), told);
    }
}

/// It ends the stream at all that is said to it: without a word it cannot be known from one that dies.
#[test]
fn possibly_older_logger_version_is_named() {
    let claims = Some(claim());
    for (claim, streams) in [(claims, 2), (None, 2)] {
        let (at, key, logger) = logger(vec![vec![]; streams]);
        let told = Asks {
            claim,
            attach: attach(),
            digests: None,
        };
        let attached =
            LoggerClient::attaching(&told, || LoggerClient::dial(at, &key, TEST_TIMEOUT));
        let error = attached.err().expect("it is not attached to");
        assert!(matches!(error, ServeError::LoggerMayBeOlder), "{error}");
        assert!(error.to_string().ends_with("upgrade an older logger"));
        logger.join().expect("no panic");
    }
}

/// One of version 7 ends the stream at a claim, and one that has digests, and no doubts, at who attaches.
#[test]
fn logger_without_doubts_is_attached() {
    let attached = Response::Attached {
        pid: 7,
        kept: false,
        session: 0,
        keys: LinkKeys {
            version: protocol::link::VERSION,
            slot: KeySlot::Zero,
            up: LinkKey([1; 16]),
            down: LinkKey([2; 16]),
        },
    };
    let claimed = Response::Claimed {
        beside: String::new(),
    };
    let none = |former| {
        let (summaries, last) = (Vec::new(), true);
        match former {
            true => Response::FormerSummaries { summaries, last },
            false => Response::Summaries { summaries, last },
        }
    };
    let seed = Response::DigestSeed(DigestSeed([1, 2]));
    let (claims, attaches, asks) = ([8, 0x1d], [8, 0x20], [8, 0x1f]);
    let tells = [8, 0x21];
    let (former_attaches, former_asks) = ([7, 0x09], [7, 0x02]);
    let loggers = [
        (
            Dialect::Former,
            vec![vec![], vec![attached.clone(), none(true)]],
            vec![claims, former_attaches, former_asks],
        ),
        (
            Dialect::Digests,
            vec![
                vec![claimed.clone()],
                vec![claimed.clone(), attached.clone(), none(true)],
            ],
            vec![claims, attaches, claims, former_attaches, former_asks],
        ),
        (
            Dialect::Doubts,
            vec![vec![claimed, attached, seed.clone(), none(false)]],
            vec![claims, attaches, tells, asks],
        ),
    ];
    for (knows, answers, said) in loggers {
        let (at, key, logger) = logger(answers);
        let dial = || LoggerClient::dial(at, &key, TEST_TIMEOUT);
        let told = Asks {
            claim: Some(claim()),
            attach: attach(),
            digests: Some(DigestSeed([3, 4])),
        };
        let attached = LoggerClient::attaching(&told, dial);
        let (mut client, attached, _) = attached.expect("it is attached to");
        let known = (knows == Dialect::Doubts).then_some(DigestSeed([1, 2]));
        assert_eq!(attached.digests, known);
        assert_eq!(client.dialect, knows);
        assert_eq!(client.is_former(), knows != Dialect::Doubts);
        assert_eq!(client.summaries().expect("they are told"), []);
        drop(client);
        assert_eq!(logger.join().expect("no panic"), said);
    }
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
    }
}

/// Each kind of logger is sent what it reads, and nothing is lost behind what it does not.
#[test]
fn previous_version_logger_gets_known_frames() {
    let frame = |kind, packet: &'static [u8]| MirrorFrame {
        kind,
        flow_id: FlowId(1),
        timestamp_ns: 2,
        server_nxt: SeqNumber(3),
        server_ack: SeqNumber(4),
        packet_len: u32::try_from(packet.len()).expect("short"),
        unfinished: false,
        packet,
    };
    let bytes = |frames: &[MirrorFrame<&[u8]>]| {
        let mut bytes = Vec::new();
        for frame in frames {
            frame.encode(&mut bytes).expect("it is whole");
        }
        bytes
    };
    let from = SeqNumber(5);
    let head = |asked| frame(FrameKind::Outstream { from, asked }, b"a head");
    let digest = frame(FrameKind::Digest, &[7; 24]);
    let closed = frame(
        FrameKind::Closed(protocol::mirror::CloseReason::Finished),
        b"",
    );
    let all = bytes(&[digest, head(Some(SeqNumber(6))), closed]);
    let with_digests = bytes(&[digest, head(None), closed]);
    let former = bytes(&[head(None), closed]);
    assert_eq!(Dialect::Digests.frames(&all, true), with_digests);
    assert_eq!(Dialect::Former.frames(&all, true), former);
    let versions = [4, former.len() - HEADER_LEN + 4].map(|at| former[at]);
    assert_eq!(versions, [2, 2]);
    let damaged = [&former[..], b"damaged"].concat();
    assert_eq!(Dialect::Former.frames(&damaged, true), damaged);
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
    let dial = || LoggerClient::dial(at, &key, TEST_TIMEOUT);
    let error = LoggerClient::claiming(&claim(), dial).err();
    let error = error.expect("it is refused");
    assert!(
        matches!(&error, ServeError::AddressClaimed(why) if why == "10.0.0.10:80 is another's"),
        "{error}"
    );
    assert_eq!(error.fault(), crate::Fault::InTheWay);
    let (client, beside) = LoggerClient::claiming(&claim(), dial).expect("it serves");
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
    // As one that was killed, and waits in the kernel.
    let waits = sleeps();
    let pid = waits.id();
    let unended = reap(waits, Duration::ZERO).expect("it runs");
    assert_eq!(unended, Unended(pid));
    assert!(unended.to_string().contains(&pid.to_string()));
    // When it ends after all, nothing is left of it.
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
                let mut bytes = Vec::new();
                encode(&Response::Hello { pid: 7 }, &mut bytes).expect("a message");
                // The client may have left.
                let _ = stream.write_all(&bytes);
            }
        });
        timeouts.map(|timeout| LoggerClient::connect(&at, "web", timeout).map(|client| client.pid))
    });
    assert!(
        matches!(&answers, [Err(ServeError::Logger(_)), Ok(7)]),
        "{answers:?}"
    );
}
