use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use protocol::blast::{Acknowledgement, PacketSet};

use crate::{
    BlastRanges, Layout, LayoutError, PeerSet, Policy, Protest,
    flaws::Flaws,
    peer::Peer,
    rate::{Delivered, RateControl},
    window::{Blast, Phase, Window},
};

mod timers;

/// Bounds of the time that a late caller makes up for.
const LATE_MIN: Duration = Duration::from_millis(1);
const LATE_MAX: Duration = Duration::from_millis(10);

/// Settings of a [`Sender`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Sizes.
    pub layout: Layout,
    /// Number of the transfer. Acknowledgements of other transfers are ignored.
    pub transfer: u32,
    /// How fast.
    pub policy: Policy,
    /// Most bytes in a second to all receivers together, if any.
    pub rate_max: Option<u64>,
    /// Round trip until the first is measured: that of the control stream.
    pub round_trip: Duration,
    /// A receiver is deemed to have failed after this time without an answer.
    pub peer_timeout: Duration,
}

/// Packets that the caller sends now. Each has the header of [`Run::blast`] and [`Run::round`]; `asks` concerns the
/// last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The blast.
    pub blast: u32,
    /// The first packet.
    pub first: u16,
    /// Number of packets.
    pub packets: u16,
    /// Packets of the blast.
    pub count: u16,
    /// The round of the blast.
    pub round: u16,
    /// The last packet of the run asks for an acknowledgement.
    pub asks: bool,
    /// The receivers.
    pub to: PeerSet,
}

/// Datagrams that the caller sends now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transmission {
    /// Packets.
    Run(Run),
    /// A question without a payload, while the receivers take no blast.
    Probe {
        /// The blast that the receivers do not take yet.
        blast: u32,
        /// Number of the probe.
        round: u16,
        /// The receivers.
        to: PeerSet,
    },
}

/// News of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenderEvent {
    /// The receiver has not answered for [`Settings::peer_timeout`], or a packet was repeated 65,535 times.
    PeerLost(usize),
    /// The receiver has acknowledged all data. The control stream tells when the data is stored.
    PeerComplete(usize),
}

/// The sending end of a transfer.
///
/// The caller tells how many bytes are available, sends the packets of [`Self::poll_transmit`], and reports
/// acknowledgements and the passing of time. Data of blasts below [`Self::released_below`] is no longer needed.
#[derive(Debug)]
pub struct Sender {
    settings: Settings,
    source: Source,
    peers: Vec<Peer>,
    /// Receivers that take part: neither lost nor complete.
    live: PeerSet,
    window: Window,
    schedule: Schedule,
    rate: RateControl,
    in_flight: u64,
    events: VecDeque<SenderEvent>,
    flaws: Flaws,
}

/// The data of a transfer, as far as known.
#[derive(Debug)]
struct Source {
    size: Option<u64>,
    /// Bytes that can be read.
    available: u64,
}

impl Source {
    /// Bytes of a blast, if all are available.
    fn len_of(&self, number: u32, layout: &Layout) -> Option<u64> {
        let start = layout.blast_position(number);
        let full = layout.blast_bytes();
        let len = self.available.saturating_sub(start).min(full);
        let is_whole = len == full || self.size == Some(self.available);
        (len > 0 && is_whole).then_some(len)
    }
}

/// The order of transmissions.
#[derive(Debug, Default)]
struct Schedule {
    /// The blast whose round is being sent. Only questions interrupt a round, so the receiver predicts well.
    current: Option<u32>,
    /// Blasts with packets to repeat.
    repairs: BTreeSet<u32>,
    /// Blasts whose last packet is to be repeated.
    questions: VecDeque<u32>,
    /// Rounds whose answer is missing, by the time of the last packet: time, blast, round. Answered rounds are removed
    /// late.
    asked: VecDeque<(Duration, u32, u16)>,
    /// Blasts whose last packet is repeated in a silence: at most one for each receiver.
    silent: Vec<u32>,
    /// Time of the newest question.
    newest_question: Duration,
    pace: Pace,
    probes: Probes,
}

/// When packets may leave.
#[derive(Debug, Default)]
struct Pace {
    /// No packet before this time.
    until: Duration,
    /// The window was full since the newest packet.
    is_window_full: bool,
    /// The caller was late since the last packet of a round: the caller, not the network, limits the transfer.
    is_late: bool,
}

impl Pace {
    /// Packets leave now, and take `duration` at the present rate. A late caller makes up for at most `late_max`.
    fn on_sent(&mut self, duration: Duration, late_max: Duration, now: Duration) {
        let earliest = now.saturating_sub(late_max);
        let was_full = core::mem::take(&mut self.is_window_full);
        self.is_late |= self.until < earliest && !was_full;
        self.until = self.until.max(earliest) + duration;
    }
}

/// Questions without payload, while a receiver takes no blast.
#[derive(Debug, Default)]
struct Probes {
    /// The blast that the receivers do not take, and probes for this blast.
    sent: (u32, u16),
    is_due: bool,
}

impl Probes {
    /// Probes for this blast so far.
    fn of(&self, blast: u32) -> u16 {
        match self.sent {
            (last, count) if last == blast => count,
            _ => 0,
        }
    }
}

impl Schedule {
    /// Forgets answered rounds at the head of the list.
    fn forget_answered(&mut self, window: &Window) {
        while let Some(&(_, number, round)) = self.asked.front() {
            let blast = window.get(number);
            if blast.is_some_and(|it| it.phase == Phase::Asked && it.round == round) {
                return;
            }
            self.asked.pop_front();
        }
    }
}

impl Sender {
    /// A transfer to receivers, each with the first blast that the receiver does not take yet, and the blasts that the
    /// receiver has already.
    ///
    /// # Panics
    /// If there is no receiver, or more than [`PeerSet::PEERS_MAX`].
    #[must_use]
    pub fn new(settings: Settings, receivers: Vec<(u32, BlastRanges)>) -> Self {
        assert!((1..=PeerSet::PEERS_MAX).contains(&receivers.len()));
        let live = PeerSet::first(receivers.len());
        let peer =
            |(credit, present): (u32, BlastRanges)| Peer::new(credit, present, settings.round_trip);
        let at_all = receivers.iter().map(|it| it.1.first_gap(0));
        Self {
            settings,
            source: Source {
                size: None,
                available: 0,
            },
            window: Window::starting_at(at_all.min().unwrap_or(0)),
            peers: receivers.into_iter().map(peer).collect(),
            live,
            schedule: Schedule::default(),
            rate: RateControl::new(&settings),
            in_flight: 0,
            events: VecDeque::new(),
            flaws: Flaws::default(),
        }
    }

    /// Plants mistakes.
    #[cfg(feature = "flaws")]
    pub const fn plant(&mut self, flaws: Flaws) {
        self.flaws = flaws;
    }

    /// The first `available` bytes can be read. A blast is sent when the whole blast is available.
    ///
    /// # Errors
    /// More bytes than blasts have numbers.
    pub fn extend(&mut self, available: u64) -> Result<(), LayoutError> {
        self.settings.layout.blasts(available)?;
        self.source.available = self.source.available.max(available);
        Ok(())
    }

    /// The transfer has `size` bytes, and all are available.
    ///
    /// # Errors
    /// More bytes than blasts have numbers.
    pub fn finish(&mut self, size: u64) -> Result<(), LayoutError> {
        self.extend(size)?;
        self.source.size = Some(size);
        self.settle_window();
        Ok(())
    }

    /// All blasts below this number are at all live receivers.
    #[must_use]
    pub const fn released_below(&self) -> u32 {
        self.window.base()
    }

    /// Each receiver has all data, or is lost.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.live.is_empty()
    }

    /// Bytes that may be on their way.
    #[must_use]
    pub const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// The next news.
    pub fn poll_event(&mut self) -> Option<SenderEvent> {
        self.events.pop_front()
    }

    /// The next datagrams to send: at most `packets_max` packets, and nothing before [`Self::timeout`].
    pub fn poll_transmit(&mut self, now: Duration, packets_max: u16) -> Option<Transmission> {
        if self.is_over() {
            return None;
        }
        if let Some(probe) = self.probe(now) {
            return Some(probe);
        }
        while let Some(number) = self.schedule.questions.pop_front() {
            if let Some(run) = self.question(number, now) {
                return Some(Transmission::Run(run));
            }
        }
        if self.is_silent() && self.flaws.waits_in_silence() || now < self.schedule.pace.until {
            return None;
        }
        let number = match self.schedule.current {
            Some(number) => number,
            None => self.next_round()?,
        };
        let burst = self.rate.burst(self.settings.layout.packet_bytes());
        let run = self.run(number, now, packets_max.min(burst).max(1));
        Some(Transmission::Run(run?))
    }

    /// An acknowledgement of a receiver has arrived.
    ///
    /// # Errors
    /// No correct receiver sends this acknowledgement. Nothing has changed.
    pub fn on_acknowledgement(
        &mut self,
        peer: usize,
        acknowledgement: &Acknowledgement,
        now: Duration,
    ) -> Result<(), Protest> {
        if !self.live.contains(peer) || acknowledgement.transfer != self.settings.transfer {
            return Ok(());
        }
        self.check(peer, acknowledgement)?;
        let round_trip = self.on_sign_of_peer(peer, acknowledgement, now);
        let state = &mut self.peers[peer];
        state.credit = state.credit.max(acknowledgement.credit);
        let whole_before = state.whole_below.max(self.window.base());
        state.whole_below = state.whole_below.max(acknowledgement.whole_below);
        let whole_below = state.whole_below.min(self.window.next());
        let answered = self.window.get(acknowledgement.blast);
        let answered = answered.and_then(|it| it.answered_at(peer, acknowledgement.round));
        for number in whole_before..whole_below {
            self.on_whole(number, peer, now, round_trip);
        }
        self.on_answer(peer, acknowledgement, now, round_trip);
        if let Some(asked_at) = answered {
            self.ask_overtaken(peer, asked_at);
        }
        self.settle_window();
        if !self.is_awaited(peer) {
            // Also by an answer that was overtaken on the way: with no answer missing, no silence goes on.
            let state = &mut self.peers[peer];
            state.unanswered_since = None;
            state.round_trip.on_untimed_answer();
        }
        Ok(())
    }

    /// The receiver is gone, or no longer wanted: the transfer goes on without it.
    pub fn drop_peer(&mut self, peer: usize, now: Duration) {
        if !self.live.contains(peer) {
            return;
        }
        self.live = self.live.without(peer);
        self.events.push_back(SenderEvent::PeerLost(peer));
        if self.is_over() {
            // The data is not released: another transfer may go on with it.
            return;
        }
        for number in self.window.base()..self.window.next() {
            self.on_whole(number, peer, now, None);
        }
        self.settle_window();
    }

    fn check(&self, peer: usize, acknowledgement: &Acknowledgement) -> Result<(), Protest> {
        let next = self.window.next();
        let Acknowledgement {
            blast,
            round,
            whole_below,
            missing,
            ..
        } = acknowledgement;
        if *whole_below > self.peers[peer].present.first_gap(next) {
            return Err(Protest::NeverSent(*whole_below));
        }
        if *blast == Acknowledgement::NO_BLAST {
            return Ok(());
        }
        if *blast >= next {
            return Err(Protest::NeverSent(*blast));
        }
        let Some(sent) = self.window.get(*blast) else {
            return Ok(());
        };
        if *round > sent.round {
            return Err(Protest::NeverSent(*blast));
        }
        match missing.is_empty() || missing.capacity() == sent.count {
            true => Ok(()),
            false => Err(Protest::Packets {
                blast: *blast,
                found: missing.capacity(),
                sent: sent.count,
            }),
        }
    }

    /// The receiver is alive. Returns the round trip, if the acknowledgement tells one. A copy of an earlier
    /// acknowledgement proves nothing.
    fn on_sign_of_peer(
        &mut self,
        peer: usize,
        acknowledgement: &Acknowledgement,
        now: Duration,
    ) -> Option<Duration> {
        let state = &mut self.peers[peer];
        if acknowledgement.number <= state.newest_answer {
            return None;
        }
        state.newest_answer = acknowledgement.number;
        state.unanswered_since = state.unanswered_since.map(|_| now);
        self.schedule.silent.clear();
        let marked = acknowledgement.congestion.wrapping_sub(state.congestion);
        state.congestion = acknowledgement.congestion;
        if marked > 0 {
            let packet_bytes = u64::from(self.settings.layout.packet_bytes());
            self.rate.on_marked(u64::from(marked) * packet_bytes, now);
        }
        match age_of(acknowledgement.sent_us, now) {
            Some(age) => state.round_trip.on_answer(age),
            None => {
                state.round_trip.on_untimed_answer();
                None
            }
        }
    }

    /// The receiver answers a packet that asked.
    fn on_answer(
        &mut self,
        peer: usize,
        acknowledgement: &Acknowledgement,
        now: Duration,
        round_trip: Option<Duration>,
    ) {
        let Some(blast) = self.window.get_mut(acknowledgement.blast) else {
            return;
        };
        if acknowledgement.missing.is_empty() {
            return self.on_whole(acknowledgement.blast, peer, now, round_trip);
        }
        // A whole blast lacks no packet of any receiver.
        let Some(missing) = blast.missing.get_mut(peer) else {
            return;
        };
        let has_new = missing.intersect(&acknowledgement.missing) > 0;
        if missing.is_empty() {
            return self.on_whole(acknowledgement.blast, peer, now, round_trip);
        }
        if has_new {
            skip_present(blast);
        }
        // After an answer to an earlier round, packets of the present round may be under way.
        if acknowledgement.round == blast.round && blast.is_asked() {
            blast.awaited = blast.awaited.without(peer);
            self.settle(acknowledgement.blast, now, round_trip);
        }
    }

    /// The receiver has the blast, or is gone.
    fn on_whole(&mut self, number: u32, peer: usize, now: Duration, round_trip: Option<Duration>) {
        let Some(blast) = self.window.get_mut(number) else {
            return;
        };
        if blast.phase == Phase::Whole {
            return;
        }
        blast.missing[peer].clear();
        skip_present(blast);
        blast.awaited = blast.awaited.without(peer);
        self.settle(number, now, round_trip);
    }

    /// All receivers have answered: the blast is whole, or packets are to be repeated.
    fn settle(&mut self, number: u32, now: Duration, round_trip: Option<Duration>) {
        let (live, layout) = (self.live, self.settings.layout);
        let Some(blast) = self.window.get_mut(number) else {
            return;
        };
        let awaited = blast.awaited.intersection(live);
        if blast.phase == Phase::Whole || !awaited.is_empty() && self.flaws.awaits_all() {
            return;
        }
        let lacking = match self.flaws.awaits_all() {
            true => blast.lacking(),
            false => PacketSet::empty(blast.count),
        };
        if blast.phase == Phase::Unsent && !lacking.is_empty() {
            return;
        }
        let lost = blast.bytes_of(&lacking, &layout).min(blast.unconfirmed);
        let delivered = Delivered {
            bytes: blast.unconfirmed - lost,
            lost,
            snapshot: blast.snapshot,
            round_trip,
        };
        self.in_flight = self.in_flight.saturating_sub(blast.unconfirmed);
        blast.unconfirmed = 0;
        self.rate.on_delivered(&delivered, self.in_flight, now);
        if lacking.is_empty() {
            blast.phase = Phase::Whole;
            self.schedule.repairs.remove(&number);
            if self.schedule.current == Some(number) {
                self.schedule.current = None;
            }
        } else if begin_round(blast, lacking, self.flaws) {
            self.schedule.repairs.insert(number);
        } else {
            self.give_up(number, now);
        }
    }

    /// The blast has no further round: a nonce is never used a second time.
    fn give_up(&mut self, number: u32, now: Duration) {
        let lost = self.window.get(number).map(|blast| blast.awaited);
        for peer in lost.unwrap_or_default().iter() {
            self.drop_peer(peer, now);
        }
    }

    /// A round that was sent clearly before an answered round is not answered: its last packet, or the answer, is lost.
    fn ask_overtaken(&mut self, peer: usize, answered: Duration) {
        let reordering = self.peers[peer].round_trip.smoothed() / 4;
        while let Some(&(asked_at, number, round)) = self.schedule.asked.front() {
            let is_overtaken = asked_at + reordering < answered;
            match self.window.get_mut(number) {
                Some(blast) if blast.phase == Phase::Asked && blast.round == round => {
                    if !is_overtaken {
                        return;
                    }
                    if blast.awaited.contains(peer) {
                        blast.phase = Phase::Unanswered;
                        self.schedule.questions.push_back(number);
                    } else {
                        // Another receiver's answer is missing: the timeout decides.
                        return;
                    }
                }
                _ => {}
            }
            self.schedule.asked.pop_front();
        }
    }

    /// Lets whole blasts go, and finds receivers that have everything.
    fn settle_window(&mut self) {
        self.window.release();
        let Some(size) = self.source.size else {
            return;
        };
        let Ok(blasts) = self.settings.layout.blasts(size) else {
            return;
        };
        for peer in self.live.iter() {
            let state = &mut self.peers[peer];
            // Each blast is looked at once: the figure only rises.
            let mut below = state.whole_below.max(self.window.base());
            loop {
                below = state.present.first_gap(below);
                match self.window.get(below) {
                    Some(blast) if blast.is_at(peer) => below += 1,
                    _ => break,
                }
            }
            state.whole_below = below;
            if below >= blasts {
                self.live = self.live.without(peer);
                self.events.push_back(SenderEvent::PeerComplete(peer));
            }
        }
    }

    /// The blast of the next round: repeated packets first, then a new blast.
    fn next_round(&mut self) -> Option<u32> {
        if self.in_flight > 0 && self.in_flight >= self.rate.window() {
            self.schedule.pace.is_window_full = true;
            return None;
        }
        let number = match self.schedule.repairs.pop_first() {
            Some(number) => number,
            None => self.begin_blast()?,
        };
        self.schedule.current = Some(number);
        Some(number)
    }

    /// The next blast that a receiver lacks, if data and credit are there.
    fn begin_blast(&mut self) -> Option<u32> {
        loop {
            let number = self.window.next();
            let len = self.source.len_of(number, &self.settings.layout)?;
            if !self.has_credit(number) {
                return None;
            }
            let count = self.settings.layout.packets_of(len);
            let live = self.live;
            let lacks = self.peers.iter().enumerate().map(|(peer, state)| {
                live.contains(peer)
                    && number >= state.whole_below
                    && !state.present.contains(number)
            });
            if self.window.begin(len, count, lacks).phase == Phase::Unsent {
                return Some(number);
            }
            self.settle_window();
        }
    }

    /// All receivers that lack the blast take the blast.
    fn has_credit(&self, number: u32) -> bool {
        !self.flaws.heeds_credit() || self.live.iter().all(|peer| self.takes(peer, number))
    }

    /// The receiver has given credit for the blast, or has the blast.
    fn takes(&self, peer: usize, number: u32) -> bool {
        let state = &self.peers[peer];
        number < state.credit || state.present.contains(number)
    }

    /// The next packets of a round.
    fn run(&mut self, number: u32, now: Duration, packets_max: u16) -> Option<Run> {
        let is_limited = self.is_limited();
        let blast = self.window.get_mut(number)?;
        let (packets, bytes) = blast.take_packets(packets_max, &self.settings.layout)?;
        let asks = blast.rest.is_empty();
        let to = match asks {
            true => blast.awaited,
            false => blast.lacking_peers(&packets),
        };
        let run = Run {
            blast: number,
            first: packets.start,
            packets: packets.end - packets.start,
            count: blast.count,
            round: blast.round,
            asks,
            to: to.intersection(self.live),
        };
        let snapshot = self.rate.on_sent(self.in_flight, now);
        blast.unconfirmed += bytes;
        self.in_flight += bytes;
        self.pace(bytes, run.to, now);
        if asks {
            let is_late = core::mem::take(&mut self.schedule.pace.is_late);
            if let Some(blast) = self.window.get_mut(number) {
                blast.snapshot = snapshot.limited(is_limited || is_late);
                blast.asking = packets.end - 1;
            }
            self.schedule.current = None;
            self.asked(number, now);
        }
        Some(run)
    }

    /// Repeats the last packet of a round, alone.
    fn question(&mut self, number: u32, now: Duration) -> Option<Run> {
        let layout = self.settings.layout;
        let flaws = self.flaws;
        let blast = self.window.get_mut(number)?;
        if blast.phase != Phase::Unanswered {
            return None;
        }
        let Some(round) = flaws.next_round(blast.round) else {
            self.give_up(number, now);
            return None;
        };
        blast.round = round;
        let bytes = u64::from(layout.packet_len(blast.asking, blast.len));
        // The silence was the limit, and tells nothing about the rate of the network.
        blast.snapshot = blast.snapshot.limited(true);
        blast.unconfirmed += bytes;
        self.in_flight += bytes;
        let run = Run {
            blast: number,
            first: blast.asking,
            packets: 1,
            count: blast.count,
            round,
            asks: true,
            to: blast.awaited.intersection(self.live),
        };
        self.pace(bytes, run.to, now);
        self.asked(number, now);
        Some(run)
    }

    /// Packets leave for these receivers. A late caller makes up for a quarter of a round trip.
    fn pace(&mut self, bytes: u64, to: PeerSet, now: Duration) {
        let round_trips = to.iter().map(|peer| self.peers[peer].round_trip.smoothed());
        let quarter = round_trips.min().unwrap_or_default() / 4;
        let duration = self.rate.time_of(bytes, to.count().into());
        let late_max = quarter.clamp(LATE_MIN, LATE_MAX);
        self.schedule.pace.on_sent(duration, late_max, now);
    }

    /// The last packet of a round leaves.
    fn asked(&mut self, number: u32, now: Duration) {
        let Some(blast) = self.window.get_mut(number) else {
            return;
        };
        blast.phase = Phase::Asked;
        blast.asked_at = now;
        for peer in blast.awaited.iter() {
            let state = &mut self.peers[peer];
            state.unanswered_since = state.unanswered_since.or(Some(now));
        }
        self.schedule.newest_question = now;
        self.schedule.asked.push_back((now, number, blast.round));
    }
}

/// Begins another round of a blast, with these packets. False if the blast has no further round.
fn begin_round(blast: &mut Blast, packets: PacketSet, flaws: Flaws) -> bool {
    let round = flaws.next_round(blast.round);
    blast.round = round.unwrap_or(blast.round);
    blast.rest = packets;
    blast.phase = Phase::Unsent;
    let lacking = blast
        .missing
        .iter()
        .enumerate()
        .filter(|(_, it)| !it.is_empty());
    blast.awaited = lacking.fold(PeerSet::default(), |set, (peer, _)| set.with(peer));
    round.is_some()
}

/// Packets that arrived late are not repeated. The last packet of the round stays: it asks.
fn skip_present(blast: &mut Blast) {
    if blast.phase != Phase::Unsent {
        return;
    }
    let lacking = blast.lacking();
    if let Some(last) = blast.rest.last() {
        blast.rest.intersect(&lacking);
        blast.rest.insert(last);
    }
}

/// The time since a packet was sent, by the low bits of the time of sending. 0 tells no time.
fn age_of(sent_us: u32, now: Duration) -> Option<Duration> {
    let age = low_us(now).wrapping_sub(sent_us);
    (sent_us != 0).then(|| Duration::from_micros(u64::from(age)))
}

/// Low bits of a time, µs.
#[expect(clippy::cast_possible_truncation, reason = "the low bits are wanted")]
const fn low_us(now: Duration) -> u32 {
    now.as_micros() as u32
}

/// The time of sending for the header of a packet, µs: never 0.
#[must_use]
pub fn timestamp_us(now: Duration) -> u32 {
    low_us(now).max(1)
}
