//! The server of a member: a small TCP that answers requests for objects.

use http1::{
    Method,
    edit::INPUTS_FIELD,
    parse_request,
    range::{ByteRange, RangeRequest},
};
use wire::{
    ChecksumMode, Flags, FlowKey, IpPacket, OptionsBuffer, Segment, SegmentSpec, SeqNumber,
    SynOptions, TcpOption, Timestamps,
};

const SEGMENT_LEN: usize = 1400;
/// Most bytes on their way.
const FLIGHT_LEN: u32 = 14_000;
const RTO_TICKS: u64 = 200;

pub(crate) fn stamps(value: u32, echo: u32) -> OptionsBuffer {
    let mut options = OptionsBuffer::new();
    for option in [
        TcpOption::NoOperation,
        TcpOption::NoOperation,
        TcpOption::Timestamps { value, echo },
    ] {
        options.push(&option).expect("twelve bytes");
    }
    options
}

pub(crate) fn emit(spec: &SegmentSpec<'_>) -> Vec<u8> {
    let mut packet = Vec::new();
    spec.emit(&mut packet, ChecksumMode::Full).expect("short");
    packet
}

/// The byte of an object at a position.
pub(crate) fn body_byte(object: usize, at: u64) -> u8 {
    let mixed = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    mixed.to_le_bytes()[0] ^ u8::try_from(object).expect("few")
}

/// Bytes at the beginning of a dynamic object that tell its input.
pub(crate) const SEED_LEN: u64 = 4;

/// The byte of a dynamic object that is made from this input.
pub(crate) fn dynamic_byte(object: usize, seed: u32, at: u64) -> u8 {
    match at {
        0..SEED_LEN => seed.to_be_bytes()[usize::try_from(at).expect("small")],
        _ => body_byte(object, at ^ u64::from(seed)),
    }
}

pub(crate) fn request(object: usize) -> Vec<u8> {
    format!("GET /{object} HTTP/1.1\r\nHost: pool\r\n\r\n").into_bytes()
}

/// The response to a request for a part of an object of this length. Each life of a server has a header of its own.
fn response(object: usize, len: usize, range: Option<RangeRequest>, life: u32) -> Vec<u8> {
    let len = u64::try_from(len).expect("small");
    let Some(range) = range else {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nETag: \"{object}\"\r\nDate: {life}\r\n\r\n"
        );
        let body = (0..len).map(|at| body_byte(object, at));
        return head.into_bytes().into_iter().chain(body).collect();
    };
    let Some(part) = range.resolve(len) else {
        let head =
            format!("HTTP/1.1 416 R\r\nContent-Range: bytes */{len}\r\nContent-Length: 0\r\n\r\n");
        return head.into_bytes();
    };
    part_of(object, len, part)
}

/// The whole response of a service that ignores ranges, and makes each response from another input.
fn dynamic_response(object: usize, len: usize, seed: u32) -> Vec<u8> {
    let len = u64::try_from(len).expect("small");
    let head = format!("HTTP/1.1 200 OK\r\nX-TRODS: {seed}\r\nContent-Length: {len}\r\n\r\n");
    let body = (0..len).map(|at| dynamic_byte(object, seed, at));
    head.into_bytes().into_iter().chain(body).collect()
}

fn part_of(object: usize, len: u64, part: ByteRange) -> Vec<u8> {
    let (first, last) = (part.first(), part.last());
    let head = format!(
        "HTTP/1.1 206 P\r\nContent-Range: bytes {first}-{last}/{len}\r\nContent-Length: {}\r\nETag: \"{object}\"\r\n\r\n",
        last - first + 1
    );
    let body = (first..=last).map(|at| body_byte(object, at));
    head.into_bytes().into_iter().chain(body).collect()
}

/// The socket of the one connection.
struct Socket {
    iss: SeqNumber,
    una: SeqNumber,
    nxt: SeqNumber,
    /// The highest `nxt` of all.
    max: SeqNumber,
    rcv_nxt: SeqNumber,
    ts_recent: u32,
    has_timestamps: bool,
    /// Bytes from `iss + 1` on.
    out: Vec<u8>,
    /// Bytes of the client that are no whole request yet.
    input: Vec<u8>,
    retry_at: u64,
}

pub(crate) struct Server {
    key: FlowKey,
    lengths: Vec<usize>,
    is_dynamic: bool,
    clock_offset: u32,
    next_iss: u32,
    socket: Option<Socket>,
    /// All timestamps that were sent.
    sent: Vec<u32>,
}

impl Server {
    pub(crate) fn new(key: FlowKey, lengths: &[usize], is_dynamic: bool, seed: u32) -> Self {
        Self {
            key,
            lengths: lengths.to_vec(),
            is_dynamic,
            clock_offset: seed.rotate_left(13),
            next_iss: seed,
            socket: None,
            sent: Vec::new(),
        }
    }

    fn tsval(&mut self, now: u64) -> u32 {
        let ticks = u32::try_from(now).expect("a short test");
        let value = self.clock_offset.wrapping_add(ticks);
        if self.sent.last() != Some(&value) {
            self.sent.push(value);
        }
        value
    }

    fn packet(&mut self, now: u64, seq: SeqNumber, flags: Flags, payload: &[u8]) -> Vec<u8> {
        let value = self.tsval(now);
        let socket = self.socket.as_ref().expect("a connection");
        let (ack, echo) = (socket.rcv_nxt, socket.ts_recent);
        let has_timestamps = socket.has_timestamps;
        let syn_options = SynOptions {
            mss: Some(1460),
            window_scale: Some(5),
            sack_permitted: true,
            timestamps: has_timestamps.then_some(Timestamps { value, echo }),
        };
        let options = if flags.contains(Flags::SYN) {
            syn_options.emit()
        } else if has_timestamps {
            stamps(value, echo)
        } else {
            OptionsBuffer::new()
        };
        emit(&SegmentSpec {
            source: self.key.server(),
            destination: self.key.client(),
            seq,
            ack,
            flags,
            window: 2000,
            options: options.as_slice(),
            payload,
        })
    }

    /// A segment arrives. Returns the answers.
    pub(crate) fn on_packet(&mut self, packet: &[u8], now: u64) -> Vec<Vec<u8>> {
        let packet = IpPacket::parse(packet).expect("a packet");
        let segment = Segment::of(&packet).expect("a segment");
        if segment.flags().contains(Flags::SYN) {
            return self.on_syn(&segment, now);
        }
        let Some(socket) = self.socket.as_mut() else {
            return Vec::new();
        };
        let stamps = segment.timestamps();
        assert_eq!(stamps.is_some(), socket.has_timestamps, "{segment:?}");
        let stamps = stamps.unwrap_or(Timestamps { value: 0, echo: 0 });
        let is_known = stamps.echo == 0 || self.sent.contains(&stamps.echo);
        assert!(is_known, "an echo of another clock: {segment:?}");
        if socket.ts_recent.wrapping_sub(stamps.value).cast_signed() > 0 {
            return vec![self.pure_ack(now)]; // PAWS
        }
        if !segment.seq().after(socket.rcv_nxt) {
            socket.ts_recent = stamps.value;
        }
        let ack = segment.ack();
        if ack.after(socket.una) && !ack.after(socket.max) {
            socket.una = ack;
            socket.nxt = socket.nxt.max_seq(ack);
            socket.retry_at = now + RTO_TICKS;
        }
        let mut answers = Vec::new();
        if !segment.payload().is_empty() {
            self.take_payload(&segment);
            answers.push(self.pure_ack(now));
        }
        answers.extend(self.transmit(now));
        answers
    }

    fn pure_ack(&mut self, now: u64) -> Vec<u8> {
        let nxt = self
            .socket
            .as_ref()
            .map_or(SeqNumber(0), |socket| socket.nxt);
        self.packet(now, nxt, Flags::ACK, &[])
    }

    fn on_syn(&mut self, segment: &Segment<'_>, now: u64) -> Vec<Vec<u8>> {
        let rcv_nxt = segment.seq() + 1;
        if self
            .socket
            .as_ref()
            .is_none_or(|socket| socket.rcv_nxt != rcv_nxt)
        {
            let iss = SeqNumber(self.next_iss);
            self.next_iss = self.next_iss.wrapping_add(64_000);
            let options = SynOptions::parse(segment.option_bytes());
            self.socket = Some(Socket {
                iss,
                una: iss + 1,
                nxt: iss + 1,
                max: iss + 1,
                rcv_nxt,
                ts_recent: options.timestamps.map_or(0, |stamps| stamps.value),
                has_timestamps: options.timestamps.is_some(),
                out: Vec::new(),
                input: Vec::new(),
                retry_at: now + RTO_TICKS,
            });
        }
        let iss = self.socket.as_ref().expect("just made").iss;
        vec![self.packet(now, iss, Flags::SYN.union(Flags::ACK), &[])]
    }

    fn take_payload(&mut self, segment: &Segment<'_>) {
        let socket = self.socket.as_mut().expect("a connection");
        let Some(known) = socket.rcv_nxt.distance_from(segment.seq()) else {
            return;
        };
        let known = usize::try_from(known).expect("small");
        let Some(new) = segment.payload().get(known..) else {
            return;
        };
        socket.rcv_nxt += u32::try_from(new.len()).expect("small");
        socket.input.extend_from_slice(new);
        let input = std::mem::take(&mut socket.input);
        match parse_request(&input).expect("a request of ours") {
            None => socket.input = input,
            Some(head) => {
                assert_eq!((head.method, head.len), (Method::Get, input.len()));
                let object: usize = head.target[1..].parse().expect("a number");
                let range = head.fields.value("range").expect("one");
                let range = range.map(|range| RangeRequest::parse(range).expect("of ours"));
                let inputs = head.fields.value(INPUTS_FIELD).expect("one");
                let seed = inputs.map(|seed| seed.parse().expect("a number"));
                let (len, life) = (self.lengths[object], self.next_iss);
                self.next_iss = life.wrapping_add(1);
                socket.out.extend(match self.is_dynamic {
                    true => dynamic_response(object, len, seed.unwrap_or(life)),
                    false => response(object, len, range, life),
                });
            }
        }
    }

    /// Sends what the flight has space for.
    fn transmit(&mut self, now: u64) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        while let Some(socket) = self.socket.as_mut() {
            let flight = socket.nxt.distance_from(socket.una).expect("in order");
            let at = socket.nxt.distance_from(socket.iss + 1).expect("in order");
            let at = usize::try_from(at).expect("small");
            let end = socket.out.len().min(at + SEGMENT_LEN);
            if at >= end || flight >= FLIGHT_LEN {
                break;
            }
            let (seq, payload) = (socket.nxt, socket.out[at..end].to_vec());
            socket.nxt += u32::try_from(end - at).expect("small");
            socket.max = socket.max.max_seq(socket.nxt);
            packets.push(self.packet(now, seq, Flags::ACK, &payload));
        }
        packets
    }

    /// Sends again what is not acknowledged in time.
    pub(crate) fn on_tick(&mut self, now: u64) -> Vec<Vec<u8>> {
        let Some(socket) = self.socket.as_mut() else {
            return Vec::new();
        };
        if socket.una == socket.max || now < socket.retry_at {
            return Vec::new();
        }
        socket.retry_at = now + RTO_TICKS;
        socket.nxt = socket.una;
        self.transmit(now)
    }
}
