use std::{
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Instant,
};

use channel::Received;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

/// A logger that takes as many streams as there are answers, and says on each what it is told to when it has heard
/// something; `None`: it ends the stream.
fn logger(answers: Vec<Option<Response>>) -> (SocketAddr, Key, thread::JoinHandle<()>) {
    let key = Key::generate("test").expect("randomness");
    let ring = Arc::new(KeyRing::of(vec![key.clone()]));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("it is bound");
    let thread = thread::spawn(move || {
        for answer in answers {
            let (stream, _) = listener.accept().expect("a stream");
            let mut channel = Channel::accept(stream, Arc::clone(&ring), Instant::now());
            hear_something(&mut channel);
            if let Some(answer) = answer {
                let mut bytes = Vec::new();
                encode(&answer, &mut bytes).expect("a message");
                channel.say(&bytes).expect("open");
                channel.flush().expect("it reads");
                hear_something(&mut channel); // the end
            }
        }
    });
    (at, key, thread)
}

fn hear_something(channel: &mut Channel<TcpStream>) {
    loop {
        match channel.receive() {
            Ok(Received::Plain(bytes)) if bytes.is_empty() => {}
            Ok(Received::Nothing) => {}
            _ => return,
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
fn logger_of_the_version_before_is_called_again_and_told_no_addresses() {
    let hello = Response::Hello { pid: 7 };
    let (at, key, logger) = logger(vec![None, Some(hello.clone())]);
    let dial = || LoggerClient::dial(at, &key, PATIENCE);
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

#[test]
fn logger_of_the_version_before_is_sent_no_digests() {
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
    let closed = FrameKind::Closed(protocol::mirror::CloseReason::Finished);
    let (from, asked) = (SeqNumber(5), SeqNumber(6));
    let head = FrameKind::Outstream { from, asked };
    let (mut all, mut old) = (Vec::new(), Vec::new());
    for frame in [
        frame(FrameKind::Digest, &[7; 24]),
        frame(head, b"a head"),
        frame(closed, b""),
    ] {
        frame.encode(&mut all).expect("it is whole");
        if frame.kind != FrameKind::Digest {
            frame.encode(&mut old).expect("it is whole");
        }
    }
    assert_eq!(without_digests(&all), old);
    let damaged = [&old[..], b"damaged"].concat();
    assert_eq!(without_digests(&damaged), damaged);
}

#[test]
fn claim_that_is_refused_is_an_error_of_its_own() {
    let refused = Response::Error {
        code: ErrorCode::Taken,
        message: "10.0.0.10:80 is another's".into(),
    };
    let beside = Response::Claimed {
        beside: "site".into(),
    };
    let (at, key, logger) = logger(vec![Some(refused), Some(beside)]);
    let dial = || LoggerClient::dial(at, &key, PATIENCE);
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
