//! The head of all kinds but SEGMENT:
//!
//! | offset | field | |
//! |---|---|---|
//! | 0 | magic `u32` | `f1 4f 4c 6b` |
//! | 4 | version `u8` | the agreed version of the link |
//! | 5 | kind `u8` | 1 OPEN, 3 ACK, 4 PROBE, 5 PROBED, 6 DETERMINANTS, 7 STABLE |
//! | 6 | slot `u8` | that of the key of the tag |
//! | 7 | count `u8` | of ACK: ranges; of DETERMINANTS and STABLE: see there; else 0 |
//! | 8 | mode `u8` | [`Mode`] |
//! | 9 | options `u8` | length of options between body and tag, in units of 8 bytes: 0 in all kinds of version 8 |
//! | 10 | zeros | 6 bytes |
//! | 16 | flow_id `u64` | of OPEN and ACK; of DETERMINANTS and STABLE: see there; else 0 |
//! | 24 | counter `u64` | of all but OPEN; there 0 |

use wire::FlowId;

use super::{KeySet, KeySlot, Kind, LinkError, LinkKey, Mode, VERSIONS};

/// The first four bytes, read as a little-endian number. No IP version begins with these bytes.
pub const MAGIC: u32 = 0x6b4c_4ff1;

/// The length of the head, in bytes.
pub(super) const HEAD_LEN: usize = 32;
/// Where the number of the connection is.
pub(super) const AT_FLOW: usize = 16;
const AT_COUNTER: usize = 24;
/// The length of a tag, in bytes.
pub(super) const TAG_LEN: usize = 8;

/// The fields of the head.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) version: u8,
    pub(super) slot: KeySlot,
    pub(super) count: u8,
    pub(super) flow: FlowId,
    pub(super) counter: u64,
}

impl Head {
    /// Writes the head to the beginning of `datagram`, which is long enough.
    pub(super) fn write(&self, kind: Kind, datagram: &mut [u8]) {
        datagram[..4].copy_from_slice(&MAGIC.to_le_bytes());
        datagram[4] = self.version;
        datagram[5] = code(kind);
        datagram[6] = self.slot.number();
        datagram[7] = self.count;
        datagram[8] = Mode::Replay as u8;
        datagram[9] = options(kind, self.version);
        datagram[AT_FLOW..AT_COUNTER].copy_from_slice(&self.flow.0.to_le_bytes());
        datagram[AT_COUNTER..HEAD_LEN].copy_from_slice(&self.counter.to_le_bytes());
    }

    /// Parses the head, if the `N` bytes of `datagram` are of this kind and the tag at the end was
    /// made with a key of `keys`.
    pub(super) fn read<const N: usize>(
        expected: Kind,
        datagram: &[u8; N],
        keys: &KeySet,
    ) -> Result<Self, LinkError> {
        Self::read_any(expected, datagram, keys)
    }

    /// The same of a kind that can have any length, from head and tag on.
    pub(super) fn read_any(
        expected: Kind,
        datagram: &[u8],
        keys: &KeySet,
    ) -> Result<Self, LinkError> {
        let found = kind(datagram)?;
        if found != expected {
            return Err(LinkError::UnknownKind(code(found)));
        }
        let slot = KeySlot::from_number(datagram[6]).ok_or(LinkError::BadField("slot"))?;
        let Some((_, [found_options, zeros @ ..])) = datagram[..AT_FLOW].split_at_checked(9) else {
            return Err(LinkError::BadLength(datagram.len()));
        };
        if *found_options != options(found, datagram[4]) || zeros.iter().any(|zero| *zero != 0) {
            return Err(LinkError::BadField("options"));
        }
        let signed = datagram.len() - TAG_LEN;
        if !keys.verify(slot, &datagram[..signed], u64_at(datagram, signed)) {
            return Err(LinkError::BadTag);
        }
        Ok(Self {
            version: datagram[4],
            slot,
            count: datagram[7],
            flow: FlowId(u64_at(datagram, AT_FLOW)),
            counter: u64_at(datagram, AT_COUNTER),
        })
    }
}

/// The length of the options of a kind, in units of 8 bytes. The next version has options in PROBED, for tests.
pub(super) const fn options(kind: Kind, version: u8) -> u8 {
    let has = matches!(kind, Kind::Probed) && version > VERSIONS.oldest();
    (cfg!(feature = "next-version") && has) as u8
}

/// Writes the tag of all other bytes to the end of `datagram`.
pub(super) fn sign(datagram: &mut [u8], key: &LinkKey) {
    let signed = datagram.len() - TAG_LEN;
    let tag = key.tag(&datagram[..signed]);
    datagram[signed..].copy_from_slice(&tag.to_le_bytes());
}

/// The kind that the head says.
pub(super) fn kind(datagram: &[u8]) -> Result<Kind, LinkError> {
    let Some([a, b, c, d, version, kind, _, _, mode]) = datagram.first_chunk() else {
        return Err(LinkError::BadLength(datagram.len()));
    };
    let magic = u32::from_le_bytes([*a, *b, *c, *d]);
    if magic != MAGIC {
        return Err(LinkError::BadMagic(magic));
    }
    if !VERSIONS.contains(*version) {
        return Err(LinkError::UnknownVersion(*version));
    }
    Mode::from_number(*mode)?;
    match kind {
        1 => Ok(Kind::Open),
        3 => Ok(Kind::Ack),
        4 => Ok(Kind::Probe),
        5 => Ok(Kind::Probed),
        6 => Ok(Kind::Determinants),
        7 => Ok(Kind::Stable),
        _ => Err(LinkError::UnknownKind(*kind)),
    }
}

/// The number of a kind; a SEGMENT has no head, and a number that no head has.
const fn code(kind: Kind) -> u8 {
    match kind {
        Kind::Segment => 0,
        Kind::Open => 1,
        Kind::Ack => 3,
        Kind::Probe => 4,
        Kind::Probed => 5,
        Kind::Determinants => 6,
        Kind::Stable => 7,
    }
}

/// The field at `at`; the callers have checked the length.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

/// The field at `at`; the callers have checked the length.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}
