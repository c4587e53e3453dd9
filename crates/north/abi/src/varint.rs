//! Numbers in seven bits a byte, lowest first (LEB128).

/// No number takes more bytes.
pub const VARINT_MAX: usize = 10;

/// Write `value` at the beginning of `out`; how many bytes that took.
///
/// # Panics
/// `out` is shorter than the number needs; [`VARINT_MAX`] is enough for any.
pub(crate) fn write(mut value: u64, out: &mut [u8]) -> usize {
    let mut at = 0;
    loop {
        let low = value.to_le_bytes()[0] & 0x7f;
        value >>= 7;
        if value == 0 {
            out[at] = low;
            return at + 1;
        }
        out[at] = low | 0x80;
        at += 1;
    }
}

/// The number that `bytes` begins with, and how many bytes it takes. `None`: it is cut off, is longer than
/// 64 bits, or is not the shortest way to write it (so that equal streams are equal bytes).
pub(crate) fn read(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().take(VARINT_MAX).enumerate() {
        let low = u64::from(byte & 0x7f);
        let shift = 7 * at;
        if (low << shift) >> shift != low {
            return None;
        }
        value |= low << shift;
        if byte & 0x80 == 0 {
            let is_shortest = *byte != 0 || at == 0;
            return is_shortest.then_some((value, at + 1));
        }
    }
    None
}
