//! Finding and mounting cgroup2 and bpffs, also where a network namespace hides them.

use std::fs;
use std::path::Path;

use crate::common::{EVENT_TIMEOUT, Service, require_root};
use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use supervise::mounts;
use supervise::{Cgroup, Command, Exit};

/// Runs `test` on a thread with a separate mount namespace and without `/sys`, as `ip netns exec` does before the mount
/// of a new `/sys`.
fn without_sys(test: impl FnOnce() + Send) {
    let hidden = || {
        unshare(CloneFlags::CLONE_NEWNS).expect("a namespace");
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).expect("private");
        unmount("/sys", UnmountFlags::DETACH).expect("unmounted");
        test();
    };
    std::thread::scope(|s| s.spawn(hidden).join().expect("no panic"));
}

fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/thread-self/mountinfo").expect("readable");
    table.lines().any(|l| l.contains(&*path.to_string_lossy()))
}

#[test]
fn host_cgroup2_mount_is_found_and_untouched() {
    let (service, _cgroup) = Service::new();
    assert!(service.mount.path().join("cgroup.procs").exists());
    if !service.mount.is_ours() {
        let path = service.mount.path().to_owned();
        mounts::cgroup2(service.run_dir.path())
            .expect("again")
            .unmount()
            .expect("nothing");
        assert!(path.join("cgroup.procs").exists());
    }
}

#[test]
fn missing_cgroup2_is_mounted_privately() {
    require_root();
    without_sys(|| {
        let run = tempfile::tempdir().expect("a run directory");
        let own = run.path().join("cgroup");
        let mount = mounts::cgroup2(run.path()).expect("mounted");
        assert!(mount.is_ours());
        assert_eq!(mount.path(), own);

        // The tree is the same as in every mount: a server can run in the tree.
        let name = format!("private-{}", std::process::id());
        let cgroup = Cgroup::create(&mount, &name).expect("a cgroup");
        let mut server = Command::new(["sh", "-c", "exit 4"])
            .start(&cgroup)
            .expect("starts");
        let exit = server.wait(EVENT_TIMEOUT).expect("ours");
        assert_eq!(exit, Some(Exit::Status(4)));
        cgroup.remove().expect("empty");

        // A later supervisor takes over the mount that was left.
        mount.leave();
        assert!(is_mounted(&own));
        let mount = mounts::cgroup2(run.path()).expect("found");
        assert!(mount.is_ours());
        drop(mount);
        assert!(!is_mounted(&own));
        assert!(!own.exists());
    });
}

/// Another supervisor's mount goes away when that supervisor ends.
#[test]
fn foreign_private_mount_is_not_used() {
    require_root();
    without_sys(|| {
        let (first, second) = (tempfile::tempdir(), tempfile::tempdir());
        let (first, second) = (first.expect("a directory"), second.expect("a directory"));
        let first = mounts::cgroup2(first.path()).expect("mounted");
        let mount = mounts::cgroup2(second.path()).expect("mounted");
        assert!(mount.path().starts_with(second.path()));
        first.unmount().expect("unmounted");
        assert!(mount.path().join("cgroup.procs").exists());
    });
}

/// Then the processes cannot be found, which must not read as "there are none".
#[test]
fn vanished_mount_is_not_an_empty_cgroup() {
    let (service, cgroup) = Service::new();
    let mut server = Command::new(["sleep", "1000"])
        .start(&cgroup)
        .expect("starts");
    without_sys(|| {
        let run = tempfile::tempdir().expect("a run directory");
        let mount = mounts::cgroup2(run.path()).expect("mounted");
        let adopted = Cgroup::open(&mount, &service.name).expect("the same tree");
        mount.unmount().expect("unmounted");
        assert!(adopted.populated().expect("still open"));
        adopted.procs().expect_err("out of reach");
        adopted.kill().expect_err("out of reach");
    });
    cgroup.kill().expect("killed");
    assert!(server.wait(EVENT_TIMEOUT).expect("ours").is_some());
    assert!(cgroup.procs().expect("empty").is_empty());
}

#[test]
fn missing_bpffs_is_mounted_privately() {
    require_root();
    without_sys(|| {
        let run = tempfile::tempdir().expect("a run directory");
        let own = run.path().join("bpf");
        let mount = mounts::bpffs(run.path()).expect("mounted");
        assert!(mount.is_ours());
        // bpffs has no plain files, and takes directories.
        fs::create_dir(mount.path().join("pins")).expect("a directory");
        assert!(fs::write(mount.path().join("file"), "").is_err());

        let again = mounts::bpffs(run.path()).expect("found");
        assert!(again.path().join("pins").exists(), "the same one");
        again.leave();
        mount.unmount().expect("unmounted");
        assert!(!is_mounted(&own));
        assert!(!own.exists());
    });
}

#[test]
fn unusable_run_directory_is_an_error() {
    require_root();
    without_sys(|| {
        let error = mounts::cgroup2(Path::new("/proc/none")).expect_err("not in /proc");
        assert!(
            matches!(error, mounts::MountError::Directory { .. }),
            "{error}"
        );
    });
}
