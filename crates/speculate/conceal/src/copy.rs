//! Copies of files, in the place of the original.

use std::{
    collections::BTreeSet,
    ffi::{CStr, CString},
    os::fd::OwnedFd,
};

use encapsulation::Refused;
use rustix::{
    fs::{XattrFlags, fgetxattr, flistxattr, flistxattr_query, fremovexattr, fsetxattr},
    io::Errno,
};

/// File capabilities (capabilities(7)), which any write removes.
const CAPABILITIES: &CStr = c"security.capability";
/// Longest value of an extended attribute, bytes (`XATTR_SIZE_MAX`).
const LONGEST: usize = 1 << 16;

/// Copies the content, if wanted, and all attributes beyond stat(2).
pub(crate) fn content(from: &OwnedFd, to: &OwnedFd, all: bool) -> Result<(), Refused> {
    if all {
        bytes(from, to)?;
    }
    extended(from, to, all).map_err(|error| match error {
        Errno::PERM | Errno::OPNOTSUPP => {
            Refused::Unconcealable("attributes of a file cannot be copied")
        }
        error => error.into(),
    })
}

/// Copies by reference if the file system can do so.
fn bytes(from: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    loop {
        match rustix::fs::copy_file_range(from, None, to, None, 1 << 30) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Copies extended attributes with access lists: a new file may have attributes of its directory.
fn extended(from: &OwnedFd, to: &OwnedFd, all: bool) -> Result<(), Errno> {
    let (names, has) = (names(from)?, names(to)?);
    for name in has.difference(&names) {
        fremovexattr(to, &**name)?;
    }
    let mut value = vec![0; if names.is_empty() { 0 } else { LONGEST }];
    for name in names
        .iter()
        .filter(|name| all || name.as_c_str() != CAPABILITIES)
    {
        let length = fgetxattr(from, &**name, &mut value)?;
        fsetxattr(to, &**name, &value[..length], XattrFlags::empty())?;
    }
    Ok(())
}

fn names(of: &OwnedFd) -> Result<BTreeSet<CString>, Errno> {
    let length = match flistxattr_query(of) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(BTreeSet::new()),
        length => length?,
    };
    let mut names = vec![0; length];
    let length = flistxattr(of, &mut names)?;
    let names = names[..length].split_inclusive(|byte| *byte == 0);
    let name = |name: &[u8]| CStr::from_bytes_with_nul(name).map(CStr::to_owned);
    let names: Result<_, _> = names.map(name).collect();
    names.map_err(|_| Errno::INVAL)
}
