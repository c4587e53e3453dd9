//! The client: Linux's rules for timestamps, and a request that is sent again until it is acknowledged.

use http1::{BodyLength, Method, edit::INPUTS_FIELD, parse_response};
use wire::{
    Flags, FlowKey, IpPacket, OptionsBuffer, SackBlock, SackBlocks, Segment, SegmentSpec,
    SeqNumber, SynOptions, TcpOption, Timestamps,
};

use objects::timestamp::{State, Timestamp};

use crate::pool::{Asking, Scenario};
use crate::server::{self, emit, stamps};

const WINDOW_SCALE: u8 = 7;
const RTO_TICKS: u64 = 200;
const RTO_TICKS_MAX: u64 = 1600;

pub(crate) struct Client {
    key: FlowKey,
    isn: SeqNumber,
    una: SeqNumber,
    nxt: SeqNumber,
    /// Number of the first byte of the first response; `None` before the SYN-ACK.
    first: Option<SeqNumber>,
    /// All responses, one behind the other, as far as bytes have come: the witness.
    bytes: Vec<Option<u8>>,
    /// Where each whole response ends in `bytes`.
    ends: Vec<usize>,
    in_order: usize,
    lengths: Vec<usize>,
    requests: Vec<Vec<u8>>,
    asked: usize,
    asking: Asking,
    is_dynamic: bool,
    has_timestamps: bool,
    has_store: bool,
    ts_recent: u32,
    /// When the segment with this timestamp was sent, in the order of all packets.
    ts_recent_order: u64,
    /// Next byte at the time of the newest acknowledgement (Linux: `rcv_wup`).
    acked_to: SeqNumber,
    clock_offset: u32,
    retry_at: u64,
    rto: u64,
}

impl Client {
    pub(crate) fn new(key: FlowKey, isn: u32, scenario: &Scenario) -> Self {
        let lengths = &scenario.lengths;
        Self {
            key,
            isn: SeqNumber(isn),
            una: SeqNumber(isn),
            nxt: SeqNumber(isn),
            first: None,
            bytes: Vec::new(),
            ends: Vec::new(),
            in_order: 0,
            lengths: lengths.to_vec(),
            requests: (0..lengths.len()).map(server::request).collect(),
            asked: 0,
            asking: scenario.asking,
            is_dynamic: scenario.is_dynamic,
            has_timestamps: scenario.client_has_timestamps,
            has_store: scenario.store.is_some() && scenario.has_index,
            ts_recent: 0,
            ts_recent_order: 0,
            acked_to: SeqNumber(0),
            clock_offset: isn.rotate_left(9),
            retry_at: 0,
            rto: RTO_TICKS,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.ends.len() == self.requests.len() && self.una == self.nxt
    }

    pub(crate) fn has_bytes_behind_hole(&self) -> bool {
        self.in_order < self.bytes.len()
    }

    pub(crate) fn progress(&self) -> (usize, usize, bool) {
        (self.in_order, self.ends.len(), self.una == self.nxt)
    }

    fn rcv_nxt(&self) -> SeqNumber {
        let first = self.first.unwrap_or_default();
        first + u32::try_from(self.in_order).expect("small")
    }

    fn packet(&mut self, now: u64, seq: SeqNumber, flags: Flags, payload: &[u8]) -> Vec<u8> {
        self.acked_to = self.rcv_nxt();
        let value = self.tsval(now);
        let mut options = if self.has_timestamps {
            stamps(value, self.ts_recent)
        } else {
            OptionsBuffer::new()
        };
        if self.has_bytes_behind_hole() {
            options.push(&self.sack()).expect("one block");
        }
        emit(&SegmentSpec {
            source: self.key.client(),
            destination: self.key.server(),
            seq,
            ack: self.rcv_nxt(),
            flags,
            window: 512,
            options: options.as_slice(),
            payload,
        })
    }

    /// All bytes behind the first hole are in one block: only the end matters.
    fn sack(&self) -> TcpOption<'static> {
        let first = self.first.unwrap_or_default();
        let at = |at: usize| first + u32::try_from(at).expect("small");
        let left = (self.in_order..).find(|at| self.bytes[*at].is_some());
        let block = SackBlock {
            left: at(left.expect("bytes behind a hole")),
            right: at(self.bytes.len()),
        };
        TcpOption::Sack(SackBlocks::new(&[block]).expect("a block"))
    }

    fn tsval(&self, now: u64) -> u32 {
        let ticks = u32::try_from(now).expect("a short test");
        self.clock_offset.wrapping_add(ticks)
    }

    fn syn(&self, now: u64) -> Vec<u8> {
        let options = SynOptions {
            mss: Some(1460),
            window_scale: Some(WINDOW_SCALE),
            sack_permitted: true,
            timestamps: self.has_timestamps.then(|| Timestamps {
                value: self.tsval(now),
                echo: 0,
            }),
        };
        emit(&SegmentSpec {
            source: self.key.client(),
            destination: self.key.server(),
            seq: self.isn,
            ack: SeqNumber(0),
            flags: Flags::SYN,
            window: u16::MAX,
            options: options.emit().as_slice(),
            payload: &[],
        })
    }

    /// Sends what is due.
    pub(crate) fn on_tick(&mut self, now: u64) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        if self.first.is_some() && self.may_ask() {
            out.push(self.ask(now));
        }
        if self.una == self.nxt && self.first.is_some() || now < self.retry_at {
            return out;
        }
        self.retry_at = now + self.rto;
        self.rto = (self.rto * 2).min(RTO_TICKS_MAX);
        if self.first.is_none() {
            self.nxt = self.isn + 1;
            out.push(self.syn(now));
        } else if out.is_empty() {
            let request = self.unacknowledged();
            let flags = Flags::ACK.union(Flags::PSH);
            out.push(self.packet(now, self.una, flags, &request));
        }
        out
    }

    fn may_ask(&self) -> bool {
        let has_all = self.asked == self.ends.len();
        let is_time = match self.asking {
            Asking::Acknowledged => has_all && self.una == self.nxt,
            Asking::AtOnce => has_all,
            Asking::Pipelined { .. } => true,
        };
        self.asked < self.requests.len() && is_time
    }

    fn ask(&mut self, now: u64) -> Vec<u8> {
        let count = match self.asking {
            Asking::Pipelined { joined: true } => self.requests.len(),
            _ => self.asked + 1,
        };
        let request = self.requests[self.asked..count].concat();
        let seq = self.nxt;
        self.asked = count;
        self.nxt += u32::try_from(request.len()).expect("small");
        self.rto = RTO_TICKS;
        self.retry_at = now + self.rto;
        self.packet(now, seq, Flags::ACK.union(Flags::PSH), &request)
    }

    /// The first segment that is not acknowledged.
    fn unacknowledged(&self) -> Vec<u8> {
        let mut start = self.isn + 1;
        for (number, request) in self.requests[..self.asked].iter().enumerate() {
            let end = start + u32::try_from(request.len()).expect("small");
            if end.after(self.una) {
                let is_told = self.una.distance_from(start).unwrap_or(0);
                let rest = &request[usize::try_from(is_told).expect("small")..];
                let behind = match self.asking {
                    Asking::Pipelined { joined: true } => self.requests[number + 1..].concat(),
                    _ => Vec::new(),
                };
                return [rest, &behind].concat();
            }
            start = end;
        }
        Vec::new()
    }

    /// A packet arrives: the packet with this number of all that were sent. Returns the answers.
    pub(crate) fn on_packet(&mut self, packet: &[u8], order: u64, now: u64) -> Vec<Vec<u8>> {
        let packet = IpPacket::parse(packet).expect("a packet");
        let segment = Segment::of(&packet).expect("a segment");
        assert!(
            !segment.flags().contains(Flags::RST),
            "the client was reset"
        );
        let stamps = segment.timestamps();
        assert_eq!(stamps.is_some(), self.has_timestamps, "{segment:?}");
        // Without timestamps no segment is older than another.
        let stamps = stamps.unwrap_or(Timestamps { value: 0, echo: 0 });
        let Some(first) = self.first else {
            return self.on_synack(&segment, stamps, now);
        };
        if segment.flags().contains(Flags::SYN) {
            return vec![self.packet(now, self.nxt, Flags::ACK, &[])];
        }
        let is_refused = self.ts_recent.wrapping_sub(stamps.value).cast_signed() > 0;
        let is_old = !segment.end_seq().after(self.acked_to);
        if is_refused && is_old && segment.payload().is_empty() {
            // Linux 6.14: tcp_disordered_ack_check.
            return Vec::new();
        }
        // A call, or Linux: tcp_sequence.
        let is_call = segment.payload() == [0];
        if (is_old && is_call)
            || (segment.payload().is_empty() && segment.end_seq().before(self.acked_to))
        {
            return vec![self.packet(now, self.nxt, Flags::ACK, &[])];
        }
        // Of two segments that overtake each other every TCP refuses one.
        let is_overtaken = order < self.ts_recent_order;
        assert!(!is_refused || is_overtaken, "PAWS refuses {segment:?}");
        if is_refused {
            return vec![self.packet(now, self.nxt, Flags::ACK, &[])];
        }
        if !segment.seq().after(self.acked_to) {
            self.ts_recent = stamps.value;
            self.ts_recent_order = order;
        }
        self.take_payload(&segment, first);
        self.take_ack(&segment);
        if segment.payload().is_empty() {
            return Vec::new();
        }
        if self.may_ask() {
            return vec![self.ask(now)];
        }
        vec![self.packet(now, self.nxt, Flags::ACK, &[])]
    }

    fn on_synack(&mut self, segment: &Segment<'_>, stamps: Timestamps, now: u64) -> Vec<Vec<u8>> {
        if !segment.flags().contains(Flags::SYN.union(Flags::ACK)) {
            return Vec::new();
        }
        assert_eq!(segment.ack(), self.isn + 1);
        self.first = Some(segment.seq() + 1);
        self.una = self.isn + 1;
        self.ts_recent = stamps.value;
        self.rto = RTO_TICKS;
        vec![self.packet(now, self.nxt, Flags::ACK, &[])]
    }

    fn take_payload(&mut self, segment: &Segment<'_>, first: SeqNumber) {
        let Some(offset) = segment.seq().distance_from(first) else {
            panic!("bytes before the first: {segment:?}");
        };
        let offset = usize::try_from(offset).expect("small");
        for (at, byte) in (offset..).zip(segment.payload()) {
            if self.bytes.len() <= at {
                self.bytes.resize(at + 1, None);
            }
            let known = *self.bytes[at].get_or_insert(*byte);
            assert_eq!(known, *byte, "the byte at {at}, segment {segment:?}");
        }
        while self.bytes.get(self.in_order).is_some_and(Option::is_some) {
            self.in_order += 1;
        }
        while self.read_response() {}
    }

    /// Whether one more response is whole.
    fn read_response(&mut self) -> bool {
        let (object, start) = (self.ends.len(), self.ends.last().copied().unwrap_or(0));
        let stream: Vec<u8> = { self.bytes[start..self.in_order].iter() }
            .map(|byte| byte.expect("in order"))
            .collect();
        let Some(head) = parse_response(&stream, Method::Get).expect("a response") else {
            return false;
        };
        let len = self.lengths[object];
        let expected = BodyLength::Bytes(u64::try_from(len).expect("small"));
        assert_eq!((head.status, head.body), (200, expected));
        let body = &stream[head.len..];
        let seed = match body.first_chunk() {
            Some(seed) if self.is_dynamic => Some(u32::from_be_bytes(*seed)),
            _ => None,
        };
        for value in head.fields.values(INPUTS_FIELD) {
            assert!(value.trim_ascii().is_empty(), "inputs at a client");
        }
        for (byte, at) in body.iter().zip(0..) {
            let expected = match seed {
                Some(seed) => server::dynamic_byte(object, seed, at),
                None if self.is_dynamic => *byte,
                None => server::body_byte(object, at),
            };
            assert_eq!(*byte, expected, "byte {at} of {object}");
        }
        let is_whole = stream.len() >= head.len + len;
        if is_whole {
            assert!(
                stream.len() == head.len + len,
                "bytes that belong to no response"
            );
            self.ends.push(start + head.len + len);
        }
        is_whole
    }

    pub(crate) fn knows_of_any_record(&self) -> bool {
        if !self.has_timestamps {
            return !self.bytes.is_empty();
        }
        let state = Timestamp::from_wire(self.ts_recent).state;
        matches!(state, State::Stored { .. })
    }

    fn knows_of_record(&self, number: usize) -> bool {
        if !self.has_timestamps {
            return self.has_store;
        }
        let state = Timestamp::from_wire(self.ts_recent).state;
        let State::Stored { turn, .. } = state else {
            return false;
        };
        // A member that goes on after a whole response counts from 1.
        self.has_store && (number % 8 == usize::from(turn) || turn == 1)
    }

    fn take_ack(&mut self, segment: &Segment<'_>) {
        let ack = segment.ack();
        if !ack.after(self.una) || ack.after(self.nxt) {
            return;
        }
        // Each request that is acknowledged with this has its whole response, or the client knows of its record.
        let mut end = self.isn + 1;
        for (number, request) in self.requests[..self.asked].iter().enumerate() {
            end += u32::try_from(request.len()).expect("small");
            assert!(
                end.after(ack) || number < self.ends.len() || self.knows_of_record(number),
                "acknowledged early: {segment:?}"
            );
        }
        self.una = ack;
        self.rto = RTO_TICKS;
    }
}
