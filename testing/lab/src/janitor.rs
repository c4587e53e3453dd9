//! Clean-up after the death of this process: a detached shell that survives.
//!
//! The shell reads a pipe. This process alone has the write end. The kernel closes the write end at any death; the
//! read ends, and the shell removes the rest of the lab. Children do not keep the write end open: close-on-exec.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::Error;
use crate::error::Doing;
use crate::namespace::NETNS_DIRECTORY;

/// `$1`: the directory of namespace names, `$2`: the prefix of the lab's names, `$3`: the lab's files, `$4`:
/// `outlive`, if services of outlive may have run here, otherwise empty. A line on standard input means that no work
/// is left. There are two rounds, because an `ip` that the lab had just started may finish after the lab's death.
const CLEANUP_SCRIPT: &str = r#"
read -r line && exit 0
for round in 1 2; do
    for path in "$1/$2"*; do
        [ -e "$path" ] || continue
        name=${path##*/}
        tries=0
        while [ "$tries" -lt 50 ] && pids=$(ip netns pids "$name") && [ -n "$pids" ]; do
            kill -9 $pids
            sleep 0.1
            tries=$((tries + 1))
        done
        ip netns delete "$name"
    done
    sleep 0.3
done
if [ -n "$4" ]; then
    for directory in "$3/hosts"/*/; do
        [ -d "$directory" ] && "$4" clean --kill --run-dir "${directory%/}"
    done
fi
rm -rf --one-file-system -- "$3"
"#;

/// The running janitor. A drop starts the cleaning.
#[derive(Debug)]
pub(crate) struct Janitor {
    child: Child,
}

impl Janitor {
    /// Starts a janitor for namespaces whose names begin with `prefix`, for the files in `directory`, and for remains
    /// of services of `outlive` in `hosts` there.
    pub(crate) fn start(
        prefix: &str,
        directory: &Path,
        outlive: Option<&Path>,
    ) -> Result<Self, Error> {
        let mut command = Command::new("sh");
        command
            .args(["-c", CLEANUP_SCRIPT, "lab-janitor", NETNS_DIRECTORY, prefix])
            .arg(directory)
            .arg(outlive.unwrap_or(Path::new("")))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // In a separate session the janitor does not get a terminal's interrupt.
        // SAFETY: between fork and exec the closure makes a single system call, without an allocation or a lock.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                Ok(())
            })
        };
        let child = command.spawn().doing(|| "start the janitor".to_owned())?;
        Ok(Self { child })
    }

    /// Sends the janitor home: everything is clean.
    pub(crate) fn dismiss(mut self) {
        if let Some(stdin) = &mut self.child.stdin {
            // A janitor that is gone already has no work left.
            let _ = stdin.write_all(b"clean\n");
        }
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if let Err(error) = self.child.wait() {
            tracing::warn!(%error, "the janitor was not reaped");
        }
    }
}
