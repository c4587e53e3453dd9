use super::{
    DatagramError, KIND_PACKET, PACKETS_MAX, nonce_of, transfer_of, u16_at, u32_at, write_head,
};

/// Bytes of the header of a packet.
pub const PACKET_HEADER_LEN: usize = 24;

const FLAG_ASKS: u16 = 1;

/// The header of a packet of a blast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketHeader {
    /// Number of the transfer, chosen by the receiver.
    pub transfer: u32,
    /// Number of the blast in the transfer.
    pub blast: u32,
    /// Number of the packet in the blast.
    pub packet: u16,
    /// Packets of the blast; 0 in a probe.
    pub count: u16,
    /// How often the sender has begun to send packets of this blast before. Of a probe: the number of the probe.
    pub round: u16,
    /// The receiver is to acknowledge: the last packet of a round.
    pub asks: bool,
    /// Low bits of the time of sending by the sender's clock, µs.
    pub sent_us: u32,
}

impl PacketHeader {
    /// Writes the header of a packet in this version.
    #[must_use]
    pub fn encode(&self, version: u8) -> [u8; PACKET_HEADER_LEN] {
        let mut out = [0; PACKET_HEADER_LEN];
        write_head(&mut out, version, KIND_PACKET, self.transfer);
        out[8..12].copy_from_slice(&self.blast.to_le_bytes());
        out[12..14].copy_from_slice(&self.packet.to_le_bytes());
        out[14..16].copy_from_slice(&self.count.to_le_bytes());
        out[16..18].copy_from_slice(&self.round.to_le_bytes());
        let flags = if self.asks { FLAG_ASKS } else { 0 };
        out[18..20].copy_from_slice(&flags.to_le_bytes());
        out[20..24].copy_from_slice(&self.sent_us.to_le_bytes());
        out
    }

    /// Reads the header at the beginning of a datagram.
    ///
    /// # Errors
    /// [`DatagramError`]: the datagram does not begin with such a header.
    pub fn decode(datagram: &[u8]) -> Result<Self, DatagramError> {
        let transfer = transfer_of(datagram, KIND_PACKET, PACKET_HEADER_LEN)?;
        let header = Self {
            transfer,
            blast: u32_at(datagram, 8),
            packet: u16_at(datagram, 12),
            count: u16_at(datagram, 14),
            round: u16_at(datagram, 16),
            asks: u16_at(datagram, 18) & FLAG_ASKS != 0,
            sent_us: u32_at(datagram, 20),
        };
        if u16_at(datagram, 18) & !FLAG_ASKS != 0 {
            return Err(DatagramError::BadField("flags"));
        }
        if header.count > PACKETS_MAX {
            return Err(DatagramError::BadField("count"));
        }
        let is_possible = match header.is_probe() {
            true => header.packet == 0 && header.asks,
            false => header.packet < header.count,
        };
        if !is_possible {
            return Err(DatagramError::BadField("packet"));
        }
        Ok(header)
    }

    /// The packet has no payload: the sender only asks.
    #[must_use]
    pub const fn is_probe(&self) -> bool {
        self.count == 0
    }

    /// A number that no other packet of the transfer has, as long as the sender raises rounds. Probes have the packet
    /// number 65,535 here, so a probe differs from each packet of its blast.
    #[must_use]
    pub fn nonce(&self) -> [u8; 12] {
        let packet = if self.is_probe() {
            u16::MAX
        } else {
            self.packet
        };
        let low = u32::from(packet) | u32::from(self.round) << 16;
        nonce_of(self.transfer, self.blast, low)
    }
}
