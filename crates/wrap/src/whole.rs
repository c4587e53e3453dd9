//! Records in bytes that end anywhere.

use wrap_abi::{DecodeError, Record};

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
