//! Identity of files.

/// Properties of a regular file at the time of open(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Identity {
    /// Inode number in the file system.
    pub inode: u64,
    /// Size, bytes.
    pub size: u64,
    /// Last modification, nanoseconds since 1970.
    pub modified: u64,
}

impl Identity {
    /// Encoded size, bytes.
    pub const SIZE: usize = 24;

    /// A hash of the identity (FNV-1a).
    #[must_use]
    pub fn key(&self) -> u64 {
        let bytes = self.to_bytes();
        let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
    }

    /// Encoded for a record.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let words = [self.inode, self.size, self.modified];
        for (out, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *out = u64::to_le_bytes(word);
        }
        bytes
    }

    /// From a record. `None`: the file was not regular.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::SIZE] = bytes.try_into().ok()?;
        let (words, _) = bytes.as_chunks();
        let [inode, size, modified] =
            [0, 1, 2].map(|index: usize| u64::from_le_bytes(words[index]));
        Some(Self {
            inode,
            size,
            modified,
        })
    }
}
