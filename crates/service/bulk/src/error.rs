use std::io;

/// Says what a socket was used for.
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
    /// The sender sends packets that no correct sender sends.
    #[error("the sender breaks the protocol: {0}")]
    Sender(#[from] blast::InvalidPacket),
    /// Sizes that cannot be.
    #[error(transparent)]
    Layout(#[from] blast::LayoutError),
    /// The source cannot be read.
    #[error("the source cannot be read: {0}")]
    Source(io::Error),
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
}
