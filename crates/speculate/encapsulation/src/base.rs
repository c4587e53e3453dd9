//! The base of an encapsulation: the tree below its changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rustix::io::Errno;

use crate::{Attributes, Content, HiddenId, Name, TreePath};

/// Seconds since 1970, and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time {
    /// May be negative.
    pub seconds: i64,
    /// Below 1,000,000,000.
    pub nanoseconds: u32,
}

impl Time {
    /// The time after this duration.
    #[must_use]
    pub fn later(self, by: Duration) -> Self {
        let nanoseconds = self.nanoseconds + by.subsec_nanos();
        let seconds = i64::try_from(by.as_secs()).unwrap_or(i64::MAX);
        Self {
            seconds: self.seconds.saturating_add(seconds) + i64::from(nanoseconds / SECOND),
            nanoseconds: nanoseconds % SECOND,
        }
    }

    /// Time since `other`; `None` if `other` is later.
    #[must_use]
    pub fn since(self, other: Self) -> Option<Duration> {
        let borrowed = i64::from(self.nanoseconds < other.nanoseconds);
        let seconds = self.seconds.checked_sub(other.seconds)? - borrowed;
        let nanoseconds = (SECOND + self.nanoseconds - other.nanoseconds) % SECOND;
        Some(Duration::new(seconds.try_into().ok()?, nanoseconds))
    }
}

/// Nanoseconds of a second.
const SECOND: u32 = 1_000_000_000;

/// Kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A character device or a block device.
    Device,
}

/// Identity of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// An inode of the real file system.
    Real {
        /// `st_dev`
        device: u64,
        /// `st_ino`
        inode: u64,
    },
    /// A file of an encapsulation, revealed or not.
    Hidden(HiddenId),
}

/// Attributes of a file (stat(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stat {
    /// The identity.
    pub identity: Identity,
    /// The kind.
    pub kind: Kind,
    /// Permissions, `st_mode` without the kind.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Link count.
    pub links: u64,
    /// Size, bytes.
    pub size: u64,
    /// Time of the last change of the content.
    pub modified: Time,
    /// Time of the last change of the inode, or the default if that time has no meaning.
    pub changed: Time,
}

impl Stat {
    /// The attributes after a change.
    #[must_use]
    pub fn with(mut self, attributes: &Attributes) -> Self {
        self.mode = attributes.mode.unwrap_or(self.mode);
        self.owner.0 = attributes.user.unwrap_or(self.owner.0);
        self.owner.1 = attributes.group.unwrap_or(self.owner.1);
        self.modified = attributes.modified.unwrap_or(self.modified);
        self
    }
}

/// Result of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Seen {
    /// No file.
    Absent,
    /// A file with these attributes.
    There(Stat),
}

/// The names in a directory, without `.` and `..`.
pub type Listing = BTreeMap<Name, Kind>;

/// The tree below a layer: the real tree, or a layer above another base ([`Snapshot`](crate::Snapshot)).
pub trait Base {
    /// Looks up a path. A symbolic link at the end is not followed. A path through a file other than a directory has
    /// no file.
    ///
    /// # Errors
    /// The reason of a failed lookup: `EACCES`, `EIO`…
    fn look(&self, path: &TreePath) -> Result<Seen, Errno>;

    /// Looks up a path for a comparison with an earlier result. No later comparison depends on this result, and
    /// therefore the next change need not show in the file's dates.
    ///
    /// # Errors
    /// As [`Base::look`].
    fn look_to_compare(&self, path: &TreePath) -> Result<Seen, Errno> {
        self.look(path)
    }

    /// Lists a directory.
    ///
    /// # Errors
    /// As [`Base::look`]; `ENOENT`, `ENOTDIR`.
    fn list(&self, path: &TreePath) -> Result<Listing, Errno>;

    /// The content of a file below all layers.
    ///
    /// # Errors
    /// As [`Base::look`]; `ENOENT`.
    fn content(&self, path: &TreePath) -> Result<Content, Errno>;

    /// Adds the hidden files of this base.
    fn hidden(&self, _into: &mut BTreeSet<HiddenId>) {}
}

/// The store of hidden files.
pub trait Store {
    /// Present attributes of a file.
    ///
    /// # Errors
    /// `EIO` for an unknown file.
    fn stat(&self, id: HiddenId) -> Result<Stat, Errno>;
}
