//! A control stream: of one service, or of a peer that has not attached yet.

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

/// Bytes of responses that may wait to be sent: above this limit the logger stops reading requests.
const QUEUED_REPLY_BYTES_MAX: usize = 1 << 20;

/// TCP keep-alive of a control stream: idle time, interval and number of probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// Why a stream ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// The channel failed.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The peer violates the control protocol.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The peer has closed the connection.
    #[error("the service has closed the connection")]
    Closed,
    /// The handshake took too long.
    #[error("no proof of a key in time")]
    Silent,
    /// The peer's key is no longer in the key file.
    #[error("the key is no longer in the key file")]
    KeyRemoved,
    /// A newer stream of the same instance has attached.
    #[error("the service has attached again")]
    Replaced,
    /// The instance cannot inherit the records now.
    #[error(transparent)]
    NotYet(#[from] NotYet),
    /// Another service has an address that this service claims.
    #[error("{service} is not served there: {taken}")]
    Taken {
        /// The service that claims.
        service: String,
        /// The owner of the address.
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
    /// The peer sent a request before the attachment, or attached twice.
    #[error("a message out of the order of the control protocol")]
    OutOfOrder,
}

/// Why the end of a stream without an instance is no refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// A newer stream of the instance has attached.
    Replaced,
    /// An operator has the response.
    Answered,
    /// A standby has asked for images.
    HasImages,
}

/// The host of a stream that has claimed addresses, as shown to other hosts.
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
    /// Requests may be waiting, because too many responses waited to be sent.
    stalled: bool,
    /// Index of the listening socket.
    via: usize,
    local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// The instance that has attached.
    pub(super) instance: Option<u64>,
    /// Why the end of the stream is no refusal, if there is no instance.
    pub(super) over: Option<Over>,
    /// The claimant of the service's addresses.
    pub(super) claims: Option<Claimant>,
    /// The host, after a claim.
    pub(super) host: ClaimingHost,
    /// The service's hosts as sent last: the serving host, and the name of the standby.
    pub(super) hosts: Option<(ClaimingHost, String)>,
    /// The instance and the time of the last lease request. A lease request needs no session.
    pub(super) asks: Option<(u64, Duration)>,
    /// The last lease request came from the holder of the lease.
    pub(super) serves: bool,
    /// The stream replicates the determinants of a service. Replication needs no session either.
    pub(super) replication: Option<Replication>,
    /// A service, and the response that leaves once the decision about this service is stored.
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

    /// The name of the peer's key.
    pub(super) fn key_name(&self) -> &str {
        self.channel.key().map_or("", |key| key.name())
    }

    /// The source of the datagrams of a service that attaches.
    pub(super) fn peer(&self, attach: &Attach) -> Peer {
        peer_of(self.via, self.local, self.remote, attach.udp_port)
    }

    pub(super) fn wants_read(&self) -> bool {
        self.channel.queued() < QUEUED_REPLY_BYTES_MAX
    }

    pub(super) fn wants_write(&self) -> bool {
        self.channel.wants_write()
    }

    /// Reads once.
    pub(super) fn read(&mut self) -> Result<(), ClientError> {
        match self.channel.receive()? {
            Received::Plain(bytes) => self.requests.feed(&bytes),
            Received::Nothing => {}
            Received::End => return Err(ClientError::Closed),
        }
        Ok(())
    }

    /// The next request; `None` also while too many responses wait to be sent.
    pub(super) fn request(&mut self) -> Result<Option<Request>, ClientError> {
        self.stalled = !self.wants_read();
        if self.stalled || !self.is_open()? {
            return Ok(None);
        }
        Ok(self.requests.pull()?)
    }

    /// Whether the opening of the stream has arrived and is answered.
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

    /// Requests wait that can be answered now: no readable descriptor announces such requests.
    pub(super) fn has_backlog(&self) -> bool {
        self.stalled && self.wants_read()
    }

    pub(super) fn say(&mut self, response: &Response) -> Result<(), ClientError> {
        // Responses come after requests, and requests after the opening.
        let agreed = self.requests.agreed().ok_or(ClientError::OutOfOrder)?;
        let mut bytes = Vec::new();
        encode(response, agreed, &mut bytes)?;
        Ok(self.channel.say(&bytes)?)
    }

    pub(super) fn flush(&mut self) -> Result<(), ClientError> {
        Ok(self.channel.flush()?)
    }

    /// Whether the stream may stay.
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

/// A host without power or network closes no stream, and opens new streams on return: TCP keep-alive finds the dead
/// stream.
fn end_when_it_is_gone(stream: &TcpStream) -> std::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    Ok(sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?)
}
