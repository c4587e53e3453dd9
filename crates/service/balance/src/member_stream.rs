//! The control stream of a member, or of a peer that has not proven a key yet.

use std::{
    net::{SocketAddr, TcpStream},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use channel::{Channel, ChannelError, KeyRing, Received};
use protocol::{
    control::{Agreed, ControlError, Decoder, Opening, Role, encode},
    pool::{BalancerMessage, MemberMessage, STREAM_VERSIONS},
};
use rustix::net::sockopt;

/// Bytes that may wait to be sent: a member that does not read is no member.
const QUEUED_BYTES_MAX: usize = 1 << 20;
/// TCP keep-alive: idle time, interval and number of probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// Why a stream ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    /// The channel failed.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The peer violates the protocol.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The peer has closed the connection.
    #[error("the member has closed the connection")]
    Closed,
    /// The handshake took too long.
    #[error("no proof of a key in time")]
    Silent,
    /// The peer's key is no longer in the key file.
    #[error("the key is no longer in the key file")]
    KeyRemoved,
    /// The peer does not read.
    #[error("the member does not read its messages")]
    Stalled,
    /// A message before the opening.
    #[error("a message before the opening of the stream")]
    NotOpen,
}

/// A control stream.
pub(crate) struct MemberStream {
    channel: Channel<TcpStream>,
    messages: Decoder<MemberMessage>,
    pub(crate) remote: SocketAddr,
    /// A `Hello` has arrived: the monitor knows the stream.
    pub(crate) is_known: bool,
    /// The stream ends when all messages have left.
    pub(crate) is_closing: bool,
}

impl MemberStream {
    pub(crate) fn accept(
        stream: TcpStream,
        remote: SocketAddr,
        keys: Arc<KeyRing>,
        now: Instant,
    ) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
        Ok(Self {
            channel: Channel::accept(stream, keys, now),
            messages: Decoder::at_opening(STREAM_VERSIONS),
            remote,
            is_known: false,
            is_closing: false,
        })
    }

    /// The agreed version; 0 before the opening.
    pub(crate) fn version(&self) -> u8 {
        self.messages.agreed().map_or(0, Agreed::version)
    }

    pub(crate) fn wants_write(&self) -> bool {
        self.channel.wants_write()
    }

    /// Reads once.
    pub(crate) fn read(&mut self) -> Result<(), StreamError> {
        match self.channel.receive()? {
            Received::Plain(bytes) => self.messages.feed(&bytes),
            Received::Nothing => {}
            Received::End => return Err(StreamError::Closed),
        }
        Ok(())
    }

    /// The next message.
    pub(crate) fn message(&mut self) -> Result<Option<MemberMessage>, StreamError> {
        if self.is_closing || !self.is_open()? {
            return Ok(None);
        }
        Ok(self.messages.pull()?)
    }

    /// Whether the opening of the stream has arrived and is answered.
    fn is_open(&mut self) -> Result<bool, StreamError> {
        if self.messages.agreed().is_some() {
            return Ok(true);
        }
        let opened = self.messages.open();
        if let Ok(Some(_)) | Err(ControlError::NoCommonVersion { .. }) = opened {
            self.channel.say(&Opening::of(Role::Balancer).encode())?;
            self.channel.flush()?;
        }
        Ok(opened?.is_some())
    }

    pub(crate) fn say(&mut self, message: &BalancerMessage) -> Result<(), StreamError> {
        if self.channel.queued() > QUEUED_BYTES_MAX {
            return Err(StreamError::Stalled);
        }
        let agreed = self.messages.agreed().ok_or(StreamError::NotOpen)?;
        let mut bytes = Vec::new();
        encode(message, agreed, &mut bytes)?;
        Ok(self.channel.say(&bytes)?)
    }

    pub(crate) fn flush(&mut self) -> Result<(), StreamError> {
        Ok(self.channel.flush()?)
    }

    /// Whether the stream may stay.
    pub(crate) fn check(&self, keys: &KeyRing, now: Instant) -> Result<(), StreamError> {
        if self.channel.has_expired(now) {
            return Err(StreamError::Silent);
        }
        match self.channel.key() {
            Some(key) if !keys.accepts(key) => Err(StreamError::KeyRemoved),
            _ => Ok(()),
        }
    }
}

impl AsFd for MemberStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
