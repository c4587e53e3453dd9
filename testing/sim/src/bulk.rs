//! The world of bulk transfers: a sending host, one or several receiving hosts, and a network.
//!
//! Under test is the real code of `blast`: rounds, acknowledgements, credit, prediction, relocation, rate control.
//! Hosts are killed or lose power at any moment, the network loses, doubles, delays, reorders and is cut, disks are
//! slow or stop. After a crash a new transfer goes on with the blasts that the receiver knows to be whole.
//!
//! Invariants:
//!
//! - A blast that counts as whole has the bytes of the source, when it is counted, and after each crash.
//! - No nonce is used a second time.
//! - No packet of a blast for which a receiver has given no credit is sent.
//! - While no acknowledgement arrives, the sender repeats the last packet of a round, and nothing else.
//! - A blast that a receiver acknowledges as whole, or that the sender releases, is whole at the receiver.
//! - A receiver counts as complete when it has all data, and as lost only if its host is gone.
//! - After the last fault all receivers that are there get all data, and the sender knows.

mod connections;
mod network;
mod receiving;
mod scenario;
mod sending;

use std::collections::VecDeque;

use blast::BlastRanges;
use rand::{Rng, SeedableRng, rngs::SmallRng};

pub use self::connections::{
    ConnectionFailure, ConnectionFlaw, ConnectionOutcome, ConnectionScenario, play_connections,
};
pub use self::scenario::{BulkFlaw, BulkScenario};
use self::{
    network::{Datagram, End, Network},
    receiving::ReceivingHost,
    scenario::Crash,
    sending::Session,
};
use crate::{
    MS, SECOND,
    failure::{self, BrokenRun, Playable, RunLog, Seeded},
};

/// More events than any run that goes on has.
const EVENTS_MAX: u64 = 5_000_000;
/// A crashed host is there again after this time, ns.
const REBOOT: std::ops::Range<u64> = 10 * MS..500 * MS;

/// A run that went well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BulkOutcome {
    /// Packets that arrived where they were predicted.
    pub predicted: u64,
    /// Packets that were copied.
    pub copied: u64,
    /// Packets that were sent.
    pub sent: u64,
    /// Transfers that went on after a crash.
    pub resumed: u32,
    /// Length of the run, ns.
    pub elapsed: u64,
}

/// A broken invariant.
pub type BulkFailure = BrokenRun<BulkScenario>;

impl Seeded for BulkScenario {
    fn seed(&self) -> u64 {
        Self::seed(self)
    }
}

/// A broken invariant, in words.
#[derive(Debug)]
struct Broken(String);

/// Plays a run.
///
/// # Errors
/// An invariant is broken.
pub fn play_bulk(scenario: &BulkScenario) -> Result<BulkOutcome, BulkFailure> {
    failure::play::<BulkRun>(scenario)
}

struct BulkRun {
    scenario: BulkScenario,
    now: u64,
    rng: SmallRng,
    network: Network,
    /// Transfers, by number. A transfer ends with its sender, or when all its receivers are gone.
    sessions: Vec<Session>,
    receivers: Vec<ReceivingHost>,
    /// Receivers without a transfer get one at this time.
    joins: Vec<Option<u64>>,
    crashes: VecDeque<Crash>,
    outcome: BulkOutcome,
    log: RunLog,
}

impl Playable for BulkRun {
    type Scenario = BulkScenario;
    type Outcome = BulkOutcome;

    fn new(scenario: &BulkScenario, log: RunLog) -> Self {
        Self::new(scenario, log)
    }

    fn play(&mut self) -> Result<BulkOutcome, String> {
        self.run().map_err(|Broken(text)| text)?;
        Ok(self.outcome)
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn into_log(self) -> RunLog {
        self.log
    }
}

impl BulkRun {
    fn new(scenario: &BulkScenario, log: RunLog) -> Self {
        let receivers = 0..scenario.receivers;
        Self {
            now: 0,
            rng: SmallRng::seed_from_u64(scenario.seed()),
            network: Network::new(scenario.path.clone()),
            sessions: Vec::new(),
            receivers: receivers.map(|_| ReceivingHost::new(scenario)).collect(),
            joins: vec![None; scenario.receivers],
            crashes: scenario.crashes.clone().into(),
            outcome: BulkOutcome::default(),
            log,
            scenario: scenario.clone(),
        }
    }

    fn run(&mut self) -> Result<(), Broken> {
        self.begin_session((0..self.scenario.receivers).collect())?;
        for _ in 0..EVENTS_MAX {
            let are_finished = self
                .receivers
                .iter()
                .all(|it| it.is_finished(&self.scenario));
            if are_finished && self.sessions.iter().all(Session::is_over) {
                self.outcome.elapsed = self.now;
                return Ok(());
            }
            let due = self.due();
            if due > self.scenario.deadline {
                return Err(Broken("a receiver lacks data at the end".to_owned()));
            }
            self.now = self.now.max(due);
            self.play()?;
        }
        Err(Broken("the run does not end".to_owned()))
    }

    fn due(&self) -> u64 {
        let late = self.scenario.late;
        let sessions = self.sessions.iter().map(|it| it.due().saturating_add(late));
        let receivers = self.receivers.iter().map(ReceivingHost::due);
        let joins = self.joins.iter().filter_map(|at| *at);
        let crash = self.crashes.front().map(|crash| crash.at);
        let gone = self
            .scenario
            .gone
            .map(|(_, at)| at)
            .filter(|at| *at > self.now);
        let times = sessions
            .chain(receivers)
            .chain(joins)
            .chain(crash)
            .chain(gone);
        times.chain([self.network.due()]).min().unwrap_or(u64::MAX)
    }

    fn play(&mut self) -> Result<(), Broken> {
        self.crash();
        self.join()?;
        while let Some((to, datagram)) = self.network.arrived(self.now) {
            self.deliver(to, datagram)?;
        }
        for number in 0..self.receivers.len() {
            self.receive(number)?;
        }
        for number in 0..self.sessions.len() {
            self.send(number)?;
        }
        Ok(())
    }

    fn crash(&mut self) {
        if let Some((number, at)) = self.scenario.gone
            && at <= self.now
        {
            self.receivers[number].go_for_good();
        }
        while self
            .crashes
            .front()
            .is_some_and(|crash| crash.at <= self.now)
        {
            let Some(crash) = self.crashes.pop_front() else {
                return;
            };
            self.note(|| format!("{crash:?}"));
            match crash.host {
                None => {
                    self.sessions.iter_mut().for_each(Session::end);
                    let joins = self.now + self.rng.random_range(REBOOT);
                    self.joins.fill(Some(joins));
                }
                Some(number) => {
                    let number = number % self.receivers.len();
                    let is_power_lost = crash.is_power_lost;
                    self.receivers[number].crash(&self.scenario, is_power_lost, &mut self.rng);
                    for session in &mut self.sessions {
                        session.drop_receiver(number, self.now);
                    }
                    self.joins[number] = Some(self.now + self.rng.random_range(REBOOT));
                }
            }
        }
    }

    /// Receivers without a transfer begin one together.
    fn join(&mut self) -> Result<(), Broken> {
        let now = self.now;
        let joining: Vec<usize> = (0..self.joins.len())
            .filter(|number| self.joins[*number].is_some_and(|at| at <= now))
            .collect();
        for number in &joining {
            self.joins[*number] = None;
        }
        let unfinished: Vec<usize> = joining
            .into_iter()
            .filter(|number| !self.receivers[*number].is_finished(&self.scenario))
            .collect();
        match unfinished.is_empty() {
            true => Ok(()),
            false => {
                self.outcome.resumed += 1;
                self.begin_session(unfinished)
            }
        }
    }

    fn begin_session(&mut self, receivers: Vec<usize>) -> Result<(), Broken> {
        let transfer = u32::try_from(self.sessions.len()).unwrap_or(u32::MAX);
        let mut offers: Vec<(u32, BlastRanges)> = Vec::new();
        for number in &receivers {
            // The sender is gone for this receiver, if it was not already.
            for session in &mut self.sessions {
                session.drop_receiver(*number, self.now);
            }
            let offer = self.receivers[*number].begin(&self.scenario, transfer)?;
            offers.push(offer);
        }
        self.note(|| format!("transfer {transfer} to {receivers:?}: {offers:?}"));
        let session = Session::new(&self.scenario, transfer, receivers, offers, self.now);
        self.sessions.push(session);
        Ok(())
    }

    fn deliver(&mut self, to: End, datagram: Datagram) -> Result<(), Broken> {
        match (to, datagram) {
            (End::Receiver(number), Datagram::Packet(header, payload)) => {
                self.receivers[number].arrive(header, payload, self.now);
                Ok(())
            }
            (End::Sender(from), Datagram::Acknowledgement(acknowledgement)) => {
                self.note(|| format!("ack from {from}: {acknowledgement:?}"));
                let transfer = usize::try_from(acknowledgement.transfer).unwrap_or(usize::MAX);
                match self.sessions.get_mut(transfer) {
                    Some(session) => session.acknowledged(from, &acknowledgement, self.now),
                    None => Ok(()),
                }
            }
            (to, datagram) => Err(Broken(format!("{datagram:?} for {to:?}"))),
        }
    }

    /// A receiver reads datagrams that have arrived.
    fn receive(&mut self, number: usize) -> Result<(), Broken> {
        let host = &mut self.receivers[number];
        if host.due() > self.now {
            return Ok(());
        }
        let acknowledgements = host.run(&self.scenario, self.now, &mut self.outcome)?;
        for acknowledgement in acknowledgements {
            let datagram = Datagram::Acknowledgement(acknowledgement);
            self.network
                .send(End::Sender(number), datagram, &mut self.rng, self.now);
        }
        Ok(())
    }

    fn send(&mut self, number: usize) -> Result<(), Broken> {
        let session = &mut self.sessions[number];
        if session.due().saturating_add(self.scenario.late) > self.now {
            return Ok(());
        }
        let packets = session.run(&self.scenario, self.now, &mut self.outcome)?;
        for (receiver, released) in session.released() {
            self.receivers[receiver].check_released(released)?;
        }
        for receiver in session.take_completed() {
            self.receivers[receiver].check_all(&self.scenario)?;
        }
        for receiver in session.take_lost() {
            self.receivers[receiver].check_gone()?;
        }
        for (to, header, payload) in packets {
            self.note(|| format!("to {to}: {header:?}"));
            let datagram = Datagram::Packet(header, payload);
            self.network
                .send(End::Receiver(to), datagram, &mut self.rng, self.now);
        }
        Ok(())
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        self.log.add(self.now, line);
    }
}

/// The byte of the source at a position.
fn source_byte(seed: u64, position: u64) -> u8 {
    let mixed = (position ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56).to_le_bytes()[0]
}

/// Longest time that a run may take after its last fault, ns.
const REST_TIME: u64 = 120 * SECOND;
