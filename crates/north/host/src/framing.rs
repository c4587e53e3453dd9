//! Framing: whole records in byte streams that end anywhere.

use std::io;

use north_abi::{DecodeError, Record};

use crate::Memory;

/// Calls `look` with offset and record for each whole record at the start of `bytes`. Returns the length of the whole
/// records.
///
/// # Errors
/// Malformed bytes follow.
pub(crate) fn each_whole_record(
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

/// Bytes of one read.
const READ_CHUNK_BYTES: usize = 1 << 20;

/// Each record of a stream with its offset. `from` is the offset of a record.
pub(crate) fn each(
    memory: &Memory,
    process: u32,
    from: u64,
    mut look: impl FnMut(u64, &Record<'_>),
) -> io::Result<()> {
    let length = memory.length(process);
    let (mut bytes, mut begins, mut read) = (Vec::new(), from, from);
    while read < length {
        let piece = usize::try_from(length - read)
            .unwrap_or(READ_CHUNK_BYTES)
            .min(READ_CHUNK_BYTES);
        let known = bytes.len();
        bytes.resize(known + piece, 0);
        memory.read(process, read, &mut bytes[known..])?;
        read += piece as u64;
        let whole = each_whole_record(&bytes, |at, record| look(begins + at as u64, record))
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        bytes.drain(..whole);
        begins += whole as u64;
    }
    Ok(())
}
