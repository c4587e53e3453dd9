//! A client: Linux's rules for timestamps, acknowledgements and retransmissions, and an application that downloads
//! objects one after the other.

mod reading;
mod sending;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use wire::{
    Flags, FlowKey, IpPacket, OptionsBuffer, SackBlock, SackBlocks, Segment, SegmentSpec,
    SeqNumber, SynOptions, TcpOption, Timestamps,
};

use self::{reading::Reader, sending::Timer};
use super::{
    scenario::{Fetch, Manners},
    segments::{emit, stamps},
    site::Site,
    witness::Broken,
};
use crate::{MS, length32};

const WINDOW_SCALE: u8 = 7;
const WINDOW_FIELD: u16 = 512;
/// Pure ACKs of single segments wait for so long.
const DELAYED_ACK: u64 = 40 * MS;
/// Segments at the beginning that are acknowledged at once.
const QUICK_ACKS: u32 = 16;
/// Blocks in a segment with timestamps (RFC 2018, 3).
const SACK_BLOCKS: usize = 3;

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Connecting,
    Open,
    /// Both sides have closed, or the client has given the close up.
    Closed,
    /// A RST has arrived.
    Reset,
}

pub(super) struct Downloader {
    pub(super) key: FlowKey,
    pub(super) stage: Stage,
    manners: Manners,
    isn: SeqNumber,
    una: SeqNumber,
    nxt: SeqNumber,
    /// Requests that are not acknowledged in whole: first number and bytes. A FIN has no bytes.
    unacked: VecDeque<(SeqNumber, Vec<u8>)>,
    has_sent_fin: bool,
    timer: Timer,
    fetches: Vec<Fetch>,
    /// End of each request that was sent.
    request_ends: Vec<SeqNumber>,
    plans: Plans,
    reader: Reader,
    acks_owed: u32,
    turns: Turns,
}

/// Facts about requests, by the number of the first byte: for the witness.
#[derive(Debug, Clone, Default)]
pub(super) struct Turns {
    /// The stores that have confirmed the record.
    stored: BTreeMap<u32, BTreeSet<usize>>,
    /// Of responses that go on without protection.
    bare: BTreeSet<u32>,
    /// Of responses that are further than timestamps tell, without a record.
    exposed: BTreeSet<u32>,
    /// Stores that a record needs. `None`: no record releases a request.
    pub(super) acks: Option<usize>,
}

impl Turns {
    pub(super) fn note_stored(&mut self, start: SeqNumber, store: usize) {
        self.stored.entry(start.0).or_default().insert(store);
    }

    pub(super) fn note_bare(&mut self, start: SeqNumber, is_exposed: bool) {
        let all = match is_exposed {
            true => &mut self.exposed,
            false => &mut self.bare,
        };
        all.insert(start.0);
    }

    pub(super) fn is_exposed(&self, start: SeqNumber) -> bool {
        self.exposed.contains(&start.0)
    }

    pub(super) fn is_bare(&self, start: SeqNumber) -> bool {
        self.bare.contains(&start.0)
    }

    /// The record of the request is in the store.
    pub(super) fn is_stored(&self, start: SeqNumber) -> bool {
        let stores = self.stored.get(&start.0).map(BTreeSet::len);
        self.acks
            .is_some_and(|acks| stores.is_some_and(|stores| stores >= acks))
    }
}

/// When the client does something by itself.
#[derive(Debug, Clone, Copy, Default)]
struct Plans {
    /// The next request.
    ask_at: u64,
    close_at: Option<u64>,
    /// The server has acknowledged the close, and is waited for until then.
    gives_up_at: Option<u64>,
    /// An acknowledgement that waits.
    ack_at: Option<u64>,
}

/// The receiving side's timestamps.
#[derive(Debug, Clone, Copy, Default)]
struct Recent {
    value: u32,
    /// When the segment with this timestamp was sent, in the order of all packets.
    order: u64,
    /// Next byte at the time of the newest acknowledgement (Linux: `rcv_wup`).
    acked_to: SeqNumber,
    segments: u32,
}

impl Downloader {
    pub(super) fn new(
        key: FlowKey,
        isn: u32,
        fetches: &[Fetch],
        manners: Manners,
        begins: u64,
    ) -> Self {
        Self {
            key,
            stage: Stage::Connecting,
            manners,
            isn: SeqNumber(isn),
            una: SeqNumber(isn),
            nxt: SeqNumber(isn),
            unacked: VecDeque::new(),
            has_sent_fin: false,
            timer: Timer::begun_at(begins),
            fetches: fetches.to_vec(),
            request_ends: Vec::new(),
            plans: Plans::default(),
            reader: Reader::default(),
            acks_owed: 0,
            turns: Turns::default(),
        }
    }

    /// The application has everything that it wanted, and the server has every request.
    pub(super) fn has_all(&self) -> bool {
        let requests = self.unacked.iter().any(|(_, bytes)| !bytes.is_empty());
        self.reader.whole_count() == self.fetches.len() && !requests
    }

    /// Nothing more comes of this connection.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Closed | Stage::Reset)
    }

    /// A number that grows with everything that the application gets or gets rid of.
    pub(super) fn progress(&self) -> (Stage, usize, SeqNumber, usize) {
        let (bytes, responses) = (self.reader.in_order(), self.reader.whole_count());
        (self.stage, bytes, self.una, responses)
    }

    /// The application waits for something of the pool.
    pub(super) fn waits(&self) -> bool {
        match self.stage {
            Stage::Connecting => self.nxt != self.isn,
            Stage::Open => self.request_ends.len() > self.reader.whole_count() || !self.has_all(),
            Stage::Closed | Stage::Reset => false,
        }
    }

    pub(super) fn reader(&self) -> &Reader {
        &self.reader
    }

    pub(super) const fn reader_mut(&mut self) -> &mut Reader {
        &mut self.reader
    }

    /// The first byte that the client wants of the object under way.
    pub(super) fn asked_first(&self) -> u64 {
        let fetch = self.fetches.get(self.reader.whole_count());
        fetch.and_then(|fetch| fetch.first).unwrap_or(0)
    }

    pub(super) fn has_pipelined(&self) -> bool {
        self.manners.asks_at_once && self.fetches.len() > 1
    }

    pub(super) const fn has_timestamps(&self) -> bool {
        self.manners.has_timestamps
    }

    /// Neither timestamps nor records tell of the connection.
    pub(super) const fn is_without_state(&self) -> bool {
        !self.manners.has_timestamps && self.turns.acks.is_none()
    }

    pub(super) const fn turns(&self) -> &Turns {
        &self.turns
    }

    pub(super) const fn turns_mut(&mut self) -> &mut Turns {
        &mut self.turns
    }

    /// Whether a request of the client begins here.
    pub(super) fn has_asked(&self, start: SeqNumber) -> bool {
        let first = self.isn + 1;
        start == first || self.request_ends.contains(&start)
    }

    /// The requests of the response under way, and of the response before. The client's echo may be of either, and the
    /// server may not have heard that the client has the response before.
    fn recent_requests(&self) -> [SeqNumber; 2] {
        let whole = self.reader.whole_count();
        [whole.checked_sub(1), whole.checked_sub(2)].map(|end| {
            let end = end.and_then(|end| self.request_ends.get(end));
            end.copied().unwrap_or(self.isn + 1)
        })
    }

    /// Whether a response goes on without protection, or was further than its timestamps told.
    pub(super) fn is_exposed(&self) -> bool {
        let mut recent = self.recent_requests().into_iter();
        recent.any(|start| self.turns.is_exposed(start) || self.turns.is_bare(start))
    }

    /// The request whose response the client lacks, or the next request.
    pub(super) fn request_start(&self) -> SeqNumber {
        let before = self.reader.whole_count().checked_sub(1);
        let end = before.and_then(|before| self.request_ends.get(before));
        end.copied().unwrap_or(self.isn + 1)
    }

    /// The request whose record another member needs: of the response under way, or of the last response.
    pub(super) fn record_start(&self) -> SeqNumber {
        let [current, before] = self.recent_requests();
        let is_asked = self.request_ends.len() > self.reader.whole_count();
        if is_asked { current } else { before }
    }

    /// The whole request of the response under way is acknowledged.
    pub(super) fn is_request_acked(&self) -> bool {
        let missing = self.request_ends.get(self.reader.whole_count());
        missing.is_some_and(|end| !end.after(self.una))
    }

    /// Is a request acknowledged whose response the client lacks, and that no store has?
    fn is_acked_early(&self, ack: SeqNumber) -> bool {
        let missing = self.request_ends.get(self.reader.whole_count());
        let start = self.request_start();
        let may_be = self.turns.is_stored(start) || self.turns.is_bare(start);
        missing.is_some_and(|end| !end.after(ack)) && !may_be
    }

    /// Bytes of a response for a client without timestamps leave: a record alone tells the client's position.
    pub(super) fn check_record(&self, segment: &Segment<'_>) -> Result<(), Broken> {
        let start = self.request_start();
        let is_told = self.manners.has_timestamps || self.reader.is_unprotected;
        let may_leave = is_told || self.turns.is_stored(start) || self.turns.is_bare(start);
        if may_leave || !self.reader.is_of_next(segment) {
            return Ok(());
        }
        Err(Broken::new(
            "bytes of a response leave before the store has the record",
        ))
    }

    /// When [`Downloader::on_time`] has something to do.
    pub(super) fn due(&self) -> u64 {
        let timer = self.timer.at;
        let acks = self.plans.ack_at.unwrap_or(u64::MAX);
        let asks = if self.may_ask() {
            self.plans.ask_at
        } else {
            u64::MAX
        };
        let closes = self.plans.close_at.unwrap_or(u64::MAX);
        let gives_up = self.plans.gives_up_at.unwrap_or(u64::MAX);
        match self.stage {
            Stage::Closed | Stage::Reset => u64::MAX,
            Stage::Connecting => timer,
            Stage::Open => timer.min(acks).min(asks).min(closes).min(gives_up),
        }
    }

    fn packet(&mut self, now: u64, seq: SeqNumber, flags: Flags, payload: &[u8]) -> Vec<u8> {
        let ack = self.reader.rcv_nxt();
        self.reader.recent.acked_to = ack;
        (self.plans.ack_at, self.acks_owed) = (None, 0);
        let mut options = match self.manners.has_timestamps {
            true => stamps(self.tsval(now), self.reader.recent.value),
            false => OptionsBuffer::new(),
        };
        let blocks: Vec<SackBlock> = self.reader.blocks(SACK_BLOCKS);
        if let Some(blocks) = SackBlocks::new(&blocks).filter(|_| !blocks.is_empty()) {
            options.push(&TcpOption::Sack(blocks)).expect("few blocks");
        }
        emit(&SegmentSpec {
            source: self.key.client(),
            destination: self.key.server(),
            seq,
            ack,
            flags: flags.union(Flags::ACK),
            window: WINDOW_FIELD,
            options: options.as_slice(),
            payload,
        })
    }

    fn ack(&mut self, now: u64) -> Vec<u8> {
        self.packet(now, self.nxt, Flags::ACK, &[])
    }

    fn tsval(&self, now: u64) -> u32 {
        let ticks = u32::try_from(now / MS).expect("a short run");
        self.isn.0.rotate_left(9).wrapping_add(ticks)
    }

    fn syn(&self, now: u64) -> Vec<u8> {
        let timestamps = Timestamps {
            value: self.tsval(now),
            echo: 0,
        };
        let options = SynOptions {
            mss: Some(1460),
            window_scale: Some(WINDOW_SCALE),
            sack_permitted: true,
            timestamps: self.manners.has_timestamps.then_some(timestamps),
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

    /// A packet arrives: the packet with this number of all that were sent. Returns the answers.
    pub(super) fn on_packet(
        &mut self,
        packet: &[u8],
        order: u64,
        site: &Site,
        now: u64,
    ) -> Result<Vec<Vec<u8>>, Broken> {
        let packet = IpPacket::parse(packet).map_err(Broken::unreadable)?;
        if packet.protocol() != wire::PROTOCOL_TCP {
            self.on_unreachable(packet.payload(), now);
            return Ok(Vec::new());
        }
        let segment = Segment::of(&packet).map_err(Broken::unreadable)?;
        let flags = segment.flags();
        match self.stage {
            Stage::Closed | Stage::Reset if flags.contains(Flags::RST) => Ok(Vec::new()),
            Stage::Closed | Stage::Reset => Ok(vec![self.reset(segment.ack())]),
            Stage::Connecting => self.on_synack(&segment, now),
            Stage::Open if flags.contains(Flags::RST) => Ok(self.on_reset(&segment, now)),
            Stage::Open if flags.contains(Flags::SYN) => Ok(vec![self.ack(now)]),
            Stage::Open => self.on_segment(&segment, order, site, now),
        }
    }

    /// No socket is there.
    fn reset(&self, seq: SeqNumber) -> Vec<u8> {
        emit(&SegmentSpec {
            source: self.key.client(),
            destination: self.key.server(),
            seq,
            ack: SeqNumber(0),
            flags: Flags::RST,
            window: 0,
            options: &[],
            payload: &[],
        })
    }

    /// RFC 5961, 3.2, and Linux: the end of the bytes behind a hole is exact, too.
    fn on_reset(&mut self, segment: &Segment<'_>, now: u64) -> Vec<Vec<u8>> {
        let exact = [self.reader.rcv_nxt(), self.reader.highest()];
        if exact.contains(&segment.seq()) {
            self.stage = Stage::Reset;
            return Vec::new();
        }
        vec![self.ack(now)]
    }

    fn on_synack(&mut self, segment: &Segment<'_>, now: u64) -> Result<Vec<Vec<u8>>, Broken> {
        let flags = segment.flags();
        if flags.contains(Flags::RST) && segment.ack() == self.isn + 1 {
            self.stage = Stage::Reset;
        }
        if !flags.contains(Flags::SYN.union(Flags::ACK)) || segment.ack() != self.isn + 1 {
            return Ok(Vec::new());
        }
        let stamps = segment.timestamps();
        if stamps.is_some() != self.manners.has_timestamps {
            return Err(Broken::new(
                "a SYN-ACK with other timestamps than asked for",
            ));
        }
        self.stage = Stage::Open;
        self.una = self.isn + 1;
        self.timer.stop();
        self.plans.ask_at = now;
        let tsval = stamps.map(|stamps| stamps.value);
        self.reader.begin(segment.seq() + 1, tsval.unwrap_or(0));
        Ok(vec![self.ack(now)])
    }

    fn on_segment(
        &mut self,
        segment: &Segment<'_>,
        order: u64,
        site: &Site,
        now: u64,
    ) -> Result<Vec<Vec<u8>>, Broken> {
        if !self
            .reader
            .accepts(segment, order, self.manners.has_timestamps)?
        {
            return Ok(vec![self.ack(now)]);
        }
        let before = self.reader.progress();
        let held = self.reader.whole_count();
        self.reader.take(segment, &self.fetches, site)?;
        self.take_ack(segment.ack(), now)?;
        if self.reader.whole_count() > held {
            self.plan(now);
        }
        if segment.sequence_len() == 0 {
            return Ok(Vec::new());
        }
        let mut answers = self.on_time(now);
        if answers.is_empty() {
            let is_plain = self.reader.progress().is_plain_after(before);
            self.acks_owed += 1;
            let waits = is_plain && self.acks_owed < 2 && self.reader.recent.segments > QUICK_ACKS;
            if waits {
                self.plans.ack_at = Some(now + DELAYED_ACK);
            } else {
                answers.push(self.ack(now));
            }
        }
        if self.has_sent_fin && self.unacked.is_empty() && self.reader.has_fin() {
            self.stage = Stage::Closed;
        }
        Ok(answers)
    }

    /// A response is whole: the next request comes after a pause.
    fn plan(&mut self, now: u64) {
        match self.fetches.get(self.reader.whole_count()) {
            Some(next) => self.plans.ask_at = now + next.pause,
            None => self.plans.close_at = Some(now + self.manners.lingers),
        }
    }
}

/// Numbers from the first byte of a stream.
fn offset(at: usize) -> u32 {
    length32(at)
}
