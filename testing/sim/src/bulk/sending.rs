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
    /// By blast: the packet that asked last.
    asked: HashMap<u32, u16>,
    /// The packet that was repeated since the newest acknowledgement.
    repeated: Option<(u32, u16)>,
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
            policy: scenario.policy,
            rate_max: None,
            round_trip: scenario.round_trip(),
            peer_timeout: Duration::from_secs(60),
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
            asked: HashMap::new(),
            repeated: None,
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
                self.repeated = None;
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
        self.repeated = None;
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
        let mut packets = Vec::new();
        while let Some(transmission) = self.sender.poll_transmit(clock(now), RUN_MAX) {
            self.send(scenario, transmission, now, &mut packets)?;
        }
        outcome.sent += u64::try_from(packets.len()).unwrap_or(0);
        while let Some(event) = self.sender.poll_event() {
            if let SenderEvent::PeerLost(peer) = event
                && self.receivers[peer].2
            {
                let number = self.receivers[peer].0;
                return Err(Broken(format!("receiver {number} counts as lost")));
            }
        }
        Ok(packets)
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
            sent_us: Sender::timestamp(clock(now)),
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
        for header in headers {
            self.check(&header, now)?;
            for peer in to.iter() {
                let payload = payload(scenario, &header);
                packets.push((self.receivers[peer].0, Some(header), payload));
            }
        }
        Ok(())
    }

    fn check(&mut self, header: &PacketHeader, now: u64) -> Result<(), Broken> {
        if !self.nonces.insert(header.nonce()) {
            return Err(Broken(format!("a nonce is used a second time: {header:?}")));
        }
        let mut live = self.receivers.iter().filter(|it| it.2);
        if !header.is_probe() && live.any(|it| header.blast >= it.1) {
            let credits = &self.receivers;
            return Err(Broken(format!("no credit for {header:?}: {credits:?}")));
        }
        if header.is_probe() {
            return Ok(());
        }
        let packet = (header.blast, header.packet);
        if let Some(repeated) = self.repeated.filter(|repeated| *repeated != packet) {
            let text = format!("into the silence, after {repeated:?}: {header:?}");
            return Err(Broken(text));
        }
        if header.asks {
            let before = self.asked.insert(header.blast, header.packet);
            // Questions that an acknowledgement causes leave at once.
            if before == Some(header.packet) && now > self.answered_at {
                self.repeated = Some(packet);
            }
        }
        Ok(())
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
