//! Blasts on TCP connections to each receiver.

use std::{
    fs::File,
    net::{SocketAddr, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use blast::{BlastRanges, Layout, Policy, connections::Queue};
use protocol::bulk::{ReceiverMessage, SecretKey, SenderMessage};

use super::{CONNECT_TIME, ReceiverStream, Settings, rejected, supervisor::DataSupervisor};
use crate::{
    BulkError,
    carrier::{Connected, FileSource, Pace, PacketKey, Progress, Supervisor, send_blasts},
};

/// Fewest blasts of a connection.
const BLASTS_PER_CONNECTION: u64 = 4;

/// A file on its way to receivers.
pub(super) struct Transmission<'a> {
    pub(super) settings: &'a Settings,
    pub(super) layout: Layout,
    pub(super) file: &'a File,
    pub(super) size: u64,
    pub(super) targets: Vec<ConnectionTarget>,
}

/// A receiver, and the blasts that it has.
pub(super) struct ConnectionTarget {
    pub(super) address: SocketAddr,
    pub(super) present: BlastRanges,
    /// Of this receiver alone: the same packets of another receiver may have other bytes, if the source changes.
    pub(super) key: SecretKey,
}

/// A receiver's part of the transmission.
struct Part<'a> {
    address: SocketAddr,
    key: SecretKey,
    transfer: Connected,
    queue: Mutex<Queue>,
    supervisor: PartSupervisor<'a>,
}

impl Transmission<'_> {
    /// Sends the missing blasts to each receiver. Returns the outcome for each.
    ///
    /// # Errors
    /// The source fails, or the sender is stopped.
    pub(super) fn send(
        &self,
        supervisor: &DataSupervisor<'_>,
    ) -> Result<Vec<Result<(), BulkError>>, BulkError> {
        let pace = Pace::new(self.settings.rate_max);
        let positions = self.targets.iter().map(|target| {
            let begun = self.layout.blast_position(target.present.first_gap(0));
            AtomicU64::new(begun.min(self.size))
        });
        let positions: Vec<AtomicU64> = positions.collect();
        let lowest = positions.iter().map(|it| it.load(Ordering::Relaxed)).min();
        supervisor.begin_at(lowest.unwrap_or(0));
        let shown = AtomicU64::new(0);
        let mut parts = Vec::new();
        for (peer, target) in self.targets.iter().enumerate() {
            let transfer = Connected {
                key: PacketKey::Secret(target.key.0),
                layout: self.layout,
                size: self.size,
            };
            let queue = Queue::new(self.layout, self.size, target.present.clone())?;
            let part = Part {
                address: target.address,
                key: target.key,
                transfer,
                queue: Mutex::new(queue),
                supervisor: PartSupervisor {
                    all: supervisor,
                    peer,
                    has_failed: AtomicBool::new(false),
                    positions: &positions,
                    shown: &shown,
                },
            };
            parts.push((part, self.connection_count(&target.present)));
        }
        let pace = &pace;
        let sent: Vec<Vec<Result<bool, BulkError>>> = thread::scope(|scope| {
            let running: Vec<Vec<_>> = parts
                .iter()
                .map(|(part, count)| {
                    let send = move || self.send_on_one(pace, part);
                    (0..*count).map(|_| scope.spawn(send)).collect()
                })
                .collect();
            let joined = running.into_iter().map(|threads| {
                let ended = threads.into_iter().map(thread::ScopedJoinHandle::join);
                let ended =
                    ended.map(|it| it.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
                ended.collect()
            });
            joined.collect()
        });
        if supervisor.is_stopped() {
            return Err(BulkError::Stopped);
        }
        sent.into_iter().map(outcome_of).collect()
    }

    fn connection_count(&self, present: &BlastRanges) -> u64 {
        let blasts = self.size.div_ceil(self.layout.blast_bytes());
        let missing = blasts.saturating_sub(present.count());
        let most = match self.settings.policy {
            Policy::Background => 1,
            _ => u64::from(self.settings.connections),
        };
        most.min(missing.div_ceil(BLASTS_PER_CONNECTION))
    }

    /// Sends blasts on a connection. False: the connection cannot be made, and no blast is lost.
    fn send_on_one(&self, pace: &Pace, part: &Part<'_>) -> Result<bool, BulkError> {
        let connection = match self.join(part) {
            Ok(connection) => connection,
            Err(BulkError::Stopped) => return Err(BulkError::Stopped),
            Err(error) => {
                tracing::debug!(%error, "a data connection cannot be made");
                return Ok(false);
            }
        };
        let sent = self.file.try_clone().map_err(BulkError::Source);
        let sent = sent.and_then(|file| {
            let mut source = FileSource::of_size(file, self.size);
            let queue = (&part.queue, pace);
            send_blasts(
                &connection,
                &part.transfer,
                queue,
                &mut source,
                &part.supervisor,
            )
        });
        if sent.is_err() {
            part.supervisor.has_failed.store(true, Ordering::Release);
        }
        sent.map(|()| true)
    }

    fn join(&self, part: &Part<'_>) -> Result<TcpStream, BulkError> {
        let mut stream = ReceiverStream::connect(part.address, &self.settings.key, CONNECT_TIME)?;
        stream.send(&SenderMessage::Join { key: part.key })?;
        let is_stopped = || part.supervisor.is_stopped();
        match stream.receive(self.settings.peer_timeout, &is_stopped)? {
            ReceiverMessage::Joined => stream.into_connection(),
            ReceiverMessage::Rejected { reason, detail } => Err(rejected(reason, detail)),
            _ => Err(BulkError::OutOfOrder),
        }
    }
}

/// The outcome of a receiver, by the outcomes of its connections. After the first failure the others are stopped.
fn outcome_of(
    connections: Vec<Result<bool, BulkError>>,
) -> Result<Result<(), BulkError>, BulkError> {
    let mut was_sent = connections.is_empty();
    let mut failure = None;
    for sent in connections {
        match sent {
            Ok(has_sent) => was_sent |= has_sent,
            Err(BulkError::Source(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(BulkError::SourceChanged);
            }
            Err(error @ BulkError::Source(_)) => return Err(error),
            // The receiver has ended the connection, or the network has.
            Err(_) => failure = Some(BulkError::Closed),
        }
    }
    Ok(match failure {
        None if was_sent => Ok(()),
        failure => Err(failure.unwrap_or(BulkError::Closed)),
    })
}

struct PartSupervisor<'a> {
    all: &'a DataSupervisor<'a>,
    peer: usize,
    /// A connection has failed: the others end, too.
    has_failed: AtomicBool,
    /// Of all receivers: bytes below are there, or on their way.
    positions: &'a [AtomicU64],
    /// The highest position that was shown.
    shown: &'a AtomicU64,
}

impl Supervisor for PartSupervisor<'_> {
    fn is_stopped(&self) -> bool {
        self.all.is_stopped()
            || self.all.has_left(self.peer)
            || self.has_failed.load(Ordering::Acquire)
    }

    fn on_progress(&self, progress: Progress) {
        self.positions[self.peer].fetch_max(progress.position, Ordering::Relaxed);
        let there = self.positions.iter().enumerate();
        let there = there.filter(|(peer, _)| !self.all.has_left(*peer));
        let lowest = there.map(|(_, position)| position.load(Ordering::Relaxed));
        let lowest = lowest.min().unwrap_or(0);
        let before = self.shown.fetch_max(lowest, Ordering::Relaxed);
        self.all.show(Progress {
            position: lowest.max(before),
            ..progress
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn broken() -> BulkError {
        BulkError::Socket {
            doing: "send",
            source: io::ErrorKind::ConnectionReset.into(),
        }
    }

    /// The connections that did not fail themselves were stopped.
    #[test]
    fn cause_of_a_failure_is_found_whichever_connection_failed() {
        let stopped = || Err(BulkError::Stopped);
        let lost = outcome_of(vec![stopped(), Err(broken()), Ok(true)]);
        assert!(matches!(lost, Ok(Err(BulkError::Closed))), "{lost:?}");
        let unreadable = BulkError::Source(io::ErrorKind::PermissionDenied.into());
        let failed = outcome_of(vec![stopped(), Err(broken()), Err(unreadable)]);
        assert!(matches!(failed, Err(BulkError::Source(_))), "{failed:?}");
        let shorter = BulkError::Source(io::ErrorKind::UnexpectedEof.into());
        let failed = outcome_of(vec![stopped(), Err(shorter)]);
        assert!(
            matches!(failed, Err(BulkError::SourceChanged)),
            "{failed:?}"
        );
    }

    #[test]
    fn one_connection_is_enough() {
        assert!(matches!(outcome_of(vec![Ok(false), Ok(true)]), Ok(Ok(()))));
        assert!(matches!(outcome_of(Vec::new()), Ok(Ok(()))), "all is there");
        let none = outcome_of(vec![Ok(false), Ok(false)]);
        assert!(matches!(none, Ok(Err(BulkError::Closed))), "{none:?}");
    }
}
