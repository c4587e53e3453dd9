//! The event loop: performs the next event until all scripts are complete.

use rand::{Rng, SeedableRng, rngs::SmallRng};

use crate::{
    MS, SECOND,
    client::{Client, Progress},
    clock,
    driver::{Context, Driver, time},
    invariants::{InvariantChecker, Violation},
    link::Remote,
    network::{Destination, Network},
    node::{Node, NorthCounters},
    power::Power,
    record::Logger,
    scenario::{Crash, Fault, LinkSetup, Scenario, When},
    trace,
};

/// Virtual time after which a run counts as endless, ns.
const LONGEST_RUN: u64 = 400 * SECOND;
/// Steps after which a run counts as endless.
const MOST_STEPS: u64 = 3_000_000;
/// Longest wait of a crash for an action that does not come, ns.
const CRASH_TIMEOUT: u64 = 2 * SECOND;

/// Figures of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Virtual time, ns.
    pub duration: u64,
    /// Number of steps.
    pub steps: u64,
    /// Deaths of the server.
    pub deaths: u32,
    /// Number of recoveries.
    pub recoveries: u32,
    /// Instream bytes replayed.
    pub replayed_bytes: u64,
    /// Lost connections, as the fault of the run allows.
    pub lost: usize,
    /// Segments without room in the ring to the logger.
    pub mirror_full: u64,
    /// ACKs that were made from acknowledgements of the logger.
    pub acks_made: u64,
    /// Segments that acknowledged less to a client than the server had.
    pub acks_clamped: u64,
    /// Segments without a copy, left to the determinants.
    pub mirror_skipped: u64,
    /// Segments of replays that were acknowledged in the client's name.
    pub self_acks: u64,
    /// Clients that completed their scripts.
    pub complete: usize,
    /// Deaths of the logger.
    pub logger_deaths: u32,
    /// Events of a stateful server.
    pub north: NorthCounters,
}

/// A run with a broken invariant.
#[derive(Debug, Clone, thiserror::Error)]
#[error("seed {seed} ({fault:?}) after {now} ns and {steps} steps: {violation}")]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The fault.
    pub fault: Fault,
    /// Virtual time, ns.
    pub now: u64,
    /// Number of steps.
    pub steps: u64,
    /// The broken invariant.
    pub violation: Violation,
}

/// Plays the scenario of a seed.
///
/// # Errors
/// An invariant does not hold.
pub fn play_seed(seed: u64) -> Result<Outcome, Failure> {
    play(&Scenario::drawn_from(seed))
}

/// Plays a scenario.
///
/// # Errors
/// An invariant does not hold.
pub fn play(scenario: &Scenario) -> Result<Outcome, Failure> {
    let mut simulation = Simulation::new(scenario);
    let result = simulation.run();
    let (seed, fault) = (scenario.seed, scenario.fault);
    match result {
        Ok(()) => Ok(simulation.outcome()),
        Err(violation) => Err(Failure {
            seed,
            fault,
            now: simulation.now,
            steps: simulation.steps,
            violation,
        }),
    }
}

struct Simulation {
    now: u64,
    steps: u64,
    rng: SmallRng,
    fault: Fault,
    clients: Vec<Client>,
    network: Network,
    /// The network to a logger on another machine.
    link: Network,
    link_setup: Option<LinkSetup>,
    power: Power,
    node: Node,
    logger: Logger,
    driver: Driver,
    checker: InvariantChecker,
    crashes: std::vec::IntoIter<Crash>,
    /// Time of the next crash, and the crash.
    crash_at: Option<(u64, Crash)>,
    /// Time at which that was drawn.
    armed_at: u64,
}

impl Simulation {
    fn new(scenario: &Scenario) -> Self {
        let mut rng = SmallRng::seed_from_u64(scenario.seed ^ 0x0077_6f72_6c64);
        let clients = scenario.clients.iter().cloned().enumerate();
        let clients = clients
            .map(|(i, setup)| Client::new(i, setup, &mut rng))
            .collect();
        clock::set(0);
        let link = scenario.link.as_ref();
        let power = Power::new(link, &mut rng);
        let node = Node::new(scenario.service.clone(), link, 0, &mut rng, 0);
        let logger = Logger::new(&scenario.service, link, node.south.digest_seed());
        let mut simulation = Self {
            now: 0,
            steps: 0,
            fault: scenario.fault,
            clients,
            network: Network::new(scenario.quality),
            link: Network::new(scenario.link.map_or(scenario.quality, |link| link.quality)),
            link_setup: scenario.link,
            power,
            node,
            logger,
            driver: Driver::new(scenario.service.clone()),
            checker: InvariantChecker::new(
                &scenario.clients,
                scenario.fault,
                scenario.service.north,
            ),
            crashes: scenario.crashes.clone().into_iter(),
            crash_at: None,
            armed_at: 0,
            rng,
        };
        simulation.arm();
        simulation
    }

    fn run(&mut self) -> Result<(), Violation> {
        while !self.over() {
            self.steps += 1;
            self.now = self.next().max(self.now + 1_000);
            clock::set(self.now);
            if self.now > LONGEST_RUN || self.steps > MOST_STEPS {
                return Err(self.stuck());
            }
            self.step()?;
        }
        self.last_look()
    }

    fn stuck(&self) -> Violation {
        let clients: Vec<String> = self
            .clients
            .iter()
            .filter(|c| !c.done())
            .map(Client::describe)
            .collect();
        let stage = self.driver.recovery.stage();
        let sockets = self.node.host.describe();
        Violation::new(format!(
            "it does not end: {stage:?}, clients {clients:?}, server {sockets:?}"
        ))
    }

    fn over(&self) -> bool {
        self.clients.iter().all(Client::done) && (self.driver.at_rest() || self.power.is_off())
    }

    /// Time of the next event.
    fn next(&mut self) -> u64 {
        let now = self.now;
        let crash = self.crash_at.map(|(at, _)| at);
        let sprung = self.driver.sprung.map(|(at, _)| at);
        let fixed = [
            self.network.due(),
            self.link.due(),
            self.logger.due(),
            self.node.due(now),
            Some(self.logger.reads_at),
            Some(self.driver.due).filter(|_| !self.power.is_off()),
            self.power.transition_at,
            crash.filter(|_| !self.power.is_off()),
            sprung,
        ];
        let clients = self.clients.iter_mut().map(|client| client.due(now));
        clients.chain(fixed).flatten().min().unwrap_or(u64::MAX)
    }

    fn step(&mut self) -> Result<(), Violation> {
        let now = self.now;
        while let Some((to, packet)) = self.network.arrived(now) {
            match to {
                Destination::Server if self.power.is_off() => {}
                Destination::Server => {
                    trace::packet(now, "to the server", &packet);
                    self.node.receive(packet, &mut self.checker, now)?;
                }
                Destination::Client(i) => {
                    trace::packet(now, "to a client", &packet);
                    self.checker.comes(i, &packet)?;
                    let said = self.clients[i].receive(packet, &mut self.checker, now);
                    self.deliver_to_server(said);
                }
                Destination::Logger => {} // the log link has its own network
            }
        }
        self.over_the_link()?;
        self.power.advance(
            self.link_setup.as_ref(),
            (&mut self.node, &mut self.driver),
            (&mut self.logger, &mut self.checker),
            &mut self.rng,
            now,
        )?;
        for i in 0..self.clients.len() {
            if self.clients[i].due(now).is_some_and(|due| due <= now) {
                let said = self.clients[i].act(&mut self.checker, &mut self.rng, now)?;
                self.deliver_to_server(said);
            }
        }
        self.commit_determinants();
        if self.node.due(now).is_some_and(|due| due <= now)
            && self.node.act(&mut self.checker, &mut self.rng, now)?
        {
            // The server read the poison, or the fuse has burnt down.
            self.node.crash(11, false, &mut self.checker, now)?;
        }
        self.read_ring()?;
        if !self.power.is_off() {
            self.crash_if_due()?;
            self.driver
                .hint(&mut self.node, &self.logger, &mut self.rng, now);
            if self.driver.due <= now {
                self.supervise()?;
            }
        }
        self.node.poll(&mut self.checker, now)?;
        self.deliver_to_clients()?;
        for packet in std::mem::take(&mut self.node.to_logger) {
            self.link
                .send(Destination::Logger, packet, &mut self.rng, now);
        }
        Ok(())
    }

    /// Delivers packets to and from a logger on another machine.
    fn over_the_link(&mut self) -> Result<(), Violation> {
        let now = self.now;
        if self.logger.live(&mut self.node.south, &mut self.rng, now) {
            self.acks_within_record()?;
            self.driver
                .compare_connections(self.logger.journal(), &self.node.south, now);
        }
        let mut heard = false;
        while let Some((to, packet)) = self.link.arrived(now) {
            match (to, &mut self.logger.remote) {
                (Destination::Logger, Some(remote)) => {
                    remote.receive(&packet, time(now));
                    heard = true;
                }
                _ if self.power.is_off() => {}
                _ => self.node.receive(packet, &mut self.checker, now)?,
            }
        }
        if let Some(remote) = self.logger.remote.as_mut() {
            for packet in remote.say(&mut self.rng, time(now)) {
                self.link
                    .send(Destination::Server, packet, &mut self.rng, now);
            }
            if heard {
                self.logger.reads_at = self.logger.reads_at.min(now + MS);
            }
        }
        Ok(())
    }

    fn commit_determinants(&mut self) {
        let is_away = self.logger.is_away();
        if let Some(north) = &mut self.node.north {
            let lag = north.setup.commit;
            north
                .determinants
                .commit(lag, is_away, &mut self.rng, self.now);
        }
    }

    fn supervise(&mut self) -> Result<(), Violation> {
        self.driver.round(&mut Context {
            node: &mut self.node,
            logger: &mut self.logger,
            checker: &mut self.checker,
            rng: &mut self.rng,
            now: self.now,
        })
    }

    fn deliver_to_server(&mut self, packets: Vec<Vec<u8>>) {
        for packet in packets {
            self.checker.client_says(&packet);
            self.network
                .send(Destination::Server, packet, &mut self.rng, self.now);
        }
    }

    fn deliver_to_clients(&mut self) -> Result<(), Violation> {
        for packet in std::mem::take(&mut self.node.leaving) {
            self.acks_within_record()?;
            let to = wire::IpPacket::parse(&packet).ok().and_then(|view| {
                let by_address = |client: &Client| client.setup.address.ip() == view.destination();
                self.clients.iter().position(by_address)
            });
            if let Some(i) = to {
                self.network
                    .send(Destination::Client(i), packet, &mut self.rng, self.now);
            }
        }
        Ok(())
    }

    /// Whether a logger on another machine has all acknowledged input, or knows of it from the determinants.
    fn acks_within_record(&self) -> Result<(), Violation> {
        if self.logger.remote.is_none() || self.logger.is_away() {
            return Ok(());
        }
        for (key, flow) in self.node.south.flows() {
            let journal = self.logger.journal();
            if flow.log.ended {
                continue; // the rest is between client and kernel
            }
            let given_up = |remote: &Remote| remote.has_given_up(flow.id);
            if self.logger.remote.as_ref().is_some_and(given_up) {
                continue; // the service learns of this with the next segment
            }
            if flow.closed_ns == 0 && journal.summary(flow.id).is_none() {
                return Err(Violation::new(format!("{key} exists and is not recorded")));
            }
            self.is_recorded(*key, flow)?;
        }
        Ok(())
    }

    /// Whether acknowledged input is recorded.
    fn is_recorded(&self, key: wire::FlowKey, flow: &south_model::Flow) -> Result<(), Violation> {
        let stable = self.logger.journal().stable_seq(flow.id);
        let (None, Some(stable)) = (flow.unprotected, stable) else {
            return Ok(());
        };
        let cursor = self.node.read_cursor(key, flow);
        let stable = cursor.map_or(stable, |cursor| stable.max_seq(cursor));
        self.checker.recorded(key, stable)
    }

    fn read_ring(&mut self) -> Result<(), Violation> {
        if self.now < self.logger.reads_at {
            return Ok(());
        }
        let lag = self.driver.setup.logger_lag;
        self.logger.reads_at = self.now + crate::pause(&mut self.rng, lag, self.logger.idle);
        let frames = if self.rng.random_bool(0.7) {
            usize::MAX
        } else {
            self.rng.random_range(1..8)
        };
        if !self.logger.read(&mut self.node.south, frames) || self.logger.is_away() {
            return Ok(());
        }
        for (key, flow) in self.node.south.flows() {
            if flow.log.ended {
                continue; // the rest is between client and kernel
            }
            self.is_recorded(*key, flow)?;
        }
        Ok(())
    }

    /// Draws the next crash.
    fn arm(&mut self) {
        self.armed_at = self.now;
        let Some(crash) = self.crashes.next() else {
            return;
        };
        match crash.when {
            When::After(delay) => self.crash_at = Some((self.now + delay, crash)),
            When::During(..) => {
                self.driver.trap = Some(crash);
                // Without such an action, the crash happens at this time.
                self.crash_at = Some((self.now + CRASH_TIMEOUT, crash));
            }
        }
    }

    fn crash_if_due(&mut self) -> Result<(), Violation> {
        let due = |set: Option<(u64, Crash)>| {
            set.filter(|(at, _)| *at <= self.now)
                .map(|(_, crash)| crash)
        };
        let trapped = self.driver.trap.is_some() || self.driver.sprung.is_some();
        let was_trap = matches!(
            self.crash_at,
            Some((
                _,
                Crash {
                    when: When::During(..),
                    ..
                }
            ))
        );
        let crash = due(self.driver.sprung).or_else(|| due(self.crash_at));
        if let Some(crash) = crash {
            self.crash_at = None;
            self.driver.trap = None;
            self.driver.sprung = None;
            let Crash {
                status,
                workers_survive,
                fuse,
                ..
            } = crash;
            if let (Some(_), Some(north)) = (fuse, &mut self.node.north) {
                north.fuse = fuse;
            } else if self.node.alive() {
                self.node
                    .crash(status, workers_survive, &mut self.checker, self.now)?;
            }
            self.arm();
        } else if was_trap && !trapped {
            self.crash_at = None; // the crash came at once
            self.arm();
        }
        Ok(())
    }

    /// The invariants of the end.
    fn last_look(&self) -> Result<(), Violation> {
        let poisoned = self.fault == Fault::Poison && self.checker.lost.is_empty();
        if poisoned {
            return Err(Violation::new("the one with the poison was not given up"));
        }
        match &self.node.north {
            Some(north) => self.checker.all_follows_from(&north.determinants),
            None => Ok(()),
        }
    }

    fn outcome(&self) -> Outcome {
        let counters = self.node.south.counters();
        Outcome {
            duration: self.now,
            steps: self.steps,
            deaths: self.driver.deaths,
            recoveries: self.driver.recoveries,
            replayed_bytes: self.driver.replayed_bytes,
            lost: self.checker.lost.len(),
            mirror_full: counters.mirror_full,
            acks_made: counters.acks_made,
            acks_clamped: counters.acks_clamped,
            mirror_skipped: counters.mirror_skipped,
            self_acks: counters.self_acks,
            logger_deaths: self.logger.remote.as_ref().map_or(0, Remote::deaths),
            north: self
                .node
                .north
                .as_ref()
                .map(|north| north.counters)
                .unwrap_or_default(),
            complete: self
                .clients
                .iter()
                .filter(|c| c.progress == Progress::Complete)
                .count(),
        }
    }
}
