//! Copies of the segments that begin turns and responses: of each connection the newest.
//!
//! A member looks at the copies every few milliseconds. A connection that stays (keep-alive) may have had many turns in
//! that time. All but the last are over, and their copies are not read.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use wire::{FlowKey, IpPacket, Segment};

use crate::plane::CopyKind;

/// The newest copies.
#[derive(Debug, Clone, Default)]
pub struct Beginnings(BTreeMap<FlowKey, Newest>);

/// Of a connection. The response is behind the request, if both are there.
#[derive(Debug, Clone, Default)]
pub(crate) struct Newest {
    request: Captured,
    response: Captured,
}

/// The beginning of an IP packet; empty: there is none. The buffer serves many packets.
#[derive(Debug, Clone, Default)]
struct Captured {
    packet: Vec<u8>,
    packet_len: usize,
}

impl Beginnings {
    /// The next copy of the ring. `packet_len`: bytes of the whole packet.
    pub fn add(&mut self, key: FlowKey, kind: CopyKind, packet: &[u8], packet_len: usize) {
        let newest = self.0.entry(key).or_default();
        match kind {
            CopyKind::Request => {
                newest.request.set(packet, packet_len);
                newest.response.packet.clear();
            }
            CopyKind::Response => newest.response.set(packet, packet_len),
            CopyKind::Unknown
            | CopyKind::Client
            | CopyKind::Parked
            | CopyKind::Deferred
            | CopyKind::Queued => {}
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&FlowKey, &Newest)> {
        self.0.iter()
    }
}

impl Newest {
    /// The segment that begins the newest turn, if that was copied.
    pub(crate) fn request(&self) -> Option<Segment<'_>> {
        self.request.segment()
    }

    /// The segment that begins the response of the newest turn.
    pub(crate) fn response(&self) -> Option<Segment<'_>> {
        self.response.segment()
    }
}

impl Captured {
    fn set(&mut self, packet: &[u8], packet_len: usize) {
        self.packet.clear();
        self.packet.extend_from_slice(packet);
        self.packet_len = packet_len;
    }

    fn segment(&self) -> Option<Segment<'_>> {
        let packet = IpPacket::parse_captured(&self.packet, self.packet_len).ok()?;
        Segment::of(&packet).ok()
    }
}

#[cfg(test)]
mod tests {
    use wire::{ChecksumMode, Flags, SegmentSpec, SeqNumber};

    use super::*;

    fn packet(payload: &[u8]) -> Vec<u8> {
        let spec = SegmentSpec {
            source: ([192, 0, 2, 1], 40_000).into(),
            destination: ([10, 0, 0, 10], 80).into(),
            seq: SeqNumber(1),
            ack: SeqNumber(1),
            flags: Flags::ACK,
            window: 1,
            options: &[],
            payload,
        };
        let mut packet = Vec::new();
        spec.emit(&mut packet, ChecksumMode::Full).expect("short");
        packet
    }

    fn newest(added: &[(CopyKind, &[u8])]) -> [Option<Vec<u8>>; 2] {
        let key = FlowKey::new(([192, 0, 2, 1], 40_000).into(), ([10, 0, 0, 10], 80).into());
        let mut beginnings = Beginnings::default();
        for (kind, payload) in added {
            let packet = packet(payload);
            beginnings.add(key, *kind, &packet, packet.len());
        }
        let (_, newest) = beginnings.iter().next().expect("a connection");
        [newest.request(), newest.response()].map(|it| it.map(|it| it.payload().to_vec()))
    }

    #[test]
    fn later_request_replaces_both_copies() {
        use CopyKind::{Request, Response};
        let some = |bytes: &[u8]| Some(bytes.to_vec());
        assert_eq!(newest(&[(Response, b"r0")]), [None, some(b"r0")]);
        let turn: [(_, &[u8]); 2] = [(Request, b"q1"), (Response, b"r1")];
        assert_eq!(newest(&turn), [some(b"q1"), some(b"r1")]);
        let later = [&[(Response, &b"r0"[..])], &turn[..], &[(Request, b"q2")]].concat();
        assert_eq!(newest(&later), [some(b"q2"), None]);
    }
}
