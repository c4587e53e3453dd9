//! Files, mounts and pins of a member: `<run directory>/.objects/<name>/`. No service's name begins with a dot.
//!
//! A member that is killed leaves its programs, its addresses and its server in place: the lease is over soon, so all
//! of this is silent, and other members have the connections. The next start removes the remains, and so does `outlive
//! clean`.

use std::{
    fs::{self, File, Permissions},
    io::ErrorKind,
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use dataplane::{PinDirectory, detach_clsact, member_pins};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use serde::Serialize;
use supervise::{Addresses, Cgroup, CgroupError, HostAddress, destroy_sockets, host_name, mounts};

use crate::error::{MemberError, SystemContext};

const MEMBERS_DIRECTORY: &str = ".objects";
const LOCK_FILE: &str = "lock";
/// The addresses of the pool, one on each line.
const ADDRESSES_FILE: &str = "addresses";
/// The device that holds the addresses, and its number.
const LOOPBACK: (&str, u32) = ("lo", 1);

/// The removed remains of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cleaned {
    /// The name of the member.
    pub member: String,
    /// Processes of the server that were killed.
    pub killed: usize,
    /// The programs were still attached.
    pub programs: bool,
    /// Addresses of the pool that were taken down.
    pub addresses: usize,
}

fn directory(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(MEMBERS_DIRECTORY).join(name)
}

/// The socket on which a running member answers an operator.
pub(crate) fn socket(run_dir: &Path, name: &str) -> PathBuf {
    directory(run_dir, name).join("control.sock")
}

/// The place of a member on this host, locked. At the end mounts and directory stay only if programs or processes of
/// the member are left.
pub(crate) struct MemberDirectory {
    directory: PathBuf,
    mounts: Option<Mounts>,
    cgroup_name: String,
    pins: PinDirectory,
    _lock: File,
}

struct Mounts {
    cgroup2: mounts::Mount,
    bpffs: mounts::Mount,
}

impl MemberDirectory {
    /// Makes and locks the directory.
    pub(crate) fn lock(run_dir: &Path, name: &str) -> Result<Self, MemberError> {
        let directory = directory(run_dir, name);
        let doing = "make the member's run directory";
        fs::create_dir_all(&directory).doing(doing)?;
        fs::set_permissions(&directory, Permissions::from_mode(0o700)).doing(doing)?;
        let lock = File::create(directory.join(LOCK_FILE)).doing("make the member's lock")?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(MemberError::Runs(name.to_owned())),
            Err(error) => return Err(error.into()).doing("take the member's lock"),
        }
        let mounts = Mounts {
            cgroup2: mounts::cgroup2(&directory)?,
            bpffs: mounts::bpffs(&directory)?,
        };
        let pins = member_pins(mounts.bpffs.path(), &host_name(run_dir, name));
        Ok(Self {
            directory,
            mounts: Some(mounts),
            cgroup_name: host_name(run_dir, &format!("objects-{name}")),
            pins,
            _lock: lock,
        })
    }

    /// A cgroup for the server.
    pub(crate) fn create_cgroup(&self) -> Result<Cgroup, MemberError> {
        Ok(Cgroup::create(self.cgroup2()?, &self.cgroup_name)?)
    }

    pub(crate) fn pins(&self) -> PinDirectory {
        self.pins.clone()
    }

    /// Notes which addresses the member brings up.
    pub(crate) fn note_addresses(&self, addresses: &[SocketAddr]) -> Result<(), MemberError> {
        let lines: String = { addresses.iter() }
            .map(|address| format!("{address}\n"))
            .collect();
        fs::write(self.directory.join(ADDRESSES_FILE), lines).doing("note the pool's addresses")
    }

    /// Removes everything that an earlier member of this name has left. Processes of its server are killed only if
    /// `kill` is true.
    pub(crate) fn clear(&self, kill: bool) -> Result<(usize, bool), MemberError> {
        let killed = match Cgroup::open(self.cgroup2()?, &self.cgroup_name) {
            Ok(cgroup) => cgroup.remove_with_processes(kill)?,
            Err(CgroupError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(error.into()),
        };
        let is_attached = self.pins.exists();
        if is_attached {
            // While the programs are there: no client hears of the end.
            destroy_sockets(&self.noted_addresses()?, |_, _, _| true)?;
            detach_clsact(&self.pins)?;
            self.pins.remove()?;
        }
        Ok((killed, is_attached))
    }

    fn noted_addresses(&self) -> Result<Vec<SocketAddr>, MemberError> {
        match fs::read_to_string(self.directory.join(ADDRESSES_FILE)) {
            Ok(text) => Ok({ text.lines() }
                .filter_map(|line| line.parse().ok())
                .collect()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error).doing("read the pool's addresses"),
        }
    }

    /// Returns how many addresses of the pool were there.
    fn take_addresses_down(&self) -> Result<usize, MemberError> {
        let doing = "take an address of the pool down";
        let mut addresses = Addresses::open().doing("open a socket for addresses")?;
        let device = { Addresses::device(LOOPBACK.0).doing(doing)? }.unwrap_or(LOOPBACK.1);
        let held = addresses.list().doing("list the addresses of this host")?;
        let mut count = 0;
        for address in self.noted_addresses()? {
            let ip = address.ip();
            // An address that does not expire is the operator's.
            let is_ours = |it: &HostAddress| it.ip == ip && it.device == device && !it.permanent;
            if held.iter().any(is_ours) {
                addresses.remove(ip, device).doing(doing)?;
                count += 1;
            }
        }
        Ok(count)
    }

    fn cgroup2(&self) -> Result<&mounts::Mount, MemberError> {
        let mounts = self.mounts.as_ref().map(|mounts| &mounts.cgroup2);
        let missing = || std::io::Error::from(ErrorKind::NotFound);
        mounts.ok_or_else(missing).doing("find the cgroups")
    }

    fn has_remains(&self) -> bool {
        let open = |mounts: &Mounts| Cgroup::open(&mounts.cgroup2, &self.cgroup_name).is_ok();
        self.pins.exists() || self.mounts.as_ref().is_some_and(open)
    }
}

impl Drop for MemberDirectory {
    fn drop(&mut self) {
        let has_remains = self.has_remains();
        let Some(Mounts { cgroup2, bpffs }) = self.mounts.take() else {
            return;
        };
        if has_remains {
            // Without the pins a server that is left would speak, and the next start or `outlive clean` needs the pins.
            cgroup2.leave();
            bpffs.leave();
            return;
        }
        drop((cgroup2, bpffs));
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Names of the members that run or have left something.
#[must_use]
pub fn leftovers(run_dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(run_dir.join(MEMBERS_DIRECTORY));
    let mut names: Vec<String> = { entries.into_iter().flatten().flatten() }
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// Removes everything that a member has left. Processes of its server are killed only if `kill` is true.
///
/// # Errors
/// The member runs, never ran, its server runs and must not be killed, or a part cannot be removed.
pub fn clean(run_dir: &Path, name: &str, kill: bool) -> Result<Cleaned, MemberError> {
    if !directory(run_dir, name).exists() {
        return Err(MemberError::NeverRan(name.to_owned()));
    }
    let directory = MemberDirectory::lock(run_dir, name)?;
    let (killed, programs) = directory.clear(kill)?;
    let addresses = directory.take_addresses_down()?;
    Ok(Cleaned {
        member: name.to_owned(),
        killed,
        programs,
        addresses,
    })
}
