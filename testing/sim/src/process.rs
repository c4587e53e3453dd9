//! The server application: one process, one incarnation.

use std::collections::{BTreeMap, BTreeSet};

use rand::{Rng, rngs::SmallRng};
use smoltcp::{iface::SocketHandle, socket::tcp::State};
use wire::FlowKey;

use crate::{
    host::{Host, ends},
    invariants::{InvariantChecker, Violation},
    session::{Common, Session},
    stateful::Stateful,
};

/// An incarnation of the server.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) incarnation: u32,
    pub(crate) listening: bool,
    /// The main process is dead, and other processes live on.
    pub(crate) headless: bool,
    sessions: BTreeMap<SocketHandle, (FlowKey, Session)>,
    /// Time of the next run, ns.
    pub(crate) act_at: u64,
    /// Number of runs without work in a row.
    pub(crate) idle: u32,
    /// Read bytes by connection: offset in the client's stream.
    read: BTreeMap<FlowKey, usize>,
    common: Common,
    /// The stateful server, which then does all the work.
    pub(crate) stateful: Option<Stateful>,
    /// Longest time between a read and the response, ns.
    pub(crate) thinks: u64,
}

/// Result of a run.
#[derive(Debug, Default)]
pub(crate) struct ProcessOutcome {
    /// Connections that were closed.
    pub(crate) closed: Vec<FlowKey>,
    /// Whether the process dies.
    pub(crate) dies: bool,
}

impl Process {
    pub(crate) fn new(pid: u32, incarnation: u32, listens_at: u64) -> Self {
        Self {
            pid,
            incarnation,
            listening: false,
            headless: false,
            sessions: BTreeMap::new(),
            act_at: listens_at,
            idle: 0,
            read: BTreeMap::new(),
            common: Common::new(incarnation),
            stateful: None,
            thinks: 0,
        }
    }

    /// Whether the early end of a connection is reached.
    pub(crate) fn is_early(&self) -> bool {
        let mut sessions = self.sessions.values();
        sessions.any(|(_, session)| session.is_early)
    }

    /// Whether the server has half-closed this connection and reads on.
    pub(crate) fn reads_on(&self, handle: SocketHandle) -> bool {
        let session = self.sessions.get(&handle);
        session.is_some_and(|(_, session)| session.half_closed)
    }

    /// Accepts, reads, responds and closes. A `later` incarnation may half-close early.
    pub(crate) fn act(
        &mut self,
        later: &BTreeSet<FlowKey>,
        host: &mut Host,
        checker: &mut InvariantChecker,
        rng: &mut SmallRng,
        now: u64,
    ) -> Result<ProcessOutcome, Violation> {
        self.accept(host, checker, rng);
        let mut deeds = ProcessOutcome::default();
        self.idle += 1;
        let mut over = Vec::new();
        for (handle, (key, session)) in &mut self.sessions {
            if rng.random_bool(0.2) {
                continue; // busy with other connections
            }
            if session.wants_input() {
                let max = [1, 100, 4000, 40_000][rng.random_range(0..4)];
                match host.read(*handle, max) {
                    Ok(Some(bytes)) if bytes.is_empty() => {}
                    Ok(Some(bytes)) => {
                        self.idle = 0;
                        let at = self.read.entry(*key).or_default();
                        checker.server_read(*key, *at, &bytes)?;
                        *at += bytes.len();
                        checker.executes(*key, *at, self.incarnation)?;
                        let is_silent = session.output.is_empty();
                        session.read(&bytes, &mut self.common);
                        if self.thinks > 0 && is_silent {
                            session.speaks_at = now + rng.random_range(0..self.thinks);
                        }
                    }
                    Ok(None) => session.end_of_input(),
                    Err(_) => {
                        over.push(*handle); // reset
                        continue;
                    }
                }
            }
            if session.poisoned {
                deeds.dies = true;
                return Ok(deeds);
            }
            if now >= session.speaks_at && Self::write(host, *handle, session, rng) {
                self.idle = 0;
            }
            if session.is_early && session.output.is_empty() && later.contains(key) {
                host.socket(*handle).close();
                session.half_closed = true;
            }
            let at_whim = self.headless && rng.random_bool(0.2);
            if (session.closing && session.output.is_empty()) || at_whim {
                host.socket(*handle).close();
                deeds.closed.push(*key);
                over.push(*handle);
            }
        }
        for handle in over {
            self.sessions.remove(&handle);
        }
        Ok(deeds)
    }

    fn accept(&mut self, host: &mut Host, checker: &InvariantChecker, rng: &mut SmallRng) {
        let mut new = Vec::new();
        for (handle, socket) in host.tcp() {
            let open = matches!(socket.state(), State::Established | State::CloseWait);
            if open && !self.sessions.contains_key(&handle) && rng.random_bool(0.8) {
                let Some((local, remote)) = ends(socket) else {
                    continue;
                };
                new.push((handle, FlowKey::new(remote, local)));
            }
        }
        for (handle, key) in new {
            self.read.insert(key, checker.replay_offset(key));
            self.sessions.insert(handle, (key, Session::new()));
        }
    }

    fn write(
        host: &mut Host,
        handle: SocketHandle,
        session: &mut Session,
        rng: &mut SmallRng,
    ) -> bool {
        let before = session.output.len();
        let socket = host.socket(handle);
        while !session.output.is_empty() && socket.can_send() {
            let most = session.output.len().min(8192);
            let length = rng.random_range(1..=most);
            let piece: Vec<u8> = session.output.iter().take(length).copied().collect();
            let sent = socket.send_slice(&piece).unwrap_or(0);
            session.output.drain(..sent);
            if sent == 0 || rng.random_bool(0.3) {
                break;
            }
        }
        session.output.len() < before
    }

    /// The sockets of the process.
    pub(crate) fn held(&self) -> impl Iterator<Item = SocketHandle> + '_ {
        let stateful = self.stateful.iter().flat_map(Stateful::held);
        self.sessions.keys().copied().chain(stateful)
    }
}
