//! Who removes what `outlive serve` has pinned and mounted when we are killed outright.
//!
//! The lab has a janitor of its own, which removes the hosts and kills what runs on them,
//! `outlive serve` included. Pins, mounts and the cgroup of a killed `serve` stay: that is
//! what `outlive clean` is for. So the run directory is not in the lab's, and a shell that
//! survives us cleans it. It notices our death by the end of its standard input.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// `$1`: outlive, `$2`: the run directory, `$3`: the service. A line to read means that
/// there is nothing to do. While `serve` still lives, clean refuses. Hosts that have a run
/// directory each have it as `run-*` in there.
const SCRIPT: &str = r#"
read -r line && exit 0
tries=0
for directory in "$2" "$2"/run-*; do
    [ -d "$directory" ] || continue
    until "$1" clean --kill --run-dir "$directory" "$3" || [ "$tries" -ge 100 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
done
rm -rf --one-file-system -- "$2"
"#;

/// The running janitor. Dropping it makes it do its work.
pub struct Janitor(Child);

impl Janitor {
    /// Starts the janitor of a service with this run directory.
    ///
    /// # Errors
    /// A shell cannot be started.
    pub fn start(outlive: &Path, run_directory: &Path, service: &str) -> Result<Self> {
        let child = Command::new("sh")
            .args(["-c", SCRIPT, "demo-janitor"])
            .args([outlive, run_directory])
            .arg(service)
            .current_dir("/")
            // Not in the way of a terminal's interrupt.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start the janitor")?;
        Ok(Self(child))
    }

    /// Sends it home: everything is clean.
    pub fn dismiss(mut self) {
        if let Some(stdin) = &mut self.0.stdin {
            // If it is gone already, so much the better.
            let _ = stdin.write_all(b"clean\n");
        }
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
