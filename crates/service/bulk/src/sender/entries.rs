//! Small parts of a tree: several in a round trip, without an offer for each.

use std::{
    thread,
    time::{Duration, Instant},
};

use protocol::bulk::{Entry, EntryKind, ReceiverMessage, SenderMessage};

use super::{
    Report, Sender,
    attempt::{AttemptEnd, STORING_TIME},
    name_at, rejected,
};
use crate::BulkError;

/// Most entries, and most bytes, that leave without an answer. A receiver that rejects all of them has its answers in
/// the buffers of a connection, and goes on to read.
pub const ENTRIES_MAX: usize = 32;
/// As [`ENTRIES_MAX`].
pub const ENTRIES_BYTES_MAX: usize = 2 << 20;

/// A receiver has not stored an entry, or any of the entries behind a failure.
#[derive(Debug)]
pub struct NotStored {
    /// The receiver, by number.
    pub receiver: usize,
    /// The entry, by number; `None`: the receiver is lost, and with it entries that it has not confirmed.
    pub entry: Option<usize>,
    /// Why.
    pub error: BulkError,
}

impl Sender<'_> {
    /// Sends parts of a tree to all receivers, at most [`ENTRIES_MAX`]. Returns when each has stored them, or never
    /// will.
    pub fn send_entries(&mut self, entries: &[Entry]) -> Vec<NotStored> {
        let begun = Instant::now();
        let mut refused = Vec::new();
        let lost = self.repeat(true, |this, receivers| {
            this.attempt_entries(entries, receivers, &mut refused)
        });
        self.pause_after(entries, begun);
        let lost = lost.into_iter().map(|(receiver, error)| NotStored {
            receiver,
            entry: None,
            error,
        });
        refused.into_iter().chain(lost).collect()
    }

    fn attempt_entries(
        &mut self,
        entries: &[Entry],
        receivers: &[usize],
        refused: &mut Vec<NotStored>,
    ) -> AttemptEnd {
        let mut end = AttemptEnd {
            report: Report::default(),
            failed: Vec::new(),
            has_begun: false,
        };
        let mut told = Vec::new();
        for receiver in self.connect(receivers, &mut end.failed) {
            match self.say_entries(receiver, entries) {
                Ok(()) => told.push(receiver),
                Err(error) => self.fail(receiver, error, &mut end.failed),
            }
        }
        for receiver in told {
            match self.answers(receiver, entries.len()) {
                Ok(answers) => {
                    end.has_begun = true;
                    refused.extend(answers);
                }
                Err(error) => self.fail(receiver, error, &mut end.failed),
            }
        }
        end
    }

    fn say_entries(&mut self, receiver: usize, entries: &[Entry]) -> Result<(), BulkError> {
        for entry in entries {
            let mut entry = entry.clone();
            entry.name = name_at(&self.peers[receiver].destination, &entry.name, true)?;
            self.say(receiver, &SenderMessage::Entry(entry))?;
        }
        Ok(())
    }

    fn answers(&mut self, receiver: usize, count: usize) -> Result<Vec<NotStored>, BulkError> {
        let mut refused = Vec::new();
        for entry in 0..count {
            match self.receive(receiver, STORING_TIME)? {
                ReceiverMessage::Stored => {}
                ReceiverMessage::Rejected { reason, detail } => refused.push(NotStored {
                    receiver,
                    entry: Some(entry),
                    error: rejected(reason, detail),
                }),
                ReceiverMessage::Have { .. } | ReceiverMessage::Accept(_) => {
                    return Err(BulkError::OutOfOrder);
                }
            }
        }
        Ok(refused)
    }

    /// The limit of the user is of all copies.
    fn pause_after(&self, entries: &[Entry], begun: Instant) {
        let Some(rate) = self.settings.rate_max else {
            return;
        };
        let len = |entry: &Entry| match &entry.kind {
            EntryKind::File { bytes } => bytes.len(),
            _ => 0,
        };
        let bytes: usize = entries.iter().map(len).sum();
        let bytes = u64::try_from(bytes * self.peers.len()).unwrap_or(u64::MAX);
        let ms = bytes.saturating_mul(1000) / rate.max(1);
        let due = Duration::from_millis(ms);
        thread::sleep(due.saturating_sub(begun.elapsed()));
    }
}
