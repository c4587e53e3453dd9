//! Cleans up after `outlive serve` when this program is killed.
//!
//! The lab has a janitor of its own, which removes the hosts and kills their processes, `outlive serve` included.
//! Pins, mounts and the cgroup of a killed `serve` stay, for `outlive clean`. So the run directory is outside of the
//! lab, and a shell that outlives this program cleans up. The end of standard input tells the shell of the death.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// `$1`: outlive, `$2`: the run directory, `$3`: the service. A line on standard input means that all is removed.
/// While `serve` lives, clean refuses. A host with a separate run directory has `run-*` below the run directory.
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

/// The running janitor, which cleans up when this value is dropped.
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

    /// Ends the janitor: nothing is left.
    pub fn dismiss(mut self) {
        if let Some(stdin) = &mut self.0.stdin {
            // A janitor that is gone already has no work left.
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
