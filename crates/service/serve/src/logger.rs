//! Where the record is kept: by a process of this host, or on another machine.

use dataplane::Dataplane;

use crate::{
    config::ServeConfig,
    error::ServeError,
    link::Link,
    logger_client::{ANSWER_TIMEOUT, LoggerClient, Unended},
};

pub(crate) enum Logger {
    /// A child of ours, which reads the ring itself.
    Local(LoggerClient),
    /// The other end of the log link.
    Remote(Box<Link>),
}

impl Logger {
    /// The logger for requests; `None`: no logger answers now.
    pub(crate) fn client(&mut self) -> Option<&mut LoggerClient> {
        match self {
            Self::Local(client) => Some(client),
            Self::Remote(link) => link.client(),
        }
    }

    pub(crate) fn link(&mut self) -> Option<&mut Link> {
        match self {
            Self::Local(_) => None,
            Self::Remote(link) => Some(link),
        }
    }

    /// Whether a process of this version can replace the process: the process has an older version, and no record that
    /// is of use. The next version of `serve` may have no version in common with the older process.
    pub(crate) fn is_replaceable(&self, plane: &Dataplane) -> Result<bool, ServeError> {
        if !matches!(self, Self::Local(client) if client.is_older()) {
            return Ok(false);
        }
        let flows = plane.flows()?;
        Ok(flows.iter().all(|(_, flow)| flow.closed_ns != 0))
    }

    /// Replaces the process of this host, with the records, by a new process. Returns a process that does not end.
    pub(crate) fn start_anew(
        &mut self,
        config: &ServeConfig,
        plane: &Dataplane,
    ) -> Result<Option<Unended>, ServeError> {
        // Before the next process starts: a ring has a single reader.
        let unended = match self {
            Self::Local(old) => old.kill(),
            Self::Remote(_) => None,
        };
        let new = LoggerClient::start(config, plane.pins().path(), ANSWER_TIMEOUT)?;
        plane.set_mirror_version(new.mirror_version)?;
        *self = Self::Local(new);
        Ok(unended)
    }

    /// A process of this host ends; a remote logger drops the records, if `over`: no host will want the records.
    pub(crate) fn end(self, over: bool) {
        match self {
            Self::Local(client) => {
                if let Some(unended) = client.shut_down() {
                    tracing::warn!("{unended}");
                }
            }
            Self::Remote(link) if over => link.shut_down(),
            Self::Remote(_) => {}
        }
    }
}
