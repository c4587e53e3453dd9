//! The hosts, the logger, the network, and the faults.

use std::{collections::BTreeMap, time::Duration};

use lease::{Drift, Granter, Holder, Memory, Record, Speech, Terms};
use protocol::control::{LeaseAnswer, LeaseRequest};
use rand::{Rng, SeedableRng, rngs::SmallRng};

/// µs of true time.
type Time = u64;

const STEP_US: Time = 500;
const HOST_COUNT: usize = 3;
/// Time with faults, and time for the recovery from all faults.
const FAULTY_US: Time = 7_000_000;
const RECOVERY_US: Time = 2_500_000;
const DRIFT_PPM: u32 = 50_000;
const QUEUE_US: Time = 10_000;

const fn terms(mistake: Mistake) -> Terms {
    Terms {
        term: Duration::from_millis(100),
        least: Duration::from_millis(20),
        longest: Duration::from_millis(150),
        drift: match (mistake, Drift::new(0), Drift::new(DRIFT_PPM)) {
            (Mistake::NoDrift, Ok(drift), _) | (_, _, Ok(drift)) => drift,
            _ => panic!("it is less than a million"),
        },
        queue: Duration::from_micros(match mistake {
            Mistake::NoQueue => 0,
            _ => QUEUE_US,
        }),
        forget: Duration::from_millis(400),
    }
}

/// A deliberate mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mistake {
    None,
    /// The holder's data plane counts a lease from the arrival of the answer.
    CountsFromReceipt,
    /// No drift is allowed for.
    NoDrift,
    /// Nor packets below the data plane.
    NoQueue,
    /// The holder confirms the lease before the data plane enforces the lease.
    ConfirmsTooEarly,
    /// The logger answers before the decision is stored.
    OldMemory,
    /// A logger that has lost the memory does not wait after the start.
    DoesNotWait,
    /// The logger grants an epoch although packets of the logger's own host may be under way.
    SpeaksAndForgets,
}

/// A violated invariant.
#[derive(Debug)]
#[allow(dead_code, reason = "they are printed")]
pub(crate) enum Fault {
    /// The logger has the number after the last host.
    TwoSpeakers {
        at: Time,
        hosts: Vec<usize>,
    },
    SharedEpoch {
        at: Time,
        epoch: u32,
    },
    NoSpeaker {
        at: Time,
    },
}

/// Shows the time since a random origin, at a random rate.
#[derive(Clone, Copy)]
struct Clock {
    origin_ns: u64,
    /// Nanoseconds in a thousandth of a second of true time.
    rate: u64,
}

impl Clock {
    fn any(rng: &mut SmallRng) -> Self {
        let drift = u64::from(DRIFT_PPM);
        // Both bounds are hit often.
        let rate = match rng.random_range(0..3) {
            0 => 1_000_000 - drift,
            1 => 1_000_000 + drift,
            _ => rng.random_range(1_000_000 - drift..=1_000_000 + drift),
        };
        Self {
            origin_ns: rng.random_range(0..1 << 60),
            rate,
        }
    }

    fn shows(self, at: Time) -> Duration {
        Duration::from_nanos(self.origin_ns + at * self.rate / 1000)
    }

    /// The latest true time at which the clock shows `shown`.
    fn time_of(self, shown: Duration) -> Time {
        let shown = u64::try_from(shown.as_nanos()).unwrap_or(u64::MAX);
        (shown.saturating_sub(self.origin_ns)).saturating_mul(1000) / self.rate + 1
    }
}

struct Host {
    clock: Clock,
    up: bool,
    /// The processes stand still; the data plane does not.
    paused: bool,
    /// Loss of packets from the host, and of packets to the host.
    cut: [bool; 2],
    inbox: Vec<LeaseAnswer>,
    instance: u64,
    /// This instance has given the epoch up.
    released: bool,
    serve: Option<Holder>,
    /// The enforced permission, and the epoch; survives `serve`.
    plane: (Speech, u32),
    /// The end of the permission, true time.
    ends: Time,
}

impl Host {
    /// Whether a packet of the host could still go out.
    fn emits(&self, now: Time) -> bool {
        self.up && now < self.ends.saturating_add(QUEUE_US)
    }

    fn enforce(&mut self, speech: Speech, epoch: u32, now: Time) {
        self.plane = (speech, epoch);
        let before = self.ends.min(now);
        self.ends = match speech {
            Speech::Silent => before,
            Speech::Until(end) => before.max(self.clock.time_of(end)),
            Speech::Free => Time::MAX,
        };
        if let Speech::Until(_) = speech {
            // A permission that had ended before the call lets no packet pass.
            self.ends = if self.ends > now { self.ends } else { before };
        }
    }
}

enum Message {
    Request(usize, LeaseRequest),
    Answer(usize, LeaseAnswer),
}

pub(crate) struct Model {
    rng: SmallRng,
    now: Time,
    durable: bool,
    mistake: Mistake,
    hosts: Vec<Host>,
    granter: Option<Granter>,
    granter_clock: Clock,
    /// When the logger last sent packets to clients.
    spoke: Time,
    /// How often the logger sent packets to clients.
    spoken: usize,
    kept: BTreeMap<String, Record>,
    /// In no order.
    under_way: Vec<(Time, Message)>,
    /// Who spoke in each epoch.
    speakers: BTreeMap<u32, u64>,
    numbers: u64,
    /// A fault happens once in so many steps.
    seldom: u32,
    calm: bool,
}

impl Model {
    pub(crate) fn new(seed: u64, durable: bool, mistake: Mistake) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let hosts = (0..HOST_COUNT).map(|_| Host {
            clock: Clock::any(&mut rng),
            up: false,
            paused: false,
            cut: [false; 2],
            inbox: Vec::new(),
            instance: 0,
            released: false,
            serve: None,
            plane: (Speech::Silent, 0),
            ends: 0,
        });
        let hosts = hosts.collect();
        let granter_clock = Clock::any(&mut rng);
        let seldom = [40, 100, 400][rng.random_range(0..3)];
        let mut model = Self {
            rng,
            now: 1_000_000,
            durable,
            mistake,
            hosts,
            granter: None,
            granter_clock,
            spoke: 0,
            spoken: 0,
            kept: BTreeMap::new(),
            under_way: Vec::new(),
            speakers: BTreeMap::new(),
            numbers: 0,
            seldom,
            calm: false,
        };
        model.start_logger();
        for host in 0..HOST_COUNT {
            model.hosts[host].up = true;
            model.take_part(host, host == 0);
        }
        model
    }

    /// Returns the number of epochs, and how often the logger sent to clients, if no invariant was violated.
    pub(crate) fn run(mut self) -> Result<(usize, usize), Fault> {
        while self.now < FAULTY_US {
            if self.rng.random_ratio(1, self.seldom) {
                self.befall();
            }
            self.step()?;
        }
        self.heal();
        self.live(RECOVERY_US)?;
        if self.kept.is_empty() && !self.somebody_speaks() {
            // No host is left that knows of an epoch, or there never was an epoch. The operator knows.
            self.take_part(0, true);
            self.live(RECOVERY_US)?;
        }
        let end = self.now + 500_000;
        while self.now < end {
            self.step()?;
            if !self.somebody_speaks() {
                return Err(Fault::NoSpeaker { at: self.now });
            }
        }
        Ok((self.speakers.len(), self.spoken))
    }

    /// All is well, but that the logger is away until the host that serves is silent, and has forgotten everything
    /// then: which instance speaks before, and which afterwards.
    pub(crate) fn forgets_a_silent_holder(mut self) -> Result<[Option<u64>; 2], Fault> {
        self.calm = true;
        self.live(RECOVERY_US)?;
        let before = self.speaker();
        self.granter = None;
        while self.somebody_speaks() {
            self.step()?;
        }
        let away = self.rng.random_range(0..1_000_000);
        self.live(away)?;
        self.start_logger();
        self.live(RECOVERY_US)?;
        Ok([before, self.speaker()])
    }

    fn speaker(&self) -> Option<u64> {
        let mut hosts = self.hosts.iter();
        let speaker = hosts.find(|host| host.up && self.now < host.ends);
        speaker.map(|host| host.instance)
    }

    fn live(&mut self, time: Time) -> Result<(), Fault> {
        let end = self.now + time;
        while self.now < end {
            self.step()?;
        }
        Ok(())
    }

    fn somebody_speaks(&self) -> bool {
        self.hosts
            .iter()
            .any(|host| host.up && self.now < host.ends)
    }

    fn step(&mut self) -> Result<(), Fault> {
        self.now += STEP_US;
        let due = |(at, _): &mut (Time, Message)| *at <= self.now;
        let arrived: Vec<_> = self.under_way.extract_if(.., due).collect();
        for (_, message) in arrived {
            self.deliver(message);
        }
        for host in 0..HOST_COUNT {
            if self.hosts[host].up && !self.hosts[host].paused {
                self.serve(host);
            }
        }
        self.speak();
        self.check()
    }

    fn check(&mut self) -> Result<(), Fault> {
        let now = self.now;
        let hosts = (0..HOST_COUNT).filter(|host| self.hosts[*host].emits(now));
        let logger = (self.spoke > 0 && now < self.spoke + QUEUE_US).then_some(HOST_COUNT);
        let hosts: Vec<usize> = hosts.chain(logger).collect();
        if hosts.len() > 1 {
            return Err(Fault::TwoSpeakers { at: now, hosts });
        }
        for host in self.hosts.iter().filter(|h| h.up && now < h.ends) {
            let epoch = host.plane.1;
            let speaker = *self.speakers.entry(epoch).or_insert(host.instance);
            if self.durable && speaker != host.instance {
                return Err(Fault::SharedEpoch { at: now, epoch });
            }
        }
        Ok(())
    }

    /// From time to time, the logger tells clients that no host serves.
    fn speak(&mut self) {
        let shown = self.granter_clock.shows(self.now);
        let granter = self.granter.as_ref();
        if granter.is_none_or(|granter| granter.unserved_since("web", shown).is_none())
            || !self.rng.random_ratio(1, 10)
        {
            return;
        }
        (self.spoke, self.spoken) = (self.now, self.spoken + 1);
        if !self.calm && self.rng.random_ratio(1, 50) {
            self.granter = None; // dies before the note
        } else if let Some(granter) = &mut self.granter
            && self.mistake != Mistake::SpeaksAndForgets
        {
            granter.record_speech("web", shown);
        }
    }

    /// A run of `serve`.
    fn serve(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        let shown = host.clock.shows(self.now);
        let Some(holder) = &mut host.serve else {
            return;
        };
        let mut heard = None;
        for answer in std::mem::take(&mut host.inbox) {
            holder.on_answer(shown, &answer);
            heard = Some(answer.verdict);
            if !self.calm && self.rng.random_ratio(1, 100) {
                // Stopped before the answer could be enforced.
                host.paused = true;
                return;
            }
        }
        let (mut speech, epoch) = (holder.speech(), holder.epoch().unwrap_or(0));
        let over = holder.superseded().is_some();
        let request = if shown >= holder.asks_at() {
            holder.ask(shown)
        } else {
            None
        };
        if let (Mistake::CountsFromReceipt, Some(_), Speech::Until(_)) =
            (self.mistake, heard, speech)
        {
            speech =
                Speech::Until(terms(self.mistake).speaks_until(shown, Duration::from_millis(100)));
        }
        let stays = self.mistake == Mistake::ConfirmsTooEarly
            && host.plane.0 == Speech::Free
            && matches!(speech, Speech::Until(_))
            && host.plane.1 == epoch;
        let later = self.mistake == Mistake::CountsFromReceipt && heard.is_none();
        if !(stays || later && matches!(speech, Speech::Until(_))) {
            host.enforce(speech, epoch, self.now);
        }
        if over {
            self.take_part(at, false);
        }
        if let Some(request) = request {
            self.send(Message::Request(at, request));
        }
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Request(from, request) => {
                let shown = self.granter_clock.shows(self.now);
                let Some(granter) = self.granter.as_mut().filter(|_| !self.hosts[from].cut[0])
                else {
                    return;
                };
                let decision = granter.decide(shown, &request);
                if let Some(record) = decision.record.filter(|_| self.durable) {
                    let late = self.mistake == Mistake::OldMemory && self.rng.random();
                    if !late {
                        self.kept.insert(record.service.clone(), record);
                    }
                }
                if let Some(answer) = decision.answer {
                    self.send(Message::Answer(from, answer));
                }
            }
            Message::Answer(to, answer) => {
                let host = &mut self.hosts[to];
                if host.up && !host.cut[1] {
                    host.inbox.push(answer);
                }
            }
        }
    }

    /// Messages are lost, doubled, late, and so out of order.
    fn send(&mut self, message: Message) {
        let copy = match &message {
            Message::Request(from, request) => Message::Request(*from, request.clone()),
            Message::Answer(to, answer) => Message::Answer(*to, *answer),
        };
        if self.calm {
            let at = self.now + self.rng.random_range(100..3000);
            self.under_way.push((at, message));
            return;
        }
        for message in [message, copy] {
            let delay = match self.rng.random_range(0..20) {
                0..12 => self.rng.random_range(100..3000),
                12..15 => self.rng.random_range(100..120_000),
                15 => self.rng.random_range(100..800_000),
                _ => continue,
            };
            self.under_way.push((self.now + delay, message));
        }
    }

    fn start_logger(&mut self) {
        self.numbers += 1;
        let mistake = self.mistake;
        let memory = if self.durable {
            Memory::Kept(self.kept.values().cloned().collect())
        } else {
            Memory::Lost
        };
        // The logger's host may have rebooted, too.
        self.granter_clock = Clock::any(&mut self.rng);
        let now = self.granter_clock.shows(self.now);
        let started = if mistake == Mistake::DoesNotWait {
            now.saturating_sub(Duration::from_secs(1))
        } else {
            now
        };
        let granter = Granter::new(self.numbers, memory, terms(mistake), started);
        self.granter = Some(granter);
    }

    /// The host takes part as a new instance, without knowledge.
    fn take_part(&mut self, at: usize, first: bool) {
        self.numbers += 1;
        let host = &mut self.hosts[at];
        host.enforce(Speech::Silent, 0, self.now);
        host.instance = self.numbers;
        host.released = false;
        host.inbox.clear();
        self.hosts[at].serve = Some(self.holder(at, first));
    }

    fn holder(&self, at: usize, first: bool) -> Holder {
        let number = u16::try_from(at).expect("few");
        let (host, terms) = (u64::from(number), terms(self.mistake));
        let names = (host, self.hosts[at].instance);
        Holder::new("web".into(), names, number, first, terms)
    }

    fn start_serve(&mut self, at: usize) {
        if self.hosts[at].released {
            return self.take_part(at, false);
        }
        let holder = self.holder(at, false);
        let host = &mut self.hosts[at];
        host.inbox.clear();
        host.serve = Some(match host.plane {
            (Speech::Silent, _) => holder,
            (speech, epoch) => holder.resumed(epoch, speech),
        });
    }

    /// A random fault.
    fn befall(&mut self) {
        let at = self.rng.random_range(0..HOST_COUNT);
        let what = self.rng.random_range(0..16);
        let host = &mut self.hosts[at];
        match what {
            0 => host.paused = true,
            1..4 => host.paused = false,
            4 => {
                // Power off.
                (host.up, host.ends, host.serve) = (false, 0, None);
                host.plane = (Speech::Silent, 0);
                host.inbox.clear();
            }
            5..8 if !host.up => {
                host.up = true;
                host.paused = false;
                host.clock = Clock::any(&mut self.rng);
                self.take_part(at, false);
            }
            8 => host.serve = None,
            9..11 if host.up && host.serve.is_none() => self.start_serve(at),
            11 => host.cut = self.rng.random(),
            12..14 => host.cut = [false; 2],
            14 if !host.paused && !self.rng.random_ratio(2, 3) => {
                let holds = |holder: &&mut Holder| holder.epoch().is_some();
                if let Some(holder) = host.serve.as_mut().filter(holds) {
                    holder.release();
                    host.released = true;
                    host.enforce(Speech::Silent, 0, self.now);
                }
            }
            15 if self.granter.is_some() => {
                self.granter = if self.rng.random() { None } else { return };
            }
            _ if self.granter.is_none() => self.start_logger(),
            _ => {}
        }
    }

    fn heal(&mut self) {
        self.calm = true;
        if self.granter.is_none() {
            self.start_logger();
        }
        for at in 0..HOST_COUNT {
            let host = &mut self.hosts[at];
            (host.cut, host.paused) = ([false; 2], false);
            if !host.up {
                host.up = true;
                self.take_part(at, false);
            } else if host.serve.is_none() {
                self.start_serve(at);
            }
        }
    }
}
