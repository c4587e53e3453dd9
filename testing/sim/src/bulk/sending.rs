//! A transfer, as its sender has it.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use blast::{BlastRanges, PacketId, Sender, SenderEvent, Settings, Transmission};
use protocol::blast::{Acknowledgement, PacketHeader};

use super::{Broken, BulkOutcome, scenario::BulkScenario, source_byte};
use crate::index;

/// Packets of a call.
const RUN_MAX: u16 = 16;
/// Longer than the longest cut.
const PEER_TIMEOUT: Duration = Duration::from_secs(40);

pub(super) type Packet = (usize, Option<PacketHeader>, Vec<u8>);

#[derive(Debug)]
pub(super) struct Session {
    transfer: u32,
    sender: Sender,
    /// By number of the sender: number of the receiver, its credit, and whether it takes part.
    receivers: Vec<(usize, u32, bool)>,
    nonces: HashSet<[u8; 12]>,
    is_ended: bool,
    /// Bytes that the source has produced.
    available: u64,
    /// Time of the newest acknowledgement, or of the first packet.
    answered_at: u64,
    /// Receivers that have all data, and receivers that are lost, by the sender.
    completed: Vec<usize>,
    lost: Vec<usize>,
    /// By blast: the packet that asked last.
    asked: HashMap<u32, u16>,
    /// Packets that were repeated since the newest acknowledgement: at most one for each receiver.
    repeated: HashSet<(u32, u16)>,
}

/// The clock of a sender in a run is near the end of the range of the time of sending, µs.
const CLOCK_ORIGIN: Duration = Duration::from_micros(u32::MAX as u64 - 3_000_000);

fn clock(now: u64) -> Duration {
    CLOCK_ORIGIN + Duration::from_nanos(now)
}

impl Session {
    pub(super) fn new(
        scenario: &BulkScenario,
        transfer: u32,
        receivers: Vec<usize>,
        offers: Vec<(u32, BlastRanges)>,
        now: u64,
    ) -> Self {
        let settings = Settings {
            layout: scenario.layout,
            transfer,
            policy: scenario.policy,
            rate_max: None,
            round_trip: scenario.round_trip(),
            peer_timeout: PEER_TIMEOUT,
        };
        let credits = offers.iter().map(|offer| offer.0);
        let peers = receivers.iter().zip(credits);
        let receivers = peers
            .map(|(number, credit)| (*number, credit, true))
            .collect();
        let mut sender = Sender::new(settings, offers);
        sender.plant(scenario.flaws());
        Self {
            transfer,
            sender,
            receivers,
            nonces: HashSet::new(),
            is_ended: false,
            available: 0,
            answered_at: now,
            completed: Vec::new(),
            lost: Vec::new(),
            asked: HashMap::new(),
            repeated: HashSet::new(),
        }
    }

    /// The sending process is gone.
    pub(super) const fn end(&mut self) {
        self.is_ended = true;
    }

    /// The control stream to a receiver has ended.
    pub(super) fn drop_receiver(&mut self, number: usize, now: u64) {
        for (peer, receiver) in self.receivers.iter_mut().enumerate() {
            if receiver.0 == number {
                receiver.2 = false;
                // The others may have answered everything.
                self.repeated.clear();
                self.sender.drop_peer(peer, clock(now));
            }
        }
    }

    pub(super) fn due(&self) -> u64 {
        if self.is_ended || self.sender.is_over() {
            return u64::MAX;
        }
        let due = self
            .sender
            .timeout()
            .map(|at| at.saturating_sub(CLOCK_ORIGIN));
        let due = due.map_or(u64::MAX, |at| {
            u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
        });
        due.min(self.source_due())
    }

    /// The source produces 256 KiB in a few milliseconds.
    fn source_due(&self) -> u64 {
        match self.available {
            u64::MAX => u64::MAX,
            available => available * 20,
        }
    }

    pub(super) fn acknowledged(
        &mut self,
        from: usize,
        acknowledgement: &Acknowledgement,
        now: u64,
    ) -> Result<(), Broken> {
        let found = self.receivers.iter().position(|it| it.0 == from);
        let Some(peer) = found.filter(|_| !self.is_ended) else {
            return Ok(());
        };
        self.answered_at = now;
        self.repeated.clear();
        let credit = &mut self.receivers[peer].1;
        *credit = acknowledgement.credit.max(*credit);
        let result = self
            .sender
            .on_acknowledgement(peer, acknowledgement, clock(now));
        result.map_err(|protest| Broken(format!("{protest}: {acknowledgement:?}")))
    }

    pub(super) fn run(
        &mut self,
        scenario: &BulkScenario,
        now: u64,
        outcome: &mut BulkOutcome,
    ) -> Result<Vec<Packet>, Broken> {
        self.produce(scenario, now)?;
        self.sender.on_timeout(clock(now));
        self.take_events();
        let mut packets = Vec::new();
        while let Some(transmission) = self.sender.poll_transmit(clock(now), RUN_MAX) {
            self.send(scenario, transmission, now, &mut packets)?;
        }
        outcome.sent += u64::try_from(packets.len()).unwrap_or(0);
        self.take_events();
        if self.sender.is_over() && self.lost.is_empty() && self.sender.in_flight() > 0 {
            let rest = self.sender.in_flight();
            return Err(Broken(format!("{rest} bytes are under way at the end")));
        }
        Ok(packets)
    }

    fn take_events(&mut self) {
        while let Some(event) = self.sender.poll_event() {
            let (SenderEvent::PeerLost(peer) | SenderEvent::PeerComplete(peer)) = event;
            // The others may have answered everything.
            self.repeated.clear();
            let (number, _, takes_part) = &mut self.receivers[peer];
            if std::mem::take(takes_part) {
                match event {
                    SenderEvent::PeerLost(_) => self.lost.push(*number),
                    SenderEvent::PeerComplete(_) => self.completed.push(*number),
                }
            }
        }
    }

    /// The transfer is over, or its sender is gone.
    pub(super) fn is_over(&self) -> bool {
        self.is_ended || self.sender.is_over()
    }

    /// By receiver that takes part: blasts below this number are released.
    pub(super) fn released(&self) -> Vec<(usize, u32)> {
        let live = self.receivers.iter().filter(|it| it.2);
        live.map(|it| (it.0, self.sender.released_below()))
            .collect()
    }

    pub(super) fn take_completed(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.completed)
    }

    pub(super) fn take_lost(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.lost)
    }

    fn produce(&mut self, scenario: &BulkScenario, now: u64) -> Result<(), Broken> {
        if self.source_due() > now {
            return Ok(());
        }
        let long = |error: blast::LayoutError| Broken(error.to_string());
        let next = match scenario.is_stream {
            true => self.available + 256 * 1024,
            false => scenario.size,
        };
        if next >= scenario.size {
            self.available = u64::MAX;
            return self.sender.finish(scenario.size).map_err(long);
        }
        self.available = next;
        self.sender.extend(next).map_err(long)
    }

    fn send(
        &mut self,
        scenario: &BulkScenario,
        transmission: Transmission,
        now: u64,
        packets: &mut Vec<Packet>,
    ) -> Result<(), Broken> {
        let header = |blast, packet, count, round, asks| PacketHeader {
            transfer: self.transfer,
            blast,
            packet,
            count,
            round,
            asks,
            sent_us: blast::timestamp_us(clock(now)),
        };
        let (headers, to): (Vec<_>, _) = match transmission {
            Transmission::Probe { blast, round, to } => {
                (vec![header(blast, 0, 0, round, true)], to)
            }
            Transmission::Run(run) => {
                let last = run.first + run.packets - 1;
                let headers = (run.first..=last).map(|packet| {
                    let asks = run.asks && packet == last;
                    header(run.blast, packet, run.count, run.round, asks)
                });
                (headers.collect(), run.to)
            }
        };
        if to.is_empty() {
            return Err(Broken(format!("to no receiver: {transmission:?}")));
        }
        for header in headers {
            self.check(&header, scenario, now)?;
            for peer in to.iter() {
                let payload = payload(scenario, &header);
                packets.push((self.receivers[peer].0, Some(header), payload));
            }
        }
        Ok(())
    }

    fn check(
        &mut self,
        header: &PacketHeader,
        scenario: &BulkScenario,
        now: u64,
    ) -> Result<(), Broken> {
        if !self.nonces.insert(header.nonce()) {
            return Err(Broken(format!("a nonce is used a second time: {header:?}")));
        }
        let mut live = self.receivers.iter().filter(|it| it.2);
        if scenario.checks_credit() && !header.is_probe() && live.any(|it| header.blast >= it.1) {
            let credits = &self.receivers;
            return Err(Broken(format!("no credit for {header:?}: {credits:?}")));
        }
        if header.is_probe() {
            return Ok(());
        }
        // Questions that an acknowledgement causes leave at once.
        let is_repeated = header.asks
            && self.asked.insert(header.blast, header.packet) == Some(header.packet)
            && now > self.answered_at;
        if is_repeated {
            self.repeated.insert((header.blast, header.packet));
        }
        let live = self.receivers.iter().filter(|it| it.2).count();
        match self.repeated.is_empty() || is_repeated && self.repeated.len() <= live {
            true => Ok(()),
            false => Err(Broken(format!("into the silence: {header:?}"))),
        }
    }
}

fn payload(scenario: &BulkScenario, header: &PacketHeader) -> Vec<u8> {
    if header.is_probe() {
        return Vec::new();
    }
    let start = scenario.layout.position(PacketId {
        blast: header.blast,
        packet: header.packet,
    });
    let end = (start + u64::from(scenario.layout.packet_bytes())).min(scenario.size);
    let bytes = (start..end).map(|at| source_byte(scenario.seed(), at));
    let mut payload = Vec::with_capacity(index(scenario.layout.packet_bytes()));
    payload.extend(bytes);
    payload
}
