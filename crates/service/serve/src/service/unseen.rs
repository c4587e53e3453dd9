//! Connections of the server that the programs do not see.
//!
//! The programs know a connection by the addresses in the packets. Where this host translates addresses (a published
//! port of a container, nftables `redirect`), a packet has another address at the programs than at the server's socket.
//! Packets of a device without an Ethernet header (tun, WireGuard) do not pass the programs at all. Such a connection
//! has a socket and no flow, and is unprotected.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use wire::FlowKey;

use crate::{clock, error::ServeError, events::Event, service::Service};

/// Interval between two lists of the kernel's sockets, and the addition for each socket.
const SOCKET_LIST_INTERVAL: Duration = Duration::from_secs(10);
const SOCKET_LIST_INTERVAL_EACH: Duration = Duration::from_millis(1);

/// Knowledge of such connections.
#[derive(Debug, Default)]
pub(crate) struct Unseen {
    look_at: Duration,
    /// The connections without a flow at the last look. A connection may begin between the kernel's list and the
    /// flows'.
    suspects: HashSet<FlowKey>,
    /// The number of connections without a flow at two looks in a row.
    found: usize,
    /// The event was told, and such a connection was found at each look since.
    told: bool,
    /// Connections for which the table had no room: the programs see these, and `unprotected` was told of each. The
    /// value: the last look found no socket. A handshake may have been refused whose socket comes later.
    without_room: HashMap<FlowKey, bool>,
}

/// Connections refused for a full table that are remembered.
const REFUSED_KEYS_MAX: usize = 1 << 16;

impl Unseen {
    /// Number of open connections that are unprotected because no program sees the packets.
    pub(crate) const fn connections(&self) -> usize {
        self.found
    }

    /// A program has seen this connection, and the map of flows was full.
    pub(super) fn add_refused(&mut self, key: FlowKey) {
        if self.without_room.len() < REFUSED_KEYS_MAX {
            self.without_room.insert(key, false);
        }
    }

    /// Takes the connections without a flow at this look. Returns a connection that had no flow at the last look
    /// either, if the event is due.
    fn look(&mut self, mut without_flow: HashSet<FlowKey>) -> Option<FlowKey> {
        self.without_room.retain(|key, missed| {
            let found = without_flow.remove(key);
            let known = found || !*missed;
            *missed = !found;
            known
        });
        let mut again = without_flow.intersection(&self.suspects);
        let example = again.next().copied();
        self.found = again.count() + usize::from(example.is_some());
        self.suspects = without_flow;
        let news = example.filter(|_| !self.told);
        self.told = example.is_some();
        news
    }
}

impl Service {
    /// Looks for such connections from time to time.
    pub(super) fn poll_unseen(&mut self, now: Duration) -> Result<(), ServeError> {
        if now < self.unseen.look_at || !self.readiness.has_begun() {
            return Ok(());
        }
        let open = supervise::open_connections(&self.config.addresses)?;
        let each = SOCKET_LIST_INTERVAL_EACH * u32::try_from(open.len()).unwrap_or(u32::MAX);
        self.unseen.look_at = clock::now() + SOCKET_LIST_INTERVAL + each;
        let mut without_flow = HashSet::new();
        for (server, client) in open {
            let key = FlowKey::new(client, server);
            if self.resources.plane.flow(key)?.is_none() {
                without_flow.insert(key);
            }
        }
        if let Some(example) = self.unseen.look(without_flow) {
            self.emit(Event::Unseen {
                connections: self.unseen.connections(),
                example: example.to_string(),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> FlowKey {
        let client = std::net::SocketAddr::from(([10, 0, 0, 2], port));
        FlowKey::new(client, ([10, 0, 0, 1], 80).into())
    }

    #[test]
    fn connection_without_flow_is_reported_once() {
        let mut unseen = Unseen::default();
        let both: HashSet<_> = [key(1), key(2)].into();
        assert_eq!(unseen.look(both.clone()), None);
        assert_eq!(unseen.connections(), 0);
        assert!(unseen.look([key(2), key(3)].into()) == Some(key(2)));
        assert_eq!(unseen.connections(), 1);
        assert_eq!(unseen.look(both), None, "it was told");
        assert_eq!(unseen.connections(), 1);
        assert_eq!(unseen.look(HashSet::new()), None);
        assert_eq!(unseen.connections(), 0);
        assert_eq!(unseen.look([key(4)].into()), None);
        assert_eq!(unseen.look([key(4)].into()), Some(key(4)), "news again");
    }

    #[test]
    fn refused_connection_is_not_unseen() {
        let mut unseen = Unseen::default();
        unseen.add_refused(key(1));
        let all: HashSet<_> = [key(1), key(2)].into();
        assert_eq!(unseen.look(all.clone()), None);
        assert_eq!(unseen.look(all), Some(key(2)));
        assert_eq!(unseen.connections(), 1);
        // Another connection with the same ends.
        assert_eq!(unseen.look(HashSet::new()), None);
        assert_eq!(unseen.look(HashSet::new()), None);
        assert_eq!(unseen.look([key(1)].into()), None);
        assert_eq!(unseen.look([key(1)].into()), Some(key(1)));
    }

    #[test]
    fn new_connection_is_not_unseen() {
        let mut unseen = Unseen::default();
        unseen.add_refused(key(1));
        assert_eq!(unseen.look(HashSet::new()), None);
        assert_eq!(unseen.look([key(1)].into()), None);
        assert_eq!(unseen.look([key(1)].into()), None);
        assert_eq!(unseen.connections(), 0);
    }
}
