//! All that a logger keeps.

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

/// What has to be drawn, or read from a clock, for a service that attaches.
#[derive(Debug, Clone, Copy)]
pub struct Greeting {
    /// A random key.
    pub up: LinkKey,
    /// A random key.
    pub down: LinkKey,
    /// Where the counter of acknowledgements begins: above all that an earlier process has used for
    /// this service. Nanoseconds since 1970 will do. It also tells who attached last.
    pub counter: u64,
}

/// A session that is no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forgotten {
    /// Whose.
    pub instance: u64,
    /// The name of the service.
    pub service: String,
}

/// How a service has attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attachment {
    /// What it said; of the limits and the mode, what holds.
    pub(crate) attach: Attach,
    /// The address of its host.
    pub(crate) from: IpAddr,
    /// The name of the key that it has proven to have.
    pub(crate) key: String,
    /// [`Greeting::counter`]: who attached later has a higher one.
    pub(crate) number: u64,
    /// [`Request::InUse`](protocol::control::Request::InUse): which of the service's sessions it is.
    pub(crate) session: u64,
}

#[derive(Debug)]
struct Kept {
    attachment: Attachment,
    session: Session,
    /// Since when it has no control stream.
    detached: Option<Duration>,
    /// The service has said that it ends.
    over: bool,
    /// It is to be inherited when this is in the log: [`Outbox::recorded`].
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
    /// Datagrams from addresses where no session is.
    strangers: u64,
}

impl Sessions {
    /// None yet. All together may hold `limit_total` bytes, and one without a control stream is
    /// kept for `keep`.
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

    /// A service attaches that has proven to have the key of this name; its datagrams will come from
    /// `peer`. Answers whether its records were
    /// still here, and the keys. The limits and the mode of a session that is here stay, but for
    /// the total.
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
        // The port is held by one socket at a time: whoever had it has lost it.
        self.by_peer.insert(peer, instance);
        self.share();
        (kept, keys)
    }

    /// There is a session, says a log. It may hold as much as it likes until the log has been read.
    pub(crate) fn restore(&mut self, instance: u64, attachment: &Attachment) {
        let policy = self.policy;
        let attach = &attachment.attach;
        let entry = self.by_instance.entry(instance).or_insert_with(|| {
            // There is room for a copy of one.
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

    /// No session has a connection with this number.
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

    /// A session is no more.
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

    /// Its service ends, and nobody will attach again: it is forgotten when its control stream has
    /// ended.
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

    /// Of the sessions of a service the one that attached last, if it has not ended: a host that takes
    /// over inherits it.
    pub(crate) fn newest_of(&self, service: &str) -> Option<&Session> {
        self.newest(service).map(|kept| &kept.session)
    }

    /// The same, for who has proven to have the key of this name: if he may inherit it.
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

    /// Which of its service's sessions that of an instance is, as was told last.
    #[must_use]
    pub fn number(&self, instance: u64) -> Option<u64> {
        let kept = self.by_instance.get(&instance)?;
        Some(kept.attachment.session)
    }

    /// The service of this instance has us in use.
    pub fn in_use(&mut self, instance: u64, session: u64, out: &mut Outbox) {
        if let Some(kept) = self.by_instance.get_mut(&instance)
            && kept.attachment.session != session
        {
            kept.attachment.session = session;
            out.record(instance, &Entry::Attached(kept.attachment.clone()));
        }
    }

    /// A session, to be changed.
    pub fn get_mut(&mut self, instance: u64) -> Option<&mut Session> {
        let entry = self.by_instance.get_mut(&instance)?;
        Some(&mut entry.session)
    }

    /// All sessions, with what their services said when they attached, in the order of their
    /// numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&Attach, &Session)> {
        let kept = self.by_instance.values();
        kept.map(|kept| (&kept.attachment.attach, &kept.session))
    }

    /// How their services have attached, in the same order.
    pub(crate) fn attachments(&self) -> impl Iterator<Item = (&Attachment, &Session)> {
        let kept = self.by_instance.values();
        kept.map(|kept| (&kept.attachment, &kept.session))
    }

    /// Sessions that have no control stream.
    #[must_use]
    pub fn detached(&self) -> usize {
        let sessions = self.by_instance.values();
        sessions.filter(|kept| kept.detached.is_some()).count()
    }

    /// Datagrams from addresses where no session is.
    #[must_use]
    pub const fn strangers(&self) -> u64 {
        self.strangers
    }

    /// A datagram has come.
    pub fn take(&mut self, from: Peer, datagram: &[u8], now: Duration, out: &mut Outbox) {
        if Kind::of(datagram) == Ok(Kind::Determinants) {
            // They come from the server's processes, each from a port of its own.
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

    /// A batch of datagrams has been read.
    pub fn settle(&mut self, now: Duration, out: &mut Outbox) {
        for entry in self.by_instance.values_mut() {
            entry.session.settle(now, out);
        }
        if self.by_instance.len() > 1 {
            self.share();
        }
    }

    /// When acknowledgements that were put off are due.
    #[must_use]
    pub fn due_at(&self) -> Option<Duration> {
        let sessions = self.by_instance.values();
        sessions.filter_map(|entry| entry.session.due_at()).min()
    }

    /// To be called every second or so: gives memory back, and forgets the sessions whose services
    /// have been gone for too long.
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

    /// Each session may hold what it wanted, or what the others leave.
    fn share(&mut self) {
        let all: u64 = self.by_instance.values().map(|e| e.session.held()).sum();
        for entry in self.by_instance.values_mut() {
            let others = all - entry.session.held();
            let left = self.limit_total.saturating_sub(others);
            entry.session.limit_total(entry.session.wanted().min(left));
        }
    }
}
