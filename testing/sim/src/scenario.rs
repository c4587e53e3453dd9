//! The content of a run: everything that a seed decides in advance.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use logger::link::AckPolicy;
use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng};
use recovery::ReplayMode;
use south_model::AckStrategy;
use wire::kind;

use crate::{MS, SECOND, conversation::Request, network::Quality};

mod north;
mod script;

pub use north::Flaw;
pub(crate) use north::NorthSetup;
pub(crate) use script::{ClientEnd, Script, ScriptStep};

/// The fault of a run, which may cost a connection. Otherwise no connection may be reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No fault: only the server dies.
    None,
    /// A client's request kills the server at each read.
    Poison,
    /// Each incarnation of the server responds differently to a client.
    Divergence,
    /// A client sends more than the record may hold.
    RecordLimit,
}

/// A client.
#[derive(Debug, Clone)]
pub(crate) struct ClientSetup {
    pub(crate) address: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) mtu: usize,
    pub(crate) receive_buffer: usize,
    pub(crate) send_buffer: usize,
    /// The clock, if the client has timestamps.
    pub(crate) clock: Option<usize>,
    /// Options that the network removes from the client's SYN.
    pub(crate) stripped: Vec<u8>,
    pub(crate) nagle: bool,
    pub(crate) start: u64,
    /// Longest pause between two reads, ns.
    pub(crate) pace: u64,
    pub(crate) script: Script,
    /// The fault of this run may reset the client's connection.
    pub(crate) doomed: bool,
}

/// When the server dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// After the previous death (or the beginning), ns.
    After(u64),
    /// During an action of this kind of the supervisor, and so long after the action, ns.
    During(usize, u64),
}

/// A death of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Crash {
    pub(crate) when: When,
    /// Other processes of the server live on, read, write and close, until killed.
    pub(crate) workers_survive: bool,
    /// The status as from `wait(2)`.
    pub(crate) status: u32,
    /// For a server with state: so many steps of the program later.
    pub(crate) fuse: Option<u32>,
}

/// The service and the supervisor.
#[derive(Debug, Clone)]
pub(crate) struct ServiceSetup {
    pub(crate) mode: ReplayMode,
    pub(crate) verify_head: u32,
    /// The output is hashed: whole (`u32::MAX`), or samples (0).
    pub(crate) digests: Option<u32>,
    /// The hash is compared before a new incarnation gets a request.
    pub(crate) compares_before_requests: bool,
    /// Input that a dead host may have answered waits for the new server.
    pub(crate) doubts: bool,
    /// See [`Scenario::trusting_silence`].
    pub(crate) trusts_silence: bool,
    /// See [`Scenario::half_closing`].
    pub(crate) ends_at_half_close: bool,
    pub(crate) mirror_capacity: usize,
    pub(crate) record_limit: u64,
    pub(crate) splice_window: usize,
    pub(crate) settle: u64,
    pub(crate) quarantine_after: u32,
    pub(crate) max_segment: u32,
    pub(crate) backlog: usize,
    pub(crate) mtu: usize,
    pub(crate) receive_buffer: usize,
    pub(crate) send_buffer: usize,
    pub(crate) nagle: bool,
    /// Longest time from start to listening, ns; of logger and supervisor to react; between two
    /// reads of the server.
    pub(crate) boot: u64,
    pub(crate) logger_lag: u64,
    pub(crate) supervisor_lag: u64,
    pub(crate) pace: u64,
    /// Longest time between the server's read and the response, ns.
    pub(crate) thinks: u64,
    /// Of a thousand: injected packets lost, starts that fail.
    pub(crate) injections_lost: u32,
    pub(crate) starts_failed: u32,
    /// The server has state.
    pub(crate) north: Option<NorthSetup>,
}

/// A logger on another machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinkSetup {
    /// The network between logger and the server's host.
    pub(crate) quality: Quality,
    pub(crate) strategy: AckStrategy,
    pub(crate) policy: AckPolicy,
    pub(crate) durable: Option<DurableSetup>,
    /// The number of power-offs of the server's host.
    pub(crate) restarts: u32,
    /// The power-off comes when a client has asked for more ([`Scenario::with_late_divergence_on_other_host`]).
    pub(crate) waits: bool,
    /// The next instance gets the key of the hashes that the logger has.
    pub(crate) hands_key_on: bool,
}

/// The logger keeps a log, and is killed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DurableSetup {
    /// Longest time of a commit, of the uptime, and of the downtime, ns.
    pub(crate) commit: u64,
    pub(crate) uptime: u64,
    pub(crate) away: u64,
    /// The number of deaths.
    pub(crate) deaths: u32,
}

/// Everything that is decided before a run begins.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub(crate) seed: u64,
    /// The fault besides the server's deaths.
    pub fault: Fault,
    pub(crate) quality: Quality,
    pub(crate) service: ServiceSetup,
    pub(crate) clients: Vec<ClientSetup>,
    pub(crate) crashes: Vec<Crash>,
    /// The logger is on another machine, behind such a network.
    pub(crate) link: Option<LinkSetup>,
}

impl Scenario {
    /// The scenario of this seed.
    #[must_use]
    pub fn drawn_from(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let fault = match rng.random_range(0..10) {
            0 => Fault::Poison,
            1 => Fault::Divergence,
            2 => Fault::RecordLimit,
            _ => Fault::None,
        };
        Self::with_fault(seed, fault)
    }

    /// The seed of the scenario.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// The scenario of this seed with this fault.
    #[must_use]
    pub fn with_fault(seed: u64, fault: Fault) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed.rotate_left(32) ^ 0x5eed);
        let service = service(&mut rng, fault);
        let count = match rng.random_range(0..8) {
            0 => 1,
            1 => rng.random_range(6..=10),
            _ => rng.random_range(2..=4),
        };
        let mut clients: Vec<ClientSetup> =
            (0..count).map(|i| client(&mut rng, i, &service)).collect();
        if let (true, Some(first)) = (fault != Fault::None, clients.first_mut()) {
            first.doomed = true;
            first.script = Script::of_doom(fault, &mut rng);
        }
        Self {
            seed,
            fault,
            quality: quality(&mut rng),
            crashes: crashes(&mut rng, fault),
            service,
            clients,
            link: None,
        }
    }

    /// The same with the logger on another machine. No server is poisoned: suspects are tried in turn, each for as
    /// long as a client of smoltcp may be silent after an answered, unrecorded request, and the other clients do not
    /// wait that long.
    #[must_use]
    pub fn linked(self) -> Self {
        if self.fault == Fault::Poison {
            return Self::with_fault(self.seed, Fault::None).linked();
        }
        let mut rng = SmallRng::seed_from_u64(self.seed ^ 0x6c69_6e6b);
        let strategies = [
            AckStrategy::Eager,
            AckStrategy::Eager,
            AckStrategy::Conditional,
            AckStrategy::Lazy,
        ];
        let policies = [
            AckPolicy::EachBatch,
            AckPolicy::EachFrame,
            AckPolicy::After(Duration::from_millis(2)),
        ];
        let link = LinkSetup {
            quality: quality(&mut rng),
            strategy: strategies[rng.random_range(0..strategies.len())],
            policy: policies[rng.random_range(0..policies.len())],
            durable: None,
            restarts: 0,
            waits: false,
            hands_key_on: true,
        };
        let mut service = self.service;
        // Input that the dead server had read without a record is taken back out of the window; smoltcp's sender then
        // does not retransmit data beyond the window (Linux's does).
        service.receive_buffer = 200_000;
        Self {
            link: Some(link),
            service,
            ..self
        }
    }
}

impl Scenario {
    /// The same with a logger on another machine that keeps a log, and is killed again and again. Heads of responses
    /// that are under way die with the logger, and a divergence of these stays unnoticed: no server diverges.
    #[must_use]
    pub fn durable(self) -> Self {
        let mut linked = match self.fault {
            Fault::Divergence => Self::with_fault(self.seed, Fault::None).linked(),
            _ => self.linked(),
        };
        let mut rng = SmallRng::seed_from_u64(linked.seed ^ 0x6469_736b);
        let durable = DurableSetup {
            commit: [MS / 50, MS, 20 * MS][rng.random_range(0..3)],
            uptime: [3 * MS, 30 * MS, 300 * MS][rng.random_range(0..3)],
            away: [MS, 20 * MS, 200 * MS][rng.random_range(0..3)],
            deaths: rng.random_range(1..30),
        };
        if let Some(link) = &mut linked.link {
            link.durable = Some(durable);
        }
        linked
    }

    /// The same with a logger on another machine, and repeated power-offs of the server's host; the logger may keep a
    /// log, and be killed, too.
    #[must_use]
    pub fn restarted(self) -> Self {
        let durable = self.seed.is_multiple_of(3);
        let mut linked = if durable {
            self.durable()
        } else {
            self.linked()
        };
        let mut rng = SmallRng::seed_from_u64(linked.seed ^ 0x0070_6f77_6572);
        if let Some(link) = &mut linked.link {
            link.restarts = rng.random_range(1..4);
        }
        linked
    }

    /// Scenarios with power-offs of the host, and a server that responds differently in each incarnation: another
    /// incarnation must not continue a response that a client has in part, with any heads of responses under way at
    /// the power-off.
    #[must_use]
    pub fn answered_otherwise(self) -> Self {
        let mut linked = Self::with_fault(self.seed, Fault::Divergence).linked();
        let mut rng = SmallRng::seed_from_u64(linked.seed ^ 0x6c69_7665_7321);
        linked.crashes.clear();
        linked.service.verify_head = [64, 4096][rng.random_range(0..2)];
        linked.service.logger_lag = [MS, 10 * MS][rng.random_range(0..2)];
        for client in &mut linked.clients {
            client.doomed = true;
            client.script = Script::of_divergence(&mut rng);
        }
        if let Some(link) = &mut linked.link {
            link.restarts = rng.random_range(1..4);
        }
        linked
    }

    /// A scenario in which a client sends another request after a response that differs by incarnation, behind the
    /// beginning of the response. The request must not be executed for a client with another response, unless no
    /// comparison is made before.
    #[must_use]
    pub fn with_late_divergence_and_requests(self, compares: bool) -> Self {
        let mut late = self.with_late_divergence(true);
        late.service.compares_before_requests = compares;
        let mut rng = SmallRng::seed_from_u64(late.seed ^ 0x6d6f_7265);
        if let Some(first) = late.clients.first_mut() {
            first.script = Script::of_late_divergence_and_requests(&mut rng);
        }
        late
    }

    /// As [`Self::answered_otherwise`], behind a link that loses a lot, with responses of which only a beginning is
    /// recorded: often neither a client's request nor the head of the response reaches the logger before the
    /// power-off. Without the wait for input in doubt (`waits`), a host mixes responses of two incarnations.
    #[must_use]
    pub fn doubtful(self, waits: bool) -> Self {
        let mut otherwise = self.answered_otherwise();
        otherwise.service.verify_head = 64;
        otherwise.service.logger_lag = 2 * SECOND;
        otherwise.service.doubts = waits;
        if let Some(link) = &mut otherwise.link {
            link.quality.lost = 300;
        }
        otherwise
    }

    /// As [`Self::doubtful`], with clients that lack the beginning of a response more often, and have no selective
    /// acknowledgements. Unless a host `asks` for the bytes behind the gap, the host mixes responses of two
    /// incarnations.
    #[must_use]
    pub fn behind_holes(self, asks: bool) -> Self {
        let mut doubtful = self.doubtful(true).trusting_silence(!asks);
        doubtful.quality.lost = 200;
        for client in &mut doubtful.clients {
            client.stripped.push(kind::SACK_PERMITTED);
        }
        doubtful
    }

    /// The same with a host that trusts silence: a client of a dead host that does not report bytes behind a gap
    /// counts as a client without such bytes.
    #[must_use]
    pub fn trusting_silence(mut self, trusts: bool) -> Self {
        self.service.trusts_silence = trusts;
        self
    }

    /// Scenarios with clients that continue an upload after the response, and a server that half-closes behind that
    /// response during a replay, and reads on. Unless a half-close is told from a close (`tells`), the server does not
    /// get the rest.
    #[must_use]
    pub fn half_closing(self, tells: bool) -> Self {
        let mut half = Self::with_fault(self.seed, Fault::None);
        let mut rng = SmallRng::seed_from_u64(half.seed ^ 0x6861_6c66);
        half.service.mode = ReplayMode::Connection;
        half.service.ends_at_half_close = !tells;
        // Otherwise a repeated end is taken for another end, once the client has sent after the first.
        half.service.digests = half.service.digests.or(Some(u32::MAX));
        for client in &mut half.clients {
            client.script = Script::of_early(&mut rng);
        }
        half
    }

    /// The same with a power-off of the host when the server has read the client's second request, and a logger with
    /// hashes of all output to the clients, or without.
    #[must_use]
    pub fn with_late_divergence_on_other_host(self, digests: bool) -> Self {
        let mut late = self.with_late_divergence_and_requests(true).linked();
        late.crashes.clear();
        late.service.digests = digests.then_some(u32::MAX);
        // Where parts of a request have overtaken each other, the beginning of the request is not recorded.
        late.quality.jitter = 0;
        late.quality.doubled = 0;
        if let Some(link) = &mut late.link {
            // A digest that is lost with the host is not compared.
            link.quality = Quality {
                lost: 0,
                outages: 0,
                ..link.quality
            };
            (link.restarts, link.waits) = (1, true);
        }
        late
    }

    /// The same where all input of a client comes in order, and all copies arrive: where parts of a request have
    /// overtaken each other, or a copy was lost, the beginning of the request is not recorded.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        self.quality.jitter = 0;
        self.quality.doubled = 0;
        if let Some(link) = &mut self.link {
            link.quality.lost = 0;
            link.quality.outages = 0;
        }
        self
    }

    /// The same with a server that thinks before a response, and meanwhile reads further input; and with clients that
    /// think before the next request.
    #[must_use]
    pub fn thoughtful(mut self) -> Self {
        let mut rng = SmallRng::seed_from_u64(self.seed ^ 0x7468_696e_6b73);
        self.service.thinks = [10, 100, 500][rng.random_range(0..3)] * MS;
        for client in &mut self.clients {
            client.script.thinks_before_more(&mut rng);
        }
        self
    }

    /// The same with a next instance that has a separate key, and takes the hashes of the other instance for valid.
    #[must_use]
    pub fn without_handing_key_on(mut self) -> Self {
        self.link
            .iter_mut()
            .for_each(|link| link.hands_key_on = false);
        self
    }

    /// A scenario in which each incarnation responds differently to a client, behind the beginning of the response,
    /// and only that beginning is recorded. Without hashes, a mix of two incarnations reaches the client. No packet is
    /// lost: hashes of output that a client lacks may be compared late.
    #[must_use]
    pub fn with_late_divergence(self, digests: bool) -> Self {
        let mut late = Self::with_fault(self.seed, Fault::Divergence);
        late.service.verify_head = 4096;
        late.service.digests = digests.then_some(u32::MAX);
        late.quality.lost = 0;
        late.quality.outages = 0;
        let mut rng = SmallRng::seed_from_u64(late.seed ^ 0x6c61_7465);
        if let Some(first) = late.clients.first_mut() {
            first.script = Script::of_late_divergence(&mut rng);
        }
        late
    }

    /// The same without planned deaths.
    #[must_use]
    pub fn without_crashes(self) -> Self {
        Self {
            crashes: Vec::new(),
            ..self
        }
    }
}

fn server(v6: bool) -> SocketAddr {
    let ip = if v6 {
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))
    };
    SocketAddr::new(ip, 80)
}

/// The addresses that are protected.
pub(crate) fn endpoints() -> Vec<SocketAddr> {
    vec![server(false), server(true)]
}

fn quality(rng: &mut SmallRng) -> Quality {
    let perfect = rng.random_bool(0.3);
    let delay = [20_000, 200_000, 2 * MS, 20 * MS][rng.random_range(0..4)];
    if perfect {
        return Quality {
            delay,
            jitter: 0,
            lost: 0,
            doubled: 0,
            outages: 0,
        };
    }
    Quality {
        delay,
        jitter: delay * rng.random_range(0..4) / 2,
        lost: [0, 5, 20, 60][rng.random_range(0..4)],
        doubled: [0, 0, 10, 50][rng.random_range(0..4)],
        outages: [0, 0, 0, 2][rng.random_range(0..4)],
    }
}

fn service(rng: &mut SmallRng, fault: Fault) -> ServiceSetup {
    let is_per_request = fault == Fault::None && rng.random_bool(0.25);
    // All other draws stay the same.
    let digests = match SmallRng::seed_from_u64(rng.clone().random()).random_range(0..3) {
        0 => None,
        1 => Some(0),
        _ => Some(u32::MAX),
    };
    ServiceSetup {
        mode: if is_per_request {
            ReplayMode::Request
        } else {
            ReplayMode::Connection
        },
        verify_head: match fault {
            Fault::Divergence => u32::MAX,
            _ if is_per_request => 4096,
            _ => [0, 64, 4096, u32::MAX][rng.random_range(0..4)],
        },
        mirror_capacity: [1 << 20, 1 << 20, 1 << 16, 48 << 10][rng.random_range(0..4)],
        record_limit: if fault == Fault::RecordLimit {
            192 << 10
        } else {
            16 << 20
        },
        splice_window: [1, 2, 16][rng.random_range(0..3)],
        settle: match fault {
            // A late reader must still be known as the client of the request.
            Fault::Poison => 200 * MS,
            _ => [5, 30, 100][rng.random_range(0..3)] * MS,
        },
        quarantine_after: if fault == Fault::Poison { 3 } else { 1000 },
        max_segment: [500, 1400, 16_000, 60_000][rng.random_range(0..4)],
        backlog: rng.random_range(1..=6),
        mtu: [600, 1500, 1500, 9000][rng.random_range(0..4)],
        receive_buffer: buffer(rng),
        send_buffer: buffer(rng),
        nagle: rng.random(),
        digests,
        compares_before_requests: true,
        doubts: true,
        trusts_silence: false,
        ends_at_half_close: false,
        boot: [1, 20, 300][rng.random_range(0..3)] * MS,
        logger_lag: [MS / 20, MS, 10 * MS][rng.random_range(0..3)],
        supervisor_lag: [MS / 20, MS, 5 * MS][rng.random_range(0..3)],
        pace: [MS / 50, MS, 20 * MS][rng.random_range(0..3)],
        thinks: 0,
        injections_lost: [0, 0, 30][rng.random_range(0..3)],
        starts_failed: [0, 0, 200][rng.random_range(0..3)],
        north: None,
    }
}

fn buffer(rng: &mut SmallRng) -> usize {
    [2_000, 8_192, 65_535, 200_000][rng.random_range(0..4)]
}

fn client(rng: &mut SmallRng, i: usize, service: &ServiceSetup) -> ClientSetup {
    let v6 = rng.random_bool(0.4);
    let low = u8::try_from(i + 2).unwrap_or(u8::MAX);
    let ip = if v6 {
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, u16::from(low)))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 0, 1, low))
    };
    let small_ring = service.mirror_capacity < 1 << 16;
    let options = [kind::SACK_PERMITTED, kind::WINDOW_SCALE];
    ClientSetup {
        address: SocketAddr::new(ip, rng.random_range(1024..60_000)),
        server: server(v6),
        mtu: if small_ring {
            1500
        } else {
            [576, 1500, 1500, 9000][rng.random_range(0..4)]
        },
        receive_buffer: buffer(rng),
        send_buffer: buffer(rng),
        clock: rng.random_bool(0.7).then(|| rng.random_range(0..4)),
        stripped: options
            .into_iter()
            .filter(|_| rng.random_bool(0.2))
            .collect(),
        nagle: rng.random(),
        start: if rng.random_bool(0.7) {
            rng.random_range(0..20 * MS)
        } else {
            rng.random_range(0..600 * MS)
        },
        pace: [MS / 50, MS, 20 * MS][rng.random_range(0..3)],
        script: Script::drawn(rng, service.mode),
        doomed: false,
    }
}

/// How many kinds of actions a death can coincide with.
pub(crate) const ACTION_KINDS: usize = 17; // later kinds only come after a power-off, or a long wait

fn crashes(rng: &mut SmallRng, fault: Fault) -> Vec<Crash> {
    let count = match (fault, rng.random_range(0..10)) {
        (Fault::Poison, _) => 0,
        (_, 0) => 0,
        (_, 1) => rng.random_range(4..8),
        _ => rng.random_range(1..4),
    };
    let mut list: Vec<Crash> = Vec::new();
    for i in 0..count {
        let when = if i > 0 && rng.random_bool(0.5) {
            When::During(
                rng.random_range(0..ACTION_KINDS),
                rng.random_range(0..2 * MS),
            )
        } else {
            let longest = [2, 30, 300, 1500][rng.random_range(0..4)] * MS;
            When::After(rng.random_range(0..longest))
        };
        let status = [9, 11, 256, 6][rng.random_range(0..4)];
        list.push(Crash {
            when,
            workers_survive: rng.random_bool(0.4),
            status,
            fuse: None,
        });
    }
    list
}

/// Bytes that compress badly, so that a wrong offset shows.
fn noise(rng: &mut SmallRng, length: u32) -> Vec<u8> {
    let mut bytes = vec![0; crate::index(length)];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// Lengths: mostly small, sometimes more than a window.
fn size(rng: &mut SmallRng) -> u32 {
    match rng.random_range(0..20) {
        0 => rng.random_range(30_000..150_000),
        1..=4 => rng.random_range(3_000..30_000),
        5..=7 => rng.random_range(1..20),
        _ => rng.random_range(20..3_000),
    }
}

fn request(rng: &mut SmallRng, mode: ReplayMode) -> Request {
    match (rng.random_range(0..4), mode) {
        (0 | 1, _) | (2, ReplayMode::Request) => Request::Get(size(rng)),
        (2, ReplayMode::Connection) => {
            let length = size(rng);
            Request::Echo(noise(rng, length))
        }
        _ => {
            let length = size(rng);
            Request::Put(noise(rng, length))
        }
    }
}
