//! Errors between the two ends of a channel.

use std::io;

use crate::greeting::VERSION;

/// The reason why a responder refuses an initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The responder has another version: this version.
    #[error(
        "the other side speaks version {0} of the channel, and this program version {VERSION}: run the same version of outlive on both sides"
    )]
    Version(u8),
    /// The responder has no key of the name that the initiator uses.
    #[error("no key of this name is in the key file of the other side")]
    UnknownKey,
    /// The responder has another key of that name.
    #[error("the key file of the other side has another key of this name")]
    WrongKey,
}

/// A channel that cannot be used (any more). After any of these errors the connection is to be closed.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other end does not speak this protocol.
    #[error("the peer is no part of outlive")]
    NotOurs,
    /// The initiator speaks another version of this protocol.
    #[error("version {0} of the channel is not known: this program speaks version {VERSION}")]
    UnknownVersion(u8),
    /// The initiator names a key that is not in the key file.
    #[error("no key is called {0:?} in the key file")]
    UnknownKey(String),
    /// The initiator has a key of this name, but not the key in the key file.
    #[error("the key {0:?} of the other side differs from the key file")]
    WrongKey(String),
    /// The responder has refused our key or our version.
    #[error("the other side refuses key {name:?}: {refusal}")]
    Refused {
        /// The key's name.
        name: String,
        /// The reason.
        refusal: Refusal,
    },
    /// The responder does not prove that it has the key.
    #[error("the other side does not prove the possession of key {0:?}")]
    NotProven(String),
    /// A message that the other end has not sent, or has sent in another form.
    #[error("a message was changed on the way, or comes from another sender")]
    Tampered,
    /// The connection ended within a message, or before the handshake was complete.
    #[error("the connection ended too early")]
    Truncated,
    /// The handshake is not complete within [`crate::HANDSHAKE_LIMIT`].
    #[error("no answer within {} s", crate::HANDSHAKE_LIMIT.as_secs())]
    TimedOut,
    /// The operating system does not let us.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The cryptographic library refused an operation that cannot fail.
    #[error("internal error of the channel: {0}")]
    Internal(snow::Error),
}

impl ChannelError {
    /// Whether a retry cannot help before a person has changed a key file or a program.
    #[must_use]
    pub const fn is_configuration(&self) -> bool {
        matches!(
            self,
            Self::UnknownVersion(_)
                | Self::UnknownKey(_)
                | Self::WrongKey(_)
                | Self::Refused { .. }
                | Self::NotProven(_)
                | Self::NotOurs
        )
    }
}
