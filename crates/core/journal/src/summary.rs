//! The state of a connection, as a journal reports it.

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

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// The number of the flow.
    pub flow: FlowId,
    /// The client's initial sequence number.
    pub client_isn: SeqNumber,
    /// The initial sequence number of the server that the client knows.
    pub server_isn: SeqNumber,
    /// The extent of the record, or the reason for no record.
    pub state: State,
}

/// Whether a connection has a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The connection can be replayed.
    Protected(Protected),
    /// The connection cannot be replayed.
    Unprotected(Unprotected),
}

/// The extent of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protected {
    /// Where a replay begins: after the handshake, or at the last request if earlier requests are dropped.
    pub start: Position,
    /// Where the last request began.
    pub turn: Position,
    /// Where responses began: the oldest whose head may not be recorded, the next (not after the beginning of that
    /// response), and the newest. Last, the end of the recorded heads, without heads that arrived before an earlier
    /// head.
    pub answers: [SeqNumber; 4],
    /// How far the server had read when the server sent the newest head (without heads that arrived before an earlier
    /// head).
    pub asked: SeqNumber,
    /// Where input in doubt begins. That input is not recorded, not even beyond a gap, and the server had not read the
    /// input when the server sent the newest head: an unknown response may exist. Or the input was in doubt on
    /// arrival.
    pub doubt: SeqNumber,
    /// Requests begun, with the first.
    pub turns: u64,
    /// The lowest instream sequence number that is not in the record. A FIN counts as a number.
    pub stable_seq: SeqNumber,
    /// The client's FIN, if the FIN has arrived. A replay includes the FIN when `stable_seq` is after the FIN.
    pub fin: Option<ClientFin>,
    /// Bytes that arrived beyond a gap, and are not stable yet.
    pub ahead: u64,
    /// Bytes of memory that the record holds, without the parts of fixed size.
    pub held: u64,
}

impl Protected {
    /// The lowest instream sequence number that holds no byte of the contiguous record: as
    /// `stable_seq`, but a FIN does not count.
    #[must_use]
    pub fn data_end(&self) -> SeqNumber {
        self.stable_fin().map_or(self.stable_seq, |fin| fin.seq)
    }

    /// The client's FIN, if everything before the FIN is recorded.
    #[must_use]
    pub fn stable_fin(&self) -> Option<ClientFin> {
        self.fin.filter(|fin| self.stable_seq.after(fin.seq))
    }
}
