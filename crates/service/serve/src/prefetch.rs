//! Batches of requests to the logger.
//!
//! A request costs two context switches, about 0.1 ms on an idle machine. The recovery of a connection needs three
//! requests: heads of the outstream, recorded instream, and later instream. Hundreds of connections are recovered at a
//! time, so one request also asks for the data of the next actions. The replies live as long as these actions run.

use std::collections::BTreeMap;

use recovery::Action;
use wire::{FlowId, SeqNumber};

use crate::{
    config::Verify,
    error::ServeError,
    logger_client::{Heads, Piece},
    service::Service,
};

/// Requests to the logger without an answer.
const REQUESTS_IN_FLIGHT: usize = 64;

/// Bytes of a prefetched piece of a replay.
const PREFETCH_BYTES: u32 = 64 << 10;

/// Reply to a request for heads.
pub(crate) enum HeadsReply {
    Heads(Heads),
    /// The logger has no record of the connection.
    NotKnown,
    NoReply,
}

/// Replies for the next actions.
#[derive(Debug, Default)]
pub(crate) struct Prefetched {
    heads: BTreeMap<FlowId, Option<Heads>>,
    more: BTreeMap<FlowId, (SeqNumber, Vec<u8>)>,
}

impl Service {
    /// Heads of the outstream, and the beginnings of requests.
    pub(crate) fn heads(&mut self, flow: FlowId) -> Result<HeadsReply, ServeError> {
        let is_asked = self.prefetched.heads.contains_key(&flow);
        if !is_asked && !self.request_heads(flow)? {
            return Ok(HeadsReply::NoReply);
        }
        let known = self.prefetched.heads.remove(&flow).flatten();
        Ok(known.map_or(HeadsReply::NotKnown, HeadsReply::Heads))
    }

    /// Requests the heads of this and of the next connections. `false`: the logger does not answer.
    fn request_heads(&mut self, flow: FlowId) -> Result<bool, ServeError> {
        let others = self.recovery.upcoming().filter_map(|action| match action {
            Action::Expect { flow } => Some(*flow),
            _ => None,
        });
        // A whole outstream may be large.
        let most = match self.config.verify {
            Verify::Full => 1,
            Verify::Hash | Verify::Head | Verify::Off => REQUESTS_IN_FLIGHT,
        };
        let flows: Vec<FlowId> = [flow].into_iter().chain(others).take(most).collect();
        let Some(answers) = self.ask_logger(|logger| logger.heads(&flows))? else {
            return Ok(false);
        };
        let known = flows.into_iter().zip(answers);
        self.prefetched.heads.extend(known);
        Ok(true)
    }

    /// Recorded instream from `from` on; empty if unknown.
    pub(crate) fn instream_since(
        &mut self,
        flow: FlowId,
        from: SeqNumber,
    ) -> Result<Vec<u8>, ServeError> {
        if let Some((start, bytes)) = self.prefetched.more.remove(&flow)
            && start == from
        {
            return Ok(bytes);
        }
        let others = self.recovery.upcoming().filter_map(|action| match action {
            Action::MoreRecord { flow, from } => Some(Piece {
                flow: *flow,
                from: *from,
                len: PREFETCH_BYTES,
            }),
            _ => None,
        });
        let len = recovery::MORE_RECORD_BYTES;
        let pieces: Vec<Piece> = [Piece { flow, from, len }]
            .into_iter()
            .chain(others)
            .take(REQUESTS_IN_FLIGHT)
            .collect();
        for (piece, bytes) in self.read(pieces)? {
            self.prefetched.more.insert(piece.flow, (piece.from, bytes));
        }
        Ok(self
            .prefetched
            .more
            .remove(&flow)
            .map_or_else(Vec::new, |(_, bytes)| bytes))
    }

    /// Read ahead from `from`, so that a replay finds `len` bytes, and the pieces that are replayed
    /// next on other connections.
    pub(crate) fn prefetch_replay(
        &mut self,
        flow: FlowId,
        from: SeqNumber,
        len: u32,
    ) -> Result<(), ServeError> {
        let others = self.recovery.upcoming().filter_map(|action| match action {
            Action::Replay { flow, segment, .. } => Some(Piece {
                flow: *flow,
                from: segment.from,
                len: segment.len,
            }),
            _ => None,
        });
        let unknown = |piece: &Piece| piece.len > 0 && !self.read_ahead.knows(piece.flow);
        let room = self.read_ahead.free_slots().min(REQUESTS_IN_FLIGHT);
        let mut pieces: Vec<Piece> = others.filter(unknown).take(room).collect();
        pieces.retain(|piece| piece.flow != flow);
        pieces.dedup_by_key(|piece| piece.flow);
        let len = self.read_ahead.worth_asking(flow, len);
        pieces.insert(0, Piece { flow, from, len });
        for (piece, bytes) in self.read(pieces)? {
            self.read_ahead.keep(piece.flow, piece.from, bytes);
        }
        Ok(())
    }

    /// The actions for which this was asked have been carried out.
    pub(crate) fn clear_prefetched(&mut self) {
        self.prefetched = Prefetched::default();
    }

    fn read(&mut self, pieces: Vec<Piece>) -> Result<Vec<(Piece, Vec<u8>)>, ServeError> {
        let answers = self.ask_logger(|logger| logger.read(&pieces))?;
        let known = pieces.into_iter().zip(answers.unwrap_or_default());
        Ok(known
            .filter_map(|(piece, bytes)| Some((piece, bytes?)))
            .collect())
    }
}
