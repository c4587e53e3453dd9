//! Whether another process already listens on an address of the service.
//!
//! An early check gives a better error than the server's own "address in use". The kernel's tables `/proc/net/tcp` and
//! `tcp6` show listeners in the network namespace of the calling thread. sock_diag(7) shows listeners, too, but not the
//! owners.

mod proc_net;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use rustix::process::Pid;

use crate::cgroup::Cgroup;
use crate::destroy::diag::DiagSocket;
use crate::tcp_state::TcpState;
use proc_net::Row;

/// A process that listens on an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The bound address: the address asked for, or the wildcard.
    pub address: SocketAddr,
    /// The process, if visible from here. If several processes share the socket, the process with the lowest pid, which
    /// usually is the master.
    pub pid: Option<Pid>,
    /// Name of that process (`/proc/<pid>/comm`).
    pub program: Option<String>,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.program, self.pid) {
            (Some(program), Some(pid)) => write!(f, "{program} (pid {pid})")?,
            (None, Some(pid)) => write!(f, "pid {pid}")?,
            (_, None) => f.write_str("a process that is not visible from here")?,
        }
        write!(f, " listens on {}", self.address)
    }
}

/// The process that listens on TCP `address`, or on a wildcard that covers the address, in the network namespace of the
/// calling thread. For a wildcard `address`, any listener on that port counts.
///
/// # Errors
///
/// When `/proc/net` cannot be read.
pub fn listener_on(address: SocketAddr) -> io::Result<Option<Owner>> {
    let row = row_of(address)?;
    Ok(row.map(|row| {
        let pid = row.inode.and_then(owner_of);
        Owner {
            address: row.local,
            pid,
            program: pid.and_then(program_of),
        }
    }))
}

/// Whether [`listener_on`] would find a listener. [`listener_on`] also looks for the owner: through all files of all
/// processes, which takes tens of milliseconds, and three times through the tables, for which the kernel walks through
/// the connections of all network namespaces.
///
/// # Errors
///
/// As [`listener_on`].
pub fn is_listened_on(address: SocketAddr) -> io::Result<bool> {
    let listed = DiagSocket::open().and_then(|mut diag| diag.listeners(address.port()));
    let Ok(listed) = listed else {
        return Ok(row_of(address)?.is_some()); // a kernel without sock_diag
    };
    for listening in listed {
        if covers(listening, address)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Addresses on which the processes of `cgroup` listen, in the network namespace of the calling thread.
///
/// # Errors
///
/// When `/proc/net` or cgroupfs cannot be read.
pub fn listening_in(cgroup: &Cgroup) -> io::Result<Vec<SocketAddr>> {
    let pids = cgroup.procs().map_err(io::Error::other)?;
    let inodes: BTreeSet<u64> = pids.into_iter().flat_map(sockets_of).collect();
    let mut found: Vec<SocketAddr> = listeners()?
        .into_iter()
        .filter(|row| row.inode.is_some_and(|inode| inodes.contains(&inode)))
        .map(|row| row.local)
        .collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Inodes of the sockets that a process has open; empty for a process that has ended.
fn sockets_of(pid: Pid) -> Vec<u64> {
    let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    let inode = |link: PathBuf| {
        let link = link.to_str()?;
        let inode = link.strip_prefix("socket:[")?.strip_suffix(']')?;
        inode.parse().ok()
    };
    let links = fds.flatten().map(|fd| fs::read_link(fd.path()));
    links.flatten().filter_map(inode).collect()
}

fn row_of(address: SocketAddr) -> io::Result<Option<Row>> {
    for row in listeners()? {
        if covers(row.local, address)? {
            return Ok(Some(row));
        }
    }
    Ok(None)
}

fn listeners() -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for table in ["tcp", "tcp6"] {
        match fs::read(Path::new("/proc/thread-self/net").join(table)) {
            Ok(text) => {
                rows.extend(proc_net::parse(&text).filter(|r| r.state == TcpState::Listen));
            }
            // A kernel without IPv6.
            Err(e) if e.kind() == io::ErrorKind::NotFound && table == "tcp6" => {}
            Err(e) => return Err(e),
        }
    }
    Ok(rows)
}

/// Whether a socket that listens on `listening` takes connections to `wanted`.
fn covers(listening: SocketAddr, wanted: SocketAddr) -> io::Result<bool> {
    if listening.port() != wanted.port() {
        return Ok(false);
    }
    let (listening, wanted_ip) = (listening.ip(), wanted.ip().to_canonical());
    if listening.to_canonical() == wanted_ip {
        return Ok(true);
    }
    match (listening, wanted_ip) {
        // The table does not say whether the IPv6 wildcard takes IPv4, too.
        (IpAddr::V6(all), IpAddr::V4(ip)) if all.is_unspecified() => is_taken(ip, wanted.port()),
        _ => Ok(listening.is_ipv4() == wanted_ip.is_ipv4()
            && (listening.is_unspecified() || wanted_ip.is_unspecified())),
    }
}

/// Whether the kernel refuses `ip`:`port` because of another socket that listens.
fn is_taken(ip: Ipv4Addr, port: u16) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC;
    let probe = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    // With this, only a listener is in the way, no connection that lingers.
    sockopt::set_socket_reuseaddr(&probe, true)?;
    // Whether the address is this host's is not the question here.
    sockopt::set_ip_freebind(&probe, true)?;
    match bind(&probe, &SocketAddr::from((ip, port))) {
        Ok(()) => Ok(false),
        Err(Errno::ADDRINUSE) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

/// The process with the lowest pid that holds the socket `inode`.
fn owner_of(inode: u64) -> Option<Pid> {
    let link = format!("socket:[{inode}]");
    fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(Pid::from_raw)
        .filter(|&pid| holds(pid, &link))
        .min_by_key(|pid| pid.as_raw_pid())
}

fn holds(pid: Pid, link: &str) -> bool {
    // Processes may end during the walk: an unreadable process holds no socket.
    fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|fds| {
        fds.flatten()
            .any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == Path::new(link)))
    })
}

fn program_of(pid: Pid) -> Option<String> {
    let comm = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&comm).trim_end().to_owned())
}
