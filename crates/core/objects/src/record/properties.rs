//! Properties of every byte string. The property tests of this crate and the fuzz target run the same functions; each
//! function panics if the property does not hold.

use super::{HashName, MemberHash, Record, RecordError, RecordKey, StoreKey};
use crate::key::PoolKey;
use wire::FlowKey;

/// Bytes without a seal are refused. Sealed bytes are refused as contents, or are a record: the record is read as
/// written.
///
/// # Panics
///
/// If the property does not hold.
pub fn record(bytes: &[u8]) {
    let pool = PoolKey([7; 16]);
    let key = RecordKey::of(&pool);
    let flow = FlowKey::new(([10, 0, 0, 1], 40_000).into(), ([10, 0, 0, 10], 80).into());
    let name = StoreKey::new(
        HashName::new(flow.server(), MemberHash::of("web1", &pool)),
        flow,
    );
    assert!(Record::open(bytes, &key, &name).is_err());
    for read in [
        Record::of_plain(bytes),
        Record::of_plain_with_inputs(bytes),
        Record::of_plain_in_chunks(bytes),
    ] {
        match read {
            Ok(record) => match record.seal(&key, &name, [3; 24]) {
                Ok(sealed) => assert_eq!(Record::open(&sealed, &key, &name), Ok(record)),
                Err(error) => assert_eq!(error, RecordError::Limit),
            },
            Err(error) => assert_eq!(error, RecordError::Contents),
        }
    }
}

/// A field that is read is written the same way.
///
/// # Panics
///
/// If the property does not hold.
pub fn field(text: &str) {
    if let Some(flow) = StoreKey::flow_of(text) {
        let hash = HashName::new(flow.server(), MemberHash::of("web1", &PoolKey([7; 16])));
        let name = StoreKey::new(hash, flow);
        assert_eq!(name.field(), text);
        assert!(name.flat().len() <= 165);
    }
}
