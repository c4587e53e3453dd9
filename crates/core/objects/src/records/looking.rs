//! Records that a revival needs.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use wire::FlowKey;

use super::LookedUp;
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
    /// When the store is asked again.
    retry_at: Option<Duration>,
}

impl LookUps {
    pub(super) fn clear(&mut self) {
        self.underway.clear();
    }

    /// Whether the store is to be asked now.
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
                retry_at: None,
            };
            self.underway.insert(key, look_up);
        }
        has_room
    }

    pub(super) fn is_empty(&self) -> bool {
        self.underway.is_empty()
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.underway.values().filter_map(|it| it.retry_at).min()
    }

    /// The connections whose records are looked up again.
    pub(super) fn due(&mut self, now: Duration) -> Vec<FlowKey> {
        let mut due = Vec::new();
        for (key, look_up) in &mut self.underway {
            if look_up.retry_at.is_some_and(|at| at <= now) {
                look_up.retry_at = None;
                due.push(*key);
            }
        }
        due
    }

    /// The answer of the store. A store that does not answer is asked again for a while: never taken for a store
    /// without the record.
    pub(super) fn complete(
        &mut self,
        key: FlowKey,
        result: Result<Lookup, Failure>,
        now: Duration,
    ) -> Option<LookedUp> {
        let look_up = self.underway.get_mut(&key)?;
        let record = match result {
            Ok(Lookup::Found(_, record)) => Ok(*record),
            Ok(Lookup::Missing) => Err(PositionError::RecordMissing),
            Err(_) if now < look_up.began + STORE_PATIENCE => {
                look_up.retry_at = Some(now + RETRY_PERIOD);
                return None;
            }
            Err(_) => Err(PositionError::StoreLost),
        };
        let LookUp { copy, .. } = self.underway.remove(&key)?;
        Some(LookedUp { copy, record })
    }
}
