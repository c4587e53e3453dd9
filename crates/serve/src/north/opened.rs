//! Connections that the server has opened to others: they have ended with the life that had opened them, and the next one
//! finds them reset, as any server may at any time.

use std::{
    io::{self, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use wrap::{Handover, Passed, Reach};

/// What became of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Outgoing {
    /// How many are reset.
    pub(crate) reset: usize,
}

/// As a process has left them.
#[derive(Debug, Default)]
pub(super) struct Opened(Vec<Passed<Reach>>);

impl Opened {
    pub(super) fn new(opened: Vec<Passed<Reach>>) -> Self {
        Self(opened)
    }

    /// The process gets them.
    pub(super) fn hand_over(&mut self, handover: &Handover) -> io::Result<Outgoing> {
        let mut told = Outgoing::default();
        for one in self.0.drain(..).filter(|one| !one.standing.is_closed) {
            let socket: OwnedFd = match one.standing.is_local {
                true => reset_local_socket()?.into(),
                false => reset_socket()?.into(),
            };
            handover.give(one.connection, socket.as_fd())?;
            told.reset += 1;
        }
        Ok(told)
    }
}

/// A connection whose other end has reset it.
pub(super) fn reset_socket() -> io::Result<TcpStream> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let socket = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    rustix::net::sockopt::set_socket_linger(&other, Some(Duration::ZERO))?;
    drop(other);
    Ok(socket)
}

/// The same within the host: the other end had not read everything.
fn reset_local_socket() -> io::Result<UnixStream> {
    let (mut socket, other) = UnixStream::pair()?;
    socket.write_all(b"?")?;
    drop(other);
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};

    use super::*;

    #[test]
    fn who_reads_from_one_that_was_reset_is_told() {
        let read =
            |mut socket: Box<dyn Read>| socket.read(&mut [0; 4]).map_err(|error| error.kind());
        let reset = Err(ErrorKind::ConnectionReset);
        assert_eq!(read(Box::new(reset_socket().expect("a socket"))), reset);
        assert_eq!(
            read(Box::new(reset_local_socket().expect("a socket"))),
            reset
        );
    }
}
