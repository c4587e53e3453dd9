//! Shared parts of the tests: a cgroup that is removed afterwards, also when a test fails.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use supervise::mounts::{self, Mount};
use supervise::{Cgroup, become_subreaper, reap_orphans};

/// Longer than anything here takes on a machine that is busy, short enough for a test
/// that fails.
pub(crate) const EVENT_TIMEOUT: Duration = Duration::from_secs(120);

/// A cgroup of a test, with mount, name and run directory.
pub(crate) struct Service {
    pub(crate) mount: Mount,
    pub(crate) name: String,
    pub(crate) run_dir: tempfile::TempDir,
}

impl Service {
    pub(crate) fn new() -> (Self, Cgroup) {
        require_root();
        become_subreaper().expect("a subreaper");
        static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("test-{}-{number}", std::process::id());
        let run_dir = tempfile::tempdir().expect("a run directory");
        let mount = mounts::cgroup2(run_dir.path()).expect("a cgroup2 mount");
        let cgroup = Cgroup::create(&mount, &name).expect("a cgroup");
        let service = Self {
            mount,
            name,
            run_dir,
        };
        (service, cgroup)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let Ok(cgroup) = Cgroup::open(&self.mount, &self.name) else {
            return; // the test has removed the cgroup
        };
        let _ = cgroup.kill();
        let _ = cgroup.wait_empty(EVENT_TIMEOUT);
        let _ = reap_orphans(&cgroup, &[]);
        let _ = cgroup.remove();
    }
}

pub(crate) fn require_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test needs root: run it with sudo"
    );
}

/// Waits until `condition` holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < EVENT_TIMEOUT,
            "{what}: not in {EVENT_TIMEOUT:?}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether there is a process, or zombie, with this number.
pub(crate) fn exists(pid: supervise::Pid) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
