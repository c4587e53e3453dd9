use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Cgroup, CgroupError, is_populated, list, path_of};
use crate::mounts;
use rustix::process::{Pid, geteuid};

#[test]
fn populated_needs_whole_line() {
    assert!(is_populated(b"populated 1\nfrozen 0\n"));
    assert!(is_populated(b"frozen 0\npopulated 1\n"));
    assert!(!is_populated(b"populated 0\nfrozen 1\n"));
    assert!(!is_populated(b""));
}

#[test]
fn invalid_cgroup_names_are_refused() {
    let run = tempfile::tempdir().expect("a run directory");
    let mount = root_mount(run.path());
    for bad in [
        "",
        "a/b",
        "a\nb",
        ".",
        "..",
        ".a",
        "cgroup.procs",
        &"x".repeat(201),
    ] {
        let error = path_of(&mount, bad).expect_err(bad);
        assert!(matches!(error, CgroupError::InvalidName { .. }), "{bad:?}");
    }
    for good in ["web", "10.0.0.10:80", "[2001:db8::1]:80", "ä"] {
        assert!(path_of(&mount, good).is_ok(), "{good:?}");
    }
}

#[test]
fn pids_are_listed_with_commas() {
    let pids: Vec<Pid> = [1, 20, 300].into_iter().filter_map(Pid::from_raw).collect();
    assert_eq!(list(&pids), "1, 20, 300");
}

/// Kernels before 5.14 need this function, and the tests run on newer kernels.
#[test]
fn processes_are_killed_singly_without_cgroup_kill() {
    let run = tempfile::tempdir().expect("a run directory");
    let mount = root_mount(run.path());
    let name = format!("unit-kill-each-{}", std::process::id());
    let cgroup = Cgroup::create(&mount, &name).expect("a cgroup");
    let mut children: Vec<_> = (0..5)
        .map(|_| {
            let child = Command::new("sleep")
                .arg("1000")
                .stdin(Stdio::null())
                .spawn();
            child.expect("sleep starts")
        })
        .collect();
    for child in &children {
        let pid = child.id().to_string();
        cgroup.write("cgroup.procs", pid.as_bytes()).expect("moves");
    }
    assert_eq!(cgroup.procs().expect("pids").len(), 5);

    let killed = cgroup.kill_each();
    for child in &mut children {
        // Also after a failure, no child is left behind.
        let _ = child.kill();
        let _ = child.wait();
    }
    killed.expect("killed");
    assert!(cgroup.wait_empty(Duration::ZERO).expect("events"));
    let frozen = std::fs::read_to_string(cgroup.path().join("cgroup.freeze")).expect("freeze");
    assert_eq!(frozen.trim(), "0", "the next server would not run");
    cgroup.remove().expect("removed");
}

fn root_mount(run_dir: &Path) -> mounts::Mount {
    assert!(
        geteuid().is_root(),
        "this test needs root: run it with sudo"
    );
    mounts::cgroup2(run_dir).expect("a cgroup2 mount")
}
