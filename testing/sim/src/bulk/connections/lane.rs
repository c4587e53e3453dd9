//! A connection: the sender's end, the sockets of both hosts, the receiver's end.

use std::collections::VecDeque;

use blast::{
    Layout,
    connections::{Arrivals, Reading, StreamError, packets_in},
};
use protocol::blast::{DATAGRAM_VERSION, PACKET_HEADER_LEN, TAG_LEN};

use super::{super::source_byte, Broken, file::ReceivedFile, scenario::ConnectionScenario};
use crate::failure::Seeded as _;

/// The sender's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LaneState {
    /// The connection is not made yet.
    Waiting,
    /// The connection cannot be made.
    Refused,
    Open,
    /// The sender has sent all, and has ended the connection; or the network has.
    Finished,
}

pub(super) struct Lane {
    pub(super) state: LaneState,
    /// Bytes of a blast that the socket has not taken.
    outgoing: VecDeque<u8>,
    socket: VecDeque<u8>,
    reading: Reading,
    payload: Vec<u8>,
    /// Bytes of a blast were lost with the connection.
    pub(super) is_short: bool,
    /// The receiver has refused a byte.
    pub(super) refusal: Option<StreamError>,
    /// The receiver reads no more.
    pub(super) is_over: bool,
}

impl Lane {
    pub(super) fn new(layout: Layout) -> Self {
        let packet_len = usize::try_from(layout.packet_bytes()).unwrap_or(0);
        Self {
            state: LaneState::Waiting,
            outgoing: VecDeque::new(),
            socket: VecDeque::new(),
            reading: Reading::new(),
            payload: vec![0; packet_len],
            is_short: false,
            refusal: None,
            is_over: false,
        }
    }

    /// The sender has written the blast before.
    pub(super) fn wants_blast(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// The sender begins a blast. Returns the nonces of its packets.
    pub(super) fn begin(&mut self, scenario: &ConnectionScenario, blast: u32) -> Vec<[u8; 12]> {
        let mut nonces = Vec::new();
        for (header, payload) in packets_in(scenario.layout, scenario.size, blast) {
            let len = u64::try_from(payload.len).unwrap_or(0);
            let positions = payload.position..payload.position + len;
            let bytes = positions.map(|at| source_byte(scenario.seed(), at));
            let bytes: Vec<u8> = bytes.collect();
            let head = header.encode(DATAGRAM_VERSION);
            self.outgoing.extend(head);
            self.outgoing.extend(&bytes);
            self.outgoing.extend(tag_of(&head, &bytes));
            nonces.push(header.nonce());
        }
        nonces
    }

    /// The socket takes bytes.
    pub(super) fn write(&mut self, scenario: &ConnectionScenario, most: usize) {
        let space = scenario.socket_bytes.saturating_sub(self.socket.len());
        let len = most.min(space).min(self.outgoing.len());
        self.socket.extend(self.outgoing.drain(..len));
    }

    /// The connection ends, with so many of the bytes that are under way.
    pub(super) fn cut(&mut self, len: usize) {
        self.is_short |= len < self.socket.len() || !self.outgoing.is_empty();
        self.socket.truncate(len);
        self.outgoing.clear();
        self.state = LaneState::Finished;
    }

    /// Bytes that are under way.
    pub(super) fn under_way(&self) -> usize {
        self.socket.len()
    }

    /// The receiver reads.
    pub(super) fn read(
        &mut self,
        most: usize,
        arrivals: &mut Arrivals,
        file: &mut ReceivedFile,
    ) -> Result<(), Broken> {
        if self.socket.is_empty() {
            self.is_over |= self.state == LaneState::Finished;
        }
        let mut left = most;
        while left > 0 && !self.socket.is_empty() && !self.is_over {
            let len = self.reading.payload().map_or(0, |payload| payload.len);
            let mut taken = 0;
            for place in &mut self.reading.places(&mut self.payload[..len]) {
                let count = place.len().min(left - taken).min(self.socket.len());
                for (to, from) in place.iter_mut().zip(self.socket.drain(..count)) {
                    *to = from;
                }
                taken += count;
            }
            left -= taken;
            let refusal = match self.reading.advance(taken, arrivals) {
                Ok(false) => None,
                Ok(true) => self.accept(arrivals, file)?,
                Err(error) => Some(error),
            };
            self.is_over |= refusal.is_some();
            self.refusal = refusal;
        }
        Ok(())
    }

    /// The connection ended.
    pub(super) fn end(&self) -> Result<(), StreamError> {
        self.reading.end()
    }

    fn accept(
        &mut self,
        arrivals: &mut Arrivals,
        file: &mut ReceivedFile,
    ) -> Result<Option<StreamError>, Broken> {
        let (Some(payload), Some((header, head, tag))) =
            (self.reading.payload(), self.reading.packet())
        else {
            return Err(Broken("a packet is there, and none is".to_owned()));
        };
        let bytes = &self.payload[..payload.len];
        if tag != tag_of(head, bytes) {
            return Err(Broken(format!("{header:?} has the tag of another packet")));
        }
        file.write(payload, bytes)?;
        Ok(self.reading.accept(arrivals).err())
    }
}

/// Depends on header and payload.
fn tag_of(head: &[u8; PACKET_HEADER_LEN], payload: &[u8]) -> [u8; TAG_LEN] {
    let mut tag = [0_u8; TAG_LEN];
    for (at, byte) in head.iter().chain(payload).enumerate() {
        let place = &mut tag[at % TAG_LEN];
        *place = place.wrapping_mul(31).wrapping_add(*byte);
    }
    tag
}
