//! The words about a recovery, and the time for the words. A connection is `recovered` when all repeated output was
//! compared, and not before. Most comparisons end within a moment; for some connections a server may need as long as
//! for the first answer. So `serving` is told after a second at the latest, with the number of connections that are
//! still compared. `connections_recovered` follows for these.

use std::time::Duration;

use crate::{
    connection::Connection,
    event::{Event, Replayed},
    replay::Given,
    service::Recovery,
};

/// `serving` waits for comparisons for this time at the most.
const PATIENCE: Duration = Duration::from_secs(1);
/// The most connections that `serving` lists: the connections with the most replayed requests.
const MOST: usize = 100;

/// The words that are due about a recovery that is over.
#[derive(Debug, Default)]
pub(crate) struct Telling {
    /// The end of the recovery, if `serving` is still due.
    since: Option<Duration>,
    /// The number of connections that `serving` has counted as compared still.
    comparing: usize,
    /// The replays of connections that are settled.
    replayed: Vec<Replayed>,
    /// Replayed requests of all connections, lost connections included.
    turns: u64,
    /// The bytes of these requests.
    bytes: u64,
}

impl Telling {
    /// More was given to the server of a connection.
    pub(crate) fn note_given(&mut self, before: Given, now: Given) {
        self.turns += u64::from(now.turns - before.turns);
        self.bytes += u64::from(now.bytes - before.bytes);
    }
}

impl Recovery {
    /// The recovery is over.
    pub(crate) fn begin_telling(&mut self, now: Duration) {
        self.telling.since = Some(now);
    }

    /// The server has died again: `serving` is told now.
    pub(crate) fn end_telling(&mut self) {
        if self.telling.since.is_some() {
            self.tell_serving();
        }
        self.telling = Telling::default();
    }

    /// `serving` is still due.
    #[must_use]
    pub fn is_telling(&self) -> bool {
        self.telling.since.is_some()
    }

    pub(crate) fn telling_by(&self) -> Option<Duration> {
        self.telling.since.map(|since| since + PATIENCE)
    }

    fn comparing(&self) -> usize {
        let is_open = |connection: &&Connection| !connection.is_compared;
        self.connections.values().filter(is_open).count()
    }

    /// Tells `serving` or `connections_recovered`, if due.
    pub(crate) fn tell(&mut self, now: Option<Duration>) {
        let is_due = |by: Duration| now.is_some_and(|now| now >= by);
        if let Some(by) = self.telling_by() {
            if is_due(by) || self.comparing() == 0 {
                self.tell_serving();
            }
        } else if self.telling.comparing > 0 && self.comparing() == 0 {
            let connections = std::mem::take(&mut self.telling.comparing);
            self.events
                .push_back(Event::ConnectionsRecovered { connections });
        }
    }

    /// A connection is no longer kept.
    pub(crate) fn is_not_kept(&mut self, connection: &Connection) {
        if !connection.is_compared {
            self.telling.comparing = self.telling.comparing.saturating_sub(1);
        }
    }

    /// A connection is settled.
    pub(crate) fn note_replayed(&mut self, connection: &Connection) {
        self.telling.replayed.extend(connection.replayed());
    }

    fn tell_serving(&mut self) {
        self.telling.since = None;
        let mut replayed = std::mem::take(&mut self.telling.replayed);
        replayed.extend(self.connections.values().filter_map(Connection::replayed));
        replayed.sort_by_key(|one| std::cmp::Reverse(one.requests));
        replayed.truncate(MOST);
        let comparing = self.comparing();
        self.telling.comparing = comparing;
        self.events.push_back(Event::Serving {
            recovered: self.kept.saturating_sub(comparing),
            comparing,
            reset: self.resets,
            replayed_requests: self.telling.turns,
            replayed_bytes: self.telling.bytes,
            replayed,
            timings: self.timings,
        });
    }
}

impl Connection {
    fn replayed(&self) -> Option<Replayed> {
        let Given { turns, bytes } = self.given;
        (turns > 0).then_some(Replayed {
            connection: self.key,
            requests: turns,
            bytes,
        })
    }
}
