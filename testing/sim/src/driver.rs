//! The supervisor: the steps of the loop of `serve` in the same order, with models of processes and kernel maps.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use journal::{Journal, State};
use rand::{Rng, rngs::SmallRng};
use recovery::{Action, Candidate, Cause, Config, Event, Recovery, Stage};
use south_model::{Event as KernelEvent, EventKind, SouthSide, released_ack};
use wire::{FlowId, FlowKey};

use crate::{
    MS, SECOND,
    invariants::{InvariantChecker, Violation},
    node::Node,
    process::Process,
    record::{Logger, Notice, fresh},
    scenario::{Crash, ServiceSetup, When},
    trace,
};

const HEARTBEAT_INTERVAL: u64 = recovery::HEARTBEAT_INTERVAL.as_secs() * SECOND;
const SWEEP_INTERVAL: u64 = recovery::SWEEP_INTERVAL.as_secs() * SECOND;
const SWEEP_AGE: u64 = recovery::SWEEP_AGE.as_secs() * SECOND;
/// Longest wait for repeated output. The simulated server answers sooner or never, and a run is shorter than the
/// timeout of `serve`.
const REPEAT_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest pause between two looks while something is to be watched, ns.
const LONGEST_POLL_PAUSE: u64 = 10 * MS;

/// The parts that a supervisor works with.
pub(crate) struct Context<'a> {
    pub(crate) node: &'a mut Node,
    pub(crate) logger: &'a mut Logger,
    pub(crate) checker: &'a mut InvariantChecker,
    pub(crate) rng: &'a mut SmallRng,
    pub(crate) now: u64,
}

/// The supervisor.
pub(crate) struct Driver {
    pub(crate) setup: ServiceSetup,
    pub(crate) recovery: Recovery,
    /// Kernel events that were not read yet.
    inbox: VecDeque<KernelEvent>,
    pub(crate) incarnation: u32,
    starts: u32,
    pub(crate) start_at: Option<u64>,
    /// Time at which the killed processes are gone, ns.
    pub(crate) empty_at: Option<u64>,
    /// Whether the end of the main process was noticed.
    exit_seen: bool,
    pub(crate) expected: BTreeMap<FlowId, Vec<u32>>,
    /// Connections that came too late for the list.
    late: Vec<(FlowKey, FlowId)>,
    /// Whether to list the connections at the next answer of the logger.
    pub(crate) list_again: bool,
    /// Time of the next round of the loop, ns.
    pub(crate) due: u64,
    idle: u64,
    next_heartbeat: u64,
    next_sweep: u64,
    next_release: u64,
    /// The crash that waits for an action of the right kind.
    pub(crate) trap: Option<Crash>,
    /// A crash that such an action has set for later.
    pub(crate) sprung: Option<(u64, Crash)>,
    pub(crate) recoveries: u32,
    pub(crate) replayed_bytes: u64,
    pub(crate) deaths: u32,
}

impl Driver {
    pub(crate) fn new(setup: ServiceSetup) -> Self {
        let recovery = Recovery::new(Config {
            replay: setup.mode,
            splice_window: setup.splice_window,
            settle: Duration::from_nanos(setup.settle),
            quarantine_after: setup.quarantine_after,
            verify_head: setup.verify_head,
            max_segment: setup.max_segment,
            wrapped: setup.north.is_some(),
            hear_timeout: setup.north.map_or(Duration::ZERO, |north| north.patience),
            output_repeat_timeout: REPEAT_TIMEOUT,
            ..Config::default()
        });
        Self {
            recovery,
            inbox: VecDeque::new(),
            incarnation: 1,
            starts: 0,
            start_at: Some(0),
            empty_at: None,
            exit_seen: false,
            expected: BTreeMap::new(),
            late: Vec::new(),
            list_again: false,
            due: 0,
            idle: 0,
            next_heartbeat: 0,
            next_sweep: 0,
            next_release: 0,
            trap: None,
            sprung: None,
            recoveries: 0,
            replayed_bytes: 0,
            deaths: 0,
            setup,
        }
    }

    /// The supervisor of a host with new power; `starts` counts the earlier starts of the server. The restored
    /// connections are behind the gate.
    pub(crate) fn anew(setup: ServiceSetup, starts: u32, now: u64) -> Self {
        let mut driver = Self {
            starts,
            start_at: None,
            due: now,
            next_heartbeat: now,
            next_sweep: now + SWEEP_INTERVAL,
            ..Self::new(setup)
        };
        driver.recovery.on_death(Cause::Host, time(now), time(now));
        driver
    }

    /// Number of starts of the server.
    pub(crate) const fn starts(&self) -> u32 {
        self.starts
    }

    /// Whether the service works, and no event is expected.
    pub(crate) fn at_rest(&self) -> bool {
        self.recovery.stage() == Stage::Serving
            && self.inbox.is_empty()
            && self.late.is_empty()
            && self.recovery.unsettled() == 0
    }

    fn lag(&self, rng: &mut SmallRng) -> u64 {
        rng.random_range(self.setup.supervisor_lag / 4..=self.setup.supervisor_lag)
    }

    /// Wakes the loop after an event of the host.
    pub(crate) fn hint(&mut self, node: &mut Node, logger: &Logger, rng: &mut SmallRng, now: u64) {
        self.inbox
            .extend(std::iter::from_fn(|| node.south.take_event()));
        if !self.inbox.is_empty() || !logger.notices.is_empty() {
            self.due = self.due.min(now + self.lag(rng));
        }
    }

    /// A round of the loop.
    pub(crate) fn round(&mut self, context: &mut Context<'_>) -> Result<(), Violation> {
        let mut busy = !self.inbox.is_empty();
        while let Some(event) = self.inbox.pop_front() {
            self.kernel_event(event, context);
        }
        if !context.logger.is_away() {
            for (key, flow) in std::mem::take(&mut self.late) {
                self.late_connection(key, flow, context);
            }
        }
        self.poll_server(context)?;
        while let Some(notice) = context.logger.notices.pop_front() {
            self.logger_says(notice, context.node, context.checker, context.now)?;
        }
        self.progress(context);
        if self.list_again && !context.logger.is_away() {
            self.list_connections(context);
        }
        if !context.logger.is_away() {
            self.recovery.logger_answers(time(context.now));
        }
        busy |= self.act(context)?;
        self.start_if_due(context);
        self.periodic(context);
        self.idle = if busy { 0 } else { self.idle + 1 };
        let watching = !self.at_rest() || self.start_at.is_some();
        let look = (self.lag(context.rng) + self.idle * MS / 10).min(LONGEST_POLL_PAUSE);
        self.due = if watching {
            context.now + look
        } else {
            self.next_heartbeat
        };
        Ok(())
    }

    /// Compares the connections, as `serve` does after a new attach to a logger: unacknowledged frames may be lost.
    pub(crate) fn compare_connections(&mut self, journal: &Journal, south: &SouthSide, now: u64) {
        for (_, flow) in south.flows() {
            let state = journal.summary(flow.id).map(|summary| summary.state);
            if let Some(State::Protected(record)) = state
                && flow.unprotected.is_none()
                && record.fin.is_none()
            {
                let (id, told) = (flow.id, flow.server.ack);
                self.recovery
                    .record_ends(id, record.stable_seq, told, time(now));
            }
        }
    }

    fn kernel_event(&mut self, event: KernelEvent, context: &mut Context<'_>) {
        let now = time(context.now);
        match event.kind {
            EventKind::Death { pid, status } if event.incarnation == self.incarnation => {
                self.recovery.on_death(cause_of(pid, status), event.at, now);
            }
            EventKind::Death { .. } => {}
            EventKind::Listening if event.incarnation == self.incarnation => {
                self.recovery.listening(now);
            }
            EventKind::Listening => {} // of an incarnation that has ended
            EventKind::Unprotected { flow, reason, .. } => {
                self.recovery.unprotected(flow, reason);
                context.logger.unprotect(flow);
            }
            EventKind::Diverged { key, flow, .. } => {
                if let Some(flow) = context.node.numbered(key, flow) {
                    self.recovery.diverged(key, &flow);
                }
            }
            EventKind::Late { key, flow } => self.late.push((key, flow)),
            EventKind::Reprotected { .. } => {} // the logger is never lost here
        }
    }

    fn late_connection(&mut self, key: FlowKey, id: FlowId, context: &mut Context<'_>) {
        let Some(flow) = context.node.numbered(key, id) else {
            return;
        };
        // The frame of the handshake may still be in the ring: then the record is as if newly opened.
        let record = context
            .logger
            .record(flow.id)
            .unwrap_or_else(|| fresh(&flow));
        let candidate = Candidate {
            key,
            record: Some(record),
            replay_position: context.node.standing(key, &flow),
            flow,
        };
        self.recovery.late_connection(&candidate, time(context.now));
    }

    fn poll_server(&mut self, context: &mut Context<'_>) -> Result<(), Violation> {
        let now = time(context.now);
        if !context.node.alive() && !self.exit_seen && self.start_at.is_none() {
            self.exit_seen = true;
            if self.recovery.stage() != Stage::Clearing {
                self.recovery.on_death(cause_of(self.starts, 9), now, now);
                self.act(context)?;
            }
        }
        if self.empty_at.is_some_and(|at| at <= context.now) {
            self.empty_at = None;
            context.node.close_all(context.checker, context.now)?;
        }
        if self.recovery.stage() == Stage::Clearing && !context.node.populated() {
            self.recovery.service_empty(now);
            self.incarnation += 1;
            self.empty_at = None; // the processes had ended before
        }
        if context.node.has_replayed() {
            self.recovery.replayed(now);
        }
        Ok(())
    }

    fn logger_says(
        &mut self,
        notice: Notice,
        node: &mut Node,
        checker: &mut InvariantChecker,
        now: u64,
    ) -> Result<(), Violation> {
        match notice {
            Notice::Drained(token) => self.recovery.drained(token),
            Notice::Unprotected(flow, reason) => self.release(flow, reason, node, checker, now)?,
            Notice::Unknown(low) => {
                // The logger knows of a closed connection already, by a faster way than the last segment's.
                let known =
                    |flow: &south_model::Flow| flow.unprotected.is_none() && flow.closed_ns == 0;
                let same =
                    |flow: &south_model::Flow| flow.id.0 & u64::from(u32::MAX) == u64::from(low);
                let flows = node.south.flows().map(|(_, flow)| flow);
                let found = flows
                    .filter(|flow| known(flow) && same(flow))
                    .map(|f| f.id)
                    .next();
                if let Some(flow) = found {
                    self.release(
                        flow,
                        types::UnprotectedReason::LoggerLost,
                        node,
                        checker,
                        now,
                    )?;
                }
            }
        }
        Ok(())
    }

    /// Forgets the record of a connection.
    fn release(
        &mut self,
        flow: FlowId,
        reason: types::UnprotectedReason,
        node: &mut Node,
        checker: &mut InvariantChecker,
        now: u64,
    ) -> Result<(), Violation> {
        self.recovery.unprotected(flow, reason);
        let found = node.south.flows().find(|(_, known)| known.id == flow);
        let Some((key, known)) = found.map(|(key, known)| (*key, known.clone())) else {
            node.south.refuse(flow, reason); // or gone meanwhile: as well
            return Ok(());
        };
        let _ = node.south.unprotect(key, flow, reason);
        // Clients that wait for the logger get an acknowledgement of the server's data.
        if self.recovery.stage() == Stage::Serving
            && let Ok(Some(ack)) = released_ack(key, &known)
        {
            node.send_to_client(ack, checker, now)?;
        }
        Ok(())
    }

    fn progress(&mut self, context: &mut Context<'_>) {
        let watched: Vec<(FlowId, FlowKey)> = self.recovery.watched(time(context.now)).collect();
        for (id, key) in watched {
            self.recovery
                .observe(id, context.node.south.flow(&key), time(context.now));
        }
        self.recovery.poll(time(context.now));
    }

    /// Performs all actions that are due. Returns whether there were any.
    fn act(&mut self, context: &mut Context<'_>) -> Result<bool, Violation> {
        let mut busy = false;
        self.process_reports(context)?;
        while let Some(action) = self.recovery.next_action() {
            busy = true;
            trace::note(context.now, || format!("{action:?}"));
            self.perform(action, context)?;
            self.spring(action, context)?;
            self.process_reports(context)?;
        }
        Ok(busy)
    }

    /// Reads the events for people.
    fn process_reports(&mut self, context: &mut Context<'_>) -> Result<(), Violation> {
        while let Some(event) = self.recovery.next_event() {
            trace::note(context.now, || &event);
            match event {
                Event::ConnectionReset {
                    connection, reason, ..
                } => context.checker.lost(connection, reason)?,
                Event::Serving { replayed_bytes, .. } => {
                    self.recoveries += 1;
                    self.replayed_bytes += replayed_bytes;
                }
                Event::Died { .. } => self.deaths += 1,
                _ => {}
            }
        }
        Ok(())
    }

    /// Sets the crash that this action triggers.
    fn spring(&mut self, action: Action, context: &mut Context<'_>) -> Result<(), Violation> {
        let Some(Crash {
            when: When::During(kind, delay),
            workers_survive,
            status,
            fuse,
        }) = self.trap
        else {
            return Ok(());
        };
        if kind != crate::actions::kind_of(&action) {
            return Ok(());
        }
        let crash = self.trap.take();
        if let Some(fuse) = fuse {
            Self::light(fuse, context);
        } else if delay < MS {
            context
                .node
                .crash(status, workers_survive, context.checker, context.now)?;
        } else if let Some(crash) = crash {
            self.sprung = Some((context.now + delay, crash));
        }
        Ok(())
    }

    fn start_if_due(&mut self, context: &mut Context<'_>) {
        let now = time(context.now);
        if self.start_at.is_none_or(|at| context.now < at) {
            return;
        }
        self.start_at = None;
        if self.starts > 0 && context.rng.random_ratio(self.setup.starts_failed, 1000) {
            self.recovery.on_death(Cause::NotServing, now, now);
            return;
        }
        self.starts += 1;
        self.exit_seen = false;
        let pid = 100 + self.starts;
        // The first clients do not come before there is a server.
        let boot = if self.starts == 1 {
            0
        } else {
            context.rng.random_range(0..=self.setup.boot)
        };
        let listens_at = context.now + boot;
        context.node.south.main_process(pid);
        let mut process = Process::new(pid, self.starts, listens_at);
        process.thinks = self.setup.thinks;
        context.node.begin(process);
        self.recovery.started(pid, now);
    }

    fn periodic(&mut self, context: &mut Context<'_>) {
        if context.now >= self.next_heartbeat {
            self.next_heartbeat = context.now + HEARTBEAT_INTERVAL;
            context.node.south.heartbeat(context.now);
        }
        if context.now >= self.next_sweep {
            self.next_sweep = context.now + SWEEP_INTERVAL;
            context.node.south.sweep(SWEEP_AGE, context.now);
        }
        self.release_read_input(context);
    }
}

impl Driver {
    /// Lets the logger drop input that a stateful server has read and recorded.
    fn release_read_input(&mut self, context: &mut Context<'_>) {
        let Some(every) = self.setup.north.and_then(|north| north.release_every) else {
            return;
        };
        if self.recovery.stage() == Stage::Serving && context.now >= self.next_release {
            self.next_release = context.now + every;
            context.logger.release(context.node.read_positions());
        }
    }

    /// Sets the server's death `fuse` steps from now, or from the next start.
    fn light(fuse: u32, context: &mut Context<'_>) {
        if let Some(north) = &mut context.node.north {
            north.fuse = Some(fuse);
        }
    }
}

/// The time as `recovery` counts it.
pub(crate) fn time(now: u64) -> Duration {
    Duration::from_nanos(now)
}

fn cause_of(pid: u32, status: u32) -> Cause {
    match status & 0x7f {
        0 => Cause::Status {
            pid,
            status: (status >> 8) & 0xff,
        },
        signal => Cause::Signal { pid, signal },
    }
}
