//! Where the record is kept: by a process of this host, or on another machine.

use crate::{link::Link, logger_client::LoggerClient};

pub(crate) enum Logger {
    /// A child of ours, which reads the ring itself.
    Local(LoggerClient),
    /// The other end of the log link.
    Remote(Box<Link>),
}

impl Logger {
    /// Who can be asked; `None`: nobody answers now.
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

    /// A process of ours ends; one on another machine forgets, if nobody will want its records.
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
