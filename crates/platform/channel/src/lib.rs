//! An authenticated, encrypted stream between a service and its logger.
//!
//! Both ends have a file of pre-shared keys ([`KeyRing`]). They agree on fresh session keys by
//! `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s` (The Noise Protocol Framework, revision 34): who does
//! not have the pre-shared key can neither speak nor listen, and who gets hold of it later cannot
//! read what was said before.
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
//! Lengths are big-endian. The greeting is the prologue of the handshake: it cannot be changed on
//! the way. The verdict is not protected: who can write into the connection can also end it.
//! A first message that is sent again by somebody who has recorded it is answered, but nothing that
//! he can say is a confirmation; until that has come the responder takes nothing to be said.
//!
//! [`Session`] is the protocol without a socket. [`Channel`] is a session on a socket, blocking or
//! not. A responder keeps at most [`Session::MOST_UNCONFIRMED`] bytes for a stranger, and
//! [`HANDSHAKE_LIMIT`] long.
//!
//! **Panics.** No function of this crate panics on any byte string that it is given.

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
