//! All sessions of a logger.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    time::Duration,
};

use protocol::{
    control::Attach,
    link::{Determinants, Kind, LinkKey, LinkKeys},
};
use wire::FlowId;

use super::outbox::{Outbox, Peer};
use super::session::{AckPolicy, Session};
use crate::durable::entry::Entry;

mod inheritance;

pub use inheritance::{Inherited, NotYet, SILENCE};

/// Random keys and a clock value for a service that attaches.
#[derive(Debug, Clone, Copy)]
pub struct Greeting {
    /// A random key.
    pub up: LinkKey,
    /// A random key.
    pub down: LinkKey,
    /// First value of the counter of acknowledgements: above all values that an earlier process used for this
    /// service. Nanoseconds since 1970 are sufficient. The value also orders attachments by time.
    pub counter: u64,
}

/// A session that was dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forgotten {
    /// The instance number.
    pub instance: u64,
    /// The name of the service.
    pub service: String,
}

/// The attachment of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attachment {
    /// The service's request, with the limits and the mode that are in force.
    pub(crate) attach: Attach,
    /// The address of the host.
    pub(crate) from: IpAddr,
    /// The name of the service's key.
    pub(crate) key: String,
    /// [`Greeting::counter`]: a later attachment has a higher value.
    pub(crate) number: u64,
    /// Number of this session among the service's sessions, from
    /// [`Request::InUse`](protocol::control::Request::InUse).
    pub(crate) session: u64,
}

#[derive(Debug)]
struct Kept {
    attachment: Attachment,
    session: Session,
    /// Time at which the control stream ended.
    detached: Option<Duration>,
    /// The service has ended, or a host with a later grant has inherited another session of the service.
    over: bool,
    /// The session can be inherited when the log has all entries up to this number ([`Outbox::recorded`]).
    written_at: Option<u64>,
}

/// The sessions of all services.
#[derive(Debug)]
pub struct Sessions {
    by_instance: BTreeMap<u64, Kept>,
    by_peer: HashMap<Peer, u64>,
    policy: AckPolicy,
    limit_total: u64,
    keep: Duration,
    /// Datagrams from addresses without a session.
    strangers: u64,
}

impl Sessions {
    /// No sessions yet. All sessions together may use `limit_total` bytes. A session without a control stream is
    /// retained for `keep`.
    #[must_use]
    pub fn new(policy: AckPolicy, limit_total: u64, keep: Duration) -> Self {
        Self {
            by_instance: BTreeMap::new(),
            by_peer: HashMap::new(),
            policy,
            limit_total,
            keep,
            strangers: 0,
        }
    }

    /// Attaches a service with the key of this name; datagrams of the service will come from `peer`. Returns
    /// whether the session existed already, and the link keys. An existing session keeps the limits and the mode,
    /// except for the total limit.
    pub fn attach(
        &mut self,
        attach: &Attach,
        peer: Peer,
        key: &str,
        greeting: &Greeting,
        out: &mut Outbox,
    ) -> (bool, LinkKeys) {
        let instance = attach.instance;
        let policy = self.policy;
        let kept = self.by_instance.contains_key(&instance);
        let from = peer.address.ip();
        let entry = self.by_instance.entry(instance).or_insert_with(|| Kept {
            attachment: Attachment {
                attach: attach.clone(),
                from,
                key: key.to_owned(),
                number: greeting.counter,
                session: 0,
            },
            session: Session::new(attach, policy),
            detached: None,
            over: false,
            written_at: None,
        });
        let before = entry.session.peer();
        let keys = entry.session.attached(attach, peer, greeting);
        entry.detached = None;
        entry.over = false;
        entry.written_at = None;
        entry.attachment.from = from;
        key.clone_into(&mut entry.attachment.key);
        entry.attachment.number = greeting.counter;
        entry.attachment.attach.total = attach.total;
        entry.attachment.attach.udp_port = attach.udp_port;
        out.record(instance, &Entry::Attached(entry.attachment.clone()));
        if let Some(before) = before.filter(|before| self.by_peer.get(before) == Some(&instance)) {
            self.by_peer.remove(&before);
        }
        // One socket at a time has the port: the earlier owner has lost the port.
        self.by_peer.insert(peer, instance);
        self.share();
        (kept, keys)
    }

    /// Restores a session from the log. Memory is unlimited until the whole log is read.
    pub(crate) fn restore(&mut self, instance: u64, attachment: &Attachment) {
        let policy = self.policy;
        let attach = &attachment.attach;
        let entry = self.by_instance.entry(instance).or_insert_with(|| {
            // A copy of a connection needs one connection more than the limit.
            let roomy = Attach {
                connections: attach.connections.saturating_add(1),
                ..attach.clone()
            };
            let mut session = Session::new(&roomy, policy);
            session.limit_total(u64::MAX);
            Kept {
                attachment: attachment.clone(),
                session,
                detached: Some(Duration::ZERO),
                over: false,
                written_at: None,
            }
        });
        entry.attachment = attachment.clone();
    }

    /// Closes the connection with this number in all sessions.
    pub(crate) fn close_everywhere(&mut self, flow: FlowId) {
        for kept in self.by_instance.values_mut() {
            kept.session.close(flow);
        }
    }

    /// The log has been read.
    pub(crate) fn restored(&mut self) {
        for kept in self.by_instance.values_mut() {
            kept.session.restored();
        }
        self.share();
    }

    /// Drops a session.
    pub(crate) fn forget(&mut self, instance: u64) {
        self.by_instance.remove(&instance);
    }

    /// The control stream of a session has ended.
    pub fn detach(&mut self, instance: u64, now: Duration) {
        if let Some(entry) = self.by_instance.get_mut(&instance) {
            entry.detached = Some(now);
            entry.session.drop_upload();
        }
    }

    /// The service ends and will not attach again: the session is dropped after the end of the control stream.
    pub fn end(&mut self, instance: u64) {
        if let Some(entry) = self.by_instance.get_mut(&instance) {
            entry.over = true;
        }
    }

    /// A session.
    #[must_use]
    pub fn get(&self, instance: u64) -> Option<&Session> {
        self.by_instance.get(&instance).map(|entry| &entry.session)
    }

    /// The session of a service that attached last and has not ended: the successor host inherits this session.
    pub(crate) fn newest_of(&self, service: &str) -> Option<&Session> {
        self.newest(service).map(|kept| &kept.session)
    }

    /// The session of a service that attached last and has not ended, if the session has the key of this name: an
    /// inheritance needs the same key.
    #[must_use]
    pub fn followed(&self, service: &str, key: &str) -> Option<&Session> {
        let newest = self.newest(service);
        let newest = newest.filter(|kept| kept.attachment.key == key);
        newest.map(|kept| &kept.session)
    }

    fn newest(&self, service: &str) -> Option<&Kept> {
        let kept = self.by_instance.values();
        let of_it = kept.filter(|kept| !kept.over && kept.attachment.attach.service == service);
        of_it.max_by_key(|kept| kept.attachment.number)
    }

    /// Number of an instance's session among the service's sessions, as the service reported last.
    #[must_use]
    pub fn number(&self, instance: u64) -> Option<u64> {
        let kept = self.by_instance.get(&instance)?;
        Some(kept.attachment.session)
    }

    /// The service of this instance uses this logger, for the session with this number.
    pub fn in_use(&mut self, instance: u64, session: u64, out: &mut Outbox) {
        if let Some(kept) = self.by_instance.get_mut(&instance)
            && kept.attachment.session != session
        {
            kept.attachment.session = session;
            out.record(instance, &Entry::Attached(kept.attachment.clone()));
        }
    }

    /// A session, for changes.
    pub fn get_mut(&mut self, instance: u64) -> Option<&mut Session> {
        let entry = self.by_instance.get_mut(&instance)?;
        Some(&mut entry.session)
    }

    /// All sessions with the requests of their services, in the order of instance numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&Attach, &Session)> {
        let kept = self.by_instance.values();
        kept.map(|kept| (&kept.attachment.attach, &kept.session))
    }

    /// All sessions with their attachments, in the same order.
    pub(crate) fn attachments(&self) -> impl Iterator<Item = (&Attachment, &Session)> {
        let kept = self.by_instance.values();
        kept.map(|kept| (&kept.attachment, &kept.session))
    }

    /// Number of sessions without a control stream.
    #[must_use]
    pub fn detached(&self) -> usize {
        let sessions = self.by_instance.values();
        sessions.filter(|kept| kept.detached.is_some()).count()
    }

    /// Datagrams from addresses without a session.
    #[must_use]
    pub const fn strangers(&self) -> u64 {
        self.strangers
    }

    /// Handles a datagram.
    pub fn take(&mut self, from: Peer, datagram: &[u8], now: Duration, out: &mut Outbox) {
        if Kind::of(datagram) == Ok(Kind::Determinants) {
            // The server's processes send determinants, each from a port of the process.
            let instance = Determinants::instance(datagram);
            match instance.and_then(|instance| self.by_instance.get_mut(&instance)) {
                Some(entry) => entry.session.take_determinants(from, datagram, now),
                None => self.strangers += 1,
            }
            return;
        }
        let instance = self.by_peer.get(&from);
        match instance.and_then(|instance| self.by_instance.get_mut(instance)) {
            Some(entry) => entry.session.take(datagram, now, out),
            None => self.strangers += 1,
        }
    }

    /// Ends a batch of datagrams.
    pub fn settle(&mut self, now: Duration, out: &mut Outbox) {
        for entry in self.by_instance.values_mut() {
            entry.session.settle(now, out);
        }
        if self.by_instance.len() > 1 {
            self.share();
        }
    }

    /// Time at which delayed acknowledgements are due.
    #[must_use]
    pub fn due_at(&self) -> Option<Duration> {
        let sessions = self.by_instance.values();
        sessions.filter_map(|entry| entry.session.due_at()).min()
    }

    /// Frees memory, and drops the sessions whose services were absent for longer than the retention time. To be
    /// called about once a second.
    pub fn tidy(&mut self, now: Duration, out: &mut Outbox) -> Vec<Forgotten> {
        let mut forgotten = Vec::new();
        let keep = self.keep;
        self.by_instance.retain(|instance, entry| {
            entry.session.trim();
            let gone = entry
                .detached
                .is_some_and(|then| entry.over || now.saturating_sub(then) >= keep);
            if gone {
                out.record(*instance, &Entry::Forgotten);
                forgotten.push(Forgotten {
                    instance: *instance,
                    service: std::mem::take(&mut entry.attachment.attach.service),
                });
            }
            !gone
        });
        let by_instance = &self.by_instance;
        self.by_peer
            .retain(|_, instance| by_instance.contains_key(instance));
        if !forgotten.is_empty() {
            self.share();
        }
        forgotten
    }

    /// The limit of each session: the wanted memory, but no more than the other sessions leave.
    fn share(&mut self) {
        let all: u64 = self.by_instance.values().map(|e| e.session.held()).sum();
        for entry in self.by_instance.values_mut() {
            let others = all - entry.session.held();
            let left = self.limit_total.saturating_sub(others);
            entry.session.limit_total(entry.session.wanted().min(left));
        }
    }
}
