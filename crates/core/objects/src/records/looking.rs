//! Records that a revival needs.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use wire::FlowKey;

use super::{LookedUp, names::Names};
use crate::plane::SegmentCopy;
use crate::revive::PositionError;
use crate::store::{Failure, Lookup};

/// Most look-ups at a time: a client that speaks again later gets the next place.
const LOOK_UPS_MAX: usize = 16_384;
/// Time in which a store may come back.
const STORE_PATIENCE: Duration = Duration::from_secs(3);
const RETRY_PERIOD: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct LookUps {
    underway: BTreeMap<FlowKey, LookUp>,
}

#[derive(Debug)]
struct LookUp {
    /// The newest segment.
    copy: SegmentCopy,
    began: Duration,
    /// When the store is asked, or asked again. `None`: the store is being asked.
    asks_at: Option<Duration>,
    /// Version of the names that were asked for.
    version: u64,
}

impl LookUps {
    pub(super) fn clear(&mut self) {
        self.underway.clear();
    }

    /// Whether the look-up is a new one. The store is asked now, or when the names of members are there.
    pub(super) fn begin(&mut self, copy: SegmentCopy, now: Duration) -> bool {
        if let Some(known) = self.underway.get_mut(&copy.key) {
            known.copy = copy;
            return false;
        }
        let has_room = self.underway.len() < LOOK_UPS_MAX;
        if has_room {
            let (key, began) = (copy.key, now);
            let look_up = LookUp {
                copy,
                began,
                asks_at: Some(began),
                version: 0,
            };
            self.underway.insert(key, look_up);
        }
        has_room
    }

    pub(super) fn is_empty(&self) -> bool {
        self.underway.is_empty()
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.underway.values().filter_map(|it| it.asks_at).min()
    }

    /// The connections whose records are looked up now. `are_names_awaited`: the list of members will be there soon.
    pub(super) fn due(&self, now: Duration, are_names_awaited: bool) -> Vec<FlowKey> {
        let is_due = |it: &LookUp| !are_names_awaited && it.asks_at.is_some_and(|at| at <= now);
        let due = self.underway.iter().filter(|(_, it)| is_due(it));
        due.map(|(key, _)| *key).collect()
    }

    /// The store is being asked for the record of the connection, by the names of this version.
    pub(super) fn note_asked(&mut self, key: FlowKey, version: u64) {
        if let Some(look_up) = self.underway.get_mut(&key) {
            (look_up.asks_at, look_up.version) = (None, version);
        }
    }

    /// The answer of the store. A store that does not answer is asked again for a while: never taken for a store
    /// without the record. Of names that are new since, one may have a newer record.
    pub(super) fn complete(
        &mut self,
        key: FlowKey,
        result: Result<Lookup, Failure>,
        names: &Names,
        now: Duration,
    ) -> Option<LookedUp> {
        let look_up = self.underway.get_mut(&key)?;
        let is_patient = now < look_up.began + STORE_PATIENCE;
        if is_patient && (names.are_awaited() || look_up.version != names.version) {
            look_up.asks_at = Some(now);
            return None;
        }
        let record = match result {
            Ok(Lookup::Found(_, record)) => Ok(*record),
            Ok(Lookup::Missing) if names.are_whole() => Err(PositionError::RecordMissing),
            Ok(Lookup::Missing) | Err(_) if is_patient => {
                look_up.asks_at = Some(now + RETRY_PERIOD);
                return None;
            }
            Ok(Lookup::Missing) | Err(_) => Err(PositionError::StoreLost),
        };
        let LookUp { copy, .. } = self.underway.remove(&key)?;
        Some(LookedUp { copy, record })
    }
}
