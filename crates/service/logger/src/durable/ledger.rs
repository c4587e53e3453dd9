//! The account of the log: entries to write, ACKs that wait for entries, and log files that are still needed.

use std::{collections::BTreeMap, time::Duration};

use wal::Batch;
use wire::FlowId;

mod bases;
mod copying;

use super::entry::{self, Entry};
use crate::link::{Outgoing, Sessions};
use bases::Bases;
use copying::Copying;

/// How long a commit may take before records go on in memory.
pub const SLOW: Duration = Duration::from_secs(2);
/// Time between a failure and the next attempt to begin a new log.
pub const RETRY: Duration = Duration::from_secs(10);
/// Longest wait of entries for which no ACK waits: how far clients have received the outstream. A download alone
/// must not keep a disk busy.
const UNHURRIED: Duration = Duration::from_secs(1);
/// Memory that an emptied batch keeps, bytes.
const BATCH_MEMORY: usize = 4 << 20;

/// A batch of entries to write and commit.
#[derive(Debug)]
pub struct Job {
    /// Number of the log file: the current file or the next.
    pub segment: u64,
    /// The entries.
    pub batch: Batch,
    /// Log files with lower numbers can be removed once this job is durable.
    pub remove_before: u64,
}

/// An order for the writer.
#[derive(Debug)]
pub enum Order {
    /// Write and commit.
    Write(Job),
    /// Remove the old log and begin a new log.
    Restart,
}

/// A change of the state of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Records are only in memory from now on.
    Volatile(
        /// The reason.
        String,
    ),
    /// All acknowledged records are durable again.
    Durable,
}

/// The state of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogState {
    /// All acknowledged records are in the log.
    Durable,
    /// A new log is being filled after a failure; ACKs do not wait meanwhile.
    CatchingUp,
    /// The log cannot be written. Records are only in memory.
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// ACKs wait for the log.
    Durable,
    /// A new log is being filled; ACKs do not wait.
    CatchingUp,
    /// There is no log. The next attempt to begin a log is due at this time.
    Volatile(Duration),
    /// The writer has the order to begin a new log.
    Restarting,
}

/// The order that the writer works on.
#[derive(Debug)]
struct Flight {
    since: Duration,
    held: Vec<Outgoing>,
    /// The log has caught up when this order is done.
    catches_up: bool,
}

/// Numbers of entries.
#[derive(Debug, Default)]
struct Entries {
    /// All entries.
    made: u64,
    /// Entries in ordered batches.
    ordered: u64,
    /// Entries in written batches.
    written: u64,
    /// All entries up to the last entry for which ACKs may wait.
    urgent: u64,
}

/// The account of a log.
#[derive(Debug)]
pub struct Ledger {
    mode: Mode,
    segment_size: u64,
    /// The log file that is written now, and the sizes of all files, ordered entries included.
    segment: u64,
    sizes: BTreeMap<u64, u64>,
    batch: Batch,
    entries: Entries,
    /// Time of the last order to write.
    ordered: Duration,
    held: Vec<Outgoing>,
    flight: Option<Flight>,
    bases: Bases,
    copying: Option<Copying>,
    /// While the log catches up: all connections up to this number are in the log, in the order of numbers. New
    /// connections are in the log, too.
    caught_up_to: Option<(u64, FlowId)>,
    /// An emptied batch, to be used again.
    spare: Batch,
}

impl Ledger {
    /// An empty account with `segment` as the current log file. A log file ends at `segment_size` bytes.
    pub(super) fn new(segment_size: u64, segment: u64) -> Self {
        Self {
            mode: Mode::Durable,
            segment_size,
            segment,
            sizes: BTreeMap::from([(segment, 0)]),
            batch: Batch::default(),
            entries: Entries::default(),
            ordered: Duration::ZERO,
            held: Vec::new(),
            flight: None,
            bases: Bases::default(),
            copying: None,
            caught_up_to: None,
            spare: Batch::default(),
        }
    }

    /// The log has been read and continues in this log file.
    pub(super) fn continue_in(&mut self, segment: u64) {
        self.segment = segment;
        self.sizes.insert(segment, 0);
    }

    /// A log file that was read has this length, bytes.
    pub(super) fn add_segment(&mut self, segment: u64, len: u64) {
        self.sizes.insert(segment, len);
    }

    /// The record of a connection begins in this log file.
    pub(super) fn add_base(&mut self, instance: u64, flow: FlowId, segment: u64) {
        self.bases.put(instance, flow, segment);
    }

    pub(super) fn remove_base(&mut self, instance: u64, flow: FlowId) {
        self.bases.remove(instance, flow);
    }

    pub(super) fn remove_instance(&mut self, instance: u64) {
        self.bases.remove_instance(instance);
    }

    /// The connections whose records begin in this log file or an earlier one.
    pub(super) fn based_up_to(&self, segment: u64) -> Vec<(u64, FlowId)> {
        let segments = self.bases.by_segment.range(..=segment);
        segments.flat_map(|(_, flows)| flows).copied().collect()
    }

    /// Holds an ACK back while ACKs wait for the log; otherwise returns the ACK.
    pub(crate) fn hold(&mut self, ack: Outgoing) -> Option<Outgoing> {
        if self.mode == Mode::Durable {
            self.held.push(ack);
            None
        } else {
            Some(ack)
        }
    }

    /// The connections of instance `from` belong to instance `to` from now on.
    pub(super) fn rename(&mut self, from: u64, to: u64) {
        self.bases.rename(from, to);
        if self.copying.as_ref().is_some_and(|c| c.instance == from) {
            self.copying = None;
        }
        // The order of the instances has changed, and the copying follows that order.
        self.caught_up_to = None;
    }

    /// Adds a change of a record to the log.
    pub(crate) fn record(&mut self, instance: u64, entry: &Entry<'_>) {
        if matches!(self.mode, Mode::Volatile(_) | Mode::Restarting) {
            return;
        }
        match entry {
            Entry::Opened(resume) => {
                self.abandon_copy_of(instance, resume.flow);
                self.bases.put(instance, resume.flow, self.segment);
            }
            Entry::Changed(flow, change) => {
                let copied =
                    matches!(&self.copying, Some(c) if (c.instance, c.flow) == (instance, *flow));
                if !copied && !self.bases.has(instance, *flow) {
                    return; // a copy will tell
                }
                if matches!(change, entry::Change::Closed | entry::Change::Unprotected) {
                    self.abandon_copy_of(instance, *flow);
                    self.bases.remove(instance, *flow);
                }
            }
            Entry::Forgotten => {
                if self
                    .copying
                    .as_ref()
                    .is_some_and(|c| c.instance == instance)
                {
                    self.copying = None;
                }
                self.bases.remove_instance(instance);
            }
            Entry::Inherited { from } => self.rename(*from, instance),
            Entry::Attached(_)
            | Entry::TurnsHeld(_)
            | Entry::DigestSeed(_)
            | Entry::CopyBegins(_)
            | Entry::Copied(..)
            | Entry::CopyBeginnings(..)
            | Entry::CopyEnds { .. } => {}
        }
        self.entries.made += 1;
        if !matches!(
            entry,
            Entry::Changed(_, entry::Change::Progress(_) | entry::Change::Digest(..))
        ) {
            self.entries.urgent = self.entries.made;
        }
        self.batch.add(|out| entry.write(instance, out));
    }

    /// Number of entries for which ACKs may wait, for [`Ledger::has_written`]. The clients' progress in the
    /// outstream is not counted: no ACK waits for that progress (`UNHURRIED`).
    pub(crate) const fn recorded(&self) -> u64 {
        self.entries.urgent
    }

    /// Number of all entries, for [`Ledger::has_written`].
    pub(crate) const fn made(&self) -> u64 {
        self.entries.made
    }

    fn is_urgent(&self) -> bool {
        self.entries.urgent > self.entries.ordered
    }

    /// Whether all entries up to this number are in the log. Also true while no ACK waits for the log.
    pub(crate) fn has_written(&self, recorded: u64) -> bool {
        self.mode != Mode::Durable || self.entries.written >= recorded
    }

    fn abandon_copy_of(&mut self, instance: u64, flow: FlowId) {
        if self
            .copying
            .as_ref()
            .is_some_and(|c| (c.instance, c.flow) == (instance, flow))
        {
            self.copying = None;
        }
    }

    /// The next order, if the writer is idle and there is work. ACKs that need no entry go into `out`.
    pub(crate) fn next(
        &mut self,
        sessions: &Sessions,
        now: Duration,
        out: &mut Vec<Outgoing>,
    ) -> Option<Order> {
        match self.mode {
            Mode::Volatile(retry) if now >= retry && self.flight.is_none() => {
                self.mode = Mode::Restarting;
                self.fly(now, false);
                return Some(Order::Restart);
            }
            Mode::Volatile(_) | Mode::Restarting => return None,
            Mode::Durable | Mode::CatchingUp if self.flight.is_some() => return None,
            Mode::Durable | Mode::CatchingUp => {}
        }
        self.copy_forward(sessions);
        let caught_up = self.mode == Mode::CatchingUp
            && self.copying.is_none()
            && self.without_base(sessions).is_none();
        let can_wait =
            self.batch.is_empty() || (!self.is_urgent() && now < self.ordered + UNHURRIED);
        if can_wait && !caught_up {
            out.append(&mut self.held);
            return None;
        }
        if caught_up {
            self.mode = Mode::Durable;
        }
        let batch = std::mem::replace(&mut self.batch, std::mem::take(&mut self.spare));
        self.entries.ordered = self.entries.made;
        self.ordered = now;
        let len = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let size = self.sizes.entry(self.segment).or_default();
        *size += len;
        let full = *size >= self.segment_size;
        let oldest = self.bases.by_segment.keys().next().copied();
        let copying = self.copying.as_ref().map(|copying| copying.begun_in);
        let remove_before = [oldest, copying]
            .into_iter()
            .flatten()
            .fold(self.segment, u64::min);
        self.sizes = self.sizes.split_off(&remove_before);
        let job = Job {
            segment: self.segment,
            batch,
            remove_before,
        };
        if full {
            self.segment += 1;
            self.sizes.insert(self.segment, 0);
            self.preamble(sessions);
        }
        self.fly(now, caught_up);
        Some(Order::Write(job))
    }

    fn fly(&mut self, since: Duration, catches_up: bool) {
        self.flight = Some(Flight {
            since,
            held: std::mem::take(&mut self.held),
            catches_up,
        });
    }

    /// Adds the entries that each log file needs, because earlier files may be removed.
    pub(super) fn preamble(&mut self, sessions: &Sessions) {
        for (attachment, session) in sessions.attachments() {
            let instance = attachment.attach.instance;
            let held = session.journal().turns_are_held();
            self.record(instance, &Entry::Attached(attachment.clone()));
            self.record(instance, &Entry::TurnsHeld(held));
            if let Some(seed) = session.digests() {
                self.record(instance, &Entry::DigestSeed(seed));
            }
        }
    }

    /// A job is durable: ACKs that waited for the job go into `out`. `batch` is the job's batch, to be used again.
    pub(crate) fn written(&mut self, mut batch: Batch, out: &mut Vec<Outgoing>) -> Option<Change> {
        batch.clear(BATCH_MEMORY);
        self.spare = batch;
        let mut flight = self.flight.take()?;
        match self.mode {
            Mode::Durable | Mode::CatchingUp => {
                self.entries.written = self.entries.ordered;
                out.append(&mut flight.held);
                flight.catches_up.then_some(Change::Durable)
            }
            // Too late: later acknowledged changes are not in the log.
            Mode::Volatile(_) | Mode::Restarting => None,
        }
    }

    /// The writer has begun the new log with this current log file.
    pub(crate) fn restarted(&mut self, segment: u64, sessions: &Sessions) {
        self.flight = None;
        if self.mode == Mode::Restarting {
            self.mode = Mode::CatchingUp;
            self.segment = segment;
            self.sizes = BTreeMap::from([(segment, 0)]);
            self.preamble(sessions);
        }
    }

    /// The storage has failed: all waiting ACKs go into `out`.
    pub(crate) fn failed(
        &mut self,
        why: String,
        now: Duration,
        out: &mut Vec<Outgoing>,
    ) -> Option<Change> {
        if let Some(mut flight) = self.flight.take() {
            out.append(&mut flight.held);
        }
        self.give_up(why, now, out)
    }

    fn give_up(&mut self, why: String, now: Duration, out: &mut Vec<Outgoing>) -> Option<Change> {
        out.append(&mut self.held);
        let was = std::mem::replace(&mut self.mode, Mode::Volatile(now + RETRY));
        self.bases = Bases::default();
        self.copying = None;
        self.caught_up_to = None;
        self.batch.clear(BATCH_MEMORY);
        self.entries.urgent = self.entries.ordered;
        // Another failure after the first is no news.
        matches!(was, Mode::Durable).then_some(Change::Volatile(why))
    }

    /// Gives the log up if the writer takes longer than [`SLOW`].
    pub(crate) fn check(&mut self, now: Duration, out: &mut Vec<Outgoing>) -> Option<Change> {
        let flight = self.flight.as_mut()?;
        if now < flight.since + SLOW || matches!(self.mode, Mode::Volatile(_)) {
            return None;
        }
        // Still in flight: the writer gets no other order before an answer.
        out.append(&mut flight.held);
        let why = format!("a commit takes longer than {} s", SLOW.as_secs());
        self.give_up(why, now, out)
    }

    /// Time of the next work for [`Ledger::check`] or [`Ledger::next`] without new input.
    pub(crate) fn due_at(&self) -> Option<Duration> {
        match (self.mode, &self.flight) {
            (Mode::Volatile(retry), None) => Some(retry),
            (Mode::Volatile(_), Some(_)) => None,
            (_, Some(flight)) => Some(flight.since + SLOW),
            (_, None) if !self.batch.is_empty() => Some(self.ordered + UNHURRIED),
            (_, None) => None,
        }
    }

    pub(crate) const fn state(&self) -> LogState {
        match self.mode {
            Mode::Durable => LogState::Durable,
            Mode::CatchingUp => LogState::CatchingUp,
            Mode::Volatile(_) | Mode::Restarting => LogState::Failed,
        }
    }

    /// Bytes of the log files, ordered entries included.
    pub(crate) fn size(&self) -> u64 {
        match self.state() {
            LogState::Failed => 0,
            LogState::Durable | LogState::CatchingUp => self.sizes.values().sum(),
        }
    }

    /// Whether an urgent entry waits to be written, or the writer is at work.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.mode, Mode::Durable | Mode::CatchingUp)
            && (self.flight.is_some() || self.is_urgent())
    }
}
