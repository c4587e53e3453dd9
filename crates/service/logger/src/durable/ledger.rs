//! What is to be written, what waits for it, and what of it is still needed.

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
/// How long after a failure a new log is begun.
pub const RETRY: Duration = Duration::from_secs(10);
/// How long what no ACK waits for may wait to be written: how far clients have heard their servers.
/// A download is no reason to keep a disk busy.
const UNHURRIED: Duration = Duration::from_secs(1);
/// What an emptied batch keeps of its memory, bytes.
const BATCH_MEMORY: usize = 4 << 20;

/// What is to be written, and then committed.
#[derive(Debug)]
pub struct Job {
    /// The segment that it belongs into: the current one or the next.
    pub segment: u64,
    /// The entries.
    pub batch: Batch,
    /// When it is durable, segments before this one are not needed any more.
    pub remove_before: u64,
}

/// What the writer is to do.
#[derive(Debug)]
pub enum Order {
    /// Write and commit.
    Write(Job),
    /// Remove what there is, and begin a new log.
    Restart,
}

/// What has become of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Records are only in memory from now on.
    Volatile(
        /// Why.
        String,
    ),
    /// Everything that was acknowledged is durable again.
    Durable,
}

/// How a log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogState {
    /// Nothing is acknowledged that is not in it.
    Durable,
    /// A new one is being filled after a failure; records are acknowledged meanwhile.
    CatchingUp,
    /// It cannot be written. Records are only in memory.
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// ACKs wait for the log.
    Durable,
    /// A new log is being filled; ACKs do not wait.
    CatchingUp,
    /// There is no log. It may be begun again then.
    Volatile(Duration),
    /// A new one has been asked for.
    Restarting,
}

/// What the writer is about.
#[derive(Debug)]
struct Flight {
    since: Duration,
    held: Vec<Outgoing>,
    /// With this the log has caught up.
    catches_up: bool,
}

/// How many entries there are.
#[derive(Debug, Default)]
struct Entries {
    /// So far.
    made: u64,
    /// In batches that were ordered.
    ordered: u64,
    /// In batches that were written.
    written: u64,
    /// Up to the last one for which ACKs may have to wait.
    urgent: u64,
}

/// The account of a log.
#[derive(Debug)]
pub struct Ledger {
    mode: Mode,
    segment_size: u64,
    /// The segment that is written to, and what is in it or on its way there.
    segment: u64,
    sizes: BTreeMap<u64, u64>,
    batch: Batch,
    entries: Entries,
    /// When the writer was last told to write.
    ordered: Duration,
    held: Vec<Outgoing>,
    flight: Option<Flight>,
    bases: Bases,
    copying: Option<Copying>,
    /// While it catches up: all connections up to this one are in the log, in the order of their
    /// numbers. (Those that are new are, too.)
    caught_up_to: Option<(u64, FlowId)>,
    /// Emptied batches.
    spare: Batch,
}

impl Ledger {
    /// The account of a log of which nothing is known, whose current segment is `segment`. Segments
    /// are ended when they have `segment_size` bytes.
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

    /// The log has been read, and is written on in this segment.
    pub(super) fn continue_in(&mut self, segment: u64) {
        self.segment = segment;
        self.sizes.insert(segment, 0);
    }

    /// A segment that was read has this length.
    pub(super) fn add_segment(&mut self, segment: u64, len: u64) {
        self.sizes.insert(segment, len);
    }

    /// The record of a connection begins there.
    pub(super) fn add_base(&mut self, instance: u64, flow: FlowId, segment: u64) {
        self.bases.put(instance, flow, segment);
    }

    pub(super) fn remove_base(&mut self, instance: u64, flow: FlowId) {
        self.bases.remove(instance, flow);
    }

    pub(super) fn remove_instance(&mut self, instance: u64) {
        self.bases.remove_instance(instance);
    }

    /// The connections whose records begin in this segment or before it.
    pub(super) fn based_up_to(&self, segment: u64) -> Vec<(u64, FlowId)> {
        let segments = self.bases.by_segment.range(..=segment);
        segments.flat_map(|(_, flows)| flows).copied().collect()
    }

    /// Whether an ACK has to wait. If so, it is kept.
    pub(crate) fn hold(&mut self, ack: Outgoing) -> Option<Outgoing> {
        if self.mode == Mode::Durable {
            self.held.push(ack);
            None
        } else {
            Some(ack)
        }
    }

    /// The connections of one instance are those of another from now on.
    pub(super) fn rename(&mut self, from: u64, to: u64) {
        self.bases.rename(from, to);
        if self.copying.as_ref().is_some_and(|c| c.instance == from) {
            self.copying = None;
        }
        // The order of the instances is another one.
        self.caught_up_to = None;
    }

    /// Something has changed.
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

    /// Up to where something was recorded so far that somebody relies on; see [`Ledger::has_written`]. How far
    /// clients have heard their servers is not among it: nobody waits for that (`UNHURRIED`).
    pub(crate) const fn recorded(&self) -> u64 {
        self.entries.urgent
    }

    /// Up to where anything was recorded so far; see [`Ledger::has_written`].
    pub(crate) const fn made(&self) -> u64 {
        self.entries.made
    }

    fn is_urgent(&self) -> bool {
        self.entries.urgent > self.entries.ordered
    }

    /// Whether all is in the log that was recorded when [`Ledger::recorded`] was this, or needs not to
    /// be, because nothing waits for the log at present.
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

    /// The next order for the writer, if it has nothing to do and there is something. ACKs for which
    /// nothing has to be written go into `out`.
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

    /// What has to be in each segment, because those before it may be removed.
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

    /// A job is durable: ACKs that waited for it go into `out`. `batch` is that of the job.
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

    /// The new log that was asked for has this as its current segment.
    pub(crate) fn restarted(&mut self, segment: u64, sessions: &Sessions) {
        self.flight = None;
        if self.mode == Mode::Restarting {
            self.mode = Mode::CatchingUp;
            self.segment = segment;
            self.sizes = BTreeMap::from([(segment, 0)]);
            self.preamble(sessions);
        }
    }

    /// The storage has failed: everything that waited goes into `out`.
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
        // That a second try fails, too, is no news.
        matches!(was, Mode::Durable).then_some(Change::Volatile(why))
    }

    /// Whether the writer takes too long.
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

    /// When [`Ledger::check`] or [`Ledger::next`] has something to do, if nothing comes.
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

    /// Bytes that its files hold, or will when what is on its way has been written.
    pub(crate) fn size(&self) -> u64 {
        match self.state() {
            LogState::Failed => 0,
            LogState::Durable | LogState::CatchingUp => self.sizes.values().sum(),
        }
    }

    /// Whether there is something to write that cannot wait, or being written.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.mode, Mode::Durable | Mode::CatchingUp)
            && (self.flight.is_some() || self.is_urgent())
    }
}
