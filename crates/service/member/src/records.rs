//! The stores of the pool, and the ring of turns, behind [`objects::records`].

use std::{cell::RefCell, net::SocketAddr, os::fd::BorrowedFd, rc::Rc, sync::Arc, time::Duration};

use dataplane::{MemberPlane, ObjectRing};
use objects::{
    PoolKey,
    deferred::Released,
    flow::Flow,
    plane::{SegmentCopy, StoreKind},
    record::Record,
    records::{self, LookedUp, Moment, Notice, StoredFlows},
    revivals::AskedRequest,
    timestamp::StateBits,
    turns::Beginnings,
};
use pool::{OwnConnections, OwnerTable};
use protocol::pool::{StoreSettings, Table};
use store::{OperationKind, Settings, Store as _, StoreAcks, StoreClient};
use wire::{FlowKey, SeqNumber};

use crate::{
    clock,
    error::{MemberError, SystemContext},
    event::Event,
    revivals::Revivals,
    status::{OperationStatus, StoreStatus},
};

/// URLs of stores without a list of the records of a member.
const UNINDEXED_SCHEME: &str = "memcached:";

/// The store of a member.
pub(crate) struct Records {
    records: records::Records<StoreClient>,
    ring: ObjectRing<'static>,
    beginnings: Rc<RefCell<Beginnings>>,
    own: Option<OwnConnections>,
    membership: u64,
}

/// The kernel's part of the records.
struct Kernel<'a>(&'a MemberPlane);

impl StoredFlows for Kernel<'_> {
    type Error = MemberError;

    fn flow(&mut self, key: FlowKey) -> Result<Option<Flow>, MemberError> {
        Ok(self.0.flow(key)?)
    }

    fn set_stored(
        &mut self,
        key: FlowKey,
        number: u32,
        request_start: SeqNumber,
        state: StateBits,
    ) -> Result<bool, MemberError> {
        Ok(self.0.set_stored(key, number, request_start, state)?)
    }

    fn give_up_record(
        &mut self,
        key: FlowKey,
        number: u32,
        request_start: SeqNumber,
    ) -> Result<(), MemberError> {
        self.0.give_up_record(key, number, request_start)?;
        Ok(())
    }

    fn set_store(&mut self, kind: StoreKind) -> Result<(), MemberError> {
        Ok(self.0.set_store(kind)?)
    }
}

fn moment() -> Moment {
    Moment {
        now: clock::now(),
        unix: clock::unix_offset() + clock::boot(),
    }
}

impl Records {
    /// Begins to connect to the stores. `member`: the name of this member.
    ///
    /// # Errors
    /// A URL is malformed, or the host has no address.
    pub(crate) fn open(
        settings: &StoreSettings,
        key: PoolKey,
        service: SocketAddr,
        member: &str,
        plane: &MemberPlane,
    ) -> Result<Self, MemberError> {
        let stores: Result<Vec<StoreClient>, MemberError> = { settings.urls.iter() }
            .map(|url| {
                let url = url.text.parse().map_err(MemberError::StoreUrl)?;
                StoreClient::open(&url, Settings::default()).doing("find the store")
            })
            .collect();
        let stores = stores?;
        let mut names = stores.iter().map(StoreClient::name);
        let of_records = records::Settings {
            service,
            key,
            delay: Duration::from_micros(settings.after_us.into()),
            acks: match settings.needs_all {
                true => StoreAcks::Both,
                false => StoreAcks::First,
            },
            has_index: !names.any(|name| name.starts_with(UNINDEXED_SCHEME)),
        };
        let beginnings: Rc<RefCell<Beginnings>> = Rc::default();
        let into_beginnings = Rc::clone(&beginnings);
        Ok(Self {
            records: records::Records::new(&of_records, member, stores, rand::random),
            ring: plane.turns(move |copy| {
                let packet_len = usize::try_from(copy.packet_len).unwrap_or(usize::MAX);
                let mut beginnings = into_beginnings.borrow_mut();
                beginnings.add(copy.key, copy.kind, copy.packet, packet_len);
            })?,
            beginnings,
            own: None,
            membership: 0,
        })
    }

    /// Readable when something is to do.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let stores = self.records.stores().iter().map(StoreClient::readiness);
        stores.chain([self.ring.as_fd()])
    }

    /// When [`Records::poll`] has something to do.
    pub(crate) fn deadline(&self) -> Duration {
        self.records.deadline()
    }

    /// A new membership.
    pub(crate) fn begin_membership(&mut self, membership: u64) {
        self.membership = membership;
        self.own = None;
        self.records.begin_membership(membership);
    }

    /// Other members have the connections, and need the records.
    pub(crate) fn forget(&mut self) {
        self.own = None;
        self.records.forget();
    }

    /// The pool has changed: the clients of the members that are gone are called.
    pub(crate) fn set_table(&mut self, table: &Table, key: protocol::pool::PoolKey) {
        let owners = OwnerTable::of(table).ok().map(Arc::new);
        self.own =
            owners.and_then(|owners| OwnConnections::of(table, owners, self.membership, key));
        let members = table.members.iter();
        let members = members.map(|member| (member.membership, member.name.as_str()));
        self.records.set_members(members);
    }

    /// Carries everything out that is due. Returns the segments whose records are looked up.
    pub(crate) fn poll(
        &mut self,
        plane: &MemberPlane,
        incarnation: u32,
        events: &mut Vec<Event>,
    ) -> Result<Vec<LookedUp>, MemberError> {
        self.ring.consume()?;
        let beginnings = self.beginnings.take();
        let own = &self.own;
        let owns = |key: &FlowKey| own.as_ref().is_some_and(|own| own.has(key));
        let life = (incarnation, moment());
        let found = (self.records).poll(&mut Kernel(plane), &beginnings, life, owns)?;
        for notice in self.records.take_notices() {
            events.extend(self.event_of(notice));
        }
        Ok(found)
    }

    fn event_of(&self, notice: Notice) -> Option<Event> {
        match notice {
            Notice::Lost { store, failure } => Some(Event::StoreLost {
                store: self.name_of(store),
                reason: failure.to_string(),
            }),
            Notice::Connected { store } => Some(Event::StoreConnected {
                store: self.name_of(store),
            }),
            Notice::Failed { key, failure } => {
                tracing::debug!(%failure, client = %key.client(), "a record was not written or read");
                None
            }
            Notice::NotListed(failure) => {
                tracing::debug!(%failure, "the records of a member were not read");
                None
            }
        }
    }

    /// The stores, and how their operations have ended.
    pub(crate) fn status(&self) -> Vec<StoreStatus> {
        let stores = self.records.stores().iter().zip(self.records.answers());
        let status = stores.map(|(store, answers)| {
            let statistics = store.statistics();
            let of_kind = |kind: OperationKind| OperationStatus {
                operation: kind.label().to_owned(),
                outcomes: { statistics.operations() }
                    .filter(|(of, ..)| *of == kind)
                    .map(|(_, outcome, count)| (outcome.to_owned(), count))
                    .collect(),
                answers_s: statistics.times(kind).cloned().unwrap_or_default(),
            };
            StoreStatus {
                store: store.name().to_owned(),
                answers: *answers,
                operations: OperationKind::ALL.map(of_kind).into(),
            }
        });
        status.collect()
    }

    fn name_of(&self, store: usize) -> String {
        let store = self.records.stores().get(store);
        store.map_or_else(String::new, |store| store.name().to_owned())
    }

    /// The server has died: no segment of its sockets leaves.
    ///
    /// `interrupted`: revivals that were under way, with their records.
    pub(crate) fn server_died(&mut self, interrupted: Vec<(FlowKey, Record)>) {
        self.records.server_died(interrupted, moment());
    }

    /// A segment of the server waits for the record of its turn.
    pub(crate) fn defer(&mut self, copy: SegmentCopy) {
        self.records.defer(copy, clock::now());
    }

    /// Responses that wait no longer. A turn that gets no record goes on without protection.
    pub(crate) fn released(&mut self, plane: &MemberPlane) -> Result<Vec<Released>, MemberError> {
        self.records.released(&mut Kernel(plane), clock::now())
    }

    /// A revival has passed a request to the server, and the response waits for a record.
    pub(crate) fn on_asked(&mut self, key: FlowKey, asked: AskedRequest) {
        self.records.on_asked(key, asked, clock::now());
    }

    /// Segments that call clients, as many as may leave now.
    pub(crate) fn due_calls(
        &mut self,
        plane: &MemberPlane,
        incarnation: u32,
    ) -> Result<Vec<Vec<u8>>, MemberError> {
        let now = clock::now();
        self.records.due_calls(&mut Kernel(plane), incarnation, now)
    }

    /// The record that a segment needs: at once, if this member has written the record; otherwise [`Records::poll`]
    /// returns the segment with the record.
    pub(crate) fn look_up(&mut self, copy: SegmentCopy) -> Option<LookedUp> {
        self.records.look_up(copy, clock::now())
    }

    /// A revival with this record has ended.
    pub(crate) fn on_revived(&mut self, key: FlowKey, found: &Record, is_stored: bool) {
        self.records.on_revived(key, found, is_stored, moment());
    }

    /// An answer of a client: no call is needed any more.
    pub(crate) fn on_answer(&mut self, key: &FlowKey) {
        self.records.on_answer(key);
    }

    pub(crate) fn has_store(&self) -> bool {
        self.records.has_store()
    }

    /// The server is there again after a death: clients may wait without a word.
    pub(crate) fn call_own(&mut self) {
        self.records.call_own(clock::now());
    }

    /// Whether the segment needs a record that is not looked up yet.
    pub(crate) fn is_needed_for(&self, copy: &SegmentCopy, revivals: &Revivals) -> bool {
        let is_reviving = revivals.takes(copy);
        self.records.is_needed_for(copy, is_reviving)
    }
}
