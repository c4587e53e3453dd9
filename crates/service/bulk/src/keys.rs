//! Keys of transfers.

use protocol::bulk::SecretKey;
use ring::rand::{SecureRandom, SystemRandom};

/// A key that nobody else has.
pub(crate) fn fresh_key() -> SecretKey {
    let mut key = [0; 16];
    let filled = SystemRandom::new().fill(&mut key);
    assert!(filled.is_ok(), "the system has no random numbers");
    SecretKey(key)
}
