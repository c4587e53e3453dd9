//! The effects of an encapsulation, in order.

use std::ffi::OsString;

use crate::{Time, TreePath};

/// Number of a hidden file, never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HiddenId(pub u64);

impl Effect {
    /// The paths that the effect changes.
    pub fn paths(&self) -> impl Iterator<Item = &TreePath> {
        let (one, other) = match self {
            Self::Create { path, .. }
            | Self::Replace { path, .. }
            | Self::Directory { path, .. }
            | Self::Symlink { path, .. }
            | Self::Special { path, .. }
            | Self::Unlink { path }
            | Self::RemoveDirectory { path }
            | Self::Attributes { path, .. } => (path, None),
            Self::Link { from, to } | Self::Rename { from, to } => (from, Some(to)),
            Self::Exchange { one, other } => (one, Some(other)),
        };
        [Some(one), other].into_iter().flatten()
    }
}

/// New attributes; `None` leaves an attribute unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Attributes {
    /// Permissions, without the kind.
    pub mode: Option<u32>,
    /// The user.
    pub user: Option<u32>,
    /// The group.
    pub group: Option<u32>,
    /// Access time.
    pub read: Option<Time>,
    /// Modification time.
    pub modified: Option<Time>,
}

impl Attributes {
    /// The attributes with this modification time.
    #[must_use]
    pub fn at(self, modified: Time) -> Self {
        let modified = Some(modified);
        Self { modified, ..self }
    }

    /// The attributes, overwritten by `later` ones.
    #[must_use]
    pub fn and(self, later: &Self) -> Self {
        Self {
            mode: later.mode.or(self.mode),
            user: later.user.or(self.user),
            group: later.group.or(self.group),
            read: later.read.or(self.read),
            modified: later.modified.or(self.modified),
        }
    }
}

/// A new file without content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct New {
    /// Hidden number of the file.
    pub id: HiddenId,
    /// Permissions; with the kind if the call has no other argument for the kind (`mknod`).
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Time of the creation.
    pub now: Time,
}

/// A visible change. Paths are valid after all earlier effects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// A new file.
    Create {
        /// The path.
        path: TreePath,
        /// The content.
        id: HiddenId,
    },
    /// The first open of an existing file for writing: the content is in a hidden file from then on.
    Replace {
        /// The path.
        path: TreePath,
        /// The content.
        id: HiddenId,
    },
    /// A new directory.
    Directory {
        /// The path.
        path: TreePath,
        /// The attributes.
        new: New,
    },
    /// A new symbolic link.
    Symlink {
        /// The path.
        path: TreePath,
        /// The attributes.
        new: New,
        /// The target.
        target: OsString,
    },
    /// A new FIFO or socket.
    Special {
        /// The path.
        path: TreePath,
        /// The attributes.
        new: New,
    },
    /// A hard link.
    Link {
        /// An existing path.
        from: TreePath,
        /// The new path.
        to: TreePath,
    },
    /// A rename, which may replace a file.
    Rename {
        /// The old path.
        from: TreePath,
        /// The new path.
        to: TreePath,
    },
    /// An exchange of two names (`RENAME_EXCHANGE`).
    Exchange {
        /// A path.
        one: TreePath,
        /// The other path.
        other: TreePath,
    },
    /// Removal of a name of a file that is no directory.
    Unlink {
        /// The path.
        path: TreePath,
    },
    /// Removal of an empty directory.
    RemoveDirectory {
        /// The path.
        path: TreePath,
    },
    /// New attributes of an existing file or of a directory.
    Attributes {
        /// The path.
        path: TreePath,
        /// The attributes.
        attributes: Attributes,
    },
}
