//! Commands of a make and their durations, recorded by a shell of the measurement.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Shorter commands (`echo`, `test`) are not counted: the shell of the measurement costs some milliseconds.
const SHORTEST_COMMAND_SECONDS: f64 = 0.02;

/// A shell that records start, end and parent: makes call each other.
pub(super) struct CommandRecorder {
    shell: PathBuf,
    notes: PathBuf,
}

impl CommandRecorder {
    /// Makes the shell beside that place.
    pub(super) fn beside(place: &Path) -> Result<Self> {
        let this = Self {
            shell: place.with_extension("shell"),
            notes: place.with_extension("notes"),
        };
        let script = format!(
            "#!/bin/sh\nwithin=${{NOTED:-0}}\nbegan=$(date +%s%N)\nNOTED=$$ /bin/sh \"$@\"\nstatus=$?\n\
             echo \"$$ $within $began $(date +%s%N)\" >>'{}'\nexit $status\n",
            this.notes.display()
        );
        fs::write(&this.shell, script)?;
        fs::set_permissions(&this.shell, fs::Permissions::from_mode(0o755))?;
        Ok(this)
    }

    /// The argument that lets make use the shell.
    pub(super) fn argument(&self) -> String {
        format!("SHELL={}", self.shell.display())
    }

    /// Seconds of each command since the last call.
    pub(super) fn taken(&self) -> Result<Vec<f64>> {
        if !self.notes.exists() {
            return Ok(Vec::new());
        }
        let notes = fs::read_to_string(&self.notes)?;
        fs::remove_file(&self.notes)?;
        own_times(&notes)
    }
}

impl Drop for CommandRecorder {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.shell);
        let _ = fs::remove_file(&self.notes);
    }
}

/// The durations without nested commands.
fn own_times(notes: &str) -> Result<Vec<f64>> {
    let mut all: BTreeMap<u64, f64> = BTreeMap::new();
    let mut commands = Vec::new();
    for line in notes.lines() {
        let numbers = line.split(' ').map(str::parse::<u64>);
        let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
        let [this, within, began, ended] = numbers[..].try_into().context("four numbers")?;
        let took = std::time::Duration::from_nanos(ended.saturating_sub(began)).as_secs_f64();
        // An inner command ends before the outer command, and is written down before.
        let own = took - all.remove(&this).unwrap_or(0.0);
        *all.entry(within).or_default() += took;
        if own >= SHORTEST_COMMAND_SECONDS {
            commands.push(own);
        }
    }
    Ok(commands)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn nested_command_counts_once() -> Result<()> {
        // Two commands of a second in a make that is a command of another make, a command of two seconds, and an echo.
        let notes = "20 10 100000000 1100000000\n21 10 1100000000 2100000000\n10 0 95000000 2110000000\n\
                     11 0 3000000000 5000000000\n12 0 5000000000 5001000000\n";
        assert_eq!(own_times(notes)?, [1.0, 1.0, 2.0]);
        assert!(own_times("1 2 3\n").is_err());
        Ok(())
    }

    #[test]
    fn shell_records_its_commands() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let noting = CommandRecorder::beside(&directory.path().join("project"))?;
        assert!(noting.taken()?.is_empty());
        let (_, shell) = noting.argument().split_once('=').map_or_else(
            || (String::new(), String::new()),
            |(name, shell)| (name.to_owned(), shell.to_owned()),
        );
        let status = Command::new(&shell)
            .args(["-c", &format!("{shell} -c 'sleep 0.1'; exit 3")])
            .status()?;
        assert_eq!(status.code(), Some(3));
        let taken = noting.taken()?;
        assert!(taken[0] >= 0.1, "{taken:?}");
        assert!(noting.taken()?.is_empty());
        Ok(())
    }
}
