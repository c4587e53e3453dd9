//! Asks the neighbours on a link whether another host has an address (RFC 5227 2.1.1, RFC 4862
//! 5.4).

use std::{
    io::{self, IoSlice},
    net::IpAddr,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};
use wire::neighbour::{arp_probe, ether_type, holder, neighbor_probe};

use crate::{
    error::{DataplaneError, SocketContext},
    interfaces::Interface,
    packet_socket,
};

/// How often each address is asked for, and how long an answer may take each time. The RFCs allow for links on which
/// an answer takes seconds; a service does not wait for that.
const PROBE_COUNT: u32 = 3;
const ANSWER_TIMEOUT: Duration = Duration::from_millis(150);

/// The largest frame that says who has an address is far smaller.
const FRAME_BYTES: usize = 2048;

/// Which of the addresses another host on the link of this interface has, and that host's link-layer
/// address; the first that answers. Takes 450 ms when no host answers, and no time on the loopback.
///
/// # Errors
/// `CAP_NET_RAW` is missing, or the interface is down.
pub fn holder_of(
    interface: &Interface,
    ips: &[IpAddr],
) -> Result<Option<(IpAddr, [u8; 6])>, DataplaneError> {
    if interface.mac == [0; 6] || ips.is_empty() {
        return Ok(None);
    }
    let doing = "ask the neighbours for an address";
    let open = |kind| packet_socket::open_at(interface.index, kind).doing(doing);
    let sockets = [open(ether_type::ARP)?, open(ether_type::IPV6)?];
    for _ in 0..PROBE_COUNT {
        for ip in ips {
            ask(&sockets, interface, *ip).doing(doing)?;
        }
        let until = Instant::now() + ANSWER_TIMEOUT;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            await_frame(&sockets, left).doing(doing)?;
            if let Some(found) = claim_received(&sockets, interface, ips, until) {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

fn ask([arp, v6]: &[OwnedFd; 2], interface: &Interface, ip: IpAddr) -> io::Result<()> {
    let (socket, kind, frame) = match ip {
        IpAddr::V4(ip) => {
            let frame = arp_probe(interface.mac, ip).to_vec();
            (arp, ether_type::ARP, frame)
        }
        IpAddr::V6(ip) => {
            let frame = neighbor_probe(interface.mac, ip).to_vec();
            (v6, ether_type::IPV6, frame)
        }
    };
    packet_socket::send(socket, interface.index, kind, &[IoSlice::new(&frame)])
}

fn await_frame(sockets: &[OwnedFd; 2], at_most: Duration) -> io::Result<()> {
    let mut wanted = sockets
        .each_ref()
        .map(|socket| PollFd::new(socket, PollFlags::IN));
    let timeout = at_most.try_into().map_err(io::Error::other)?;
    match poll(&mut wanted, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Reads arrived frames until `until` at the latest: frames may come faster than the reader. The
/// host's own frames are seen, too.
fn claim_received(
    sockets: &[OwnedFd; 2],
    interface: &Interface,
    ips: &[IpAddr],
    until: Instant,
) -> Option<(IpAddr, [u8; 6])> {
    let mut frame = [0; FRAME_BYTES];
    let mut more = true;
    while more && Instant::now() < until {
        more = false;
        for socket in sockets {
            let Ok(length) = rustix::io::read(socket, &mut frame) else {
                continue;
            };
            more = true;
            let frame = &frame[..length.min(FRAME_BYTES)];
            let found = ips
                .iter()
                .find_map(|ip| Some((*ip, holder(frame, *ip)?)))
                .filter(|(_, mac)| *mac != interface.mac);
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::{fs::File, net::Ipv4Addr, os::unix::net::UnixDatagram};

    use wire::neighbour::{ArpForm, gratuitous_arp};

    use super::*;

    /// A link with more frames than the reader can read: an answer between the frames is found, and
    /// the wait has an end.
    #[test]
    fn a_flood_of_frames_has_an_end() {
        let interface = Interface {
            index: 1,
            name: "eth0".to_owned(),
            mac: [2; 6],
            mtu: 1500,
        };
        let ip = Ipv4Addr::new(10, 0, 0, 1);
        let flood = || OwnedFd::from(File::open("/dev/zero").expect("zeros"));
        let soon = || Instant::now() + Duration::from_millis(1);
        let ask = |sockets, until| claim_received(&sockets, &interface, &[ip.into()], until);
        assert_eq!(ask([flood(), flood()], soon()), None);

        let (says, hears) = UnixDatagram::pair().expect("a pair");
        let answer = gratuitous_arp([4; 6], ip, ArpForm::Reply);
        says.send(&answer).expect("room for a frame");
        let far = Instant::now() + Duration::from_secs(3600);
        let found = ask([flood(), hears.into()], far);
        assert_eq!(found, Some((ip.into(), [4; 6])));
    }
}
