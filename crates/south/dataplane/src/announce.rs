//! Announces to the neighbours on a link that an address is on this host now.
//!
//! The frames have no mark of the service: a fence that keeps this host from speaking for the
//! address drops the frames, too.

use std::{fs, io::IoSlice, net::IpAddr, os::fd::OwnedFd};

use wire::neighbour::{ArpForm, ether_type, gratuitous_arp, neighbor_advertisement};

use crate::{
    error::{DataplaneError, SocketContext},
    interfaces::Interface,
    packet_socket,
};

/// The socket.
#[derive(Debug)]
pub struct Announcer {
    socket: OwnedFd,
}

impl Announcer {
    /// Opens the sockets in this network namespace.
    ///
    /// # Errors
    /// `CAP_NET_RAW` is missing.
    pub fn new() -> Result<Self, DataplaneError> {
        let socket = packet_socket::open().doing("open a packet socket")?;
        Ok(Self { socket })
    }

    /// Announces once, on this interface, that the interface has this address: by both forms of
    /// gratuitous ARP, or by a neighbor advertisement. The loopback has no neighbours.
    ///
    /// # Errors
    /// The interface is down, or gone.
    pub fn announce(&self, interface: &Interface, ip: IpAddr) -> Result<(), DataplaneError> {
        let mac = interface.mac;
        if mac == [0; 6] {
            return Ok(());
        }
        match ip {
            IpAddr::V4(ip) => [ArpForm::Request, ArpForm::Reply]
                .into_iter()
                .try_for_each(|form| {
                    let frame = gratuitous_arp(mac, ip, form);
                    self.send(interface, ether_type::ARP, &frame)
                }),
            IpAddr::V6(ip) => {
                let frame = neighbor_advertisement(mac, ip, is_router(&interface.name));
                self.send(interface, ether_type::IPV6, &frame)
            }
        }
    }

    fn send(
        &self,
        interface: &Interface,
        protocol: u16,
        frame: &[u8],
    ) -> Result<(), DataplaneError> {
        let parts = [IoSlice::new(frame)];
        packet_socket::send(&self.socket, interface.index, protocol, &parts)
            .doing("tell the neighbours of an address")
    }
}

/// Whether this host forwards packets from this interface. The host's own advertisements say the
/// same.
fn is_router(interface: &str) -> bool {
    let setting = format!("/proc/sys/net/ipv6/conf/{interface}/forwarding");
    fs::read_to_string(setting).is_ok_and(|value| value.trim() != "0")
}
