use proptest::prelude::*;
use rustix::process::Pid;

use super::{names_cgroup, state_and_parent};

#[test]
fn stat_is_parsed_behind_last_parenthesis() {
    let parent = Pid::from_raw(7);
    assert_eq!(
        state_and_parent(b"12 (sleep) Z 7 12 12 0 -1"),
        Some((b'Z', parent))
    );
    assert_eq!(
        state_and_parent(b"12 (a) S 3 (b)) Z 7 12"),
        Some((b'Z', parent))
    );
    assert_eq!(state_and_parent(b"12 (init) S 0 1"), Some((b'S', None)));
    assert_eq!(state_and_parent(b"12 (sleep) Z"), None);
    assert_eq!(state_and_parent(b"12 sleep Z 7"), None);
}

#[test]
fn membership_needs_whole_name_in_v2_line() {
    let path = "/outlive/web";
    assert!(names_cgroup("1:cpu:/\n0::/outlive/web\n", path));
    assert!(names_cgroup("0::/outlive/web/worker\n", path));
    assert!(names_cgroup("0::/outlive/web (deleted)\n", path));
    assert!(!names_cgroup("0::/outlive/web2\n", path));
    assert!(!names_cgroup("0::/outlive\n", path));
    assert!(!names_cgroup("4:memory:/outlive/web\n0::/\n", path));
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_parsed(stat: Vec<u8>, text: String) {
        let parsed = state_and_parent(&stat);
        prop_assert!(parsed.is_none() || stat.contains(&b')'));
        prop_assert!(!names_cgroup(&text, "/outlive/web") || text.contains("/outlive/web"));
    }
}
