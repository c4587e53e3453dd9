//! ACK: the recorded part of a connection's instream.
//!
//! A datagram holds up to [`MAX_ACKS`] ACKs, of any connections of the session, back to back, each
//! with a head and a tag. All ACKs for a batch of segments cost one packet.
//!
//! Behind the head:
//!
//! | offset | field | |
//! |---|---|---|
//! | 32 | flow_key | 36 bytes, as in OPEN |
//! | 68 | stable_seq `u32` | lowest sequence number of the instream that is not recorded; a FIN counts 1 |
//! | 72 | ranges `[u32; 2]` × 3 | start and end of each recorded range beyond `stable_seq`; unused ranges are 0 |
//! | 96 | tag `u64` | of the 96 bytes before it |
//!
//! The range with the newest arrival comes first, as in RFC 2018, section 4: the programs in the
//! kernel make SACK blocks of the ranges.

use core::ops::Range;

use wire::{FlowId, FlowKey, SeqNumber};

use super::head::{HEAD_LEN, Head, sign, u32_at};
use super::{
    FLOW_KEY_LEN, KeySet, KeySlot, Kind, LinkError, LinkKey, flow_key_from, flow_key_into,
};

/// The length of an ACK, in bytes.
pub const ACK_LEN: usize = 104;

/// The most ACKs in a datagram: with the headers of IPv6 and UDP the datagram is not longer than
/// the shortest path MTU that a link accepts, 576 bytes.
pub const MAX_ACKS: usize = 5;

/// The most ranges in an ACK.
pub const MAX_RANGES: usize = 3;

const AT_FLOW_KEY: Range<usize> = HEAD_LEN..HEAD_LEN + FLOW_KEY_LEN;
const AT_STABLE_SEQ: usize = 68;
const AT_RANGES: usize = 72;
const RANGE_LEN: usize = 8;

/// The recorded part of a connection's instream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// The agreed version of the link.
    pub version: u8,
    /// The slot of the key that the tag was made with.
    pub slot: KeySlot,
    /// Higher than in every earlier ACK of this session: a receiver can tell an ACK that was
    /// overtaken.
    pub counter: u64,
    /// The connection's number.
    pub flow: FlowId,
    /// Addresses and ports of the connection.
    pub key: FlowKey,
    /// The lowest instream sequence number that is not recorded. A FIN counts as one.
    pub stable_seq: SeqNumber,
    /// Recorded ranges beyond `stable_seq`: the first number of a range, and the number after the
    /// last. The `None`s come last.
    pub ranges: [Option<(SeqNumber, SeqNumber)>; MAX_RANGES],
}

impl Ack {
    /// The datagram, with a tag made with `key`, the key in [`Ack::slot`]. Ranges behind a `None`
    /// are left out.
    #[must_use]
    pub fn encode(&self, key: &LinkKey) -> [u8; ACK_LEN] {
        let mut datagram = [0; ACK_LEN];
        let mut count = 0;
        let mut at = AT_RANGES;
        for (start, end) in self.ranges.iter().map_while(|range| *range) {
            datagram[at..at + 4].copy_from_slice(&start.0.to_le_bytes());
            datagram[at + 4..at + RANGE_LEN].copy_from_slice(&end.0.to_le_bytes());
            at += RANGE_LEN;
            count += 1;
        }
        let head = Head {
            version: self.version,
            slot: self.slot,
            count,
            flow: self.flow,
            counter: self.counter,
        };
        head.write(Kind::Ack, &mut datagram);
        let mut flow_key = [0; FLOW_KEY_LEN];
        flow_key_into(&self.key, &mut flow_key);
        datagram[AT_FLOW_KEY].copy_from_slice(&flow_key);
        datagram[AT_STABLE_SEQ..AT_RANGES].copy_from_slice(&self.stable_seq.0.to_le_bytes());
        sign(&mut datagram, key);
        datagram
    }

    /// The places of a datagram where an ACK may stand, for [`Ack::decode`]. A rest that is too
    /// short is left out.
    pub fn each(datagram: &[u8]) -> impl Iterator<Item = &[u8]> {
        datagram.chunks_exact(ACK_LEN).take(MAX_ACKS)
    }

    /// Parses an ACK, and checks the tag with `keys`.
    ///
    /// # Errors
    ///
    /// [`LinkError`], if `datagram` is no ACK of [`Ack::encode`] with a valid tag.
    pub fn decode(datagram: &[u8], keys: &KeySet) -> Result<Self, LinkError> {
        let datagram: &[u8; ACK_LEN] = datagram
            .try_into()
            .map_err(|_| LinkError::BadLength(datagram.len()))?;
        let head = Head::read(Kind::Ack, datagram, keys)?;
        let count = usize::from(head.count);
        if count > MAX_RANGES {
            return Err(LinkError::BadField("count"));
        }
        let mut ranges = [None; MAX_RANGES];
        for (index, range) in ranges.iter_mut().enumerate() {
            let at = AT_RANGES + index * RANGE_LEN;
            let (start, end) = (u32_at(datagram, at), u32_at(datagram, at + 4));
            if index < count {
                *range = Some((SeqNumber(start), SeqNumber(end)));
            } else if (start, end) != (0, 0) {
                return Err(LinkError::BadField("ranges"));
            }
        }
        let mut flow_key = [0; FLOW_KEY_LEN];
        flow_key.copy_from_slice(&datagram[AT_FLOW_KEY]);
        Ok(Self {
            version: head.version,
            slot: head.slot,
            counter: head.counter,
            flow: head.flow,
            key: flow_key_from(&flow_key),
            stable_seq: SeqNumber(u32_at(datagram, AT_STABLE_SEQ)),
            ranges,
        })
    }
}
