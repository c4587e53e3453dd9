//! TCP segments made by hand, as a hostile or broken sender emits them.
//!
//! The code is independent of the product's parser: a common mistake would stay invisible.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;

use lab::Host;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RawProtocol, SendFlags, SocketFlags, SocketType, sendto, socket_with,
};

/// Control bits of a TCP header (RFC 9293, section 3.1).
pub mod flag {
    /// The sender has finished.
    pub const FIN: u8 = 0x01;
    /// A connection begins.
    pub const SYN: u8 = 0x02;
    /// The connection is aborted.
    pub const RST: u8 = 0x04;
    /// The receiver should deliver the data at once.
    pub const PSH: u8 = 0x08;
    /// The acknowledgment number counts.
    pub const ACK: u8 = 0x10;
}

/// A TCP segment in an IPv4 packet, with whatever is said here.
#[derive(Clone, Debug)]
pub struct Forged {
    /// Claimed source, possibly spoofed.
    pub source: SocketAddrV4,
    /// Destination of the segment.
    pub destination: SocketAddrV4,
    /// The sequence number.
    pub sequence: u32,
    /// The acknowledgment number.
    pub acknowledgment: u32,
    /// The control bits, see [`flag`].
    pub flags: u8,
    /// The window in the header, not scaled.
    pub window: u16,
    /// Raw option bytes, padded with zeros to a multiple of four. At most 40 bytes fit in a header with a correct
    /// length.
    pub options: Vec<u8>,
    /// The claimed header length, in 32-bit words; `None` for the correct length.
    pub data_offset: Option<u8>,
    /// The payload.
    pub payload: Vec<u8>,
    /// Added to the correct checksum: 0 for a correct checksum.
    pub checksum_error: u16,
}

impl Forged {
    /// A bare segment with the given control bits and sequence number 0.
    #[must_use]
    pub fn new(source: SocketAddrV4, destination: SocketAddrV4, flags: u8) -> Self {
        Self {
            source,
            destination,
            sequence: 0,
            acknowledgment: 0,
            flags,
            window: 502,
            options: Vec::new(),
            data_offset: None,
            payload: Vec::new(),
            checksum_error: 0,
        }
    }

    /// The TCP segment, header and payload.
    #[must_use]
    pub fn segment(&self) -> Vec<u8> {
        let mut options = self.options.clone();
        options.resize(options.len().next_multiple_of(4), 0);
        let words = u8::try_from(5 + options.len() / 4).unwrap_or(15);
        let mut bytes = Vec::with_capacity(20 + options.len() + self.payload.len());
        bytes.extend(self.source.port().to_be_bytes());
        bytes.extend(self.destination.port().to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(self.acknowledgment.to_be_bytes());
        bytes.extend([self.data_offset.unwrap_or(words) << 4, self.flags]);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0; 4]); // checksum and urgent pointer
        bytes.extend(&options);
        bytes.extend(&self.payload);
        let sum = checksum(*self.source.ip(), *self.destination.ip(), &bytes);
        bytes[16..18].copy_from_slice(&sum.wrapping_add(self.checksum_error).to_be_bytes());
        bytes
    }

    /// A copy with the wrong checksum that looks like checksum offload: the sum of the pseudo header alone.
    #[must_use]
    pub fn unfinished(mut self) -> Self {
        self.checksum_error = 0;
        let segment = self.segment();
        let right = u16::from_be_bytes([segment[16], segment[17]]);
        // The checksum of zeros is the inverted sum of the pseudo header.
        let zeros = vec![0; segment.len()];
        let pseudo = !checksum(*self.source.ip(), *self.destination.ip(), &zeros);
        self.checksum_error = pseudo.wrapping_sub(right);
        self
    }

    /// The IPv4 packet. The sending kernel fills in the checksum of the IPv4 header.
    #[must_use]
    pub fn packet(&self) -> Vec<u8> {
        packet(*self.source.ip(), *self.destination.ip(), &self.segment())
    }
}

/// An IPv4 packet with any TCP payload, also without a valid segment.
#[must_use]
pub fn packet(source: Ipv4Addr, destination: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let total = u16::try_from(20 + payload.len()).unwrap_or(u16::MAX);
    let mut bytes = vec![0x45, 0];
    bytes.extend(total.to_be_bytes());
    bytes.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    bytes.extend(source.octets());
    bytes.extend(destination.octets());
    bytes.extend(payload);
    bytes
}

/// RFC 9293, section 3.1: the one's complement sum with the pseudo header; the checksum field itself is zero.
fn checksum(source: Ipv4Addr, destination: Ipv4Addr, segment: &[u8]) -> u16 {
    let mut sum = 6 + u32::try_from(segment.len()).unwrap_or(0);
    for bytes in [&source.octets()[..], &destination.octets()[..], segment] {
        for pair in bytes.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u32::from(u16::from_be_bytes([pair[0], low]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

/// Raw sockets of a host, for packets from any source address.
#[derive(Debug)]
pub struct Forger {
    v4: OwnedFd,
    v6: OwnedFd,
}

impl Forger {
    /// Opens the raw sockets.
    ///
    /// # Panics
    /// The host is off.
    #[must_use]
    pub fn on(host: &Host) -> Self {
        // IPPROTO_RAW: the IP header is ours (raw(7)).
        let raw = RawProtocol::new(255).map(rustix::net::Protocol::from_raw);
        let open = |family| {
            let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
            let socket = host.enter(|| socket_with(family, kind, flags, raw));
            socket.expect("the host is on").expect("a raw socket")
        };
        Self {
            v4: open(AddressFamily::INET),
            v6: open(AddressFamily::INET6),
        }
    }

    /// Sends an IP packet. Waits while the queue of the sending host is full.
    ///
    /// # Panics
    /// The system refuses to send the packet.
    pub fn send(&self, packet: &[u8]) {
        let (socket, to) = match packet.first().map(|byte| byte >> 4) {
            Some(6) => (&self.v6, destination::<16>(packet, 24)),
            _ => (&self.v4, destination::<4>(packet, 16)),
        };
        loop {
            match sendto(socket, packet, SendFlags::empty(), &SocketAddr::new(to, 0)) {
                Ok(_) => return,
                Err(Errno::NOBUFS) => std::thread::yield_now(),
                Err(error) => panic!("a raw packet was not sent: {error}"),
            }
        }
    }
}

/// The address in the header of a packet.
fn destination<const N: usize>(packet: &[u8], at: usize) -> IpAddr
where
    IpAddr: From<[u8; N]>,
{
    let bytes = packet.get(at..).and_then(<[u8]>::first_chunk::<N>);
    IpAddr::from(*bytes.expect("a whole IP header"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment with a right checksum sums up to zero (RFC 1071).
    #[test]
    fn checksum_is_valid_by_default() {
        let (a, b) = (
            "10.0.0.1:80".parse().unwrap(),
            "10.0.0.2:4000".parse().unwrap(),
        );
        for payload in [&b""[..], b"odd", b"even"] {
            let mut forged = Forged {
                payload: payload.to_vec(),
                ..Forged::new(a, b, flag::ACK)
            };
            assert_eq!(checksum(*a.ip(), *b.ip(), &forged.segment()), 0);
            forged.checksum_error = 1;
            assert_ne!(checksum(*a.ip(), *b.ip(), &forged.segment()), 0);
        }
    }
}
