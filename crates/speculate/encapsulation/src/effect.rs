//! What an encapsulation does, in the order in which it does it.

use std::ffi::OsString;

use crate::{Time, TreePath};

/// The number of something that an encapsulation has made: it is kept where nobody sees it, and never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HiddenId(pub u64);

impl Effect {
    /// The names that it changes, or what they stand for.
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

/// Attributes that are set; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Attributes {
    /// Permissions, without the kind.
    pub mode: Option<u32>,
    /// User.
    pub user: Option<u32>,
    /// Group.
    pub group: Option<u32>,
    /// When it was read last.
    pub read: Option<Time>,
    /// When its content was changed last.
    pub modified: Option<Time>,
}

impl Attributes {
    /// These, changed last at that time.
    #[must_use]
    pub fn at(self, modified: Time) -> Self {
        let modified = Some(modified);
        Self { modified, ..self }
    }

    /// These, and then `later` ones.
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

/// Something without content that is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct New {
    /// Its number.
    pub id: HiddenId,
    /// Permissions; with the kind where the call does not say that (`mknod`).
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// The time.
    pub now: Time,
}

/// One visible act. Paths are those that hold when those before it have been carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// A new file.
    Create {
        /// Its name.
        path: TreePath,
        /// Its content and attributes.
        id: HiddenId,
    },
    /// A file that was there has been opened to be written to: what it holds from then on is elsewhere.
    Replace {
        /// Its name.
        path: TreePath,
        /// Its content and attributes.
        id: HiddenId,
    },
    /// A new directory.
    Directory {
        /// Its name.
        path: TreePath,
        /// What it is made with.
        new: New,
    },
    /// A new symbolic link.
    Symlink {
        /// Its name.
        path: TreePath,
        /// What it is made with.
        new: New,
        /// Where it leads.
        target: OsString,
    },
    /// A new FIFO or socket.
    Special {
        /// Its name.
        path: TreePath,
        /// What it is made with.
        new: New,
    },
    /// One more name.
    Link {
        /// One that it has.
        from: TreePath,
        /// The new one.
        to: TreePath,
    },
    /// Another name, which stood for something else before, or for nothing.
    Rename {
        /// The old one.
        from: TreePath,
        /// The new one.
        to: TreePath,
    },
    /// Two names have changed places.
    Exchange {
        /// One.
        one: TreePath,
        /// The other.
        other: TreePath,
    },
    /// A name is taken away from what is no directory.
    Unlink {
        /// The name.
        path: TreePath,
    },
    /// An empty directory is taken away.
    RemoveDirectory {
        /// Its name.
        path: TreePath,
    },
    /// Attributes of something that was there, or of a directory.
    Attributes {
        /// Its name.
        path: TreePath,
        /// What they are from then on.
        attributes: Attributes,
    },
}
