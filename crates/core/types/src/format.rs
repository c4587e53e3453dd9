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
