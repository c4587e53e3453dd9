//! The death latch (`latch.h`; FT-TCP VI.A): a killed server closes connections, and the kernel
//! sends FIN or RST to the clients. The gate shuts before the kernel builds the first such segment.
//!
//! - A process exits before the kernel closes the process's files. If the process belongs to the
//!   service and the exit is a crash, the whole service is gated.
//! - The state changes of a socket show which connections a *living* server closes: these stay open
//!   at the gate. State changes also show when the server listens, and when a connection is over.
//!
//! A crash is: a process of the service killed by a signal (for other processes than the main
//! process, except SIGPIPE: the client has gone away), or a non-zero status of the main process;
//! with one policy, a non-zero status of any process. Another policy leaves all other processes to
//! the parents: the connections of such a process end as a living server's do.

use protocol::mirror::{CloseReason, FrameKind};
use wire::FlowKey;

use crate::{
    flow::Mode,
    south::{EventKind, Shared, SouthSide},
};

const SIGPIPE: u32 = 13;

/// Which exits of the service's processes are crashes. A signal, or a non-zero status, of the main
/// process always is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CrashOn {
    /// No other ends.
    Main,
    /// A signal to another process, too.
    #[default]
    Signal,
    /// And a status other than 0 of another process.
    AnyFailure,
}

/// A task leaves (`sched_process_exit`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// The cgroup of the process is the service's.
    pub in_service: bool,
    /// The process number.
    pub tgid: u32,
    /// Exit status as in `wait(2)`: the signal in the low 7 bits, the status in the next byte.
    pub exit_code: u32,
    /// No other thread of the process is left.
    pub last_thread: bool,
    /// All threads of the process leave together.
    pub group_exit: bool,
}

/// The TCP socket of a connection, or a listener, changes state (`inet_sock_set_state`). When two
/// segments complete one handshake, the second socket belongs to no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketChange {
    /// Both ends. Of a listener only the server's end counts, which may be a wildcard.
    pub key: FlowKey,
    /// The new state.
    pub new_state: SocketState,
}

/// The states that matter (RFC 9293 3.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketState {
    /// LISTEN.
    Listen,
    /// FIN-WAIT-1 of a socket that the server can still read, after a half-close.
    HalfClosed,
    /// FIN-WAIT-1; or FIN-WAIT-2, if the server has half-closed before.
    FinWait1,
    /// LAST-ACK.
    LastAck,
    /// CLOSING.
    Closing,
    /// CLOSED.
    Close,
    /// Any other.
    Other,
}

impl SouthSide {
    /// A task leaves: was that a crash of the service?
    pub fn process_exit(&mut self, exit: Exit, now_ns: u64) {
        let shared = &mut self.shared;
        let service = &shared.service;
        // The exit of one thread is not the exit of the process.
        let of_process = exit.last_thread || exit.group_exit;
        if !exit.in_service
            || !of_process
            || service.stopping
            || service.gated
            || shared.abandoned(now_ns)
            || !shared.is_crash(exit)
        {
            return;
        }
        shared.service.gated_ns = now_ns;
        shared.service.gated = true;
        let (pid, status) = (exit.tgid, exit.exit_code);
        shared.emit(EventKind::Death { pid, status }, now_ns);
    }

    /// A socket changes state.
    pub fn socket_state(&mut self, change: SocketChange, now_ns: u64) {
        match change.new_state {
            SocketState::Listen => {
                if self.shared.listens_for_us(change.key) {
                    self.shared.emit(EventKind::Listening, now_ns);
                }
            }
            SocketState::HalfClosed if self.reads_on(change.key, now_ns) => {}
            SocketState::HalfClosed
            | SocketState::FinWait1
            | SocketState::LastAck
            | SocketState::Closing => {
                self.server_closes(change.key, false, now_ns);
            }
            SocketState::Close => {
                // Otherwise client or server has reset the connection.
                let orderly = self
                    .flows
                    .get(&change.key)
                    .is_some_and(|flow| flow.server_closing || flow.half_closed);
                if self.server_closes(change.key, !orderly, now_ns) {
                    self.connection_closed(change.key, orderly, now_ns);
                }
            }
            SocketState::Other => {}
        }
    }

    /// Returns whether a living server closes the socket. While gated, the death closes the socket,
    /// or the removal of orphaned sockets.
    fn server_closes(&mut self, key: FlowKey, by_reset: bool, now_ns: u64) -> bool {
        let Some(flow) = self.flows.get_mut(&key) else {
            return false;
        };
        let alive = !self.shared.flow_gated(flow, now_ns) && flow.mode != Mode::Splicing;
        flow.was_reset |= alive && by_reset && !flow.server_closing;
        flow.server_closing |= alive;
        flow.half_closed &= !alive;
        alive
    }

    /// A replay still has input for a server that half-closes, and no other path would deliver the
    /// input. So the half-close of a later incarnation is no end before the server closes the
    /// socket.
    fn reads_on(&mut self, key: FlowKey, now_ns: u64) -> bool {
        let Some(flow) = self.flows.get_mut(&key) else {
            return false;
        };
        if flow.mode != Mode::Spliced || self.shared.flow_gated(flow, now_ns) {
            return false;
        }
        flow.half_closed = true;
        true
    }

    fn connection_closed(&mut self, key: FlowKey, orderly: bool, now_ns: u64) {
        let Some(flow) = self.flows.get_mut(&key) else {
            return;
        };
        if flow.closed_ns != 0 {
            return;
        }
        // A spliced connection's TIME-WAIT and late segments still need translation. With a log
        // link the client may still need an acknowledgement. The sweep removes the flow later.
        if self.shared.linked(flow) {
            flow.closed_ns = now_ns;
            self.shared.close_record(flow, !orderly, now_ns);
            return;
        }
        let reason = CloseReason::Finished;
        self.shared
            .mirror_marker(flow, FrameKind::Closed(reason), now_ns);
        // The RST that follows must not count as an answer to an unknown segment, which is dropped
        // in a recovery.
        let is_heard = orderly || !self.shared.strays_dropped(now_ns);
        if flow.mode == Mode::Observed && is_heard {
            self.flows.remove(&key);
        } else {
            flow.closed_ns = now_ns;
        }
    }
}

impl Shared {
    fn is_crash(&self, exit: Exit) -> bool {
        let (signal, status) = (exit.exit_code & 0x7f, (exit.exit_code >> 8) & 0xff);
        let main = exit.tgid == self.service.main_pid;
        match self.settings.crash_on {
            _ if main => signal != 0 || status != 0,
            CrashOn::Main => false,
            _ if signal != 0 => signal != SIGPIPE,
            CrashOn::Signal => false,
            CrashOn::AnyFailure => status != 0,
        }
    }

    /// A listener's own address may be a wildcard, which means any endpoint with the port.
    fn listens_for_us(&self, key: FlowKey) -> bool {
        let local = key.server();
        if local.ip().is_unspecified() {
            return self.endpoints.iter().any(|end| end.port() == local.port());
        }
        self.is_endpoint(local)
    }
}

#[cfg(test)]
mod tests;
