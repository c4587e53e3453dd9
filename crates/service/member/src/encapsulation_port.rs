//! The port of packets from the balancer and from other members, through routers.

use std::net::{IpAddr, UdpSocket};

use dataplane::encapsulation_port;

use crate::error::MemberError;

/// Keeps other programs from the port: the programs in the kernel take all packets to this port. No packet comes to the
/// socket.
pub(crate) struct EncapsulationPort {
    /// The address of the member.
    pub(crate) address: IpAddr,
    _socket: UdpSocket,
}

impl EncapsulationPort {
    pub(crate) fn hold(address: IpAddr) -> Result<Self, MemberError> {
        let port = encapsulation_port();
        let socket = UdpSocket::bind((address, port));
        Ok(Self {
            address,
            _socket: socket.map_err(|source| MemberError::EncapsulationPort { port, source })?,
        })
    }
}
