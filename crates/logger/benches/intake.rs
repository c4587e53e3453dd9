//! What one core takes in: from memory, without sockets; and over UDP on the loopback device, where
//! the sender is another thread and only the processor time of the logger's main thread counts; with
//! the record in memory, and written to files, too.

use std::{
    hint::black_box,
    net::{SocketAddr, UdpSocket},
    os::{fd::AsFd, unix::net::UnixStream},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use channel::{Channel, Key, KeyRing};
use criterion::{Criterion, Throughput};
use logger::{
    Desk, Service, ServiceConfig,
    link::{AckPolicy, Greeting, Outbox, Peer, Sessions},
    without_checksums,
};
use protocol::{
    control::{Attach, Decoder, Replay, Request, Response, Resume, encode},
    link::{Ack, KeySet, LinkKey, LinkKeys, Open, SegmentFlags, seal},
};
use rustix::time::{ClockId, clock_gettime};
use wire::{ChecksumMode, Flags, FlowId, FlowKey, SegmentSpec, SeqNumber};

const ISN: SeqNumber = SeqNumber(u32::MAX - 1000);
/// Bytes that are uploaded before the record is begun anew.
const UPLOAD: usize = 8 << 20;
/// Connections that are open besides the one that is measured.
const OTHERS: u64 = 10_000;
const FLOW: FlowId = FlowId(OTHERS / 2);
/// Payload of a frame on an Ethernet link, and of one that segmentation offload has not cut.
const SIZES: [usize; 2] = [1448, 64_000];
/// Datagrams that are taken before what is due is acknowledged.
const BATCH: usize = 32;
/// What the sender lets go without an acknowledgement, bytes: what the kernel's buffers hold.
const IN_FLIGHT: u32 = 1 << 20;
const UPLOADS: u32 = 60;

fn key(flow: FlowId) -> FlowKey {
    let [.., a, b] = flow.0.to_be_bytes();
    let client = SocketAddr::from(([10, 0, 0, 1], u16::from_be_bytes([a, b])));
    FlowKey::new(client, SocketAddr::from(([10, 0, 0, 2], 80)))
}

fn attach(udp_port: u16) -> Attach {
    Attach {
        instance: 1,
        replay: Replay::Connection,
        per_connection: 1 << 30,
        total: 2 << 30,
        connections: 1 << 20,
        udp_port,
        service: "bench".into(),
    }
}

fn resume() -> Resume {
    Resume {
        flow: FLOW,
        key: key(FLOW),
        client_isn: ISN,
        server_isn: ISN,
        instream: ISN + 1,
        outstream: ISN + 1,
    }
}

/// A segment from a client.
fn segment(keys: &LinkKeys, flow: FlowId, seq: SeqNumber, payload: &[u8]) -> Vec<u8> {
    let flags = SegmentFlags {
        turn: false,
        unfinished: false,
        slot: keys.slot,
    };
    let (mut packet, mut datagram) = (Vec::new(), Vec::new());
    SegmentSpec {
        source: key(flow).client(),
        destination: key(flow).server(),
        seq,
        ack: ISN + 1,
        flags: Flags::ACK,
        window: 1000,
        options: &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
        payload,
    }
    .emit(&mut packet, ChecksumMode::Full)
    .expect("a packet");
    seal(&packet, flow, flags, &keys.up, &mut datagram).expect("TCP");
    datagram
}

/// The segments of an upload.
fn upload(keys: &LinkKeys, size: usize) -> Vec<Vec<u8>> {
    let payload = vec![0x5a; size];
    let step = u32::try_from(size).expect("short");
    let count = u32::try_from(UPLOAD / size).expect("few");
    let segments = (0..count).map(|index| segment(keys, FLOW, ISN + 1 + index * step, &payload));
    segments.collect()
}

/// Resident bytes of this process.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// What the process grows by per idle connection with a request of 100 bytes.
fn idle() {
    let (peer, greeting) = (peer(), greeting());
    let before = resident();
    let mut sessions = Sessions::new(AckPolicy::EachBatch, u64::MAX, Duration::MAX);
    let mut out = Outbox::default();
    let (_, keys) = sessions.attach(&attach(1000), peer, &greeting, &mut out);
    open_others(&mut sessions, &keys, &mut out);
    for flow in (0..OTHERS).map(FlowId) {
        let datagram = segment(&keys, flow, ISN + 1, &[b'x'; 100]);
        sessions.take(peer, &datagram, Duration::ZERO, &mut out);
        out.clear();
    }
    let grown = before
        .zip(resident())
        .map(|(before, after)| after.saturating_sub(before));
    match grown {
        Some(grown) => println!(
            "idle: {} resident bytes for each of {OTHERS} connections",
            grown / OTHERS
        ),
        None => println!("idle: no /proc to read"),
    }
}

fn peer() -> Peer {
    Peer {
        via: 0,
        local: [127, 0, 0, 1].into(),
        address: SocketAddr::from(([127, 0, 0, 1], 1000)),
    }
}

fn greeting() -> Greeting {
    Greeting {
        up: LinkKey([1; 16]),
        down: LinkKey([2; 16]),
        counter: 0,
    }
}

fn open_others(sessions: &mut Sessions, keys: &LinkKeys, out: &mut Outbox) {
    for flow in (0..OTHERS).map(FlowId) {
        let open = Open {
            slot: keys.slot,
            flow,
            key: key(flow),
            client_isn: ISN,
            server_isn: ISN,
        };
        sessions.take(peer(), &open.encode(&keys.up), Duration::ZERO, out);
        out.clear();
    }
}

/// From memory.
fn core(criterion: &mut Criterion) {
    let (peer, greeting) = (peer(), greeting());
    let mut sessions = Sessions::new(AckPolicy::EachBatch, u64::MAX, Duration::MAX);
    let mut out = Outbox::default();
    let (_, keys) = sessions.attach(&attach(1000), peer, &greeting, &mut out);
    open_others(&mut sessions, &keys, &mut out);
    let mut group = criterion.benchmark_group("core");
    group.sample_size(10);
    for size in SIZES {
        let datagrams = upload(&keys, size);
        let bytes = datagrams.len() * size;
        group.throughput(Throughput::Bytes(u64::try_from(bytes).expect("small")));
        group.bench_function(format!("{size}"), |bencher| {
            bencher.iter(|| {
                let session = sessions.get_mut(1).expect("attached");
                session.answer(Desk::new(0), &Request::Resume(resume()), &mut out);
                for batch in datagrams.chunks(BATCH) {
                    for datagram in batch {
                        sessions.take(peer, black_box(datagram), Duration::ZERO, &mut out);
                    }
                    sessions.settle(Duration::ZERO, &mut out);
                    out.clear();
                }
            });
        });
        let stable = sessions
            .get_mut(1)
            .and_then(|s| s.journal().stable_seq(FLOW));
        let end = ISN + 1 + u32::try_from(bytes).expect("small");
        assert_eq!(stable, Some(end), "all of it was recorded");
    }
    group.finish();
}

/// Over the loopback device.
fn loopback(name: &str, size: usize, directory: Option<PathBuf>) {
    let key = Key::generate("bench").expect("randomness");
    let service = Service::bind(ServiceConfig {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        keys: KeyRing::of(vec![key.clone()]),
        keep: Duration::from_secs(60),
        limit_total: u64::MAX,
        acks: AckPolicy::EachBatch,
        directory,
    });
    let service = service.expect("a free port");
    let address = service.addresses()[0];
    let (stop, stopped) = UnixStream::pair().expect("sockets");
    let logger = thread::spawn(move || {
        let ended = service.run(stopped.as_fd(), &mut |_| ());
        ended.expect("no error");
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::try_from(time).expect("a time")
    });

    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.connect(address).expect("an address");
    without_checksums(&socket, false).expect("a socket");
    let patience = Duration::from_secs(5);
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .expect("a socket");
    let mut control = Channel::connect(address, &key, patience, patience).expect("it listens");
    let port = socket.local_addr().expect("bound").port();
    let mut ask = |requests: &[Request]| {
        let mut bytes = Vec::new();
        for request in requests {
            encode(request, &mut bytes).expect("a message");
        }
        control.say(&bytes).expect("open");
        control.flush().expect("it reads");
        let mut decoder = Decoder::<Response>::new();
        loop {
            if let Some(response) = decoder.pull().expect("a response") {
                return response;
            }
            if let channel::Received::Plain(bytes) = control.receive().expect("open") {
                decoder.feed(&bytes);
            }
        }
    };
    let Response::Attached { keys, .. } = ask(&[Request::Attach(attach(port))]) else {
        panic!("not attached");
    };
    let mut down = KeySet::EMPTY;
    down.put(keys.slot, keys.down);
    let datagrams = upload(&keys, size);

    let mut buffer = [0; 2048];
    let step = u32::try_from(size).expect("short");
    let (mut acks, mut again) = (0u32, 0u32);
    let begun = Instant::now();
    for _ in 0..UPLOADS {
        // The first is not answered.
        let barrier = Request::Barrier { token: 1 };
        ask(&[Request::Resume(resume()), barrier]);
        let (mut sent, mut stable) = (0, 0);
        let count = u32::try_from(datagrams.len()).expect("few");
        while stable < count {
            while sent < count && (sent - stable) * step < IN_FLIGHT {
                let datagram = &datagrams[usize::try_from(sent).expect("few")];
                socket.send(datagram).expect("sent");
                sent += 1;
            }
            match socket.recv(&mut buffer) {
                Ok(len) => {
                    let ack = Ack::decode(&buffer[..len], &down).expect("an ACK");
                    let distance = ack.stable_seq.distance_from(ISN + 1).expect("ahead");
                    // One of the upload before may come late.
                    if distance / step <= sent {
                        stable = stable.max(distance / step);
                    }
                    acks += 1;
                }
                Err(_) => {
                    again += 1;
                    sent = stable;
                }
            }
        }
    }
    let wall = begun.elapsed();
    drop(stop);
    let busy = logger.join().expect("no panic");
    let bits = f64::from(UPLOADS) * f64::from(step) * datagrams.len() as f64 * 8e-9;
    println!(
        "{name}/{size}: {:.2} Gbit/s of the logger's processor time ({:.2} Gbit/s in all), {acks} ACKs, {again} timeouts",
        bits / busy.as_secs_f64(),
        bits / wall.as_secs_f64(),
    );
}

fn main() {
    idle();
    let mut criterion = Criterion::default().configure_from_args();
    core(&mut criterion);
    criterion.final_summary();
    for size in SIZES {
        loopback("loopback", size, None);
    }
    for size in SIZES {
        let directory = tempfile::tempdir().expect("a directory");
        loopback("durable", size, Some(directory.path().join("log")));
    }
}
