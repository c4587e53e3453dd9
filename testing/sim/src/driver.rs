//! The supervisor: what the loop of the crate `serve` does with processes and kernel maps, here
//! with models of them, in the same order.

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
    node::Node,
    process::Process,
    record::{Logger, Notice, fresh},
    scenario::{Crash, ServiceSetup, When},
    trace,
    witness::{Violation, Witness},
};

const HEARTBEAT_INTERVAL: u64 = recovery::HEARTBEAT_INTERVAL.as_secs() * SECOND;
const SWEEP_INTERVAL: u64 = recovery::SWEEP_INTERVAL.as_secs() * SECOND;
const SWEEP_AGE: u64 = recovery::SWEEP_AGE.as_secs() * SECOND;
/// Its server answers sooner, or never; a run does not last as long as `serve` waits.
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// Longest pause between two looks while something is to be watched, ns.
const LONGEST_LOOK: u64 = 10 * MS;

/// What a supervisor works with.
pub(crate) struct Ground<'a> {
    pub(crate) node: &'a mut Node,
    pub(crate) logger: &'a mut Logger,
    pub(crate) witness: &'a mut Witness,
    pub(crate) rng: &'a mut SmallRng,
    pub(crate) now: u64,
}

/// The supervisor.
pub(crate) struct Driver {
    pub(crate) setup: ServiceSetup,
    pub(crate) recovery: Recovery,
    /// What the kernel has told and we have not read.
    inbox: VecDeque<KernelEvent>,
    pub(crate) incarnation: u32,
    life: u32,
    pub(crate) start_at: Option<u64>,
    /// When the processes that were killed are gone.
    pub(crate) empty_at: Option<u64>,
    /// The end of the main process was noticed.
    exit_seen: bool,
    pub(crate) expected: BTreeMap<FlowId, Vec<u32>>,
    /// Connections that can be given to the server only now.
    late: Vec<(FlowKey, FlowId)>,
    /// The connections are to be listed when the logger answers.
    pub(crate) list_again: bool,
    /// When the loop goes round next, ns.
    pub(crate) due: u64,
    idle: u64,
    next_heartbeat: u64,
    next_sweep: u64,
    next_release: u64,
    /// The death that waits for an action of its kind.
    pub(crate) trap: Option<Crash>,
    /// A death that the trap has set for later.
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
            output_repeat_timeout: SAY_AGAIN,
            ..Config::default()
        });
        Self {
            recovery,
            inbox: VecDeque::new(),
            incarnation: 1,
            life: 0,
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

    /// The supervisor of a host that was switched on again; `life` lives of the server came before. It
    /// knows the connections that were restored behind the gate.
    pub(crate) fn anew(setup: ServiceSetup, life: u32, now: u64) -> Self {
        let mut driver = Self {
            life,
            start_at: None,
            due: now,
            next_heartbeat: now,
            next_sweep: now + SWEEP_INTERVAL,
            ..Self::new(setup)
        };
        driver.recovery.on_death(Cause::Host, time(now), time(now));
        driver
    }

    /// How many lives of the server there were.
    pub(crate) const fn life(&self) -> u32 {
        self.life
    }

    /// All is well and nothing is being watched.
    pub(crate) fn at_rest(&self) -> bool {
        self.recovery.stage() == Stage::Serving
            && self.inbox.is_empty()
            && self.late.is_empty()
            && self.recovery.unsettled() == 0
    }

    fn lag(&self, rng: &mut SmallRng) -> u64 {
        rng.random_range(self.setup.supervisor_lag / 4..=self.setup.supervisor_lag)
    }

    /// Something has happened on the host: it may be for us.
    pub(crate) fn hint(&mut self, node: &mut Node, logger: &Logger, rng: &mut SmallRng, now: u64) {
        self.inbox
            .extend(std::iter::from_fn(|| node.south.take_event()));
        if !self.inbox.is_empty() || !logger.notices.is_empty() {
            self.due = self.due.min(now + self.lag(rng));
        }
    }

    /// One round of the loop.
    pub(crate) fn round(&mut self, ground: &mut Ground<'_>) -> Result<(), Violation> {
        let mut busy = !self.inbox.is_empty();
        while let Some(event) = self.inbox.pop_front() {
            self.kernel_event(event, ground);
        }
        if !ground.logger.is_away() {
            for (key, flow) in std::mem::take(&mut self.late) {
                self.late_connection(key, flow, ground);
            }
        }
        self.look_at_server(ground)?;
        while let Some(notice) = ground.logger.notices.pop_front() {
            self.logger_says(notice, ground.node, ground.witness, ground.now)?;
        }
        self.progress(ground);
        if self.list_again && !ground.logger.is_away() {
            self.list_connections(ground);
        }
        if !ground.logger.is_away() {
            self.recovery.logger_answers(time(ground.now));
        }
        busy |= self.act(ground)?;
        self.start_if_due(ground);
        self.periodic(ground);
        self.idle = if busy { 0 } else { self.idle + 1 };
        let watching = !self.at_rest() || self.start_at.is_some();
        let look = (self.lag(ground.rng) + self.idle * MS / 10).min(LONGEST_LOOK);
        self.due = if watching {
            ground.now + look
        } else {
            self.next_heartbeat
        };
        Ok(())
    }

    /// As `serve` does when it attaches to a logger again: what was not acknowledged may be lost.
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

    fn kernel_event(&mut self, event: KernelEvent, ground: &mut Ground<'_>) {
        let now = time(ground.now);
        match event.kind {
            EventKind::Death { pid, status } if event.incarnation == self.incarnation => {
                self.recovery
                    .on_death(cause_of(pid, status), time(event.timestamp_ns), now);
            }
            EventKind::Death { .. } => {}
            EventKind::Listening if event.incarnation == self.incarnation => {
                self.recovery.listening(now);
            }
            EventKind::Listening => {} // of a life that has ended
            EventKind::Unprotected {
                flow_id, reason, ..
            } => {
                self.recovery.unprotected(flow_id, reason);
                ground.logger.unprotect(flow_id);
            }
            EventKind::Diverged { key, flow_id, .. } => {
                if let Some(flow) = ground.node.numbered(key, flow_id) {
                    self.recovery.diverged(key, &flow);
                }
            }
            EventKind::Late { key, flow_id } => self.late.push((key, flow_id)),
            EventKind::Reprotected { .. } => {} // the logger is never lost here
        }
    }

    fn late_connection(&mut self, key: FlowKey, id: FlowId, ground: &mut Ground<'_>) {
        let Some(flow) = ground.node.numbered(key, id) else {
            return;
        };
        // The frame that opened it may still be in the ring: then it is as if newly opened.
        let record = ground
            .logger
            .record(flow.id)
            .unwrap_or_else(|| fresh(&flow));
        let candidate = Candidate {
            key,
            record: Some(record),
            replay_position: ground.node.standing(key, &flow),
            flow,
        };
        self.recovery.late_connection(&candidate, time(ground.now));
    }

    fn look_at_server(&mut self, ground: &mut Ground<'_>) -> Result<(), Violation> {
        let now = time(ground.now);
        if !ground.node.alive() && !self.exit_seen && self.start_at.is_none() {
            self.exit_seen = true;
            if self.recovery.stage() != Stage::Clearing {
                self.recovery.on_death(cause_of(self.life, 9), now, now);
                self.act(ground)?;
            }
        }
        if self.empty_at.is_some_and(|at| at <= ground.now) {
            self.empty_at = None;
            ground.node.close_all(ground.witness, ground.now)?;
        }
        if self.recovery.stage() == Stage::Clearing && !ground.node.populated() {
            self.recovery.service_empty(now);
            self.incarnation += 1;
            self.empty_at = None; // they died by themselves before
        }
        if ground.node.has_replayed() {
            self.recovery.replayed(now);
        }
        Ok(())
    }

    fn logger_says(
        &mut self,
        notice: Notice,
        node: &mut Node,
        witness: &mut Witness,
        now: u64,
    ) -> Result<(), Violation> {
        match notice {
            Notice::Drained(token) => self.recovery.drained(token),
            Notice::Unprotected(flow, reason) => self.release(flow, reason, node, witness, now)?,
            Notice::Unknown(low) => {
                // Of one that is over the logger has been told, by a way that is faster than that of what came last.
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
                        witness,
                        now,
                    )?;
                }
            }
        }
        Ok(())
    }

    /// The connection has no record any more.
    fn release(
        &mut self,
        flow: FlowId,
        reason: types::UnprotectedReason,
        node: &mut Node,
        witness: &mut Witness,
        now: u64,
    ) -> Result<(), Violation> {
        self.recovery.unprotected(flow, reason);
        let found = node.south.flows().find(|(_, known)| known.id == flow);
        let Some((key, known)) = found.map(|(key, known)| (*key, known.clone())) else {
            node.south.refuse(flow, reason); // or gone meanwhile: as well
            return Ok(());
        };
        let _ = node.south.unprotect(key, flow, reason);
        // Who waits for the logger is told what the server has.
        if self.recovery.stage() == Stage::Serving
            && let Ok(Some(ack)) = released_ack(key, &known)
        {
            node.send_to_client(ack, witness, now)?;
        }
        Ok(())
    }

    fn progress(&mut self, ground: &mut Ground<'_>) {
        let watched: Vec<(FlowId, FlowKey)> = self.recovery.watched(time(ground.now)).collect();
        for (id, key) in watched {
            self.recovery
                .observe(id, ground.node.south.flow(&key), time(ground.now));
        }
        self.recovery.poll(time(ground.now));
    }

    /// Do everything that is asked for now. Answers whether anything was.
    fn act(&mut self, ground: &mut Ground<'_>) -> Result<bool, Violation> {
        let mut busy = false;
        self.hear(ground)?;
        while let Some(action) = self.recovery.next_action() {
            busy = true;
            trace::note(ground.now, || format!("{action:?}"));
            self.perform(action, ground)?;
            self.spring(action, ground)?;
            self.hear(ground)?;
        }
        Ok(busy)
    }

    /// What people would be told.
    fn hear(&mut self, ground: &mut Ground<'_>) -> Result<(), Violation> {
        while let Some(event) = self.recovery.next_event() {
            trace::note(ground.now, || &event);
            match event {
                Event::ConnectionReset {
                    connection, reason, ..
                } => ground.witness.lost(connection, reason)?,
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

    /// The server dies when the supervisor does this.
    fn spring(&mut self, action: Action, ground: &mut Ground<'_>) -> Result<(), Violation> {
        let Some(Crash {
            when: When::During(kind, delay),
            workers_live_on,
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
            Self::light(fuse, ground);
        } else if delay < MS {
            ground
                .node
                .crash(status, workers_live_on, ground.witness, ground.now)?;
        } else if let Some(crash) = crash {
            self.sprung = Some((ground.now + delay, crash));
        }
        Ok(())
    }

    fn start_if_due(&mut self, ground: &mut Ground<'_>) {
        let now = time(ground.now);
        if self.start_at.is_none_or(|at| ground.now < at) {
            return;
        }
        self.start_at = None;
        if self.life > 0 && ground.rng.random_ratio(self.setup.starts_failed, 1000) {
            self.recovery.on_death(Cause::NotServing, now, now);
            return;
        }
        self.life += 1;
        self.exit_seen = false;
        let pid = 100 + self.life;
        // The first clients do not come before there is a server.
        let boot = if self.life == 1 {
            0
        } else {
            ground.rng.random_range(0..=self.setup.boot)
        };
        let listens_at = ground.now + boot;
        ground.node.south.main_process(pid);
        let mut process = Process::new(pid, self.life, listens_at);
        process.thinks = self.setup.thinks;
        ground.node.begin(process);
        self.recovery.started(pid, now);
    }

    fn periodic(&mut self, ground: &mut Ground<'_>) {
        if ground.now >= self.next_heartbeat {
            self.next_heartbeat = ground.now + HEARTBEAT_INTERVAL;
            ground.node.south.heartbeat(ground.now);
        }
        if ground.now >= self.next_sweep {
            self.next_sweep = ground.now + SWEEP_INTERVAL;
            ground.node.south.sweep(SWEEP_AGE, ground.now);
        }
        self.release_what_was_read(ground);
    }
}

impl Driver {
    /// What a server with state has read, and noted, the logger need not keep.
    fn release_what_was_read(&mut self, ground: &mut Ground<'_>) {
        let Some(every) = self.setup.north.and_then(|north| north.release_every) else {
            return;
        };
        if self.recovery.stage() == Stage::Serving && ground.now >= self.next_release {
            self.next_release = ground.now + every;
            ground.logger.release(ground.node.what_was_read());
        }
    }

    /// The server dies `fuse` steps of its program from now, or of its next life's.
    fn light(fuse: u32, ground: &mut Ground<'_>) {
        if let Some(north) = &mut ground.node.north {
            north.fuse = Some(fuse);
        }
    }
}

/// The time as the recovery counts it.
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
