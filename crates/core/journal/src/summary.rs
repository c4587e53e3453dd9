//! What is known of one connection.

use crate::error::Unprotected;
use types::ClientFin;
use wire::{FlowId, SeqNumber};

/// A place in both streams of a connection, by original sequence numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The next byte from the client.
    pub instream: SeqNumber,
    /// The next byte from the server.
    pub outstream: SeqNumber,
}

/// What is known of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Its number.
    pub flow: FlowId,
    /// The client's initial sequence number.
    pub client_isn: SeqNumber,
    /// The initial sequence number of the server that the client knows.
    pub server_isn: SeqNumber,
    /// Its record, or why it has none.
    pub state: State,
}

/// Whether a connection has a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It can be replayed.
    Protected(Protected),
    /// It cannot.
    Unprotected(Unprotected),
}

/// The extent of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protected {
    /// Where a replay begins: after the handshake, or at the last turn if earlier ones are dropped.
    pub start: Position,
    /// Where the last turn began.
    pub turn: Position,
    /// Where answers began: the oldest whose head may not be recorded, the one after it (not after
    /// its beginning), and the newest. Last, where what is recorded of heads ends, without those that
    /// have come before others.
    pub answers: [SeqNumber; 4],
    /// How far the server had read when it said what the newest head has (without heads that have come before others).
    pub asked: SeqNumber,
    /// What the client says from there on is not recorded, also not beyond a hole, and the server had not read that
    /// when it said what the newest head has: it may have been answered by nobody knows what. Or it was so when it
    /// came.
    pub doubt: SeqNumber,
    /// Turns begun, with the first.
    pub turns: u64,
    /// The lowest instream sequence number that is not in the record. A FIN counts as one.
    pub stable_seq: SeqNumber,
    /// The client's FIN, if it has arrived. It can be replayed when `stable_seq` is after it.
    pub fin: Option<ClientFin>,
    /// Bytes that arrived beyond a hole, and are not stable yet.
    pub ahead: u64,
    /// Bytes of memory that the record holds, besides what is of fixed size.
    pub held: u64,
}

impl Protected {
    /// The lowest instream sequence number that holds no byte of the contiguous record: as
    /// `stable_seq`, but a FIN does not count.
    #[must_use]
    pub fn data_end(&self) -> SeqNumber {
        self.stable_fin().map_or(self.stable_seq, |fin| fin.seq)
    }

    /// The client's FIN, if everything before it is recorded.
    #[must_use]
    pub fn stable_fin(&self) -> Option<ClientFin> {
        self.fin.filter(|fin| self.stable_seq.after(fin.seq))
    }
}
