//! Watches a transmission, from several threads.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use protocol::bulk::ReceiverMessage;

use super::{Event, ReceiverStream, Watch, rejected};
use crate::{
    BulkError,
    carrier::{Progress, Supervisor},
    locks::locked,
};

/// Counts of a receiver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DatagramCounts {
    pub(super) packets: u64,
    pub(super) predicted: u64,
}

impl DatagramCounts {
    pub(super) const fn plus(self, other: Self) -> Self {
        Self {
            packets: self.packets.saturating_add(other.packets),
            predicted: self.predicted.saturating_add(other.predicted),
        }
    }
}

/// Ends a transmission, and learns which receivers have left, and why.
pub(super) struct DataSupervisor<'a> {
    watch: &'a dyn Watch,
    is_over: AtomicBool,
    /// Nobody wants the hash any more.
    gives_up: AtomicBool,
    /// Position at the beginning, and the highest: all bytes below are at all receivers.
    positions: (AtomicU64, AtomicU64),
    left: Vec<AtomicBool>,
    /// Of each receiver: the position below which all data is there, and the newest counts.
    counts: Mutex<BTreeMap<usize, (u64, DatagramCounts)>>,
    reasons: Mutex<BTreeMap<usize, BulkError>>,
}

impl<'a> DataSupervisor<'a> {
    pub(super) fn new(watch: &'a dyn Watch, peers: usize) -> Self {
        Self {
            watch,
            is_over: AtomicBool::new(false),
            gives_up: AtomicBool::new(false),
            positions: (AtomicU64::new(u64::MAX), AtomicU64::new(0)),
            left: (0..peers).map(|_| AtomicBool::new(false)).collect(),
            counts: Mutex::default(),
            reasons: Mutex::default(),
        }
    }

    /// The transmission is over.
    pub(super) fn end(&self, wants_hash: bool) {
        self.gives_up.store(!wants_hash, Ordering::Release);
        self.is_over.store(true, Ordering::Release);
    }

    pub(super) const fn gives_up(&self) -> &AtomicBool {
        &self.gives_up
    }

    /// Whether bytes have arrived at all receivers.
    pub(super) fn has_advanced(&self) -> bool {
        self.positions.1.load(Ordering::Relaxed) > self.positions.0.load(Ordering::Relaxed)
    }

    /// Why the receiver of this number has left.
    pub(super) fn reason_of(&self, peer: usize) -> Option<BulkError> {
        let mut reasons = locked(&self.reasons);
        reasons.remove(&peer)
    }

    /// The newest counts of the receiver of this number.
    pub(super) fn counts(&self, peer: usize) -> DatagramCounts {
        let counts = locked(&self.counts);
        counts
            .get(&peer)
            .map(|(_, counts)| *counts)
            .unwrap_or_default()
    }

    /// The transmission begins at this position: bytes below are at all receivers.
    pub(super) fn begin_at(&self, position: u64) {
        self.positions.0.fetch_min(position, Ordering::Relaxed);
        self.positions.1.fetch_max(position, Ordering::Relaxed);
    }

    /// Listens to the control stream of a receiver.
    pub(super) fn listen(&self, peer: usize, stream: &mut ReceiverStream) {
        let reason = loop {
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            match stream.poll() {
                Ok(None) => {}
                Ok(Some(ReceiverMessage::Arrived {
                    position,
                    packets,
                    predicted,
                })) => self.note(peer, position, DatagramCounts { packets, predicted }),
                Ok(Some(ReceiverMessage::Rejected { reason, detail })) => {
                    break rejected(reason, detail);
                }
                Ok(Some(_)) => break BulkError::OutOfOrder,
                Err(error) => break error,
            }
        };
        let mut reasons = locked(&self.reasons);
        reasons.insert(peer, reason);
        self.left[peer].store(true, Ordering::Release);
    }

    fn note(&self, peer: usize, position: u64, news: DatagramCounts) {
        let mut counts = locked(&self.counts);
        counts.insert(peer, (position, news));
        let there = (0..self.left.len()).filter(|peer| !self.has_left(*peer));
        let lowest = there.map(|peer| counts.get(&peer).map_or(0, |(position, _)| *position));
        self.positions
            .1
            .fetch_max(lowest.min().unwrap_or(0), Ordering::Relaxed);
    }

    /// Tells the progress, without the claim that the bytes have arrived.
    pub(super) fn show(&self, progress: Progress) {
        let counts = locked(&self.counts);
        let all = counts.values().map(|(_, counts)| *counts);
        let all = all.fold(DatagramCounts::default(), DatagramCounts::plus);
        drop(counts);
        self.watch.on_event(Event::Progress(Progress {
            arrived: all.packets,
            predicted: all.predicted,
            ..progress
        }));
    }
}

impl Supervisor for DataSupervisor<'_> {
    fn is_stopped(&self) -> bool {
        self.watch.is_stopped()
    }

    fn has_left(&self, peer: usize) -> bool {
        self.left[peer].load(Ordering::Acquire)
    }

    fn on_progress(&self, progress: Progress) {
        self.begin_at(progress.position);
        self.show(progress);
    }
}
