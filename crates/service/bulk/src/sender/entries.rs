//! Small parts of a tree: several in a round trip, without an offer for each.

use std::{
    thread,
    time::{Duration, Instant},
};

use protocol::bulk::{Entry, EntryKind, PathError, ReceiverMessage, RelativePath, SenderMessage};

use super::{
    Sender,
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
        let mut is_first = true;
        let lost = self.repeat(true, |this, receivers| {
            let above = match std::mem::take(&mut is_first) {
                true => Vec::new(),
                false => directories_above(entries),
            };
            this.attempt_entries((&above, entries), receivers, &mut refused)
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
        (above, entries): (&[Entry], &[Entry]),
        receivers: &[usize],
        refused: &mut Vec<NotStored>,
    ) -> AttemptEnd {
        let mut end = AttemptEnd::default();
        let mut told = Vec::new();
        for receiver in self.connect(receivers, &mut end.failed) {
            match self.say_entries(receiver, above, entries) {
                Ok(said) => told.push((receiver, said)),
                Err(error) => self.fail(receiver, error, &mut end.failed),
            }
        }
        for (receiver, said) in told {
            match self.answers(receiver, above.len(), said) {
                Ok(answers) => {
                    end.has_begun = true;
                    refused.extend(answers);
                }
                Err(error) => self.fail(receiver, error, &mut end.failed),
            }
        }
        end
    }

    /// Returns for each entry whether it was said: a name may be too long at a receiver.
    fn say_entries(
        &mut self,
        receiver: usize,
        above: &[Entry],
        entries: &[Entry],
    ) -> Result<Vec<Result<(), PathError>>, BulkError> {
        let mut said = Vec::new();
        for (number, entry) in above.iter().chain(entries).enumerate() {
            let name = name_at(&self.peers[receiver].destination, &entry.name, true);
            if let Ok(name) = &name {
                let mut entry = entry.clone();
                entry.name = name.clone();
                self.say(receiver, &SenderMessage::Entry(entry))?;
            }
            if number >= above.len() {
                said.push(name.map(drop));
            }
        }
        Ok(said)
    }

    fn answers(
        &mut self,
        receiver: usize,
        above: usize,
        said: Vec<Result<(), PathError>>,
    ) -> Result<Vec<NotStored>, BulkError> {
        let mut refused = Vec::new();
        for _ in 0..above {
            // A directory that cannot be opened is an error for its entries.
            let _ = self.answer(receiver)?;
        }
        for (entry, said) in said.into_iter().enumerate() {
            let answer = match said {
                Ok(()) => self.answer(receiver)?,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = answer {
                refused.push(NotStored {
                    receiver,
                    entry: Some(entry),
                    error,
                });
            }
        }
        Ok(refused)
    }

    /// An error inside: the receiver rejects the entry.
    fn answer(&mut self, receiver: usize) -> Result<Result<(), BulkError>, BulkError> {
        match self.receive(receiver, STORING_TIME)? {
            ReceiverMessage::Stored => Ok(Ok(())),
            ReceiverMessage::Rejected { reason, detail } => Ok(Err(rejected(reason, detail))),
            _ => Err(BulkError::OutOfOrder),
        }
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

/// The directories in which the entries lie, to be opened once more: an earlier attempt may have ended a directory,
/// which then takes no file. The ends are among the entries, or come later.
fn directories_above(entries: &[Entry]) -> Vec<Entry> {
    let mut names: Vec<RelativePath> = Vec::new();
    for entry in entries {
        let above = entry.name.split().0;
        let above = above.and_then(|above| RelativePath::new(above).ok());
        if let Some(name) = above.filter(|name| !names.contains(name)) {
            names.push(name);
        }
    }
    let directory = |name| Entry {
        name,
        permissions: 0o700,
        modified_ns: 0,
        kind: EntryKind::Directory,
    };
    names.into_iter().map(directory).collect()
}
