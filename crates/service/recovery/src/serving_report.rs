//! Events at the end of a recovery, and the times of these events. A connection is `recovered` after all repeated
//! output was compared, and not before. Most comparisons end within a moment; for some connections a server may need as
//! long as for the first response. Therefore `serving` comes after a second at the latest, with the number of
//! connections that are still compared. `connections_recovered` follows for these connections.

use std::time::Duration;

use crate::{
    connection::Connection,
    event::{Event, Replayed},
    replay::Given,
    service::Recovery,
};

/// Longest wait of the event `serving` for comparisons.
const SERVING_DELAY_MAX: Duration = Duration::from_secs(1);
/// Connections listed in `serving`: the connections with the most replayed requests.
const LISTED_CONNECTIONS_MAX: usize = 100;

/// Events that are due about a finished recovery.
#[derive(Debug, Default)]
pub(crate) struct ServingReport {
    /// The end of the recovery, if `serving` is still due.
    since: Option<Duration>,
    /// The number of connections that `serving` has counted as compared still.
    comparing: usize,
    /// The replays of connections that are settled.
    replayed: Vec<Replayed>,
    /// Replayed requests of all connections, lost connections included.
    requests: u64,
    /// The bytes of these requests.
    bytes: u64,
}

impl ServingReport {
    /// More was given to the server of a connection.
    pub(crate) fn count_given(&mut self, before: Given, now: Given) {
        self.requests += u64::from(now.requests - before.requests);
        self.bytes += u64::from(now.bytes - before.bytes);
    }
}

impl Recovery {
    /// The recovery is over.
    pub(crate) fn open_serving_report(&mut self, now: Duration) {
        self.serving_report.since = Some(now);
    }

    /// The server has died again: `serving` is told now.
    pub(crate) fn flush_serving_report(&mut self) {
        if self.serving_report.since.is_some() {
            self.emit_serving();
        }
        self.serving_report = ServingReport::default();
    }

    /// `serving` is still due.
    #[must_use]
    pub fn is_serving_pending(&self) -> bool {
        self.serving_report.since.is_some()
    }

    pub(crate) fn serving_due(&self) -> Option<Duration> {
        self.serving_report
            .since
            .map(|since| since + SERVING_DELAY_MAX)
    }

    fn comparing(&self) -> usize {
        let is_open = |connection: &&Connection| !connection.is_compared;
        self.connections.values().filter(is_open).count()
    }

    /// Tells `serving` or `connections_recovered`, if due.
    pub(crate) fn emit_outcome(&mut self, now: Option<Duration>) {
        let is_due = |by: Duration| now.is_some_and(|now| now >= by);
        if let Some(by) = self.serving_due() {
            if is_due(by) || self.comparing() == 0 {
                self.emit_serving();
            }
        } else if self.serving_report.comparing > 0 && self.comparing() == 0 {
            let connections = std::mem::take(&mut self.serving_report.comparing);
            self.events
                .push_back(Event::ConnectionsRecovered { connections });
        }
    }

    /// A connection is no longer kept.
    pub(crate) fn count_dropped(&mut self, connection: &Connection) {
        if !connection.is_compared {
            self.serving_report.comparing = self.serving_report.comparing.saturating_sub(1);
        }
    }

    /// A connection is settled.
    pub(crate) fn add_replayed(&mut self, connection: &Connection) {
        self.serving_report.replayed.extend(connection.replayed());
    }

    fn emit_serving(&mut self) {
        self.serving_report.since = None;
        let mut replayed = std::mem::take(&mut self.serving_report.replayed);
        replayed.extend(self.connections.values().filter_map(Connection::replayed));
        replayed.sort_by_key(|one| std::cmp::Reverse(one.requests));
        replayed.truncate(LISTED_CONNECTIONS_MAX);
        let comparing = self.comparing();
        self.serving_report.comparing = comparing;
        self.events.push_back(Event::Serving {
            recovered: self.kept.saturating_sub(comparing),
            comparing,
            reset: self.resets,
            replayed_requests: self.serving_report.requests,
            replayed_bytes: self.serving_report.bytes,
            replayed,
            timings: self.timings,
        });
    }
}

impl Connection {
    fn replayed(&self) -> Option<Replayed> {
        let Given { requests, bytes } = self.given;
        (requests > 0).then_some(Replayed {
            connection: self.key,
            requests,
            bytes,
        })
    }
}
