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

    pub(crate) fn shut_down(self) {
        match self {
            Self::Local(client) => client.shut_down(),
            Self::Remote(link) => link.shut_down(),
        }
    }
}
