//! Tests: which sockets continue, at which position.

use std::io::{ErrorKind, Read};

use super::*;

#[test]
fn reset_socket_read_fails() {
    let read = |mut socket: Box<dyn Read>| socket.read(&mut [0; 4]).map_err(|error| error.kind());
    let reset = Err(ErrorKind::ConnectionReset);
    assert_eq!(read(Box::new(reset_socket().expect("a socket"))), reset);
    assert_eq!(
        read(Box::new(reset_local_socket().expect("a socket"))),
        reset
    );
}

/// A connection on which `abc` was written and two of four bytes were read; and the other end.
fn connection() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let mut socket =
        TcpStream::connect(listener.local_addr().expect("an address")).expect("opened");
    let (mut other, _) = listener.accept().expect("accepted");
    socket.write_all(b"abc").expect("written");
    other.write_all(b"1234").expect("written");
    socket.read_exact(&mut [0; 2]).expect("read");
    (socket.into(), other)
}

/// Report of a process that has read `instream` bytes, and has kept the output `said` from `offset` on.
fn passed(
    instream: u64,
    offset: u64,
    said: &[u8],
    is_shut: bool,
) -> ConnectionReport<UpstreamPosition> {
    ConnectionReport {
        connection: 0,
        holders: vec![0],
        position: UpstreamPosition {
            serial: 1,
            is_local: false,
            instream,
            outstream: offset + said.len() as u64,
            is_shut,
            is_closed: false,
        },
        offset,
        output: said.to_vec(),
    }
}

#[test]
fn unsent_output_and_unread_input_are_completed() {
    for (instream, rest) in [(2, &b"34"[..]), (3, b"4"), (4, b"")] {
        for (offset, said) in [(3, &b"def"[..]), (1, b"bcdef"), (0, b"abcdef")] {
            let (held, mut other) = connection();
            go_on(&held, &passed(instream, offset, said, true)).expect("it goes on");
            let mut heard = Vec::new();
            other.read_to_end(&mut heard).expect("its end");
            assert_eq!(heard, b"abcdef");
            other.shutdown(Shutdown::Write).expect("shut");
            let mut read = Vec::new();
            TcpStream::from(held).read_to_end(&mut read).expect("read");
            assert_eq!(read, rest);
        }
    }
}

#[test]
fn socket_with_other_byte_counts_is_refused() {
    let others = [
        passed(1, 3, b"", false), // it had read more than that
        passed(5, 3, b"", false), // more than has arrived
        passed(2, 2, b"", false), // it had said more
        passed(2, 4, b"", false), // less than was kept
    ];
    for passed in others {
        let (held, _other) = connection();
        assert!(go_on(&held, &passed).is_none(), "{passed:?}");
    }
    // The process had shut the connection, and the record does not contain that.
    let (held, _other) = connection();
    let socket = TcpStream::from(held);
    socket.shutdown(Shutdown::Write).expect("shut");
    assert!(go_on(&socket.into(), &passed(2, 3, b"", false)).is_none());
}

/// The other end sees the end of a connection that was closed or has ended: the socket is not held any more.
#[test]
fn closed_sockets_are_released() {
    let mut upstream = Upstream::default();
    let (process, mut others) = (0, Vec::new());
    for serial in 1..=200 {
        let (held, other) = connection();
        if serial > 100 {
            TcpStream::from(held.try_clone().expect("another"))
                .shutdown(Shutdown::Both)
                .expect("shut");
        }
        upstream.on_message(Message::Opened { process, serial }, Some(held));
        others.push(other);
    }
    // Close every second connection; few of the shut connections are left.
    for serial in (2..=200).step_by(2) {
        upstream.on_message(Message::Closed { process, serial }, None);
    }
    for (serial, other) in (1..).zip(&mut others) {
        let is_held = upstream.held.contains_key(&(process, serial));
        assert!(is_held == (serial % 2 == 1) || serial > 100, "{serial}");
        if !is_held {
            // An end, or a reset: the socket had unread data.
            let _ = other.read_to_end(&mut Vec::new());
        }
    }
    assert!(upstream.held.len() < 90, "{}", upstream.held.len());
    upstream.let_go();
    for mut other in others {
        let _ = other.read_to_end(&mut Vec::new());
    }
}

/// Both the lost output of a dead process and the data in the socket are large.
#[test]
fn large_output_and_input_are_completed() {
    const OUTPUT_BYTES: usize = 1 << 20;
    let (held, mut other) = connection();
    let socket = TcpStream::from(held);
    socket.set_nonblocking(true).expect("set");
    let mut waits = 3; // the bytes of before
    while let Ok(length) = (&socket).write(&[7; 64 << 10]) {
        waits += length;
    }
    let said = vec![8; OUTPUT_BYTES];
    let held = OwnedFd::from(socket);
    go_on(&held, &passed(4, waits as u64, &said, true)).expect("it goes on");
    let mut heard = Vec::new();
    other.read_to_end(&mut heard).expect("its end");
    assert_eq!(heard.len(), waits + OUTPUT_BYTES);
    assert!(heard[3..waits].iter().all(|byte| *byte == 7));
    assert!(heard[waits..] == said);
}

/// [`connection`] with all data read: a close does not cause a reset.
fn read_connection() -> (OwnedFd, TcpStream) {
    let (held, other) = connection();
    let mut socket = TcpStream::from(held);
    socket.read_exact(&mut [0; 2]).expect("read");
    (socket.into(), other)
}

/// An unused connection, and the other end.
fn new_connection() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let socket = TcpStream::connect(listener.local_addr().expect("an address")).expect("opened");
    let (other, _) = listener.accept().expect("accepted");
    (socket.into(), other)
}

/// Connections that the last incarnation had opened without a record of the opening.
fn unnoted(which: &[Which]) -> (Upstream, Vec<TcpStream>) {
    let mut upstream = Upstream::default();
    let others = which.iter().map(|(process, serial)| {
        let (held, other) = new_connection();
        let (process, serial) = (*process, *serial);
        upstream.on_message(Message::Opened { process, serial }, Some(held));
        other
    });
    let others = others.collect();
    let begun = BTreeSet::from([0, 1]);
    let handover = Handover::new().expect("a handover");
    upstream.hand_over(&handover, &begun).expect("handed over");
    (upstream, others)
}

fn received_until_end(mut other: &TcpStream) -> Result<usize, io::ErrorKind> {
    let mut all = [0; 100];
    loop {
        match other.read(&mut all) {
            Ok(0) => return Ok(0),
            Ok(_) => {}
            Err(error) => return Err(error.kind()),
        }
    }
}

#[test]
fn reopened_socket_is_kept() {
    let (mut upstream, others) = unnoted(&[(0, 1), (0, 2), (1, 1), (2, 1)]);
    // Only the last connection of a present process may be unrecorded. The incarnation had closed the rest.
    for gone in [0, 3] {
        assert_eq!(received_until_end(&others[gone]), Ok(0));
    }
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let (process, serial) = (0, 2);
    upstream.on_message(Message::Opens { process, serial }, Some(theirs.into()));
    assert!(upstream.held.contains_key(&(0, 2)));
    let mut answer = [0; 1];
    let (mut reader, mut stream) = (&ours, &others[1]);
    reader.read_exact(&mut answer).expect("an answer");
    stream.write_all(b"more").expect("nobody has ended it");
    // The next incarnation takes another course than the earlier incarnation.
    let (held, _other) = new_connection();
    let (process, serial) = (1, 1);
    upstream.on_message(Message::Opened { process, serial }, Some(held));
    assert_eq!(
        received_until_end(&others[2]),
        Err(ErrorKind::ConnectionReset)
    );
    // No answer about an unknown connection.
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    upstream.on_message(Message::Opens { process, serial }, Some(theirs.into()));
    assert_eq!((&ours).read(&mut answer).expect("its end"), 0);
}

/// The other end must not take the received data for complete.
#[test]
fn used_unknown_socket_is_closed() {
    let mut upstream = Upstream::default();
    let (held, other) = read_connection();
    let (process, serial) = (0, 1);
    upstream.on_message(Message::Opened { process, serial }, Some(held));
    let handover = Handover::new().expect("a handover");
    let begun = BTreeSet::from([0]);
    upstream.hand_over(&handover, &begun).expect("handed over");
    assert_eq!(received_until_end(&other), Ok(0));
}

#[test]
fn unusable_socket_is_reset() {
    let (held, other) = read_connection();
    let mut upstream = Upstream::default();
    let (process, serial) = (0, 1);
    upstream.on_message(Message::Opened { process, serial }, Some(held));
    let mut known = passed(4, 2, b"", false); // it had said more
    known.position.is_closed = true;
    upstream.pass(vec![known]);
    let handover = Handover::new().expect("a handover");
    let begun = BTreeSet::from([0]);
    upstream.hand_over(&handover, &begun).expect("handed over");
    assert_eq!(received_until_end(&other), Err(ErrorKind::ConnectionReset));
}

/// The program wants to wait until the other end has all data. `serve` must not wait: the wait would not end.
#[test]
fn released_socket_does_not_block() {
    let (held, mut other) = read_connection();
    let socket = TcpStream::from(held);
    socket.set_nonblocking(true).expect("set");
    let mut waits = 3; // the bytes of before
    while let Ok(length) = (&socket).write(&[7; 64 << 10]) {
        waits += length;
    }
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(10_000)))
        .expect("set");
    socket.set_nonblocking(false).expect("set");
    let mut upstream = Upstream::default();
    let (process, serial) = (0, 1);
    upstream.on_message(Message::Opened { process, serial }, Some(socket.into()));
    upstream.on_message(Message::Closed { process, serial }, None);
    let mut heard = vec![0; waits];
    other.read_exact(&mut heard).expect("all of it");
}

/// A process that dies before recording the adoption finds the connection unchanged.
#[test]
fn outbound_socket_is_held_until_recorded() {
    let key = |port| {
        let address = |port| (Ipv4Addr::LOCALHOST, port).into();
        FlowKey::new(address(port), address(20))
    };
    let mut upstream = Upstream::default();
    let mut others = Vec::new();
    let mut answers = Vec::new();
    for serial in 1..=3 {
        let (held, other) = new_connection();
        others.push(other);
        let process = 0;
        upstream.on_message(Message::Opened { process, serial }, Some(held));
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        upstream.on_message(Message::Joins { process, serial }, Some(theirs.into()));
        let joining = upstream.next_outbound().expect("one");
        let port = u16::try_from(serial).expect("small");
        let flow = (key(port), FlowId(serial));
        assert!(upstream.answer(joining, Some(flow)), "{serial}");
        assert!(!upstream.held.contains_key(&(process, serial)));
        answers.push(ours);
    }
    // The adoption of the first connection is recorded, and that of the second is not.
    let (process, serial) = (0, 1);
    upstream.on_message(Message::Closed { process, serial }, None);
    assert_eq!(received_until_end(&others[0]), Ok(0));
    let unnoted = upstream.unjoin(|process, flow| (process, flow) == (0, FlowId(2)));
    assert_eq!(unnoted, [(key(3), FlowId(3))]);
    assert_eq!(received_until_end(&others[1]), Ok(0));
    assert!(upstream.held.contains_key(&(0, 3)));
    (&others[2])
        .write_all(b"more")
        .expect("nobody has ended it");
}
