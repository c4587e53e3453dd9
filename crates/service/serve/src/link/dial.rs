//! Connecting to a logger. A connection attempt to a machine without power takes long: a thread makes the attempt while
//! the service goes on.

use std::{
    net::SocketAddr,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::mpsc,
    time::Duration,
};

use channel::Key;
use protocol::{
    DigestSeed,
    control::{Attach, Claim},
};

use crate::{
    error::ServeError,
    logger_client::{Attached, LoggerClient},
};

/// Least time for a handshake, however impatient the operator: a busy logger takes a moment.
const LEAST: Duration = Duration::from_secs(1);

/// An attempt under way.
pub(super) struct DialAttempt {
    /// Index of the logger.
    pub(super) logger: usize,
    result: mpsc::Receiver<Result<AttachedLogger, ServeError>>,
    /// Closed when a result is there.
    done: UnixStream,
}

/// Parts of the request to a logger.
#[derive(Debug, Clone)]
pub(crate) struct AttachRequest {
    /// Claim of the addresses; a check of a logger has none.
    pub(crate) claim: Option<Claim>,
    /// Request to keep the records.
    pub(crate) attach: Attach,
    /// Seed of this service's digest key, if the outstream is digested.
    pub(crate) digests: Option<DigestSeed>,
}

/// A logger that has answered.
pub(super) struct AttachedLogger {
    pub(super) client: LoggerClient,
    pub(super) attached: Attached,
    /// Description of another serving service with an address of this service.
    pub(super) beside: Option<String>,
}

impl DialAttempt {
    pub(super) fn start(
        logger: usize,
        at: SocketAddr,
        key: Key,
        request: AttachRequest,
        patience: Duration,
    ) -> std::io::Result<Self> {
        let (done, ours) = UnixStream::pair()?;
        let (send, result) = mpsc::channel();
        std::thread::Builder::new()
            .name("dial".into())
            .spawn(move || {
                let _ = send.send(dial(at, &key, &request, patience));
                drop(ours);
            })?;
        Ok(Self {
            logger,
            result,
            done,
        })
    }

    /// Result of the attempt; `None`: no result yet.
    pub(super) fn result(&self) -> Option<Result<AttachedLogger, ServeError>> {
        match self.result.try_recv() {
            Ok(result) => Some(result),
            Err(mpsc::TryRecvError::Empty) => None,
            Err(mpsc::TryRecvError::Disconnected) => Some(Err(ServeError::Logger(
                "the attempt to reach it failed".into(),
            ))),
        }
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

/// Connect, prove the key, claim the addresses, attach.
pub(super) fn dial(
    at: SocketAddr,
    key: &Key,
    request: &AttachRequest,
    patience: Duration,
) -> Result<AttachedLogger, ServeError> {
    let patience = patience.max(LEAST);
    let client = LoggerClient::dial(at, key, patience)?;
    let (client, attached, beside) = client.attaching(request)?;
    Ok(AttachedLogger {
        client,
        attached,
        beside,
    })
}
