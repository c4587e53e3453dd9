//! Bytes that servers have not read yet, and whether clients are connected.

use std::net::SocketAddr;

use crate::{
    TcpState,
    destroy::{DestroyError, diag::DiagSocket, list},
};

/// A connection's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The server's end.
    pub server: SocketAddr,
    /// The client's end; IPv4-mapped addresses as IPv4.
    pub client: SocketAddr,
    /// Bytes that have arrived in order and wait for the server to read them.
    pub bytes: u32,
}

/// Unread bytes of all connections to these addresses, in the network namespace of the calling thread.
///
/// # Errors
///
/// The kernel does not list sockets.
pub fn unread(service: &[SocketAddr]) -> Result<Vec<Unread>, DestroyError> {
    let mut diag = DiagSocket::open()?;
    let found = list(&mut diag, service)?.into_iter();
    let unread = found.map(|entry| Unread {
        server: entry.local,
        client: entry.remote,
        bytes: entry.unread,
    });
    Ok(unread.collect())
}

/// Whether there is a connection to an address of `service` that is not over on both sides, in the network namespace of
/// the calling thread.
///
/// # Errors
///
/// The kernel does not list sockets.
pub fn is_connected(service: &[SocketAddr]) -> Result<bool, DestroyError> {
    let mut diag = DiagSocket::open()?;
    let found = list(&mut diag, service)?;
    Ok(found.iter().any(|entry| entry.state != TcpState::TimeWait))
}
