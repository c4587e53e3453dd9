//! What an encapsulation sees where it has changed nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rustix::io::Errno;

use crate::{Attributes, Content, HiddenId, Name, TreePath};

/// Seconds since 1970, and nanoseconds of the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time {
    /// May be negative.
    pub seconds: i64,
    /// Below 1,000,000,000.
    pub nanoseconds: u32,
}

impl Time {
    /// So much later.
    #[must_use]
    pub fn later(self, by: Duration) -> Self {
        let nanoseconds = self.nanoseconds + by.subsec_nanos();
        let seconds = i64::try_from(by.as_secs()).unwrap_or(i64::MAX);
        Self {
            seconds: self.seconds.saturating_add(seconds) + i64::from(nanoseconds / SECOND),
            nanoseconds: nanoseconds % SECOND,
        }
    }

    /// How much later it is than `other`; `None` if it is earlier.
    #[must_use]
    pub fn since(self, other: Self) -> Option<Duration> {
        let borrowed = i64::from(self.nanoseconds < other.nanoseconds);
        let seconds = self.seconds.checked_sub(other.seconds)? - borrowed;
        let nanoseconds = (SECOND + self.nanoseconds - other.nanoseconds) % SECOND;
        Some(Duration::new(seconds.try_into().ok()?, nanoseconds))
    }
}

/// Nanoseconds.
const SECOND: u32 = 1_000_000_000;

/// What kind of thing a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A pipe with a name.
    Fifo,
    /// A socket with a name.
    Socket,
    /// A device, of characters or of blocks.
    Device,
}

/// Which one a thing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// An inode of the real file system.
    Real {
        /// `st_dev`
        device: u64,
        /// `st_ino`
        inode: u64,
    },
    /// Something that an encapsulation has made, revealed or not.
    Hidden(HiddenId),
}

/// What a name stands for, so far as a program can tell without opening it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stat {
    /// Which one.
    pub identity: Identity,
    /// What.
    pub kind: Kind,
    /// Permissions, `st_mode` without the kind.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Names that it has.
    pub links: u64,
    /// Bytes.
    pub size: u64,
    /// When its content was changed last.
    pub modified: Time,
    /// When its inode was changed last; the default where that tells nothing.
    pub changed: Time,
}

impl Stat {
    /// As it is after a change of its attributes.
    #[must_use]
    pub fn with(mut self, attributes: &Attributes) -> Self {
        self.mode = attributes.mode.unwrap_or(self.mode);
        self.owner.0 = attributes.user.unwrap_or(self.owner.0);
        self.owner.1 = attributes.group.unwrap_or(self.owner.1);
        self.modified = attributes.modified.unwrap_or(self.modified);
        self
    }
}

/// What was found under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Seen {
    /// Nothing.
    Absent,
    /// This.
    There(Stat),
}

/// The names in a directory, without `.` and `..`.
pub type Listing = BTreeMap<Name, Kind>;

/// What is below a layer: the real tree, or another layer above something ([`Snapshot`](crate::Snapshot)).
pub trait Base {
    /// What is there; a symbolic link is not followed. A path through something that is no directory leads to
    /// nothing.
    ///
    /// # Errors
    /// What keeps it from being seen: `EACCES`, `EIO`…
    fn look(&self, path: &TreePath) -> Result<Seen, Errno>;

    /// The same, to compare with what was seen before: nobody goes by the answer later, so that a change right after
    /// the look need not show in the file's dates.
    ///
    /// # Errors
    /// As [`Base::look`].
    fn look_to_compare(&self, path: &TreePath) -> Result<Seen, Errno> {
        self.look(path)
    }

    /// What is in the directory there.
    ///
    /// # Errors
    /// As [`Base::look`]; `ENOENT`, `ENOTDIR`.
    fn list(&self, path: &TreePath) -> Result<Listing, Errno>;

    /// Where the content of what is there really is, below all layers.
    ///
    /// # Errors
    /// As [`Base::look`]; `ENOENT`.
    fn content(&self, path: &TreePath) -> Result<Content, Errno>;

    /// What encapsulations have made of this, for those above it.
    fn hidden(&self, _into: &mut BTreeSet<HiddenId>) {}
}

/// Where what encapsulations have made is kept.
pub trait Store {
    /// Of a file: as it is now.
    ///
    /// # Errors
    /// `EIO`, if there is no such file.
    fn stat(&self, id: HiddenId) -> Result<Stat, Errno>;
}
