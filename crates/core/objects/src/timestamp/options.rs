//! Options of the handshake, in three bits.
//!
//! The paper forgets these values. A member that guesses the client's window scale is wrong by a factor of 128.

/// Window scales that the two bits name. The client's scale is rounded down: the member never sends beyond the
/// client's window.
const WINDOW_SCALES: [u8; 4] = [0, 6, 7, 8];
/// Segment sizes that the bit names, bytes; rounded down, too.
const SEGMENT_SIZES: [u16; 2] = [1300, 1440];

/// The client's window scale and maximum segment size, rounded down. SACK and timestamps are always agreed on: other
/// clients need a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientOptions(u8);

impl ClientOptions {
    /// The options of a client with this window scale and this maximum segment size, bytes. `None` if the segments
    /// are too small for the smallest size.
    #[must_use]
    pub fn new(window_scale: u8, segment_size: u16) -> Option<Self> {
        let scale = rounded_down(&WINDOW_SCALES, window_scale)?;
        let size = rounded_down(&SEGMENT_SIZES, segment_size)?;
        Some(Self((scale << 1) | size))
    }

    /// Shift of the client's window.
    #[must_use]
    pub const fn window_scale(self) -> u8 {
        WINDOW_SCALES[(self.0 >> 1) as usize]
    }

    /// Largest segment to the client, bytes of payload and options.
    #[must_use]
    pub const fn segment_size(self) -> u16 {
        SEGMENT_SIZES[(self.0 & 1) as usize]
    }

    /// 0 to 7, for the program in the kernel.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The options with this number modulo 8.
    #[must_use]
    pub const fn of_number(number: u8) -> Self {
        Self(number & 7)
    }

    /// 3 bits.
    pub(crate) const fn bits(self) -> u32 {
        self.0 as u32
    }

    /// The lowest 3 bits.
    pub(crate) const fn of_bits(bits: u32) -> Self {
        Self((bits & 7) as u8)
    }
}

fn rounded_down<T: PartialOrd>(sizes: &[T], value: T) -> Option<u8> {
    let index = sizes.iter().rposition(|size| *size <= value)?;
    u8::try_from(index).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_rounded_down() {
        let read = |scale, size| {
            let options = ClientOptions::new(scale, size)?;
            let read = ClientOptions::of_bits(options.bits());
            Some((read.window_scale(), read.segment_size()))
        };
        assert_eq!(read(0, 1300), Some((0, 1300)));
        assert_eq!(read(5, 1439), Some((0, 1300)));
        assert_eq!(read(7, 1440), Some((7, 1440)));
        assert_eq!(read(14, 9000), Some((8, 1440)));
        assert_eq!(read(7, 1299), None);
    }
}
