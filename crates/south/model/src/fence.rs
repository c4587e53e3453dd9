//! Self-fencing (`fence.h`): a host whose lease is over says nothing more in the name of the service.
//!
//! | packet | |
//! |---|---|
//! | from a protected address:port, RSTs and what was made here included | dropped, or withheld |
//! | anything else from a protected address, but for what goes to the logger | dropped |
//! | ARP in the name of a protected address, a neighbour advertisement of one | dropped |
//! | turned round on its way to the server's TCP; a copy for the logger | passes |
//!
//! The gate has no say in this, nor has the heartbeat.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    packet::{Packet, V6_HEADER, array},
    south::{Shared, Verdict},
};

const ICMP_V6: u8 = 58;
/// Its protocol address, in an ARP packet for Ethernet (RFC 826).
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

    /// A segment of the service that may not leave. (The programs drop one that its socket has sent
    /// before, so that the socket tries again soon; the model knows no sockets.)
    pub(crate) const fn refuse_fenced(&mut self) -> Verdict {
        self.counters.fenced += 1;
        Verdict::Withheld
    }

    /// What becomes of a packet that is no segment from a protected address:port.
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

/// Source and destination; of ARP (whose first byte is no version's) the sender, to nobody.
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
