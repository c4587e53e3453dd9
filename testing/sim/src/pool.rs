//! The world of the mode `objects`: a balancer, members, stores, clients, and the networks between these.
//!
//! Under test is the real code of `objects`, `pool` and `lease`: the model of the members' programs, revivals, records,
//! claims, leases, the monitor, and the table of owners. Hosts lose power, servers crash, user space stops while the
//! programs go on, and each side of the network is cut apart. With a store or two ([`PoolScenario::with_store`]) some
//! clients have no timestamps, and stores die, forget records, answer late, or are cut from a member.
//!
//! Invariants:
//!
//! - The byte at a sequence number never changes. Each response is whole, and of one version.
//! - The request of a protected response is acknowledged in whole only when the client has the response, or when the
//!   store has confirmed the record. Without a list of records in the store, only the response counts.
//! - A byte of a protected response to a client without timestamps leaves only when the store has confirmed the record.
//! - A reset has a reason that the faults explain.
//! - PAWS refuses no segment but a segment that another one has overtaken.
//! - Each echo that a server gets is a timestamp of that server.
//! - After the last fault no client waits for long without progress. Exceptions: a host without power has served the
//!   client without protection; or the request is acknowledged, and a store has failed.
//! - At the end no member keeps anything of a connection that is over.

mod balancer;
mod client;
mod member;
mod network;
mod scenario;
mod segments;
mod server;
mod site;
mod steps;
mod store;
mod witness;

use std::net::SocketAddr;

use rand::{Rng, SeedableRng, rngs::SmallRng};
use wire::{FlowKey, SeqNumber};

use self::scenario::StorePlan;
pub use self::scenario::{PoolFlaw, PoolScenario};
use self::{
    balancer::Balancer,
    client::{Downloader, Stage},
    member::{Member, POOL_KEY},
    network::{Clock, Receiver, Route},
    store::StoreSide,
    witness::{Broken, Happened},
};
use crate::{
    SECOND,
    failure::{self, BrokenRun, Playable, RunLog, Seeded},
};

const SERVICE_PORT: u16 = 80;
/// Longest time without progress of a client that waits, after the last fault. Pauses of a client double while nothing
/// answers: these are as long as the longest fault.
const SILENCE_MAX: u64 = 20 * SECOND;
/// After the last connection is over: longer than servers keep sockets without a client.
const SETTLING_TIME: u64 = 200 * SECOND;
/// Packets are lost for so long after the last fault.
const LOSSY_REST: u64 = 4 * SECOND;
const STEPS_MAX: u64 = 2_000_000;

/// A run that went well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolOutcome {
    /// Connections that went on at another server.
    pub revived: u32,
    /// Connections that were reset, each with a reason.
    pub reset: u32,
    /// Responses that clients have whole.
    pub responses: usize,
    /// Clients with a part of a version that has the same few bits as another version.
    pub collisions: u32,
    /// Segments that went to another member.
    pub forwarded: u32,
}

/// A broken invariant.
pub type PoolFailure = BrokenRun<PoolScenario>;

impl Seeded for PoolScenario {
    fn seed(&self) -> u64 {
        Self::seed(self)
    }
}

/// Progress of a client: how far, and since when no further.
type Standing = ((Stage, usize, SeqNumber, usize), u64);

/// All that is on its way, and the stores.
struct Ways {
    network: Route<(Receiver, Vec<u8>)>,
    claims: Route<(usize, protocol::pool::Claim)>,
    stores: StoreSide,
}

impl Ways {
    fn due(&self) -> u64 {
        let packets = self.network.due().min(self.claims.due());
        packets.min(self.stores.due())
    }
}

struct Pool {
    scenario: PoolScenario,
    now: u64,
    rng: SmallRng,
    service: SocketAddr,
    balancer: Balancer,
    members: Vec<Member>,
    clients: Vec<Downloader>,
    standings: Vec<Standing>,
    /// By client: a reset with a reason was sent.
    is_explained: Vec<bool>,
    ways: Ways,
    happened: Happened,
    /// No fault after this time.
    calm_from: u64,
    outcome: PoolOutcome,
    log: RunLog,
}

/// Plays a run.
///
/// # Errors
/// An invariant is broken.
pub fn play_pool(scenario: &PoolScenario) -> Result<PoolOutcome, PoolFailure> {
    failure::play::<Pool>(scenario)
}

fn client_key(number: usize, service: SocketAddr) -> FlowKey {
    let port = 40_000 + u16::try_from(number).expect("few");
    let client = match service {
        SocketAddr::V4(_) => ([10, 0, 0, 1], port).into(),
        SocketAddr::V6(_) => SocketAddr::new("fd00::1".parse().expect("an address"), port),
    };
    FlowKey::new(client, service)
}

fn service_of(scenario: &PoolScenario) -> SocketAddr {
    match scenario.is_v6 {
        true => SocketAddr::new("fd00::10".parse().expect("an address"), SERVICE_PORT),
        false => ([10, 0, 0, 10], SERVICE_PORT).into(),
    }
}

impl Playable for Pool {
    type Scenario = PoolScenario;
    type Outcome = PoolOutcome;

    fn new(scenario: &PoolScenario, log: RunLog) -> Self {
        Self::new(scenario, log)
    }

    fn play(&mut self) -> Result<PoolOutcome, String> {
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

impl Pool {
    fn new(scenario: &PoolScenario, log: RunLog) -> Self {
        let mut rng = SmallRng::seed_from_u64(scenario.seed ^ 0x0070_6f6f_6c00);
        let service = service_of(scenario);
        let terms = balancer::terms(scenario.has_short_leases, scenario.drift_ppm);
        let clock = Clock::drawn(&mut rng, scenario.drift_ppm, 0);
        let key = protocol::pool::PoolKey(POOL_KEY);
        let members = (0..scenario.members)
            .map(|number| Member::new(number, scenario, service, &mut rng))
            .collect();
        let plans = scenario.clients.iter().enumerate();
        let clients: Vec<Downloader> = plans
            .map(|(number, plan)| {
                let key = client_key(plan.after.unwrap_or(number), service);
                let (isn, manners) = (rng.random(), plan.manners);
                let mut client = Downloader::new(key, isn, &plan.fetches, manners, plan.begins);
                client.turns_mut().acks = scenario.store.as_ref().and_then(StorePlan::acks_count);
                client.reader_mut().is_unprotected = client.is_without_state();
                client
            })
            .collect();
        let ends = scenario.faults.iter().map(|(at, fault)| at + fault.lasts());
        let begins = scenario.clients.iter().map(|plan| plan.begins);
        let joins = scenario.joins_at.iter().copied();
        let last = ends.chain(begins).chain(joins).max().unwrap_or(0);
        let calm_from = last + LOSSY_REST;
        Self {
            scenario: scenario.clone(),
            now: 0,
            service,
            balancer: Balancer::new(clock, terms, service, key),
            members,
            standings: clients.iter().map(|it| (it.progress(), 0)).collect(),
            is_explained: clients.iter().map(|_| false).collect(),
            clients,
            ways: Ways {
                network: Route::new(),
                claims: Route::new(),
                stores: StoreSide::new(scenario.store.as_ref()),
            },
            happened: Happened::default(),
            calm_from,
            outcome: PoolOutcome::default(),
            log,
            rng,
        }
    }

    /// Runs until all connections are over, and nothing is left of these.
    fn run(&mut self) -> Result<(), Broken> {
        let mut over_at = None;
        for _ in 0..STEPS_MAX {
            let due = self.due();
            self.now = due.max(self.now + 1);
            if self.now > self.calm_from {
                self.scenario.quality.lost = 0;
            }
            self.step()?;
            self.check()?;
            let all_over =
                self.clients.iter().all(Downloader::is_over) && self.now > self.calm_from;
            if all_over {
                let since = *over_at.get_or_insert(self.now);
                let remains = self.members.iter().filter(|member| member.is_up);
                let remains = remains.filter_map(|it| Some((it.number, it.remains()?)));
                let Some((member, rest)) = { remains }.next() else {
                    return Ok(());
                };
                if self.now > since + SETTLING_TIME {
                    let text = format!("member {member} keeps {rest}");
                    return Err(Broken::new(text));
                }
            }
        }
        Err(Broken::new("the run has no end"))
    }

    /// Something happens.
    fn note(&mut self, text: impl FnOnce() -> String) {
        self.log.add(self.now, text);
    }

    /// The host of a connection without protection lost power while the client waited: nobody knows of the client, as
    /// without a pool. Or the store, which alone knows of the client, has failed.
    fn may_be_silent(&self, number: usize) -> bool {
        let client = &self.clients[number];
        let is_bare = client.turns().is_bare(client.request_start());
        let is_unknown = self.happened.store_failed && client.is_request_acked();
        let is_unprotected = client.reader().is_unprotected || is_bare;
        let is_moved = self.happened.moved && client.is_without_state();
        (self.happened.lost_power && is_unprotected) || is_unknown || is_moved
    }

    /// Resets have reasons, and no client waits for long.
    fn check(&mut self) -> Result<(), Broken> {
        let mut silent = Vec::new();
        for (number, client) in self.clients.iter().enumerate() {
            let (progress, since) = self.standings[number];
            if client.progress() != progress || !client.waits() || self.now < self.calm_from {
                let is_new_reset = client.stage == Stage::Reset && progress.0 != Stage::Reset;
                self.standings[number] = (client.progress(), self.now);
                if is_new_reset {
                    if !self.is_explained[number] {
                        let text = format!("client {number} is reset without a reason");
                        return Err(Broken::new(text));
                    }
                    self.outcome.reset += 1;
                }
            } else if self.now > since + SILENCE_MAX {
                if self.may_be_silent(number) {
                    silent.push(number);
                    continue;
                }
                let text = format!("client {number} waits in silence: {progress:?}");
                return Err(Broken::new(text));
            }
        }
        for number in silent {
            self.clients[number].stage = Stage::Closed;
        }
        Ok(())
    }
}
