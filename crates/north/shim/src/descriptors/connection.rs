//! A connection from the point of view of this process.

use core::{mem::MaybeUninit, ops::Range};

use libc::{AF_INET, AF_INET6, c_int, sockaddr, sockaddr_storage, socklen_t};
use north_abi::{
    SocketBudget, Which, addresses::mapped, handover::StreamOffsets,
    passed_connections::PACKED_ADDRESS_BYTES,
};

/// Options that an image of an unconnected socket lacks: level, name.
pub(crate) const KEPT_OPTIONS: [(c_int, c_int); 4] = [
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
];

/// An address of either family.
#[derive(Clone, Copy)]
pub(crate) struct Address {
    pub(crate) bytes: [u8; 28],
    pub(crate) length: u8,
}

impl Address {
    pub(crate) const NONE: Self = Self {
        bytes: [0; 28],
        length: 0,
    };

    /// From the memory that the kernel has filled in.
    pub(crate) fn new(storage: &MaybeUninit<sockaddr_storage>, length: u32) -> Self {
        let mut address = Self::NONE;
        let length = (length as usize).min(address.bytes.len());
        // SAFETY: the kernel has written at least these bytes.
        let filled = unsafe { core::slice::from_raw_parts(storage.as_ptr().cast::<u8>(), length) };
        address.bytes[..length].copy_from_slice(filled);
        address.length = u8::try_from(length).unwrap_or(0);
        address
    }

    /// The bytes, and their number.
    pub(crate) fn to_bytes(self) -> [u8; PACKED_ADDRESS_BYTES] {
        let mut all = [self.length; PACKED_ADDRESS_BYTES];
        all[..self.bytes.len()].copy_from_slice(&self.bytes);
        all
    }

    pub(crate) fn from_bytes(all: &[u8; PACKED_ADDRESS_BYTES]) -> Self {
        let mut address = Self::NONE;
        if let Some((length, bytes)) = all.split_last() {
            address.bytes.copy_from_slice(bytes);
            address.length = (*length).min(address.bytes.len() as u8);
        }
        address
    }

    /// Whether the addresses are equal, except for the flow label of IPv6.
    pub(crate) fn is_exactly(&self, other: &Self) -> bool {
        /// Bytes of the interface index.
        const SCOPE: Range<usize> = 24..28;
        self.is(other.as_bytes()) && self.bytes[SCOPE] == other.bytes[SCOPE]
    }

    /// Whether the program means this address. Padding, and flow label and interface index of IPv6, may
    /// differ.
    pub(crate) fn is(&self, named: &[u8]) -> bool {
        let own = self.as_bytes();
        let [ports, host] = match own.first_chunk().copied().map(u16::from_ne_bytes) {
            Some(family) if c_int::from(family) == AF_INET => [0..4, 4..8],
            Some(family) if c_int::from(family) == AF_INET6 => [0..4, 8..24],
            _ => return false,
        };
        let is_same = |range: Range<usize>| {
            let its = own.get(range.clone());
            its.is_some() && its == named.get(range)
        };
        is_same(ports) && is_same(host)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// The IP address with this port.
    pub(crate) fn with_port(mut self, port: [u8; 2]) -> Self {
        self.bytes[2..4].copy_from_slice(&port);
        self
    }

    /// The port of an IP address, 0: none; `None`: another family.
    pub(crate) fn port(&self) -> Option<[u8; 2]> {
        let (family, rest) = self.as_bytes().split_first_chunk()?;
        let family = c_int::from(u16::from_ne_bytes(*family));
        let is_internet = [libc::AF_INET, libc::AF_INET6].contains(&family);
        rest.first_chunk().copied().filter(|_| is_internet)
    }

    /// The IP address, IPv4 mapped to IPv6, and the port.
    pub(crate) fn host_and_port(&self) -> Option<([u8; 16], u16)> {
        let port = u16::from_be_bytes(self.port()?);
        let host = match self.as_bytes().get(8..24).and_then(<[u8]>::first_chunk) {
            Some(host) if self.length >= 28 => *host,
            _ => mapped(*self.as_bytes().get(4..)?.first_chunk()?),
        };
        Some((host, port))
    }

    /// Copies an address from a record.
    pub(crate) fn fill(&mut self, from: &[u8]) {
        let length = from.len().min(self.bytes.len());
        self.bytes[..length].copy_from_slice(&from[..length]);
        self.length = u8::try_from(length).unwrap_or(0);
    }

    /// Copies the address as the kernel does: truncated to the caller's memory, with the full length.
    ///
    /// # Safety
    /// As `accept(2)`.
    pub(crate) unsafe fn give(&self, to: *mut sockaddr, length: *mut socklen_t) {
        if to.is_null() || length.is_null() {
            return;
        }
        // SAFETY: by the caller.
        let room = unsafe { length.replace(self.length.into()) } as usize;
        let given = self.as_bytes();
        let given = &given[..given.len().min(room)];
        // SAFETY: the caller has memory for `given`.
        unsafe {
            to.cast::<u8>()
                .copy_from_nonoverlapping(given.as_ptr(), given.len())
        };
    }
}

/// A client's connection, or an upstream connection.
#[derive(Clone, Copy)]
pub(crate) struct Connection {
    /// Number of descriptors; 0: this place is free.
    pub(crate) references: u32,
    /// The connection's number, the same in all processes.
    pub(crate) number: u32,
    /// Other processes have or had the connection, too.
    pub(crate) is_shared: bool,
    /// Inherited from the parent, which may have served the connection.
    pub(crate) is_inherited: bool,
    /// This process serves the connection, from `since` on.
    pub(crate) is_served: bool,
    pub(crate) since: StreamOffsets,
    /// This process has passed the connection on: the receiver reports the position.
    pub(crate) is_passed: bool,
    /// Inode of the socket under way, if the dead incarnation had not received the connection; 0: received.
    pub(crate) pending: u64,
    /// Another process has passed the connection to this process.
    pub(crate) is_taken: bool,
    /// The first descriptor.
    pub(super) fd: c_int,
    pub(crate) peer: Address,
    pub(crate) local: Address,
    /// Bytes that the program has read.
    pub(crate) instream: u64,
    /// Bytes that the program has written.
    pub(crate) outstream: u64,
    /// Bytes of the outstream that the client certainly has, for a replay.
    pub(crate) received: u64,
    /// Serial number of an upstream connection, from 1; 0: a client's connection.
    pub(crate) serial: u64,
    /// The peer is a process of this host.
    pub(crate) is_local: bool,
    /// The supervisor has a descriptor, too.
    pub(crate) is_held: bool,
    /// The program has bound the socket of this upstream connection to an address.
    pub(crate) is_bound: bool,
    /// Identity among connections with the same ends. A joined upstream connection has a number in the data plane.
    pub(crate) which: Which,
    /// The program has shut the connection down for writing.
    pub(crate) is_shut: bool,
    /// Deferred output ([`crate::output_commit::deferred`]), and free space of the socket.
    pub(crate) budget: SocketBudget,
    /// Read cursor ([`crate::read_cursors`]), from 1; 0: none so far.
    pub(crate) cursor: u32,
    /// The descriptor is known not to block.
    pub(crate) is_nonblocking: bool,
    /// The program has limited the socket's buffer.
    pub(crate) is_limited: bool,
    /// Values of [`KEPT_OPTIONS`] of a placeholder, while the process is an image.
    pub(crate) options: [c_int; KEPT_OPTIONS.len()],
    /// Of a free place: the next free place, plus 1.
    pub(super) next_free: u32,
}

impl Connection {
    /// Whether this is an upstream connection.
    pub(crate) fn is_outgoing(&self) -> bool {
        self.serial != 0
    }

    /// The first descriptor of the connection.
    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    /// Whether the connection has a single descriptor.
    pub(crate) fn is_last(&self) -> bool {
        self.references == 1
    }

    /// The position in both streams.
    pub(crate) fn place(&self) -> StreamOffsets {
        StreamOffsets {
            instream: self.instream,
            outstream: self.outstream,
        }
    }

    /// Whether this process has read, written, or shut the connection down.
    pub(crate) fn is_touched(&self) -> bool {
        self.instream > 0 || self.outstream > 0 || self.is_shut
    }

    pub(super) const FREE: Self = Self {
        references: 0,
        number: 0,
        is_shared: false,
        is_inherited: false,
        is_served: false,
        since: StreamOffsets {
            instream: 0,
            outstream: 0,
        },
        is_passed: false,
        pending: 0,
        is_taken: false,
        fd: -1,
        peer: Address::NONE,
        local: Address::NONE,
        instream: 0,
        outstream: 0,
        received: 0,
        serial: 0,
        is_local: false,
        is_held: false,
        is_bound: false,
        which: Which::Unknown,
        is_shut: false,
        budget: SocketBudget::NONE,
        cursor: 0,
        is_nonblocking: false,
        is_limited: false,
        options: [0; KEPT_OPTIONS.len()],
        next_free: 0,
    };
}
