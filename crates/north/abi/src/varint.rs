//! Numbers in seven bits a byte, lowest first (LEB128).

/// Most bytes of a number.
pub const VARINT_MAX: usize = 10;

/// Writes `value` at the beginning of `out`. Returns the number of bytes.
///
/// # Panics
/// `out` is shorter than the number; [`VARINT_MAX`] bytes are always enough.
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

/// The number at the beginning of `bytes`, and the number of bytes. `None`: the number is cut off, longer than 64
/// bits, or not encoded in the shortest way (equal streams must be equal bytes).
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
