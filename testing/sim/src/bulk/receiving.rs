//! A receiving host: what arrived, and what it knows after a crash.

use std::collections::VecDeque;

use blast::{BlastRanges, Landed, PacketId, Receiver, Reception, Relocation, Spot};
use protocol::blast::{Acknowledgement, PacketHeader};
use rand::{Rng, rngs::SmallRng};

use super::{Broken, BulkOutcome, scenario::BulkScenario, source_byte};
use crate::MS;

/// Datagrams that are read in a call.
const CALL_MAX: usize = 12;
/// Datagrams that wait; more are lost, as in a socket.
const QUEUE_MAX: usize = 400;
/// Time between two calls of a busy receiver, ns.
const CALL_TIME: u64 = MS / 20;

pub(super) struct ReceivingHost {
    receiver: Option<Receiver>,
    queue: VecDeque<(Option<PacketHeader>, Vec<u8>)>,
    next_call: u64,
    /// The final positions.
    memory: Vec<u8>,
    /// Blasts that are whole, in place, and known after a crash.
    durable: BlastRanges,
    /// Blasts that are whole and not yet durable, and when each will be.
    writing: VecDeque<(u64, u32)>,
    /// The disk is busy until then.
    disk_until: u64,
    /// The host is off for good, and nobody told the sender.
    is_gone: bool,
}

impl ReceivingHost {
    pub(super) fn new(scenario: &BulkScenario) -> Self {
        // The end of a stream is unknown: packets can land behind the end.
        let behind = match scenario.is_stream {
            true => u64::from(scenario.ahead + 1) * scenario.layout.blast_bytes(),
            false => 0,
        };
        let len = usize::try_from(scenario.size + behind).unwrap_or(0);
        Self {
            receiver: None,
            queue: VecDeque::new(),
            next_call: 0,
            memory: vec![0; len],
            durable: BlastRanges::new(),
            writing: VecDeque::new(),
            disk_until: 0,
            is_gone: false,
        }
    }

    /// A transfer begins: the credit, and the blasts that are there.
    pub(super) fn begin(
        &mut self,
        scenario: &BulkScenario,
        transfer: u32,
    ) -> Result<(u32, BlastRanges), Broken> {
        for (start, end) in self.durable.iter() {
            for blast in start..end {
                self.check(scenario, blast, "known after a crash")?;
            }
        }
        self.queue.clear();
        self.writing.clear();
        let credit = self.durable.first_gap(0) + scenario.ahead;
        let size = (!scenario.is_stream).then_some(scenario.size);
        let present = self.durable.clone();
        let receiver = Receiver::new(scenario.layout, transfer, size, credit, present);
        let mut receiver = receiver.map_err(|error| Broken(error.to_string()))?;
        receiver.plant(scenario.flaws());
        self.receiver = Some(receiver);
        Ok((credit, self.durable.clone()))
    }

    /// The process is killed, or the host loses power: then blasts that are not durable have any content.
    pub(super) fn crash(
        &mut self,
        scenario: &BulkScenario,
        is_power_lost: bool,
        rng: &mut SmallRng,
    ) {
        self.receiver = None;
        self.queue.clear();
        self.writing.clear();
        if !is_power_lost {
            return;
        }
        let noise: u8 = rng.random();
        let blasts = scenario.layout.blasts(scenario.size).unwrap_or(u32::MAX);
        for blast in (0..blasts).filter(|blast| !self.durable.contains(*blast)) {
            let range = scenario.range_of_blast(blast);
            self.memory[range].fill(noise);
        }
    }

    pub(super) fn is_finished(&self, scenario: &BulkScenario) -> bool {
        let blasts = scenario.layout.blasts(scenario.size).unwrap_or(u32::MAX);
        self.is_gone || self.durable.first_gap(0) >= blasts
    }

    /// The host loses power, and is not repaired.
    pub(super) fn go_for_good(&mut self) {
        self.is_gone = true;
        self.receiver = None;
        self.queue.clear();
        self.writing.clear();
    }

    /// The sender takes this receiver for lost.
    pub(super) fn check_gone(&self) -> Result<(), Broken> {
        match self.is_gone {
            true => Ok(()),
            false => Err(Broken("a receiver that is there counts as lost".to_owned())),
        }
    }

    /// The sender takes this receiver for complete.
    pub(super) fn check_all(&self, scenario: &BulkScenario) -> Result<(), Broken> {
        let blasts = scenario.layout.blasts(scenario.size).unwrap_or(u32::MAX);
        (0..blasts).try_for_each(|blast| self.check(scenario, blast, "at a complete receiver"))
    }

    /// The sender has let these blasts go.
    pub(super) fn check_released(&self, released: u32) -> Result<(), Broken> {
        let whole = self.receiver.as_ref().map(Receiver::whole_below);
        match whole.is_some_and(|whole| released > whole) {
            true => Err(Broken(format!(
                "blasts below {released} are released: {whole:?}"
            ))),
            false => Ok(()),
        }
    }

    pub(super) fn arrive(&mut self, header: Option<PacketHeader>, payload: Vec<u8>, now: u64) {
        if self.queue.is_empty() {
            self.next_call = self.next_call.max(now);
        }
        if self.receiver.is_some() && self.queue.len() < QUEUE_MAX {
            self.queue.push_back((header, payload));
        }
    }

    pub(super) fn due(&self) -> u64 {
        let disk = self.writing.front().map_or(u64::MAX, |(at, _)| *at);
        match self.queue.is_empty() {
            true => disk,
            false => disk.min(self.next_call),
        }
    }

    /// One call: datagrams are received at the predicted positions, acknowledged, and copied.
    pub(super) fn run(
        &mut self,
        scenario: &BulkScenario,
        now: u64,
        outcome: &mut BulkOutcome,
    ) -> Result<Vec<Acknowledgement>, Broken> {
        let mut acknowledgements = Vec::new();
        if self.receiver.is_some() && self.next_call <= now && !self.queue.is_empty() {
            self.next_call = now + CALL_TIME;
            acknowledgements = self.call(scenario, now, outcome)?;
        }
        while self.writing.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, blast)) = self.writing.pop_front() {
                self.check(scenario, blast, "durable")?;
                self.durable.insert(blast, blast + 1);
            }
        }
        if let Some(receiver) = &mut self.receiver {
            receiver.grant(self.durable.first_gap(0) + scenario.ahead);
            while let Some(acknowledgement) = receiver.poll_acknowledgement() {
                acknowledgements.push(acknowledgement);
            }
        }
        Ok(acknowledgements)
    }

    fn call(
        &mut self,
        scenario: &BulkScenario,
        now: u64,
        outcome: &mut BulkOutcome,
    ) -> Result<Vec<Acknowledgement>, Broken> {
        let Some(mut receiver) = self.receiver.take() else {
            return Ok(Vec::new());
        };
        let mut predicted = Vec::new();
        receiver.expected(CALL_MAX, &mut predicted);
        let mut buffers = vec![Vec::new(); CALL_MAX + 1];
        let mut landed = Vec::new();
        for number in 0..CALL_MAX {
            let Some((header, payload)) = self.queue.pop_front() else {
                break;
            };
            let spot = predicted
                .get(number)
                .map_or(Spot::Buffer(number), |id| Spot::At(*id));
            let len = payload.len();
            self.write(scenario, spot, payload, &mut buffers);
            let packet = match header.map(|header| receiver.on_packet(&header, len, false)) {
                Some(Ok(Reception::Fresh(id))) => Some(id),
                _ => None,
            };
            match packet.map(Spot::At) {
                Some(right) if right == spot => outcome.predicted += 1,
                Some(_) => outcome.copied += 1,
                None => {}
            }
            landed.push(Landed { spot, packet });
        }
        let mut acknowledgements = Vec::new();
        while let Some(acknowledgement) = receiver.poll_acknowledgement() {
            acknowledgements.push(acknowledgement);
        }
        let mut plan = Vec::new();
        blast::plan_relocations_with(&landed, &mut plan, scenario.flaws());
        for Relocation { from, to } in plan {
            let payload = self.read(scenario, from, to, &buffers);
            self.write(scenario, to, payload, &mut buffers);
        }
        let whole = acknowledgements.iter().filter(|it| it.missing.is_empty());
        for blast in whole
            .map(|it| it.blast)
            .filter(|it| *it != Acknowledgement::NO_BLAST)
        {
            self.check(scenario, blast, "acknowledged")?;
        }
        while let Some(blast) = receiver.poll_whole() {
            self.check(scenario, blast, "whole")?;
            self.disk_until = scenario.written_at(self.disk_until.max(now));
            self.writing.push_back((self.disk_until, blast));
        }
        self.receiver = Some(receiver);
        Ok(acknowledgements)
    }

    /// Puts a payload into memory. A packet at a position of another length is cut.
    fn write(
        &mut self,
        scenario: &BulkScenario,
        spot: Spot,
        payload: Vec<u8>,
        buffers: &mut [Vec<u8>],
    ) {
        match spot {
            Spot::At(id) => {
                let range = self.range(scenario, id);
                let len = range.len().min(payload.len());
                self.memory[range.start..range.start + len].copy_from_slice(&payload[..len]);
            }
            Spot::Buffer(number) => buffers[number] = payload,
            Spot::Spare => {
                if let Some(spare) = buffers.last_mut() {
                    *spare = payload;
                }
            }
        }
    }

    fn read(&self, scenario: &BulkScenario, from: Spot, to: Spot, buffers: &[Vec<u8>]) -> Vec<u8> {
        let mut payload = match from {
            Spot::At(id) => self.memory[self.range(scenario, id)].to_vec(),
            Spot::Buffer(number) => buffers[number].clone(),
            Spot::Spare => buffers.last().cloned().unwrap_or_default(),
        };
        if let Spot::At(id) = to {
            payload.truncate(self.range(scenario, id).len());
        }
        payload
    }

    fn range(&self, scenario: &BulkScenario, id: PacketId) -> std::ops::Range<usize> {
        let start = usize::try_from(scenario.layout.position(id)).unwrap_or(usize::MAX);
        let len = usize::try_from(scenario.layout.packet_bytes()).unwrap_or(0);
        let end = self.memory.len();
        start.min(end)..(start.saturating_add(len)).min(end)
    }

    fn check(&self, scenario: &BulkScenario, blast: u32, when: &str) -> Result<(), Broken> {
        for at in scenario.range_of_blast(blast) {
            let position = u64::try_from(at).unwrap_or(u64::MAX);
            let found = self.memory[at];
            if found != source_byte(scenario.seed(), position) {
                return Err(Broken(format!(
                    "byte {position} of blast {blast}, {when}: {found:#x} is not the source's"
                )));
            }
        }
        Ok(())
    }
}
