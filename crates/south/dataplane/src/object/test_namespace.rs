//! For tests on the kernel: namespaces and a bpffs of their own, and objects of other versions.

use std::{fs, io, path::Path, process::Command, thread};

use libbpf_cargo::SkeletonBuilder;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};

/// Runs the test in a network namespace and with a bpffs of its own. Both end with the test, also if the test fails:
/// the bpffs is mounted nowhere else.
pub(crate) fn alone(test: impl FnOnce(&Path) + Send) {
    let run = || {
        // SAFETY: the call concerns this thread alone, which does no other work.
        let result = unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) };
        assert_eq!(result, 0, "{}: run it as root", io::Error::last_os_error());
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).unwrap();
        let status = Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status();
        assert!(status.unwrap().success());
        let bpffs = tempfile::tempdir().unwrap();
        mount("bpf", bpffs.path(), "bpf", MountFlags::empty(), None).unwrap();
        test(bpffs.path());
        // A mounted directory cannot be removed.
        unmount(bpffs.path(), UnmountFlags::DETACH).unwrap();
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap());
}

/// The object that clang makes of a source of this crate.
pub(super) fn compiled(source: &str, flags: &[&str]) -> Vec<u8> {
    let place = tempfile::tempdir().unwrap();
    let object = place.path().join("object.bpf.o");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let flags = [&["-mcpu=v3", "-nostdinc"], flags].concat();
    let mut builder = SkeletonBuilder::new();
    builder.source(source).obj(&object).clang_args(flags);
    builder.build().expect("clang compiles it");
    fs::read(&object).unwrap()
}
