//! What the real trees would refuse later, as they are mounted, or paths are long, is refused now.

use encapsulation::{Identity, Kind, Refused, TreePath};
use rustix::{
    fs::{AtFlags, StatVfsMountFlags, StatxFlags, statx},
    io::Errno,
};

use crate::tree::Tree;

/// The kernel takes paths of 4095 bytes (`PATH_MAX`); some of them are for what is beside a file for a moment
/// ([`crate::reveal`]).
const LONGEST_PATH_BYTES: usize = 4000;

impl Tree {
    /// Whether what is there can be changed when it is revealed.
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

    /// Which mount that is in: a directory can be in two of one device.
    fn mount(&self, path: &TreePath) -> Result<u64, Errno> {
        let (empty, about) = (AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
        Ok(statx(self.real.innermost(path)?, c"", empty, about)?.stx_mnt_id)
    }

    fn is_one_mount(&mut self, one: &TreePath, other: &TreePath) -> Result<bool, Errno> {
        Ok(self.device(one)? == self.device(other)? && self.mount(one)? == self.mount(other)?)
    }

    /// The device of a directory: what was made is where it was made.
    fn device(&mut self, directory: &TreePath) -> Result<u64, Errno> {
        let mut at = directory.clone();
        loop {
            if let Identity::Real { device, .. } = self.look(&at)?.stat.identity {
                return Ok(device);
            }
            at = at.split().ok_or(Errno::IO)?.0;
        }
    }

    /// Names in different mounts are never of one thing.
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
