//! Names, and paths within a tree.

use std::{
    ffi::{OsStr, OsString},
    fmt,
    path::{Component, Path, PathBuf},
};

/// A name in a directory.
pub type Name = OsString;

/// A path within a tree, relative to the root of the tree, without `.` and `..`. The root is the empty path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TreePath(PathBuf);

impl TreePath {
    /// The tree itself.
    #[must_use]
    pub fn root() -> Self {
        Self::default()
    }

    /// `None` if `path` leads out of the tree, or might.
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Option<Self> {
        let mut normal = PathBuf::new();
        for component in path.as_ref().components() {
            match component {
                Component::Normal(name) => normal.push(name),
                Component::CurDir => {}
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
            }
        }
        Some(Self(normal))
    }

    /// The path of `name` in this directory.
    #[must_use]
    pub fn join(&self, name: &OsStr) -> Self {
        Self(self.0.join(name))
    }

    /// The parent directory, and the name in the parent; `None` for the root.
    #[must_use]
    pub fn split(&self) -> Option<(Self, &OsStr)> {
        let name = self.0.file_name()?;
        let parent = self.0.parent().unwrap_or(Path::new(""));
        Some((Self(parent.to_owned()), name))
    }

    /// The names that lead there.
    pub fn names(&self) -> impl Iterator<Item = &OsStr> {
        self.0.iter()
    }

    /// Whether this path is `other`, or within `other`.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    /// For the calls of the system: relative to the root of the tree, `.` for the root itself.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        if self.0.as_os_str().is_empty() {
            return Path::new(".");
        }
        &self.0
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_path(), f)
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_path().display().fmt(f)
    }
}
