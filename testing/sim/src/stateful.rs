//! A server with state, and the north side wrap around it: one process, one life.
//!
//! What it does is a function of what happens to it (who connects, what is read when, when there is room
//! again), and of nothing else; that is noted before anything follows from it, and each word before it is said.
//! The next life lives through the notes, and comes to the same state; where they end it waits for sockets
//! that go on with its connections.

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

/// Where a life is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It lives through the notes; the next one is this.
    Replaying(usize),
    /// It has, and waits for its connections.
    Waiting,
    Serving,
}

/// One life of the server.
#[derive(Debug)]
pub(crate) struct Stateful {
    stage: Stage,
    common: Common,
    /// By number: the order in which they were accepted.
    connections: Vec<Connection>,
    /// All that it has said to anybody.
    said: Digest,
    /// A word that waits until its note is safe, and so does everything else.
    held: Option<(usize, Vec<u8>)>,
}

/// A connection that it has accepted.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) key: FlowKey,
    pub(crate) isn: SeqNumber,
    session: Session,
    /// Bytes that it has read, and what it has said.
    pub(crate) read: usize,
    pub(crate) said: Vec<u8>,
    /// The client has closed its side.
    ended: bool,
    /// There is no room for what it has to say.
    blocked: bool,
    pub(crate) closed: bool,
    closed_in_replay: bool,
    /// In a replay, and of one that is lost, there is none.
    socket: Option<SocketHandle>,
}

/// What it does next by itself.
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

    /// It has lived through the notes, or there were none.
    pub(crate) fn has_replayed(&self) -> bool {
        !matches!(self.stage, Stage::Replaying(_))
    }

    /// And waits for its connections.
    pub(crate) fn waits(&self) -> bool {
        self.stage == Stage::Waiting
    }

    /// It has its connections, and goes on with them.
    pub(crate) fn serves(&self) -> bool {
        self.stage == Stage::Serving
    }

    /// The sockets that it has.
    pub(crate) fn held(&self) -> impl Iterator<Item = SocketHandle> + '_ {
        let open = self.connections.iter().filter(|one| !one.closed);
        open.filter_map(|one| one.socket)
    }

    /// Its connection with these ends and this SYN, if that is known, and the number of that, while it waits for
    /// them; one that it has closed in its replay also later.
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

    /// It gets its connections, and goes on. Those that have no socket it finds reset.
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

    /// What it does before it looks at what happens next: the first connection with something to say says it.
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

    /// Of what it says so much is taken.
    fn taken(&mut self, number: usize, word: &[u8], length: usize) {
        let one = &mut self.connections[number];
        one.said.extend(one.session.output.drain(..length));
        one.blocked = length < word.len();
    }

    /// Something happens. Answers whether it can.
    fn happens(&mut self, note: &Determinant) -> bool {
        if let Determinant::Accepted { key, isn } = note {
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
        | Determinant::Failed { connection }) = note
        else {
            return false;
        };
        let Some(one) = self.connections.get_mut(*connection) else {
            return false;
        };
        match note {
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
