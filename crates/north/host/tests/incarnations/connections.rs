//! Programs with upstream connections.

use std::{
    io::{IoSlice, Read as _, Write as _},
    mem::MaybeUninit,
    net::{Ipv4Addr, TcpListener},
    os::fd::{AsFd as _, OwnedFd},
};

use north_abi::{Call, Record};
use north_host::{LogFeed, Memory, Message};
use rustix::{
    event::{PollFd, PollFlags, poll},
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
};

use crate::incarnation::Incarnation;

/// Sends data to a server, and prints the response.
const CONNECTS: &str = r#"
import socket
with socket.socket() as one:
    one.connect(("127.0.0.1", PORT))
    one.sendall(b"from it")
    print(one.recv(100).decode(), flush=True)
    one.recv(1)
"#;

/// The next message about an opened or closed upstream connection.
fn next_opening(incarnation: &mut Incarnation) -> (Message, Option<OwnedFd>) {
    loop {
        incarnation
            .requests
            .extend(incarnation.handover.take_requests());
        let is_of_one = |message: &Message| {
            matches!(
                message,
                Message::Opened { .. } | Message::Opens { .. } | Message::Closed { .. }
            )
        };
        // Later messages may have arrived already.
        while let Some(said) = incarnation.requests.pop_front() {
            if is_of_one(&said.0) {
                return said;
            }
        }
        let mut fds = [PollFd::from_borrowed_fd(
            incarnation.handover.supervisor_socket(),
            PollFlags::IN,
        )];
        poll(&mut fds, None).expect("poll");
        incarnation.handover.receive_messages().expect("messages");
    }
}

fn next_request(incarnation: &mut Incarnation) -> (Message, OwnedFd) {
    let (message, beside) = next_opening(incarnation);
    (message, beside.expect("a descriptor"))
}

/// The record before the first [`Call::Connect`].
fn until_connected(from: &Memory) -> Memory {
    let mut bytes = vec![0; usize::try_from(from.length(0)).expect("short")];
    from.read(0, 0, &mut bytes).expect("read");
    let mut at = 0;
    loop {
        let (record, length) = Record::read(&bytes[at..]).expect("it was connected");
        if record.call == Call::Connect {
            break;
        }
        at += length;
    }
    let memory = Memory::new().expect("memory");
    LogFeed::new(0).take(&memory, &bytes[..at]).expect("room");
    memory
}

/// The other end sees a single connection, and no death.
#[test]
fn unrecorded_connect_is_not_repeated() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    let program = CONNECTS.replace("PORT", &port.to_string());
    let memory = Memory::new().expect("memory");
    let mut incarnation = Incarnation::begin(&memory, &program, false);
    let (opened, held) = next_request(&mut incarnation);
    let Message::Opened { process, serial } = opened else {
        panic!("{opened:?}");
    };
    let (mut other, _) = listener.accept().expect("a connection");
    let mut heard = [0; 7];
    other.read_exact(&mut heard).expect("its words");
    incarnation.end_all();
    let memory = until_connected(&memory);
    memory.to_be_replayed(&mut []).expect("memory");
    let mut incarnation = Incarnation::begin(&memory, &program, false);
    incarnation.replays(&memory);
    incarnation.handover.go().expect("gone on");
    let (opens, answer) = next_request(&mut incarnation);
    assert_eq!(opens, Message::Opens { process, serial });
    let descriptors = [held.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    beside.push(SendAncillaryMessage::ScmRights(&descriptors));
    let (byte, flags) = ([IoSlice::new(&[0])], SendFlags::empty());
    sendmsg(&answer, &byte, &mut beside, flags).expect("told");
    drop(answer);
    other.read_exact(&mut heard).expect("its words, once more");
    assert_eq!(&heard, b"from it");
    other.write_all(b"heard").expect("said");
    assert_eq!(incarnation.line(), "heard\n");
    listener.set_nonblocking(true).expect("set");
    assert!(listener.accept().is_err(), "it has opened another one");
}

/// Has a child that ends without closing its connection.
const ENDS: &str = r#"
import os, socket, time
if os.fork() == 0:
    one = socket.socket()
    one.connect(("127.0.0.1", PORT))
    os._exit(0)
os.wait()
while True:
    time.sleep(0.1)
"#;

#[test]
fn child_exit_closes_upstream_connection() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    let memory = Memory::new().expect("memory");
    let mut incarnation =
        Incarnation::begin(&memory, &ENDS.replace("PORT", &port.to_string()), false);
    let (opened, held) = next_request(&mut incarnation);
    let Message::Opened { process, serial } = opened else {
        panic!("{opened:?}");
    };
    assert_eq!(process, 1);
    let (mut other, _) = listener.accept().expect("a connection");
    let (closed, _) = next_opening(&mut incarnation);
    assert_eq!(closed, Message::Closed { process, serial });
    drop(held);
    assert_eq!(other.read(&mut [0]).expect("its end"), 0);
    incarnation.end_all();
}
