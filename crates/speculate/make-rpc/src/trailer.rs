//! The trailer of the program in the place of make, at the end of the program's file: four texts, each behind the
//! length, then the length of all texts, and the magic bytes.

/// End of a file with a trailer.
const MAGIC: &[u8; 8] = b"outlive1";
/// Size of a length.
const LENGTH_BYTES: usize = 4;
/// Number of texts: the runner, the socket, the library, and the real make.
pub const TEXT_COUNT: usize = 4;

/// The trailer for these texts. `None`: a text is too long.
#[must_use]
pub fn write(texts: [&[u8]; TEXT_COUNT]) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    for text in texts {
        all.extend(u32::try_from(text.len()).ok()?.to_le_bytes());
        all.extend(text);
    }
    all.extend(u32::try_from(all.len()).ok()?.to_le_bytes());
    all.extend(MAGIC);
    Some(all)
}

/// The texts of a file with a trailer.
#[must_use]
pub fn read(file: &[u8]) -> Option<[&[u8]; TEXT_COUNT]> {
    let file = file.strip_suffix(MAGIC)?;
    let (file, length) = file.split_at_checked(file.len().checked_sub(LENGTH_BYTES)?)?;
    let mut rest = &file[file.len().checked_sub(number(length)?)?..];
    let mut texts = [&[][..]; TEXT_COUNT];
    for text in &mut texts {
        let (length, behind) = rest.split_at_checked(LENGTH_BYTES)?;
        (*text, rest) = behind.split_at_checked(number(length)?)?;
    }
    rest.is_empty().then_some(texts)
}

fn number(bytes: &[u8]) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
}
