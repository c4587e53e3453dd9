use super::{
    DatagramError, KIND_ACK, PACKETS_MAX, PacketSet, nonce_of, transfer_of, u16_at, u32_at,
    write_head,
};

/// Bytes of an acknowledgement without a bitmap.
pub const ACKNOWLEDGEMENT_LEN_MIN: usize = 40;

/// The answer of the receiver to a packet that asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acknowledgement {
    /// Number of the transfer.
    pub transfer: u32,
    /// Number of the acknowledgement: 1, 2, 3 …
    pub number: u32,
    /// The blast of the packet that asked. [`Self::NO_BLAST`]: the answer to a probe, or news of more credit.
    pub blast: u32,
    /// The round of the packet that asked.
    pub round: u16,
    /// Time of sending of the packet that asked, as in the packet. 0: no packet asked.
    pub sent_us: u32,
    /// All blasts below this number are whole.
    pub whole_below: u32,
    /// The receiver takes blasts below this number.
    pub credit: u32,
    /// Packets so far that arrived with a mark of congestion (RFC 3168).
    pub congestion: u32,
    /// Packets so far that the receiver had already.
    pub duplicates: u32,
    /// Packets of the blast that the receiver lacks. An empty set of length 0: the blast, if any, is whole.
    pub missing: PacketSet,
}

impl Acknowledgement {
    /// No blast has this number.
    pub const NO_BLAST: u32 = u32::MAX;

    /// Appends the datagram in this version, without tag.
    pub fn encode(&self, version: u8, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + ACKNOWLEDGEMENT_LEN_MIN, 0);
        let head = &mut out[start..];
        write_head(head, version, KIND_ACK, self.transfer);
        head[8..12].copy_from_slice(&self.number.to_le_bytes());
        head[12..16].copy_from_slice(&self.blast.to_le_bytes());
        head[16..18].copy_from_slice(&self.round.to_le_bytes());
        head[18..20].copy_from_slice(&self.missing.capacity().to_le_bytes());
        head[20..24].copy_from_slice(&self.sent_us.to_le_bytes());
        head[24..28].copy_from_slice(&self.whole_below.to_le_bytes());
        head[28..32].copy_from_slice(&self.credit.to_le_bytes());
        head[32..36].copy_from_slice(&self.congestion.to_le_bytes());
        head[36..40].copy_from_slice(&self.duplicates.to_le_bytes());
        self.missing.write_bytes(out);
    }

    /// Reads a datagram without tag.
    ///
    /// # Errors
    /// [`DatagramError`]: the datagram is no such acknowledgement.
    pub fn decode(datagram: &[u8]) -> Result<Self, DatagramError> {
        let transfer = transfer_of(datagram, KIND_ACK, ACKNOWLEDGEMENT_LEN_MIN)?;
        let (head, bitmap) = datagram.split_at(ACKNOWLEDGEMENT_LEN_MIN);
        let count = u16_at(head, 18);
        if count > PACKETS_MAX {
            return Err(DatagramError::BadField("count"));
        }
        if bitmap.len() != usize::from(count).div_ceil(8) {
            return Err(DatagramError::BadLength(datagram.len()));
        }
        let missing =
            PacketSet::from_bytes(count, bitmap).ok_or(DatagramError::BadField("missing"))?;
        // Each state has one encoding: a whole blast has no bitmap.
        if count > 0 && missing.is_empty() {
            return Err(DatagramError::BadField("missing"));
        }
        Ok(Self {
            transfer,
            number: u32_at(head, 8),
            blast: u32_at(head, 12),
            round: u16_at(head, 16),
            sent_us: u32_at(head, 20),
            whole_below: u32_at(head, 24),
            credit: u32_at(head, 28),
            congestion: u32_at(head, 32),
            duplicates: u32_at(head, 36),
            missing,
        })
    }

    /// A number that no other acknowledgement of the transfer has.
    #[must_use]
    pub fn nonce(&self) -> [u8; 12] {
        nonce_of(self.transfer, self.number, u32::MAX)
    }
}
