//! The stream to a logger: a socket to a process of this host, or a channel to another machine.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use channel::{Channel, Key, Received};
use protocol::control::{Decoder, Response};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::ServeError;

/// Most bytes that wait for a remote logger; more only wait if the logger has stopped reading.
const MOST_QUEUED: usize = 64 << 20;

pub(super) struct Stream {
    kind: Kind,
    /// Longest silence while an answer is due.
    patience: Duration,
}

enum Kind {
    /// Blocking.
    Local(UnixStream),
    /// Not blocking: a machine without power must not stop `serve` in a write.
    Remote(Box<Channel<TcpStream>>),
}

impl Stream {
    pub(super) fn local(socket: UnixStream, patience: Duration) -> io::Result<Self> {
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))?;
        Ok(Self {
            kind: Kind::Local(socket),
            patience,
        })
    }

    pub(super) fn remote(channel: Channel<TcpStream>, patience: Duration) -> io::Result<Self> {
        channel.stream().set_nonblocking(true)?;
        Ok(Self {
            kind: Kind::Remote(Box::new(channel)),
            patience,
        })
    }

    /// Sets the longest silence while an answer is due.
    pub(super) fn set_patience(&mut self, patience: Duration) -> io::Result<()> {
        if let Kind::Local(socket) = &self.kind {
            socket.set_read_timeout(Some(patience))?;
            socket.set_write_timeout(Some(patience))?;
        }
        self.patience = patience;
        Ok(())
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Local(socket) => socket.as_fd(),
            Kind::Remote(channel) => channel.as_fd(),
        }
    }

    pub(super) fn key(&self) -> Option<&Key> {
        match &self.kind {
            Kind::Local(_) => None,
            Kind::Remote(channel) => channel.key(),
        }
    }

    pub(super) fn queued(&self) -> usize {
        match &self.kind {
            Kind::Local(_) => 0,
            Kind::Remote(channel) => channel.queued(),
        }
    }

    /// Write bytes; to a remote logger as soon as possible.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), ServeError> {
        match &mut self.kind {
            Kind::Local(socket) => socket.write_all(bytes).map_err(failed),
            Kind::Remote(channel) => {
                channel.say(bytes).map_err(failed)?;
                channel.flush().map_err(failed)?;
                if channel.queued() > MOST_QUEUED {
                    return Err(ServeError::Logger("it has stopped reading".into()));
                }
                Ok(())
            }
        }
    }

    /// Wait until something has arrived.
    pub(super) fn read(&mut self, decoder: &mut Decoder<Response>) -> Result<(), ServeError> {
        match &mut self.kind {
            Kind::Local(socket) => read_local(socket, decoder, self.patience),
            Kind::Remote(_) => {
                while !self.receive(decoder)? {
                    self.wait()?;
                }
                Ok(())
            }
        }
    }

    /// Read the available bytes; call when the stream is readable.
    pub(super) fn listen(&mut self, decoder: &mut Decoder<Response>) -> Result<(), ServeError> {
        match &mut self.kind {
            Kind::Local(socket) => read_local(socket, decoder, self.patience),
            Kind::Remote(_) => self.receive(decoder).map(drop),
        }
    }

    /// Send the queued bytes, as far as possible in time.
    pub(super) fn finish(&mut self) -> Result<(), ServeError> {
        while let Kind::Remote(channel) = &mut self.kind {
            channel.flush().map_err(failed)?;
            if !channel.wants_write() {
                break;
            }
            self.wait()?;
        }
        Ok(())
    }

    /// A single read of the channel; false: no complete data was there.
    fn receive(&mut self, decoder: &mut Decoder<Response>) -> Result<bool, ServeError> {
        let Kind::Remote(channel) = &mut self.kind else {
            return Ok(true);
        };
        channel.flush().map_err(failed)?;
        match channel.receive().map_err(failed)? {
            Received::Plain(plain) => {
                decoder.feed(&plain);
                Ok(!plain.is_empty())
            }
            Received::Nothing => Ok(false),
            Received::End => Err(closed()),
        }
    }

    /// Wait until the channel is readable, or writable if bytes are queued.
    fn wait(&self) -> Result<(), ServeError> {
        let writes = match &self.kind {
            Kind::Remote(channel) if channel.wants_write() => PollFlags::OUT,
            _ => PollFlags::empty(),
        };
        let fd = self.as_fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN | writes)];
        let timeout = Timespec::try_from(self.patience).unwrap_or_default();
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => Err(silent(self.patience)),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }
}

fn read_local(
    socket: &mut UnixStream,
    decoder: &mut Decoder<Response>,
    patience: Duration,
) -> Result<(), ServeError> {
    let mut buffer = [0u8; 64 * 1024];
    let read = loop {
        match socket.read(&mut buffer) {
            // A socket with a time limit is not read on after a signal (signal(7)).
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => break read,
        }
    };
    match read {
        Ok(0) => Err(closed()),
        Ok(n) => {
            decoder.feed(&buffer[..n]);
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Err(silent(patience)),
        Err(error) => Err(failed(error)),
    }
}

fn failed(error: impl std::fmt::Display) -> ServeError {
    ServeError::Logger(error.to_string())
}

fn closed() -> ServeError {
    ServeError::LoggerClosed
}

fn silent(patience: Duration) -> ServeError {
    ServeError::Logger(format!("no answer within {} ms", patience.as_millis()))
}
