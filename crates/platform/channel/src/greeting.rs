//! The bytes before the handshake: version and name of the key.

use crate::{ChannelError, Key, Refusal};

/// The version of the whole protocol of this crate. Version 2 has brought [`AES_PATTERN`].
pub(crate) const VERSION: u8 = 2;
/// The oldest version that both ends speak.
pub(crate) const OLDEST_VERSION: u8 = 1;

/// Handshake and ciphers of version 1.
const CHACHA_PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The same with the cipher that processors have instructions for.
const AES_PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_BLAKE2s";

/// The format, for lists of versions.
pub const FORMAT: types::Format = types::Format {
    name: "encryption of the control stream",
    version: VERSION as u32,
    oldest: OLDEST_VERSION as u32,
};
const MAGIC: [u8; 4] = *b"OLCH";
const FIXED_BYTES: usize = MAGIC.len() + 2;

/// The first bytes of an initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Greeting<'a> {
    /// From [`OLDEST_VERSION`] to [`VERSION`].
    pub(crate) version: u8,
    /// Name of the key.
    pub(crate) name: &'a str,
    /// Size, bytes.
    pub(crate) len: usize,
}

/// The pattern of Noise of this version.
pub(crate) const fn pattern(version: u8) -> &'static str {
    match version {
        1 => CHACHA_PATTERN,
        _ => AES_PATTERN,
    }
}

/// The greeting of an initiator with this key.
pub(crate) fn of(key: &Key, version: u8) -> Vec<u8> {
    let name = key.name().as_bytes();
    let mut greeting = MAGIC.to_vec();
    greeting.push(version);
    // The parser of key files limits the length of a name.
    greeting.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
    greeting.extend_from_slice(name);
    greeting
}

/// The greeting at the beginning of `bytes`. `None` if the greeting is incomplete. Bytes that cannot become a greeting
/// are an error at once.
pub(crate) fn read(bytes: &[u8]) -> Result<Option<Greeting<'_>>, ChannelError> {
    let magic = bytes.iter().zip(&MAGIC);
    if magic.clone().any(|(a, b)| a != b) {
        return Err(ChannelError::NotOurs);
    }
    let version = match bytes.get(MAGIC.len()) {
        Some(&version @ OLDEST_VERSION..=VERSION) => version,
        Some(&version) => return Err(ChannelError::UnknownVersion(version)),
        None => return Ok(None),
    };
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
        Ok(name) if Key::is_name(name) => Ok(Some(Greeting {
            version,
            name,
            len: FIXED_BYTES + len,
        })),
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
