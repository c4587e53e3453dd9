//! Records in bytes that end anywhere.

use std::io;

use north_abi::{DecodeError, Record};

use crate::Memory;

/// Looks at each of the whole records that `bytes` begins with, and where it is. Tells how long they are together.
///
/// # Errors
/// What follows them is no record, nor the beginning of one.
pub(crate) fn each_whole(
    bytes: &[u8],
    mut look: impl FnMut(usize, &Record<'_>),
) -> Result<usize, DecodeError> {
    let mut whole = 0;
    loop {
        match Record::read(&bytes[whole..]) {
            Ok((record, length)) => {
                look(whole, &record);
                whole += length;
            }
            Err(DecodeError::CutOff) => return Ok(whole),
            Err(error) => return Err(error),
        }
    }
}

/// How much is read at a time, bytes.
const PIECE: usize = 1 << 20;

/// Each record of a stream, with where it begins; `from` is where one does.
pub(crate) fn each(
    memory: &Memory,
    process: u32,
    from: u64,
    mut look: impl FnMut(u64, &Record<'_>),
) -> io::Result<()> {
    let length = memory.length(process);
    let (mut bytes, mut begins, mut read) = (Vec::new(), from, from);
    while read < length {
        let piece = usize::try_from(length - read).unwrap_or(PIECE).min(PIECE);
        let known = bytes.len();
        bytes.resize(known + piece, 0);
        memory.read(process, read, &mut bytes[known..])?;
        read += piece as u64;
        let whole = each_whole(&bytes, |at, record| look(begins + at as u64, record))
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        bytes.drain(..whole);
        begins += whole as u64;
    }
    Ok(())
}
