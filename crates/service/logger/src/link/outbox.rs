//! Datagrams to send.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use protocol::link::{ACK_LEN, MAX_ACKS, STABLE_LEN};
use wal::Batch;

use crate::durable::{Change, Ledger, LogState, Order, entry::Entry};
use crate::link::Sessions;

/// The two ends of a service's datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer {
    /// Index of the logger's socket.
    pub via: usize,
    /// The logger's address that the serving host knows.
    pub local: IpAddr,
    /// The serving host's address and port.
    pub address: SocketAddr,
}

/// A datagram to send. An ACK, the longest kind, may share a datagram with other ACKs.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing {
    /// The destination.
    pub to: Peer,
    len: usize,
    bytes: [u8; ACK_LEN],
}

impl Outgoing {
    /// The content.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Whether both may share a datagram.
    fn goes_with(&self, other: &Self) -> bool {
        self.to == other.to && self.len == ACK_LEN && other.len == ACK_LEN
    }
}

/// Work of a batch: datagrams in the order of sending, and, with a durable log, the entries to write before.
/// Emptied and reused.
#[derive(Debug, Default)]
pub struct Outbox {
    datagrams: Vec<Outgoing>,
    ledger: Option<Box<Ledger>>,
    /// Space for joined ACKs.
    joined: Vec<u8>,
    /// Unanswered barriers, oldest first.
    barriers: VecDeque<Barrier>,
}

/// A service asks for an answer when all earlier datagrams are recorded.
#[derive(Debug)]
struct Barrier {
    instance: u64,
    token: u64,
    /// [`Outbox::recorded`] at the arrival of the barrier.
    recorded: u64,
}

impl Outbox {
    /// An outbox whose records are written to a log.
    #[must_use]
    pub fn with_log(ledger: Ledger) -> Self {
        Self {
            datagrams: Vec::new(),
            ledger: Some(Box::new(ledger)),
            joined: Vec::new(),
            barriers: VecDeque::new(),
        }
    }

    /// `hurries`: the barrier does not wait for digests and progress.
    pub(super) fn barrier(&mut self, instance: u64, token: u64, hurries: bool) {
        let recorded = match &self.ledger {
            Some(ledger) if !hurries => ledger.made(),
            _ => self.recorded(),
        };
        self.barriers.push_back(Barrier {
            instance,
            token,
            recorded,
        });
    }

    /// The next barrier whose earlier entries are all written: the instance and the token.
    pub fn drained(&mut self) -> Option<(u64, u64)> {
        let is_written = |one: &Barrier| self.has_written(one.recorded);
        self.barriers.front().filter(|one| is_written(one))?;
        let one = self.barriers.pop_front()?;
        Some((one.instance, one.token))
    }

    pub(super) fn ack(&mut self, to: Peer, bytes: [u8; ACK_LEN]) {
        let len = ACK_LEN;
        let ack = Outgoing { to, len, bytes };
        match &mut self.ledger {
            Some(ledger) => self.datagrams.extend(ledger.hold(ack)),
            None => self.datagrams.push(ack),
        }
    }

    /// A record of this instance has changed.
    pub(super) fn record(&mut self, instance: u64, entry: &Entry<'_>) {
        if let Some(ledger) = &mut self.ledger {
            ledger.record(instance, entry);
        }
    }

    /// The next order, if the writer of the log is idle and there is work. To be asked after each batch.
    pub fn next_order(&mut self, sessions: &Sessions, now: Duration) -> Option<Order> {
        let ledger = self.ledger.as_mut()?;
        ledger.next(sessions, now, &mut self.datagrams)
    }

    /// The writer has carried out [`Order::Write`]; `batch` is the batch of the order.
    pub fn written(&mut self, batch: Batch) -> Option<Change> {
        let ledger = self.ledger.as_mut()?;
        ledger.written(batch, &mut self.datagrams)
    }

    /// The writer has carried out [`Order::Restart`]; `segment` is the current log file.
    pub fn restarted(&mut self, segment: u64, sessions: &Sessions) {
        if let Some(ledger) = &mut self.ledger {
            ledger.restarted(segment, sessions);
        }
    }

    /// The writer could not carry out the order.
    pub fn failed(&mut self, why: String, now: Duration) -> Option<Change> {
        let ledger = self.ledger.as_mut()?;
        ledger.failed(why, now, &mut self.datagrams)
    }

    /// Checks whether the writer takes too long. To be called at [`Outbox::due_at`].
    pub fn check_log(&mut self, now: Duration) -> Option<Change> {
        let ledger = self.ledger.as_mut()?;
        ledger.check(now, &mut self.datagrams)
    }

    /// Time of the log's next work without new input.
    #[must_use]
    pub fn due_at(&self) -> Option<Duration> {
        self.ledger.as_ref()?.due_at()
    }

    /// Number of entries for which ACKs may wait, for [`Outbox::has_written`].
    pub(super) fn recorded(&self) -> u64 {
        self.ledger.as_ref().map_or(0, |ledger| ledger.recorded())
    }

    /// Whether all entries up to this number are in the log. Also true without a log for which ACKs wait.
    pub(super) fn has_written(&self, recorded: u64) -> bool {
        let ledger = self.ledger.as_ref();
        ledger.is_none_or(|ledger| ledger.has_written(recorded))
    }

    /// State of the log, and bytes of the log files; `None` without a log.
    #[must_use]
    pub fn log(&self) -> Option<(LogState, u64)> {
        let ledger = self.ledger.as_ref()?;
        Some((ledger.state(), ledger.size()))
    }

    /// Whether the writer is at work, or an urgent entry waits.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| ledger.is_busy())
    }

    pub(super) fn probed(&mut self, to: Peer, probed: &[u8]) {
        self.send(to, probed);
    }

    pub(super) fn stable(&mut self, to: Peer, stable: &[u8; STABLE_LEN]) {
        self.send(to, stable);
    }

    /// No kind is longer than an ACK.
    fn send(&mut self, to: Peer, datagram: &[u8]) {
        let mut bytes = [0; ACK_LEN];
        let len = datagram.len();
        bytes[..len].copy_from_slice(datagram);
        self.datagrams.push(Outgoing { to, len, bytes });
    }

    /// The datagrams to send.
    #[must_use]
    pub fn datagrams(&self) -> &[Outgoing] {
        &self.datagrams
    }

    /// Hands all datagrams to `send`, and forgets the datagrams. ACKs to one peer are joined to datagrams of up to
    /// [`MAX_ACKS`].
    pub fn drain(&mut self, mut send: impl FnMut(Peer, &[u8])) {
        for alike in self.datagrams.chunk_by(Outgoing::goes_with) {
            for several in alike.chunks(MAX_ACKS) {
                self.joined.clear();
                self.joined.extend(several.iter().flat_map(Outgoing::bytes));
                send(several[0].to, &self.joined);
            }
        }
        self.clear();
    }

    /// All datagrams have been sent.
    pub fn clear(&mut self) {
        self.datagrams.clear();
    }
}
