//! Never a wrong byte (`verify.h`): output that a replayed server repeats is compared with the
//! record, before any byte of the segment is acknowledged or sent on. The record is kept in chunks
//! of 512 bytes aligned in client space, with masks for the bytes that must agree and the bytes
//! that may differ (the value of a Date header).

use std::collections::BTreeMap;

use wire::{FlowId, SeqNumber};

use crate::{
    flow::Flow,
    packet::length32,
    tolerance::{EXPECT_CHUNK, Expect, chunk_of, offset_in_chunk},
};

/// The first replayed byte that contradicts the record; client space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Divergence(pub(crate) SeqNumber);

/// Compares the part of `payload` before `verify.end`; `payload` begins at `seq` in client space.
pub(crate) fn verify_replayed(
    expected: &BTreeMap<(FlowId, u32), Expect>,
    flow: &mut Flow,
    payload: &[u8],
    seq: SeqNumber,
) -> Result<(), Divergence> {
    let due = flow.verify.end.0.wrapping_sub(seq.0);
    let due = usize::try_from(due).map_or(payload.len(), |due| due.min(payload.len()));
    let mut rest = payload.get(..due).unwrap_or_default();
    let mut seq = seq;
    while !rest.is_empty() {
        let at = offset_in_chunk(seq);
        let (piece, later) = rest.split_at(rest.len().min(EXPECT_CHUNK - at));
        match expected.get(&(flow.id, chunk_of(seq))) {
            Some(expect) => compare(expect, flow, piece, at, seq)?,
            None => {
                flow.verify.unverified = flow.verify.unverified.wrapping_add(length32(piece.len()))
            }
        }
        seq += length32(piece.len());
        rest = later;
    }
    Ok(())
}

fn compare(
    expect: &Expect,
    flow: &mut Flow,
    piece: &[u8],
    at: usize,
    seq: SeqNumber,
) -> Result<(), Divergence> {
    let differs = |mask: &[u8; EXPECT_CHUNK]| {
        let record = expect.bytes.iter().zip(mask).skip(at);
        piece
            .iter()
            .zip(record)
            .position(|(seen, (want, mask))| (seen ^ want) & mask != 0)
    };
    if let Some(first) = differs(&expect.strict) {
        let at = seq + length32(first);
        flow.verify.diverged_at = at;
        return Err(Divergence(at));
    }
    flow.verify.compared = flow.verify.compared.wrapping_add(length32(piece.len()));
    flow.verify.behind += flow.digest.behind(seq, length32(piece.len()));
    if differs(&expect.soft).is_some() {
        flow.verify.tolerated = flow.verify.tolerated.wrapping_add(1);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
