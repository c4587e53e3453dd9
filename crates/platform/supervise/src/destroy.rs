//! Closing the kernel sockets that a dead server left behind (`SOCK_DESTROY`).
//!
//! A connection outlives the process in the kernel: in FIN_WAIT, in LAST_ACK with unsent data, in TIME_WAIT. Such an
//! orphan would answer the client in the dead server's name, and occupies the 4-tuple of the client's connection, which
//! is to be spliced to the restarted server. The kernel lists the sockets by sock_diag(7). A socket is then destroyed
//! by address and cookie: a newer socket with the same address has another cookie, and stays.
//!
//! Destroying a connection that is not yet closed on both sides makes the kernel send a RST to the client: the caller
//! must shut the gate of the service before.

pub(crate) mod diag;

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;

use crate::tcp_state::TcpState;
use diag::{DiagSocket, Entry, Outcome};

/// A failed destruction of sockets, with advice.
#[derive(Debug, thiserror::Error)]
pub enum DestroyError {
    /// The kernel was built without the function.
    #[error(
        "this kernel cannot destroy sockets: use a kernel with CONFIG_INET_DIAG_DESTROY \
         (zgrep INET_DIAG /proc/config.gz)"
    )]
    Unsupported,
    /// The kernel cannot list TCP sockets.
    #[error(
        "this kernel does not list TCP sockets: use a kernel with CONFIG_INET_DIAG \
         (run `modprobe tcp_diag`)"
    )]
    NoDiag,
    /// We may not.
    #[error("destroying sockets is not permitted; run as root (CAP_NET_ADMIN)")]
    NotPermitted,
    /// Talking to the kernel failed.
    #[error("cannot destroy sockets: {0}")]
    Netlink(#[from] io::Error),
}

/// Result of [`destroy_sockets`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destroyed {
    /// Number of destroyed sockets.
    pub destroyed: usize,
    /// Number of sockets that this kernel could not destroy, and that still exist. Older kernels refuse sockets in
    /// TIME_WAIT, and let some orphans survive the attempt.
    pub remaining: usize,
}

/// Destroys TCP sockets whose local address and port are in `service`, except listening sockets, in the network
/// namespace of the calling thread: IPv4, IPv6, and IPv4 connections held by IPv6 sockets. The function
/// `choose(local, remote, state)` selects the sockets, and sees IPv4-mapped addresses as IPv4.
///
/// A socket that ends by itself meanwhile is not counted.
///
/// # Errors
///
/// See [`DestroyError`]; some sockets may have been destroyed by then.
pub fn destroy_sockets(
    service: &[SocketAddr],
    mut choose: impl FnMut(SocketAddr, SocketAddr, TcpState) -> bool,
) -> Result<Destroyed, DestroyError> {
    let mut diag = DiagSocket::open()?;
    let mut targets = list(&mut diag, service)?;
    targets.retain(|t| choose(t.local, t.remote, t.state));
    if targets.is_empty() {
        return Ok(Destroyed::default());
    }
    let outcomes = diag.destroy(&targets)?;
    if outcomes.contains(&Outcome::Refused) {
        // By the kernel as such, or only for sockets of this kind?
        diag.check_destroy_supported()?;
    }
    // That the kernel agreed does not mean that the socket is gone: look again.
    let left: HashSet<[u8; 8]> = list(&mut diag, service)?
        .iter()
        .map(Entry::cookie)
        .collect();
    let mut result = Destroyed::default();
    for (target, outcome) in targets.iter().zip(outcomes) {
        if left.contains(&target.cookie()) {
            result.remaining += 1;
        } else if outcome == Outcome::Destroyed {
            result.destroyed += 1;
        }
    }
    Ok(result)
}

/// Destroys the socket of a connection in any state, in the network namespace of the calling thread. A listener is
/// never destroyed. Returns whether the socket existed and is destroyed. A kernel that refuses keeps the socket; older
/// kernels refuse in TIME_WAIT.
///
/// # Errors
///
/// See [`DestroyError`].
pub fn destroy_socket(local: SocketAddr, remote: SocketAddr) -> Result<bool, DestroyError> {
    let mut diag = DiagSocket::open()?;
    let Some(target) = diag.find(canonical(local), canonical(remote))? else {
        return Ok(false);
    };
    let outcomes = diag.destroy(&[target])?;
    Ok(outcomes.contains(&Outcome::Destroyed))
}

/// The open connections of these addresses in the network namespace of the calling thread: local and remote end of each
/// connection, IPv4-mapped ends as IPv4.
///
/// # Errors
///
/// See [`DestroyError`].
pub fn open_connections(
    service: &[SocketAddr],
) -> Result<Vec<(SocketAddr, SocketAddr)>, DestroyError> {
    let found = connection_states(service)?.into_iter();
    let is_open = |state| matches!(state, TcpState::Established | TcpState::CloseWait);
    let open = found.filter(|(.., state)| is_open(*state));
    Ok(open.map(|(local, remote, _)| (local, remote)).collect())
}

/// Local and remote end and state of all sockets of these addresses, also of sockets that listen or are closed.
///
/// # Errors
///
/// See [`DestroyError`].
pub fn connection_states(
    service: &[SocketAddr],
) -> Result<Vec<(SocketAddr, SocketAddr, TcpState)>, DestroyError> {
    let mut diag = DiagSocket::open()?;
    let found = list(&mut diag, service)?.into_iter();
    Ok(found.map(|it| (it.local, it.remote, it.state)).collect())
}

/// Whether this kernel can destroy sockets, and permits the call. Destroys no socket.
///
/// # Errors
///
/// The reason why sockets cannot be destroyed.
pub fn check_destroy_supported() -> Result<(), DestroyError> {
    DiagSocket::open()?.check_destroy_supported()
}

/// Up to this number of ports, the kernel looks up each port. For more ports, the kernel lists all sockets.
const MAX_SINGLE_LOOKUPS: usize = 4;
/// Matches any port.
const ANY_PORT: u16 = 0;

/// The sockets whose local address is in `service`.
pub(crate) fn list(
    diag: &mut DiagSocket,
    service: &[SocketAddr],
) -> Result<Vec<Entry>, DestroyError> {
    let service: HashSet<SocketAddr> = service.iter().copied().map(canonical).collect();
    let mut ports: HashSet<u16> = service.iter().map(SocketAddr::port).collect();
    if ports.len() > MAX_SINGLE_LOOKUPS {
        ports = HashSet::from([ANY_PORT]);
    }
    let mut found = Vec::new();
    for port in ports {
        found.extend(diag.dump_v6(port)?);
        if service.iter().any(SocketAddr::is_ipv4) {
            found.extend(diag.dump_v4(port)?);
        }
    }
    found.retain(|entry| service.contains(&entry.local));
    Ok(found)
}

/// The address as plain IPv4 if IPv4-mapped, and without flow label and scope, which the kernel's list does not have.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
