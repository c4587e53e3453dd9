//! Transfers between two threads, by the loopback device.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use blast::{BlastRanges, Layout, Policy, Settings};
use bulk::{
    BulkError,
    carrier::{
        DataSocket, Incoming, MemorySink, MemorySource, Outgoing, PacketKey, Placement, Reception,
        Source, Target, Transmitted, receive, send,
    },
};

const PLACEMENTS: [Placement; 3] = [Placement::Copied, Placement::Placed, Placement::Misplaced];
const PACKET_KEY: PacketKey = PacketKey::Secret([1; 16]);

fn settings(layout: Layout) -> Settings {
    Settings {
        layout,
        transfer: 7,
        policy: Policy::Full,
        rate_max: None,
        round_trip: Duration::from_millis(1),
        peer_timeout: Duration::from_secs(10),
    }
}

fn loopback() -> DataSocket {
    DataSocket::bind("127.0.0.1:0".parse().expect("an address")).expect("a socket")
}

fn incoming(layout: Layout, sender: SocketAddr, number: u8, size: usize) -> Incoming {
    Incoming {
        transfer: 7,
        sender,
        key: PACKET_KEY,
        answer_key: PacketKey::Secret([number; 16]),
        layout,
        size: u64::try_from(size).expect("a size"),
        ahead: 64,
        present: BlastRanges::new(),
        placement: Placement::Copied,
    }
}

fn target(address: SocketAddr, number: u8) -> Target {
    Target {
        address,
        key: PacketKey::Secret([number; 16]),
        credit: 64,
        present: BlastRanges::new(),
    }
}

/// Sends `data` to so many receivers. Returns the bytes of each. `path`: the address that stands for a receiver, given
/// the address of the sender and of the receiver.
fn transfer(
    data: &[u8],
    layout: Layout,
    receivers: u8,
    placement: Placement,
    path: impl Fn(SocketAddr, SocketAddr) -> SocketAddr,
) -> (Transmitted, Vec<(Reception, Vec<u8>)>) {
    let stop = AtomicBool::new(false);
    let socket = loopback();
    let sender = socket.local().expect("an address");
    thread::scope(|scope| {
        let (mut targets, mut threads) = (Vec::new(), Vec::new());
        for number in 0..receivers {
            let own = loopback();
            let address = path(sender, own.local().expect("an address"));
            let is_direct = address == own.local().expect("an address");
            let sender = if is_direct { sender } else { address };
            own.connect(sender).expect("a route");
            targets.push(target(address, number));
            let incoming = Incoming {
                placement,
                ..incoming(layout, sender, number, data.len())
            };
            let stop = &stop;
            threads.push(scope.spawn(move || {
                let mut sink = MemorySink(vec![0; data.len()]);
                let received = receive(&own, incoming, &mut sink, stop);
                (received.expect("a reception"), sink.0)
            }));
        }
        let outgoing = Outgoing {
            key: PACKET_KEY,
            settings: settings(layout),
            targets,
        };
        let mut source = MemorySource(data.to_vec());
        let sent = send(&socket, outgoing, &mut source, &stop);
        // Otherwise the receivers would wait for ever after an error.
        stop.store(true, Ordering::Relaxed);
        let received = threads.into_iter().map(|it| it.join().expect("no panic"));
        (sent.expect("a transmission"), received.collect())
    })
}

/// A path that loses, doubles, delays and changes datagrams, in both directions, until the process ends.
fn bad_path(sender: SocketAddr, receiver: SocketAddr) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = socket.local_addr().expect("an address");
    thread::spawn(move || {
        let mut buffer = [0; 65_536];
        let mut late: Option<(Vec<u8>, SocketAddr)> = None;
        let mut number: u32 = 1;
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let to = if from == sender { receiver } else { sender };
            // A linear congruential generator: the high bits are random enough.
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match number >> 24 {
                0..12 => continue,
                12..20 => _ = socket.send_to(&buffer[..len], to),
                20..28 => buffer[len / 2] ^= 1,
                28..40 => {
                    late = Some((buffer[..len].to_vec(), to));
                    continue;
                }
                _ => {}
            }
            let _ = socket.send_to(&buffer[..len], to);
            if let Some((datagram, to)) = late.take() {
                let _ = socket.send_to(&datagram, to);
            }
        }
    });
    address
}

fn data(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| u8::try_from(at % 251).expect("small"))
        .collect()
}

#[test]
fn data_arrives_at_each_receiver() {
    for (len, packet_bytes, packets, receivers) in [
        (1, 1400, 46, 1),
        (1_000_001, 1400, 46, 1),
        (3_000_000, 8900, 28, 3),
        (100_000_000, 1400, 184, 1),
    ] {
        let data = data(len);
        let layout = Layout::new(packet_bytes, packets).expect("sizes in range");
        for placement in PLACEMENTS {
            let direct = |_, receiver| receiver;
            let (sent, received) = transfer(&data, layout, receivers, placement, direct);
            assert_eq!(sent.complete.len(), usize::from(receivers));
            for (reception, bytes) in received {
                assert_eq!(reception.forged, 0);
                assert!(bytes == data, "{len} bytes, {placement:?}");
            }
        }
    }
}

#[test]
fn data_arrives_over_a_bad_path() {
    let data = data(3_000_001);
    let layout = Layout::new(1000, 40).expect("sizes in range");
    for placement in PLACEMENTS {
        let (sent, received) = transfer(&data, layout, 2, placement, bad_path);
        assert!(sent.packets > sent.needed, "{sent:?}");
        for (reception, bytes) in received {
            assert!(reception.forged > 0, "{reception:?}");
            assert!(bytes == data, "{placement:?}");
        }
    }
}

#[test]
fn receiver_without_an_answer_is_lost() {
    let (socket, silent) = (loopback(), loopback());
    let layout = Layout::new(1000, 40).expect("sizes in range");
    let outgoing = Outgoing {
        key: PACKET_KEY,
        settings: Settings {
            peer_timeout: Duration::from_millis(200),
            ..settings(layout)
        },
        targets: vec![target(silent.local().expect("an address"), 0)],
    };
    let mut source = MemorySource(data(100_000));
    let sent = send(&socket, outgoing, &mut source, &AtomicBool::new(false));
    assert!(matches!(sent, Err(BulkError::PeersLost)), "{sent:?}");
}

#[test]
fn stopped_ends_return() {
    let layout = Layout::new(1000, 40).expect("sizes in range");
    let (socket, silent) = (loopback(), loopback());
    let address = silent.local().expect("an address");
    let stopped = AtomicBool::new(true);
    let outgoing = Outgoing {
        key: PACKET_KEY,
        settings: settings(layout),
        targets: vec![target(address, 0)],
    };
    let mut source = MemorySource(data(1000));
    let sent = send(&socket, outgoing, &mut source, &stopped);
    assert!(matches!(sent, Err(BulkError::Stopped)), "{sent:?}");
    let incoming = incoming(layout, address, 0, 1000);
    let mut sink = MemorySink::default();
    let received = receive(&socket, incoming, &mut sink, &stopped);
    assert!(matches!(received, Err(BulkError::Stopped)), "{received:?}");
}

/// A source that has become shorter.
struct Truncated;

impl Source for Truncated {
    fn size(&self) -> u64 {
        5000
    }

    fn read(&mut self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

#[test]
fn unreadable_source_ends_the_transfer() {
    let layout = Layout::new(1000, 40).expect("sizes in range");
    let (socket, silent) = (loopback(), loopback());
    let outgoing = Outgoing {
        key: PACKET_KEY,
        settings: settings(layout),
        targets: vec![target(silent.local().expect("an address"), 0)],
    };
    let sent = send(&socket, outgoing, &mut Truncated, &AtomicBool::new(false));
    assert!(matches!(sent, Err(BulkError::Source(_))), "{sent:?}");
}
