//! A directory and the contents, in the order of storing: a directory, the contents by name, and the directory once
//! more.

use std::{
    ffi::OsString,
    fs::{self, Metadata},
    os::unix::{
        ffi::{OsStrExt as _, OsStringExt as _},
        fs::MetadataExt as _,
    },
    path::{Path, PathBuf},
};

use protocol::bulk::{ENTRY_LEN_MAX, Entry, EntryKind, PathError, RelativePath};

use super::{Item, modified_ns};
use crate::BulkError;

/// A part of a tree.
pub enum Part {
    /// A part that fits into a message. The name begins with that of the tree.
    Entry(Entry),
    /// A larger file.
    File(Box<Item>),
    /// Neither file nor directory nor a link within the tree: is not sent.
    Skipped {
        /// The path.
        path: PathBuf,
        /// The reason.
        reason: &'static str,
    },
    /// An unreadable part, or a part with a name that no receiver takes.
    Failed {
        /// Where it is.
        path: PathBuf,
        /// Why not.
        error: BulkError,
    },
}

/// Goes through a tree.
pub struct Tree {
    root: PathBuf,
    /// The tree's own name.
    name: RelativePath,
    /// Paths to visit, the next last.
    visits: Vec<Visit>,
}

enum Visit {
    /// A path below the root.
    Enter(Vec<OsString>),
    Leave(Vec<OsString>, Metadata),
}

impl Tree {
    /// `None`: the path is no directory.
    ///
    /// # Errors
    /// The path cannot be examined; the root of the file system has no name.
    pub fn open(path: &Path) -> Result<Option<Self>, BulkError> {
        if !fs::metadata(path).map_err(BulkError::Source)?.is_dir() {
            return Ok(None);
        }
        // Of `.` or `a/..` the name is that of the directory.
        let root = fs::canonicalize(path).map_err(BulkError::Source)?;
        let name = root.file_name().unwrap_or_default();
        Ok(Some(Self {
            name: RelativePath::new(name.as_bytes())?,
            root,
            visits: vec![Visit::Enter(Vec::new())],
        }))
    }

    /// The name of the directory.
    #[must_use]
    pub const fn name(&self) -> &RelativePath {
        &self.name
    }

    fn path_of(&self, below: &[OsString]) -> PathBuf {
        let mut path = self.root.clone();
        path.extend(below);
        path
    }

    /// The name with the tree's own.
    fn name_of(&self, below: &[OsString]) -> Result<RelativePath, PathError> {
        let mut name = self.name.as_bytes().to_vec();
        for component in below {
            name.push(b'/');
            name.extend_from_slice(component.as_bytes());
        }
        RelativePath::new(&name)
    }

    fn enter(&mut self, below: Vec<OsString>) -> Result<Part, BulkError> {
        let path = self.path_of(&below);
        let name = self.name_of(&below)?;
        let metadata = fs::symlink_metadata(&path).map_err(BulkError::Source)?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            let mut names: Vec<OsString> = fs::read_dir(&path)
                .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect())
                .map_err(BulkError::Source)?;
            let part = entry_of(name, &metadata, EntryKind::Directory);
            self.visits.push(Visit::Leave(below.clone(), metadata));
            names.sort_unstable_by(|a, b| b.cmp(a));
            let visits = names.into_iter().map(|name| {
                let mut path = below.clone();
                path.push(name);
                Visit::Enter(path)
            });
            self.visits.extend(visits);
            return Ok(Part::Entry(part));
        }
        if kind.is_symlink() {
            let target = fs::read_link(&path).map_err(BulkError::Source)?;
            let target = target.into_os_string().into_vec();
            return Ok(match below_tree(&below)?.check_link(&target) {
                Ok(()) => Part::Entry(entry_of(name, &metadata, EntryKind::Link { target })),
                Err(_) => Part::Skipped {
                    path,
                    reason: "the target of the link is not a path within the directory that is sent",
                },
            });
        }
        if !kind.is_file() {
            let reason = "neither a file nor a directory nor a link";
            return Ok(Part::Skipped { path, reason });
        }
        file(&path, name, &metadata)
    }
}

impl Iterator for Tree {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        let (below, part) = match self.visits.pop()? {
            Visit::Enter(below) => (below.clone(), self.enter(below)),
            Visit::Leave(below, metadata) => {
                let name = self.name_of(&below).map_err(BulkError::from);
                let part = name
                    .map(|name| Part::Entry(entry_of(name, &metadata, EntryKind::DirectoryEnd)));
                (below, part)
            }
        };
        Some(part.unwrap_or_else(|error| Part::Failed {
            path: self.path_of(&below),
            error,
        }))
    }
}

/// The path without the tree's own name.
fn below_tree(below: &[OsString]) -> Result<RelativePath, PathError> {
    let components: Vec<&[u8]> = below.iter().map(|it| it.as_bytes()).collect();
    RelativePath::new(&components.join(&b'/'))
}

fn file(path: &Path, name: RelativePath, metadata: &Metadata) -> Result<Part, BulkError> {
    let mut item = Item::open(path)?;
    if metadata.len() > ENTRY_LEN_MAX as u64 {
        item.name = name;
        item.is_in_tree = true;
        return Ok(Part::File(Box::new(item)));
    }
    let bytes = fs::read(path).map_err(BulkError::Source)?;
    if item.has_changed() || bytes.len() as u64 != metadata.len() {
        return Err(BulkError::SourceChanged);
    }
    Ok(Part::Entry(entry_of(
        name,
        metadata,
        EntryKind::File { bytes },
    )))
}

fn entry_of(name: RelativePath, metadata: &Metadata, kind: EntryKind) -> Entry {
    Entry {
        name,
        permissions: u16::try_from(metadata.mode() & 0o777).unwrap_or(0),
        modified_ns: modified_ns(metadata),
        kind,
    }
}
