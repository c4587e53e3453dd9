//! Handover: after a replay each process receives the sockets of its connections.
//!
//! Before the replay the supervisor has written how much of each outstream its client has ([`Position`]). A replica
//! does not know these positions: it reports the start of each connection ([`Entry::Began`]) and the whole output. A
//! process writes the output beyond its client's position into the *handover file* ([`Entry::Output`]), then the
//! position of each connection ([`Entry::ClientPosition`], [`Entry::UpstreamPosition`]), and sends
//! [`Message::Replayed`] to the socket, with the end of another socket. When all processes of the service have
//! reported, the supervisor answers there with datagrams of connection numbers, each with a descriptor, and at last
//! with a datagram of one byte ([`GO`]). A process that has ended in its replay does not wait. Each process that has a
//! connection reports its position, under the same number.
//!
//! ```text
//! entry:   u8 kind | 3 bytes 0 | u32 connection | u64 outstream | u64 instream | u32 length, or process | u32 flags |
//! ends
//!          | u64 which ([`Which::to_u64`], of a standing) | bytes, if something was said
//! ends:    16 bytes and u16 of the client, the same of the server; IPv4 addresses as IPv6 has them.
//!          For a connection that the server has opened: u64, which, and zeros. For one that a process has served: u64
//!          and u64 of where it has begun, and zeros
//! ```
//!
//! Numbers are little-endian.

use core::net::{IpAddr, SocketAddr};

use crate::Which;

/// The supervisor's last datagram: all sockets are sent, continue.
pub const GO: u8 = 2;

/// Bytes of the supervisor's answer to [`Message::Joins`]: the data plane's new number of the connection, or 0 for no
/// change.
pub const JOIN_ANSWER: usize = 8;

/// The two ends of a connection, the client's first. Ordered as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Ends(pub [u8; 36]);

impl Default for Ends {
    fn default() -> Self {
        Self([0; 36])
    }
}

impl Ends {
    /// From both addresses.
    #[must_use]
    pub fn new(client: SocketAddr, server: SocketAddr) -> Self {
        let mut ends = [0; 36];
        for (address, out) in [client, server].into_iter().zip(ends.chunks_exact_mut(18)) {
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            out[..16].copy_from_slice(&ip.octets());
            out[16..].copy_from_slice(&address.port().to_be_bytes());
        }
        Self(ends)
    }

    /// From what `accept` and `getsockname` fill in: `sockaddr_in` or `sockaddr_in6`. `None`: it is neither.
    #[must_use]
    pub fn from_sockaddrs(client: &[u8], server: &[u8]) -> Option<Self> {
        let mut ends = [0; 36];
        let (first, second) = ends.split_at_mut(18);
        end(client, first)?;
        end(server, second)?;
        Some(Self(ends))
    }
}

/// `AF_INET` and `AF_INET6`.
const ADDRESS_FAMILIES: [u16; 2] = [2, 10];

fn end(sockaddr: &[u8], out: &mut [u8]) -> Option<()> {
    let family = u16::from_ne_bytes(sockaddr.get(..2)?.try_into().ok()?);
    let (address, port) = out.split_at_mut(16);
    port.copy_from_slice(sockaddr.get(2..4)?);
    if family == ADDRESS_FAMILIES[0] {
        address[10..12].fill(0xff);
        address[12..].copy_from_slice(sockaddr.get(4..8)?);
    } else if family == ADDRESS_FAMILIES[1] {
        address.copy_from_slice(sockaddr.get(8..24)?);
    } else {
        return None;
    }
    Some(())
}

/// How much of an outstream its client has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Which.
    pub ends: Ends,
    /// Bytes of the outstream that the client has acknowledged.
    pub received: u64,
}

impl Position {
    /// Size, bytes.
    pub const SIZE: usize = 48;

    /// Encoded for the file.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..36].copy_from_slice(&self.ends.0);
        bytes[40..].copy_from_slice(&self.received.to_le_bytes());
        bytes
    }

    /// From the file.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let mut ends = Ends::default();
        ends.0.copy_from_slice(&bytes[..36]);
        let mut received = [0; 8];
        received.copy_from_slice(&bytes[40..]);
        Self {
            ends,
            received: u64::from_le_bytes(received),
        }
    }

    /// Acknowledged bytes of the client with these ends, from sorted positions. `None`: the client is gone.
    #[must_use]
    pub fn find(row: &[u8], ends: &Ends) -> Option<u64> {
        let (row, _) = row.as_chunks::<{ Position::SIZE }>();
        let found = row.binary_search_by(|bytes| bytes[..36].cmp(&ends.0[..]));
        found
            .ok()
            .map(|index| Self::from_bytes(&row[index]).received)
    }
}

/// Bytes of a connection that the program has read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StreamOffsets {
    /// Bytes read.
    pub instream: u64,
    /// Bytes written.
    pub outstream: u64,
}

impl StreamOffsets {
    /// Bytes that one takes.
    pub const SIZE: usize = 16;

    /// Encoded for a record.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&self.instream.to_le_bytes());
        bytes[8..].copy_from_slice(&self.outstream.to_le_bytes());
        bytes
    }

    /// From a record.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let (words, _) = bytes.as_chunks();
        Self {
            instream: u64::from_le_bytes(words[0]),
            outstream: u64::from_le_bytes(words[1]),
        }
    }
}

/// Position of a client's connection at the end of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientPosition {
    /// Its ends.
    pub ends: Ends,
    /// Bytes that the program has read.
    pub instream: u64,
    /// Bytes that it has written.
    pub outstream: u64,
    /// The program has shut the connection down for writing.
    pub is_shut: bool,
    /// The program has closed the connection, and needs no descriptor.
    pub is_closed: bool,
    /// Which one of those that have the same ends.
    pub which: Which,
}

/// Position of an upstream connection at the end of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpstreamPosition {
    /// Serial number of the connection ([`UpstreamPosition::serial_of`]): the opening process counts from 1.
    pub serial: u64,
    /// A connection to another process of the host (`AF_UNIX`).
    pub is_local: bool,
    /// As [`ClientPosition::instream`].
    pub instream: u64,
    /// As [`ClientPosition::outstream`].
    pub outstream: u64,
    /// As [`ClientPosition::is_shut`].
    pub is_shut: bool,
    /// As [`ClientPosition::is_closed`].
    pub is_closed: bool,
}

impl UpstreamPosition {
    const COUNT: u32 = 40;

    /// Serial number of the `count`th connection that this process opens.
    #[must_use]
    pub fn serial_of(process: u32, count: u64) -> u64 {
        (u64::from(process) << Self::COUNT) | count
    }

    /// The process that opened the connection.
    #[must_use]
    pub fn opener(&self) -> u32 {
        Self::opener_of(self.serial)
    }

    /// The process that opened the connection with this serial number.
    #[must_use]
    pub fn opener_of(serial: u64) -> u32 {
        u32::try_from(serial >> Self::COUNT).unwrap_or(u32::MAX)
    }
}

/// One entry of the handover file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry<'a> {
    /// Output that the client may lack.
    Output {
        /// The connection's number, the same in all processes.
        connection: u32,
        /// Offset of `bytes` in the outstream.
        offset: u64,
        /// The output.
        bytes: &'a [u8],
    },
    /// A connection has begun.
    Began {
        /// The connection's number, the same in all processes.
        connection: u32,
        /// Its ends.
        ends: Ends,
    },
    /// Position of a client's connection.
    ClientPosition {
        /// The connection's number, the same in all processes.
        connection: u32,
        /// The process that has it.
        process: u32,
        /// Where.
        position: ClientPosition,
    },
    /// Position of an upstream connection.
    UpstreamPosition {
        /// The connection's number.
        connection: u32,
        /// The process that has it.
        process: u32,
        /// Where.
        position: UpstreamPosition,
    },
    /// A process has served a part of a connection. Other processes may have served the parts before and after.
    Served {
        /// The connection's number.
        connection: u32,
        /// Start of the part.
        from: StreamOffsets,
        /// End of the part.
        to: StreamOffsets,
    },
    /// The process has stopped for an image, with this client's connection open.
    Open {
        /// The process's number for the connection.
        connection: u32,
        /// Its descriptor.
        fd: u32,
        /// Its ends.
        ends: Ends,
    },
}

const KIND_OUTPUT: u8 = 1;
const KIND_REPLAY_POSITION: u8 = 2;
const KIND_UPSTREAM_POSITION: u8 = 3;
const KIND_BEGAN: u8 = 4;
const KIND_OPEN: u8 = 5;
const KIND_SERVED: u8 = 6;
const FLAG_SHUT: u32 = 1;
const FLAG_CLOSED: u32 = 2;
const FLAG_LOCAL: u32 = 4;

fn flags(all: [(bool, u32); 3]) -> [u8; 4] {
    let set = all.into_iter().filter(|(is_set, _)| *is_set);
    set.fold(0, |flags, (_, flag)| flags | flag).to_le_bytes()
}

/// Bytes of an entry without its output.
const ENTRY_HEADER_BYTES: usize = 76;
/// Range of the ends in an entry.
const ENTRY_ENDS_RANGE: core::ops::Range<usize> = 32..68;

impl<'a> Entry<'a> {
    /// The entry without its output, which follows unencoded.
    #[must_use]
    pub fn header(&self) -> [u8; ENTRY_HEADER_BYTES] {
        let mut out = [0; ENTRY_HEADER_BYTES];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        match self {
            Self::Output {
                connection,
                offset,
                bytes,
            } => {
                put(0, &[KIND_OUTPUT]);
                put(4, &connection.to_le_bytes());
                put(8, &offset.to_le_bytes());
                let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                put(24, &length.to_le_bytes());
            }
            Self::Began { connection, ends } => {
                put(0, &[KIND_BEGAN]);
                put(4, &connection.to_le_bytes());
                put(ENTRY_ENDS_RANGE.start, &ends.0);
            }
            Self::ClientPosition {
                connection,
                process,
                position,
            } => {
                put(0, &[KIND_REPLAY_POSITION]);
                put(4, &connection.to_le_bytes());
                put(24, &process.to_le_bytes());
                put(8, &position.outstream.to_le_bytes());
                put(16, &position.instream.to_le_bytes());
                let (shut, closed) = (position.is_shut, position.is_closed);
                put(
                    28,
                    &flags([
                        (shut, FLAG_SHUT),
                        (closed, FLAG_CLOSED),
                        (false, FLAG_LOCAL),
                    ]),
                );
                put(ENTRY_ENDS_RANGE.start, &position.ends.0);
                put(ENTRY_ENDS_RANGE.end, &position.which.to_u64().to_le_bytes());
            }
            Self::UpstreamPosition {
                connection,
                process,
                position,
            } => {
                put(0, &[KIND_UPSTREAM_POSITION]);
                put(4, &connection.to_le_bytes());
                put(24, &process.to_le_bytes());
                put(8, &position.outstream.to_le_bytes());
                put(16, &position.instream.to_le_bytes());
                let (shut, closed) = (position.is_shut, position.is_closed);
                let local = position.is_local;
                put(
                    28,
                    &flags([
                        (shut, FLAG_SHUT),
                        (closed, FLAG_CLOSED),
                        (local, FLAG_LOCAL),
                    ]),
                );
                put(32, &position.serial.to_le_bytes());
            }
            Self::Served {
                connection,
                from,
                to,
            } => {
                put(0, &[KIND_SERVED]);
                put(4, &connection.to_le_bytes());
                put(8, &to.outstream.to_le_bytes());
                put(16, &to.instream.to_le_bytes());
                put(32, &from.to_bytes());
            }
            Self::Open {
                connection,
                fd,
                ends,
            } => {
                put(0, &[KIND_OPEN]);
                put(4, &connection.to_le_bytes());
                put(24, &fd.to_le_bytes());
                put(ENTRY_ENDS_RANGE.start, &ends.0);
            }
        }
        out
    }

    /// The entry that `bytes` begins with, and how many it takes; `None`: it is none.
    #[must_use]
    pub fn read(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let (header, rest) = bytes.split_first_chunk::<ENTRY_HEADER_BYTES>()?;
        let u32_at = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let connection = u32_at(4);
        match header[0] {
            KIND_OUTPUT => {
                let length = usize::try_from(u32_at(24)).ok()?;
                let said = Self::Output {
                    connection,
                    offset: u64_at(8),
                    bytes: rest.get(..length)?,
                };
                Some((said, ENTRY_HEADER_BYTES + length))
            }
            KIND_BEGAN => {
                let mut ends = Ends::default();
                ends.0.copy_from_slice(&header[ENTRY_ENDS_RANGE]);
                Some((Self::Began { connection, ends }, ENTRY_HEADER_BYTES))
            }
            KIND_REPLAY_POSITION => {
                let mut ends = Ends::default();
                ends.0.copy_from_slice(&header[ENTRY_ENDS_RANGE]);
                let position = ClientPosition {
                    ends,
                    outstream: u64_at(8),
                    instream: u64_at(16),
                    is_shut: u32_at(28) & FLAG_SHUT != 0,
                    is_closed: u32_at(28) & FLAG_CLOSED != 0,
                    which: Which::from_u64(u64_at(ENTRY_ENDS_RANGE.end)),
                };
                let stands = Self::ClientPosition {
                    connection,
                    process: u32_at(24),
                    position,
                };
                Some((stands, ENTRY_HEADER_BYTES))
            }
            KIND_UPSTREAM_POSITION => {
                let position = UpstreamPosition {
                    serial: u64_at(32),
                    is_local: u32_at(28) & FLAG_LOCAL != 0,
                    outstream: u64_at(8),
                    instream: u64_at(16),
                    is_shut: u32_at(28) & FLAG_SHUT != 0,
                    is_closed: u32_at(28) & FLAG_CLOSED != 0,
                };
                let reaches = Self::UpstreamPosition {
                    connection,
                    process: u32_at(24),
                    position,
                };
                Some((reaches, ENTRY_HEADER_BYTES))
            }
            KIND_SERVED => {
                let place = |instream: usize, outstream: usize| StreamOffsets {
                    instream: u64_at(instream),
                    outstream: u64_at(outstream),
                };
                let served = Self::Served {
                    connection,
                    from: place(32, 40),
                    to: place(16, 8),
                };
                Some((served, ENTRY_HEADER_BYTES))
            }
            KIND_OPEN => {
                let mut ends = Ends::default();
                ends.0.copy_from_slice(&header[ENTRY_ENDS_RANGE]);
                let open = Self::Open {
                    connection,
                    fd: u32_at(24),
                    ends,
                };
                Some((open, ENTRY_HEADER_BYTES))
            }
            _ => None,
        }
    }
}

/// What a process says on the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// The record of the process with this number is replayed; so many connections stand in the file.
    Replayed {
        /// The process.
        process: u32,
        /// How many.
        connections: u32,
    },
    /// It is about to open a connection to another server, or has just begun to, if an epoll instance watches it. Its
    /// descriptor is beside the message: held by the supervisor, it does not end with the process.
    Opened {
        /// The process.
        process: u32,
        /// As [`UpstreamPosition::serial`].
        serial: u64,
    },
    /// That connection is there, and nothing was said in it yet: is it to go on elsewhere, too, as those of clients
    /// do? Beside the message is the end of a socket for the answer ([`JOIN_ANSWER`] bytes, little-endian). If that
    /// ends without one, the supervisor may have died while it looked at the connection, which nobody may use any more.
    Joins {
        /// The process.
        process: u32,
        /// As [`UpstreamPosition::serial`].
        serial: u64,
    },
    /// It has closed that connection, or has noted that it [joins](Self::Joins).
    Closed {
        /// The process.
        process: u32,
        /// As [`UpstreamPosition::serial`].
        serial: u64,
    },
    /// The process with this number has stopped, for an image. When it has closed the socket, too, it has nothing open
    /// that is not its own.
    Paused {
        /// The process.
        process: u32,
    },
    /// It has opened a file to read it, whose descriptor is beside the message: what it says can be read again when
    /// another one has its name.
    Reads {
        /// The process.
        process: u32,
        /// [`Identity::key`](crate::Identity::key), as it was when it was opened.
        file: u64,
    },
    /// Such a file is wanted. Beside the message is the end of a socket for the answer: one byte, and beside that the
    /// descriptor. If that ends without one, nobody has it.
    Wants {
        /// The process.
        process: u32,
        /// As of [`Message::Reads`].
        file: u64,
    },
    /// Behind its replay it is about to open this one for the first time. Has the life before opened it, too, and died
    /// before it has noted that? Answered as [`Message::Wants`].
    Opens {
        /// The process.
        process: u32,
        /// As [`UpstreamPosition::serial`].
        serial: u64,
    },
    /// The process wants the table of read cursors ([`crate::read_cursors`]). Answered as [`Message::Wants`].
    ReadCursors {
        /// The process.
        process: u32,
    },
}

impl Message {
    /// Bytes that one takes.
    pub const SIZE: usize = 16;

    /// As it is sent.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let (kind, process, number) = match *self {
            Self::Replayed {
                process,
                connections,
            } => (1, process, u64::from(connections)),
            Self::Opened { process, serial } => (2, process, serial),
            Self::Closed { process, serial } => (3, process, serial),
            Self::Paused { process } => (4, process, 0),
            Self::Joins { process, serial } => (5, process, serial),
            Self::Reads { process, file } => (6, process, file),
            Self::Wants { process, file } => (7, process, file),
            Self::Opens { process, serial } => (8, process, serial),
            Self::ReadCursors { process } => (9, process, 0),
        };
        let mut bytes = [0; Self::SIZE];
        bytes[0] = kind;
        bytes[4..8].copy_from_slice(&process.to_le_bytes());
        bytes[8..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    /// As it was sent; `None`: it is none.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::SIZE] = bytes.try_into().ok()?;
        let [kind, 0, 0, 0, p0, p1, p2, p3, number @ ..] = *bytes else {
            return None;
        };
        let process = u32::from_le_bytes([p0, p1, p2, p3]);
        let serial = u64::from_le_bytes(number);
        match kind {
            1 => Some(Self::Replayed {
                process,
                connections: u32::try_from(serial).ok()?,
            }),
            2 => Some(Self::Opened { process, serial }),
            3 => Some(Self::Closed { process, serial }),
            4 => Some(Self::Paused { process }),
            5 => Some(Self::Joins { process, serial }),
            6 => Some(Self::Reads {
                process,
                file: serial,
            }),
            7 => Some(Self::Wants {
                process,
                file: serial,
            }),
            8 => Some(Self::Opens { process, serial }),
            9 => Some(Self::ReadCursors { process }),
            _ => None,
        }
    }
}
