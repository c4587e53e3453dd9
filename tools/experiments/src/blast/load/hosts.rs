//! The hosts: a file server, a second server, and workstations.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use lab::Host;
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::SliceRandom};

use super::counts::{Arrivals, Counts, HEADER_BYTES, Kind, Packet};

const HOST_PORT: u16 = 7610;
/// Payload of a packet of a blast, and packets of a blast: 8 KB.
const PAYLOAD_BYTES: usize = 1024;
const BLAST_PACKETS: u16 = 8;
/// Bytes of other packets.
const SHORT_BYTES: usize = 64;
/// Headers of Ethernet, IP and UDP have 42 bytes; with this and the header they have the 94 bytes of section 4.
const PADDING_BYTES: usize = 94 - 42 - HEADER_BYTES;
/// Time for an answer. A blast of 8 KB takes a millisecond.
const ANSWER_TIME: Duration = Duration::from_millis(200);
const STOP_CHECK_TIME: Duration = Duration::from_millis(20);
/// Files of a compilation, by their blasts: read ones (programs, sources, headers), and written ones. Each file is
/// asked for before and released behind.
const READ_FILES: [usize; 10] = [9, 8, 7, 6, 5, 4, 3, 2, 2, 2];
const WRITTEN_FILES: [usize; 5] = [4, 2, 2, 1, 1];

/// Mean times.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// The pauses of a compilation together.
    pub(super) compilation: Duration,
    /// Between two questions of a workstation's other processes.
    pub(super) question: Duration,
    /// Between two broadcasts.
    pub(super) broadcast: Duration,
}

impl Pace {
    pub(super) fn faster(self, times: f64) -> Self {
        Self {
            compilation: self.compilation.div_f64(times),
            question: self.question.div_f64(times),
            broadcast: self.broadcast.div_f64(times),
        }
    }
}

/// The only socket of a host.
struct Port {
    socket: UdpSocket,
    arrivals: Arrivals<SocketAddr>,
    sent: u32,
    buffer: Vec<u8>,
    others: Option<Others>,
}

/// Processes beside the compilation: each answer may arrive in the midst of a blast.
struct Others {
    /// Asked in turn.
    servers: [SocketAddr; 2],
    mean: Duration,
    next: Instant,
    rng: SmallRng,
}

/// Numbers of questions, and of their answers.
const OF_COMPILATION: u32 = 0;
const OF_OTHERS: u32 = 1;

impl Port {
    fn open(host: &Host) -> Result<Self> {
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, HOST_PORT));
        let socket = host.enter(|| UdpSocket::bind(any))??;
        socket.set_broadcast(true)?;
        Ok(Self {
            socket,
            arrivals: Arrivals::new(),
            sent: 0,
            buffer: vec![0; 2 * PAYLOAD_BYTES],
            others: None,
        })
    }

    /// The next packet, within that time; true: a blast is complete.
    fn receive(&mut self, within: Duration) -> Result<Option<(SocketAddr, Packet, bool)>> {
        let mut within = within;
        if let Some(others) = &mut self.others {
            let now = Instant::now();
            if others.next <= now {
                others.next = now + exponential(&mut others.rng, others.mean);
                others.servers.rotate_left(1);
                let [to, _] = others.servers;
                self.say(to, Kind::Query, OF_OTHERS)?;
            } else {
                within = within.min(others.next - now);
            }
        }
        let least = Duration::from_micros(1); // none at all would be no limit
        self.socket.set_read_timeout(Some(within.max(least)))?;
        match self.socket.recv_from(&mut self.buffer) {
            Ok((len, from)) => {
                let packet = Packet::decode(&self.buffer[..len]);
                let Some(packet) = packet else {
                    return Ok(None);
                };
                let is_complete = self.arrivals.add(from, &packet);
                Ok(Some((from, packet, is_complete)))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn say(&self, to: SocketAddr, kind: Kind, number: u32) -> Result<()> {
        let packet = Packet {
            kind,
            blast: number,
            packet: 0,
            count: BLAST_PACKETS,
        };
        self.send(to, packet, SHORT_BYTES)
    }

    fn send_blast(&mut self, to: SocketAddr) -> Result<()> {
        self.sent += 1;
        for packet in 0..BLAST_PACKETS {
            let packet = Packet {
                kind: Kind::Data,
                blast: self.sent,
                packet,
                count: BLAST_PACKETS,
            };
            self.send(to, packet, PADDING_BYTES + PAYLOAD_BYTES)?;
        }
        Ok(())
    }

    fn send(&self, to: SocketAddr, packet: Packet, payload: usize) -> Result<()> {
        let mut bytes = packet.encode().to_vec();
        bytes.resize(HEADER_BYTES + payload, 0);
        self.socket.send_to(&bytes, to)?;
        Ok(())
    }
}

/// Answers each question, and each written blast.
pub(super) fn file_server(host: &Host, stop: &AtomicBool) -> Result<Counts> {
    let mut port = Port::open(host)?;
    while !stop.load(Ordering::Relaxed) {
        match port.receive(STOP_CHECK_TIME)? {
            Some((from, packet, _)) if packet.kind == Kind::Read => port.send_blast(from)?,
            Some((from, packet, _)) if packet.kind == Kind::Query => {
                port.say(from, Kind::Answer, packet.blast)?;
            }
            Some((from, _, true)) => port.say(from, Kind::Answer, OF_COMPILATION)?,
            _ => {}
        }
    }
    Ok(port.arrivals.counts)
}

/// Compiles: reads and writes files of the first server, with pauses in between.
pub(super) fn workstation(
    host: &Host,
    servers: [&Host; 2],
    pace: Pace,
    seed: u64,
    stop: &AtomicBool,
) -> Result<Counts> {
    let mut port = Port::open(host)?;
    let servers = servers.map(|it| SocketAddr::from((it.address().ipv4(), HOST_PORT)));
    let [to, _] = servers;
    let mut rng = SmallRng::seed_from_u64(seed);
    port.others = Some(Others {
        servers,
        mean: pace.question,
        next: Instant::now(),
        rng: SmallRng::seed_from_u64(!seed),
    });
    let files = READ_FILES.len() + WRITTEN_FILES.len();
    let mean = pace.compilation.div_f64(files as f64);
    while !stop.load(Ordering::Relaxed) {
        let read = READ_FILES.map(|blasts| (Kind::Read, blasts));
        let mut todo = read.to_vec();
        todo.extend(WRITTEN_FILES.map(|blasts| (Kind::Data, blasts)));
        todo.shuffle(&mut rng);
        for (kind, blasts) in todo {
            pause(&mut port, exponential(&mut rng, mean), stop)?;
            let mut exchanges = vec![kind; blasts];
            exchanges.insert(0, Kind::Query);
            exchanges.push(Kind::Query);
            for kind in exchanges {
                if stop.load(Ordering::Relaxed) {
                    return Ok(port.arrivals.counts);
                }
                exchange(&mut port, to, kind)?;
            }
        }
    }
    Ok(port.arrivals.counts)
}

/// Sends a question or a blast, and waits for the answer.
fn exchange(port: &mut Port, to: SocketAddr, kind: Kind) -> Result<()> {
    match kind {
        Kind::Data => port.send_blast(to)?,
        kind => port.say(to, kind, OF_COMPILATION)?,
    }
    let deadline = Instant::now() + ANSWER_TIME;
    while let Some(left) = deadline.checked_duration_since(Instant::now()) {
        match port.receive(left)? {
            Some((_, _, true)) => return Ok(()),
            Some((_, packet, _))
                if packet.kind == Kind::Answer && packet.blast == OF_COMPILATION =>
            {
                return Ok(());
            }
            _ => {}
        }
    }
    Ok(()) // lost: the next question follows
}

/// Receives, and does nothing else.
fn pause(port: &mut Port, time: Duration, stop: &AtomicBool) -> Result<()> {
    let deadline = Instant::now() + time;
    while let Some(left) = deadline.checked_duration_since(Instant::now()) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        port.receive(left.min(STOP_CHECK_TIME))?;
    }
    Ok(())
}

/// Sends broadcasts, and answers questions of the workstations' other processes.
pub(super) fn second_server(host: &Host, pace: Pace, stop: &AtomicBool) -> Result<()> {
    let mut port = Port::open(host)?;
    let [a, b, c, _] = host.address().ipv4().octets();
    let all = SocketAddr::from(([a, b, c, 255], HOST_PORT));
    let mut rng = SmallRng::seed_from_u64(99);
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let left = next.saturating_duration_since(Instant::now());
        if left.is_zero() {
            port.say(all, Kind::Broadcast, 0)?;
            next = Instant::now() + exponential(&mut rng, pace.broadcast);
        }
        match port.receive(left.min(STOP_CHECK_TIME))? {
            Some((from, packet, _)) if packet.kind == Kind::Query => {
                port.say(from, Kind::Answer, packet.blast)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn exponential(rng: &mut SmallRng, mean: Duration) -> Duration {
    let uniform: f64 = rng.random();
    mean.mul_f64(-(1.0 - uniform).ln())
}
