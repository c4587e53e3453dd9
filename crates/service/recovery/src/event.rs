//! Events for operators, and the sentences of the events.

use std::{fmt, time::Duration};

use serde::{Serialize, Serializer};
use types::UnprotectedReason;
use wire::{FlowKey, SeqNumber};

/// A number of things, with the plural where the number asks for it.
#[derive(Debug, Clone, Copy)]
pub struct Count<N>(pub N, pub &'static str);

impl<N: Copy + TryInto<u64>> fmt::Display for Count<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number: u64 = self.0.try_into().unwrap_or(u64::MAX);
        let plural = match number {
            1 => "",
            _ if self.1.ends_with('s') => "es",
            _ => "s",
        };
        write!(f, "{number} {}{plural}", self.1)
    }
}

/// A signal, by the name that signal(7) gives it.
struct SignalName(u32);

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            1 => "SIGHUP",
            2 => "SIGINT",
            3 => "SIGQUIT",
            4 => "SIGILL",
            5 => "SIGTRAP",
            6 => "SIGABRT",
            7 => "SIGBUS",
            8 => "SIGFPE",
            9 => "SIGKILL",
            10 => "SIGUSR1",
            11 => "SIGSEGV",
            12 => "SIGUSR2",
            13 => "SIGPIPE",
            14 => "SIGALRM",
            15 => "SIGTERM",
            24 => "SIGXCPU",
            25 => "SIGXFSZ",
            31 => "SIGSYS",
            number => return write!(f, "signal {number}"),
        };
        f.write_str(name)
    }
}

/// The cause of the server's death.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Cause {
    /// A process was killed by a signal.
    Signal {
        /// The process.
        pid: u32,
        /// The signal's number.
        signal: u32,
    },
    /// A process exited with a status other than 0.
    Status {
        /// The process.
        pid: u32,
        /// The status.
        status: u32,
    },
    /// The server could not be started, or exited before serving.
    NotServing,
    /// The host has stopped and runs again, or another host serves: the records name the connections.
    Host,
    /// Another host has handed the service over, by a switchover or by a stop.
    Moved,
    /// `serve` has ended the server: a user has asked for a restart.
    Restart,
    /// `serve` has ended the server for a reset of the record: no client was connected.
    RecordReset,
    /// The server was about to make a call that cannot be replayed, and ended before a client got any output of the
    /// call.
    NotReplayable {
        /// The process that ended.
        pid: u32,
    },
}

impl Cause {
    /// The process that ended; `None` if the cause is no process.
    #[must_use]
    pub fn pid(self) -> Option<u32> {
        match self {
            Self::Signal { pid, .. } | Self::Status { pid, .. } | Self::NotReplayable { pid } => {
                Some(pid)
            }
            _ => None,
        }
    }

    /// A user has asked for this end and was answered: no death.
    #[must_use]
    pub fn is_asked_for(self) -> bool {
        matches!(self, Self::Moved | Self::Restart)
    }

    /// In words, about a process of this name.
    #[must_use]
    pub fn of(self, process: &str) -> String {
        match self {
            Self::Signal { signal, .. } => {
                format!("{process} was killed by {}", SignalName(signal))
            }
            Self::Status { status, .. } => format!("{process} exited with status {status}"),
            Self::NotServing => "the server does not serve".into(),
            Self::Host => "the host had stopped".into(),
            Self::Moved => "the other host handed over".into(),
            Self::Restart => "restart at the request of a user".into(),
            Self::RecordReset => "reset of the record (--stateless)".into(),
            Self::NotReplayable { .. } => {
                format!("outlive stopped {process}: the next call cannot be replayed")
            }
        }
    }

    /// Probably the work of a user, or of `serve`.
    #[must_use]
    pub fn is_sigkill(self) -> bool {
        matches!(
            self,
            Self::Signal { signal: 9, .. }
                | Self::RecordReset
                | Self::Restart
                | Self::NotReplayable { .. }
        )
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = self.pid().map(|pid| format!("process {pid}"));
        f.write_str(&self.of(&process.unwrap_or_default()))
    }
}

/// The reason for which waiting connections are given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GaveUp {
    /// The server did not come back in time.
    ServerDown,
    /// The service was stopped before the server was back.
    Stopped,
    /// The service ends by an error.
    Failed,
    /// The server made a call that cannot be replayed.
    NotReplayable,
}

impl From<GaveUp> for LostReason {
    fn from(why: GaveUp) -> Self {
        match why {
            GaveUp::ServerDown => Self::ServerDown,
            GaveUp::Stopped => Self::Stopped,
            GaveUp::Failed => Self::ServiceFailed,
            GaveUp::NotReplayable => Self::NotReplayable,
        }
    }
}

/// The reason why a connection could not be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostReason {
    /// The connection had lost its protection earlier.
    Unprotected {
        /// The reason for the loss of protection.
        reason: UnprotectedReason,
    },
    /// The logger has no record of the connection.
    NoRecord,
    /// The record ends before an acknowledgement that the client has.
    RecordIncomplete {
        /// Lowest sequence number that is not in the record.
        stable_seq: SeqNumber,
        /// Newest acknowledgement that the client has.
        acknowledged: SeqNumber,
    },
    /// The output of the restarted server differs from the output that the client was sent.
    Diverged {
        /// Offset in the outstream of the first byte that differs.
        offset: u32,
    },
    /// The output of the restarted server differs, as the hash of the output shows.
    DivergedBefore {
        /// The hash was compared before this byte of the outstream, counted from 0.
        offset: u32,
    },
    /// The restarted server closed the connection before the end of the output that the client was sent.
    EndedEarly {
        /// Offset in the outstream of the close.
        offset: u32,
    },
    /// The server has sent so much output that repeated output could not be told from new output.
    OutstreamTooLong {
        /// Bytes that the server has sent.
        sent: u64,
    },
    /// The server died several times while this connection was replayed.
    Quarantined {
        /// Number of deaths.
        deaths: u32,
    },
    /// The restarted server did not take the connection in time.
    NotAccepted,
    /// The restarted server stopped reading the replay.
    ReplayStalled {
        /// Bytes that it did not take.
        missing: u32,
    },
    /// The restarted server has not repeated in time the output before a later request of the client.
    OutputNotRepeated {
        /// Bytes of output that the client had before that request, from the beginning of the replay.
        bytes: u32,
        /// Bytes of that request and later requests: the server was not given these.
        missing: u32,
    },
    /// The server did not come back in time.
    ServerDown,
    /// The service was stopped while the connection waited for the server.
    Stopped,
    /// The service ended by an error while the connection waited for the server.
    ServiceFailed,
    /// The server made a call that cannot be replayed.
    NotReplayable,
    /// The host was restarted, and too little of the output that the client had received is recorded for a comparison:
    /// the newest output had not reached the logger.
    NotComparable {
        /// Bytes of the last response that the client has, up to the number that should be recorded.
        heard: u32,
        /// Bytes of this response that are recorded.
        recorded: u32,
    },
    /// The host was restarted, and the client may have bytes of an unrecorded response beyond a gap. The client cannot
    /// say so, without selective acknowledgements.
    HoleUnknown,
    /// The state of the server could not be rebuilt: the server does not know the connection any more.
    Forgotten,
    /// The host was restarted, and the client has not confirmed its sequence numbers in time. Or the client has an
    /// acknowledgement beyond the record, or has never retransmitted bytes that are missing in the record.
    ClientSilent,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unprotected { reason } => write!(f, "unprotected before the crash: {reason}"),
            Self::NoRecord => write!(f, "the logger has no record of this connection"),
            Self::RecordIncomplete {
                stable_seq,
                acknowledged,
            } => write!(
                f,
                "the record ends at {stable_seq}, but the client has an acknowledgement up to {acknowledged}"
            ),
            Self::Diverged { offset } => write!(
                f,
                "the output of the restarted server differs at byte {offset}"
            ),
            Self::DivergedBefore { offset } => write!(
                f,
                "the output of the restarted server differs before byte {offset} (by the hash)"
            ),
            Self::EndedEarly { offset } => write!(
                f,
                "the restarted server closed the connection after {offset} bytes of output, and the client has more"
            ),
            Self::OutstreamTooLong { sent } => write!(
                f,
                "the server has sent {sent} bytes, and at most 2 GiB can be repeated"
            ),
            Self::Quarantined { deaths } => {
                write!(
                    f,
                    "the server died {deaths} times in the replay of this connection"
                )
            }
            Self::NotAccepted => write!(f, "the restarted server did not accept the connection"),
            Self::ReplayStalled { missing } => {
                write!(
                    f,
                    "the restarted server did not read the last {missing} bytes of the record"
                )
            }
            Self::OutputNotRepeated { bytes, missing: 0 } => write!(
                f,
                "the restarted server did not repeat the first {bytes} bytes of output, which the client has"
            ),
            Self::OutputNotRepeated { bytes, missing } => write!(
                f,
                "the restarted server did not repeat the first {bytes} bytes of output, which the client has: the last {missing} bytes of the client were not replayed"
            ),
            Self::ServerDown => write!(f, "the server did not come back in time"),
            Self::Stopped => write!(f, "the service was stopped before the server was back"),
            Self::ServiceFailed => write!(
                f,
                "the service failed; the last line of outlive serve says why"
            ),
            Self::NotReplayable => write!(f, "the server made a call that cannot be replayed"),
            Self::NotComparable { heard, recorded } => write!(
                f,
                "the client has {heard} bytes of a response, and only {recorded} of these are recorded: the replay cannot be compared"
            ),
            Self::HoleUnknown => write!(
                f,
                "the client has no selective acknowledgements, and may have bytes of an unrecorded response beyond a gap"
            ),
            Self::Forgotten => write!(
                f,
                "the state of the server was lost, and the server does not know the connection"
            ),
            Self::ClientSilent => write!(
                f,
                "the client did not confirm its sequence numbers after the restart of the host"
            ),
        }
    }
}

impl Serialize for LostReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Durations of the steps of a recovery, each from the death, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Timings {
    /// Until `serve` knew of the death.
    pub detected_ms: f64,
    /// Until nothing of the old server was left.
    pub cleared_ms: f64,
    /// Until the new server's main process ran.
    pub restarted_ms: f64,
    /// Until the server listened.
    pub listening_ms: f64,
    /// Until the server had replayed the determinant log, if there is a determinant log.
    pub replayed_ms: f64,
    /// Until the first connection was spliced.
    pub first_spliced_ms: f64,
    /// Until the last connection was spliced.
    pub spliced_ms: f64,
    /// Until every record was replayed.
    pub live_ms: f64,
}

/// The part of the record of a connection that the new server was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// Which.
    #[serde(serialize_with = "display")]
    pub connection: FlowKey,
    /// Requests: how often the client had begun to speak.
    pub requests: u32,
    /// Bytes.
    pub bytes: u32,
}

/// One line of `outlive events`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// The server died and the gate is shut.
    Died {
        /// The cause.
        cause: Cause,
        /// Time from the death to the detection, milliseconds.
        detected_ms: f64,
    },
    /// The server runs again.
    Restarted {
        /// Its main process.
        pid: u32,
        /// Since the death, milliseconds.
        after_ms: f64,
    },
    /// The server listens again.
    Listening {
        /// Since the death, milliseconds.
        after_ms: f64,
    },
    /// Every connection that can be kept is spliced to the new server.
    Spliced {
        /// How many.
        connections: usize,
        /// Since the death, milliseconds.
        after_ms: f64,
    },
    /// The recovery is over.
    Serving {
        /// Connections that go on, and whose repeated output was compared.
        recovered: usize,
        /// Connections that go on, and whose repeated output is still compared.
        comparing: usize,
        /// Connections that were reset.
        reset: usize,
        /// Requests that ran again: the places at which clients had begun to speak, in the input from the record; with
        /// the requests of connections that were lost then.
        replayed_requests: u64,
        /// Instream bytes given to the new server from the record.
        replayed_bytes: u64,
        /// The connections of which the most was given to the new server.
        replayed: Vec<Replayed>,
        /// Durations of all steps.
        timings: Timings,
    },
    /// Connections that were still compared go on.
    ConnectionsRecovered {
        /// How many.
        connections: usize,
    },
    /// A connection could not be kept, and was reset.
    ConnectionReset {
        /// Which.
        #[serde(serialize_with = "display")]
        connection: FlowKey,
        /// Why.
        reason: LostReason,
        /// Requests of the connection that ran again.
        replayed_requests: u32,
        /// Bytes of these requests.
        replayed_bytes: u32,
    },
    /// A client reset a connection while no server had the connection.
    ClientReset {
        /// Which.
        #[serde(serialize_with = "display")]
        connection: FlowKey,
    },
    /// The replayed connections agreed with their records, and the server lives.
    Verified {
        /// How many connections.
        connections: usize,
        /// Bytes of output compared, one by one or by a hash, and equal.
        compared: u64,
        /// Pieces of output that differed where they may.
        tolerated: u64,
        /// Bytes of output of which only samples were compared.
        sampled: u64,
        /// Bytes that the clients had been sent and that were not compared.
        unverified: u64,
    },
}

fn display<S: Serializer>(value: &FlowKey, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Died { cause, detected_ms } => {
                write!(f, "died: {cause}; detected in {detected_ms:.2} ms")
            }
            Self::Restarted { pid, after_ms } => {
                write!(f, "restarted as process {pid} after {after_ms:.1} ms")
            }
            Self::Listening { after_ms } => {
                write!(f, "the new server is listening ({after_ms:.1} ms)")
            }
            Self::Spliced {
                connections,
                after_ms,
            } => {
                write!(
                    f,
                    "{} spliced after {after_ms:.1} ms",
                    Count(*connections, "connection")
                )
            }
            Self::Serving {
                recovered,
                comparing,
                reset,
                replayed_requests,
                replayed_bytes,
                timings,
                ..
            } => {
                write!(
                    f,
                    "serving again after {:.1} ms: {} recovered, ",
                    timings.live_ms,
                    Count(*recovered, "connection")
                )?;
                if *comparing > 0 {
                    write!(f, "{comparing} still compared, ")?;
                }
                write!(
                    f,
                    "{reset} reset, {} ({}) replayed",
                    Count(*replayed_requests, "request"),
                    Count(*replayed_bytes, "byte")
                )
            }
            Self::ConnectionsRecovered { connections } => {
                write!(
                    f,
                    "{} recovered after the comparison",
                    Count(*connections, "connection")
                )
            }
            Self::ConnectionReset {
                connection,
                reason,
                replayed_requests,
                replayed_bytes,
            } => {
                write!(f, "reset {connection}: {reason}")?;
                if *replayed_requests > 0 {
                    let bytes = Count(*replayed_bytes, "byte");
                    write!(
                        f,
                        "; {replayed_requests} of the requests ({bytes}) ran again"
                    )?;
                }
                Ok(())
            }
            Self::ClientReset { connection } => {
                write!(f, "the client reset {connection} during the recovery")
            }
            Self::Verified {
                connections,
                compared,
                tolerated,
                sampled,
                unverified,
            } => write!(
                f,
                "replay verified: {} repeated the recorded output: {} equal, {}, {} compared by samples, {} not compared",
                Count(*connections, "connection"),
                Count(*compared, "byte"),
                Count(*tolerated, "tolerated difference"),
                Count(*sampled, "byte"),
                Count(*unverified, "byte")
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_signals_are_words() {
        let died = |signal| Event::Died {
            cause: Cause::Signal { pid: 7, signal },
            detected_ms: 1.594,
        };
        let words = died(9).to_string();
        assert_eq!(
            words,
            "died: process 7 was killed by SIGKILL; detected in 1.59 ms"
        );
        assert!(died(40).to_string().contains("killed by signal 40"));
        let serving = |recovered| Event::Serving {
            recovered,
            comparing: 0,
            reset: 0,
            replayed: Vec::new(),
            replayed_requests: 2,
            replayed_bytes: 1,
            timings: Timings::default(),
        };
        let words = "serving again after 0.0 ms: 1 connection recovered, 0 reset, 2 requests (1 byte) replayed";
        assert_eq!(serving(1).to_string(), words);
        assert!(serving(0).to_string().contains("0 connections recovered"));
    }
}
