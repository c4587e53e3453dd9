//! The balancer: the monitor in a process, and the table in the programs, which outlive the process.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, LazyLock, Mutex},
};

use lease::{Drift, Terms};
use pool::{MemoryRegister, Monitor, Output, OwnerTable, Settings, StreamId, TableKind, flow_hash};
use protocol::pool::{BalancerMessage, Config, MemberMessage, PoolKey, Table, VersionCheck};
use rand::rngs::SmallRng;
use wire::FlowKey;

use super::{
    member::POOL_KEY,
    network::{Clock, link_delay},
};
use crate::MS;

/// Quiescence of a pool, ms.
const QUIESCENCE_MS: u32 = 130_000;

/// A control stream. `None`: the end of the stream.
#[derive(Debug, Default)]
struct Stream {
    up: VecDeque<(u64, Option<MemberMessage>)>,
    down: VecDeque<(u64, Option<BalancerMessage>)>,
}

/// The table of the programs.
#[derive(Debug, Clone)]
struct Programs {
    table: Table,
    owners: Arc<OwnerTable>,
}

pub(super) struct Balancer {
    clock: Clock,
    settings: Settings,
    /// `None`: no process runs.
    monitor: Option<Monitor<MemoryRegister>>,
    /// `None`: the host has no power, or had none and knows no table.
    programs: Option<Programs>,
    has_power: bool,
    returns_at: u64,
    streams: BTreeMap<StreamId, Stream>,
    newest_stream: u64,
}

/// Tables with equal members are made once in a process.
pub(super) fn owners_of(table: &Table) -> Arc<OwnerTable> {
    static KNOWN: LazyLock<Mutex<HashMap<String, Arc<OwnerTable>>>> = LazyLock::new(Mutex::default);
    let members = table.members.iter();
    let names: Vec<String> = members
        .map(|member| format!("{}{}", member.name, member.draining))
        .collect();
    let mut known = KNOWN.lock().expect("no panic");
    let owners = known
        .entry(names.join(" "))
        .or_insert_with(|| Arc::new(OwnerTable::of(table).expect("names differ")));
    Arc::clone(owners)
}

/// The member that owns a connection while the members with these numbers are in the table.
pub(super) fn owner_among(members: impl Iterator<Item = usize>, key: FlowKey) -> usize {
    let members: Vec<usize> = members.collect();
    let names: Vec<String> = members.iter().map(|it| format!("web{it}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let owners = OwnerTable::new(TableKind::Maglev, &names).expect("names differ");
    let hash = flow_hash(PoolKey(POOL_KEY), key.client(), key.server());
    let owner = owners.owner(hash).map_or(0, |owner| usize::from(owner.0));
    members[owner]
}

pub(super) fn terms(has_short_leases: bool, drift_ppm: u32) -> Terms {
    let terms = Terms {
        drift: Drift::new(drift_ppm).expect("small"),
        ..Terms::of_pool()
    };
    match has_short_leases {
        true => terms,
        false => Terms {
            least: terms.term,
            ..terms
        },
    }
}

fn settings(terms: Terms, address: std::net::SocketAddr, key: PoolKey) -> Settings {
    let micros = |time: std::time::Duration| u32::try_from(time.as_micros()).expect("short");
    Settings {
        kind: TableKind::Maglev,
        terms,
        config: Config {
            addresses: vec![address],
            term_us: micros(terms.term),
            least_term_us: micros(terms.least),
            drift_ppm: terms.drift.parts_per_million(),
            queue_us: micros(terms.queue),
            quiescence_ms: QUIESCENCE_MS,
            key,
            version_check: VersionCheck::Etag,
            store: None,
            encapsulation: None,
        },
        balancer: None,
    }
}

impl Balancer {
    pub(super) fn new(
        clock: Clock,
        terms: Terms,
        address: std::net::SocketAddr,
        key: PoolKey,
    ) -> Self {
        let mut balancer = Self {
            clock,
            settings: settings(terms, address, key),
            monitor: None,
            programs: None,
            has_power: true,
            returns_at: 0,
            streams: BTreeMap::new(),
            newest_stream: 0,
        };
        balancer.start(0);
        balancer
    }

    /// A process starts, with the table of the programs.
    fn start(&mut self, now: u64) {
        let empty = Table {
            epoch: 1_000_000 + now / 1000,
            kind: self.settings.kind,
            members: Vec::new(),
            granters: Vec::new(),
        };
        let table = self.programs.as_ref().map(|it| it.table.clone());
        let table = table.unwrap_or(empty);
        self.programs.get_or_insert_with(|| Programs {
            owners: owners_of(&table),
            table: table.clone(),
        });
        let reading = self.clock.reading(now);
        let register = MemoryRegister::new(table.clone());
        self.monitor = Some(Monitor::new(
            self.settings.clone(),
            register,
            table,
            reading,
        ));
        self.returns_at = u64::MAX;
    }

    /// The process dies; the kernel ends its streams.
    pub(super) fn kill(&mut self, returns_at: u64, now: u64) {
        self.monitor = None;
        self.returns_at = returns_at;
        for stream in self.streams.values_mut() {
            stream.up.clear();
            stream.down.push_back((now + MS / 10, None));
        }
    }

    /// The host loses power: nobody hears of that.
    pub(super) fn lose_power(&mut self, returns_at: u64) {
        (self.monitor, self.programs) = (None, None);
        self.has_power = false;
        self.returns_at = returns_at;
        self.streams.clear();
    }

    pub(super) const fn has_power(&self) -> bool {
        self.has_power
    }

    /// Names of the members in the table of the programs that get connections.
    pub(super) fn table(&self) -> Option<&Table> {
        self.programs.as_ref().map(|programs| &programs.table)
    }

    /// The member that gets the packets of a connection, by name.
    pub(super) fn owner(&self, key: FlowKey) -> Option<&str> {
        let programs = self.programs.as_ref()?;
        let hash = flow_hash(self.settings.config.key, key.client(), key.server());
        let owner = programs.owners.owner(hash)?;
        let member = programs.table.members.get(usize::from(owner.0))?;
        Some(member.name.as_str())
    }

    pub(super) fn drain(&mut self, name: &protocol::pool::MemberName, now: u64) {
        let reading = self.clock.reading(now);
        if let Some(monitor) = &mut self.monitor {
            // An error: no other member would get connections.
            let _ = monitor.drain(reading, name);
        }
    }

    /// A stream of a member. `None`: nobody listens.
    pub(super) fn connect(&mut self) -> Option<StreamId> {
        self.monitor.as_ref()?;
        self.newest_stream += 1;
        let id = StreamId(self.newest_stream);
        self.streams.insert(id, Stream::default());
        Some(id)
    }

    /// A message of a member, or the end of a stream. While the way is cut, messages wait.
    pub(super) fn say(
        &mut self,
        id: StreamId,
        message: Option<MemberMessage>,
        route: (u64, &mut SmallRng),
    ) {
        if let Some(stream) = self.streams.get_mut(&id) {
            let arrives = arrival(stream.up.back().map(|(at, _)| *at), route);
            stream.up.push_back((arrives, message));
        }
    }

    /// The next message for a member; `None` in the message: the stream has ended.
    pub(super) fn next_message(
        &mut self,
        id: StreamId,
        now: u64,
    ) -> Option<Option<BalancerMessage>> {
        let Some(stream) = self.streams.get_mut(&id) else {
            // A host that has power again knows nothing of the stream.
            return self.has_power.then_some(None);
        };
        let is_there = stream.down.front().is_some_and(|(at, _)| *at <= now);
        is_there
            .then(|| stream.down.pop_front())
            .flatten()
            .map(|(_, message)| message)
    }

    pub(super) fn next_message_at(&self, id: StreamId) -> u64 {
        let down = self.streams.get(&id).and_then(|stream| stream.down.front());
        down.map_or(u64::MAX, |(at, _)| *at)
    }

    pub(super) fn due(&self) -> u64 {
        let Some(monitor) = &self.monitor else {
            return self.returns_at;
        };
        let monitor_due = monitor.due_at().map_or(u64::MAX, |at| self.clock.when(at));
        let messages = self.streams.values().filter_map(|it| it.up.front());
        let messages = messages.map(|(at, _)| *at).min().unwrap_or(u64::MAX);
        monitor_due.min(messages)
    }

    /// Messages come before the clock. Returns whether the table has changed.
    pub(super) fn on_time(
        &mut self,
        cuts: impl Fn(StreamId) -> u64,
        route: (u64, &mut SmallRng),
    ) -> bool {
        let (now, rng) = route;
        if self.monitor.is_none() && now >= self.returns_at {
            self.has_power = true;
            self.start(now);
        }
        let reading = self.clock.reading(now);
        let Some(monitor) = &mut self.monitor else {
            return false;
        };
        for (id, stream) in &mut self.streams {
            while let Some((at, _)) = stream.up.front()
                && *at <= now
            {
                match stream.up.pop_front() {
                    Some((_, Some(message))) => monitor.on_message(reading, *id, message),
                    _ => monitor.on_stream_lost(*id),
                }
            }
        }
        monitor.on_time(reading);
        let mut changed = false;
        while let Some(output) = monitor.output() {
            let (id, message) = match output {
                Output::Table(table) => {
                    changed = true;
                    let owners = owners_of(&table);
                    self.programs = Some(Programs { table, owners });
                    continue;
                }
                Output::Send { stream, message } => (stream, Some(message)),
                Output::Close { stream } => (stream, None),
                Output::Event(_) => continue,
            };
            if let Some(stream) = self.streams.get_mut(&id) {
                let last = stream.down.back().map(|(at, _)| *at);
                let arrives = arrival(last, (now.max(cuts(id)), rng));
                stream.down.push_back((arrives, message));
            }
        }
        changed
    }
}

/// Streams keep the order.
fn arrival(last: Option<u64>, (from, rng): (u64, &mut SmallRng)) -> u64 {
    (from + link_delay(rng)).max(last.unwrap_or(0))
}
