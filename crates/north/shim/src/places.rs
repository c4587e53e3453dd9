//! Where our own memory is: far from where the kernel puts what has no place of its own. So what the program maps
//! falls into the same places in each life, whatever we have mapped by then. A place that is taken is not insisted on.

/// The page that all share.
pub(crate) const PAGE: usize = 1 << 44;
/// The part of the stream that is mapped.
pub(crate) const STREAM: usize = 2 << 44;
/// How far clients are.
pub(crate) const POSITIONS: usize = 3 << 44;
/// How far connections are noted.
pub(crate) const READ_CURSORS: usize = 4 << 44;
