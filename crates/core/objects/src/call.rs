//! A segment that a client's TCP answers.
//!
//! A client whose request is acknowledged says nothing until bytes arrive. After the death of a member, the next member
//! *calls* such a client: the client answers a segment with an old number with an acknowledgement (RFC 9293, 3.10.7.4).
//! The answer has the echo and the position.
//!
//! The segment has a byte, which the client has acknowledged: Linux from 6.14 on does not answer a segment without
//! payload whose timestamp is old, too.

use alloc::vec::Vec;

use wire::{ChecksumMode, Flags, FlowKey, OptionsBuffer, SegmentSpec, TcpOption};

use crate::key::PoolKey;
use crate::record::Record;
use crate::timestamp::index::Index;
use crate::timestamp::{State, Timestamp};

/// An IP packet for the client of a record. `None`: no response of the record has begun.
#[must_use]
pub fn packet(key: FlowKey, pool_key: &PoolKey, record: &Record) -> Option<Vec<u8>> {
    let turn = record.turns.last()?;
    let answer = turn.answer.as_ref()?;
    let [a, b, c, d, ..] = answer.acked.to_le_bytes();
    // The last of the bytes that the client had when the record was written, or before the response: wherever the
    // client is, the segment brings no byte that the client takes.
    let seq = answer.start + u32::from_le_bytes([a, b, c, d]) - 1;
    // PAWS may refuse the value, with an answer. A TCP that takes the value echoes a state that is right.
    let mut stamps = OptionsBuffer::new();
    let rounded = record.options.rounded();
    let state =
        rounded.map(|options| State::stored(pool_key, &key, record.slot, options, turn.number));
    let value = state.map(|state| Timestamp {
        index: Index::new(0),
        state,
    });
    let with_timestamps = |value: Timestamp| {
        [
            TcpOption::NoOperation,
            TcpOption::NoOperation,
            TcpOption::Timestamps {
                value: value.to_wire(),
                echo: 0,
            },
        ]
    };
    for option in value.map(with_timestamps).into_iter().flatten() {
        // Twelve of forty bytes.
        let _ = stamps.push(&option);
    }
    let spec = SegmentSpec {
        source: key.server(),
        destination: key.client(),
        seq,
        // A client that takes the acknowledgement would keep its request no longer: perhaps only one of two stores has
        // the record.
        ack: turn.request_start,
        flags: Flags::ACK,
        window: 0,
        options: stamps.as_slice(),
        payload: &[0],
    };
    let mut packet = Vec::new();
    spec.emit(&mut packet, ChecksumMode::Full).ok()?;
    Some(packet)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use http1::version::ObjectVersion;
    use wire::{IpPacket, Segment, SeqNumber};

    use super::*;
    use crate::isn::Slot;
    use crate::record::{StoredAnswer, StoredOptions, StoredTurn};

    #[test]
    fn call_is_before_every_byte_that_the_client_lacks() {
        let answer = StoredAnswer {
            start: SeqNumber(u32::MAX),
            header_len: 100,
            response_len: None,
            first_byte: 0,
            acked: (5 << 32) + 7,
            version: ObjectVersion {
                complete_len: None,
                etag: None,
                last_modified: None,
                content_encoding: None,
            },
        };
        let turn = StoredTurn {
            number: 3,
            request_start: SeqNumber(50),
            request: b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            has_range: false,
            answer: Some(answer),
        };
        let record = Record {
            generation: 1,
            owner: 1,
            client_isn: SeqNumber(49),
            server_isn: SeqNumber(0),
            slot: Slot::new(1),
            options: StoredOptions {
                window_scale: Some(7),
                segment_size: 1460,
                has_sack: true,
                has_timestamps: true,
            },
            turns: vec![turn],
            inputs: None,
            chunks: None,
        };
        let key = FlowKey::new(([10, 0, 0, 3], 4000).into(), ([10, 0, 9, 9], 80).into());
        let call = packet(key, &PoolKey([1; 16]), &record).unwrap();
        let ip = IpPacket::parse(&call).unwrap();
        let segment = Segment::of(&ip).unwrap();
        assert_eq!(
            (segment.seq(), segment.ack()),
            (SeqNumber(5), SeqNumber(50)),
            "the client holds its request on"
        );
        assert_eq!(
            segment.end_seq(),
            SeqNumber(6),
            "no byte that the client lacks"
        );
    }
}
