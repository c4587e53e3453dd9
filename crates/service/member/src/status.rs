//! The status of a member, for `outlive status` and the metrics.

use std::{collections::BTreeMap, fmt, net::SocketAddr, time::Duration};

use ::metrics::Histogram;
use serde::{Deserialize, Serialize};

use crate::event::Event;

/// State of a member.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the schema of status and events.
    pub version: u32,
    /// The name of the member.
    pub member: String,
    /// `starting`: the server does not listen; `joining`: the balancer has not admitted the member; `silent`: no lease;
    /// `serving`.
    pub stage: String,
    /// Milliseconds since the start of the member.
    pub uptime_ms: u64,
    /// The pool.
    pub pool: PoolStatus,
    /// The server.
    pub server: ServerStatus,
    /// The stores of the pool.
    #[serde(default)]
    pub stores: Vec<StoreStatus>,
    /// Number of open connections.
    pub connections: usize,
    /// The connections by phase, and by the place of the state with which another member would go on.
    pub flows: Vec<FlowCount>,
    /// Connections that no other member could go on with, by reason.
    pub unprotected_by: BTreeMap<String, usize>,
    /// Numbers since the start of the member.
    pub totals: Totals,
    /// Counters of the programs.
    pub counters: BTreeMap<String, u64>,
    /// Every connection, if asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub list: Vec<ConnectionStatus>,
}

/// A member's knowledge of its pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Where the balancers listen for members.
    pub balancers: Vec<SocketAddr>,
    /// Epoch of the newest table; `None`: not admitted.
    pub epoch: Option<u64>,
    /// Number of members in the newest table.
    pub members: usize,
    /// Rest of the lease, milliseconds; `None`: the member must not send.
    pub lease_ms: Option<u64>,
    /// Why the member has no stream to a balancer.
    pub balancer_lost: Option<String>,
}

/// The server of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Addresses of the pool, to which clients connect.
    pub addresses: Vec<SocketAddr>,
    /// Main process; `None`: the server does not run.
    pub pid: Option<u32>,
    /// Incarnation of the server, from 1.
    pub incarnation: u32,
}

/// A store of the pool, as a member sees the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoreStatus {
    /// The URL, without a password.
    pub store: String,
    /// Whether the store answers.
    pub answers: bool,
    /// Operations since the start of the member.
    pub operations: Vec<OperationStatus>,
}

/// Operations of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationStatus {
    /// `put`, `get`, `scan`, `delete`, `renew`, `add_member`, `members` or `probe`.
    pub operation: String,
    /// Numbers by outcome: `ok`, `missing`, or the kind of failure.
    pub outcomes: BTreeMap<String, u64>,
    /// Time to the answer. Operations without an answer are left out.
    pub answers_s: Histogram,
}

/// Connections with the same phase and the same place of their state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowCount {
    /// The phase.
    pub phase: FlowPhase,
    /// The place of the state.
    pub held_by: HeldBy,
    /// Number of connections.
    pub connections: usize,
}

/// Phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowPhase {
    /// No request is under way.
    Idle,
    /// The connection is not protected, and its requests are not read.
    Unread,
    /// The server has a request, and has sent nothing so far.
    Asked,
    /// A response is under way.
    Body,
    /// The connection of a dead server: the member asks its server for the rest.
    Reviving,
    /// The connection of this member's dead server, before the next segment of the client.
    Orphaned,
}

/// The place of the state with which another member would go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldBy {
    /// The client's packets: its unacknowledged request, and the timestamps that it echoes.
    Client,
    /// The store has the request and the position; the client's timestamps name the record.
    Store,
    /// None: the connection is reset when the member dies.
    None,
}

/// Status of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// Both ends of the connection.
    pub connection: String,
    /// The phase.
    pub phase: FlowPhase,
    /// The place of the state.
    pub held_by: HeldBy,
    /// Why no other member could go on.
    pub reason: Option<String>,
    /// Request target of the response under way, if this member has read it: of a revived response.
    pub object: Option<String>,
    /// Bytes of the body that the client has, if the timestamps of the connection have the beginning of the body.
    pub offset: Option<u64>,
    /// Bytes of the response, head and body, that the client has acknowledged.
    pub acked_bytes: u64,
    /// Length of the response, head and body, if known.
    pub response_bytes: Option<u64>,
}

/// Numbers since the start of a member.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Connections that went on here.
    pub revived: u64,
    /// Connections that were reset, by reason.
    pub refused_by: BTreeMap<String, u64>,
    /// Connections whose segments went to another member.
    pub forwarded: u64,
    /// Segments of unknown connections that were too many to be looked at.
    #[serde(default)]
    pub over_budget: u64,
    /// Duration of a revival, from the answers of the other members and of the store on.
    pub revivals_s: Histogram,
    /// Events by kind.
    pub events: BTreeMap<String, u64>,
}

impl FlowPhase {
    /// All phases.
    pub const ALL: [Self; 6] = [
        Self::Idle,
        Self::Unread,
        Self::Asked,
        Self::Body,
        Self::Reviving,
        Self::Orphaned,
    ];

    /// The label in JSON and in metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Unread => "unread",
            Self::Asked => "asked",
            Self::Body => "body",
            Self::Reviving => "reviving",
            Self::Orphaned => "orphaned",
        }
    }
}

impl HeldBy {
    /// All places.
    pub const ALL: [Self; 3] = [Self::Client, Self::Store, Self::None];

    /// The label in JSON and in metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Store => "store",
            Self::None => "none",
        }
    }
}

impl Totals {
    pub(crate) fn count(&mut self, event: &Event) {
        *self.events.entry(event.kind().to_owned()).or_default() += 1;
        match event {
            Event::Revived { after_us, .. } => {
                self.revived += 1;
                let after = Duration::from_micros(*after_us);
                self.revivals_s.observe(after.as_secs_f64());
            }
            Event::Refused { code, .. } => {
                *self.refused_by.entry((*code).to_owned()).or_default() += 1;
            }
            Event::Forwarded { .. } => self.forwarded += 1,
            Event::OverBudget { dropped } => self.over_budget += dropped,
            _ => {}
        }
    }

    /// Connections that were reset.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused_by.values().sum()
    }
}

impl Status {
    /// Number of connections that match.
    #[must_use]
    pub fn count(&self, matches: impl Fn(&FlowCount) -> bool) -> usize {
        let matching = self.flows.iter().filter(|count| matches(count));
        matching.map(|count| count.connections).sum()
    }
}

/// `2 chunked, 1 no_timestamps`
fn listed<N: fmt::Display>(counts: &BTreeMap<String, N>) -> String {
    let counts = counts.iter().map(|(word, count)| format!("{count} {word}"));
    counts.collect::<Vec<_>>().join(", ")
}

fn in_parentheses(words: &str) -> String {
    match words.is_empty() {
        true => String::new(),
        false => format!(" ({words})"),
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.server.addresses.iter().map(SocketAddr::to_string);
        let addresses = addresses.collect::<Vec<_>>().join(", ");
        writeln!(f, "{}: {} on {addresses}", self.member, self.stage)?;
        writeln!(f, "  pool         {}", self.pool)?;
        writeln!(f, "  server       {}", self.server)?;
        for store in &self.stores {
            writeln!(f, "  store        {store}")?;
        }
        let held = self.count(|flow| flow.held_by == HeldBy::Client);
        write!(f, "  connections  {} open", self.connections)?;
        if self.connections > 0 {
            write!(f, ": {held} held by their clients")?;
        }
        let stored = self.count(|flow| flow.held_by == HeldBy::Store);
        if stored > 0 {
            write!(f, ", {stored} by the store")?;
        }
        let unprotected = self.count(|flow| flow.held_by == HeldBy::None);
        if unprotected > 0 {
            let reasons = in_parentheses(&listed(&self.unprotected_by));
            write!(f, ", {unprotected} NOT PROTECTED{reasons}")?;
        }
        writeln!(f)?;
        let phases = FlowPhase::ALL.map(|phase| (phase, self.count(|flow| flow.phase == phase)));
        let phases = phases.into_iter().filter(|(_, count)| *count > 0);
        let phases = phases.map(|(phase, count)| format!("{count} {}", phase.word()));
        let phases = phases.collect::<Vec<_>>().join(", ");
        if !phases.is_empty() {
            writeln!(f, "               {phases}")?;
        }
        let totals = &self.totals;
        write!(
            f,
            "  since start  {} revived, {} refused{}, {} forwarded",
            totals.revived,
            totals.refused(),
            in_parentheses(&listed(&totals.refused_by)),
            totals.forwarded
        )?;
        for connection in &self.list {
            write!(f, "\n    {connection}")?;
        }
        Ok(())
    }
}

impl fmt::Display for PoolStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.balancers.iter().map(SocketAddr::to_string);
        let word = match self.balancers.len() {
            1 => "balancer",
            _ => "balancers",
        };
        write!(f, "{word} {}", all.collect::<Vec<_>>().join(", "))?;
        if let Some(reason) = &self.balancer_lost {
            write!(f, " (LOST: {reason})")?;
        }
        match self.epoch {
            Some(epoch) => write!(f, ", epoch {epoch}, members: {}", self.members)?,
            None => write!(f, ", not a member")?,
        }
        match self.lease_ms {
            Some(rest) => write!(f, ", lease for {rest} ms more"),
            None => write!(f, ", no lease"),
        }
    }
}

impl fmt::Display for ServerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "process {pid}")?,
            None => write!(f, "not running")?,
        }
        write!(f, ", incarnation {}", self.incarnation)
    }
}

impl fmt::Display for StoreStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.answers {
            "answers"
        } else {
            "DOES NOT ANSWER"
        };
        write!(f, "{} {word}", self.store)?;
        let puts = self.operations.iter().find(|it| it.operation == "put");
        let outcomes = puts.map(|puts| puts.outcomes.clone()).unwrap_or_default();
        let written = outcomes.get("ok").copied().unwrap_or_default();
        write!(f, ", records: {written} written")?;
        let failed = outcomes.into_iter().filter(|(outcome, _)| outcome != "ok");
        let failed: BTreeMap<String, u64> = failed.collect();
        match failed.is_empty() {
            true => Ok(()),
            false => write!(f, ", NOT WRITTEN: {}", listed(&failed)),
        }
    }
}

impl fmt::Display for ConnectionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  {}", self.connection, self.phase.word())?;
        if let Some(object) = &self.object {
            write!(f, " {object}")?;
        }
        if let Some(offset) = self.offset {
            write!(f, ", byte {offset} of the body")?;
        }
        if self.phase == FlowPhase::Body {
            write!(f, ", {} bytes acknowledged", self.acked_bytes)?;
            if let Some(len) = self.response_bytes {
                write!(f, " of {len}")?;
            }
        }
        match &self.reason {
            None if self.held_by == HeldBy::Store => write!(f, ", held by the store"),
            None => write!(f, ", held by the client"),
            Some(reason) => write!(f, ", NOT PROTECTED: {reason}"),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
