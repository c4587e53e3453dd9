//! A session on a socket, blocking or not.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{ChannelError, Key, KeyRing, Refusal, Session, greeting};

/// How long a handshake may take.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// Result of a single read of the socket.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// Received plain text; empty if no message is complete.
    Plain(Vec<u8>),
    /// A non-blocking socket has no bytes now, or the time limit of a blocking socket has passed.
    Nothing,
    /// The other end has closed the connection, in order.
    End,
}

/// An authenticated, encrypted stream over `stream`.
///
/// For a loop with many channels: when the socket can be read, [`Self::receive`]; when the socket can be written and
/// [`Self::wants_write`], [`Self::flush`]. Drop the channel when [`Self::has_expired`]. With a blocking socket each of
/// these calls waits.
pub struct Channel<S> {
    stream: S,
    session: Session,
    /// Latest end of the handshake.
    deadline: Instant,
}

impl<S: Read + Write> Channel<S> {
    /// The end that connected. [`Self::flush`] sends the first bytes.
    ///
    /// # Errors
    /// [`ChannelError::Internal`].
    pub fn initiate(stream: S, key: &Key, now: Instant) -> Result<Self, ChannelError> {
        Ok(Self::new(stream, Session::initiator(key)?, now))
    }

    /// The end that accepted the connection.
    pub fn accept(stream: S, keys: Arc<KeyRing>, now: Instant) -> Self {
        Self::new(stream, Session::responder(keys), now)
    }

    fn new(stream: S, session: Session, now: Instant) -> Self {
        Self {
            stream,
            session,
            deadline: now + HANDSHAKE_LIMIT,
        }
    }

    /// Whether the other end has proven the possession of the key.
    pub const fn is_open(&self) -> bool {
        self.session.is_open()
    }

    /// The key in use; `None` if the responder does not know the key yet. When the key is no longer in the key file,
    /// the channel should be closed.
    pub const fn key(&self) -> Option<&Key> {
        self.session.key()
    }

    /// The socket.
    pub const fn stream(&self) -> &S {
        &self.stream
    }

    /// The socket, for bytes that are not encrypted by the channel. Both ends have agreed on this: the other end has
    /// sent nothing behind the last message, and everything of this end is sent.
    ///
    /// # Errors
    /// [`ChannelError::Truncated`]: that is not so.
    pub fn into_stream(self) -> Result<S, ChannelError> {
        self.session.ended()?;
        match self.wants_write() {
            true => Err(ChannelError::Truncated),
            false => Ok(self.stream),
        }
    }

    /// The handshake is not complete after its time limit.
    pub fn has_expired(&self, now: Instant) -> bool {
        !self.is_open() && now >= self.deadline
    }

    /// Time at which [`Self::has_expired`] becomes true, while the channel is not open.
    pub fn deadline(&self) -> Option<Instant> {
        (!self.is_open()).then_some(self.deadline)
    }

    /// Read once.
    ///
    /// # Errors
    /// [`ChannelError`]: the channel is of no more use. If this is a refusal, the other end has
    /// been told.
    pub fn receive(&mut self) -> Result<Received, ChannelError> {
        let stream = &mut self.stream;
        let arrived = self.session.read_by(|buffer| {
            loop {
                match stream.read(buffer) {
                    // A socket with a time limit is not read on after a signal (signal(7)).
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    read => break read,
                }
            }
        });
        match arrived {
            Ok(0) => self.session.ended().map(|()| Received::End),
            Err(ChannelError::Io(error)) if would_block(&error) => Ok(Received::Nothing),
            Err(error @ ChannelError::Io(_)) => Err(error),
            arrived => {
                if !self.is_open() || arrived.is_err() {
                    // Answers of the handshake are short, and fit into the socket buffer.
                    let flushed = self.flush();
                    arrived?;
                    flushed?;
                }
                Ok(Received::Plain(self.session.take_plain()))
            }
        }
    }

    /// Sends a message. [`Self::flush`] writes the message to the socket.
    ///
    /// # Errors
    /// [`ChannelError::Truncated`] if the channel is not open.
    pub fn say(&mut self, plain: &[u8]) -> Result<(), ChannelError> {
        self.session.say(plain)
    }

    /// Number of bytes that wait to be sent. A responder should stop reading from a peer that does not take answers.
    pub fn queued(&self) -> usize {
        self.session.outgoing().len()
    }

    /// Whether bytes wait to be sent.
    pub fn wants_write(&self) -> bool {
        self.queued() > 0
    }

    /// Sends the waiting bytes, as many as the socket takes.
    ///
    /// # Errors
    /// The connection is of no more use. A passed time limit of a blocking socket is no error: the remaining bytes wait
    /// ([`Self::wants_write`]).
    pub fn flush(&mut self) -> Result<(), ChannelError> {
        while self.wants_write() {
            match self.stream.write(self.session.outgoing()) {
                Ok(0) => return Err(ChannelError::Truncated),
                Ok(len) => self.session.sent(len),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if would_block(&error) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl<S: AsFd> AsFd for Channel<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Channel<TcpStream> {
    /// Connects and shakes hands, within `limit`. The socket is blocking, with `patience` as the time limit of reads
    /// and writes.
    ///
    /// # Errors
    /// The connection is refused, or [`ChannelError`].
    pub fn connect(
        to: SocketAddr,
        key: &Key,
        limit: Duration,
        patience: Duration,
    ) -> Result<Self, ChannelError> {
        let limit = limit.min(HANDSHAKE_LIMIT);
        let deadline = Instant::now() + limit;
        let channel = match Self::call(to, key, deadline, greeting::VERSION) {
            Err(ChannelError::Refused {
                refusal: Refusal::Version(theirs @ greeting::OLDEST_VERSION..greeting::VERSION),
                ..
            }) => Self::call(to, key, deadline, theirs)?,
            called => called?,
        };
        channel.stream.set_read_timeout(Some(patience))?;
        channel.stream.set_write_timeout(Some(patience))?;
        Ok(channel)
    }

    fn call(
        to: SocketAddr,
        key: &Key,
        deadline: Instant,
        version: u8,
    ) -> Result<Self, ChannelError> {
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now);
        if left.is_zero() {
            return Err(ChannelError::TimedOut);
        }
        let stream = TcpStream::connect_timeout(&to, left)?;
        stream.set_nodelay(true)?;
        let mut channel = Self::new(stream, Session::initiator_of(key, version)?, now);
        while !channel.is_open() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ChannelError::TimedOut);
            }
            channel.stream.set_read_timeout(Some(left))?;
            channel.stream.set_write_timeout(Some(left))?;
            channel.flush()?;
            channel.receive()?;
        }
        channel.flush()?;
        Ok(channel)
    }
}

fn would_block(error: &io::Error) -> bool {
    // A blocking socket's time limit is EAGAIN too.
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

#[cfg(test)]
mod tests;
