//! Bodies in chunks (RFC 9112, 7.1): where a body ends.

use crate::head::Doubt;

/// Most steps for the bytes of one call of [`Chunks::take`]: a byte between two chunks, or all bytes of a chunk. A
/// server that sends chunks of a few bytes, many at a time, is not followed.
pub const STEP_COUNT_MAX: u32 = 8192;
/// A length with these bits leaves no room for another digit.
const LENGTH_TOP_DIGIT: u64 = 0xf << 60;

/// The reader of a body: the bytes may come in any pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunks {
    next: NextByte,
    /// The length as far as it is read, or the bytes that the chunk still has.
    left: u64,
}

/// The next byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextByte {
    /// The first digit of a length.
    FirstDigit = 1,
    /// A further digit, or the end of the length.
    Digit = 2,
    /// Of an extension.
    Extension = 3,
    /// The end of the line with the length.
    LengthEnd = 4,
    /// Of a chunk.
    Data = 5,
    /// The carriage return behind a chunk.
    DataReturn = 6,
    /// The end of the line behind a chunk.
    DataEnd = 7,
    /// The carriage return of the empty line at the end, or a trailer.
    LastReturn = 8,
    /// The last byte of the body.
    Last = 9,
    /// Behind the body.
    Done = 10,
    /// Of a trailer.
    Trailer = 11,
    /// The end of the line of a trailer.
    TrailerEnd = 12,
}

impl NextByte {
    const ALL: [Self; 12] = [
        Self::FirstDigit,
        Self::Digit,
        Self::Extension,
        Self::LengthEnd,
        Self::Data,
        Self::DataReturn,
        Self::DataEnd,
        Self::LastReturn,
        Self::Last,
        Self::Done,
        Self::Trailer,
        Self::TrailerEnd,
    ];
}

impl Chunks {
    /// Before the first byte of a body.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            next: NextByte::FirstDigit,
            left: 0,
        }
    }

    /// The code of the next byte, from 1 on, and the bytes that are left: as the programs in the kernel have these.
    #[must_use]
    pub const fn parts(&self) -> (u8, u64) {
        (self.next as u8, self.left)
    }

    /// `None`: an unknown code.
    #[must_use]
    pub fn of_parts(code: u8, left: u64) -> Option<Self> {
        let next = NextByte::ALL.get(usize::from(code).checked_sub(1)?)?;
        Some(Self { next: *next, left })
    }

    /// Whether the last byte of the body was read.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.next == NextByte::Done
    }

    /// Reads bytes that follow the bytes before, at most to the end of the body. Returns the number of the bytes that
    /// belong to the body.
    ///
    /// # Errors
    /// The bytes are no chunks: [`Doubt::Malformed`], [`Doubt::BareLineFeed`]. The bytes need more than
    /// [`STEP_COUNT_MAX`] steps: [`Doubt::TooLong`].
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, Doubt> {
        let (taken, result) = self.take_some(bytes);
        result.map(|()| taken)
    }

    /// The same. Returns the number of the bytes that were read, also before a byte that is in doubt.
    pub fn take_some(&mut self, bytes: &[u8]) -> (usize, Result<(), Doubt>) {
        let mut at = 0;
        for _ in 0..STEP_COUNT_MAX {
            let Some(byte) = bytes.get(at).filter(|_| !self.is_done()) else {
                return (at, Ok(()));
            };
            if self.next == NextByte::Data {
                let len = bytes.len() - at;
                let len = usize::try_from(self.left).map_or(len, |left| left.min(len));
                self.left -= u64::try_from(len).unwrap_or(self.left);
                at += len;
                if self.left == 0 {
                    self.next = NextByte::DataReturn;
                }
                continue;
            }
            if let Err(doubt) = self.step(*byte) {
                return (at, Err(doubt));
            }
            at += 1;
        }
        match at == bytes.len() || self.is_done() {
            true => (at, Ok(())),
            false => (at, Err(Doubt::TooLong)),
        }
    }

    /// A byte that is not of a chunk.
    fn step(&mut self, byte: u8) -> Result<(), Doubt> {
        self.next = match (self.next, byte) {
            (NextByte::FirstDigit | NextByte::Digit, _) if byte.is_ascii_hexdigit() => {
                if self.left & LENGTH_TOP_DIGIT != 0 {
                    return Err(Doubt::Malformed);
                }
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                self.left = self.left << 4 | u64::from(digit);
                NextByte::Digit
            }
            (NextByte::Digit, b';' | b' ' | b'\t') => NextByte::Extension,
            (NextByte::Digit | NextByte::Extension, b'\r') => NextByte::LengthEnd,
            (NextByte::Extension | NextByte::Trailer | NextByte::LastReturn, b'\n') => {
                return Err(Doubt::BareLineFeed);
            }
            (NextByte::Extension, _) => NextByte::Extension,
            (NextByte::LengthEnd, b'\n') if self.left == 0 => NextByte::LastReturn,
            (NextByte::LengthEnd, b'\n') => NextByte::Data,
            (NextByte::DataReturn, b'\r') => NextByte::DataEnd,
            (NextByte::DataEnd, b'\n') => NextByte::FirstDigit,
            (NextByte::LastReturn, b'\r') => NextByte::Last,
            (NextByte::Trailer, b'\r') => NextByte::TrailerEnd,
            (NextByte::LastReturn | NextByte::Trailer, _) => NextByte::Trailer,
            (NextByte::TrailerEnd, b'\n') => NextByte::LastReturn,
            (NextByte::Last, b'\n') => NextByte::Done,
            _ => return Err(Doubt::Malformed),
        };
        Ok(())
    }
}

impl Default for Chunks {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn body(chunks: &[Vec<u8>], extension: &str, trailers: &str) -> Vec<u8> {
        let mut body = Vec::new();
        for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
            body.extend(std::format!("{:x}{extension}\r\n", chunk.len()).bytes());
            body.extend(chunk);
            body.extend(b"\r\n");
        }
        body.extend(std::format!("0{extension}\r\n{trailers}\r\n").bytes());
        body
    }

    proptest! {
        #[test]
        fn end_of_a_body_is_found_however_the_bytes_come(
            chunks in prop::collection::vec(prop::collection::vec(prop::sample::select(b"\r\n0a;".to_vec()), 0..40), 0..6),
            extension in prop::sample::select(vec!["", ";a=b", " "]),
            trailers in prop::sample::select(vec!["", "A: b\r\n", "A: b\r\n0\r\n"]),
            behind in prop::collection::vec(any::<u8>(), 0..9),
            cuts in prop::collection::vec(1_usize..20, 1..20),
        ) {
            let body = body(&chunks, extension, trailers);
            let bytes = [&body[..], &behind].concat();
            let (mut reader, mut at) = (Chunks::new(), 0);
            for cut in cuts.iter().cycle() {
                let piece = &bytes[at..(at + cut).min(bytes.len())];
                let taken = reader.take(piece).unwrap();
                at += taken;
                prop_assert_eq!(reader.is_done(), at == body.len());
                if taken < piece.len() || at == bytes.len() {
                    break;
                }
            }
            prop_assert_eq!(at, body.len());
            prop_assert!(reader.is_done());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            crate::properties::chunks(&bytes);
        }
    }

    #[test]
    fn bytes_that_are_no_chunks_are_refused() {
        let lines = [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "1 \n",
            "1\n",
            "1\r\nab",
            "1\r\na\n",
            "0\r\nA: b\n",
            "0\r\n\n",
            "10000000000000000\r\n",
        ];
        for line in lines {
            assert!(Chunks::new().take(line.as_bytes()).is_err(), "{line:?}");
        }
        assert_eq!(Chunks::new().take(b"ffffffffffffffff\r\n"), Ok(18));
    }

    #[test]
    fn body_of_many_short_chunks_is_refused() {
        let short = b"1\r\na\r\n".repeat(5000);
        assert_eq!(Chunks::new().take(&short), Err(Doubt::TooLong));
        let mut reader = Chunks::new();
        for piece in short.chunks(6000) {
            assert_eq!(reader.take(piece), Ok(piece.len()));
        }
    }

    #[test]
    fn codes_are_read_as_written() {
        for next in NextByte::ALL {
            let reader = Chunks { next, left: 7 };
            let (code, left) = reader.parts();
            assert_eq!(Chunks::of_parts(code, left), Some(reader));
        }
        assert_eq!(Chunks::of_parts(0, 0), None);
        assert_eq!(Chunks::of_parts(13, 0), None);
    }
}
