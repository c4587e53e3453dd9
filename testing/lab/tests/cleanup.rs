//! A lab leaves nothing behind, however the lab ends.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{EVENT_TIMEOUT, two_hosts};
use lab::{Error, Impairment, Output, Pid};

/// Waits until the condition holds.
fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + EVENT_TIMEOUT;
    while !so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn exists(namespace: &str) -> bool {
    let listed = Command::new("ip").args(["netns", "list"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let listed = listed
        .lines()
        .any(|line| line.split_whitespace().next() == Some(namespace));
    let there = Path::new("/run/netns").join(namespace).exists();
    assert_eq!(listed, there);
    there
}

/// Command lines that contain this text.
fn processes_with(text: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap();
    entries
        .filter_map(|entry| {
            let path = entry.ok()?.path().join("cmdline");
            let line = String::from_utf8_lossy(&fs::read(path).ok()?).replace('\0', " ");
            line.contains(text).then_some(line)
        })
        .collect()
}

#[test]
fn dropped_lab_leaves_nothing() {
    for explicit in [false, true] {
        let (lab, server, client) = two_hosts("drop");
        client.impair(&Impairment::with_seed(1)).unwrap();
        // A process in a guard, and a process that left the parent and the session.
        let guarded = server.spawn(server.command("sleep").arg("1000"), &Output::Null);
        let guarded = guarded.unwrap();
        let mut escapes = server.command("setsid");
        escapes.args(["-f", "sleep", "1001"]);
        assert!(escapes.status().unwrap().success());
        eventually("two sleepers", || server.pids().unwrap().len() == 2);
        let pids = server.pids().unwrap();
        let capture = client.capture("").unwrap();
        // A socket of the test inside must not keep the namespace.
        let _socket = server.enter(|| TcpListener::bind("10.0.0.1:80")).unwrap();
        let directory = lab.directory().to_owned();
        let prefix = server
            .namespace()
            .strip_suffix("server")
            .unwrap()
            .to_owned();
        let names = ["server", "client", "switch"].map(|name| format!("{prefix}{name}"));
        assert!(names.iter().all(|name| exists(name)));
        assert_eq!(processes_with(&prefix).len(), 2, "janitor and tcpdump");
        if explicit {
            lab.remove().unwrap();
        } else {
            drop(lab);
        }
        assert!(!names.iter().any(|name| exists(name)));
        assert!(!directory.exists());
        assert_eq!(processes_with(&prefix), [""; 0]);
        assert!(guarded.wait_with_timeout(Duration::ZERO).unwrap().is_some());
        let alive = |pid: &Pid| rustix::process::test_kill_process(*pid).is_ok();
        drop((guarded, capture));
        eventually("the orphan is reaped", || !pids.iter().any(alive));
        // The remaining handles report that the lab is gone.
        assert!(matches!(server.power_on(), Err(Error::Off { .. })));
        assert!(matches!(server.enter(|| ()), Err(Error::Off { .. })));
    }
}

/// The helper with a complete lab, and the printed names: two namespaces and a directory.
struct Holder {
    process: Child,
    one: String,
    two: String,
    switch: String,
    prefix: String,
    directory: PathBuf,
}

impl Holder {
    fn start(keep: bool) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lab-hold"));
        command.env("OUTLIVE_LAB_KEEP", if keep { "1" } else { "" });
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let stdout = process.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["ready", one, two, directory] = words[..] else {
            panic!("these tests need root and iproute2; the helper said {line:?}");
        };
        let prefix = one.strip_suffix("one").unwrap().to_owned();
        Self {
            process,
            one: one.to_owned(),
            two: two.to_owned(),
            switch: format!("{prefix}switch"),
            prefix,
            directory: directory.into(),
        }
    }

    fn names(&self) -> [&str; 3] {
        [&self.one, &self.two, &self.switch]
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Does the work of the missing janitor.
    fn clean(&self) {
        for name in self.names() {
            for pid in namespace_pids(name) {
                let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
                let _ = rustix::process::kill_process(pid, lab::Signal::KILL);
            }
            let deleted = Command::new("ip").args(["netns", "delete", name]).status();
            assert!(deleted.unwrap().success());
        }
        fs::remove_dir_all(&self.directory).unwrap();
    }
}

fn namespace_pids(name: &str) -> Vec<String> {
    let output = Command::new("ip").args(["netns", "pids", name]).output();
    let listed = String::from_utf8(output.unwrap().stdout).unwrap();
    listed.lines().map(str::to_owned).collect()
}

#[test]
fn killed_lab_leaves_nothing() {
    let mut holder = Holder::start(false);
    assert!(holder.names().into_iter().all(exists));
    assert!(holder.directory.exists());
    let pids = namespace_pids(&holder.one);
    assert_eq!(pids.len(), 1);
    holder.kill();
    eventually("the janitor is done", || {
        processes_with(&holder.prefix).is_empty()
    });
    assert!(!holder.names().into_iter().any(exists));
    assert!(!holder.directory.exists());
    eventually("the sleeper is dead", || {
        !pids.iter().any(|pid| Path::new("/proc").join(pid).exists())
    });
}

#[test]
fn lab_is_kept_by_environment_variable() {
    // When the process of the lab is killed: all processes on the hosts stay, too.
    let mut holder = Holder::start(true);
    assert_eq!(processes_with(&holder.prefix), [""; 0], "no janitor");
    let pids = namespace_pids(&holder.one);
    holder.kill();
    assert!(holder.names().into_iter().all(exists));
    assert_eq!(namespace_pids(&holder.one), pids);
    holder.clean();
    // When the lab is dropped: the names are printed.
    let mut holder = Holder::start(true);
    drop(holder.process.stdin.take());
    assert!(holder.process.wait().unwrap().success());
    let mut told = String::new();
    let stderr = holder.process.stderr.as_mut().unwrap();
    stderr.read_to_string(&mut told).unwrap();
    assert!(
        holder.names().iter().all(|name| told.contains(name)),
        "{told}"
    );
    assert!(told.contains(holder.directory.to_str().unwrap()), "{told}");
    assert!(holder.names().into_iter().all(exists));
    holder.clean();
}
