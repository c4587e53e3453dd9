//! Self-fencing (`fence.h`): after the end of the lease, a host sends no packet in the name of the
//! service.
//!
//! | packet | |
//! |---|---|
//! | from a protected address:port, RSTs and fabricated segments included | dropped, or withheld |
//! | any other packet from a protected address, except packets to the logger | dropped |
//! | ARP in the name of a protected address, a neighbour advertisement of such an address | dropped |
//! | redirected on the way to the server's TCP; a mirrored segment | passes |
//!
//! Neither gate nor heartbeat changes these verdicts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    packet::{Packet, V6_HEADER, array},
    south::{Shared, Verdict},
};

const ICMP_V6: u8 = 58;
/// The sender's protocol address in an ARP packet for Ethernet (RFC 826).
const ARP_SENDER: usize = 14;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

impl Shared {
    /// Is the lease over?
    pub(crate) fn fenced(&self, now_ns: u64) -> bool {
        self.service.lease_until_ns.is_some_and(|end| now_ns >= end)
    }

    pub(crate) const fn drop_fenced(&mut self) -> Verdict {
        self.counters.fenced += 1;
        Verdict::Drop
    }

    /// A segment of the service that may not leave. (The programs drop a segment that the socket
    /// has sent before, so that the socket retransmits soon; the model has no sockets.)
    pub(crate) const fn refuse_fenced(&mut self) -> Verdict {
        self.counters.fenced += 1;
        Verdict::Withheld
    }

    /// Verdict on a packet that is no segment from a protected address:port.
    pub(crate) fn fence_other(&mut self, packet: &Packet, now_ns: u64) -> Verdict {
        if self.fenced(now_ns) && self.is_in_our_name(&packet.bytes) {
            self.drop_fenced()
        } else {
            Verdict::Next
        }
    }

    fn is_in_our_name(&self, bytes: &[u8]) -> bool {
        let Some((source, destination)) = ends(bytes) else {
            return false;
        };
        if self.is_address(source) {
            let logger = self.link.as_ref().map(|link| link.settings.remote.ip());
            return logger.is_none_or(|logger| logger.to_canonical() != destination);
        }
        let advertised = bytes.get(6) == Some(&ICMP_V6)
            && source.is_ipv6()
            && bytes.get(V6_HEADER) == Some(&NEIGHBOUR_ADVERTISEMENT);
        let target = array::<16>(bytes, V6_HEADER + 8).map(Ipv6Addr::from);
        advertised && target.is_some_and(|target| self.is_address(target.into()))
    }

    fn is_address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.endpoints.iter().any(|end| end.ip() == address)
    }
}

/// Source and destination. Of ARP (the first byte is no IP version) the sender, and an unspecified
/// destination.
fn ends(bytes: &[u8]) -> Option<(IpAddr, IpAddr)> {
    Some(match bytes.first()? >> 4 {
        0 => (
            Ipv4Addr::from(array::<4>(bytes, ARP_SENDER)?).into(),
            Ipv4Addr::UNSPECIFIED.into(),
        ),
        4 => (
            Ipv4Addr::from(array::<4>(bytes, 12)?).into(),
            Ipv4Addr::from(array::<4>(bytes, 16)?).into(),
        ),
        6 => (
            Ipv6Addr::from(array::<16>(bytes, 8)?).into(),
            Ipv6Addr::from(array::<16>(bytes, 24)?).into(),
        ),
        _ => return None,
    })
}
