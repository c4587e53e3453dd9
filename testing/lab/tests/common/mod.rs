//! Shared parts of the lab's tests: two hosts, and short exchanges between the hosts.
// Each test file uses its own part of this.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use lab::{Host, Lab};

/// Timeout of an expected event: only a failure takes this long.
pub(crate) const EVENT_TIMEOUT: Duration = Duration::from_secs(120);
/// Waiting time for an event that must not happen: every run takes this long.
pub(crate) const QUIET_TIME: Duration = Duration::from_millis(200);

/// After this time without a datagram no datagram is under way, also on a busy machine.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// A lab with a server at 10.0.0.1 and a client at 10.0.0.2.
pub(crate) fn two_hosts(label: &str) -> (Lab, Host, Host) {
    let lab = Lab::new(label).expect("these tests need root and iproute2");
    let server = lab.add_host("server").unwrap();
    let client = lab.add_host("client").unwrap();
    (lab, server, client)
}

/// Both addresses of a host's first interface.
pub(crate) fn addresses(host: &Host) -> [IpAddr; 2] {
    [host.address().ipv4().into(), host.address().ipv6().into()]
}

/// A TCP connection between two hosts: the server's and the client's end.
pub(crate) fn connect(server: &Host, client: &Host, to: IpAddr) -> (TcpStream, TcpStream) {
    let listener = server
        .enter(|| TcpListener::bind((to, 0)))
        .unwrap()
        .unwrap();
    let address = listener.local_addr().unwrap();
    let ours = client
        .enter(|| TcpStream::connect_timeout(&address, EVENT_TIMEOUT))
        .unwrap()
        .unwrap();
    let (theirs, _) = listener.accept().unwrap();
    for end in [&theirs, &ours] {
        end.set_read_timeout(Some(EVENT_TIMEOUT)).unwrap();
        end.set_write_timeout(Some(EVENT_TIMEOUT)).unwrap();
        end.set_nodelay(true).unwrap();
    }
    (theirs, ours)
}

/// Bytes without a short period.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0u32..)
        .flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes())
        .take(length)
        .collect()
}

/// Sends bytes through a connection and returns what arrived.
pub(crate) fn transfer(mut from: &TcpStream, mut to: &TcpStream, bytes: &[u8]) -> Vec<u8> {
    thread::scope(|scope| {
        scope.spawn(move || from.write_all(bytes).unwrap());
        let mut got = vec![0; bytes.len()];
        to.read_exact(&mut got).unwrap();
        got
    })
}

/// A byte there and back: the time of the round trip.
pub(crate) fn round_trip(a: &TcpStream, b: &TcpStream) -> Duration {
    let start = Instant::now();
    assert_eq!(transfer(a, b, b"?"), b"?");
    assert_eq!(transfer(b, a, b"!"), b"!");
    start.elapsed()
}

/// UDP sockets of two hosts, the second connected to the first. Both hosts know the neighbour, so that a test's
/// datagrams do not wait for address resolution.
pub(crate) struct Udp {
    pub(crate) receiver: UdpSocket,
    pub(crate) sender: UdpSocket,
}

impl Udp {
    pub(crate) fn new(to: &Host, from: &Host) -> Self {
        let open = |host: &Host| {
            let address = SocketAddr::new(host.address().ipv4().into(), 0);
            host.enter(|| UdpSocket::bind(address)).unwrap().unwrap()
        };
        let (receiver, sender) = (open(to), open(from));
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        receiver.connect(sender.local_addr().unwrap()).unwrap();
        receiver.set_read_timeout(Some(EVENT_TIMEOUT)).unwrap();
        sender.set_read_timeout(Some(EVENT_TIMEOUT)).unwrap();
        let mut buffer = [0; 8];
        sender.send(b"?").unwrap();
        receiver.recv(&mut buffer).unwrap();
        receiver.send(b"!").unwrap();
        sender.recv(&mut buffer).unwrap();
        Self { receiver, sender }
    }

    /// Sends a numbered datagram of `length` bytes.
    pub(crate) fn send(&self, number: u32, length: usize) {
        let mut datagram = vec![0; length.max(4)];
        datagram[..4].copy_from_slice(&number.to_be_bytes());
        self.sender.send(&datagram).unwrap();
    }

    /// Whether a datagram gets through: on a busy machine that may take a while.
    pub(crate) fn passes(&self) -> bool {
        self.send(0, 4);
        !self.received(1, EVENT_TIMEOUT).is_empty()
    }

    /// Whether no datagram gets through.
    pub(crate) fn is_cut(&self) -> bool {
        self.send(0, 4);
        self.received(1, QUIET_TIME).is_empty()
    }

    /// The numbers of up to `most` datagrams, ending early after `patience` without one.
    pub(crate) fn received(&self, most: usize, patience: Duration) -> Vec<u32> {
        self.receiver.set_read_timeout(Some(patience)).unwrap();
        let mut numbers = Vec::new();
        let mut buffer = [0; 65_536];
        while numbers.len() < most {
            match self.receiver.recv(&mut buffer) {
                Ok(length) if length >= 4 => {
                    numbers.push(u32::from_be_bytes(buffer[..4].try_into().unwrap()));
                }
                Ok(length) => panic!("a datagram of {length} bytes"),
                Err(_) => break,
            }
        }
        numbers
    }

    /// Sends `count` small datagrams and returns the numbers of the arrived datagrams.
    pub(crate) fn exchange(&self, count: u32) -> Vec<u32> {
        let mut numbers = Vec::new();
        for number in 0..count {
            self.send(number, 100);
            // Taken out now and then, as the receiver's buffer is bounded.
            if number % 64 == 63 {
                numbers.extend(self.drain());
            }
        }
        numbers.extend(self.received(usize::MAX, IDLE_TIME));
        numbers
    }

    fn drain(&self) -> Vec<u32> {
        self.received(usize::MAX, Duration::from_millis(2))
    }
}
