//! A control stream: one service, or somebody who has not said yet who he is.

use std::{
    net::{SocketAddr, TcpStream},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use channel::{Channel, ChannelError, KeyRing, Received};
use lease::{Claimant, Taken};
use protocol::{
    Versions,
    control::{Attach, ControlError, Decoder, Opening, Request, Response, Role, VERSIONS, encode},
};
use rustix::net::sockopt;

use super::sockets::peer_of;
use crate::link::{NotYet, Peer, Replication};
use crate::rpc::no_common_frame;

/// Bytes of answers that may wait to be sent: who does not read them is not read from.
const QUEUED_REPLY_BYTES_MAX: usize = 1 << 20;

/// TCP keep-alive of a control stream: idle time, interval and number of probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// Why a stream is of no more use.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// The channel failed.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The control protocol is not kept.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// It has closed the connection.
    #[error("the service has closed the connection")]
    Closed,
    /// The handshake took too long.
    #[error("no proof of a key in time")]
    Silent,
    /// Its key is no longer in the key file.
    #[error("the key is no longer in the key file")]
    KeyRemoved,
    /// Another stream of the same instance has come.
    #[error("the service has attached again")]
    Replaced,
    /// It would inherit records that it cannot have now.
    #[error(transparent)]
    NotYet(#[from] NotYet),
    /// Another service has an address that it claims.
    #[error("{service} is not served there: {taken}")]
    Taken {
        /// Its service.
        service: String,
        /// Who has it.
        taken: Taken,
    },
    /// No version of the log link is common to the logger and a service that attaches.
    #[error(
        "the logger speaks {speaks} of the log link, the host {0}: upgrade the older outlive, one version at a time",
        speaks = protocol::link::VERSIONS
    )]
    LinkVersion(Versions),
    /// No version of the mirror frame is common to the logger and a service that attaches.
    #[error("{}", no_common_frame(*.0))]
    FrameVersion(Versions),
    /// It asked for something before it had attached, or attached twice.
    #[error("a message out of the order of the control protocol")]
    OutOfOrder,
}

/// Why no more is to be said by a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// Its instance has attached again by another stream.
    Replaced,
    /// An operator has asked, and has the answer.
    Answered,
}

/// The host of a stream that has claimed addresses, as other hosts are told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ClaimingHost {
    /// Name and address, for people.
    pub(super) name: String,
    /// [`protocol::control::Claim::determinants`].
    pub(super) determinants: u32,
}

/// A control stream.
pub(super) struct Client {
    channel: Channel<TcpStream>,
    requests: Decoder<Request>,
    /// Requests may be left, because too many answers waited to be sent.
    stalled: bool,
    /// On which of our addresses it came in.
    via: usize,
    local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// The instance that has attached.
    pub(super) instance: Option<u64>,
    /// Why no more is to be said by this stream.
    pub(super) over: Option<Over>,
    /// It has claimed addresses.
    pub(super) claims: Option<Claimant>,
    /// Its host, if it has.
    pub(super) host: ClaimingHost,
    /// What it was told of the hosts of its service: which serves, and the name of which stands by.
    pub(super) hosts: Option<(ClaimingHost, String)>,
    /// As which instance it asks for leases, for which it needs no session, and when it did last.
    pub(super) asks: Option<(u64, Duration)>,
    /// It has asked as the one that serves.
    pub(super) serves: bool,
    /// It hears what the processes of a service are told, and needs no session for that either.
    pub(super) replication: Option<Replication>,
    /// What it is told of a lease of this service when that is kept.
    pub(super) withheld: Option<(String, Response)>,
}

impl Client {
    pub(super) fn accept(
        stream: TcpStream,
        remote: SocketAddr,
        via: usize,
        keys: Arc<KeyRing>,
        now: Instant,
    ) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        end_when_it_is_gone(&stream)?;
        let local = stream.local_addr()?;
        Ok(Self {
            channel: Channel::accept(stream, keys, now),
            requests: Decoder::at_opening(VERSIONS),
            stalled: false,
            via,
            local,
            remote,
            instance: None,
            over: None,
            claims: None,
            host: ClaimingHost::default(),
            hosts: None,
            asks: None,
            serves: false,
            replication: None,
            withheld: None,
        })
    }

    /// The name of the key that it has proven to have.
    pub(super) fn key_name(&self) -> &str {
        self.channel.key().map_or("", |key| key.name())
    }

    /// Where the datagrams of a service that attaches will come from.
    pub(super) fn peer(&self, attach: &Attach) -> Peer {
        peer_of(self.via, self.local, self.remote, attach.udp_port)
    }

    pub(super) fn wants_read(&self) -> bool {
        self.channel.queued() < QUEUED_REPLY_BYTES_MAX
    }

    pub(super) fn wants_write(&self) -> bool {
        self.channel.wants_write()
    }

    /// Reads once what there is.
    pub(super) fn read(&mut self) -> Result<(), ClientError> {
        match self.channel.receive()? {
            Received::Plain(bytes) => self.requests.feed(&bytes),
            Received::Nothing => {}
            Received::End => return Err(ClientError::Closed),
        }
        Ok(())
    }

    /// The next request; none, while too many answers wait to be sent.
    pub(super) fn request(&mut self) -> Result<Option<Request>, ClientError> {
        self.stalled = !self.wants_read();
        if self.stalled || !self.is_open()? {
            return Ok(None);
        }
        Ok(self.requests.pull()?)
    }

    /// Whether the opening of the stream has arrived, and is answered.
    fn is_open(&mut self) -> Result<bool, ClientError> {
        if self.requests.agreed().is_some() {
            return Ok(true);
        }
        let opened = self.requests.open();
        if let Ok(Some(_)) | Err(ControlError::NoCommonVersion { .. }) = opened {
            self.channel.say(&Opening::of(Role::Answers).encode())?;
            self.channel.flush()?;
        }
        Ok(opened?.is_some())
    }

    /// Requests may be left that can be answered now: nothing will come that says so.
    pub(super) fn has_backlog(&self) -> bool {
        self.stalled && self.wants_read()
    }

    pub(super) fn say(&mut self, response: &Response) -> Result<(), ClientError> {
        // Answers come after requests, and these after the opening.
        let agreed = self.requests.agreed().ok_or(ClientError::OutOfOrder)?;
        let mut bytes = Vec::new();
        encode(response, agreed, &mut bytes)?;
        Ok(self.channel.say(&bytes)?)
    }

    pub(super) fn flush(&mut self) -> Result<(), ClientError> {
        Ok(self.channel.flush()?)
    }

    /// Whether it may stay.
    pub(super) fn check(&self, keys: &KeyRing, now: Instant) -> Result<(), ClientError> {
        if self.over == Some(Over::Replaced) {
            return Err(ClientError::Replaced);
        }
        if self.channel.has_expired(now) {
            return Err(ClientError::Silent);
        }
        match self.channel.key() {
            Some(key) if !keys.accepts(key) => Err(ClientError::KeyRemoved),
            _ => Ok(()),
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// A host that has lost its power, or was cut off, says no farewell, and has other streams when it is back: the kernel
/// asks.
fn end_when_it_is_gone(stream: &TcpStream) -> std::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    Ok(sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?)
}
