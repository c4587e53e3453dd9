//! Data connections of transfers: each connection names its transfer by the key of the offer.

use std::{
    collections::HashMap,
    net::TcpStream,
    sync::{Mutex, MutexGuard, PoisonError, mpsc},
};

use protocol::bulk::SecretKey;

/// Most connections of a transfer that wait to be taken.
const WAITING_MAX: usize = 64;

type Waiting = HashMap<[u8; 16], mpsc::SyncSender<TcpStream>>;

/// Transfers that expect connections.
#[derive(Debug, Default)]
pub(super) struct Joins {
    transfers: Mutex<Waiting>,
}

impl Joins {
    /// The transfer with this key expects connections from now on.
    pub(super) fn expect(&self, key: SecretKey) -> Expected<'_> {
        let (sender, connections) = mpsc::sync_channel(WAITING_MAX);
        self.transfers().insert(key.0, sender);
        Expected {
            joins: self,
            key,
            connections,
        }
    }

    /// A place for a connection; `None`: no transfer has this key, or too many connections wait.
    pub(super) fn find(&self, key: SecretKey) -> Option<mpsc::SyncSender<TcpStream>> {
        self.transfers().get(&key.0).cloned()
    }

    fn transfers(&self) -> MutexGuard<'_, Waiting> {
        self.transfers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connections of a transfer. Drop: the transfer expects no more.
pub(super) struct Expected<'a> {
    joins: &'a Joins,
    key: SecretKey,
    pub(super) connections: mpsc::Receiver<TcpStream>,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.joins.transfers().remove(&self.key.0);
    }
}
