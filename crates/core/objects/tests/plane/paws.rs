//! A sender with each layout of timestamps, a network that loses, delays and reorders, and a receiver with the rules of
//! Linux: PAWS and `TS.Recent` (RFC 7323, 4.3 and 5; `tcp_paws_check`, `tcp_replace_ts_recent`).

use objects::paper::{MAX_OUTSTANDING, PaperTable};
use objects::timestamp::index::{Assigned, Departure, EchoTable, INDEX_COUNT, Index};
use objects::timestamp::{ClientOptions, State, Timestamp};
use objects::{PoolKey, isn::Slot};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use wire::{FlowKey, SeqNumber};

use super::part::is_drawn;

const PATTERN_COUNT: u64 = 100_000;
/// Ticks of the server's timestamp.
const RETRANSMISSION_TIMEOUT: u32 = 200;
/// Ticks after which a download counts as broken.
const LONGEST_DOWNLOAD: u32 = 200_000;
const DUPLICATE_ACKS: u32 = 3;

/// A layout under test.
trait Layout {
    /// Largest number of segments in flight.
    fn window(&self) -> usize;
    /// The value of a leaving segment.
    fn stamp(&mut self, tsval: u32, is_retransmission: bool) -> u32;
    /// Translates an echo back.
    fn on_echo(&mut self, value: u32, has_old_ack: bool) -> u32;
}

struct Ours {
    table: EchoTable,
    state: State,
    exhausted: u32,
}

impl Ours {
    fn new(index: u8, tsval: u32) -> Self {
        let flow = FlowKey::new(([10, 0, 0, 1], 4711).into(), ([10, 0, 0, 10], 80).into());
        let options = ClientOptions::new(7, 1460).expect("a common client");
        let slot = Slot::new(3);
        let tag = State::agreed_tag(&PoolKey([7; 16]), &flow, slot, options, SeqNumber(0));
        Self {
            table: EchoTable::new(Index::new(index), tsval),
            state: State::Agreed { slot, options, tag },
            exhausted: 0,
        }
    }
}

impl Layout for Ours {
    fn window(&self) -> usize {
        300
    }

    fn stamp(&mut self, tsval: u32, is_retransmission: bool) -> u32 {
        let departure = Departure {
            tsval,
            is_retransmission,
            has_new_state: false,
            is_alone: false,
        };
        let assigned = self.table.assign(departure);
        self.exhausted += u32::from(matches!(assigned, Assigned::Exhausted(_)));
        let index = assigned.index();
        let state = self.state;
        Timestamp { index, state }.to_wire()
    }

    fn on_echo(&mut self, value: u32, has_old_ack: bool) -> u32 {
        self.table.on_echo(Index::of_wire(value), has_old_ack)
    }
}

struct Paper(PaperTable);

impl Layout for Paper {
    fn window(&self) -> usize {
        usize::from(MAX_OUTSTANDING)
    }

    fn stamp(&mut self, tsval: u32, _is_retransmission: bool) -> u32 {
        self.0.assign(tsval, 0x0123_4567)
    }

    fn on_echo(&mut self, value: u32, _has_old_ack: bool) -> u32 {
        self.0.on_echo(value)
    }
}

/// Linux: the newest value is `recent`.
fn paws_accepts(recent: u32, tsval: u32) -> bool {
    recent.wrapping_sub(tsval).cast_signed() <= 0
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    number: usize,
    value: u32,
    tsval: u32,
    is_retransmission: bool,
}

#[derive(Debug, Clone, Copy)]
struct Ack {
    next: usize,
    /// The echoed segment, which the receiver knows and the sender does not.
    echoed: Segment,
}

/// A receiver with the timestamps of a layout; `recent` also has the server's own value of the same segment.
struct Receiver {
    received: Vec<bool>,
    next: usize,
    last_acked: usize,
    recent: Segment,
}

/// The receiver refuses a segment that left after the segment with the newest value.
#[derive(Debug)]
struct Refused;

impl Receiver {
    /// Returns the ACK, or `None` if the receiver refuses the segment as any receiver would.
    fn receive(&mut self, segment: Segment) -> Result<Option<Ack>, Refused> {
        if !paws_accepts(self.recent.value, segment.value) {
            // A retransmission may overtake an original of the same tick: the original is sent again.
            let is_newer = self.recent.tsval.wrapping_sub(segment.tsval).cast_signed() < 0;
            return if is_newer { Err(Refused) } else { Ok(None) };
        }
        if segment.number <= self.last_acked {
            self.recent = segment;
        }
        self.received[segment.number] = true;
        while self.received.get(self.next).is_some_and(|has| *has) {
            self.next += 1;
        }
        self.last_acked = self.next;
        Ok(Some(Ack {
            next: self.next,
            echoed: self.recent,
        }))
    }
}

/// Faults of a network.
struct Network {
    rng: SmallRng,
    /// Ticks of one way.
    delay: u32,
    jitter: u32,
    loss: f64,
    /// Most segments in a tick.
    pace: u32,
}

impl Network {
    fn of_seed(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let loss = [0.0, 0.01, 0.1, 0.3][rng.random_range(0..4)];
        let jitter = [0, 0, 1, 30][rng.random_range(0..4)];
        let delay = [0, 1, 5, 25, 120][rng.random_range(0..5)];
        let pace = [1, 3, 40][rng.random_range(0..3)];
        Self {
            rng,
            delay,
            jitter,
            loss,
            pace,
        }
    }

    /// When a packet arrives, if the packet does.
    fn arrival(&mut self, now: u32) -> Option<u32> {
        let is_lost = self.rng.random_bool(self.loss);
        let jitter = self.rng.random_range(0..=self.jitter);
        (!is_lost).then(|| now.wrapping_add(self.delay + jitter))
    }
}

struct Sender<'a, L> {
    layout: &'a mut L,
    sent: usize,
    acked: usize,
    duplicates: u32,
    recovery_point: usize,
    newest_echo: u32,
    timeout_at: u32,
    sent_at: Vec<u32>,
}

/// Wrong translations of echoes.
#[derive(Debug, Default)]
struct Echoes {
    /// Translated to a time after the segment left.
    too_late: u32,
    /// An echo of a retransmission that looks older than the retransmission.
    undone_wrongly: u32,
    most_early: u32,
}

impl Echoes {
    fn count(&mut self, echoed: &Segment, tsval: u32) {
        let early = echoed.tsval.wrapping_sub(tsval).cast_signed();
        self.too_late += u32::from(early < 0);
        self.undone_wrongly += u32::from(echoed.is_retransmission && early > 0);
        self.most_early = self.most_early.max(early.max(0).cast_unsigned());
    }
}

/// Runs one download of `segments` segments. `Err` if PAWS refuses a segment that the server's own timestamps would
/// bring through.
fn download<L: Layout>(
    layout: &mut L,
    network: &mut Network,
    segments: usize,
    began: u32,
) -> Result<Echoes, Refused> {
    let first = Segment {
        number: 0,
        value: layout.stamp(began, false),
        tsval: began,
        is_retransmission: false,
    };
    let window = layout.window();
    let mut receiver = Receiver {
        received: vec![false; segments],
        next: 0,
        last_acked: 0,
        recent: first,
    };
    let mut sender = Sender {
        layout,
        sent: 0,
        acked: 0,
        duplicates: 0,
        recovery_point: 0,
        newest_echo: began,
        timeout_at: began.wrapping_add(RETRANSMISSION_TIMEOUT),
        sent_at: vec![began; segments],
    };
    let mut echoes = Echoes::default();
    let mut data: Vec<(u32, Segment)> = Vec::new();
    let mut acks: Vec<(u32, Ack)> = Vec::new();
    let mut now = began;
    for _ in 0..LONGEST_DOWNLOAD {
        if sender.acked == segments {
            return Ok(echoes);
        }
        let is_due = |at: u32| now.wrapping_sub(at).cast_signed() >= 0;
        for (_, ack) in acks.extract_if(.., |(at, _)| is_due(*at)) {
            let resend = sender.on_ack(ack, now, &mut echoes);
            data.extend(resend.and_then(|segment| Some((network.arrival(now)?, segment))));
        }
        if is_due(sender.timeout_at) && sender.acked < sender.sent {
            let segment = sender.resend(now);
            data.extend(network.arrival(now).map(|at| (at, segment)));
        }
        let burst = network.rng.random_range(0..=network.pace);
        for _ in 0..burst {
            let Some(segment) = sender.next_segment(now, window, segments) else {
                break;
            };
            data.extend(network.arrival(now).map(|at| (at, segment)));
        }
        for (_, segment) in data.extract_if(.., |(at, _)| is_due(*at)) {
            if let Some(ack) = receiver.receive(segment)? {
                acks.extend(network.arrival(now).map(|at| (at, ack)));
            }
        }
        now = now.wrapping_add(1);
    }
    panic!("the download does not end");
}

impl<L: Layout> Sender<'_, L> {
    fn next_segment(&mut self, now: u32, window: usize, segments: usize) -> Option<Segment> {
        let may_send = self.sent < segments && self.sent - self.acked < window;
        may_send.then(|| {
            let number = self.sent;
            self.sent += 1;
            self.sent_at[number] = now;
            if number == self.acked {
                self.timeout_at = now.wrapping_add(RETRANSMISSION_TIMEOUT);
            }
            self.segment(number, now, false)
        })
    }

    fn resend(&mut self, now: u32) -> Segment {
        self.timeout_at = now.wrapping_add(RETRANSMISSION_TIMEOUT);
        self.recovery_point = self.sent;
        self.segment(self.acked, now, true)
    }

    fn segment(&mut self, number: usize, now: u32, is_retransmission: bool) -> Segment {
        Segment {
            number,
            value: self.layout.stamp(now, is_retransmission),
            tsval: now,
            is_retransmission,
        }
    }

    fn on_ack(&mut self, ack: Ack, now: u32, echoes: &mut Echoes) -> Option<Segment> {
        let is_old = ack.next < self.acked;
        let tsval = self.layout.on_echo(ack.echoed.value, is_old);
        if is_old {
            return None;
        }
        // An ACK that another ACK has overtaken may be older than the table.
        let is_overtaken = ack
            .echoed
            .tsval
            .wrapping_sub(self.newest_echo)
            .cast_signed()
            < 0;
        if !is_overtaken {
            self.newest_echo = ack.echoed.tsval;
            echoes.count(&ack.echoed, tsval);
        }
        if ack.next > self.acked {
            self.acked = ack.next;
            self.duplicates = 0;
            self.timeout_at = now.wrapping_add(RETRANSMISSION_TIMEOUT);
            // NewReno (RFC 6582): an ACK below the recovery point tells of another loss.
            return (self.acked < self.recovery_point).then(|| self.resend(now));
        }
        self.duplicates += 1;
        (self.duplicates == DUPLICATE_ACKS && self.acked < self.sent).then(|| self.resend(now))
    }
}

/// Loses the first segment, and no other segment, of `in_flight` segments that leave together.
fn paper_survives_loss_with(in_flight: usize) -> bool {
    let mut layout = Paper(PaperTable::default());
    let first = Segment {
        number: 0,
        value: layout.stamp(0, false),
        tsval: 0,
        is_retransmission: false,
    };
    let mut receiver = Receiver {
        received: vec![false; in_flight + 1],
        next: 0,
        last_acked: 0,
        recent: first,
    };
    layout.stamp(0, false); // the lost segment
    (1..in_flight).all(|number| {
        let tsval = u32::try_from(number).expect("few segments");
        let segment = Segment {
            number,
            value: layout.stamp(tsval, false),
            tsval,
            is_retransmission: false,
        };
        receiver.receive(segment).is_ok()
    })
}

#[test]
fn paws_refuses_segments_behind_a_loss_with_the_papers_layout() {
    let shortest = (1..=usize::from(MAX_OUTSTANDING)).find(|n| !paper_survives_loss_with(*n));
    let shortest = shortest.expect("the paper's layout breaks");
    println!(
        "the paper's layout: 1 lost segment of {shortest} in flight, and PAWS refuses the last; the paper allows {MAX_OUTSTANDING}"
    );
    assert!(shortest <= usize::from(MAX_OUTSTANDING) / 2 + 1);
    let broken = (0..1000).filter(|seed| {
        let mut network = Network::of_seed(*seed);
        download(&mut Paper(PaperTable::default()), &mut network, 300, 0).is_err()
    });
    let broken = broken.count();
    println!("the paper's layout: {broken} of 1000 patterns break the download");
    assert!(broken > 100);
}

#[test]
fn paws_accepts_every_segment_with_our_layout() {
    let mut most_early = 0;
    let mut exhausted = 0;
    let patterns = (0..PATTERN_COUNT).filter(|seed| is_drawn(*seed));
    let count = patterns.clone().count();
    for seed in patterns {
        let mut network = Network::of_seed(seed);
        let began: u32 = network.rng.random();
        let index = network.rng.random_range(0..INDEX_COUNT);
        let segments = network.rng.random_range(1..1000);
        let mut layout = Ours::new(index, began);
        let echoes = download(&mut layout, &mut network, segments, began)
            .unwrap_or_else(|_| panic!("seed {seed}: PAWS refuses a segment"));
        assert_eq!(echoes.undone_wrongly, 0, "seed {seed}: {echoes:?}");
        if layout.exhausted == 0 {
            assert_eq!(echoes.too_late, 0, "seed {seed}: {echoes:?}");
        }
        exhausted += u32::from(layout.exhausted > 0);
        most_early = most_early.max(echoes.most_early);
    }
    println!(
        "our layout: 0 of {count} patterns break a download; in {exhausted} all values were used at some time; an echo is at most {most_early} ticks early"
    );
}
