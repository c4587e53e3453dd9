//! Data connections of transfers: each connection names its transfer by the key of the offer.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::TcpStream,
    sync::{Mutex, MutexGuard, mpsc},
};

use protocol::bulk::SecretKey;

use crate::locks::locked;

/// Most connections of a transfer.
const CONNECTIONS_MAX: usize = 16;

/// Where the connections of a transfer go.
#[derive(Debug)]
struct Expectation {
    connections: mpsc::Sender<TcpStream>,
    /// Number of further connections.
    left: usize,
}

/// Transfers that expect connections.
#[derive(Debug, Default)]
pub(super) struct Joins {
    transfers: Mutex<HashMap<[u8; 16], Expectation>>,
}

impl Joins {
    /// The transfer with this key expects connections from now on. `None`: another transfer has the key.
    pub(super) fn expect(&self, key: SecretKey) -> Option<Expected<'_>> {
        let (sender, connections) = mpsc::channel();
        match self.transfers().entry(key.0) {
            Entry::Occupied(_) => None,
            Entry::Vacant(entry) => {
                entry.insert(Expectation {
                    connections: sender,
                    left: CONNECTIONS_MAX,
                });
                Some(Expected {
                    joins: self,
                    key,
                    connections,
                })
            }
        }
    }

    /// Where a connection goes; `None`: no transfer has this key, or the transfer has as many connections as it may
    /// have.
    pub(super) fn find(&self, key: SecretKey) -> Option<mpsc::Sender<TcpStream>> {
        let mut transfers = self.transfers();
        let expectation = transfers.get_mut(&key.0)?;
        expectation.left = expectation.left.checked_sub(1)?;
        Some(expectation.connections.clone())
    }

    fn transfers(&self) -> MutexGuard<'_, HashMap<[u8; 16], Expectation>> {
        locked(&self.transfers)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_names_one_transfer_and_few_connections() {
        let joins = Joins::default();
        let [key, other] = [SecretKey([1; 16]), SecretKey([2; 16])];
        assert!(joins.find(key).is_none(), "nothing is expected");
        let expected = joins.expect(key).expect("the key is free");
        assert!(joins.expect(key).is_none(), "the key is taken");
        let _second = joins.expect(other).expect("the key is free");
        for _ in 0..CONNECTIONS_MAX {
            assert!(joins.find(key).is_some());
        }
        assert!(joins.find(key).is_none(), "too many");
        assert!(joins.find(other).is_some());
        drop(expected);
        assert!(joins.find(key).is_none(), "the transfer is over");
        assert!(joins.expect(key).is_some());
    }
}
