//! A connection to a store: operations in order, with time limits, and attempts to connect. No I/O, no clock.
//!
//! | state | |
//! |---|---|
//! | down | the next attempt comes after a pause that doubles; operations fail at once |
//! | connecting | operations wait |
//! | greeting | connected; the first requests are sent |
//! | up | operations are sent, several at a time |
//!
//! An operation without a reply in time is over; its reply is still expected, and dropped. If no reply comes for
//! [`STALL_FACTOR`] time limits, the connection is closed.

use std::{collections::VecDeque, time::Duration};

use crate::dialect::{Dialect, ProtocolError};
use crate::{Completion, Failure, Operation, OperationKind, Outcome, Report, Statistics, Ticket};

/// Time limits without a reply after which a connection is closed.
const STALL_FACTOR: u32 = 4;
/// Most bytes of requests that wait for the socket.
const OUTPUT_LEN_MAX: usize = 1 << 20;
/// Most bytes of a reply that is not complete.
const INPUT_LEN_MAX: usize = 64 << 20;

/// Settings of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Time limit of an operation.
    pub time_limit: Duration,
    /// Time limit of an attempt to connect.
    pub connect_limit: Duration,
    /// First pause between attempts to connect.
    pub least_pause: Duration,
    /// Longest pause between attempts to connect.
    pub longest_pause: Duration,
    /// Time to live of records: at most 30 days.
    pub ttl: Duration,
    /// Most operations without an outcome.
    pub queue_len: usize,
    /// Most operations that are sent and not answered.
    pub pipeline_len: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            time_limit: Duration::from_millis(250),
            connect_limit: Duration::from_secs(1),
            least_pause: Duration::from_millis(10),
            longest_pause: Duration::from_secs(1),
            ttl: Duration::from_secs(2 * 3600),
            queue_len: 16_384,
            pipeline_len: 1024,
        }
    }
}

/// Time to live of a list of members, seconds: a record may be renewed until the end of the list's period, and is
/// needed for so long after.
pub(crate) fn lists_ttl(settings: &Settings) -> u64 {
    3 * seconds(settings.ttl)
}

/// Whole seconds, at least one.
pub(crate) fn seconds(duration: Duration) -> u64 {
    duration.as_secs().max(1)
}

#[derive(Debug)]
enum Link<E> {
    Down {
        retry_at: Duration,
        pause: Duration,
        failure: Option<Failure>,
    },
    Connecting {
        until: Duration,
        pause: Duration,
    },
    Greeting {
        until: Duration,
        pause: Duration,
        expected: E,
    },
    Up,
}

/// An operation that waits to be sent.
#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    operation: Operation,
    began: Duration,
}

/// An operation that is sent.
#[derive(Debug)]
struct Sent<E> {
    ticket: Ticket,
    kind: OperationKind,
    began: Duration,
    /// When the first reply came, for the round trip.
    replied: Option<Duration>,
    sent: Duration,
    expected: E,
    is_expired: bool,
}

/// A connection to a store.
#[derive(Debug)]
pub(crate) struct Session<D: Dialect> {
    dialect: D,
    settings: Settings,
    link: Link<D::Expected>,
    waiting: VecDeque<Waiting>,
    sent: VecDeque<Sent<D::Expected>>,
    /// Operations at the beginning of `sent` that are over.
    expired: usize,
    next_number: u64,
    output: Vec<u8>,
    input: Vec<u8>,
    reports: Vec<Report>,
    statistics: Statistics,
    /// The newest instance of the store that was connected.
    instance: Option<String>,
    is_loss_reported: bool,
}

impl<D: Dialect> Session<D> {
    pub(crate) fn new(dialect: D, settings: Settings) -> Self {
        Self {
            dialect,
            settings,
            link: Link::Down {
                retry_at: Duration::ZERO,
                pause: settings.least_pause,
                failure: None,
            },
            waiting: VecDeque::new(),
            sent: VecDeque::new(),
            expired: 0,
            next_number: 0,
            output: Vec::new(),
            input: Vec::new(),
            reports: Vec::new(),
            statistics: Statistics::default(),
            instance: None,
            is_loss_reported: false,
        }
    }

    pub(crate) fn reports(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.reports)
    }

    pub(crate) const fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Takes an operation that was submitted at `began`.
    pub(crate) fn submit(
        &mut self,
        ticket: Ticket,
        operation: Operation,
        began: Duration,
        now: Duration,
    ) {
        let waiting = Waiting {
            ticket,
            operation,
            began,
        };
        match (&self.link, &waiting.operation) {
            (_, Operation::Get { hashes, .. }) if hashes.is_empty() => {
                self.complete(
                    ticket,
                    OperationKind::Get,
                    began,
                    now,
                    Ok(Outcome::Found(Vec::new())),
                );
            }
            (
                Link::Down {
                    failure: Some(failure),
                    ..
                },
                operation,
            ) => {
                let (kind, result) = (operation.kind(), Err(unreachable(failure)));
                self.complete(ticket, kind, began, now, result);
            }
            _ => self.waiting.push_back(waiting),
        }
        self.fill(now);
    }

    /// Whether an attempt to connect begins now.
    pub(crate) fn poll_connect(&mut self, now: Duration) -> bool {
        let Link::Down {
            retry_at, pause, ..
        } = self.link
        else {
            return false;
        };
        if now < retry_at {
            return false;
        }
        self.link = Link::Connecting {
            until: now + self.settings.connect_limit,
            pause,
        };
        true
    }

    pub(crate) fn on_connected(&mut self) {
        let Link::Connecting { until, pause } = self.link else {
            return;
        };
        let expected = self.dialect.greet(&mut self.output);
        self.link = Link::Greeting {
            until,
            pause,
            expected,
        };
    }

    /// The socket has failed, or could not be connected.
    pub(crate) fn on_failure(&mut self, error: &str, now: Duration) {
        let failure = match self.link {
            Link::Down { .. } => return,
            Link::Connecting { .. } | Link::Greeting { .. } => {
                Failure::Unreachable(error.to_owned())
            }
            Link::Up => Failure::ConnectionLost(error.to_owned()),
        };
        self.disconnect(failure, now);
    }

    /// Requests for the socket.
    pub(crate) fn output(&self) -> &[u8] {
        &self.output
    }

    /// The socket has taken bytes.
    pub(crate) fn on_written(&mut self, len: usize, now: Duration) {
        self.output.drain(..len);
        self.fill(now);
    }

    /// Bytes of the store.
    pub(crate) fn on_received(&mut self, bytes: &[u8], now: Duration) {
        self.input.extend_from_slice(bytes);
        let mut read = 0;
        loop {
            match self.take_reply(read, now) {
                Ok(0) => break,
                Ok(len) => read += len,
                Err(failure) => return self.disconnect(failure, now),
            }
        }
        self.input.drain(..read);
        if self.input.len() > INPUT_LEN_MAX {
            return self.disconnect(Failure::Protocol("a reply without an end"), now);
        }
        self.fill(now);
    }

    /// Takes the reply at this position. Returns the length.
    fn take_reply(&mut self, at: usize, now: Duration) -> Result<usize, Failure> {
        let error = |ProtocolError(text)| Failure::Protocol(text);
        let Some((reply, len)) = D::reply(&self.input[at..]).map_err(error)? else {
            return Ok(0);
        };
        match &mut self.link {
            Link::Greeting { expected, .. } => {
                match self.dialect.accept(expected, reply).map_err(error)? {
                    None => {}
                    Some(Ok(Outcome::Probed(probe))) => self.on_greeted(probe.instance),
                    Some(Ok(_)) => return Err(Failure::Protocol("a greeting without an answer")),
                    Some(Err(failure)) => return Err(failure),
                }
                Ok(len)
            }
            Link::Up => {
                let first = self
                    .sent
                    .front_mut()
                    .ok_or(Failure::Protocol("a reply without a request"))?;
                let replied = *first.replied.get_or_insert(now);
                if let Some(mut result) = self
                    .dialect
                    .accept(&mut first.expected, reply)
                    .map_err(error)?
                {
                    if let Ok(Outcome::Probed(probe)) = &mut result {
                        probe.round_trip = replied.saturating_sub(first.sent);
                    }
                    self.on_result(result, now);
                }
                Ok(len)
            }
            Link::Down { .. } | Link::Connecting { .. } => {
                Err(Failure::Protocol("a reply without a connection"))
            }
        }
    }

    fn on_greeted(&mut self, instance: Option<String>) {
        self.link = Link::Up;
        self.statistics.connections += 1;
        let before = self.instance.take();
        let is_other_instance = before.is_some() && before != instance;
        self.instance = instance;
        self.is_loss_reported = false;
        self.reports.push(Report::Connected { is_other_instance });
    }

    /// The first operation that was sent has its result.
    fn on_result(&mut self, result: Result<Outcome, Failure>, now: Duration) {
        let Some(sent) = self.sent.pop_front() else {
            return;
        };
        if sent.is_expired {
            self.expired -= 1;
            self.statistics.late_replies += 1;
        } else {
            self.complete(sent.ticket, sent.kind, sent.began, now, result);
        }
    }

    fn complete(
        &mut self,
        ticket: Ticket,
        kind: OperationKind,
        began: Duration,
        now: Duration,
        result: Result<Outcome, Failure>,
    ) {
        self.statistics
            .observe(kind, &result, now.saturating_sub(began));
        self.reports
            .push(Report::Completed(Completion { ticket, result }));
    }

    /// Sends operations that wait.
    fn fill(&mut self, now: Duration) {
        while matches!(self.link, Link::Up)
            && self.sent.len() < self.settings.pipeline_len
            && self.output.len() < OUTPUT_LEN_MAX
        {
            let Some(Waiting {
                ticket,
                operation,
                began,
            }) = self.waiting.pop_front()
            else {
                break;
            };
            let kind = operation.kind();
            self.next_number += 1;
            match self
                .dialect
                .request(&operation, self.next_number, &mut self.output)
            {
                Ok(expected) => self.sent.push_back(Sent {
                    ticket,
                    kind,
                    began,
                    replied: None,
                    sent: now,
                    expected,
                    is_expired: false,
                }),
                Err(failure) => self.complete(ticket, kind, began, now, Err(failure)),
            }
        }
    }

    /// When [`Session::on_time`] or [`Session::poll_connect`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let limit = self.settings.time_limit;
        let link = match &self.link {
            Link::Down { retry_at, .. } => Some(*retry_at),
            Link::Connecting { until, .. } | Link::Greeting { until, .. } => Some(*until),
            Link::Up => self
                .sent
                .front()
                .map(|sent| sent.sent + limit * STALL_FACTOR),
        };
        let sent = self.sent.get(self.expired).map(|sent| sent.began + limit);
        let waiting = self.waiting.front().map(|waiting| waiting.began + limit);
        [link, sent, waiting].into_iter().flatten().min()
    }

    /// Time limits.
    pub(crate) fn on_time(&mut self, now: Duration) {
        let limit = self.settings.time_limit;
        // The time limit is equal for all operations: the oldest are over first.
        while let Some(sent) = self
            .sent
            .get_mut(self.expired)
            .filter(|sent| sent.began + limit <= now)
        {
            sent.is_expired = true;
            self.expired += 1;
            let (ticket, kind, began) = (sent.ticket, sent.kind, sent.began);
            self.complete(ticket, kind, began, now, Err(Failure::TimedOut));
        }
        while self
            .waiting
            .front()
            .is_some_and(|waiting| waiting.began + limit <= now)
        {
            if let Some(Waiting {
                ticket,
                operation,
                began,
            }) = self.waiting.pop_front()
            {
                // Not sent, so surely not performed.
                let failure = Failure::Unreachable("no connection in time".to_owned());
                self.complete(ticket, operation.kind(), began, now, Err(failure));
            }
        }
        match &self.link {
            Link::Connecting { until, .. } | Link::Greeting { until, .. } if *until <= now => {
                self.disconnect(Failure::Unreachable("no answer in time".to_owned()), now);
            }
            Link::Up
                if self
                    .sent
                    .front()
                    .is_some_and(|sent| sent.sent + limit * STALL_FACTOR <= now) =>
            {
                self.disconnect(Failure::TimedOut, now);
            }
            _ => {}
        }
    }

    /// Whether the shell keeps a socket.
    pub(crate) const fn has_socket(&self) -> bool {
        !matches!(self.link, Link::Down { .. })
    }

    /// Whether the shell waits for the socket to be connected.
    pub(crate) const fn is_connecting(&self) -> bool {
        matches!(self.link, Link::Connecting { .. })
    }

    /// Fails all operations, and connects later.
    fn disconnect(&mut self, failure: Failure, now: Duration) {
        self.statistics.disconnections += 1;
        let before = match &self.link {
            Link::Down { pause, .. }
            | Link::Connecting { pause, .. }
            | Link::Greeting { pause, .. } => *pause,
            Link::Up => self.settings.least_pause,
        };
        let pause = (before * 2).min(self.settings.longest_pause);
        let retry_at = now + before;
        self.link = Link::Down {
            retry_at,
            pause,
            failure: Some(failure.clone()),
        };
        self.output.clear();
        self.input.clear();
        self.expired = 0;
        for sent in std::mem::take(&mut self.sent) {
            if !sent.is_expired {
                let failure = Failure::ConnectionLost(failure.to_string());
                self.complete(sent.ticket, sent.kind, sent.began, now, Err(failure));
            }
        }
        for waiting in std::mem::take(&mut self.waiting) {
            let result = Err(unreachable(&failure));
            self.complete(
                waiting.ticket,
                waiting.operation.kind(),
                waiting.began,
                now,
                result,
            );
        }
        if !std::mem::replace(&mut self.is_loss_reported, true) {
            self.reports.push(Report::Lost(failure));
        }
    }
}

/// The failure of an operation that was not sent.
fn unreachable(failure: &Failure) -> Failure {
    match failure {
        // The reason is the operator's to mend, and is kept.
        Failure::Denied(_) | Failure::Busy(_) | Failure::Unreachable(_) => failure.clone(),
        other => Failure::Unreachable(other.to_string()),
    }
}

#[cfg(test)]
mod tests;
