//! Random calls of programs on files.

use std::path::PathBuf;

use proptest::prelude::*;

/// Files that are held open at a time.
pub(crate) const SLOT_COUNT: usize = 3;

/// Mount point of another file system, if another file system is mounted.
pub(crate) const MOUNT_NAME: &str = "m";

/// A call of a program.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    Create(PathBuf, u32),
    Write(PathBuf),
    Append(PathBuf),
    Truncate(PathBuf, u64),
    Cut(PathBuf, u64),
    Open(usize, PathBuf, bool),
    WriteOpen(usize, u64),
    ReadOpen(usize),
    CutOpen(usize, u64),
    ModeOpen(usize, u32),
    Close(usize),
    Directory(PathBuf),
    Symlink(PathBuf, PathBuf),
    Fifo(PathBuf),
    Link(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf, u32),
    Unlink(PathBuf),
    RemoveDirectory(PathBuf),
    Mode(PathBuf, u32),
    Times(PathBuf, i64),
    Through(PathBuf),
    Commit,
    /// Two acts, without a look in between.
    Then(Box<Act>, Box<Act>),
}

pub(crate) fn path() -> impl Strategy<Value = PathBuf> {
    let name = prop_oneof![3 => Just("a"), 3 => Just("b"), 2 => Just("c"), 1 => Just("d")];
    prop::collection::vec(name, 1..4).prop_map(|names| names.iter().collect())
}

pub(crate) fn act() -> impl Strategy<Value = Act> {
    let flags = prop_oneof![4 => Just(0u32), 1 => Just(1), 1 => Just(2)];
    prop_oneof![
        4 => (path(), 0o600..0o700u32).prop_map(|(p, m)| Act::Create(p, m)),
        3 => path().prop_map(Act::Write),
        2 => path().prop_map(Act::Append),
        2 => (path(), 0..20u64).prop_map(|(p, n)| Act::Truncate(p, n)),
        1 => (path(), 0..20u64).prop_map(|(p, n)| Act::Cut(p, n)),
        4 => (0..SLOT_COUNT, path(), any::<bool>()).prop_map(|(s, p, w)| Act::Open(s, p, w)),
        3 => (0..SLOT_COUNT, 0..20u64).prop_map(|(s, at)| Act::WriteOpen(s, at)),
        3 => (0..SLOT_COUNT).prop_map(Act::ReadOpen),
        1 => (0..SLOT_COUNT, 0..20u64).prop_map(|(s, at)| Act::CutOpen(s, at)),
        2 => (0..SLOT_COUNT).prop_map(Act::Close),
        4 => path().prop_map(Act::Directory),
        1 => (path(), path()).prop_map(|(a, b)| Act::Symlink(a, b)),
        1 => path().prop_map(Act::Fifo),
        2 => (path(), path()).prop_map(|(a, b)| Act::Link(a, b)),
        5 => (path(), path(), flags).prop_map(|(a, b, f)| Act::Rename(a, b, f)),
        3 => path().prop_map(Act::Unlink),
        2 => path().prop_map(Act::RemoveDirectory),
        2 => (path(), 0o600..=0o700u32).prop_map(|(p, mode)| Act::Mode(p, mode)),
        2 => (path(), -1000..1000i64).prop_map(|(p, at)| Act::Times(p, at)),
        1 => path().prop_map(Act::Through),
        1 => Just(Act::Commit),
    ]
}
