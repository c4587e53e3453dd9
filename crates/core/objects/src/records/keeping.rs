//! The records that this member has written, or has used: renewed, written anew and deleted.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use wire::FlowKey;

use super::{Names, StoredFlows};
use crate::flow::{Flow, Mode};
use crate::record::{Record, StoreKey};
use crate::revivals::CLIENT_PAUSE_MAX;

/// Pause between two looks at a connection.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// A quarter of the time to live of a record.
const RENEWAL_PERIOD: Duration = Duration::from_secs(30 * 60);
/// Bytes after which the record of a response is written anew: see [`crate::record::StoredAnswer::acked`].
const REWRITE_BYTES: u64 = 512 << 20;
/// Looks that find another turn before a record is deleted: the client's echo may be of the turn before.
const LOOKS_MAX: u32 = 2;

#[derive(Debug, Default)]
pub(super) struct Written {
    records: BTreeMap<FlowKey, One>,
    next_look: Option<Duration>,
}

#[derive(Debug)]
struct One {
    name: StoreKey,
    record: Record,
    renew_at: Duration,
    /// Looks that found another turn.
    looks: u32,
    /// After a death of the server the client may need the record, also while the programs do not know the connection.
    needed_until: Duration,
}

/// Work at the store.
pub(super) enum Task {
    Delete(StoreKey),
    Renew(StoreKey),
    Write(FlowKey, Record),
}

impl Written {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Name of the record that the connection relies on.
    pub(super) fn name(&self, key: &FlowKey) -> Option<StoreKey> {
        self.records.get(key).map(|one| one.name)
    }

    /// Whether a newer record of the connection is in the store.
    pub(super) fn is_behind(&self, key: &FlowKey, record: &Record) -> bool {
        let kept = self.record(key);
        kept.is_some_and(|kept| kept.generation > record.generation)
    }

    pub(super) fn record(&self, key: &FlowKey) -> Option<&Record> {
        self.records.get(key).map(|one| &one.record)
    }

    pub(super) fn records(&self) -> Vec<(StoreKey, Record)> {
        let all = self.records.values();
        all.map(|one| (one.name, one.record.clone())).collect()
    }

    /// The records that this member has written.
    pub(super) fn own_records(&self, names: &Names) -> Vec<(FlowKey, Record)> {
        { self.records.iter() }
            .filter(|(key, one)| one.name == names.own(**key))
            .map(|(key, one)| (*key, one.record.clone()))
            .collect()
    }

    /// Returns the name of the record before.
    pub(super) fn insert(
        &mut self,
        key: FlowKey,
        name: StoreKey,
        record: Record,
        now: Duration,
    ) -> Option<StoreKey> {
        self.next_look.get_or_insert(now + LOOK_PERIOD);
        let one = One {
            name,
            record,
            renew_at: now + RENEWAL_PERIOD,
            looks: 0,
            needed_until: Duration::ZERO,
        };
        self.records.insert(key, one).map(|before| before.name)
    }

    /// The server has died: clients that wait are called when the server is there again.
    pub(super) fn server_died(&mut self, now: Duration) {
        for one in self.records.values_mut() {
            one.needed_until = now + CLIENT_PAUSE_MAX;
        }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.next_look
    }

    /// Looks at all connections once in a while.
    pub(super) fn due<F: StoredFlows>(
        &mut self,
        flows: &mut F,
        incarnation: u32,
        now: Duration,
    ) -> Result<Vec<Task>, F::Error> {
        let mut steps = Vec::new();
        if self.next_look.is_none_or(|at| now < at) {
            return Ok(steps);
        }
        let mut over = Vec::new();
        for (key, one) in &mut self.records {
            let flow = flows.flow(*key)?;
            if one.is_over(flow.as_ref(), incarnation, now) {
                steps.push(Task::Delete(one.name));
                over.push(*key);
                continue;
            }
            if now >= one.renew_at {
                one.renew_at = now + RENEWAL_PERIOD;
                steps.push(Task::Renew(one.name));
            }
            if flow.is_some_and(|flow| one.advance(&flow)) {
                steps.push(Task::Write(*key, one.record.clone()));
            }
        }
        for key in over {
            self.records.remove(&key);
        }
        self.next_look = (!self.records.is_empty()).then_some(now + LOOK_PERIOD);
        Ok(steps)
    }
}

impl One {
    /// Whether no client can need the record. The client's echo may name the turn of the record until the turn behind
    /// is over.
    fn is_over(&mut self, flow: Option<&Flow>, incarnation: u32, now: Duration) -> bool {
        let Some(flow) = flow else {
            return now >= self.needed_until;
        };
        let number = self.record.turns.last().map_or(0, |turn| turn.number);
        let is_near = (0..=1).contains(&flow.turn.number.wrapping_sub(number))
            && self.record.is_near(flow.turn.request_end);
        if is_near || flow.mode == Mode::Reviving || flow.incarnation != incarnation {
            self.looks = 0;
            if flow.mode == Mode::Served && flow.incarnation == incarnation {
                self.needed_until = Duration::ZERO;
            }
            return false;
        }
        self.looks += 1;
        self.looks >= LOOKS_MAX
    }

    /// Whether the record is to be written anew, with a later position.
    fn advance(&mut self, flow: &Flow) -> bool {
        let turn = self.record.turns.last_mut();
        let Some(turn) = turn.filter(|turn| turn.number == flow.turn.number) else {
            return false;
        };
        let Some(answer) = turn.answer.as_mut().filter(|_| flow.is_stored()) else {
            return false;
        };
        let is_far = flow.turn.acked >= answer.acked.saturating_add(REWRITE_BYTES);
        if is_far {
            answer.acked = flow.turn.acked;
        }
        is_far
    }
}
