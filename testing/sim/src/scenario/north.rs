//! Schedules with a server that has state, and is rebuilt from determinants.

use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::SmallRng};
use recovery::ReplayMode;

use super::{Crash, Fault, Scenario, Script, When};
use crate::MS;

/// A server with state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NorthSetup {
    /// The interval at which the logger drops input that the determinants record, ns.
    pub(crate) release_every: Option<u64>,
    /// Longest time until a determinant is with a logger on another machine, ns.
    pub(crate) commit: Option<u64>,
    /// With a logger on another machine: if no more segments come in a tenth of a second, each is mirrored.
    pub(crate) spare_copies: Option<u32>,
    /// How long a server waits for clients that must first report their position.
    pub(crate) patience: Duration,
    /// The kernel has kept the SYNs of connections for accept.
    pub(crate) knows_syns: bool,
    /// Most determinants that an incarnation replays at a time.
    pub(crate) replay_pace: usize,
    pub(crate) flaw: Flaw,
}

/// The longest time of a probe and the answer, even with losses: smoltcp answers a probe a second.
const HEARD_BY: Duration = Duration::from_secs(8);

impl NorthSetup {
    pub(crate) fn waits_for_logger(&self) -> bool {
        self.commit.is_some() && self.flaw != Flaw::SaysTooSoon
    }

    /// Clients may be lost that would have spoken in time.
    pub(crate) fn is_impatient(&self) -> bool {
        self.patience < HEARD_BY
    }
}

/// The flaw of the north side in a run that must fail. With a flaw, a replay does not compare output, so that the
/// invariants must find the flaw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// No flaw.
    None,
    /// This read, counted from 1, has no determinant.
    ForgetsRead(u32),
    /// The determinant exists, and the next incarnation does not replay the read.
    SkipsRead(u32),
    /// Determinants are made after the output that depends on them.
    DeterminantsLate,
    /// Output does not wait until the logger has the determinants.
    SaysTooSoon,
    /// The read cursors run ahead of the determinants in the logger.
    TellsTooSoon,
    /// Sockets are made with a number that is 1 too high.
    GraftsAhead,
    /// Output that clients lack is not sent again.
    SwallowsWords,
}

/// Numbers of the actions at which a server with state dies: among others, when sockets are made and handed over.
const CRASH_ACTIONS: [usize; 12] = [0, 1, 4, 5, 6, 8, 10, 11, 13, 21, 21, 22];

impl Scenario {
    /// Scenarios with a server that has state: the responses depend on the input of all clients, and on the order of
    /// the reads. No other fault. The logger is on the server's host, on another machine, or there and mortal; the
    /// server's host lives on, with the determinants in memory.
    #[must_use]
    pub fn north(self) -> Self {
        let plain = Self::with_fault(self.seed, Fault::None);
        match self.seed % 4 {
            0 => plain.linked(),
            1 => plain.durable(),
            _ => plain,
        }
        .with_state()
    }

    /// The same with repeated power-offs of the host: the logger's determinants are left, and no client has output
    /// that follows from other determinants.
    #[must_use]
    pub fn north_restarted(self) -> Self {
        Self::with_fault(self.seed, Fault::None)
            .restarted()
            .with_state()
    }

    fn with_state(self) -> Self {
        let mut scenario = self;
        let mut rng = SmallRng::seed_from_u64(scenario.seed ^ 0x006e_6f72_7468);
        let copies =
            SmallRng::seed_from_u64(scenario.seed ^ 0x636f_7069_6573).random_range(0..4_u32);
        let release = [None, Some(10 * MS), Some(300 * MS)];
        scenario.service.mode = ReplayMode::Connection;
        scenario.service.north = Some(NorthSetup {
            release_every: release[rng.random_range(0..3)],
            commit: scenario
                .link
                .map(|_| [MS / 20, MS, 20 * MS][rng.random_range(0..3)]),
            spare_copies: scenario
                .link
                .map(|_| [0, 0, 3, u32::MAX][crate::index(copies)]),
            patience: [Duration::from_secs(1), HEARD_BY][rng.random_range(0..2)],
            knows_syns: rng.random_bool(0.8),
            replay_pace: [1, 5, 50][rng.random_range(0..3)],
            flaw: Flaw::None,
        });
        for client in &mut scenario.clients {
            client.script = Script::with_tickets(&mut rng);
        }
        scenario.crashes = crashes(&mut rng);
        scenario
    }

    /// The same with something wrong, if there is a server with state.
    #[must_use]
    pub fn flawed(mut self, flaw: Flaw) -> Self {
        if let Some(north) = &mut self.service.north {
            north.flaw = flaw;
        }
        self
    }
}

fn crashes(rng: &mut SmallRng) -> Vec<Crash> {
    let count = match rng.random_range(0..10) {
        0 => 0,
        1 | 2 => rng.random_range(4..10),
        _ => rng.random_range(1..5),
    };
    (0..count).map(|i| crash(rng, i == 0)).collect()
}

fn crash(rng: &mut SmallRng, is_first: bool) -> Crash {
    let when = if !is_first && rng.random_bool(0.6) {
        let moment = CRASH_ACTIONS[rng.random_range(0..CRASH_ACTIONS.len())];
        When::During(moment, rng.random_range(0..2 * MS))
    } else {
        let longest = [2, 30, 300, 1500][rng.random_range(0..4)] * MS;
        When::After(rng.random_range(0..longest))
    };
    let longest = [4, 30, 200][rng.random_range(0..3)];
    Crash {
        when,
        workers_survive: false,
        status: [9, 11, 256, 6][rng.random_range(0..4)],
        fuse: rng.random_bool(0.5).then(|| rng.random_range(0..longest)),
    }
}
