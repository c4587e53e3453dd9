//! The suite is part of redis's source, which no package has unpacked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::task::cache;

const VERSION: &str = "7.0.15";
/// Of Debian's copy of the published archive: it is run as root.
const SHA256: &str = "4b1dc4ee6d622a09fff9c6777191209750fb5e5a725ef78ea012d6eef4c22982";

/// The unpacked source: the one that was given, the one in the cache, or a new one there.
pub(super) fn get(given: Option<&Path>, mirror: &str) -> Result<PathBuf> {
    let source = match given {
        Some(given) => given.to_path_buf(),
        None => fetched(mirror)?,
    };
    let helper = source.join("tests/test_helper.tcl");
    ensure!(
        helper.is_file(),
        "no source of redis: there is no {}",
        helper.display()
    );
    Ok(source)
}

fn fetched(mirror: &str) -> Result<PathBuf> {
    let cache = cache(None, "redis")?;
    let source = cache.join(format!("redis-{VERSION}"));
    if source.is_dir() {
        return Ok(source);
    }
    let archive = cache.join(format!("redis_{VERSION}.orig.tar.gz"));
    let url = format!("{mirror}/debian/pool/main/r/redis/redis_{VERSION}.orig.tar.gz");
    println!("fetching {url}");
    run(Command::new("curl")
        .args(["-fsSL", "-o"])
        .arg(&archive)
        .arg(&url))?;
    let sum = Command::new("sha256sum").arg(&archive).output()?.stdout;
    ensure!(
        sum.starts_with(SHA256.as_bytes()),
        "{url} is not what it was: {}",
        String::from_utf8_lossy(&sum)
    );
    // Whole or not at all.
    let unpacked = tempfile::tempdir_in(&cache)?;
    run(Command::new("tar")
        .arg("xzf")
        .arg(&archive)
        .arg("-C")
        .arg(unpacked.path()))?;
    fs::rename(unpacked.path().join(format!("redis-{VERSION}")), &source)?;
    Ok(source)
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    ensure!(status.success(), "{program} failed ({status})");
    Ok(())
}
