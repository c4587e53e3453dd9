//! An authenticated, encrypted stream between a service and its logger.
//!
//! Both ends have a file of pre-shared keys ([`KeyRing`]), and agree on fresh session keys by
//! `Noise_NNpsk0_25519_AESGCM_BLAKE2s` (The Noise Protocol Framework, revision 34; version 1 had `ChaChaPoly`). Without
//! the pre-shared key an attacker can neither send nor read. An attacker who gets the pre-shared key later cannot read
//! earlier messages.
//!
//! ```text
//! initiator -> responder   greeting:  "OLCH" | u8 version | u8 length | the key's name
//!                          u16 length | first message of the handshake (e, under the key)
//! responder -> initiator   u8 verdict | u8 detail
//!                          u16 length | second message of the handshake (e, ee), if accepted
//! initiator -> responder   u16 length | confirmation: an empty transport message
//! both                     u16 length | transport message: at most 65,519 bytes of plain text
//! ```
//!
//! Lengths are big-endian. The greeting is the prologue of the handshake, and therefore cannot be changed on the way.
//! The verdict is not protected: an attacker who can write into the connection can also end the connection, or have
//! the initiator call again by version 1, which is as safe. The
//! responder answers a replayed first message, but only the holder of the key can send a confirmation. Before the
//! confirmation the responder takes no message.
//!
//! [`Session`] is the protocol without a socket. [`Channel`] is a session on a socket, blocking or non-blocking. For an
//! unconfirmed peer, a responder keeps at most [`Session::MOST_UNCONFIRMED`] bytes, for at most [`HANDSHAKE_LIMIT`].
//!
//! **Panics.** No function of this crate panics on any input bytes.

#![forbid(unsafe_code)]

mod error;
mod greeting;
mod keys;
#[cfg(any(test, feature = "fuzzing"))]
pub mod properties;
mod session;
mod socket;

pub use error::{ChannelError, Refusal};
pub use greeting::FORMAT;
pub use keys::{Key, KeyFileError, KeyRing};
pub use session::Session;
pub use socket::{Channel, HANDSHAKE_LIMIT, Received};
