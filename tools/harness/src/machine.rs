//! The machine and the commit of a bench.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// The machine of a measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processors that this process may use.
    pub cores: usize,
    /// Model of the processor, from `/proc/cpuinfo`.
    pub cpu: String,
    /// Release of the kernel, as `uname -r` prints it.
    pub kernel: String,
    /// Size of the memory, MiB.
    pub memory_mib: u64,
}

impl Machine {
    /// The machine that runs this program.
    pub fn this() -> Self {
        let line = |file: &str, key: &str| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = line("/proc/meminfo", "MemTotal");
        let kib = memory.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            cpu: line("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            memory_mib: kib.unwrap_or(0) / 1024,
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cores,
            cpu,
            kernel,
            memory_mib,
        } = self;
        write!(f, "Linux {kernel}, {cores} cores ({cpu}), {memory_mib} MiB")
    }
}

/// The measured commit, with `-dirty` behind if the tree differed from the commit; files that the bench writes do not
/// count.
pub fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .arg("-C")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")))
            .args(arguments)
            .output()
            .ok()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(text)
    };
    let Some(hash) = git(&["rev-parse", "--short", "HEAD"]) else {
        return "unknown".to_owned();
    };
    let changed = git(&["status", "--porcelain", "--", ":/", ":(top,exclude)bench"]);
    match changed.as_deref() {
        Some("") => hash,
        _ => format!("{hash}-dirty"),
    }
}
