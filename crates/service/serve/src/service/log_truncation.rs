//! Truncation of the instream records of a server with state: bytes that the server has read are in the determinant
//! log, and need not be kept twice.
//!
//! The server's position is the ACK of the socket, less the unread bytes of the socket. These bytes are certainly in
//! the determinant log when the next look finds the server alive a second later. With a remote logger, the logger must
//! also have the streams as long as they were at that time. If the assumption fails after all (a server that was
//! stopped for a second between a read and the determinant, and then killed), the recovery finds a gap in the
//! connection, and resets the connection.

use std::collections::HashMap;

use wire::{FlowId, SeqNumber};

use super::{Service, opened_by_server};
use crate::error::ServeError;

/// Growth of the determinant log before the next truncation, bytes: an idle service causes no work.
const TRUNCATION_STEP_BYTES: u64 = 1 << 20;

/// The next truncation: instream that is released when the log is safe.
#[derive(Debug, Default)]
pub(super) struct LogTruncation {
    /// Bytes of the log at the last look.
    at: u64,
    /// Lengths of the streams at the last look.
    heads: Vec<u64>,
    read: Vec<(FlowId, SeqNumber)>,
    /// Segments without a mirror at the last look.
    left: u64,
}

impl LogTruncation {
    /// The server has died: a read may be missing in the log.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

impl Service {
    /// Called every second in the stage `serving`.
    pub(super) fn truncate_read_instream(&mut self) -> Result<(), ServeError> {
        let Some(north) = &self.north else {
            return Ok(());
        };
        let memory = north.memory();
        if !memory.is_recording() {
            return Ok(());
        }
        let is_safe = (0..)
            .zip(&self.log_truncation.heads)
            .all(|(process, head)| self.config.link.is_none() || memory.stable(process) >= *head);
        if !self.log_truncation.read.is_empty() {
            if is_safe {
                let read = std::mem::take(&mut self.log_truncation.read);
                let _ = self.ask_logger(|logger| logger.release(read))?;
            }
            return Ok(());
        }
        let bytes: u64 = memory.processes().map(|one| memory.length(one)).sum();
        // The logger must know the end of the skipped bytes when the client rests.
        let left = self.skipped_segments()?;
        if bytes < self.log_truncation.at + TRUNCATION_STEP_BYTES
            && left == self.log_truncation.left
        {
            return Ok(());
        }
        let read = self.read_positions()?;
        // After that: bytes read by then are in these streams.
        let Some(north) = &self.north else {
            return Ok(());
        };
        let memory = north.memory();
        self.log_truncation = LogTruncation {
            at: bytes,
            heads: memory.processes().map(|one| memory.length(one)).collect(),
            read,
            left,
        };
        Ok(())
    }

    /// The server has replayed the record: the logger need not wait for skipped bytes any more, and knows the position
    /// of the later bytes.
    pub(crate) fn truncate_to_replay_positions(&mut self) -> Result<(), ServeError> {
        let Some(north) = self.north.as_ref().filter(|_| self.config.link.is_some()) else {
            return Ok(());
        };
        let flows = self.resources.plane.flows()?;
        let stands = flows.iter().filter_map(|(key, flow)| {
            let standing = north.replay_position(*key, flow)?;
            Some((flow.id, standing.instream))
        });
        let stands: Vec<_> = stands.collect();
        if !stands.is_empty() {
            let _ = self.ask_logger(|logger| logger.release(stands))?;
        }
        Ok(())
    }

    fn skipped_segments(&self) -> Result<u64, ServeError> {
        match self.config.spare_copies() {
            Some(_) => Ok(self.resources.plane.counters()?.mirror_skipped()),
            None => Ok(0),
        }
    }

    /// Lower bounds of the server's read positions.
    fn read_positions(&self) -> Result<Vec<(FlowId, SeqNumber)>, ServeError> {
        // Before: bytes that arrive meanwhile do not count as read.
        let flows = self.resources.plane.flows()?;
        let mut read = Vec::new();
        let unread = supervise::unread(&self.all_addresses(&opened_by_server(&flows)))?.into_iter();
        let unread = unread.map(|one| ((one.server, one.client), one.bytes));
        let unread: HashMap<_, _> = unread.collect();
        for (key, flow) in flows.iter().filter(|(_, flow)| flow.closed_ns == 0) {
            if let Some(bytes) = unread.get(&(key.server(), key.client())) {
                let acknowledged = flow.acknowledged_by_server();
                read.push((flow.id, acknowledged - *bytes));
            }
        }
        Ok(read)
    }
}
