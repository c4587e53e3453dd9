//! Identity of an accepted connection.

/// Tells connections with the same ends apart, which follow each other. Ordered: an unknown connection is before a
/// known connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Which {
    /// The kernel has kept no SYN (under a flood of SYNs the kernel keeps none).
    #[default]
    Unknown,
    /// A client's connection, by the sequence number of the SYN (RFC 9293, 3.4.1: no two connections of the same ends
    /// have the same number within minutes).
    Isn(u32),
    /// A connection that the server opened, by the number in the data plane, below 2^62.
    Flow(u64),
}

const ISN_FLAG: u64 = 1 << 62;
const FLOW_FLAG: u64 = 1 << 63;

impl Which {
    /// Encodes the value in one number.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        match self {
            Self::Unknown => 0,
            Self::Isn(isn) => ISN_FLAG | u64::from(isn),
            Self::Flow(flow) => FLOW_FLAG | flow,
        }
    }

    /// Decodes the number of [`Self::to_u64`].
    #[must_use]
    pub fn from_u64(number: u64) -> Self {
        if number & FLOW_FLAG != 0 {
            Self::Flow(number & !FLOW_FLAG)
        } else {
            u32::try_from(number ^ ISN_FLAG).map_or(Self::Unknown, Self::Isn)
        }
    }

    /// The connection of a client from the packet with the client's SYN, which begins with the IP header.
    #[must_use]
    pub fn of_syn(packet: &[u8]) -> Self {
        let isn = || {
            let first = packet.first()?;
            let header = match (first >> 4, usize::from(first & 15) * 4) {
                (4, length @ 20..) if packet.get(9) == Some(&TCP) => length,
                // The kernel skips no extension header between the IP and TCP headers for us.
                (6, _) if packet.get(6) == Some(&TCP) => 40,
                _ => return None,
            };
            let tcp = packet.get(header..)?;
            let is_syn = tcp.get(13)? & (SYN | ACK) == SYN;
            let isn = tcp.get(4..)?.first_chunk().filter(|_| is_syn)?;
            Some(u32::from_be_bytes(*isn))
        };
        isn().map_or(Self::Unknown, Self::Isn)
    }
}

/// `IPPROTO_TCP`.
const TCP: u8 = 6;
const SYN: u8 = 2;
const ACK: u8 = 16;

/// A connection in the record of its arrival: `u8` length of the peer's address | u64 which | the peer's address |
/// the server's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptedConnection<'a> {
    /// Identity among connections with the same ends.
    pub which: Which,
    /// The peer's `sockaddr`, at most 255 bytes.
    pub peer: &'a [u8],
    /// The server's `sockaddr`.
    pub local: &'a [u8],
}

const ACCEPTED_HEADER_BYTES: usize = 9;

impl<'a> AcceptedConnection<'a> {
    /// Encoded length, bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        ACCEPTED_HEADER_BYTES + self.peer.len() + self.local.len()
    }

    /// Writes the payload of a record. Bytes beyond the end of `room` are left out.
    pub fn write(&self, room: &mut [u8]) {
        let length = u8::try_from(self.peer.len()).unwrap_or(u8::MAX);
        let which = self.which.to_u64().to_le_bytes();
        let parts = [&[length][..], &which, self.peer, self.local];
        for (out, byte) in room.iter_mut().zip(parts.into_iter().flatten()) {
            *out = *byte;
        }
    }

    /// From a record's payload. `None`: the payload is no connection.
    #[must_use]
    pub fn read(payload: &'a [u8]) -> Option<Self> {
        let (length, rest) = payload.split_first()?;
        let (which, rest) = rest.split_first_chunk()?;
        let (peer, local) = rest.split_at_checked(usize::from(*length))?;
        Some(Self {
            which: Which::from_u64(u64::from_le_bytes(*which)),
            peer,
            local,
        })
    }
}
