//! A stateful server with the north side wrap: one process, one incarnation.
//!
//! The server is a function of its events alone: accepts, reads, writable sockets. Each event is recorded before its
//! effects, and each output before it leaves. The next incarnation replays the determinants, reaches the same state,
//! and then waits for the sockets of its connections.

mod replay;
mod serving;

use smoltcp::iface::SocketHandle;
use wire::{FlowKey, SeqNumber};

use crate::{
    conversation::Digest,
    determinants::{Determinant, DeterminantLog},
    session::{Common, Session},
};

pub(crate) use serving::{Interruption, System};

/// Longest output at a time, bytes.
const LONGEST_OUTPUT: usize = 3000;

/// Stage of an incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Replays the determinants; this is the next one.
    Replaying(usize),
    /// Has replayed all, and waits for the sockets.
    Waiting,
    Serving,
}

/// An incarnation of the server.
#[derive(Debug)]
pub(crate) struct Stateful {
    stage: Stage,
    common: Common,
    /// By number: the order of the accepts.
    connections: Vec<Connection>,
    /// Hash of all output.
    said: Digest,
    /// Output that waits for a stable determinant, together with all later steps.
    held: Option<(usize, Vec<u8>)>,
}

/// An accepted connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) key: FlowKey,
    pub(crate) isn: SeqNumber,
    session: Session,
    /// Bytes that were read, and the output.
    pub(crate) read: usize,
    pub(crate) said: Vec<u8>,
    /// The client has half-closed.
    ended: bool,
    /// The socket cannot be written.
    blocked: bool,
    pub(crate) closed: bool,
    closed_in_replay: bool,
    /// `None` in a replay, and for a lost connection.
    socket: Option<SocketHandle>,
}

/// The next step without an event.
enum NextOperation {
    Says(usize, Vec<u8>),
    Closes(usize),
}

impl Stateful {
    pub(crate) fn new(incarnation: u32, determinants: &DeterminantLog) -> Self {
        Self {
            stage: if determinants.is_empty() {
                Stage::Serving
            } else {
                Stage::Replaying(0)
            },
            common: Common::new(incarnation),
            connections: Vec::new(),
            said: Digest::NONE,
            held: None,
        }
    }

    /// Whether all determinants are replayed.
    pub(crate) fn has_replayed(&self) -> bool {
        !matches!(self.stage, Stage::Replaying(_))
    }

    /// Whether the server waits for its sockets.
    pub(crate) fn waits(&self) -> bool {
        self.stage == Stage::Waiting
    }

    /// Whether the server has its sockets, and serves.
    pub(crate) fn serves(&self) -> bool {
        self.stage == Stage::Serving
    }

    /// The sockets of the server.
    pub(crate) fn held(&self) -> impl Iterator<Item = SocketHandle> + '_ {
        let open = self.connections.iter().filter(|one| !one.closed);
        open.filter_map(|one| one.socket)
    }

    /// The connection with these addresses and this SYN, and its number, while the server waits for sockets. A
    /// connection that was closed in the replay is found later, too.
    pub(crate) fn passed(
        &self,
        key: FlowKey,
        isn: Option<SeqNumber>,
    ) -> Option<(usize, &Connection)> {
        let mut all = self.connections.iter().enumerate();
        let waits = self.waits();
        all.find(|(_, one)| {
            (waits || one.closed_in_replay)
                && one.key == key
                && isn.is_none_or(|isn| isn == one.isn)
        })
    }

    /// Gives the server its sockets. A connection without a socket is reset.
    pub(crate) fn go(&mut self, mut socket_of: impl FnMut(usize) -> Option<SocketHandle>) {
        if self.stage != Stage::Waiting {
            return;
        }
        self.stage = Stage::Serving;
        for (number, connection) in self.connections.iter_mut().enumerate() {
            connection.socket = socket_of(number);
            connection.closed_in_replay = connection.closed;
        }
    }

    /// The step before the next event: the first connection with output writes.
    fn next_deed(&self) -> Option<NextOperation> {
        let open = self.connections.iter().enumerate();
        let mut open = open.filter(|(_, one)| !one.closed && !one.blocked);
        open.find_map(|(number, one)| {
            let output = &one.session.output;
            match output.is_empty() {
                false => Some(NextOperation::Says(
                    number,
                    output.iter().take(LONGEST_OUTPUT).copied().collect(),
                )),
                true => one.session.closing.then_some(NextOperation::Closes(number)),
            }
        })
    }

    /// Takes this much of the output.
    fn taken(&mut self, number: usize, word: &[u8], length: usize) {
        let one = &mut self.connections[number];
        one.said.extend(one.session.output.drain(..length));
        one.blocked = length < word.len();
    }

    /// Applies an event. Returns whether the event is possible.
    fn happens(&mut self, determinant: &Determinant) -> bool {
        if let Determinant::Accepted { key, isn } = determinant {
            self.connections.push(Connection {
                key: *key,
                isn: *isn,
                session: Session::new(),
                read: 0,
                said: Vec::new(),
                ended: false,
                blocked: false,
                closed: false,
                closed_in_replay: false,
                socket: None,
            });
            return true;
        }
        let (Determinant::Read { connection, .. }
        | Determinant::Ended { connection }
        | Determinant::Room { connection }
        | Determinant::Failed { connection }) = determinant
        else {
            return false;
        };
        let Some(one) = self.connections.get_mut(*connection) else {
            return false;
        };
        match determinant {
            Determinant::Read { bytes, .. } => {
                self.common.hears(one.key, bytes);
                one.session.read(bytes, &mut self.common);
                one.read += bytes.len();
            }
            Determinant::Ended { .. } => {
                one.ended = true;
                one.session.end_of_input();
            }
            Determinant::Room { .. } => one.blocked = false,
            _ => one.closed = true,
        }
        true
    }
}
