//! The cgroup v2 and bpf filesystems, found or mounted, and a filesystem in memory for this program.
//!
//! The host chooses the mount points: `/sys/fs/cgroup` on a unified layout, `/sys/fs/cgroup/unified` on a hybrid
//! layout, and no mount point inside `ip netns exec`, which mounts a fresh `/sys`. Therefore
//! `/proc/thread-self/mountinfo` is read (a thread can be in a separate mount namespace). The type of each candidate is
//! checked by statfs(2), because a later mount may cover the candidate. Without a candidate, the filesystem is mounted
//! in the run directory: a second mount of either filesystem is cheap, and each mount of cgroup2 shows the same tree. A
//! mount in any other place is not used: the mount may be private, perhaps of another supervisor, and may vanish at any
//! time.

mod mountinfo;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::statfs;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

use mountinfo::MountPoint;

/// Inode number of the root directory of the cgroup2 hierarchy. A directory that looks like a root and has another
/// number is the root of a cgroup namespace, an unknown number of levels below the real root.
const CGROUP_ROOT_INODE: u64 = 1;

/// A filesystem that `serve` needs.
struct Filesystem {
    /// Name of the filesystem for mount(2) and in mountinfo.
    name: &'static str,
    /// `f_type` of statfs(2) (`include/uapi/linux/magic.h`).
    magic: u64,
    /// The host's mount point is this directory or below.
    usual: &'static str,
    /// Directory under the run directory for a mount of this program.
    own_directory: &'static str,
    /// Mount options.
    options: Option<&'static CStr>,
    /// Build option that a kernel without this filesystem lacks.
    kernel_option: &'static str,
}

const CGROUP2: Filesystem = Filesystem {
    name: "cgroup2",
    magic: 0x6367_7270,
    // The directory itself on a unified layout, a subdirectory on a hybrid layout.
    usual: "/sys/fs/cgroup",
    own_directory: "cgroup",
    options: None,
    kernel_option: "CONFIG_CGROUPS",
};

/// Flags of all mounts of this program.
const MOUNT_FLAGS: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);

/// Not the host's `/run`, which may be small: a write beyond the size of the mount kills the writer.
const TMPFS: Filesystem = Filesystem {
    name: "tmpfs",
    magic: 0x0102_1994,
    usual: "",
    own_directory: "memory",
    options: None,
    kernel_option: "CONFIG_TMPFS",
};

const BPFFS: Filesystem = Filesystem {
    name: "bpf",
    magic: 0xcafe_4a11,
    usual: "/sys/fs/bpf",
    own_directory: "bpf",
    options: Some(c"mode=0700"),
    kernel_option: "CONFIG_BPF_SYSCALL",
};

/// A filesystem that is not available, with advice.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The list of mounts cannot be read.
    #[error("cannot read /proc/thread-self/mountinfo: {0}; mount /proc")]
    Mountinfo(#[source] io::Error),
    /// The directory to mount on cannot be made.
    #[error("cannot create {path}: {source}; choose another run directory")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The permission to mount is missing.
    #[error("mounting {filesystem} on {path} is not permitted; run as root (CAP_SYS_ADMIN)")]
    NotPermitted {
        /// Name of the filesystem.
        filesystem: &'static str,
        /// Mount point.
        path: PathBuf,
    },
    /// The kernel does not know the filesystem.
    #[error("this kernel has no {filesystem} filesystem: use a kernel with {kernel_option}")]
    Unknown {
        /// Name of the filesystem.
        filesystem: &'static str,
        /// The kernel's build option of the filesystem.
        kernel_option: &'static str,
    },
    /// mount(2) failed for another reason.
    #[error(
        "cannot mount {filesystem} on {path}: {source}; mount the filesystem by hand and try again"
    )]
    Mount {
        /// Name of the filesystem.
        filesystem: &'static str,
        /// Mount point of the attempt.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Only a part of the cgroup tree is visible: then the level of a cgroup in the kernel is unknown.
    #[error(
        "the root of the cgroup2 tree is hidden by a cgroup namespace; \
         run in the host's (for a container: --cgroupns=host)"
    )]
    CgroupNamespace,
    /// umount(2) failed.
    #[error("cannot unmount {path}: {source}; run `umount -l {path}`")]
    Unmount {
        /// Mount point.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// A mounted filesystem. A drop unmounts a filesystem that this program mounted, except in a panic.
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    ours: bool,
}

impl Mount {
    /// Mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this program mounted the filesystem, now or in an earlier run that left the mount behind.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.ours
    }

    /// Unmounts a filesystem that this program mounted, and removes the mount point. Open files stay usable; pins in a
    /// bpf filesystem of this program are released.
    ///
    /// # Errors
    ///
    /// When umount(2) fails.
    pub fn unmount(mut self) -> Result<(), MountError> {
        self.release().map_err(|source| MountError::Unmount {
            path: self.path.clone(),
            source,
        })
    }

    /// Changes the size of a filesystem in memory to `bytes`. The files are not touched.
    ///
    /// # Errors
    ///
    /// When the files need more.
    pub fn resize(&self, bytes: u64) -> Result<(), MountError> {
        let options = size_of_memory(bytes);
        mount_remount(&self.path, MOUNT_FLAGS, &*options)
            .map_err(|errno| mount_error(&TMPFS, self.path.clone(), errno))
    }

    /// Bytes of the files in a filesystem in memory, with and without names.
    ///
    /// # Errors
    ///
    /// When statfs(2) fails.
    pub fn used(&self) -> io::Result<u64> {
        let about = statfs(&self.path)?;
        let block = u64::try_from(about.f_bsize).unwrap_or(0);
        Ok(about.f_blocks.saturating_sub(about.f_bfree) * block)
    }

    /// Leaves the filesystem mounted for a later supervisor.
    pub fn leave(mut self) {
        self.ours = false;
    }

    fn release(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.ours) {
            return Ok(());
        }
        unmount(&self.path, UnmountFlags::DETACH)?;
        // Only tidiness: an empty directory in the run directory does no harm.
        let _ = fs::remove_dir(&self.path);
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return; // the pins may be the last remains of a service
        }
        if let Err(error) = self.release() {
            tracing::warn!(path = %self.path.display(), %error, "cannot unmount");
        }
    }
}

/// The cgroup v2 hierarchy: the host's mount in `/sys/fs/cgroup`, else our own at
/// `<run_dir>/cgroup`.
///
/// # Errors
///
/// When no mount is usable and a mount fails; [`MountError::CgroupNamespace`] when only a part of the tree is visible.
pub fn cgroup2(run_dir: &Path) -> Result<Mount, MountError> {
    let found = find_or_mount(&CGROUP2, run_dir, is_cgroup_root)?;
    if is_cgroup_root(found.path()) {
        Ok(found)
    } else {
        Err(MountError::CgroupNamespace)
    }
}

/// A bpf filesystem: the host's at `/sys/fs/bpf`, else a mount of this program at `<run_dir>/bpf`.
///
/// # Errors
///
/// When the host has no mount and a mount fails.
pub fn bpffs(run_dir: &Path) -> Result<Mount, MountError> {
    find_or_mount(&BPFFS, run_dir, |_| true)
}

/// A filesystem in memory for at most `bytes`, at `<run_dir>/memory`, which outlives this process.
///
/// # Errors
///
/// When the mount fails.
pub fn memory(run_dir: &Path, bytes: u64) -> Result<Mount, MountError> {
    if let Some(found) = memory_left(run_dir) {
        return Ok(found);
    }
    let options = size_of_memory(bytes);
    mount_own(&TMPFS, run_dir.join(TMPFS.own_directory), Some(&options))
}

fn size_of_memory(bytes: u64) -> CString {
    CString::new(format!("mode=0700,size={bytes}")).unwrap_or_default()
}

/// The filesystem in memory that an earlier run has left in `run_dir`.
#[must_use]
pub fn memory_left(run_dir: &Path) -> Option<Mount> {
    let path = run_dir.join(TMPFS.own_directory);
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let is_other = device(&path).is_some_and(|own| Some(own) != device(run_dir));
    (is_other && is_mounted(&TMPFS, &path)).then(|| Mount { path, ours: true })
}

fn is_cgroup_root(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.ino() == CGROUP_ROOT_INODE)
}

/// The host's writable mount of `filesystem`, or an earlier mount in `run_dir`, if `acceptable`; else a new mount.
fn find_or_mount(
    filesystem: &Filesystem,
    run_dir: &Path,
    acceptable: impl Fn(&Path) -> bool,
) -> Result<Mount, MountError> {
    let table = fs::read("/proc/thread-self/mountinfo").map_err(MountError::Mountinfo)?;
    let own = run_dir.join(filesystem.own_directory);
    // mountinfo has resolved paths; the path of the run directory may have symbolic links.
    let own_resolved = fs::canonicalize(&own).ok();
    let is_own = |path: &Path| own_resolved.as_deref() == Some(path);
    mountinfo::parse(&table)
        .filter(|m| m.filesystem == filesystem.name.as_bytes() && m.writable)
        .map(MountPoint::into_path)
        .filter(|path| path.starts_with(filesystem.usual) || is_own(path))
        .find(|path| is_mounted(filesystem, path) && acceptable(path))
        .map_or_else(
            || mount_own(filesystem, own, filesystem.options),
            |path| {
                let ours = is_own(&path);
                Ok(Mount { path, ours })
            },
        )
}

/// Whether `path` is on `filesystem`: a mount in the table may be covered by another.
fn is_mounted(filesystem: &Filesystem, path: &Path) -> bool {
    // The type's width and sign differ between architectures; the magic has 32 bits.
    statfs(path).is_ok_and(|s| u64::try_from(s.f_type).is_ok_and(|t| t == filesystem.magic))
}

fn mount_own(
    filesystem: &Filesystem,
    path: PathBuf,
    options: Option<&CStr>,
) -> Result<Mount, MountError> {
    if let Err(source) = fs::create_dir_all(&path) {
        return Err(MountError::Directory { path, source });
    }
    let name = filesystem.name;
    match mount(name, &path, name, MOUNT_FLAGS, options) {
        Ok(()) => Ok(Mount { path, ours: true }),
        Err(errno) => {
            // The directory was made a moment ago, for this mount alone.
            let _ = fs::remove_dir(&path);
            Err(mount_error(filesystem, path, errno))
        }
    }
}

fn mount_error(filesystem: &Filesystem, path: PathBuf, errno: Errno) -> MountError {
    match errno {
        Errno::PERM | Errno::ACCESS => MountError::NotPermitted {
            filesystem: filesystem.name,
            path,
        },
        Errno::NODEV => MountError::Unknown {
            filesystem: filesystem.name,
            kernel_option: filesystem.kernel_option,
        },
        errno => MountError::Mount {
            filesystem: filesystem.name,
            path,
            source: errno.into(),
        },
    }
}
