//! The loop's side of the durable log.

use std::{
    io,
    path::Path,
    time::{Duration, Instant},
};

use super::{
    Event, Service, ServiceError,
    disk::Disk,
    writer::{Report, Writer},
};
use crate::{
    durable::{Change, Restored, restore},
    link::Sessions,
};

/// Longest wait for the writer at the end.
const LOG_FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// Size of a log file, bytes; the last batch may exceed the size.
const SEGMENT_SIZE: u64 = 64 << 20;

impl Service {
    /// Gives an idle writer the next order.
    pub(super) fn order(&mut self, now: Duration) {
        if let Some(writer) = &self.writer
            && let Some(order) = self.out.next_order(&self.sessions, now)
        {
            self.counts.ordered(&order);
            writer.order(order);
        }
    }

    /// Handles reports of the writer, and checks whether the writer takes too long.
    pub(super) fn look_after_log(&mut self, tell: &mut dyn FnMut(&Event)) {
        while let Some(report) = self.writer.as_mut().and_then(Writer::report) {
            self.reported(report, tell);
        }
        let now = self.now();
        let slow = self.out.check_log(now);
        slow.into_iter().for_each(|change| tell(&event_of(change)));
        self.order(now);
        self.send();
    }

    fn reported(&mut self, report: Report, tell: &mut dyn FnMut(&Event)) {
        let change = match report {
            Report::Written(batch) => {
                self.counts.committed();
                self.out.written(batch)
            }
            Report::Restarted(segment) => {
                self.out.restarted(segment, &self.sessions);
                None
            }
            Report::Failed(why) => self.out.failed(why, self.started.elapsed()),
        };
        change
            .into_iter()
            .for_each(|change| tell(&event_of(change)));
        self.order(self.now());
    }

    /// Writes all waiting entries.
    pub(super) fn finish(&mut self, tell: &mut dyn FnMut(&Event)) {
        let deadline = Instant::now() + LOG_FINISH_TIMEOUT;
        self.order(self.now());
        while self.out.is_writing() {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.writer.as_ref().and_then(|writer| writer.wait(left)) {
                Some(report) => self.reported(report, tell),
                // A disk that hangs must not delay the end.
                None => return,
            }
        }
        if let Some(writer) = self.writer.take() {
            writer.end();
        }
    }
}

/// Locks the directory, and reads the log.
pub(super) fn open_log(
    directory: &Path,
    sessions: &mut Sessions,
) -> Result<Restored<Disk>, ServiceError> {
    let disk = Disk::open(directory).map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => ServiceError::LogTaken(directory.to_owned()),
        _ => not_read(directory, &error),
    })?;
    restore(disk, sessions, SEGMENT_SIZE).map_err(|error| not_read(directory, &error))
}

fn not_read(directory: &Path, error: &impl ToString) -> ServiceError {
    ServiceError::Log {
        directory: directory.to_owned(),
        error: error.to_string(),
    }
}

fn event_of(change: Change) -> Event {
    match change {
        Change::Volatile(reason) => Event::LogFailed { reason },
        Change::Durable => Event::LogRecovered,
    }
}
