//! The records of a member, and its connections to the stores: the crate `member` does the same (`records.rs`).

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use objects::{
    PoolKey,
    deferred::Released,
    flow::Flow,
    plane::{Plane, SegmentCopy, StoreKind},
    record::Record,
    records::{LookedUp, Moment, Records, Settings, StoredFlows},
    revivals::Ended,
    timestamp::StateBits,
    turns::Beginnings,
};
use pool::OwnConnections;
use protocol::pool::Table;
use wire::{FlowKey, SeqNumber};

use super::{POOL_KEY, flaws};
use crate::pool::{
    balancer::owners_of,
    scenario::PoolScenario,
    store::{Message, StoreClient},
};

/// The records of a member.
pub(super) struct StoredRecords {
    records: Records<StoreClient>,
    own: Option<OwnConnections>,
    membership: u64,
    beginnings: Beginnings,
}

/// Results of a look at the records.
pub(super) struct Polled {
    pub(super) found: Vec<LookedUp>,
    pub(super) calls: Vec<Vec<u8>>,
    pub(super) released: Vec<Released>,
}

struct Programs<'a>(&'a mut Plane);

impl StoredFlows for Programs<'_> {
    type Error = Infallible;

    fn flow(&mut self, key: FlowKey) -> Result<Option<Flow>, Infallible> {
        Ok(self.0.flow(&key).cloned())
    }

    fn set_stored(
        &mut self,
        key: FlowKey,
        number: u32,
        request_start: SeqNumber,
        state: StateBits,
    ) -> Result<bool, Infallible> {
        Ok(self.0.set_stored(&key, number, request_start, state))
    }

    fn give_up_record(
        &mut self,
        key: FlowKey,
        number: u32,
        request_start: SeqNumber,
    ) -> Result<(), Infallible> {
        self.0.give_up_record(&key, number, request_start);
        Ok(())
    }

    fn set_store(&mut self, kind: StoreKind) -> Result<(), Infallible> {
        self.0.set_store(kind);
        Ok(())
    }
}

impl StoredRecords {
    /// `None`: the pool has no store.
    pub(super) fn new(
        number: usize,
        scenario: &PoolScenario,
        service: SocketAddr,
        now: u64,
    ) -> Option<Self> {
        let plan = scenario.store.as_ref()?;
        let stores = 0..plan.are_indexed.len();
        let stores = stores.map(|store| StoreClient::new(number, store, now));
        let settings = Settings {
            service,
            key: PoolKey(POOL_KEY),
            delay: Duration::from_nanos(plan.delay),
            acks: plan.acks,
            has_index: plan.are_indexed.iter().all(|is_indexed| *is_indexed),
        };
        let name = format!("web{number}");
        // Nobody reads the messages: a nonce may repeat.
        let mut records = Records::new(&settings, &name, stores.collect(), || [0; 24]);
        records.plant(flaws(scenario));
        Some(Self {
            records,
            own: None,
            membership: 0,
            beginnings: Beginnings::default(),
        })
    }

    /// Segments that begin turns and responses.
    pub(super) fn begin(&mut self, plane: &mut Plane) {
        while let Some(copy) = plane.take_beginning() {
            let packet_len = copy.packet_len;
            (self.beginnings).add(copy.key, copy.kind, &copy.packet, packet_len);
        }
    }

    /// Messages to the stores that are due.
    pub(super) fn messages(&mut self, now: u64) -> Vec<Message> {
        let stores = self.records.stores_mut().iter_mut();
        stores.flat_map(|store| store.on_time(now)).collect()
    }

    pub(super) fn on_message(&mut self, message: Message, now: u64) {
        if let Some(store) = self.records.stores_mut().get_mut(message.store) {
            store.on_message(message, now);
        }
    }

    /// When a connection to a store has something to do.
    pub(super) fn stores_due(&self, now: u64) -> u64 {
        let stores = self.records.stores().iter();
        stores.map(|store| store.due(now)).min().unwrap_or(u64::MAX)
    }

    pub(super) fn has_input(&self) -> bool {
        let mut stores = self.records.stores().iter();
        stores.any(StoreClient::has_reports)
    }

    pub(super) fn deadline(&self) -> Duration {
        self.records.deadline()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.records.is_idle()
    }

    pub(super) fn begin_membership(&mut self, membership: u64) {
        self.membership = membership;
        self.own = None;
        self.records.begin_membership(membership);
    }

    /// Other members have the connections.
    pub(super) fn forget(&mut self) {
        self.own = None;
        self.records.forget();
    }

    pub(super) fn set_table(&mut self, table: &Table) {
        let key = protocol::pool::PoolKey(POOL_KEY);
        self.own = OwnConnections::of(table, owners_of(table), self.membership, key);
        let members = table.members.iter();
        let members = members.map(|member| (member.membership, member.name.as_str()));
        self.records.set_members(members);
    }

    pub(super) fn server_died(&mut self, interrupted: Vec<(FlowKey, Record)>, moment: Moment) {
        self.records.server_died(interrupted, moment);
    }

    pub(super) fn call_own(&mut self, now: Duration) {
        self.records.call_own(now);
    }

    pub(super) fn defer(&mut self, copy: SegmentCopy, now: Duration) {
        self.records.defer(copy, now);
    }

    pub(super) fn on_answer(&mut self, key: &FlowKey) {
        self.records.on_answer(key);
    }

    pub(super) fn has_store(&self) -> bool {
        self.records.has_store()
    }

    pub(super) fn is_needed_for(&self, copy: &SegmentCopy, is_reviving: bool) -> bool {
        self.records.is_needed_for(copy, is_reviving)
    }

    pub(super) fn look_up(&mut self, copy: SegmentCopy, now: Duration) -> Option<LookedUp> {
        self.records.look_up(copy, now)
    }

    /// A revival has ended.
    pub(super) fn on_ended(&mut self, ended: &Ended, moment: Moment) {
        let Some(record) = ended.record.as_ref().filter(|_| ended.refused.is_none()) else {
            return;
        };
        let (key, is_stored) = (ended.key, ended.is_stored);
        self.records.on_revived(key, record, is_stored, moment);
        if let Some(asked) = ended.asked.clone() {
            self.records.on_asked(key, asked, moment.now);
        }
    }

    /// Carries everything out that is due.
    pub(super) fn poll(&mut self, plane: &mut Plane, incarnation: u32, moment: Moment) -> Polled {
        let beginnings = std::mem::take(&mut self.beginnings);
        let own = &self.own;
        let owns = |key: &FlowKey| own.as_ref().is_some_and(|own| own.has(key));
        let mut programs = Programs(plane);
        let life = (incarnation, moment);
        let Ok(found) = self.records.poll(&mut programs, &beginnings, life, owns);
        let now = moment.now;
        let Ok(calls) = self.records.due_calls(&mut programs, incarnation, now);
        let Ok(released) = self.records.released(&mut programs, now);
        self.records.take_notices();
        Polled {
            found,
            calls,
            released,
        }
    }
}
