//! Watches a transmission, from several threads.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use protocol::bulk::ReceiverMessage;

use super::{Event, ReceiverStream, Watch, rejected};
use crate::{
    BulkError,
    carrier::{Progress, Supervisor},
};

/// Ends a transmission, and learns which receivers have left, and why.
pub(super) struct DataSupervisor<'a> {
    watch: &'a dyn Watch,
    is_over: AtomicBool,
    /// Nobody wants the hash any more.
    gives_up: AtomicBool,
    /// Position at the beginning, and the newest.
    positions: (AtomicU64, AtomicU64),
    left: Vec<AtomicBool>,
    /// Packets that each receiver has taken, and expected.
    predictions: Vec<(AtomicU64, AtomicU64)>,
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
            predictions: (0..peers).map(|_| Default::default()).collect(),
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
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        reasons.remove(&peer)
    }

    /// Packets that receivers have taken, and how many of these they had expected next.
    pub(super) fn predictions(&self) -> (u64, u64) {
        self.predictions.iter().fold((0, 0), |sum, one| {
            let arrived = one.0.load(Ordering::Relaxed);
            (sum.0 + arrived, sum.1 + one.1.load(Ordering::Relaxed))
        })
    }

    /// Listens to the control stream of a receiver.
    pub(super) fn listen(&self, peer: usize, stream: &mut ReceiverStream) {
        let reason = loop {
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            match stream.poll() {
                Ok(None) => {}
                Ok(Some(ReceiverMessage::Arrived { packets, predicted })) => {
                    self.note_arrived(peer, packets, predicted);
                }
                Ok(Some(ReceiverMessage::Rejected { reason, detail })) => {
                    break rejected(reason, detail);
                }
                Ok(Some(_)) => break BulkError::OutOfOrder,
                Err(error) => break error,
            }
        };
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        reasons.insert(peer, reason);
        self.left[peer].store(true, Ordering::Release);
    }

    fn note_arrived(&self, peer: usize, packets: u64, predicted: u64) {
        self.predictions[peer].0.store(packets, Ordering::Relaxed);
        self.predictions[peer].1.store(predicted, Ordering::Relaxed);
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
        let (first, newest) = &self.positions;
        first.fetch_min(progress.position, Ordering::Relaxed);
        newest.store(progress.position, Ordering::Relaxed);
        let (arrived, predicted) = self.predictions();
        self.watch.on_event(Event::Progress(Progress {
            arrived,
            predicted,
            ..progress
        }));
    }
}
