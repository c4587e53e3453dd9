//! A stream with a balancer.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::Path,
    sync::mpsc,
    time::Duration,
};

use channel::{Channel, KeyRing, Received};
use protocol::{
    control::{Agreed, Decoder, Opening, Role, encode},
    pool::{BalancerMessage, Hello, MemberMessage, STREAM_VERSIONS},
};

use crate::{clock, error::MemberError};

/// Time for a connection to a balancer.
pub(super) const RECONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for the first answers of the balancer.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(5);

/// A stream with the balancer.
pub(super) struct Stream {
    channel: Channel<TcpStream>,
    decoder: Decoder<BalancerMessage>,
    agreed: Agreed,
}

impl Stream {
    pub(super) fn open(
        at: SocketAddr,
        key_file: &Path,
        hello: Hello,
        limit: Duration,
    ) -> Result<Self, MemberError> {
        let keys = KeyRing::load(key_file).map_err(MemberError::KeyFile)?;
        let mut stream = Self::begin(at, &keys, limit)?;
        stream.send(&MemberMessage::Hello(hello))?;
        Ok(stream)
    }

    /// A stream without a first message.
    pub(super) fn begin(
        at: SocketAddr,
        keys: &KeyRing,
        limit: Duration,
    ) -> Result<Self, MemberError> {
        let channel = Channel::connect(at, keys.first(), limit, RECONNECT_TIMEOUT);
        let channel = channel.map_err(|source| MemberError::Balancer { at, source })?;
        let mut stream = Self {
            channel,
            decoder: Decoder::at_opening(STREAM_VERSIONS),
            agreed: Agreed::own(Role::Member),
        };
        let opening = Opening::of(Role::Member).encode();
        stream.say(&opening)?;
        stream.agreed = stream.wait_for(|decoder| decoder.open())?;
        Ok(stream)
    }

    fn failed(&self, source: channel::ChannelError) -> MemberError {
        let at = self.channel.stream().peer_addr();
        let at = at.unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
        MemberError::Balancer { at, source }
    }

    fn say(&mut self, bytes: &[u8]) -> Result<(), MemberError> {
        let said = self.channel.say(bytes).and_then(|()| self.channel.flush());
        said.map_err(|source| self.failed(source))
    }

    pub(super) fn send(&mut self, message: &MemberMessage) -> Result<(), MemberError> {
        let mut bytes = Vec::new();
        encode(message, self.agreed, &mut bytes).map_err(MemberError::Protocol)?;
        self.say(&bytes)
    }

    /// Reads the bytes that have come. Whether the stream goes on.
    pub(super) fn read(&mut self) -> Result<bool, MemberError> {
        match self.channel.receive() {
            Ok(Received::Plain(bytes)) => {
                self.decoder.feed(&bytes);
                Ok(true)
            }
            Ok(Received::Nothing) => Ok(true),
            Ok(Received::End) => Ok(false),
            Err(source) => Err(self.failed(source)),
        }
    }

    pub(super) fn wait_for<T>(
        &mut self,
        mut pull: impl FnMut(
            &mut Decoder<BalancerMessage>,
        ) -> Result<Option<T>, protocol::control::ControlError>,
    ) -> Result<T, MemberError> {
        let deadline = clock::now() + ADMISSION_TIMEOUT;
        loop {
            if let Some(value) = pull(&mut self.decoder).map_err(MemberError::Protocol)? {
                return Ok(value);
            }
            if clock::now() >= deadline || !self.read()? {
                return Err(MemberError::NoAnswer);
            }
        }
    }

    /// The next message that was read.
    pub(super) fn message(&mut self) -> Result<Option<BalancerMessage>, MemberError> {
        self.decoder.pull().map_err(MemberError::Protocol)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// A stream that is being opened, in a thread of its own: no balancer that does not answer may cost the lease of
/// another balancer.
pub(super) struct Connecting(mpsc::Receiver<Result<Stream, MemberError>>);

impl Connecting {
    /// `wake` can be read at the end.
    pub(super) fn begin(
        at: SocketAddr,
        key_file: &Path,
        hello: Hello,
        wake: &UnixStream,
    ) -> io::Result<Self> {
        let (done, opened) = mpsc::channel();
        let (key_file, wake) = (key_file.to_owned(), wake.try_clone()?);
        std::thread::Builder::new()
            .name("balancer".into())
            .spawn(move || {
                let stream = Stream::open(at, &key_file, hello, RECONNECT_TIMEOUT);
                // Without a receiver, the member has left.
                let _ = done.send(stream);
                let _ = io::Write::write(&mut &wake, &[1]);
            })?;
        Ok(Self(opened))
    }

    /// The result; `None`: not yet.
    pub(super) fn take(&self) -> Option<Result<Stream, MemberError>> {
        match self.0.try_recv() {
            Ok(result) => Some(result),
            Err(mpsc::TryRecvError::Empty) => None,
            Err(mpsc::TryRecvError::Disconnected) => Some(Err(MemberError::NoAnswer)),
        }
    }
}
