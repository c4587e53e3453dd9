//! Read-ahead of the record: a replay needs pieces of the size of a packet, and a single request to the logger brings
//! many pieces. (FT-TCP V.B.5 names this optimisation as missing.)

use std::collections::BTreeMap;

use protocol::control::MAX_DATA;
use wire::{FlowId, SeqNumber};

/// Connections whose record is read ahead at a time; other records are read piece by piece.
const CONNECTIONS_MAX: usize = 64;

/// Bytes of the record that were read and not yet delivered.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead(BTreeMap<FlowId, (SeqNumber, Vec<u8>)>);

impl ReadAhead {
    /// The piece from `from`, if completely here.
    pub(crate) fn piece(&self, flow: FlowId, from: SeqNumber, len: u32) -> Option<&[u8]> {
        let (start, bytes) = self.0.get(&flow)?;
        let skip = usize::try_from(from.distance_from(*start)?).ok()?;
        let end = skip.checked_add(usize::try_from(len).ok()?)?;
        bytes.get(skip..end)
    }

    /// Bytes to request when a replay needs a piece of `len` bytes.
    pub(crate) fn worth_asking(&self, flow: FlowId, len: u32) -> u32 {
        let room = self.0.len() < CONNECTIONS_MAX || self.0.contains_key(&flow);
        if room {
            u32::try_from(MAX_DATA).unwrap_or(len)
        } else {
            len
        }
    }

    /// Whether any byte of the connection is here.
    pub(crate) fn knows(&self, flow: FlowId) -> bool {
        self.0.contains_key(&flow)
    }

    /// Number of further connections that may be read ahead.
    pub(crate) fn free_slots(&self) -> usize {
        CONNECTIONS_MAX.saturating_sub(self.0.len())
    }

    /// Stores the bytes that were read.
    pub(crate) fn keep(&mut self, flow: FlowId, from: SeqNumber, bytes: Vec<u8>) {
        self.0.insert(flow, (from, bytes));
    }

    /// The connection's replay is over.
    pub(crate) fn forget(&mut self, flow: FlowId) {
        self.0.remove(&flow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pieces_are_returned() {
        let mut ahead = ReadAhead::default();
        let flow = FlowId(1);
        let start = SeqNumber(u32::MAX - 1);
        ahead.keep(flow, start, b"abcdef".to_vec());
        assert_eq!(ahead.piece(flow, start + 1, 3), Some(&b"bcd"[..]));
        assert_eq!(ahead.piece(flow, start + 4, 2), Some(&b"ef"[..]));
        assert_eq!(ahead.piece(flow, start + 4, 3), None);
        assert_eq!(ahead.piece(flow, start - 1, 2), None);
        assert_eq!(ahead.piece(FlowId(2), start, 1), None);
        ahead.forget(flow);
        assert_eq!(ahead.piece(flow, start, 1), None);
    }
}
