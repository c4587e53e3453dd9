//! The memory of a service: of the processes and of the maps in the kernel.
//!
//! Counted are the anonymous memory of `serve` and of the logger, and the service's BPF maps as the kernel accounts
//! for the maps. The ring to the logger is such a map, and is also mapped by the logger: resident memory would count
//! the ring twice.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use lab::Pid;

/// The memory of a service, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Used {
    pub(super) anonymous: f64,
    pub(super) maps: f64,
}

impl Used {
    /// The memory of a `serve` and of the logger on the same host.
    pub(super) fn by(serve: Pid) -> Result<Self> {
        let of_each = processes(serve)?.into_iter().map(anonymous);
        Ok(Self {
            anonymous: of_each.sum::<Result<f64>>()?,
            maps: maps(serve)?,
        })
    }

    pub(super) fn total(self) -> f64 {
        self.anonymous + self.maps
    }
}

/// A `serve` and the logger process on the same host, if any.
pub(super) fn processes(serve: Pid) -> Result<Vec<Pid>> {
    let mut all = children(serve)?;
    all.retain(|child| command_line(*child).contains("logger-process"));
    all.push(serve);
    Ok(all)
}

fn children(pid: Pid) -> Result<Vec<Pid>> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    Ok(text
        .split_ascii_whitespace()
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect())
}

fn command_line(pid: Pid) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// The anonymous memory of a process, in bytes.
pub(super) fn anonymous(pid: Pid) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    kib(&text, "Anonymous:").with_context(|| format!("no Anonymous of process {pid}"))
}

/// Memory that the kernel has allocated for internal use and cannot reclaim at will, in bytes.
pub(super) fn kernel() -> Result<f64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let sum = ["SUnreclaim:", "Percpu:"].map(|key| kib(&text, key));
    sum.into_iter()
        .sum::<Option<f64>>()
        .context("no SUnreclaim or Percpu in /proc/meminfo")
}

/// The bytes of a line such as `Anonymous:  12 kB`.
fn kib(text: &str, key: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let number: u32 = line.trim().split(' ').next()?.parse().ok()?;
    Some(f64::from(number) * 1024.0)
}

/// The memory of the BPF maps that a process has open, as the kernel accounts for the maps.
fn maps(pid: Pid) -> Result<f64> {
    let mut sizes = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // A descriptor may be closed while we look.
        let text = fs::read_to_string(entry?.path()).unwrap_or_default();
        if let (Some(id), Some(size)) = (field(&text, "map_id:"), field(&text, "memlock:")) {
            sizes.insert(id, size);
        }
    }
    Ok(sizes.values().copied().map(f64::from).sum())
}

fn field(text: &str, key: &str) -> Option<u32> {
    text.lines()
        .find_map(|line| line.strip_prefix(key))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_files_are_parsed() {
        assert_eq!(
            kib("Rss:  7 kB\nAnonymous:      12 kB\n", "Anonymous:"),
            Some(12288.0)
        );
        assert_eq!(kib("Rss:  7 kB\n", "Anonymous:"), None);
        assert_eq!(
            field("map_type:\t1\nmap_id:\t42\nmemlock:\t4096\n", "memlock:"),
            Some(4096)
        );
    }

    #[test]
    fn own_process_has_memory_without_logger() -> Result<()> {
        let own = rustix::process::getpid();
        let used = Used::by(own)?;
        assert!(used.anonymous > 0.0);
        Ok(())
    }
}
