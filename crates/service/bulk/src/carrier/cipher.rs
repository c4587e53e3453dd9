//! Datagrams are sealed by AES-128-GCM. The header is covered and stays readable; the tag follows the payload.
//!
//! A key belongs to a transfer and a direction. The nonces are numbers of `protocol::blast` that the core never uses a
//! second time.

use protocol::blast::TAG_LEN;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};

/// Bytes of a key.
pub const KEY_LEN: usize = 16;

/// The key of a direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketKey {
    /// Encrypts and authenticates.
    Secret([u8; KEY_LEN]),
    /// No protection at all, as in the paper: for its experiments alone.
    #[cfg(any(test, feature = "experiments"))]
    None,
}

/// The algorithm with a key; `None`: [`PacketKey::None`].
pub(crate) struct Cipher(Option<LessSafeKey>);

impl Cipher {
    pub(crate) fn new(key: &PacketKey) -> Self {
        match key {
            PacketKey::Secret(key) => match UnboundKey::new(&AES_128_GCM, key) {
                Ok(key) => Self(Some(LessSafeKey::new(key))),
                Err(_) => unreachable!("the key has the length of the algorithm"),
            },
            #[cfg(any(test, feature = "experiments"))]
            PacketKey::None => Self(None),
        }
    }

    /// Encrypts `payload` in place, and writes the tag.
    pub(crate) fn seal(&self, nonce: [u8; 12], header: &[u8], payload: &mut [u8], tag: &mut [u8]) {
        let Some(key) = &self.0 else {
            return;
        };
        let nonce = Nonce::assume_unique_for_key(nonce);
        let Ok(sealed) = key.seal_in_place_separate_tag(nonce, Aad::from(header), payload) else {
            unreachable!("a datagram is shorter than the limit of the algorithm");
        };
        tag.copy_from_slice(sealed.as_ref());
    }

    /// Decrypts `payload` in place. False: the datagram was not made with this key, or was changed.
    pub(crate) fn open(
        &self,
        nonce: [u8; 12],
        header: &[u8],
        payload: &mut [u8],
        tag: [u8; TAG_LEN],
    ) -> bool {
        let Some(key) = &self.0 else {
            return true;
        };
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = Tag::from(tag);
        let opened = key.open_in_place_separate_tag(nonce, Aad::from(header), tag, payload, 0..);
        opened.is_ok()
    }
}
