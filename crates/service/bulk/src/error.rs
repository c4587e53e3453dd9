use std::io;

use channel::{ChannelError, KeyFileError};
use protocol::{
    bulk::{PathError, Reason},
    control::ControlError,
};

/// Names the use of a socket.
pub(crate) trait SocketContext<T> {
    /// Adds the operation to an error.
    fn doing(self, doing: &'static str) -> Result<T, BulkError>;
}

impl<T> SocketContext<T> for io::Result<T> {
    fn doing(self, doing: &'static str) -> Result<T, BulkError> {
        self.map_err(|source| BulkError::Socket { doing, source })
    }
}

/// A transfer that cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum BulkError {
    /// No receiver has answered within the time limit.
    #[error("no receiver answers")]
    PeersLost,
    /// No answer to any datagram has come.
    #[error("no UDP datagrams pass between sender and receivers: a firewall may drop them")]
    NoDatagrams,
    /// The sender sends packets that no correct sender sends.
    #[error("the sender breaks the protocol: {0}")]
    Sender(#[from] blast::InvalidPacket),
    /// Sizes that cannot be.
    #[error(transparent)]
    Layout(#[from] blast::LayoutError),
    /// The source cannot be read.
    #[error("the source cannot be read: {0}")]
    Source(io::Error),
    /// The source has changed while it was sent.
    #[error("the source has changed while it was sent: send it again when nobody writes")]
    SourceChanged,
    /// The data cannot be written.
    #[error("the data cannot be written: {0}")]
    Sink(io::Error),
    /// The operating system refuses a socket operation.
    #[error("{doing}: {source}")]
    Socket {
        /// The operation.
        doing: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The caller has stopped the transfer.
    #[error("the transfer was stopped")]
    Stopped,
    /// The control stream cannot be used.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The peer sends messages that no correct peer sends.
    #[error(transparent)]
    Protocol(#[from] ControlError),
    /// The peer has closed the control stream.
    #[error("the peer has closed the connection")]
    Closed,
    /// No message of the peer has come in time.
    #[error("the peer does not answer")]
    Silent,
    /// A message that has no place here.
    #[error("the peer broke the order of messages: both programs may be of different versions")]
    OutOfOrder,
    /// Bytes of a data connection that were not made with the key of the transfer, or were changed.
    #[error("the data was changed on the way, or comes from somebody else")]
    Forged,
    /// The receiver does not take an offer, or cannot store the data.
    #[error("{reason}{}{detail}", if detail.is_empty() { "" } else { ": " })]
    Rejected {
        /// The reason.
        reason: Reason,
        /// For people.
        detail: String,
    },
    /// A name that no receiver takes.
    #[error("{0}")]
    Name(#[from] PathError),
    /// The key file.
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
    /// The directory of a receiver.
    #[error("{path}: {source}")]
    Directory {
        /// The directory.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Whose mistake an error is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The configuration: a key file, a name, a directory.
    Config,
    /// Something is missing, and may be there later: the peer, space.
    Missing,
    /// Something is in the way.
    InTheWay,
    /// The peer refuses, or the transfer failed.
    Transfer,
    /// No permission.
    Permission,
}

impl BulkError {
    /// A word for scripts.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::PeersLost | Self::Closed | Self::Silent => "peer_lost",
            Self::NoDatagrams => "no_datagrams",
            Self::Sender(_) | Self::Protocol(_) | Self::OutOfOrder => "protocol",
            Self::Layout(_) => "sizes",
            Self::Source(_) => "source",
            Self::Forged => "forged",
            Self::SourceChanged => "source_changed",
            Self::Sink(_) => "sink",
            Self::Socket { .. } => "socket",
            Self::Stopped => "stopped",
            Self::Channel(_) => "channel",
            Self::Rejected { .. } => "rejected",
            Self::Name(_) => "name",
            Self::KeyFile(_) => "key_file",
            Self::Directory { .. } => "directory",
        }
    }

    /// Whose mistake it is.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Channel(error) if error.is_configuration() => Fault::Permission,
            Self::Channel(ChannelError::Io(_) | ChannelError::TimedOut) => Fault::Missing,
            Self::PeersLost | Self::Closed | Self::Silent | Self::NoDatagrams => Fault::Missing,
            Self::Name(_) | Self::KeyFile(_) | Self::Layout(_) => Fault::Config,
            Self::Directory { source, .. } | Self::Source(source) | Self::Socket { source, .. } => {
                match source.kind() {
                    io::ErrorKind::PermissionDenied => Fault::Permission,
                    io::ErrorKind::AddrInUse => Fault::InTheWay,
                    io::ErrorKind::AddrNotAvailable => Fault::Missing,
                    _ => Fault::Config,
                }
            }
            Self::Rejected {
                reason: Reason::Busy | Reason::Full | Reason::NoSpace,
                ..
            } => Fault::InTheWay,
            Self::Rejected { .. }
            | Self::SourceChanged
            | Self::Sink(_)
            | Self::Stopped
            | Self::Channel(_)
            | Self::Protocol(_)
            | Self::Sender(_)
            | Self::Forged
            | Self::OutOfOrder => Fault::Transfer,
        }
    }

    /// Whether another attempt may succeed: the peer or the network was at fault.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::PeersLost | Self::Closed | Self::Silent => true,
            Self::Channel(error) => !error.is_configuration(),
            Self::Rejected { reason, .. } => {
                matches!(reason, Reason::Busy | Reason::Full)
            }
            _ => false,
        }
    }
}
