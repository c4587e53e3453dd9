//! Encryption of records.

use alloc::vec::Vec;
use core::fmt;

use chacha20poly1305::aead::{Aead as _, Payload};
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305, XNonce};

use super::{Beginning, Record, StoreKey};
use crate::key::PoolKey;

const RECORD_LABEL: &[u8] = b"outlive store record 1";
/// Versions of the format. A member of an earlier version reads the records of responses that it can repeat.
const FORMAT_VERSION: u8 = 1;
const FORMAT_VERSION_WITH_INPUTS: u8 = 2;
const FORMAT_VERSION_IN_CHUNKS: u8 = 3;
/// Length of a nonce, bytes.
pub const NONCE_LEN: usize = 24;
const HEAD_LEN: usize = 1 + NONCE_LEN;
/// Longest sealed record, bytes: four times less than the default limit of memcached.
pub const SEALED_LEN_MAX: usize = 256 << 10;
const TAG_LEN: usize = 16;

/// Key of the records of a pool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RecordKey([u8; 32]);

impl RecordKey {
    /// The key of a pool's records.
    #[must_use]
    pub fn of(key: &PoolKey) -> Self {
        Self(key.derive(RECORD_LABEL, &[]))
    }
}

/// The secret is left out.
impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordKey(..)")
    }
}

/// Why a record cannot be written or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RecordError {
    /// More turns, longer requests or longer validators than a record takes, or impossible values.
    #[error("the connection's state is beyond the limits of a record")]
    Limit,
    /// A version of the format that this program does not know.
    #[error("a record of version {0}, which this program does not know")]
    Version(u8),
    /// No member of this pool has written the bytes under this name.
    #[error("no record of this pool and this connection: changed, moved, or of another pool")]
    Forged,
    /// A member of the pool has written the bytes, in another format.
    #[error("a record of this pool with contents that this program does not know")]
    Contents,
}

impl Record {
    /// The sealed record. `nonce`: random, never used before.
    ///
    /// # Errors
    /// [`RecordError::Limit`].
    pub fn seal(
        &self,
        key: &RecordKey,
        name: &StoreKey,
        nonce: [u8; NONCE_LEN],
    ) -> Result<Vec<u8>, RecordError> {
        if !self.is_valid() {
            return Err(RecordError::Limit);
        }
        let (version, plain) = match (&self.inputs, &self.chunks) {
            (None, None) => (FORMAT_VERSION, postcard::to_allocvec(self)),
            (Some(inputs), None) => (
                FORMAT_VERSION_WITH_INPUTS,
                postcard::to_allocvec(&(self, inputs)),
            ),
            (inputs, Some(beginning)) => (
                FORMAT_VERSION_IN_CHUNKS,
                postcard::to_allocvec(&(self, inputs, beginning)),
            ),
        };
        let plain = plain.map_err(|_| RecordError::Limit)?;
        if plain.len() > SEALED_LEN_MAX - HEAD_LEN - TAG_LEN {
            return Err(RecordError::Limit);
        }
        let payload = Payload {
            msg: &plain,
            aad: &additional_data(version, name),
        };
        let sealed = cipher(key).encrypt(XNonce::from_slice(&nonce), payload);
        let sealed = sealed.map_err(|_| RecordError::Limit)?;
        Ok([&[version], &nonce[..], &sealed].concat())
    }

    /// Reads a sealed record that the store has under this name.
    ///
    /// # Errors
    /// All but [`RecordError::Limit`].
    pub fn open(bytes: &[u8], key: &RecordKey, name: &StoreKey) -> Result<Self, RecordError> {
        let version = *bytes.first().ok_or(RecordError::Forged)?;
        if !(FORMAT_VERSION..=FORMAT_VERSION_IN_CHUNKS).contains(&version) {
            return Err(RecordError::Version(version));
        }
        if !(HEAD_LEN..=SEALED_LEN_MAX).contains(&bytes.len()) {
            return Err(RecordError::Forged);
        }
        let (head, msg) = bytes.split_at(HEAD_LEN);
        let payload = Payload {
            msg,
            aad: &additional_data(version, name),
        };
        let plain = cipher(key).decrypt(XNonce::from_slice(&head[1..]), payload);
        let plain = plain.map_err(|_| RecordError::Forged)?;
        match version {
            FORMAT_VERSION => Self::of_plain(&plain),
            FORMAT_VERSION_WITH_INPUTS => Self::of_plain_with_inputs(&plain),
            _ => Self::of_plain_in_chunks(&plain),
        }
    }

    /// Reads the contents of a sealed record.
    pub(super) fn of_plain(plain: &[u8]) -> Result<Self, RecordError> {
        match postcard::take_from_bytes(plain) {
            Ok((record, [])) => Some(record).filter(Self::is_valid),
            _ => None,
        }
        .ok_or(RecordError::Contents)
    }

    /// The same, of a response with inputs.
    pub(super) fn of_plain_with_inputs(plain: &[u8]) -> Result<Self, RecordError> {
        match postcard::take_from_bytes::<(Self, Vec<u8>)>(plain) {
            Ok(((record, inputs), [])) => {
                let inputs = Some(inputs);
                Some(Self { inputs, ..record }).filter(Self::is_valid)
            }
            _ => None,
        }
        .ok_or(RecordError::Contents)
    }

    /// The same, of a response in chunks.
    pub(super) fn of_plain_in_chunks(plain: &[u8]) -> Result<Self, RecordError> {
        match postcard::take_from_bytes::<(Self, Option<Vec<u8>>, Beginning)>(plain) {
            Ok(((record, inputs, beginning), [])) => {
                let chunks = Some(beginning);
                let read = Self {
                    inputs,
                    chunks,
                    ..record
                };
                Some(read).filter(Self::is_valid)
            }
            _ => None,
        }
        .ok_or(RecordError::Contents)
    }
}

fn cipher(key: &RecordKey) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(&key.0.into())
}

fn additional_data(version: u8, name: &StoreKey) -> Vec<u8> {
    let mut data = Vec::from([version]);
    data.extend_from_slice(name.flat().as_bytes());
    data
}
