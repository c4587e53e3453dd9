//! The bytes before the handshake: version and name of the key.

use crate::{ChannelError, Key, Refusal};

/// The version of the whole protocol of this crate.
pub(crate) const VERSION: u8 = 1;

/// The format, for lists of versions.
pub const FORMAT: types::Format = types::Format {
    name: "encryption of the control stream",
    version: VERSION as u32,
    oldest: VERSION as u32,
};
const MAGIC: [u8; 4] = *b"OLCH";
const FIXED_BYTES: usize = MAGIC.len() + 2;

/// The greeting of an initiator with this key.
pub(crate) fn of(key: &Key) -> Vec<u8> {
    let name = key.name().as_bytes();
    let mut greeting = MAGIC.to_vec();
    greeting.push(VERSION);
    // The parser of key files limits the length of a name.
    greeting.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
    greeting.extend_from_slice(name);
    greeting
}

/// Length of the greeting at the beginning of `bytes`, and name of the key. `None` if the greeting is incomplete. Bytes
/// that cannot become a greeting are an error at once.
pub(crate) fn read(bytes: &[u8]) -> Result<Option<(usize, &str)>, ChannelError> {
    let magic = bytes.iter().zip(&MAGIC);
    if magic.clone().any(|(a, b)| a != b) {
        return Err(ChannelError::NotOurs);
    }
    match bytes.get(MAGIC.len()) {
        Some(&VERSION) | None => {}
        Some(&version) => return Err(ChannelError::UnknownVersion(version)),
    }
    let Some(&len) = bytes.get(FIXED_BYTES - 1) else {
        return Ok(None);
    };
    let len = usize::from(len);
    if len == 0 || len > Key::LONGEST_NAME {
        return Err(ChannelError::NotOurs);
    }
    let Some(name) = bytes.get(FIXED_BYTES..FIXED_BYTES + len) else {
        return Ok(None);
    };
    match str::from_utf8(name) {
        Ok(name) if Key::is_name(name) => Ok(Some((FIXED_BYTES + len, name))),
        _ => Err(ChannelError::NotOurs),
    }
}

/// The longest greeting.
pub(crate) const LONGEST: usize = FIXED_BYTES + Key::LONGEST_NAME;

/// Verdict and detail, as the responder writes them.
pub(crate) const VERDICT: usize = 2;

/// Encodes the answer to an accepted (`None`) or refused initiator.
pub(crate) fn verdict(refusal: Option<Refusal>) -> [u8; VERDICT] {
    match refusal {
        None => [0, 0],
        Some(Refusal::Version(version)) => [1, version],
        Some(Refusal::UnknownKey) => [2, 0],
        Some(Refusal::WrongKey) => [3, 0],
    }
}

/// Decodes the answer of the responder.
pub(crate) fn read_verdict(verdict: [u8; VERDICT]) -> Result<Option<Refusal>, ChannelError> {
    match verdict {
        [0, 0] => Ok(None),
        [1, version] => Ok(Some(Refusal::Version(version))),
        [2, 0] => Ok(Some(Refusal::UnknownKey)),
        [3, 0] => Ok(Some(Refusal::WrongKey)),
        _ => Err(ChannelError::NotOurs),
    }
}
