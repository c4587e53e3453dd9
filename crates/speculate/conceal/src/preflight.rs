//! Preconditions of concealed programs. The check comes before the first start, and reports the missing precondition
//! instead of a later failure.

use std::{fs, io};

use rustix::thread::{CapabilitySet, capabilities};

/// The device of FUSE file systems.
pub(crate) const FUSE_DEVICE: &str = "/dev/fuse";
/// Owner of files whose user has no number in the user namespace (`/proc/sys/kernel/overflowuid`).
const OVERFLOW_UID: u32 = 65_534;

/// A missing precondition.
#[derive(Debug, thiserror::Error)]
pub enum Missing {
    /// Mounts need root.
    #[error(
        "concealing programs takes root (CAP_SYS_ADMIN), for mounts: begin this as root, or with sudo"
    )]
    Root,
    /// The user namespace does not map the owners of files: then these files cannot change.
    #[error(
        "this root is in a user namespace that does not map all users (/proc/self/uid_map has no {0}): \
         run this outside, or in a user namespace that maps all users (podman: --userns=host)"
    )]
    User(u32),
    /// FUSE is not available.
    #[error(
        "cannot open {FUSE_DEVICE}: {0}: load the module (modprobe fuse), or give the device to this container (--device {FUSE_DEVICE})"
    )]
    Device(io::Error),
}

/// Checks the preconditions.
///
/// # Errors
/// The first missing precondition.
pub fn look() -> Result<(), Missing> {
    let capabilities = capabilities(None).map(|all| all.effective);
    if !capabilities.is_ok_and(|all| all.contains(CapabilitySet::SYS_ADMIN)) {
        return Err(Missing::Root);
    }
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid");
    let overflow = overflow.ok().and_then(|number| number.trim().parse().ok());
    let users = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    for user in [0, overflow.unwrap_or(OVERFLOW_UID)] {
        if !is_mapped(user, &users) {
            return Err(Missing::User(user));
        }
    }
    let device = fs::File::options().read(true).write(true).open(FUSE_DEVICE);
    device.map(drop).map_err(Missing::Device)
}

/// Whether a user map of a namespace contains the user. Each line has the first user inside, the first user outside
/// and a count. An unknown format counts as yes.
fn is_mapped(user: u32, map: &str) -> bool {
    let has = |line: &str| {
        let numbers: Vec<u64> = line
            .split_ascii_whitespace()
            .filter_map(|number| number.parse().ok())
            .collect();
        match numbers[..] {
            [first, _, count] => (first..first + count).contains(&u64::from(user)),
            _ => true,
        }
    };
    map.is_empty() || map.lines().any(has)
}

#[cfg(test)]
mod tests {
    use super::is_mapped;

    #[test]
    fn user_map_contains_mapped_users() {
        let all = "         0          0 4294967295\n";
        let one = "         0       1000          1\n";
        let many = "         0       1000          1\n         1     100000      65536\n";
        for (map, zero, nobody) in [(all, true, true), (one, true, false), (many, true, true)] {
            assert_eq!(is_mapped(0, map), zero, "{map}");
            assert_eq!(is_mapped(65_534, map), nobody, "{map}");
        }
        assert!(!is_mapped(0, "      1000       1000          1\n"));
        assert!(is_mapped(0, ""));
    }
}
