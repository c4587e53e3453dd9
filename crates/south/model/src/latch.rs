//! The death latch (`latch.h`; FT-TCP VI.A): a server that is killed closes its connections, and
//! the kernel says so to the clients. The gate is shut before the first such FIN or RST is built.
//!
//!  - A process leaves before its files are closed. If it belongs to the service and leaves as a
//!    crash does, the whole service is gated.
//!  - A socket's change of state tells which connections a *living* server closes by itself: those
//!    stay open at the gate. It also tells when the server listens, and when a connection is over.
//!
//! A crash is: any process of the service killed by a signal (for other processes than the main
//! one, SIGPIPE excepted: that is a client's going away), the main process leaving with a status
//! other than 0; any process with such a status if the policy says so. Another policy leaves all but the
//! main process to their parents: what such a process leaves behind ends as a living server's connections do.

use protocol::mirror::{CloseReason, FrameKind};
use wire::FlowKey;

use crate::{
    flow::Mode,
    south::{EventKind, Shared, SouthSide},
};

const SIGPIPE: u32 = 13;

/// Which ends of the service's processes are crashes. A signal, or a status other than 0, of the main process is one
/// in any case.
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
    /// Its cgroup is the service's.
    pub in_service: bool,
    /// Its process.
    pub tgid: u32,
    /// Its end as `wait(2)` gives it: the signal in the low 7 bits, the status in the next byte.
    pub exit_code: u32,
    /// No other thread of the process is left.
    pub last_thread: bool,
    /// All threads of the process leave together.
    pub group_exit: bool,
}

/// The TCP socket of a connection, or a listener, changes its state (`inet_sock_set_state`). A
/// socket that came second when two segments completed one handshake is no connection's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketChange {
    /// Its ends. Of a listener only the server's matters; it may be a wildcard.
    pub key: FlowKey,
    /// What it becomes.
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
        // One thread's own end is not the process's.
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

    /// A socket changes its state.
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
                // Else one of the two has reset it.
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

    /// Returns whether a living server does it. Gated: it is the death that closes the socket, or
    /// the removal of what the dead left.
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

    /// A replay still has record for a server that half-closes, and no other path would ever deliver the record. So the
    /// half-close of a later life is no end before the server closes the socket.
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
        // A spliced connection's TIME-WAIT and late segments still need translation; with a log link
        // the client may have to be told what was received: the sweep takes it later.
        if self.shared.linked(flow) {
            flow.closed_ns = now_ns;
            self.shared.close_record(flow, !orderly, now_ns);
            return;
        }
        let reason = CloseReason::Finished;
        self.shared
            .mirror_marker(flow, FrameKind::Closed(reason), now_ns);
        // The RST that follows is not one to a stray, which nobody would hear in a recovery.
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

    /// A listener's own address may be a wildcard: any endpoint with its port is meant.
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
