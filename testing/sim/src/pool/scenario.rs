//! A run, drawn from a seed: members, clients, networks, and faults.

use objects::store::StoreAcks;
use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::{
    balancer::owner_among,
    client_key, service_of,
    site::{Object, Site},
};
use crate::{MS, SECOND};

/// A balancer without a table of a former life waits for the longest lease.
const FIRST_TABLE: u64 = 2100 * MS;

/// The end of a fault is not waited for: longer than any run.
pub(super) const FOR_GOOD: u64 = 36_000 * SECOND;

/// Makes the stores of a run independent of the rest of the run.
const STORE_SEED: u64 = 0x7374_6f72_6500;
const SMALL_OBJECTS_SEED: u64 = 0x736d_616c_6c00;

/// A mistake in the pool. The witness must notice each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolFlaw {
    /// The number of acknowledged bytes does not tell odd turns from even turns.
    ReleaseWithoutParity,
    /// An idle client with bytes behind a hole is revived.
    IdleInSpiteOfHole,
    /// The first byte of a response's part is not in the tag.
    TagWithoutFirstByte,
    /// Each claim is won.
    ClaimsIgnored,
    /// A member accepts connections before the others know this member.
    GreetingNotAwaited,
    /// A member answers claims while its lease is over.
    AnswersWithoutLease,
    /// The programs do not enforce the lease.
    LeaseNotEnforced,
    /// The pool never counts as changed.
    NoQuiescence,
    /// The gate opens when the server is started.
    GateBeforeListening,
    /// The gate is not shut at the death of the server.
    NoGate,
    /// Versions are not compared.
    VersionNotCompared,
    /// The client hears at once that its request has arrived.
    GuardReleasedEarly,
    /// Bytes before the client's position leave.
    FloorIgnored,
    /// An expelled member keeps its connections.
    ConnectionsRetained,
    /// A revived connection goes on with the next index.
    RevivedAtNextIndex,
    /// A client whose record is missing counts as idle.
    MissingRecordTakenForIdle,
    /// A request is acknowledged before the store has confirmed the record.
    ReleasedBeforeConfirmation,
    /// Bytes for a client without timestamps leave before the store has confirmed the record.
    DeferredBytePassed,
    /// A record of an earlier connection is used.
    NumbersNotCompared,
    /// Of several records of a connection the oldest is used.
    OlderGenerationPreferred,
    /// The server hears that the client has chunks which the programs have not read.
    ChunksSkipped,
    /// The list of members in the store is ignored.
    ListedMembersIgnored,
}

impl StorePlan {
    /// Stores that a record needs. `None`: no record releases a request.
    pub(super) fn acks_count(&self) -> Option<usize> {
        let has_index = self.are_indexed.iter().all(|is_indexed| *is_indexed);
        has_index.then_some(match self.acks {
            StoreAcks::First => 1,
            StoreAcks::Both => self.are_indexed.len(),
        })
    }
}

/// A fault of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A host loses power for a time.
    PowerLost { member: usize, lasts: u64 },
    /// The server of a member crashes.
    ServerCrash { member: usize },
    /// User space of a member stops; the programs go on. With the thread that keeps the lease, or without.
    Stopped {
        member: usize,
        lasts: u64,
        with_lease: bool,
    },
    /// No packet of clients reaches or leaves a member.
    ClientSideCut { member: usize, lasts: u64 },
    /// No message between a member and the balancer or another member.
    ControlSideCut { member: usize, lasts: u64 },
    /// The balancer's process dies, and is started again; its programs go on.
    BalancerKilled { lasts: u64 },
    /// The balancer's host loses power.
    BalancerPowerLost { lasts: u64 },
    /// A member gets no new connections.
    Drained { member: usize },
    /// An object changes at a member.
    Changed { member: usize, object: usize },
    /// A store dies, and comes back: without its records, or with these. A host without power ends no connection.
    StoreDied {
        store: usize,
        lasts: u64,
        forgets: bool,
        is_silent: bool,
    },
    /// No message between a member and a store.
    StoreCut {
        member: usize,
        store: usize,
        lasts: u64,
    },
    /// A store answers late.
    StoreSlow { store: usize, lasts: u64, by: u64 },
    /// A store drops all records, or the newest.
    Evicted { store: usize, all: bool },
}

/// The stores of a pool.
#[derive(Debug, Clone)]
pub(super) struct StorePlan {
    /// Whether each store lists the records of a member.
    pub(super) are_indexed: Vec<bool>,
    pub(super) acks: StoreAcks,
    /// Time from a request to its record, ns.
    pub(super) delay: u64,
}

/// A request of a client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fetch {
    pub(super) object: usize,
    /// The first byte that the client wants, if not all.
    pub(super) first: Option<u64>,
    /// Time between the response before and this request.
    pub(super) pause: u64,
}

/// Habits of a client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manners {
    /// The client does not wait for the acknowledgement of the request before.
    pub(super) asks_at_once: bool,
    /// Time from the last response to the close.
    pub(super) lingers: u64,
    pub(super) has_timestamps: bool,
}

/// A client.
#[derive(Debug, Clone)]
pub(super) struct ClientPlan {
    pub(super) begins: u64,
    pub(super) fetches: Vec<Fetch>,
    pub(super) manners: Manners,
    /// The client before has the same address and port, and is over.
    pub(super) after: Option<usize>,
}

/// Quality of the way between clients and pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quality {
    /// Shortest delay, ns.
    pub(super) delay: u64,
    /// Largest additional delay, ns.
    pub(super) jitter: u64,
    /// Packets lost, of a thousand.
    pub(super) lost: u32,
    /// Packets doubled, of a thousand.
    pub(super) doubled: u32,
}

/// A run.
#[derive(Debug, Clone)]
pub struct PoolScenario {
    pub(super) seed: u64,
    pub(super) members: usize,
    /// Members that join later, by number.
    pub(super) joins_at: Vec<u64>,
    pub(super) is_v6: bool,
    pub(super) quality: Quality,
    /// Longest pause of a member's user space.
    pub(super) pace: u64,
    /// Largest difference of a clock from the true rate, millionths.
    pub(super) drift_ppm: u32,
    pub(super) has_short_leases: bool,
    pub(super) aligns: bool,
    pub(super) site: Site,
    pub(super) clients: Vec<ClientPlan>,
    pub(super) faults: Vec<(u64, Fault)>,
    pub(super) store: Option<StorePlan>,
    pub(super) flaw: Option<PoolFlaw>,
}

impl PoolScenario {
    /// The run of a seed.
    #[must_use]
    pub fn drawn_from(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let members = rng.random_range(2..=4);
        let site = site(&mut rng);
        let clients = (0..rng.random_range(1..=3)).map(|_| client(&mut rng, &site));
        let clients: Vec<ClientPlan> = clients.collect();
        let joins = (0..members).map(|at| match at > 1 && rng.random_bool(0.4) {
            true => rng.random_range(FIRST_TABLE..FIRST_TABLE + SECOND),
            false => 0,
        });
        let joins_at = joins.collect();
        let begins: Vec<u64> = clients.iter().map(|plan| plan.begins).collect();
        let faults = (0..rng.random_range(0..7)).map(|_| fault(&mut rng, members, &site, &begins));
        let mut faults: Vec<_> = faults.collect();
        faults.sort_by_key(|(at, _)| *at);
        let delay = match rng.random_bool(0.4) {
            true => rng.random_range(MS / 5..2 * MS),
            false => rng.random_range(2 * MS..30 * MS),
        };
        let drawn = Self {
            seed,
            members,
            joins_at,
            is_v6: rng.random_bool(0.3),
            quality: Quality {
                delay,
                jitter: rng.random_range(0..2 * MS),
                lost: [0, 10, 50, 150][rng.random_range(0..4)],
                doubled: [0, 10][rng.random_range(0..2)],
            },
            pace: [MS / 10, MS, 10 * MS][rng.random_range(0..3)],
            drift_ppm: 1000,
            has_short_leases: rng.random_bool(0.2),
            aligns: rng.random_bool(0.1),
            site,
            clients,
            faults,
            store: None,
            flaw: None,
        };
        match rng.random_range(0..10) {
            0 => drawn.with_young_member(&mut rng),
            1 => drawn.with_lapsed_leases(&mut rng),
            2 => drawn.with_eager_clients(&mut rng),
            3 => drawn.with_ranges(&mut rng),
            _ => drawn,
        }
    }

    /// A member joins, and drains at once. Another member has not heard of the new member.
    fn with_young_member(mut self, rng: &mut SmallRng) -> Self {
        let (young, other) = (self.members - 1, rng.random_range(0..self.members - 1));
        let joins = FIRST_TABLE + 300 * MS;
        self.joins_at[young] = joins;
        self.has_short_leases = false;
        self.quality.delay = rng.random_range(3 * MS..8 * MS);
        self.ask_small_objects(rng, 12);
        for plan in &mut self.clients {
            plan.begins = joins + rng.random_range(50 * MS..140 * MS);
        }
        let lasts = rng.random_range(120 * MS..240 * MS);
        let cut = Fault::ControlSideCut {
            member: other,
            lasts,
        };
        let drained = Fault::Drained { member: young };
        self.faults = vec![
            (joins + rng.random_range(0..40 * MS), cut),
            (joins + rng.random_range(90 * MS..220 * MS), drained),
        ];
        self
    }

    /// Clients ask for small objects without a pause, and a server dies meanwhile.
    #[must_use]
    pub fn with_small_objects(self) -> Self {
        let mut rng = SmallRng::seed_from_u64(self.seed ^ SMALL_OBJECTS_SEED);
        self.with_eager_clients(&mut rng)
    }

    fn with_eager_clients(mut self, rng: &mut SmallRng) -> Self {
        self.quality.delay = rng.random_range(MS..4 * MS);
        self.quality.lost = 200;
        self.ask_small_objects(rng, 4);
        let begins = self.clients[0].begins;
        let round_trip = 2 * self.quality.delay + self.quality.jitter;
        let member = rng.random_range(0..self.members);
        let after = rng.random_range(2 * round_trip..250 * MS);
        self.faults = vec![(begins + after, death(rng, member))];
        self
    }

    fn ask_small_objects(&mut self, rng: &mut SmallRng, count: usize) {
        for object in &mut self.site.objects {
            object.len = [1, 1349, 2500, 3800][rng.random_range(0..4)];
            object.is_chunked = false;
        }
        for plan in &mut self.clients {
            plan.manners.asks_at_once = true;
            let fetch = |_| Fetch {
                object: rng.random_range(0..self.site.objects.len()),
                first: None,
                pause: 0,
            };
            plan.fetches = (0..count).map(fetch).collect();
        }
    }

    /// Clients ask for parts, and servers begin parts at round numbers, or not. A server dies meanwhile.
    fn with_ranges(mut self, rng: &mut SmallRng) -> Self {
        self.aligns = true;
        self.quality.delay = rng.random_range(5 * MS..20 * MS);
        self.site.objects[0] = Object {
            len: 250_000,
            is_chunked: false,
        };
        for plan in &mut self.clients {
            plan.fetches.truncate(1);
            plan.fetches[0].object = 0;
            plan.fetches[0].first = Some(rng.random_range(1..50_000));
        }
        let begins = self.clients[0].begins;
        let member = rng.random_range(0..self.members);
        let after = rng.random_range(50 * MS..400 * MS);
        self.faults = vec![(begins + after, death(rng, member))];
        self
    }

    /// A new member gets connections of others, and asks about these while all leases end: no balancer runs.
    fn with_lapsed_leases(mut self, rng: &mut SmallRng) -> Self {
        let young = self.members - 1;
        let joins = FIRST_TABLE + 300 * MS;
        self.joins_at[young] = joins;
        self.has_short_leases = false;
        self.quality.delay = rng.random_range(10 * MS..30 * MS);
        self.site.objects[0].len = 250_000;
        for plan in &mut self.clients {
            plan.begins = joins - rng.random_range(20 * MS..200 * MS);
            plan.fetches[0].object = 0;
            plan.fetches[0].first = None;
        }
        let stops = joins + rng.random_range(60 * MS..120 * MS);
        let kills = stops + rng.random_range(0..200 * MS);
        let asks = kills + rng.random_range(150 * MS..270 * MS);
        let stopped = Fault::Stopped {
            member: young,
            lasts: asks - stops,
            with_lease: false,
        };
        let lasts = rng.random_range(300 * MS..800 * MS);
        self.faults = vec![(stops, stopped), (kills, Fault::BalancerKilled { lasts })];
        self
    }

    /// With a store, or two, and faults of these.
    #[must_use]
    pub fn with_store(mut self) -> Self {
        let mut rng = SmallRng::seed_from_u64(self.seed ^ STORE_SEED);
        let rng = &mut rng;
        let is_indexed = rng.random_bool(0.85);
        self.store = Some(StorePlan {
            are_indexed: vec![is_indexed; if rng.random_bool(0.3) { 2 } else { 1 }],
            acks: match rng.random_bool(0.5) {
                true => StoreAcks::First,
                false => StoreAcks::Both,
            },
            delay: [MS, 5 * MS, 5 * MS, 20 * MS][rng.random_range(0..4)],
        });
        for plan in &mut self.clients {
            plan.manners.has_timestamps = rng.random_bool(0.6);
        }
        let begins: Vec<u64> = self.clients.iter().map(|plan| plan.begins).collect();
        let stores = self.store.as_ref().map_or(0, |plan| plan.are_indexed.len());
        for _ in 0..[0, 0, 1, 1, 2, 3][rng.random_range(0..6)] {
            let fault = store_fault(rng, self.members, stores);
            self.faults.push((time_of_fault(rng, &begins), fault));
        }
        let drawn = match rng.random_range(0..12) {
            0 => self.with_older_record(rng),
            1 => self.with_reused_port(rng),
            2 => self.with_late_member(rng),
            3 | 4 => self.in_chunks(),
            _ => self,
        };
        drawn.sorted()
    }

    /// All responses are in chunks, and records are written early.
    fn in_chunks(mut self) -> Self {
        for object in &mut self.site.objects {
            object.is_chunked = true;
        }
        if let Some(plan) = &mut self.store {
            plan.delay = MS;
        }
        self
    }

    fn sorted(mut self) -> Self {
        self.faults.sort_by_key(|(at, _)| *at);
        self
    }

    /// Indexed stores, a quiet network, and a client without timestamps that asks for an object several times.
    fn with_quiet_client(&mut self, stores: usize, pauses: &[u64]) {
        self.store = Some(StorePlan {
            are_indexed: vec![true; stores],
            acks: StoreAcks::First,
            delay: MS,
        });
        (self.has_short_leases, self.aligns, self.quality.lost) = (false, false, 0);
        self.joins_at.fill(0);
        self.site.objects[0] = Object {
            len: 150_000,
            is_chunked: false,
        };
        let fetches = pauses.iter().map(|pause| Fetch {
            object: 0,
            first: None,
            pause: *pause,
        });
        self.clients.truncate(1);
        self.clients[0].fetches = fetches.collect();
    }

    /// A store misses the newest record, and has an older record. Then the client's member dies.
    fn with_older_record(mut self, rng: &mut SmallRng) -> Self {
        self.with_quiet_client(2, &[0, 600 * MS, 6 * SECOND]);
        self.quality.delay = rng.random_range(2 * MS..8 * MS);
        self.clients[0].manners.has_timestamps = false;
        let begins = self.clients[0].begins;
        let owner = owner_among(0..self.members, client_key(0, service_of(&self)));
        let cut = Fault::StoreCut {
            member: owner,
            store: rng.random_range(0..2),
            lasts: rng.random_range(SECOND..2 * SECOND),
        };
        let lasts = 60 * SECOND;
        let death = Fault::PowerLost {
            member: owner,
            lasts,
        };
        let cut_at = begins + rng.random_range(300 * MS..600 * MS);
        let dies_at = begins + rng.random_range(5 * SECOND..6 * SECOND);
        self.faults = vec![(cut_at, cut), (dies_at, death)];
        self
    }

    /// All members die, and then another member is booted for the first time.
    fn with_late_member(mut self, rng: &mut SmallRng) -> Self {
        self.with_quiet_client(1, &[0, 0]);
        self.quality.delay = rng.random_range(40 * MS..80 * MS);
        let late = self.members - 1;
        let round_trip = 2 * self.quality.delay;
        let dies = self.clients[0].begins + rng.random_range(4 * round_trip..8 * round_trip);
        self.joins_at[late] = dies + rng.random_range(20 * MS..SECOND);
        let lasts = FOR_GOOD;
        let death = |member| (dies, Fault::PowerLost { member, lasts });
        self.faults = (0..late).map(death).collect();
        self
    }

    /// A client is reset, and nobody deletes its record. A later connection has the same addresses and ports, and loses
    /// its record.
    fn with_reused_port(mut self, rng: &mut SmallRng) -> Self {
        self.members = 4;
        self.joins_at.resize(4, 0);
        self.with_quiet_client(1, &[0, 0]);
        self.quality.delay = rng.random_range(100 * MS..150 * MS);
        self.site.has_dates = true;
        let mut first = self.clients[0].clone();
        (first.manners.has_timestamps, first.manners.asks_at_once) = (true, true);
        let second = ClientPlan {
            begins: first.begins + 40 * SECOND,
            fetches: vec![first.fetches[0]],
            after: Some(0),
            ..first.clone()
        };
        let key = client_key(0, service_of(&self));
        let owner = owner_among(0..4, key);
        let heir = owner_among((0..4).filter(|it| *it != owner), key);
        let dies = |member| Fault::PowerLost {
            member,
            lasts: 60 * SECOND,
        };
        let changed = |member| Fault::Changed { member, object: 0 };
        let round_trip = 2 * self.quality.delay;
        let first_dies = first.begins + rng.random_range(15 * round_trip..21 * round_trip);
        // The client has heard of its record, and repeats its request.
        let late = rng.random_range(26 * round_trip..34 * round_trip) / 10;
        let second_dies = second.begins + late;
        self.faults = (0..4).map(|it| (first_dies - MS, changed(it))).collect();
        let all = false;
        self.faults.extend([
            (first_dies, dies(owner)),
            (second_dies - MS, Fault::Evicted { store: 0, all }),
            (second_dies, dies(heir)),
        ]);
        self.clients = vec![first, second];
        self
    }

    /// The seed.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// With a mistake.
    #[must_use]
    pub fn flawed(self, flaw: PoolFlaw) -> Self {
        Self {
            flaw: Some(flaw),
            ..self
        }
    }

    pub(super) fn has(&self, flaw: PoolFlaw) -> bool {
        self.flaw == Some(flaw)
    }
}

fn site(rng: &mut SmallRng) -> Site {
    let objects = (0..4).map(|_| Object {
        len: match rng.random_range(0..3) {
            0 => rng.random_range(1..3),
            1 => rng.random_range(1..5_000),
            _ => rng.random_range(1..250_000),
        },
        is_chunked: rng.random_bool(0.08),
    });
    Site {
        objects: objects.collect(),
        has_dates: rng.random_bool(0.7),
        has_other_heads: rng.random_bool(0.3),
    }
}

fn client(rng: &mut SmallRng, site: &Site) -> ClientPlan {
    let eager = rng.random_bool(0.5);
    let fetches = (0..rng.random_range(1..5)).map(|_| {
        let object = rng.random_range(0..site.objects.len());
        let has_range = rng.random_bool(0.15) && site.objects[object].len > 1;
        Fetch {
            object,
            first: has_range.then(|| rng.random_range(1..site.objects[object].len)),
            pause: match eager || rng.random_bool(0.5) {
                true => 0,
                false => rng.random_range(0..2 * SECOND),
            },
        }
    });
    ClientPlan {
        fetches: fetches.collect(),
        begins: rng.random_range(FIRST_TABLE..FIRST_TABLE + SECOND),
        manners: Manners {
            asks_at_once: eager,
            lingers: rng.random_range(0..2 * SECOND),
            has_timestamps: true,
        },
        after: None,
    }
}

/// A death that another server makes good.
fn death(rng: &mut SmallRng, member: usize) -> Fault {
    match rng.random_bool(0.5) {
        true => Fault::ServerCrash { member },
        false => Fault::PowerLost {
            member,
            lasts: 400 * MS,
        },
    }
}

fn fault(rng: &mut SmallRng, members: usize, site: &Site, begins: &[u64]) -> (u64, Fault) {
    let member = rng.random_range(0..members);
    let lasts = match rng.random_bool(0.5) {
        true => rng.random_range(50 * MS..600 * MS),
        false => rng.random_range(200 * MS..3 * SECOND),
    };
    let fault = match rng.random_range(0..16) {
        0..=3 => Fault::PowerLost { member, lasts },
        4..=6 => Fault::ServerCrash { member },
        7 | 8 => Fault::Stopped {
            member,
            lasts,
            with_lease: rng.random_bool(0.6),
        },
        9 => Fault::ClientSideCut { member, lasts },
        10 | 11 => Fault::ControlSideCut { member, lasts },
        12 => Fault::BalancerKilled { lasts },
        13 => Fault::BalancerPowerLost { lasts },
        14 => Fault::Drained { member },
        _ => Fault::Changed {
            member,
            object: rng.random_range(0..site.objects.len()),
        },
    };
    (time_of_fault(rng, begins), fault)
}

fn store_fault(rng: &mut SmallRng, members: usize, stores: usize) -> Fault {
    let store = rng.random_range(0..stores);
    let lasts = match rng.random_bool(0.5) {
        true => rng.random_range(20 * MS..600 * MS),
        false => rng.random_range(200 * MS..6 * SECOND),
    };
    match rng.random_range(0..8) {
        0..=2 => Fault::StoreDied {
            store,
            lasts,
            forgets: rng.random_bool(0.7),
            is_silent: rng.random_bool(0.4),
        },
        3 | 4 => Fault::StoreCut {
            member: rng.random_range(0..members),
            store,
            lasts,
        },
        5 => Fault::StoreSlow {
            store,
            lasts,
            by: rng.random_range(MS..1200 * MS),
        },
        _ => Fault::Evicted {
            store,
            all: rng.random_bool(0.7),
        },
    }
}

/// Near the beginning of a client.
fn time_of_fault(rng: &mut SmallRng, begins: &[u64]) -> u64 {
    let begins = begins[rng.random_range(0..begins.len())];
    let after = match rng.random_bool(0.7) {
        true => rng.random_range(0..800 * MS),
        false => rng.random_range(0..4 * SECOND),
    };
    (begins + after).saturating_sub(300 * MS)
}
