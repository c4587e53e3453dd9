//! The bytes of a segment.

use crc32fast::Hasher;

const MAGIC: [u8; 8] = *b"OUTLSEGM";
/// Version of the frames and of the logger's entries. The feature `next-version` raises the version.
pub const VERSION: u32 = OLDEST + cfg!(feature = "next-version") as u32;

/// The oldest version that this program reads. No older version was published.
pub const OLDEST: u32 = 6;

/// The format, for lists of versions.
pub const FORMAT: types::Format = types::Format {
    name: "files of the durable log",
    version: VERSION,
    oldest: OLDEST,
};

/// The length of a segment's header.
pub(crate) const HEADER: usize = 32;
/// The length of a record's header: length and checksum.
pub(crate) const RECORD_HEADER: usize = 8;
/// The length of a seal.
pub(crate) const SEAL: usize = RECORD_HEADER + 8;
/// Marks a seal in the place of a record's length.
const SEALED: u32 = u32::MAX;

/// A header that does not belong to the segment with this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadHeader {
    /// Cut short or damaged: no record of this segment was ever committed.
    Torn,
    /// An unknown version.
    Version(u32),
}

/// The header of a new segment.
pub(crate) fn header(number: u64) -> [u8; HEADER] {
    header_of(VERSION, number)
}

/// The header of a segment of a version.
pub(crate) fn header_of(version: u32, number: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&version.to_le_bytes());
    header[16..24].copy_from_slice(&number.to_le_bytes());
    let checksum = crc32fast::hash(&header[..28]);
    header[28..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Checks the header of a segment. Returns the version of the segment.
pub(crate) fn check_header(bytes: &[u8], number: u64) -> Result<u32, BadHeader> {
    let found: &[u8; HEADER] = bytes.first_chunk().ok_or(BadHeader::Torn)?;
    let version = u32_at(found, 8);
    let is_read = (OLDEST..=VERSION).contains(&version);
    if is_read && *found == header_of(version, number) {
        return Ok(version);
    }
    let whole = crc32fast::hash(&found[..28]) == u32_at(found, 28);
    if whole && found.starts_with(&MAGIC) && !is_read {
        return Err(BadHeader::Version(version));
    }
    Err(BadHeader::Torn)
}

/// The header of a record with these bytes at `place` in a segment.
pub(crate) fn record_header(number: u64, place: u64, bytes: &[u8]) -> [u8; RECORD_HEADER] {
    // A batch takes no longer records.
    let len = u32::try_from(bytes.len()).unwrap_or(SEALED);
    with_checksum(number, place, len, bytes)
}

/// The seal of a segment that ends at `place`.
pub(crate) fn seal(number: u64, place: u64) -> [u8; SEAL] {
    let mut seal = [0; SEAL];
    let bytes = place.to_le_bytes();
    seal[..RECORD_HEADER].copy_from_slice(&with_checksum(number, place, SEALED, &bytes));
    seal[RECORD_HEADER..].copy_from_slice(&bytes);
    seal
}

fn with_checksum(number: u64, place: u64, len: u32, bytes: &[u8]) -> [u8; RECORD_HEADER] {
    let mut hasher = Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(&place.to_le_bytes());
    hasher.update(&len.to_le_bytes());
    hasher.update(bytes);
    let mut header = [0; RECORD_HEADER];
    header[..4].copy_from_slice(&len.to_le_bytes());
    header[4..].copy_from_slice(&hasher.finalize().to_le_bytes());
    header
}

/// The bytes of the record at `place`; `None` without a whole record.
pub(crate) fn record_at(segment: &[u8], number: u64, place: usize) -> Option<&[u8]> {
    let (header, rest) = segment.get(place..)?.split_first_chunk::<RECORD_HEADER>()?;
    let len = usize::try_from(u32_at(header, 0)).ok()?;
    let bytes = rest.get(..len)?;
    let place = u64::try_from(place).ok()?;
    (record_header(number, place, bytes) == *header).then_some(bytes)
}

/// The place of the seal at the end of a segment; `None` if the segment is not sealed.
pub(crate) fn sealed_at(segment: &[u8], number: u64) -> Option<usize> {
    let place = segment.len().checked_sub(SEAL)?;
    let expected = seal(number, u64::try_from(place).ok()?);
    (segment[place..] == expected).then_some(place)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}
