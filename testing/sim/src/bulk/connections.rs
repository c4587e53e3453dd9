//! The world of transfers by connections: a sending host, a receiving host, and connections between.
//!
//! Under test is the real code of `blast::connections`: which connection sends which blast, and where the bytes of a
//! connection belong. Connections take different times, break, end early or are never made; both processes are killed
//! at any byte, and after a loss of power any part of the file has any content. A connection that breaks ends the
//! attempt, and the next attempt goes on with the blasts of which the hashes are right. A wrong sender sends a blast on
//! a second connection.
//!
//! Invariants:
//!
//! - A blast that counts as whole has the bytes of the source, and so have all bytes below the position.
//! - No byte is written twice in an attempt: the bytes below the position are hashed while others arrive.
//! - The position never falls in an attempt.
//! - No nonce is used a second time in an attempt.
//! - A receiver refuses no byte of a correct sender.
//! - A connection that lost no byte ends between two blasts. When all are sent and no byte was lost, all data is there.
//! - After the last fault the receiver gets all data.

mod file;
mod lane;
mod scenario;

use std::collections::{HashSet, VecDeque};

use blast::{
    BlastRanges,
    connections::{Arrivals, Queue, StreamError},
};
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::IndexedRandom};

pub use self::scenario::{ConnectionFlaw, ConnectionScenario};
use self::{
    file::ReceivedFile,
    lane::{Lane, LaneState},
    scenario::Fault,
};
use super::Broken;
use crate::failure::{self, BrokenRun, Playable, RunLog, Seeded as _};

/// Virtual time of a step, ns.
const STEP_TIME: u64 = 10_000;
/// More steps than any run that goes on has.
const STEPS_MAX: u64 = 2_000_000;
/// Most steps until both ends know of a broken connection.
const NOTICE_STEPS: u64 = 60;

/// A run that went well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionOutcome {
    /// Attempts, the last with them.
    pub attempts: u64,
    /// Blasts that the sender began.
    pub sent: u64,
    /// Blasts that an attempt found at its beginning.
    pub present: u64,
}

/// A broken invariant.
pub type ConnectionFailure = BrokenRun<ConnectionScenario>;

/// Plays a run.
///
/// # Errors
/// An invariant is broken.
pub fn play_connections(
    scenario: &ConnectionScenario,
) -> Result<ConnectionOutcome, ConnectionFailure> {
    failure::play::<ConnectionRun>(scenario)
}

/// A transfer from the offer until it is whole or a connection breaks.
struct Attempt {
    queue: Queue,
    arrivals: Arrivals,
    lanes: Vec<Lane>,
    nonces: HashSet<[u8; 12]>,
    position: u64,
    /// Blasts of which the content was checked.
    checked: BlastRanges,
    /// Blasts that a connection has begun, and the connection that is to repeat one.
    begun: Vec<u32>,
    doubles: Option<usize>,
    /// One end ends the attempt at this step.
    ends_at: Option<u64>,
}

struct ConnectionRun {
    scenario: ConnectionScenario,
    step: u64,
    rng: SmallRng,
    file: ReceivedFile,
    attempt: Option<Attempt>,
    faults: VecDeque<(u64, Fault)>,
    outcome: ConnectionOutcome,
    log: RunLog,
}

impl Playable for ConnectionRun {
    type Scenario = ConnectionScenario;
    type Outcome = ConnectionOutcome;

    fn new(scenario: &ConnectionScenario, log: RunLog) -> Self {
        Self::new(scenario, log)
    }

    fn play(&mut self) -> Result<ConnectionOutcome, String> {
        self.run().map_err(|Broken(text)| text)?;
        Ok(self.outcome)
    }

    fn now(&self) -> u64 {
        self.step * STEP_TIME
    }

    fn into_log(self) -> RunLog {
        self.log
    }
}

impl ConnectionRun {
    fn new(scenario: &ConnectionScenario, log: RunLog) -> Self {
        Self {
            step: 0,
            rng: SmallRng::seed_from_u64(scenario.seed()),
            file: ReceivedFile::new(scenario),
            attempt: None,
            faults: scenario.faults.clone().into(),
            outcome: ConnectionOutcome::default(),
            log,
            scenario: scenario.clone(),
        }
    }

    fn run(&mut self) -> Result<(), Broken> {
        while self.step < STEPS_MAX {
            self.step += 1;
            self.strike();
            let mut attempt = match self.attempt.take() {
                Some(attempt) => attempt,
                None => self.begin()?,
            };
            self.go_on(&mut attempt)?;
            let all_over = attempt.lanes.iter().all(|lane| lane.is_over);
            let is_given_up = attempt.ends_at.is_some_and(|at| at <= self.step);
            match (all_over, attempt.arrivals.is_whole()) {
                (true, true) => {
                    let size = self.scenario.size;
                    return self.file.check(&self.scenario, 0..size, "at the end");
                }
                (true, false) if attempt.has_sent_all(&self.scenario) => {
                    return Err(Broken("all connections have ended, and data lacks".into()));
                }
                (true, false) => self.note(|| "the attempt has failed".to_owned()),
                (false, _) if is_given_up => self.note(|| "the attempt ends".to_owned()),
                (false, _) => self.attempt = Some(attempt),
            }
        }
        Err(Broken("the run does not end".to_owned()))
    }

    fn begin(&mut self) -> Result<Attempt, Broken> {
        let scenario = &self.scenario;
        let present = self.file.begin(scenario);
        self.outcome.attempts += 1;
        self.outcome.present += present.count();
        let (layout, size) = (scenario.layout, scenario.size);
        let large = |error: blast::LayoutError| Broken(error.to_string());
        let mut queue = Queue::new(layout, size, present.clone()).map_err(large)?;
        let mut arrivals = Arrivals::new(layout, size, present.clone()).map_err(large)?;
        queue.plant(scenario.flaws());
        arrivals.plant(scenario.flaws());
        let lanes = (0..scenario.connections).map(|_| Lane::new(layout));
        let attempt = Attempt {
            position: arrivals.position(),
            queue,
            arrivals,
            lanes: lanes.collect(),
            nonces: HashSet::new(),
            checked: present.clone(),
            begun: Vec::new(),
            doubles: None,
            ends_at: None,
        };
        self.note(|| format!("an attempt begins: {present:?}"));
        Ok(attempt)
    }

    /// Faults that are due.
    fn strike(&mut self) {
        while let Some((_, fault)) = self.faults.front().copied().filter(|it| it.0 <= self.step) {
            self.faults.pop_front();
            self.note(|| format!("{fault:?}"));
            if matches!(fault, Fault::ReceiverKilled | Fault::PowerLost) {
                self.attempt = None;
            }
            if fault == Fault::PowerLost {
                self.file.lose_power(&self.scenario, &mut self.rng);
            }
            let Some(attempt) = &mut self.attempt else {
                continue;
            };
            let cut = match fault {
                Fault::Reset(lane) | Fault::Cut(lane) => lane..lane + 1,
                Fault::Doubled(lane) => {
                    attempt.doubles = Some(lane);
                    continue;
                }
                _ => 0..attempt.lanes.len(),
            };
            for lane in &mut attempt.lanes[cut] {
                let len = self.rng.random_range(0..=lane.under_way());
                lane.cut(len);
            }
            if !matches!(fault, Fault::Cut(_)) {
                attempt.ends_at = Some(self.step + self.rng.random_range(0..NOTICE_STEPS));
            }
        }
    }

    /// A connection sends or receives.
    fn go_on(&mut self, attempt: &mut Attempt) -> Result<(), Broken> {
        if self.rng.random_ratio(1, 20) {
            self.file.flush_one();
        }
        let number = self.rng.random_range(0..attempt.lanes.len());
        match self.rng.random() {
            true => self.send(attempt, number),
            false => self.receive(attempt, number),
        }
    }

    fn send(&mut self, attempt: &mut Attempt, number: usize) -> Result<(), Broken> {
        let lane = &mut attempt.lanes[number];
        match lane.state {
            LaneState::Waiting if self.rng.random_ratio(self.scenario.refused, 100) => {
                lane.state = LaneState::Refused;
                lane.is_over = true;
            }
            LaneState::Waiting => lane.state = LaneState::Open,
            LaneState::Refused | LaneState::Finished => {}
            LaneState::Open => {
                if lane.wants_blast() {
                    let doubled = match attempt.doubles == Some(number) {
                        true => attempt.begun.choose(&mut self.rng).copied(),
                        false => None,
                    };
                    let Some(blast) = doubled.or_else(|| attempt.queue.take()) else {
                        lane.state = LaneState::Finished;
                        return Ok(());
                    };
                    self.outcome.sent += 1;
                    attempt.begun.push(blast);
                    for nonce in lane.begin(&self.scenario, blast) {
                        if !attempt.nonces.insert(nonce) && doubled.is_none() {
                            return Err(Broken(format!("a nonce of blast {blast} comes again")));
                        }
                    }
                    self.note(|| format!("connection {number} begins blast {blast}"));
                }
                let most = self.rng.random_range(1..=self.scenario.call_bytes);
                lane.write(&self.scenario, most);
            }
        }
        Ok(())
    }

    fn receive(&mut self, attempt: &mut Attempt, number: usize) -> Result<(), Broken> {
        let most = self.rng.random_range(1..=self.scenario.call_bytes);
        let Attempt {
            lanes, arrivals, ..
        } = attempt;
        let lane = &mut lanes[number];
        lane.read(most, arrivals, &mut self.file)?;
        let blasts = self.scenario.layout.blasts(self.scenario.size).unwrap_or(0);
        for blast in 0..blasts {
            if arrivals.contains(blast) && !attempt.checked.contains(blast) {
                attempt.checked.insert(blast, blast + 1);
                self.file.add(&self.scenario, blast)?;
                self.note(|| format!("blast {blast} is there, by connection {number}"));
            }
        }
        let position = arrivals.position();
        if position < attempt.position {
            return Err(Broken(format!("the position falls to {position}")));
        }
        if position > attempt.position {
            let hashed = std::mem::replace(&mut attempt.position, position);
            self.file
                .check(&self.scenario, hashed..position, "below the position")?;
        }
        let error = match lane.refusal {
            Some(error) if attempt.doubles.is_none() => {
                let text = format!("the receiver refuses a correct sender: {error}");
                return Err(Broken(text));
            }
            Some(error) => Some(error),
            None if lane.is_over && lane.state == LaneState::Finished => lane.end().err(),
            None => None,
        };
        if error == Some(StreamError::Cut) && !lane.is_short {
            return Err(Broken(format!("connection {number} ends in a blast")));
        }
        if error.is_some() {
            // The receiver ends the attempt.
            attempt.ends_at.get_or_insert(self.step);
        }
        Ok(())
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        self.log.add(self.step * STEP_TIME, line);
    }
}

impl Attempt {
    /// All blasts were sent, and no byte was lost.
    fn has_sent_all(&self, scenario: &ConnectionScenario) -> bool {
        let is_short = self.lanes.iter().any(|lane| lane.is_short);
        self.queue.position() >= scenario.size && !is_short
    }
}
