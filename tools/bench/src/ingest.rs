//! The input that a core of a logger takes: from memory, without sockets; and over UDP on the loopback device. There
//! the sender is another thread, and only the processor time of the logger's main thread counts; with the record in
//! memory, and also written to files.

use std::hint::black_box;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use channel::{Channel, Key, KeyRing, Received};
use logger::link::{AckPolicy, Greeting, Outbox, Peer, Sessions};
use logger::{RpcHandler, Service, ServiceConfig, without_checksums};
use protocol::control::{
    Agreed, Attach, Decoder, Opening, ReplayMode, Request, Response, Resume, Role, VERSIONS, encode,
};
use protocol::link::{
    Ack, Handshake, KeySet, LinkKey, LinkKeys, Open, SegmentFlags, SegmentKind, seal,
};
use rustix::time::{ClockId, clock_gettime};
use wire::{ChecksumMode, Flags, FlowId, FlowKey, SegmentSpec, SeqNumber};

use super::Bench;
use super::figure::Figure;

const ISN: SeqNumber = SeqNumber(u32::MAX - 1000);
/// Bytes that are uploaded before the record is begun anew.
const UPLOAD_BYTES: usize = 8 << 20;
/// Connections that are open besides the measured connection.
const IDLE_CONNECTIONS: u64 = 10_000;
const FLOW: FlowId = FlowId(IDLE_CONNECTIONS / 2);
/// Payload of a frame on an Ethernet link, and of a frame before segmentation offload cuts the frame.
const PAYLOAD_SIZES: [usize; 2] = [1448, 64_000];
/// Datagrams that are taken before the due acknowledgement.
const DATAGRAM_BATCH: usize = 32;
/// Bytes that the sender has in flight without an acknowledgement: as much as the kernel's buffers hold.
const IN_FLIGHT: u32 = 1 << 20;
/// Uploads of a run.
const UPLOADS_PER_RUN: u32 = 30;
const LOGGER_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let runs = bench.size(5, 1);
    let mut figures = Vec::new();
    for size in PAYLOAD_SIZES {
        bench.say(format_args!("segments of {size} bytes"));
        let about = format!("segments of {size} bytes, {IDLE_CONNECTIONS} other connections open");
        let core = repeated(bench, runs, || from_memory(size))?;
        figures.push(Figure::of(
            format!("logger.core.{size}"),
            "Gbit/s",
            &core,
            format!("{about}: datagrams from memory into the record, by the processor time"),
        ));
        let about = format!(
            "segments of {size} bytes over UDP on the loopback device: payload by the processor time of the logger's \
             main thread, the kernel's work for its socket with it"
        );
        let in_memory = repeated(bench, runs, || over_udp(size, None))?;
        figures.push(Figure::of(
            format!("logger.udp.{size}"),
            "Gbit/s",
            &in_memory,
            &about,
        ));
        let durable = repeated(bench, runs, || {
            let directory = tempfile::tempdir()?;
            over_udp(size, Some(directory.path().join("log")))
        })?;
        figures.push(Figure::of(
            format!("logger.durable.{size}"),
            "Gbit/s",
            &durable,
            format!("{about}; with --dir (the thread that waits for the disk does not count)"),
        ));
    }
    Ok(figures)
}

fn repeated(
    bench: &Bench,
    runs: usize,
    mut measure: impl FnMut() -> Result<f64>,
) -> Result<Vec<f64>> {
    let run = |_| {
        bench.interrupt.check()?;
        measure()
    };
    (0..runs).map(run).collect()
}

/// Payload by processor time, without sockets.
fn from_memory(size: usize) -> Result<f64> {
    let peer = Peer {
        via: 0,
        local: [127, 0, 0, 1].into(),
        address: SocketAddr::from(([127, 0, 0, 1], 1000)),
    };
    let greeting = Greeting {
        up: LinkKey([1; 16]),
        down: LinkKey([2; 16]),
        counter: 0,
    };
    let mut sessions = Sessions::new(AckPolicy::EachBatch, u64::MAX, Duration::MAX);
    let mut out = Outbox::default();
    let (_, keys) = sessions.attach(&attach(1000), peer, "bench", &greeting, &mut out);
    for flow in (0..IDLE_CONNECTIONS).map(FlowId) {
        let open = Open {
            version: protocol::link::VERSION,
            slot: keys.slot,
            flow,
            key: key(flow),
            client_isn: ISN,
            server_isn: ISN,
            handshake: Handshake::PLAIN,
        };
        sessions.take(peer, &open.encode(&keys.up), Duration::ZERO, &mut out);
        out.clear();
    }
    let datagrams = upload(&keys, size)?;
    let bytes = u32::try_from(datagrams.len() * size)?;
    let began = processor_time()?;
    for _ in 0..UPLOADS_PER_RUN {
        let session = sessions.get_mut(1).context("not attached")?;
        session.answer(RpcHandler::new(0), &Request::Resume(resume()), &mut out);
        for batch in datagrams.chunks(DATAGRAM_BATCH) {
            for datagram in batch {
                sessions.take(peer, black_box(datagram), Duration::ZERO, &mut out);
            }
            sessions.settle(Duration::ZERO, &mut out);
            out.clear();
        }
    }
    let took = processor_time()?.saturating_sub(began);
    let session = sessions.get_mut(1);
    let stable = session.and_then(|session| session.journal().stable_seq(FLOW));
    ensure!(
        stable == Some(ISN + 1 + bytes),
        "not all of it was recorded"
    );
    Ok(gigabits(UPLOADS_PER_RUN, bytes) / took.as_secs_f64())
}

/// Payload by the processor time of the logger's main thread.
fn over_udp(size: usize, directory: Option<PathBuf>) -> Result<f64> {
    let key = Key::generate("bench")?;
    let service = Service::bind(ServiceConfig {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        keys: KeyRing::of(vec![key.clone()]),
        keep: Duration::from_secs(60),
        limit_total: u64::MAX,
        busy_poll: Duration::ZERO,
        acks: AckPolicy::EachBatch,
        directory,
        metrics: None,
        lease: None,
        tell_clients: false,
    })?;
    let address = service.addresses()[0];
    let (stop, stopped) = UnixStream::pair()?;
    let logger = thread::spawn(move || {
        service.run(stopped.as_fd(), &mut |_| ())?;
        processor_time()
    });
    let sent = send(address, &key, size);
    drop(stop);
    let busy = logger.join().map_err(|_| anyhow!("the logger panicked"))?;
    Ok(sent? / busy?.as_secs_f64())
}

/// Sends the uploads to a logger and returns the amount, in Gbit, after the last acknowledgement.
fn send(address: SocketAddr, key: &Key, size: usize) -> Result<f64> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(address)?;
    without_checksums(&socket, false)?;
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    let channel = Channel::connect(address, key, LOGGER_TIMEOUT, LOGGER_TIMEOUT)?;
    let mut control = (channel, Decoder::at_opening(VERSIONS));
    control.0.say(&Opening::of(Role::Asks).encode())?;
    let attach = Request::Attach(attach(socket.local_addr()?.port()));
    let Response::Attached { keys, .. } = ask(&mut control, &[attach])? else {
        bail!("not attached");
    };
    let mut down = KeySet::EMPTY;
    down.put(keys.slot, keys.down);
    let datagrams = upload(&keys, size)?;
    let step = u32::try_from(size)?;
    for _ in 0..UPLOADS_PER_RUN {
        // The first is not answered.
        let barrier = Request::Barrier { token: 1 };
        ask(&mut control, &[Request::Resume(resume()), barrier])?;
        send_one(&socket, &datagrams, step, &down)?;
    }
    let bytes = step * u32::try_from(datagrams.len())?;
    Ok(gigabits(UPLOADS_PER_RUN, bytes))
}

/// Sends an upload until the logger has acknowledged all of it.
fn send_one(socket: &UdpSocket, datagrams: &[Vec<u8>], step: u32, down: &KeySet) -> Result<()> {
    let mut buffer = [0; 2048];
    let (mut sent, mut stable) = (0, 0);
    let count = u32::try_from(datagrams.len())?;
    let deadline = Instant::now() + LOGGER_TIMEOUT;
    while stable < count {
        ensure!(Instant::now() < deadline, "the logger does not acknowledge");
        while sent < count && (sent - stable) * step < IN_FLIGHT {
            socket.send(&datagrams[usize::try_from(sent)?])?;
            sent += 1;
        }
        match socket.recv(&mut buffer) {
            Ok(length) => {
                for ack in Ack::each(&buffer[..length]) {
                    let ack = Ack::decode(ack, down)?;
                    let distance = ack.stable_seq.distance_from(ISN + 1).context("behind")?;
                    // A late acknowledgement may belong to the upload before.
                    if distance / step <= sent {
                        stable = stable.max(distance / step);
                    }
                }
            }
            // Something was lost: again from there.
            Err(_) => sent = stable,
        }
    }
    Ok(())
}

/// Sends requests, and returns the single answer.
fn ask(
    (control, decoder): &mut (Channel<TcpStream>, Decoder<Response>),
    requests: &[Request],
) -> Result<Response> {
    let mut bytes = Vec::new();
    for request in requests {
        encode(request, Agreed::OWN, &mut bytes)?;
    }
    control.say(&bytes)?;
    control.flush()?;
    let deadline = Instant::now() + LOGGER_TIMEOUT;
    loop {
        if let Some(response) = decoder.pull()? {
            return Ok(response);
        }
        ensure!(Instant::now() < deadline, "the logger does not answer");
        if let Received::Plain(bytes) = control.receive()? {
            decoder.feed(&bytes);
        }
    }
}

fn processor_time() -> Result<Duration> {
    Ok(Duration::try_from(clock_gettime(ClockId::ThreadCPUTime))?)
}

fn gigabits(uploads: u32, bytes: u32) -> f64 {
    f64::from(uploads) * f64::from(bytes) * 8e-9
}

fn key(flow: FlowId) -> FlowKey {
    let [.., a, b] = flow.0.to_be_bytes();
    let client = SocketAddr::from(([10, 0, 0, 1], u16::from_be_bytes([a, b])));
    FlowKey::new(client, SocketAddr::from(([10, 0, 0, 2], 80)))
}

fn attach(udp_port: u16) -> Attach {
    Attach {
        instance: 1,
        replay: ReplayMode::Connection,
        per_connection: 1 << 30,
        total: 2 << 30,
        connections: 1 << 20,
        udp_port,
        inherit: false,
        service: "bench".into(),
        ..Attach::PLAIN
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
        handshake: Handshake::PLAIN,
    }
}

/// The segments of an upload.
fn upload(keys: &LinkKeys, size: usize) -> Result<Vec<Vec<u8>>> {
    let payload = vec![0x5a; size];
    let step = u32::try_from(size)?;
    let count = u32::try_from(UPLOAD_BYTES / size)?;
    let segments = (0..count).map(|index| segment(keys, ISN + 1 + index * step, &payload));
    segments.collect()
}

/// A segment from the client.
fn segment(keys: &LinkKeys, seq: SeqNumber, payload: &[u8]) -> Result<Vec<u8>> {
    let flags = SegmentFlags {
        version: protocol::link::VERSION,
        kind: SegmentKind::Plain,
        unfinished: false,
        slot: keys.slot,
    };
    let (mut packet, mut datagram) = (Vec::new(), Vec::new());
    SegmentSpec {
        source: key(FLOW).client(),
        destination: key(FLOW).server(),
        seq,
        ack: ISN + 1,
        flags: Flags::ACK,
        window: 1000,
        options: &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
        payload,
    }
    .emit(&mut packet, ChecksumMode::Full)?;
    seal(
        &packet,
        FLOW,
        (flags, SeqNumber(0)),
        &keys.up,
        &mut datagram,
    )?;
    Ok(datagram)
}
