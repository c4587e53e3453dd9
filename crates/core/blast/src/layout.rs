use protocol::blast::PACKETS_MAX;

/// Names a packet of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketId {
    /// Number of the blast in the transfer.
    pub blast: u32,
    /// Number of the packet in the blast.
    pub packet: u16,
}

/// Bytes of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Position of the first byte in the transfer.
    pub position: u64,
    /// Bytes.
    pub len: usize,
}

/// Sizes that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A packet is empty, or larger than a datagram.
    #[error("a packet has 1 to {most} bytes, not {0}", most = Layout::PACKET_BYTES_MAX)]
    PacketBytes(u32),
    /// A blast is empty, or has too many packets.
    #[error("a blast has 1 to {PACKETS_MAX} packets, not {0}")]
    Packets(u32),
    /// More blasts than numbers.
    #[error("{0} bytes are too many for blasts of {1} bytes: choose larger blasts")]
    Size(u64, u64),
}

/// Sizes of a transfer's packets and blasts. Only the last packet of the transfer may be shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    packet_bytes: u32,
    packets: u16,
}

impl Layout {
    /// Most bytes of payload: a UDP datagram has 65,507 bytes at most, with header and tag.
    pub const PACKET_BYTES_MAX: u32 = 65_000;

    /// Packets with a payload of `packet_bytes` each, `packets` in a blast.
    ///
    /// # Errors
    /// A number is out of range.
    pub fn new(packet_bytes: u32, packets: u32) -> Result<Self, LayoutError> {
        if !(1..=Self::PACKET_BYTES_MAX).contains(&packet_bytes) {
            return Err(LayoutError::PacketBytes(packet_bytes));
        }
        match u16::try_from(packets) {
            Ok(packets @ 1..=PACKETS_MAX) => Ok(Self {
                packet_bytes,
                packets,
            }),
            _ => Err(LayoutError::Packets(packets)),
        }
    }

    /// Payload of each packet but the last of the transfer, bytes.
    #[must_use]
    pub const fn packet_bytes(&self) -> u32 {
        self.packet_bytes
    }

    /// Packets of each blast but the last of the transfer.
    #[must_use]
    pub const fn packets(&self) -> u16 {
        self.packets
    }

    /// Bytes of each blast but the last of the transfer.
    #[must_use]
    pub fn blast_bytes(&self) -> u64 {
        u64::from(self.packet_bytes) * u64::from(self.packets)
    }

    /// Number of blasts of a transfer of `size` bytes.
    ///
    /// # Errors
    /// More than 2³² − 1.
    pub fn blasts(&self, size: u64) -> Result<u32, LayoutError> {
        let blasts = size.div_ceil(self.blast_bytes());
        u32::try_from(blasts).map_err(|_| LayoutError::Size(size, self.blast_bytes()))
    }

    /// Position of the first byte of a blast in the transfer.
    #[must_use]
    pub fn blast_position(&self, blast: u32) -> u64 {
        u64::from(blast) * self.blast_bytes()
    }

    /// Position of the first byte of a packet in the transfer.
    #[must_use]
    pub fn position(&self, id: PacketId) -> u64 {
        self.blast_position(id.blast) + u64::from(id.packet) * u64::from(self.packet_bytes)
    }

    /// Bytes of a blast of a transfer of `size` bytes; 0 behind the end.
    #[must_use]
    pub fn blast_len(&self, blast: u32, size: u64) -> u64 {
        let rest = size.saturating_sub(self.blast_position(blast));
        rest.min(self.blast_bytes())
    }

    /// The payload of a packet of a transfer of `size` bytes; empty behind the end.
    pub(crate) fn extent(&self, id: PacketId, size: u64) -> Extent {
        let len = self.packet_len(id.packet, self.blast_len(id.blast, size));
        Extent {
            position: self.position(id),
            len: usize::try_from(len).unwrap_or(0),
        }
    }

    /// Packets of a blast of `len` bytes.
    #[must_use]
    pub fn packets_of(&self, len: u64) -> u16 {
        let packets = len.div_ceil(u64::from(self.packet_bytes));
        u16::try_from(packets).map_or(self.packets, |packets| packets.min(self.packets))
    }

    /// Payload of a packet of a blast of `len` bytes.
    pub(crate) fn packet_len(&self, packet: u16, len: u64) -> u32 {
        let before = u64::from(packet) * u64::from(self.packet_bytes);
        let rest = len.saturating_sub(before);
        u32::try_from(rest).map_or(self.packet_bytes, |rest| rest.min(self.packet_bytes))
    }
}
