//! The runs that `outlive speculate` keeps for a directory.

#![allow(dead_code, reason = "no test needs all of it")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

use e2e::EVENT_TIMEOUT;
use serde_json::Value;
use tempfile::TempDir;

/// A directory, and the speculations of its daemon.
pub(crate) struct Tree(TempDir);

impl Tree {
    pub(crate) fn new() -> Self {
        e2e::handle_signals();
        // Not in `/tmp`: `/tmp` would be concealed as a whole.
        Self(TempDir::new_in("/var/lib").expect("a directory"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn outlive(&self, arguments: &[&str]) -> Command {
        let outlive = std::env::var_os("OUTLIVE_BIN").expect("OUTLIVE_BIN says where outlive is");
        let mut outlive = Command::new(outlive);
        outlive
            .arg("speculate")
            .args(arguments)
            .current_dir(self.path());
        outlive
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.outlive(arguments).output().expect("outlive")
    }

    /// The command must succeed; returns the output.
    pub(crate) fn done(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// The command must be refused; returns the reason.
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8(output.stderr).expect("text")
    }

    pub(crate) fn create(&self, name: &str, more: &[&str], script: &str) {
        let arguments = [&["run", "--name", name], more, &["--", "sh", "-c", script]].concat();
        assert_eq!(self.done(&arguments).trim(), name);
    }

    pub(crate) fn all(&self) -> Vec<Value> {
        serde_json::from_str(&self.done(&["list", "--json"])).expect("a list")
    }

    /// The daemon of the tree.
    pub(crate) fn daemon_pid(&self) -> Option<String> {
        let keep = format!("keep\0--tree\0{}\0", self.path().display());
        let processes = fs::read_dir("/proc").expect("processes").flatten();
        let mut keepers = processes.filter(|process| {
            let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&command).ends_with(&keep)
        });
        Some(keepers.next()?.file_name().into_string().expect("a number"))
    }

    pub(crate) fn state(&self, name: &str) -> Value {
        let all = self.all();
        let one = all.iter().find(|one| one["name"] == name);
        one.map_or(Value::Null, |one| one["state"].clone())
    }

    pub(crate) fn ended(&self, name: &str) {
        wait_until(name, || self.state(name)["ended"].is_object());
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // After a failure only the failure is printed.
        if thread::panicking() {
            return;
        }
        for one in self.all() {
            let _ = self.run(&["abort", one["name"].as_str().expect("a name")]);
        }
        // The daemon ends, and the mounts are gone.
        wait_until("nobody keeps anything", || self.daemon_pid().is_none());
    }
}

pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < EVENT_TIMEOUT, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}
