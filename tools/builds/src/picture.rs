//! The content of a tree.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Result;

/// Mode, kind and checksum by name.
pub(super) type Picture = BTreeMap<PathBuf, (u32, u64)>;

pub(super) fn of(tree: &Path) -> Result<Picture> {
    let mut all = Picture::new();
    let mut directories = vec![tree.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let metadata = fs::symlink_metadata(&path)?;
            let mut sum = DefaultHasher::new();
            if metadata.is_file() {
                fs::read(&path)?.hash(&mut sum);
            } else if metadata.is_symlink() {
                fs::read_link(&path)?.hash(&mut sum);
            } else if metadata.is_dir() {
                directories.push(path.clone());
            }
            let name = path.strip_prefix(tree)?.to_owned();
            all.insert(name, (metadata.permissions().mode(), sum.finish()));
        }
    }
    Ok(all)
}

/// Differences between two trees. Contents that also differ between `plain` and `again` have a reason of their own,
/// such as the time of day.
pub(super) fn differences(ours: &Picture, plain: &Picture, again: &Picture) -> Vec<String> {
    let mut all = Vec::new();
    for (path, (mode, content)) in plain {
        let is_steady = again.get(path).is_some_and(|it| it.1 == *content);
        match ours.get(path) {
            None if again.contains_key(path) => all.push(format!("{} is missing", path.display())),
            None => {}
            Some((other, _)) if other != mode => {
                all.push(format!(
                    "{} has mode {other:o}, not {mode:o}",
                    path.display()
                ));
            }
            Some((_, other)) if is_steady && other != content => {
                all.push(format!("{} has other content", path.display()));
            }
            Some(_) => {}
        }
    }
    let more = ours
        .keys()
        .filter(|path| !plain.contains_key(*path) && !again.contains_key(*path));
    all.extend(more.map(|path| format!("{} is there", path.display())));
    all
}
