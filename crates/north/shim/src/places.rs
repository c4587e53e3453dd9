//! Addresses of the shim's own memory, far from the addresses that the kernel chooses for other mappings. The
//! program's mappings therefore get the same addresses in each incarnation, whatever the shim has mapped. If an
//! address is in use, the mapping goes elsewhere.

/// The page that all share.
pub(crate) const PAGE: usize = 1 << 44;
/// The part of the stream that is mapped.
pub(crate) const STREAM: usize = 2 << 44;
/// Positions of the clients.
pub(crate) const POSITIONS: usize = 3 << 44;
/// Table of read cursors.
pub(crate) const READ_CURSORS: usize = 4 << 44;
