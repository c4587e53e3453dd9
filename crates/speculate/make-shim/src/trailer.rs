//! What is told to the program that stands in the place of make, at the end of its own file: four texts, each behind its
//! length, then the length of all that, and [`MAGIC`].

/// How such a file ends.
const MAGIC: &[u8; 8] = b"outlive1";
/// Of a length, bytes.
const LENGTH: usize = 4;
/// What is told: the runner, the socket, the library, and the real make.
pub(crate) const TEXTS: usize = 4;

/// What is put behind the program. `None`: a text is too long.
#[must_use]
#[allow(dead_code, reason = "one side writes it, the other one reads it")]
pub(crate) fn write(texts: [&[u8]; TEXTS]) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    for text in texts {
        all.extend(u32::try_from(text.len()).ok()?.to_le_bytes());
        all.extend(text);
    }
    all.extend(u32::try_from(all.len()).ok()?.to_le_bytes());
    all.extend(MAGIC);
    Some(all)
}

/// What such a file tells.
#[must_use]
#[allow(dead_code, reason = "one side writes it, the other one reads it")]
pub(crate) fn read(file: &[u8]) -> Option<[&[u8]; TEXTS]> {
    let file = file.strip_suffix(MAGIC)?;
    let (file, length) = file.split_at_checked(file.len().checked_sub(LENGTH)?)?;
    let mut rest = &file[file.len().checked_sub(number(length)?)?..];
    let mut texts = [&[][..]; TEXTS];
    for text in &mut texts {
        let (length, behind) = rest.split_at_checked(LENGTH)?;
        (*text, rest) = behind.split_at_checked(number(length)?)?;
    }
    rest.is_empty().then_some(texts)
}

fn number(bytes: &[u8]) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
}
