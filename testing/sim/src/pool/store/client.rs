//! A member's connection to a store, with the time limits of the crate `store` (`session.rs`).

use std::collections::VecDeque;

use objects::store::{Completion, Failure, Operation, Outcome, QueueFull, Report, Store, Ticket};

use super::{Content, Message};
use crate::{MS, SECOND};

/// Time limit of an operation.
const TIME_LIMIT: u64 = 250 * MS;
/// Without a reply for so long a connection is closed.
const STALL_LIMIT: u64 = 4 * TIME_LIMIT;
const CONNECT_LIMIT: u64 = SECOND;
const LEAST_PAUSE: u64 = 10 * MS;
const LONGEST_PAUSE: u64 = SECOND;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    /// The next attempt comes then.
    Down(u64),
    /// An answer is awaited until then.
    Connecting(u64),
    Up,
}

#[derive(Debug)]
struct Sent {
    ticket: Ticket,
    began: u64,
    is_expired: bool,
}

/// A connection.
#[derive(Debug)]
pub(in crate::pool) struct StoreClient {
    member: usize,
    store: usize,
    link: Link,
    pause: u64,
    connection: u64,
    submitted: u64,
    /// When each was submitted; `None`: since the last [`StoreClient::on_time`].
    waiting: VecDeque<(Ticket, Operation, Option<u64>)>,
    sent: VecDeque<Sent>,
    newest_reply: u64,
    reports: Vec<Report>,
    /// Life of the store that was connected.
    instance: Option<u64>,
    /// An attempt has failed: operations fail at once.
    has_failed: bool,
    is_loss_reported: bool,
    messages: Vec<Content>,
}

impl Store for StoreClient {
    fn submit(&mut self, operation: Operation) -> Result<Ticket, QueueFull> {
        self.submitted += 1;
        let ticket = Ticket(self.submitted);
        self.waiting.push_back((ticket, operation, None));
        Ok(ticket)
    }

    fn poll(&mut self, reports: &mut Vec<Report>) {
        reports.append(&mut self.reports);
    }

    fn name(&self) -> &str {
        "simulated"
    }
}

impl StoreClient {
    /// A connection of a host that is booted now.
    pub(in crate::pool) const fn new(member: usize, store: usize, now: u64) -> Self {
        Self {
            member,
            store,
            link: Link::Down(now),
            pause: LEAST_PAUSE,
            // No two lives of a host have a number in common.
            connection: now,
            submitted: 0,
            waiting: VecDeque::new(),
            sent: VecDeque::new(),
            newest_reply: 0,
            reports: Vec::new(),
            instance: None,
            has_failed: false,
            is_loss_reported: false,
            messages: Vec::new(),
        }
    }

    /// Whether reports wait.
    pub(in crate::pool) const fn has_reports(&self) -> bool {
        !self.reports.is_empty()
    }

    /// When [`StoreClient::on_time`] has something to do.
    pub(in crate::pool) fn due(&self, now: u64) -> u64 {
        let is_new = self.waiting.iter().any(|(_, _, began)| began.is_none());
        if is_new || !self.messages.is_empty() {
            return now;
        }
        let waiting = self.waiting.iter().filter_map(|(_, _, began)| *began);
        let sent = self.sent.iter().filter(|it| !it.is_expired);
        let limits = waiting.chain(sent.map(|it| it.began)).min();
        let limit = limits.map_or(u64::MAX, |began| began + TIME_LIMIT);
        let link = match self.link {
            Link::Down(at) | Link::Connecting(at) => at,
            Link::Up if self.sent.is_empty() => u64::MAX,
            Link::Up => self.stalls_at(),
        };
        link.min(limit)
    }

    fn stalls_at(&self) -> u64 {
        let first = self.sent.front().map_or(u64::MAX, |it| it.began);
        first.max(self.newest_reply).saturating_add(STALL_LIMIT)
    }

    /// Carries everything out that is due. Returns the messages for the store.
    pub(in crate::pool) fn on_time(&mut self, now: u64) -> Vec<Message> {
        for (_, _, began) in &mut self.waiting {
            began.get_or_insert(now);
        }
        match self.link {
            Link::Down(at) if now >= at => {
                self.connection += 1;
                self.link = Link::Connecting(now + CONNECT_LIMIT);
                self.messages.push(Content::Connect);
            }
            Link::Connecting(at) if now >= at => self.fail(Failure::TimedOut, now),
            Link::Up if !self.sent.is_empty() && now >= self.stalls_at() => {
                self.fail(Failure::TimedOut, now);
            }
            _ => {}
        }
        self.expire(now);
        if matches!(self.link, Link::Down(_)) && self.has_failed {
            while let Some((ticket, ..)) = self.waiting.pop_front() {
                self.complete(ticket, Err(Failure::Unreachable(String::new())));
            }
        }
        if self.link == Link::Up {
            while let Some((ticket, operation, began)) = self.waiting.pop_front() {
                let (began, is_expired) = (began.unwrap_or(now), false);
                self.sent.push_back(Sent {
                    ticket,
                    began,
                    is_expired,
                });
                self.messages.push(Content::Request(ticket, operation));
            }
        }
        let (member, store, connection) = (self.member, self.store, self.connection);
        let of = |content| Message {
            member,
            store,
            connection,
            is_repeated: false,
            content,
        };
        self.messages.drain(..).map(of).collect()
    }

    fn expire(&mut self, now: u64) {
        let is_over = |began: u64| now >= began + TIME_LIMIT;
        let mut expired = Vec::new();
        for sent in &mut self.sent {
            if is_over(sent.began) && !sent.is_expired {
                sent.is_expired = true;
                expired.push(sent.ticket);
            }
        }
        self.waiting.retain(|(ticket, _, began)| {
            let is_expired = began.is_some_and(is_over);
            if is_expired {
                expired.push(*ticket);
            }
            !is_expired
        });
        for ticket in expired {
            self.complete(ticket, Err(Failure::TimedOut));
        }
    }

    fn complete(&mut self, ticket: Ticket, result: Result<Outcome, Failure>) {
        let completion = Completion { ticket, result };
        self.reports.push(Report::Completed(completion));
    }

    fn fail(&mut self, failure: Failure, now: u64) {
        self.link = Link::Down(now + self.pause);
        self.messages.push(Content::Close);
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        self.has_failed = true;
        for sent in std::mem::take(&mut self.sent) {
            if !sent.is_expired {
                self.complete(sent.ticket, Err(Failure::ConnectionLost(String::new())));
            }
        }
        if !self.is_loss_reported {
            self.is_loss_reported = true;
            self.reports.push(Report::Lost(failure));
        }
    }

    /// A message of the store.
    pub(in crate::pool) fn on_message(&mut self, message: Message, now: u64) {
        if message.connection != self.connection {
            return;
        }
        match message.content {
            Content::Greeting(instance) if matches!(self.link, Link::Connecting(_)) => {
                (self.link, self.pause) = (Link::Up, LEAST_PAUSE);
                let before = self.instance.replace(instance);
                let is_other_instance = before.is_some_and(|before| before != instance);
                (self.has_failed, self.is_loss_reported) = (false, false);
                self.newest_reply = now;
                self.reports.push(Report::Connected { is_other_instance });
            }
            Content::Reply(ticket, result) if self.link == Link::Up => {
                self.newest_reply = now;
                let sent = self.sent.pop_front();
                if sent.is_some_and(|sent| sent.ticket == ticket && !sent.is_expired) {
                    self.complete(ticket, result);
                }
            }
            Content::End if !matches!(self.link, Link::Down(_)) => {
                self.fail(Failure::ConnectionLost(String::new()), now);
            }
            _ => {}
        }
    }
}
