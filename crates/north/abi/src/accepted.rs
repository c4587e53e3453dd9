//! Identity of an accepted connection.

/// Which one of those that have the same ends, one after another. Ordered: who knows is after who does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Which {
    /// Nobody knows: the kernel has kept no SYN (it does not under a flood of them).
    #[default]
    Unknown,
    /// A client's, by the sequence number of its SYN (RFC 9293, 3.4.1: no two of the same ends have the same within
    /// minutes).
    Isn(u32),
    /// One that the server has opened, by its number in the data plane, below 2^62.
    Flow(u64),
}

const ISN_FLAG: u64 = 1 << 62;
const FLOW_FLAG: u64 = 1 << 63;

impl Which {
    /// As one number.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        match self {
            Self::Unknown => 0,
            Self::Isn(isn) => ISN_FLAG | u64::from(isn),
            Self::Flow(flow) => FLOW_FLAG | flow,
        }
    }

    /// From that.
    #[must_use]
    pub fn from_u64(number: u64) -> Self {
        if number & FLOW_FLAG != 0 {
            Self::Flow(number & !FLOW_FLAG)
        } else {
            u32::try_from(number ^ ISN_FLAG).map_or(Self::Unknown, Self::Isn)
        }
    }

    /// The client's whose SYN this is, from its IP header on.
    #[must_use]
    pub fn of_syn(packet: &[u8]) -> Self {
        let isn = || {
            let first = packet.first()?;
            let header = match (first >> 4, usize::from(first & 15) * 4) {
                (4, length @ 20..) if packet.get(9) == Some(&TCP) => length,
                // What is in between, if anything, the kernel does not skip for us.
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

/// A connection, as the record of its arrival tells it: `u8` bytes of the peer's address | u64 which | the peer's
/// address | the server's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptedConnection<'a> {
    /// Which.
    pub which: Which,
    /// The peer's `sockaddr`, at most 255 bytes.
    pub peer: &'a [u8],
    /// The server's.
    pub local: &'a [u8],
}

const ACCEPTED_HEADER_BYTES: usize = 9;

impl<'a> AcceptedConnection<'a> {
    /// Bytes that it takes.
    #[must_use]
    pub fn length(&self) -> usize {
        ACCEPTED_HEADER_BYTES + self.peer.len() + self.local.len()
    }

    /// Into a record of this length. What there is no room for is left out.
    pub fn write(&self, room: &mut [u8]) {
        let length = u8::try_from(self.peer.len()).unwrap_or(u8::MAX);
        let which = self.which.to_u64().to_le_bytes();
        let parts = [&[length][..], &which, self.peer, self.local];
        for (out, byte) in room.iter_mut().zip(parts.into_iter().flatten()) {
            *out = *byte;
        }
    }

    /// From a record's payload; `None`: it is none.
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
