//! Sources of foreign programs from Debian's archive.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::task::cache;

/// The published archive of a source package.
#[derive(Debug, Clone, Copy)]
pub struct Archive {
    /// Name of the source package.
    pub package: &'static str,
    /// Name of the archive in the package's directory of the pool.
    pub file: &'static str,
    /// The top directory of the archive.
    pub directory: &'static str,
    /// SHA-256 of the archive, whose programs run, perhaps as root.
    pub sha256: &'static str,
}

impl Archive {
    /// The unpacked source, in the user's cache.
    pub fn unpacked(&self, mirror: &str) -> Result<PathBuf> {
        let cache = cache(None, self.package)?;
        let source = cache.join(self.directory);
        if source.is_dir() {
            return Ok(source);
        }
        let archive = cache.join(self.file);
        let (package, file) = (self.package, self.file);
        let url = format!(
            "{mirror}/debian/pool/main/{}/{package}/{file}",
            &package[..1]
        );
        println!("fetching {url}");
        run(Command::new("curl")
            .args(["-fsSL", "-o"])
            .arg(&archive)
            .arg(&url))?;
        let sum = Command::new("sha256sum").arg(&archive).output()?.stdout;
        ensure!(
            sum.starts_with(self.sha256.as_bytes()),
            "{url} is not what it was: {}",
            String::from_utf8_lossy(&sum)
        );
        // Whole or not at all.
        let unpacked = tempfile::tempdir_in(&cache)?;
        run(Command::new("tar")
            .arg("xf")
            .arg(&archive)
            .arg("-C")
            .arg(unpacked.path()))?;
        fs::rename(unpacked.path().join(self.directory), &source)?;
        Ok(source)
    }
}

/// Runs a command that has to succeed.
pub fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    ensure!(status.success(), "{program} failed ({status})");
    Ok(())
}
