//! Clients of dead members that may wait without a word: each is called until the answer ([`crate::call`]).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use wire::FlowKey;

use crate::PoolKey;
use crate::call;
use crate::record::{HashName, Record, StoreKey};

/// Most calls at a time, and the pause behind.
const BURST_LEN_MAX: usize = 200;
const BURST_PAUSE: Duration = Duration::from_millis(5);
/// Calls of a client; the pauses between these double.
const TRIES_MAX: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(300);
/// Tries to read the records of a dead member.
const SCANS_MAX: u32 = 10;
const SCAN_PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(super) struct Calls {
    calls: BTreeMap<FlowKey, Call>,
    scans: BTreeMap<HashName, Scan>,
    next_burst: Duration,
}

#[derive(Debug)]
struct Call {
    record: Record,
    tries: u32,
    at: Duration,
}

#[derive(Debug)]
struct Scan {
    tries: u32,
    at: Option<Duration>,
}

impl Calls {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.scans.values().all(|scan| scan.at.is_none())
    }

    /// The clients of these records are called.
    pub(super) fn extend(
        &mut self,
        records: impl IntoIterator<Item = (StoreKey, Record)>,
        now: Duration,
    ) {
        for (name, record) in records {
            let known = self.calls.get(&name.flow);
            let known = known.map(|call| call.record.generation);
            if known.is_none_or(|known| known <= record.generation) {
                self.call(name.flow, record, now);
            }
        }
    }

    fn call(&mut self, key: FlowKey, record: Record, at: Duration) {
        let call = Call {
            record,
            tries: 0,
            at,
        };
        self.calls.insert(key, call);
    }

    pub(super) fn remove(&mut self, key: &FlowKey) {
        self.calls.remove(key);
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        let calls = self.calls.values().map(|call| call.at).min();
        let calls = calls.map(|at| at.max(self.next_burst));
        let scans = self.scans.values().filter_map(|scan| scan.at).min();
        calls.into_iter().chain(scans).min()
    }

    /// The records of a member were not read.
    pub(super) fn retry_scan(&mut self, name: HashName, now: Duration) {
        let scan = self
            .scans
            .entry(name)
            .or_insert(Scan { tries: 0, at: None });
        scan.tries += 1;
        scan.at = Some(now + SCAN_PAUSE);
        if scan.tries >= SCANS_MAX {
            self.scans.remove(&name);
        }
    }

    pub(super) fn due_scans(&mut self, now: Duration) -> Vec<HashName> {
        let mut due = Vec::new();
        for (name, scan) in &mut self.scans {
            if scan.at.is_some_and(|at| at <= now) {
                scan.at = None;
                due.push(*name);
            }
        }
        due
    }

    /// The packets that are due. `serves`: whether this member serves the connection.
    pub(super) fn due<E>(
        &mut self,
        key: &PoolKey,
        now: Duration,
        mut serves: impl FnMut(FlowKey) -> Result<bool, E>,
    ) -> Result<Vec<Vec<u8>>, E> {
        let mut packets = Vec::new();
        if now < self.next_burst {
            return Ok(packets);
        }
        let due = self.calls.iter().filter(|(_, call)| call.at <= now);
        let due: Vec<FlowKey> = due.map(|(key, _)| *key).take(BURST_LEN_MAX).collect();
        if !due.is_empty() {
            self.next_burst = now + BURST_PAUSE;
        }
        for flow in due {
            let is_over = serves(flow)?;
            let Some(call) = self.calls.get_mut(&flow) else {
                continue;
            };
            if is_over || call.tries >= TRIES_MAX {
                self.calls.remove(&flow);
                continue;
            }
            call.at = now + FIRST_PAUSE * 2_u32.pow(call.tries);
            call.tries += 1;
            packets.extend(call::packet(flow, key, &call.record));
        }
        Ok(packets)
    }
}
