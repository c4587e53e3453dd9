//! The suite is part of redis's source, which no package has unpacked.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use builds::REDIS;

/// The unpacked source: the given source, the cached source, or a new download into the cache.
pub(super) fn get(given: Option<&Path>, mirror: &str) -> Result<PathBuf> {
    let source = match given {
        Some(given) => given.to_path_buf(),
        None => REDIS.unpacked(mirror)?,
    };
    let helper = source.join("tests/test_helper.tcl");
    ensure!(
        helper.is_file(),
        "no source of redis: there is no {}",
        helper.display()
    );
    Ok(source)
}
