//! Encodings of types of other modules.

use alloc::string::String;

use http1::version::ObjectVersion;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
#[serde(remote = "ObjectVersion")]
pub(super) struct VersionParts {
    complete_len: Option<u64>,
    etag: Option<String>,
    last_modified: Option<String>,
    content_encoding: Option<String>,
}

pub(super) mod slot {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    use crate::isn::{SLOT_COUNT, Slot};

    pub(in crate::record) fn serialize<S: Serializer>(
        slot: &Slot,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        slot.number().serialize(serializer)
    }

    pub(in crate::record) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Slot, D::Error> {
        let number = u8::deserialize(deserializer)?;
        match number < SLOT_COUNT {
            true => Ok(Slot::new(number)),
            false => Err(D::Error::custom("no slot")),
        }
    }
}
