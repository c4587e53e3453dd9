use std::{net::TcpListener, os::unix::net::UnixStream, thread};

use super::*;

const IO_TIMEOUT: Duration = Duration::from_secs(30);

fn key() -> Key {
    Key::generate("k").unwrap()
}

/// Drive both ends, non-blocking, until neither has anything to do.
fn settle(a: &mut Channel<UnixStream>, b: &mut Channel<UnixStream>) -> [Vec<u8>; 2] {
    let mut heard = [Vec::new(), Vec::new()];
    loop {
        let mut idle = true;
        for (end, heard) in [&mut *a, &mut *b].into_iter().zip(&mut heard) {
            end.flush().unwrap();
            if let Received::Plain(plain) = end.receive().unwrap() {
                heard.extend(plain);
                idle = false;
            }
        }
        if idle && !a.wants_write() && !b.wants_write() {
            return heard;
        }
    }
}

fn sockets() -> (UnixStream, UnixStream) {
    let (a, b) = UnixStream::pair().unwrap();
    a.set_nonblocking(true).unwrap();
    b.set_nonblocking(true).unwrap();
    (a, b)
}

#[test]
fn large_payload_passes_small_socket() {
    let (a, b) = sockets();
    let (key, now) = (key(), Instant::now());
    let mut a = Channel::initiate(a, &key, now).unwrap();
    let mut b = Channel::accept(b, Arc::new(KeyRing::of(vec![key])), now);
    settle(&mut a, &mut b);
    assert!(a.is_open() && b.is_open());
    assert_eq!(b.deadline(), None);

    let much: Vec<u8> = (0..3_000_000u32).map(|i| i.to_le_bytes()[0]).collect();
    a.say(&much).unwrap();
    b.say(b"short").unwrap();
    let [heard_by_a, heard_by_b] = settle(&mut a, &mut b);
    assert_eq!(heard_by_a, b"short");
    assert!(heard_by_b == much);

    drop(a);
    assert_eq!(b.receive().unwrap(), Received::End);
}

#[test]
fn silent_peer_expires() {
    let (_a, b) = sockets();
    let now = Instant::now();
    let mut b = Channel::accept(b, Arc::new(KeyRing::of(vec![key()])), now);
    assert_eq!(b.receive().unwrap(), Received::Nothing);
    assert!(!b.has_expired(now + HANDSHAKE_LIMIT - Duration::from_millis(1)));
    assert!(b.has_expired(now + HANDSHAKE_LIMIT));
}

#[test]
fn close_during_handshake_is_an_error() {
    let (a, b) = sockets();
    let mut b = Channel::accept(b, Arc::new(KeyRing::of(vec![key()])), Instant::now());
    drop(a);
    assert!(matches!(b.receive(), Err(ChannelError::Truncated)));
}

#[test]
fn connect_reports_refusal_reason() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let right = key();
    let keys = Arc::new(KeyRing::of(vec![right.clone()]));
    let responder = thread::spawn(move || {
        let mut results = Vec::new();
        for _ in 0..2 {
            let (stream, _) = listener.accept().unwrap();
            let mut channel = Channel::accept(stream, Arc::clone(&keys), Instant::now());
            while !channel.is_open() {
                match channel.receive() {
                    Ok(_) => {}
                    Err(error) => {
                        results.push(Some(error));
                        break;
                    }
                }
            }
            if channel.is_open() {
                results.push(None);
            }
        }
        results
    });
    let wrong = Channel::connect(at, &key(), IO_TIMEOUT, IO_TIMEOUT)
        .err()
        .unwrap();
    assert!(wrong.to_string().contains("another key"), "{wrong}");
    let channel = Channel::connect(at, &right, IO_TIMEOUT, IO_TIMEOUT).unwrap();
    assert!(channel.is_open());
    let results = responder.join().unwrap();
    assert!(matches!(results[0], Some(ChannelError::WrongKey(_))));
    assert!(results[1].is_none());
}

#[test]
fn unresponsive_peer_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let error = Channel::connect(at, &key(), Duration::from_millis(100), IO_TIMEOUT).err();
    assert!(matches!(error, Some(ChannelError::TimedOut)), "{error:?}");
}

#[test]
fn responder_of_version_before_is_called_by_that_version() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let key = key();
    let keys = Arc::new(KeyRing::of(vec![key.clone()]));
    let old = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut greeting = [0; 256];
        assert!(stream.read(&mut greeting).unwrap() > 5);
        assert_eq!(greeting[4], greeting::VERSION);
        let refusal = Refusal::Version(greeting::OLDEST_VERSION);
        let verdict = greeting::verdict(Some(refusal));
        stream.write_all(&verdict).unwrap();
        drop(stream);
        let (stream, _) = listener.accept().unwrap();
        let mut version = [0; 5];
        stream.peek(&mut version).unwrap();
        assert_eq!(version[4], greeting::OLDEST_VERSION);
        let mut channel = Channel::accept(stream, keys, Instant::now());
        loop {
            match channel.receive().unwrap() {
                Received::Plain(plain) if plain.is_empty() => {}
                received => return received,
            }
        }
    });
    let mut channel = Channel::connect(at, &key, IO_TIMEOUT, IO_TIMEOUT).unwrap();
    channel.say(b"spoken").unwrap();
    channel.flush().unwrap();
    assert_eq!(old.join().unwrap(), Received::Plain(b"spoken".to_vec()));
}

#[test]
fn version_of_no_known_responder_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let newer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut greeting = [0; 256];
        assert!(stream.read(&mut greeting).unwrap() > 5);
        let refusal = Refusal::Version(greeting::VERSION + 1);
        stream.write_all(&greeting::verdict(Some(refusal))).unwrap();
    });
    let error = Channel::connect(at, &key(), IO_TIMEOUT, IO_TIMEOUT).map(drop);
    let Err(ChannelError::Refused { refusal, .. }) = error else {
        panic!("connected");
    };
    assert_eq!(refusal, Refusal::Version(greeting::VERSION + 1));
    newer.join().unwrap();
}
