//! What is told of a recovery, and when: a connection is `kept` when all that its server says again was compared, and
//! not before. The comparison of most is over within a moment; for others a server may need as long as it took to
//! answer. So who waits for the service is told after a second at the latest, with how many are still compared, and
//! of those later.

use std::time::Duration;

use crate::{
    connection::Connection,
    event::{Event, Replayed},
    replay::Given,
    service::Recovery,
};

/// So long the word that the service is back waits for comparisons.
const PATIENCE: Duration = Duration::from_secs(1);
/// Of so many connections it is told what was replayed of each: those with the most requests.
const MOST: usize = 100;

/// What is still to be told of a recovery that is over.
#[derive(Debug, Default)]
pub(crate) struct Telling {
    /// Since when it has been over, if nothing was told of that.
    since: Option<Duration>,
    /// Connections of which it was told that they are still compared.
    comparing: usize,
    /// What was replayed of connections that nobody looks at any more.
    replayed: Vec<Replayed>,
    /// What was replayed of all connections, also of those that were lost then.
    turns: u64,
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

    /// The server has died again: what is known is told now.
    pub(crate) fn end_telling(&mut self) {
        if self.telling.since.is_some() {
            self.tell_serving();
        }
        self.telling = Telling::default();
    }

    /// Something of this recovery is still to be told.
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

    /// Tell what is true by now.
    pub(crate) fn tell(&mut self, now: Option<Duration>) {
        let is_due = |by: Duration| now.is_some_and(|now| now >= by);
        if let Some(by) = self.telling_by() {
            if is_due(by) || self.comparing() == 0 {
                self.tell_serving();
            }
        } else if self.telling.comparing > 0 && self.comparing() == 0 {
            let connections = std::mem::take(&mut self.telling.comparing);
            self.events.push_back(Event::Kept { connections });
        }
    }

    /// A connection is not among those that are to be kept any more.
    pub(crate) fn is_not_kept(&mut self, connection: &Connection) {
        if !connection.is_compared {
            self.telling.comparing = self.telling.comparing.saturating_sub(1);
        }
    }

    /// Nobody looks at a connection any more.
    pub(crate) fn note_replayed(&mut self, connection: &Connection) {
        self.telling.replayed.extend(connection.replayed());
    }

    fn tell_serving(&mut self) {
        self.telling.since = None;
        let mut replayed = std::mem::take(&mut self.telling.replayed);
        replayed.extend(self.connections.values().filter_map(Connection::replayed));
        replayed.sort_by_key(|one| std::cmp::Reverse(one.turns));
        replayed.truncate(MOST);
        let comparing = self.comparing();
        self.telling.comparing = comparing;
        self.events.push_back(Event::Serving {
            kept: self.kept.saturating_sub(comparing),
            comparing,
            lost: self.resets,
            replayed_turns: self.telling.turns,
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
            turns,
            bytes,
        })
    }
}
