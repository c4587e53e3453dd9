//! The kinds of events: one table for the metrics, the manual page outlive-events(7) and docs/events.md.

use super::Code;

pub use types::JSON_VERSION;

/// A kind of event.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Value of `event` in JSON.
    pub name: &'static str,
    /// Fields in JSON besides the common fields.
    pub fields: &'static str,
    /// Meaning of the event.
    pub means: &'static str,
}

const fn kind(name: &'static str, fields: &'static str, means: &'static str) -> Kind {
    Kind {
        name,
        fields,
        means,
    }
}

/// The format, for lists of versions.
pub const FORMAT: types::Format = types::Format {
    name: "JSON of events and status",
    version: JSON_VERSION,
    oldest: JSON_VERSION,
};

/// Fields that each event has.
pub const COMMON: [(&str, &str); 6] = [
    ("version", "1: this schema"),
    ("time_unix_us", "when, in microseconds since 1970 (UTC)"),
    (
        "run_unix_us",
        "when the serve that tells the event began, in microseconds since 1970: equal in all events of one serve",
    ),
    ("service", "the service's name"),
    (
        "message",
        "the event in words, for people: these may change",
    ),
    ("event", "its kind"),
];

/// All kinds, in the order of a service's life.
pub const KINDS: [Kind; 44] = [
    kind(
        "started",
        "pid",
        "The server was started for the first time.",
    ),
    kind(
        "adopted",
        "pid, connections",
        "A new serve took over the server of a serve that was killed.",
    ),
    kind(
        "restored",
        "former, host, connections, lost",
        "Connections of an earlier life continue: this host was restarted, or another host served before.",
    ),
    kind(
        "protecting",
        "addresses, awaits",
        "The server listens: connections are protected from now on, or as soon as a logger answers (`awaits`: `protection`, or `service` if clients wait until then).",
    ),
    kind(
        "not_listening",
        "addresses, elsewhere, waited_ms, standby",
        "The server runs and does not listen on these addresses; with `standby`, the replica of a host that stands by.",
    ),
    kind(
        "unprotected",
        "connection, reason",
        "A connection would not survive a crash.",
    ),
    kind(
        "waiting_for_logger",
        "at_most_ms",
        "Nothing is started yet: loggers that may have a record of the service do not answer.",
    ),
    kind(
        "unseen",
        "connections, example",
        "The server has connections whose packets do not pass the eBPF programs.",
    ),
    kind("logger_in_use", "logger", "This logger keeps the record."),
    kind(
        "logger_lost",
        "logger, reason, connections",
        "No logger answers.",
    ),
    kind(
        "logger_back",
        "logger, waiting, unprotected",
        "The logger answers again.",
    ),
    kind(
        "protection_resumed",
        "connection",
        "A connection that had lost its record is recorded again.",
    ),
    kind(
        "logger_restarted",
        "connections",
        "The logger was restarted without its records.",
    ),
    kind(
        "standby_started",
        "epoch, host",
        "Another host serves; this host is ready to take over.",
    ),
    kind(
        "image_prefetched",
        "image_bytes, took_ms",
        "The server's last checkpoint has come to the standby.",
    ),
    kind(
        "replica_started",
        "pid",
        "The server was started on this host, too, as a replica of the server that serves (--hot).",
    ),
    kind(
        "caught_up",
        "bytes",
        "The replica has replayed the whole record.",
    ),
    kind(
        "replica_dropped",
        "reason, retry_ms",
        "The replica cannot be used, and was ended.",
    ),
    kind(
        "replica_promoted",
        "pid, lag_bytes",
        "The replica is now the server of the service.",
    ),
    kind("granted", "epoch", "This host serves, and no other host."),
    kind(
        "lease_required",
        "required, host",
        "A standby has registered, or no standby is left: this host needs a lease to serve, or none.",
    ),
    kind(
        "superseded",
        "epoch, host",
        "Another host serves: everything of the service on this host is ended.",
    ),
    kind("handed_over", "", "The service was given to the standby."),
    kind(
        "checkpointed",
        "record_bytes, image_bytes, released_bytes, left_bytes, took_ms",
        "An image of the server replaces the record before it.",
    ),
    kind(
        "checkpoint_failed",
        "reason",
        "No image could be made; the record is kept.",
    ),
    kind(
        "recording_stopped",
        "reason, record_bytes",
        "The input of a server with state is no longer recorded: a crash would lose the state.",
    ),
    kind(
        "record_reset",
        "record_bytes",
        "Server and record begin anew (--stateless).",
    ),
    kind(
        "start_failed",
        "reason, retry_ms",
        "The server could not be started; the start is tried again.",
    ),
    kind(
        "operator_request",
        "request, by",
        "A user has requested a switchover or a restart.",
    ),
    kind(
        "cleaned",
        "killed, addresses, settings, by",
        "outlive clean has removed the rest of a killed serve; only in the history.",
    ),
    kind(
        "restarting",
        "",
        "The server is ended and started again, as a user asked.",
    ),
    kind(
        "server_exited",
        "",
        "The server exited by itself, with status 0.",
    ),
    kind(
        "stopping",
        "signal",
        "serve was asked to stop, by this signal.",
    ),
    kind(
        "upstream_connections",
        "recovered, reset",
        "Connections that the server had opened itself continue, or are reset.",
    ),
    kind(
        "warning",
        "code, reason",
        "Something failed that does not end the service: see the codes.",
    ),
    kind(
        "died",
        "cause, detected_ms",
        "The server died; the gate is shut.",
    ),
    kind("restarted", "pid, after_ms", "The server runs again."),
    kind("listening", "after_ms", "The server listens again."),
    kind(
        "spliced",
        "connections, after_ms",
        "Connections are spliced to the new server.",
    ),
    kind(
        "serving",
        "recovered, comparing, reset, replayed_requests, replayed_bytes, replayed, timings",
        "The recovery is over.",
    ),
    kind(
        "connections_recovered",
        "connections",
        "The comparison of these connections is over: the connections continue.",
    ),
    kind(
        "connection_reset",
        "connection, reason, replayed_requests, replayed_bytes",
        "A connection was reset.",
    ),
    kind(
        "client_reset",
        "connection",
        "A client reset its connection while no server served it.",
    ),
    kind(
        "verified",
        "connections, compared, tolerated, sampled, unverified",
        "The repeated output of the new server was compared.",
    ),
];

/// Words by which events are counted: a warning is counted by the code.
pub(crate) fn counted() -> impl Iterator<Item = &'static str> {
    let kinds = KINDS.iter().map(|kind| kind.name);
    let codes = Code::ALL.iter().map(|(word, _)| *word);
    kinds.filter(|name| *name != "warning").chain(codes)
}
