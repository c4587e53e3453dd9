//! A connection, as this process knows it.

use core::{mem::MaybeUninit, ops::Range};

use libc::{AF_INET, AF_INET6, c_int, sockaddr, sockaddr_storage, socklen_t};
use north_abi::{
    SocketBudget, Which, addresses::mapped, handover::StreamOffsets,
    passed_connections::PACKED_ADDRESS_BYTES,
};

/// Options of a socket that are not in an image if it is connected to nobody: level, name.
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

    /// What the kernel has filled in.
    pub(crate) fn new(storage: &MaybeUninit<sockaddr_storage>, length: u32) -> Self {
        let mut address = Self::NONE;
        let length = (length as usize).min(address.bytes.len());
        // SAFETY: the kernel has written so many bytes at least.
        let filled = unsafe { core::slice::from_raw_parts(storage.as_ptr().cast::<u8>(), length) };
        address.bytes[..length].copy_from_slice(filled);
        address.length = u8::try_from(length).unwrap_or(0);
        address
    }

    /// Its bytes, and how many.
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

    /// Byte for byte, but for what one of IPv6 says of flows.
    pub(crate) fn is_exactly(&self, other: &Self) -> bool {
        /// Where the number of the interface is.
        const SCOPE: Range<usize> = 24..28;
        self.is(other.as_bytes()) && self.bytes[SCOPE] == other.bytes[SCOPE]
    }

    /// Is it the one that the program has named like this? Padding, and what one of IPv6 says of flows, may differ.
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

    /// Of a network, with this port.
    pub(crate) fn with_port(mut self, port: [u8; 2]) -> Self {
        self.bytes[2..4].copy_from_slice(&port);
        self
    }

    /// The port of one of a network, 0: none; `None`: it is another one.
    pub(crate) fn port(&self) -> Option<[u8; 2]> {
        let (family, rest) = self.as_bytes().split_first_chunk()?;
        let family = c_int::from(u16::from_ne_bytes(*family));
        let is_internet = [libc::AF_INET, libc::AF_INET6].contains(&family);
        rest.first_chunk().copied().filter(|_| is_internet)
    }

    /// The host, as IPv6 has it, and the port of one of a network.
    pub(crate) fn host_and_port(&self) -> Option<([u8; 16], u16)> {
        let port = u16::from_be_bytes(self.port()?);
        let host = match self.as_bytes().get(8..24).and_then(<[u8]>::first_chunk) {
            Some(host) if self.length >= 28 => *host,
            _ => mapped(*self.as_bytes().get(4..)?.first_chunk()?),
        };
        Some((host, port))
    }

    /// From a record.
    pub(crate) fn fill(&mut self, from: &[u8]) {
        let length = from.len().min(self.bytes.len());
        self.bytes[..length].copy_from_slice(&from[..length]);
        self.length = u8::try_from(length).unwrap_or(0);
    }

    /// As the kernel gives it: cut off where there is no room, with its full length.
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
        // SAFETY: there is room for so many.
        unsafe {
            to.cast::<u8>()
                .copy_from_nonoverlapping(given.as_ptr(), given.len())
        };
    }
}

/// One client's connection, or one that the program has opened.
#[derive(Clone, Copy)]
pub(crate) struct Connection {
    /// Descriptors that are it; 0: this place is free.
    pub(crate) references: u32,
    /// Its number, which all processes know that have it.
    pub(crate) number: u32,
    /// Other processes have it, too, or had it.
    pub(crate) is_shared: bool,
    /// This process has it from its parent, who may have served it.
    pub(crate) is_inherited: bool,
    /// It is this process that serves it, from there on.
    pub(crate) is_served: bool,
    pub(crate) since: StreamOffsets,
    /// This process has passed it on: what becomes of it is another one's.
    pub(crate) is_passed: bool,
    /// The number of the socket by which it is still to arrive, when the dead life had not received it; 0: it has.
    pub(crate) pending: u64,
    /// Another one has passed it on to this one.
    pub(crate) is_taken: bool,
    /// The first of them.
    pub(super) fd: c_int,
    pub(crate) peer: Address,
    pub(crate) local: Address,
    /// Bytes that the program has read.
    pub(crate) instream: u64,
    /// Bytes that it has written.
    pub(crate) outstream: u64,
    /// How many of these its client has for certain, as far as that matters in a replay.
    pub(crate) received: u64,
    /// Which of those it is that the program has opened, from 1; 0: it is a client's.
    pub(crate) serial: u64,
    /// It leads to another process of the host.
    pub(crate) is_local: bool,
    /// The supervisor has it, too.
    pub(crate) is_held: bool,
    /// Of one that the program has opened: it has said from which address.
    pub(crate) is_bound: bool,
    /// Which one of those that have the same ends. One that the program has opened has a number in the data plane if
    /// it goes on as those of clients do.
    pub(crate) which: Which,
    /// It has said that it will write no more.
    pub(crate) is_shut: bool,
    /// What is held of it ([`crate::output_commit::deferred`]), and what its socket takes besides.
    pub(crate) budget: SocketBudget,
    /// Read cursor ([`crate::read_cursors`]), from 1; 0: none so far.
    pub(crate) cursor: u32,
    /// It is known not to block.
    pub(crate) is_nonblocking: bool,
    /// The program has limited how much its socket takes.
    pub(crate) is_limited: bool,
    /// Those of [`KEPT_OPTIONS`] of a placeholder, while the process is an image.
    pub(crate) options: [c_int; KEPT_OPTIONS.len()],
    /// While this place is free: the next free one, plus 1.
    pub(super) next_free: u32,
}

impl Connection {
    /// Has the program opened it?
    pub(crate) fn is_outgoing(&self) -> bool {
        self.serial != 0
    }

    /// The first descriptor that is it.
    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    /// Is it one descriptor, and no other?
    pub(crate) fn is_last(&self) -> bool {
        self.references == 1
    }

    /// How far it is.
    pub(crate) fn place(&self) -> StreamOffsets {
        StreamOffsets {
            instream: self.instream,
            outstream: self.outstream,
        }
    }

    /// Has this process read from it, written to it, or shut it down?
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
