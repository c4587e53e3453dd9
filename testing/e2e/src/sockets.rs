//! Client sockets that the standard library cannot make.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use lab::Host;
use rustix::net::sockopt::{Timeout, set_socket_linger, set_socket_timeout, set_tcp_nodelay};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, connect, socket_with};

use crate::EVENT_TIMEOUT;

/// Connects from a host with a socket of the given protocol (`None`: TCP), after a call of `prepare` with the socket.
/// Reads and writes time out after [`EVENT_TIMEOUT`].
///
/// # Errors
/// The connection is refused or not answered in time.
///
/// # Panics
/// The host is off, or has no such sockets.
pub fn dial(
    host: &Host,
    to: SocketAddr,
    protocol: Option<Protocol>,
    prepare: impl FnOnce(&OwnedFd) + Send,
) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let dialled = host.enter(|| {
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, protocol)
            .expect("such a socket");
        for timeout in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&socket, timeout, Some(EVENT_TIMEOUT)).expect("a timeout");
        }
        set_tcp_nodelay(&socket, true).expect("no delay");
        prepare(&socket);
        connect(&socket, &to)?;
        Ok(TcpStream::from(socket))
    });
    dialled.expect("the host is on")
}

/// Connects from a given local port, which another connection may have had just now.
///
/// # Errors
/// As [`dial`].
///
/// # Panics
/// As [`dial`], and when the port is in use.
pub fn dial_from(host: &Host, port: u16, to: SocketAddr) -> io::Result<TcpStream> {
    let local = match to {
        SocketAddr::V4(_) => (host.address().ipv4(), port).into(),
        SocketAddr::V6(_) => (host.address().ipv6(), port).into(),
    };
    dial(host, to, None, move |socket| {
        rustix::net::sockopt::set_socket_reuseaddr(socket, true).expect("reuse");
        let local: SocketAddr = local;
        rustix::net::bind(socket, &local).expect("the port is free");
    })
}

/// Closes with a RST.
///
/// # Panics
/// The socket is none.
pub fn reset(stream: TcpStream) {
    set_socket_linger(&stream, Some(std::time::Duration::ZERO)).expect("linger");
    drop(stream);
}
