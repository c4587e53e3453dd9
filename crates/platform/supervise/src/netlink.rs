//! A netlink(7) socket: requests to the kernel, and its answers.

use std::io;
use std::os::fd::OwnedFd;

use netlink_packet_core::{
    NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// The kernel puts at most 32 KiB into an answer.
const MAX_REPLY_BYTES: usize = 64 * 1024;

/// A socket of a netlink family.
#[derive(Debug)]
pub(crate) struct Netlink {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// Opens a socket of a family in the network namespace of the calling thread. `None` means rtnetlink, whose number
    /// is 0.
    pub(crate) fn open(family: Option<Protocol>) -> Result<Self, Errno> {
        let (domain, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        Ok(Self {
            fd: socket_with(domain, kind, SocketFlags::CLOEXEC, family)?,
            sequence: 0,
            buffer: vec![0; MAX_REPLY_BYTES],
        })
    }

    /// A number for the next request.
    pub(crate) fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    /// Sends encoded requests.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        loop {
            match send(&self.fd, bytes, SendFlags::empty()) {
                Err(Errno::INTR) => {}
                result => return result.map(|_| ()).map_err(Into::into),
            }
        }
    }

    /// The messages of the next datagram.
    pub(crate) fn receive<M: NetlinkDeserializable>(
        &mut self,
    ) -> io::Result<Vec<NetlinkMessage<M>>> {
        let length = loop {
            match recv(&self.fd, &mut self.buffer[..], RecvFlags::TRUNC) {
                Ok((_, length)) => break length,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        };
        let datagram = self
            .buffer
            .get(..length)
            .ok_or_else(|| io::Error::other("a netlink message was longer than any should be"))?;
        decode(datagram)
    }
}

/// Appends `request` to `out`, padded to a multiple of 4 bytes, as netlink requires.
pub(crate) fn encode<M>(request: M, flags: u16, sequence: u32, out: &mut Vec<u8>)
where
    M: NetlinkSerializable + Into<NetlinkPayload<M>>,
{
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    header.sequence_number = sequence;
    let mut message = NetlinkMessage::new(header, request.into());
    message.finalize();
    let start = out.len();
    out.resize(start + message.buffer_len(), 0);
    message.serialize(&mut out[start..]);
}

/// The messages in a datagram.
pub(crate) fn decode<M: NetlinkDeserializable>(
    mut datagram: &[u8],
) -> io::Result<Vec<NetlinkMessage<M>>> {
    let mut messages = Vec::new();
    while !datagram.is_empty() {
        let message = NetlinkMessage::<M>::deserialize(datagram)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
        // Every message begins at a multiple of 4 bytes and is at least a header long.
        let length = usize::try_from(message.header.length).unwrap_or(usize::MAX);
        let next = length.max(16).next_multiple_of(4);
        datagram = datagram.get(next..).unwrap_or_default();
        messages.push(message);
    }
    Ok(messages)
}
