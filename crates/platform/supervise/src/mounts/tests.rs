use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rustix::io::Errno;

use super::{CGROUP2, MountError, mount_error, mountinfo};

fn found(table: &str) -> Vec<(PathBuf, String, bool)> {
    mountinfo::parse(table.as_bytes())
        .map(|m| {
            let filesystem = String::from_utf8_lossy(m.filesystem).into_owned();
            let writable = m.writable;
            (m.into_path(), filesystem, writable)
        })
        .collect()
}

#[test]
fn hybrid_layout_mountinfo() {
    let table = "\
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:3 master:1 - cgroup2 cgroup2 rw
";
    let unified = PathBuf::from("/sys/fs/cgroup/unified");
    assert_eq!(
        found(table),
        [
            ("/sys/fs/cgroup/cpu".into(), "cgroup".to_owned(), true),
            (unified, "cgroup2".to_owned(), true),
        ]
    );
}

#[test]
fn read_only_mounts_and_superblocks_are_recognized() {
    let table = "\
1 2 0:1 / /a ro,nosuid - cgroup2 cgroup2 rw
1 2 0:1 / /b rw,nosuid - cgroup2 cgroup2 ro,nsdelegate
1 2 0:1 / /c rw,errors=remount-ro - cgroup2 cgroup2 rw,nsdelegate
";
    let writable: Vec<bool> = found(table).into_iter().map(|m| m.2).collect();
    assert_eq!(writable, [false, false, true]);
}

#[test]
fn octal_escapes_are_decoded() {
    let table = r"1 2 0:1 / /a\040b\134c\011d\9 rw - bpf none rw";
    assert_eq!(found(table)[0].0, Path::new("/a b\\c\td\\9"));
}

#[test]
fn truncated_lines_are_skipped() {
    let line = "1 2 0:1 / /a rw - bpf none rw";
    for cut in 0..line.len() - 2 {
        assert_eq!(found(&line[..cut]), [], "{}", &line[..cut]);
    }
    assert_eq!(found(line).len(), 1);
}

#[test]
fn errors_contain_advice() {
    let message = |errno| mount_error(&CGROUP2, "/run/x/cgroup".into(), errno).to_string();
    assert!(message(Errno::PERM).contains("run as root"));
    assert!(message(Errno::NODEV).contains("CONFIG_CGROUPS"));
    assert!(message(Errno::BUSY).contains("mount the filesystem by hand"));
    assert!(
        MountError::CgroupNamespace
            .to_string()
            .contains("--cgroupns=host")
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_parsed(table: Vec<u8>) {
        for mount in mountinfo::parse(&table) {
            prop_assert!(mount.into_path().as_os_str().len() <= table.len());
        }
    }
}
