//! Refuses early the changes that the real trees would refuse at the reveal, because of mounts or long paths.

use encapsulation::{Identity, Kind, Refused, TreePath};
use rustix::{
    fs::{AtFlags, StatVfsMountFlags, StatxFlags, statx},
    io::Errno,
};

use crate::tree::Tree;

/// The kernel takes paths of 4095 bytes (`PATH_MAX`); some bytes are reserved for the temporary name beside a file
/// ([`crate::reveal`]).
const LONGEST_PATH_BYTES: usize = 4000;

impl Tree {
    /// Whether a file at this path can be changed by the reveal.
    pub(crate) fn revealable(&self, path: &TreePath) -> Result<(), Refused> {
        if path.as_path().as_os_str().len() > LONGEST_PATH_BYTES {
            return Err(Refused::Unconcealable("a path is too long"));
        }
        if self.is_read_only(path) {
            return Err(Errno::ROFS.into());
        }
        Ok(())
    }

    fn is_read_only(&self, path: &TreePath) -> bool {
        let mounted = self.real.innermost(path).and_then(rustix::fs::fstatvfs);
        mounted.is_ok_and(|mounted| mounted.f_flag.contains(StatVfsMountFlags::RDONLY))
    }

    /// Number of the mount of this path: a directory can be in two mounts of a device.
    fn mount(&self, path: &TreePath) -> Result<u64, Errno> {
        let (empty, about) = (AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
        Ok(statx(self.real.innermost(path)?, c"", empty, about)?.stx_mnt_id)
    }

    fn is_one_mount(&mut self, one: &TreePath, other: &TreePath) -> Result<bool, Errno> {
        Ok(self.device(one)? == self.device(other)? && self.mount(one)? == self.mount(other)?)
    }

    /// The device of a directory. A new directory is on the device of its parent.
    fn device(&mut self, directory: &TreePath) -> Result<u64, Errno> {
        let mut at = directory.clone();
        loop {
            if let Identity::Real { device, .. } = self.look(&at)?.stat.identity {
                return Ok(device);
            }
            at = at.split().ok_or(Errno::IO)?.0;
        }
    }

    /// Names in different mounts never belong to the same file.
    pub(crate) fn in_one_mount(&mut self, one: &TreePath, other: &TreePath) -> Result<(), Errno> {
        let (one, _) = one.split().ok_or(Errno::BUSY)?;
        let (other, _) = other.split().ok_or(Errno::BUSY)?;
        if one == other || self.is_one_mount(&one, &other)? {
            return Ok(());
        }
        Err(Errno::XDEV)
    }

    /// Where something is mounted, that stays.
    pub(crate) fn not_mounted(&mut self, path: &TreePath) -> Result<(), Errno> {
        let (parent, _) = path.split().ok_or(Errno::BUSY)?;
        match self.look(path) {
            Ok(found) if found.stat.kind == Kind::Directory => {}
            _ => return Ok(()),
        }
        if self.is_one_mount(path, &parent)? {
            return Ok(());
        }
        Err(Errno::BUSY)
    }
}
