use core::fmt;

/// A format that leaves this process: on a wire, on a disk, or in maps of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// Name, as in the table of versions in `CONTRIBUTING.md`.
    pub name: &'static str,
    /// The version that this program writes.
    pub version: u32,
    /// The oldest version that this program reads.
    pub oldest: u32,
}

impl Format {
    /// The versions that this program reads: "6", or "6 to 7".
    #[must_use]
    pub const fn reads(self) -> Reads {
        Reads(self)
    }
}

/// [`Format::reads`].
#[derive(Debug, Clone, Copy)]
pub struct Reads(Format);

impl fmt::Display for Reads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Format {
            version, oldest, ..
        } = self.0;
        match oldest == version {
            true => write!(f, "{version}"),
            false => write!(f, "{oldest} to {version}"),
        }
    }
}
