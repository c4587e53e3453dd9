//! Claims of unknown connections, on the wire: datagrams between members.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use pool::claims::{Addressed, Claims, Outcome};
use protocol::pool::{Claim, ClaimKind, PoolKey, Table};
use wire::FlowKey;

use crate::{
    clock,
    error::{MemberError, SystemContext},
    revivals::Copy,
};

/// Most segments that wait for the end of a claim.
const WAITING_MAX: usize = 16_384;

/// A segment whose claim has ended.
pub(crate) struct Decided {
    pub(crate) copy: Copy,
    /// The member that has the connection; `None`: this member goes on.
    pub(crate) other: Option<IpAddr>,
}

/// The claims of this member.
pub(crate) struct Claiming {
    socket: UdpSocket,
    key: PoolKey,
    claims: Claims,
    members: BTreeMap<u64, SocketAddr>,
    /// The newest segment of each connection that is claimed.
    waiting: HashMap<FlowKey, Copy>,
}

impl Claiming {
    pub(crate) fn new(
        socket: UdpSocket,
        key: PoolKey,
        membership: u64,
    ) -> Result<Self, MemberError> {
        socket
            .set_nonblocking(true)
            .doing("prepare the socket for claims")?;
        Ok(Self {
            socket,
            key,
            claims: Claims::new(membership, rand::random()),
            members: BTreeMap::new(),
            waiting: HashMap::new(),
        })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether connections may begin at this member.
    pub(crate) fn is_known(&self) -> bool {
        self.claims.is_known()
    }

    /// The member has a new membership.
    pub(crate) fn begin_membership(&mut self, membership: u64) {
        self.claims = Claims::new(membership, rand::random());
        self.members.clear();
        self.waiting.clear();
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.claims.deadline()
    }

    /// The pool has changed. Claims that waited for members that are gone have ended.
    pub(crate) fn set_table(&mut self, table: &Table) -> Vec<Decided> {
        let address = |member: &protocol::pool::TableMember| {
            SocketAddr::new(member.address.ip(), member.claim_port.get())
        };
        self.members = table
            .members
            .iter()
            .map(|member| (member.membership, address(member)))
            .collect();
        let won = self.claims.set_members(self.members.keys().copied());
        won.into_iter()
            .filter_map(|key| self.decided(key, Outcome::Won))
            .collect()
    }

    /// A segment of an unknown connection.
    pub(crate) fn begin(&mut self, copy: Copy) -> Option<Decided> {
        let now = clock::now();
        if self.claims.begin(copy.key, now).is_some() {
            return Some(Decided { copy, other: None });
        }
        if self.waiting.len() < WAITING_MAX || self.waiting.contains_key(&copy.key) {
            self.waiting.insert(copy.key, copy);
        }
        None
    }

    /// Sends the questions that are due.
    pub(crate) fn ask(&mut self) {
        for question in self.claims.due(clock::now()) {
            self.send(&question);
        }
        let claims = &self.claims;
        self.waiting.retain(|key, _| claims.is_underway(key));
    }

    /// Reads datagrams of other members. `has`: whether this member has a connection; `None`: not known now, and the
    /// other member asks again.
    pub(crate) fn receive(
        &mut self,
        mut has: impl FnMut(FlowKey) -> Result<Option<bool>, MemberError>,
    ) -> Result<Vec<Decided>, MemberError> {
        let mut decided = Vec::new();
        let mut buffer = [0; Claim::DATAGRAM_LEN + 1];
        loop {
            let len = match self.socket.recv(&mut buffer) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(decided),
                // An earlier datagram found nobody: the member is gone, or starts.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(error) => return Err(error).doing("read the socket for claims"),
            };
            let Ok(claim) = Claim::decode(&buffer[..len], &self.key) else {
                tracing::debug!(len, "a datagram that is no claim");
                continue;
            };
            if claim.kind == ClaimKind::Greet {
                if let Some(answer) = self.claims.answer_greeting(&claim) {
                    self.send(&answer);
                }
            } else if claim.kind == ClaimKind::Ask {
                if let Some(has) = has(claim.key)? {
                    let answer = self.claims.answer(&claim, has);
                    self.send(&answer);
                }
            } else if let Some(outcome) = self.claims.on_answer(&claim) {
                decided.extend(self.decided(claim.key, outcome));
            }
        }
    }

    fn decided(&mut self, key: FlowKey, outcome: Outcome) -> Option<Decided> {
        let copy = self.waiting.remove(&key)?;
        let other = match outcome {
            Outcome::Won => None,
            Outcome::Lost(other) => Some(self.members.get(&other)?.ip()),
        };
        Some(Decided { copy, other })
    }

    /// A lost question is asked again.
    fn send(&self, datagram: &Addressed) {
        let Some(to) = self.members.get(&datagram.to) else {
            return;
        };
        let bytes = datagram.claim.encode(&self.key);
        if let Err(error) = self.socket.send_to(&bytes, to) {
            tracing::debug!(%error, %to, "a claim was not sent");
        }
    }
}

/// The socket for claims at this address, with a port that the kernel chooses.
pub(crate) fn socket_at(address: IpAddr) -> Result<UdpSocket, MemberError> {
    let any = match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    UdpSocket::bind((any, 0)).doing("open a socket for claims at the member's address")
}
