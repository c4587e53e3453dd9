//! The control stream between a sender and a receiver.

use std::{
    marker::PhantomData,
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use channel::{Channel, Key, KeyRing, Received};
use protocol::{
    bulk::STREAM_VERSIONS,
    control::{Agreed, ControlError, Decoder, Message, Opening, encode},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt,
};
use socket2::SockRef;

use crate::error::{BulkError, SocketContext};

/// Longest wait in a read of the stream.
const READ_TIME: Duration = Duration::from_millis(100);
/// Time for the peer's opening.
const OPENING_TIME: Duration = Duration::from_secs(5);
/// A host that is off is noticed after about 20 s without any other traffic.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
/// A peer that takes no byte for so long is gone, ms.
const USER_TIMEOUT_MS: u32 = 60_000;

/// A stream on which messages `O` leave and messages `I` arrive.
pub(crate) struct Stream<O, I> {
    channel: Channel<TcpStream>,
    decoder: Decoder<I>,
    agreed: Agreed,
    round_trip: Duration,
    leaves: PhantomData<fn(O)>,
}

impl<O: Message, I: Message> Stream<O, I> {
    /// The end that connects.
    pub(crate) fn connect(to: SocketAddr, key: &Key, limit: Duration) -> Result<Self, BulkError> {
        let begun = Instant::now();
        let channel = Channel::connect(to, key, limit, READ_TIME)?;
        // A round trip for the connection, and a round trip for the handshake.
        let round_trip = begun.elapsed() / 2;
        let mut stream = Self::over(channel, round_trip)?;
        stream.say(&Opening::of(O::FROM).encode())?;
        stream.await_opening()?;
        Ok(stream)
    }

    /// The end that was connected to.
    pub(crate) fn accept(stream: TcpStream, keys: Arc<KeyRing>) -> Result<Self, BulkError> {
        let options = "set options of a connection";
        stream.set_nodelay(true).doing(options)?;
        stream.set_read_timeout(Some(READ_TIME)).doing(options)?;
        let channel = Channel::accept(stream, keys, Instant::now());
        let mut stream = Self::over(channel, Duration::ZERO)?;
        while !stream.channel.is_open() {
            if stream.channel.has_expired(Instant::now()) {
                return Err(BulkError::Silent);
            }
            stream.read()?;
        }
        let opened = stream.await_opening();
        let has_other_versions = matches!(
            opened,
            Err(BulkError::Protocol(ControlError::NoCommonVersion { .. }))
        );
        if opened.is_ok() || has_other_versions {
            stream.say(&Opening::of(O::FROM).encode())?;
        }
        opened?;
        Ok(stream)
    }

    fn over(channel: Channel<TcpStream>, round_trip: Duration) -> Result<Self, BulkError> {
        let socket = channel.stream();
        let options = "set options of a connection";
        let keep_alive = || {
            sockopt::set_socket_keepalive(socket, true)?;
            sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
            sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
            sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
            // Also of a peer that stands still: its window stays shut.
            sockopt::set_tcp_user_timeout(socket, USER_TIMEOUT_MS)
        };
        keep_alive().map_err(std::io::Error::from).doing(options)?;
        // A receiver whose disk is slow takes its time: `flush` waits.
        socket.set_write_timeout(None).doing(options)?;
        Ok(Self {
            channel,
            decoder: Decoder::at_opening(STREAM_VERSIONS),
            agreed: Agreed::own(O::FROM),
            round_trip,
            leaves: PhantomData,
        })
    }

    fn await_opening(&mut self) -> Result<(), BulkError> {
        let deadline = Instant::now() + OPENING_TIME;
        loop {
            if let Some(agreed) = self.decoder.open()? {
                self.agreed = agreed;
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(BulkError::Silent);
            }
            self.read()?;
        }
    }

    fn say(&mut self, bytes: &[u8]) -> Result<(), BulkError> {
        self.channel.say(bytes)?;
        Ok(self.channel.flush()?)
    }

    fn read(&mut self) -> Result<(), BulkError> {
        match self.channel.receive()? {
            Received::Plain(bytes) => self.decoder.feed(&bytes),
            Received::Nothing => {}
            Received::End => return Err(BulkError::Closed),
        }
        Ok(())
    }

    pub(crate) fn send(&mut self, message: &O) -> Result<(), BulkError> {
        let mut bytes = Vec::new();
        encode(message, self.agreed, &mut bytes)?;
        self.say(&bytes)
    }

    /// The next message, if one arrives within a moment.
    pub(crate) fn poll(&mut self) -> Result<Option<I>, BulkError> {
        if let Some(message) = self.decoder.pull()? {
            return Ok(Some(message));
        }
        self.read()?;
        Ok(self.decoder.pull()?)
    }

    /// The next message, if it has arrived.
    pub(crate) fn poll_now(&mut self) -> Result<Option<I>, BulkError> {
        if let Some(message) = self.decoder.pull()? {
            return Ok(Some(message));
        }
        let mut readable = [PollFd::new(self.channel.stream(), PollFlags::IN)];
        let now = Timespec::default();
        let count = poll(&mut readable, Some(&now)).map_err(std::io::Error::from);
        match count.doing("look for a message")? {
            0 => Ok(None),
            _ => self.poll(),
        }
    }

    /// The next message, unless `is_stopped` before.
    pub(crate) fn receive(
        &mut self,
        within: Duration,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<I, BulkError> {
        let begun = Instant::now();
        loop {
            if is_stopped() {
                return Err(BulkError::Stopped);
            }
            if let Some(message) = self.poll()? {
                return Ok(message);
            }
            if begun.elapsed() >= within {
                return Err(BulkError::Silent);
            }
        }
    }

    /// Whether the peer speaks this version.
    pub(crate) const fn speaks(&self, version: u8) -> bool {
        self.agreed.version() >= version
    }

    /// The connection, for other bytes than messages.
    ///
    /// # Errors
    /// More than the last message has arrived.
    pub(crate) fn into_connection(self) -> Result<TcpStream, BulkError> {
        match self.decoder.is_at_boundary() {
            true => Ok(self.channel.into_stream()?),
            false => Err(BulkError::OutOfOrder),
        }
    }

    /// A round trip to the peer, from the handshake.
    pub(crate) const fn round_trip(&self) -> Duration {
        self.round_trip
    }

    pub(crate) fn local(&self) -> Result<SocketAddr, BulkError> {
        let local = self.channel.stream().local_addr();
        local.doing("ask for the address of a connection")
    }

    pub(crate) fn peer(&self) -> Result<SocketAddr, BulkError> {
        let peer = self.channel.stream().peer_addr();
        peer.doing("ask for the address of a peer")
    }

    /// Largest segment of TCP on the path, as far as known: bytes of payload.
    pub(crate) fn segment_size(&self) -> Result<u32, BulkError> {
        let size = SockRef::from(self.channel.stream()).tcp_mss();
        size.doing("ask for the segment size of a connection")
    }
}
