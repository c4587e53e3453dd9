//! A connection of the server.

use std::collections::VecDeque;

use http1::{parse_request, range::RangeRequest};
use wire::{Flags, FlowKey, OptionsBuffer, Segment, SegmentSpec, SeqNumber};

use super::{Context, IDLE_TIMEOUT, syn_options};
use crate::{
    MS, SECOND, index, length32,
    pool::{
        segments::{emit, stamps},
        witness::Broken,
    },
};

const SEGMENT_LEN: usize = 1400;
/// Most bytes on their way.
const FLIGHT_LEN: u32 = 14_000;
const RETRY_TIMEOUT: u64 = 200 * MS;
const RETRY_TIMEOUT_MAX: u64 = 1600 * MS;
/// A connection is given up after so many retransmissions.
const TRIES_MAX: u32 = 9;
/// Repeated acknowledgements that mean a loss (RFC 5681, 3.2).
const REPEATED_ACKS: u32 = 3;
const TIME_WAIT: u64 = 5 * SECOND;
/// Linux' `tcp_fin_timeout` is a minute; a run shall end sooner.
const FIN_WAIT: u64 = 10 * SECOND;
/// Timestamps that an echo may be of.
const STAMPS_MAX: usize = 20_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Handshake,
    Open,
    /// The client has closed.
    ClientClosed,
    /// The server has closed.
    ServerClosed,
    TimeWait,
    Gone,
}

#[derive(Debug)]
pub(super) struct Socket {
    pub(super) state: State,
    iss: SeqNumber,
    una: SeqNumber,
    nxt: SeqNumber,
    /// The highest `nxt` of all.
    max: SeqNumber,
    rcv_nxt: SeqNumber,
    /// `None`: the client has no timestamps.
    ts_recent: Option<u32>,
    /// Bytes from `iss + 1` on.
    out: Vec<u8>,
    fin: Option<SeqNumber>,
    /// Bytes of the client that are no whole request yet.
    input: Vec<u8>,
    retry_at: u64,
    tries: u32,
    repeated_acks: u32,
    has_left: bool,
    sent: VecDeque<u32>,
}

impl Socket {
    pub(super) fn new(
        iss: SeqNumber,
        rcv_nxt: SeqNumber,
        ts_recent: Option<u32>,
        context: Context<'_>,
    ) -> Self {
        Self {
            state: State::Handshake,
            iss,
            una: iss,
            nxt: iss + 1,
            max: iss + 1,
            rcv_nxt,
            ts_recent,
            out: Vec::new(),
            fin: None,
            input: Vec::new(),
            retry_at: context.now + SECOND,
            tries: 0,
            repeated_acks: 0,
            has_left: false,
            sent: VecDeque::new(),
        }
    }

    /// Next number of the server, and of the client.
    pub(super) const fn ends(&self) -> (SeqNumber, SeqNumber) {
        (self.nxt, self.rcv_nxt)
    }

    pub(super) const fn due(&self) -> u64 {
        self.retry_at
    }

    /// Whether the socket is gone since the last call, or waits for late segments.
    pub(super) fn takes_leave(&mut self) -> bool {
        let leaves = matches!(self.state, State::Gone | State::TimeWait) && !self.has_left;
        self.has_left |= leaves;
        leaves
    }

    fn packet(
        &mut self,
        key: FlowKey,
        seq: SeqNumber,
        flags: Flags,
        payload: &[u8],
        context: Context<'_>,
    ) -> Vec<u8> {
        let value = context.tsval();
        if self.sent.back() != Some(&value) {
            self.sent.push_back(value);
            if self.sent.len() > STAMPS_MAX {
                self.sent.pop_front();
            }
        }
        let options = match flags.contains(Flags::SYN) {
            true => syn_options(value, self.ts_recent).emit(),
            false => { self.ts_recent }.map_or_else(OptionsBuffer::new, |echo| stamps(value, echo)),
        };
        emit(&SegmentSpec {
            source: key.server(),
            destination: key.client(),
            seq,
            ack: self.rcv_nxt,
            flags: flags.union(Flags::ACK),
            window: 2000,
            options: options.as_slice(),
            payload,
        })
    }

    pub(super) fn synack(&mut self, key: FlowKey, context: Context<'_>) -> Vec<u8> {
        self.packet(key, self.iss, Flags::SYN, &[], context)
    }

    fn pure_ack(&mut self, key: FlowKey, context: Context<'_>) -> Vec<u8> {
        self.packet(key, self.nxt, Flags::ACK, &[], context)
    }

    pub(super) fn on_segment(
        &mut self,
        key: FlowKey,
        segment: &Segment<'_>,
        context: Context<'_>,
    ) -> Result<Vec<Vec<u8>>, Broken> {
        let flags = segment.flags();
        if flags.contains(Flags::RST) {
            if segment.seq() == self.rcv_nxt {
                self.state = State::Gone;
            }
            return Ok(Vec::new());
        }
        if flags.contains(Flags::SYN) {
            let is_again = self.state == State::Handshake && segment.seq() + 1 == self.rcv_nxt;
            return Ok(vec![match is_again {
                true => self.synack(key, context),
                false => self.pure_ack(key, context),
            }]);
        }
        if !self.takes_timestamps(segment)? {
            return Ok(vec![self.pure_ack(key, context)]);
        }
        if self.state == State::Handshake {
            if segment.ack() != self.iss + 1 {
                return Ok(Vec::new());
            }
            self.state = State::Open;
        }
        let mut packets = self.take_ack(key, segment, context);
        if segment.sequence_len() > 0 {
            self.take_payload(segment, context)?;
            packets.push(self.pure_ack(key, context));
        }
        packets.extend(self.transmit(key, context));
        Ok(packets)
    }

    /// PAWS. The echo must be a timestamp of this server.
    fn takes_timestamps(&mut self, segment: &Segment<'_>) -> Result<bool, Broken> {
        let (recent, stamps) = match (self.ts_recent, segment.timestamps()) {
            (Some(recent), Some(stamps)) => (recent, stamps),
            (None, None) => return Ok(true),
            _ => {
                return Err(Broken::new(
                    "timestamps that were not agreed on at a server",
                ));
            }
        };
        if stamps.echo != 0 && !self.sent.contains(&stamps.echo) {
            return Err(Broken::new("an echo that is no timestamp of this server"));
        }
        if recent.wrapping_sub(stamps.value).cast_signed() > 0 {
            return Ok(false);
        }
        if !segment.seq().after(self.rcv_nxt) {
            self.ts_recent = Some(stamps.value);
        }
        Ok(true)
    }

    fn take_ack(
        &mut self,
        key: FlowKey,
        segment: &Segment<'_>,
        context: Context<'_>,
    ) -> Vec<Vec<u8>> {
        let ack = segment.ack();
        if ack == self.una && segment.sequence_len() == 0 && self.una != self.max {
            self.repeated_acks += 1;
            if self.repeated_acks == REPEATED_ACKS {
                return self.head(key, context).into_iter().collect();
            }
            return Vec::new();
        }
        if !ack.after(self.una) || ack.after(self.max) {
            return Vec::new();
        }
        self.una = ack;
        self.nxt = self.nxt.max_seq(ack);
        (self.tries, self.repeated_acks) = (0, 0);
        self.retry_at = context.now
            + match self.una == self.max {
                true => IDLE_TIMEOUT,
                false => RETRY_TIMEOUT,
            };
        if self.fin.is_some_and(|fin| ack.after(fin)) {
            match self.state {
                State::ClientClosed => self.state = State::Gone,
                _ => self.retry_at = context.now + FIN_WAIT,
            }
        }
        Vec::new()
    }

    fn take_payload(&mut self, segment: &Segment<'_>, context: Context<'_>) -> Result<(), Broken> {
        let Some(known) = self.rcv_nxt.distance_from(segment.seq()).map(index) else {
            return Ok(());
        };
        if let Some(new) = segment.payload().get(known..)
            && self.fin.is_none()
        {
            self.rcv_nxt += length32(new.len());
            self.input.extend_from_slice(new);
            while self.answer(context)? {}
        }
        let end = segment.seq() + length32(segment.payload_len());
        if segment.flags().contains(Flags::FIN) && end == self.rcv_nxt {
            self.rcv_nxt += 1;
            match self.state {
                State::ServerClosed => {
                    self.state = State::TimeWait;
                    self.retry_at = context.now + TIME_WAIT;
                }
                State::Open => {
                    self.state = State::ClientClosed;
                    self.fin = Some(self.iss + 1 + length32(self.out.len()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether there was a whole request.
    fn answer(&mut self, context: Context<'_>) -> Result<bool, Broken> {
        let input = std::mem::take(&mut self.input);
        let Some(head) = parse_request(&input).map_err(Broken::unreadable)? else {
            self.input = input;
            return Ok(false);
        };
        let object: usize = head.target[1..].parse().map_err(Broken::unreadable)?;
        let range = head.fields.value("range").map_err(Broken::unreadable)?;
        let range = range.map(RangeRequest::parse).transpose();
        let range = range.map_err(Broken::unreadable)?;
        let Context {
            site,
            versions,
            life,
            ..
        } = context;
        self.out
            .extend(site.response(object, range, versions, life));
        self.input = input[head.len..].to_vec();
        Ok(true)
    }

    /// The segment at `seq`.
    fn segment_at(
        &mut self,
        key: FlowKey,
        seq: SeqNumber,
        context: Context<'_>,
    ) -> Option<(Vec<u8>, u32)> {
        let at = index(seq.distance_from(self.iss + 1)?);
        let end = self.out.len().min(at + SEGMENT_LEN);
        if at < end {
            let payload = self.out[at..end].to_vec();
            let packet = self.packet(key, seq, Flags::ACK, &payload, context);
            return Some((packet, length32(end - at)));
        }
        (self.fin == Some(seq)).then(|| (self.packet(key, seq, Flags::FIN, &[], context), 1))
    }

    fn head(&mut self, key: FlowKey, context: Context<'_>) -> Option<Vec<u8>> {
        let head = self.segment_at(key, self.una, context);
        head.map(|(packet, _)| packet)
    }

    /// Sends segments for which the flight has space.
    fn transmit(&mut self, key: FlowKey, context: Context<'_>) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        let was_idle = self.una == self.max;
        while self.nxt.distance_from(self.una).unwrap_or(0) < FLIGHT_LEN
            && let Some((packet, len)) = self.segment_at(key, self.nxt, context)
        {
            self.nxt += len;
            self.max = self.max.max_seq(self.nxt);
            packets.push(packet);
        }
        if was_idle && self.una != self.max {
            self.retry_at = context.now + RETRY_TIMEOUT;
        }
        packets
    }

    /// A timer: a retransmission, the end of an idle connection, the end of a wait.
    pub(super) fn on_time(&mut self, key: FlowKey, context: Context<'_>) -> Vec<Vec<u8>> {
        if self.una == self.max || self.state == State::TimeWait {
            if self.state != State::Open {
                self.state = State::Gone;
                return Vec::new();
            }
            self.state = State::ServerClosed;
            self.fin = Some(self.nxt);
            return self.transmit(key, context);
        }
        self.tries += 1;
        if self.tries > TRIES_MAX {
            self.state = State::Gone;
            return Vec::new();
        }
        let timeout = (RETRY_TIMEOUT << self.tries.min(8)).min(RETRY_TIMEOUT_MAX);
        self.retry_at = context.now + timeout;
        if self.state == State::Handshake {
            return vec![self.synack(key, context)];
        }
        // Bytes that were not acknowledged follow with the acknowledgement of the first.
        self.nxt = self.una;
        let head = self.segment_at(key, self.nxt, context);
        let (packet, len) = match head {
            Some(head) => head,
            None => return Vec::new(),
        };
        self.nxt += len;
        vec![packet]
    }
}
