//! A run, drawn from a seed: sizes, a network, and crashes.

use blast::{Flaws, Layout, Policy};
use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::{REST_TIME, network::Path};
use crate::{MS, SECOND};

/// A mistake in a transfer. The run must notice each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BulkFlaw {
    /// A repeated packet has the round of the packet before.
    RoundReused,
    /// The sender takes no notice of credit.
    CreditIgnored,
    /// The sender does not probe while there is no credit, and the grant may be lost.
    NotProbed,
    /// The sender goes on while no acknowledgement arrives.
    SilenceIgnored,
    /// Misplaced packets are copied in the order of arrival.
    CopiedInOrder,
    /// Misplaced packets are not copied.
    NotCopied,
    /// A blast that lacks a packet counts as whole.
    AlmostWhole,
    /// A receiver answers as if a blast were whole of which it took nothing.
    AnsweredWithoutCredit,
    /// Packets are received at positions of packets that are there.
    PresentExpected,
    /// Data is released before the last of several receivers has it.
    ReleasedEarly,
}

/// A crash of a process, or of its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Crash {
    pub(super) at: u64,
    /// The receiver; `None`: the sender.
    pub(super) host: Option<usize>,
    pub(super) is_power_lost: bool,
}

/// A run.
#[derive(Debug, Clone)]
pub struct BulkScenario {
    seed: u64,
    pub(super) layout: Layout,
    pub(super) size: u64,
    /// The size is unknown in advance.
    pub(super) is_stream: bool,
    pub(super) policy: Policy,
    pub(super) receivers: usize,
    /// Blasts that a receiver takes beyond the durable ones.
    pub(super) ahead: u32,
    /// Time that the disk needs for a blast, ns.
    disk_pace: u64,
    /// The disk stops in this time.
    disk_stop: (u64, u64),
    pub(super) path: Path,
    pub(super) crashes: Vec<Crash>,
    /// A receiver whose host is off for good from this time on.
    pub(super) gone: Option<(usize, u64)>,
    /// The sending process is woken so late, ns.
    pub(super) late: u64,
    /// All data is there at this time.
    pub(super) deadline: u64,
    flaw: Option<BulkFlaw>,
}

impl BulkScenario {
    /// The run with this seed.
    #[must_use]
    pub fn drawn_from(seed: u64) -> Self {
        let rng = &mut SmallRng::seed_from_u64(seed ^ 0x626c_6173_7400);
        let (layout, size) = sizes(rng);
        let faults_end = rng.random_range(SECOND..20 * SECOND);
        let path = path(rng, faults_end);
        let receivers = if rng.random_ratio(1, 3) {
            rng.random_range(2..=3)
        } else {
            1
        };
        let crash = |rng: &mut SmallRng| Crash {
            at: rng.random_range(0..faults_end),
            host: rng
                .random_ratio(2, 3)
                .then(|| rng.random_range(0..receivers)),
            is_power_lost: rng.random(),
        };
        let count = rng.random_range(0..4);
        let mut crashes: Vec<Crash> = (0..count).map(|_| crash(rng)).collect();
        crashes.sort_by_key(|crash| crash.at);
        let is_gone = receivers > 1 && rng.random_ratio(1, 3);
        let gone = (
            rng.random_range(0..receivers),
            rng.random_range(0..faults_end),
        );
        let is_late = rng.random_ratio(1, 4);
        let late = rng.random_range(0..5 * MS);
        let disk_stop = rng.random_range(0..faults_end);
        Self {
            seed,
            layout,
            size,
            is_stream: rng.random_ratio(1, 4),
            policy: policy(rng),
            receivers,
            ahead: rng.random_range(1..=24),
            disk_pace: rng.random_range(MS / 100..2 * MS),
            disk_stop: (disk_stop, disk_stop + rng.random_range(0..8 * SECOND)),
            path,
            crashes,
            gone: is_gone.then_some(gone),
            late: if is_late { late } else { 0 },
            deadline: faults_end + 8 * SECOND + REST_TIME,
            flaw: None,
        }
    }

    /// The same sizes, without a fault: no loss, no crash, a fast disk, an endless queue.
    #[must_use]
    pub fn calm(mut self) -> Self {
        self.path = Path {
            jitter: 0,
            lost: 0,
            doubled: 0,
            forged: 0,
            queue: 3600 * SECOND,
            cuts: Vec::new(),
            ..self.path
        };
        self.crashes.clear();
        self.gone = None;
        self.late = 0;
        self.disk_stop = (0, 0);
        self
    }

    /// The same sizes and paths with losses as the only fault.
    #[must_use]
    pub fn lossy(self) -> Self {
        let lost = self.path.lost;
        let mut calm = self.calm();
        calm.path.lost = lost;
        calm.path.lossy_until = u64::MAX;
        calm
    }

    /// 16 MB over 100 Mbit/s with a round trip of 50 ms and a queue of 50 ms, to a fast receiver. `lost`: datagrams of
    /// a thousand.
    ///
    /// # Panics
    /// Never: the sizes are constant.
    #[must_use]
    pub fn long_path(seed: u64, lost: u32) -> Self {
        let mut long = Self::drawn_from(seed).calm();
        long.layout = Layout::new(1400, 46).expect("sizes in range");
        long.size = 16_000_000;
        long.is_stream = false;
        long.policy = Policy::Full;
        long.receivers = 1;
        long.ahead = 1000;
        long.disk_pace = 0;
        long.path = Path {
            delay: 25 * MS,
            lost,
            lossy_until: u64::MAX,
            ns_per_byte: 80,
            queue: 50 * MS,
            ..long.path
        };
        long
    }

    /// Datagrams of a thousand that are lost.
    #[must_use]
    pub const fn lost(&self) -> u32 {
        self.path.lost
    }

    /// Number of receivers.
    #[must_use]
    pub const fn receivers(&self) -> usize {
        self.receivers
    }

    /// Packets that all receivers need together.
    #[must_use]
    pub fn packets(&self) -> u64 {
        let packets = self.size.div_ceil(u64::from(self.layout.packet_bytes()));
        packets * u64::try_from(self.receivers).unwrap_or(0)
    }

    /// The same run with a mistake.
    #[must_use]
    pub const fn flawed(mut self, flaw: BulkFlaw) -> Self {
        self.flaw = Some(flaw);
        self
    }

    /// The seed.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    pub(super) fn flaws(&self) -> Flaws {
        let has = |flaw| self.flaw == Some(flaw);
        Flaws {
            reuses_rounds: has(BulkFlaw::RoundReused),
            ignores_credit: has(BulkFlaw::CreditIgnored) || has(BulkFlaw::AnsweredWithoutCredit),
            answers_without_credit: has(BulkFlaw::AnsweredWithoutCredit),
            expects_present: has(BulkFlaw::PresentExpected),
            does_not_probe: has(BulkFlaw::NotProbed),
            sends_into_silence: has(BulkFlaw::SilenceIgnored),
            copies_in_order: has(BulkFlaw::CopiedInOrder),
            forgets_copies: has(BulkFlaw::NotCopied),
            counts_almost_whole: has(BulkFlaw::AlmostWhole),
            releases_early: has(BulkFlaw::ReleasedEarly),
            ..Flaws::default()
        }
    }

    /// Packets without credit break the run.
    pub(super) fn checks_credit(&self) -> bool {
        self.flaw != Some(BulkFlaw::AnsweredWithoutCredit)
    }

    /// Round trip of the control stream.
    pub(super) const fn round_trip(&self) -> std::time::Duration {
        std::time::Duration::from_nanos(2 * self.path.delay)
    }

    /// When the disk has written a blast that it begins at this time, ns.
    pub(super) fn written_at(&self, start: u64) -> u64 {
        let (from, until) = self.disk_stop;
        match (from..until).contains(&start) {
            true => until + self.disk_pace,
            false => start + self.disk_pace,
        }
    }

    /// Where a blast lies in memory.
    pub(super) fn range_of_blast(&self, blast: u32) -> std::ops::Range<usize> {
        let start = self.layout.blast_position(blast);
        let end = (start + self.layout.blast_bytes()).min(self.size);
        let at = |position: u64| usize::try_from(position).unwrap_or(usize::MAX);
        at(start)..at(end)
    }
}

fn sizes(rng: &mut SmallRng) -> (Layout, u64) {
    let packet_bytes = rng.random_range(16..=1400);
    let packets = rng.random_range(1..=80);
    let layout = Layout::new(packet_bytes, packets);
    let blasts = match rng.random_range(0..6) {
        0 => rng.random_range(0..3),
        1 => rng.random_range(60..200),
        _ => rng.random_range(3..60),
    };
    let most = u64::from(packet_bytes) * u64::from(packets) * blasts;
    let size = rng.random_range(0..=most.min(600_000));
    match layout {
        Ok(layout) => (layout, size),
        Err(error) => panic!("{packet_bytes} and {packets}: {error}"),
    }
}

fn policy(rng: &mut SmallRng) -> Policy {
    match rng.random_range(0..6) {
        0 => Policy::Background,
        1 => Policy::Fixed(rng.random_range(500_000..50_000_000)),
        _ => Policy::Full,
    }
}

fn path(rng: &mut SmallRng, faults_end: u64) -> Path {
    let is_lossy = rng.random_ratio(2, 3);
    let lost = if is_lossy {
        rng.random_range(0..200)
    } else {
        0
    };
    let reorders = rng.random_ratio(1, 2);
    let delay = rng.random_range(MS / 50..40 * MS);
    let cut = |rng: &mut SmallRng| {
        let start = rng.random_range(0..faults_end);
        (start, start + rng.random_range(0..9 * SECOND))
    };
    let cuts = rng.random_range(0..3);
    Path {
        delay,
        jitter: if reorders {
            rng.random_range(0..=delay)
        } else {
            0
        },
        lost,
        doubled: rng.random_range(0..30),
        forged: if rng.random() {
            rng.random_range(0..50)
        } else {
            0
        },
        // 1 Gbit/s to 4 Mbit/s.
        ns_per_byte: rng.random_range(8..2000),
        queue: rng.random_range(MS..200 * MS),
        lossy_until: faults_end,
        cuts: (0..cuts).map(|_| cut(rng)).collect(),
    }
}
