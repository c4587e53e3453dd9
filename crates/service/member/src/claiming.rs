//! Claims of unknown connections, on the wire: datagrams between members.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use objects::plane::SegmentCopy;
use pool::claims::Addressed;
use protocol::pool::{Claim, ClaimKind, PoolKey, Table};
use wire::FlowKey;

use crate::{
    clock,
    error::{MemberError, SystemContext},
};

/// A segment whose claim has ended.
pub(crate) struct Decided {
    pub(crate) copy: SegmentCopy,
    /// The member that has the connection; `None`: this member goes on.
    pub(crate) other: Option<IpAddr>,
}

/// Claims of this member.
pub(crate) struct Claiming {
    socket: UdpSocket,
    key: PoolKey,
    claiming: pool::Claiming<SegmentCopy>,
    members: BTreeMap<u64, SocketAddr>,
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
            claiming: pool::Claiming::new(membership, rand::random()),
            members: BTreeMap::new(),
        })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether connections may begin at this member.
    pub(crate) fn is_known(&self) -> bool {
        self.claiming.is_known()
    }

    /// The member has a new membership.
    pub(crate) fn begin_membership(&mut self, membership: u64) {
        self.claiming = pool::Claiming::new(membership, rand::random());
        self.members.clear();
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.claiming.deadline()
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
        let decided = self.claiming.set_members(self.members.keys().copied());
        decided
            .into_iter()
            .filter_map(|decided| self.addressed(decided))
            .collect()
    }

    /// A segment of an unknown connection.
    pub(crate) fn begin(&mut self, copy: SegmentCopy) -> Option<Decided> {
        let decided = self.claiming.begin(copy.key, copy, clock::now())?;
        self.addressed(decided)
    }

    /// Sends the questions that are due.
    pub(crate) fn ask(&mut self) {
        for question in self.claiming.due(clock::now()) {
            self.send(&question);
        }
    }

    /// Reads datagrams of other members. `speaks`: this member has a lease. `knows`: whether a connection is here.
    pub(crate) fn receive(
        &mut self,
        speaks: bool,
        mut knows: impl FnMut(FlowKey) -> Result<bool, MemberError>,
    ) -> Result<Vec<Decided>, MemberError> {
        let mut decided = Vec::new();
        let mut buffer = [0; Claim::DATAGRAM_LEN + 1];
        loop {
            let len = match self.socket.recv(&mut buffer) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(decided),
                // An earlier datagram was refused: the member is gone, or starts.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(error) => return Err(error).doing("read the socket for claims"),
            };
            let Ok(claim) = Claim::decode(&buffer[..len], &self.key) else {
                tracing::debug!(len, "a datagram that is no claim");
                continue;
            };
            let is_known = claim.kind == ClaimKind::Ask && knows(claim.key)?;
            let reception = self.claiming.on_datagram(&claim, is_known, speaks);
            if let Some(answer) = reception.answer {
                self.send(&answer);
            }
            let ended = reception.decided.and_then(|it| self.addressed(it));
            decided.extend(ended);
        }
    }

    fn addressed(&self, decided: pool::Decided<SegmentCopy>) -> Option<Decided> {
        let other = match decided.other {
            None => None,
            Some(other) => Some(self.members.get(&other)?.ip()),
        };
        Some(Decided {
            copy: decided.segment,
            other,
        })
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
