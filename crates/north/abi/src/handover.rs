//! Handover: after a replay each process receives the sockets of its connections.
//!
//! Before the replay the supervisor has written the received bytes of each outstream ([`Position`]). A replica does
//! not know these positions: a replica reports the start of each connection ([`Entry::Began`]) and the whole output.
//! A process writes the output beyond the client's position into the *handover file* ([`Entry::Output`]), then the
//! position of each connection ([`Entry::ClientPosition`], [`Entry::UpstreamPosition`]), and sends
//! [`Message::Replayed`] to the socket, with the end of another socket. When all processes of the service have
//! reported, the supervisor answers there with datagrams of connection numbers, each with a descriptor, and at last
//! with a datagram of one byte ([`GO`]). A process that has ended in its replay does not wait. Each process that has
//! a connection reports its position, under the same number.
//!
//! ```text
//! entry:   u8 kind | 3 bytes 0 | u32 connection | u64 outstream | u64 instream | u32 length, process or descriptor |
//!          u32 flags | ends | u64 which ([`Which::to_u64`], of a client position) | bytes of output
//! ends:    16 bytes and u16 of the client, the same of the server; IPv4 addresses are mapped to IPv6.
//!          For an upstream connection: u64 serial number, and zeros. For a part that a process has served:
//!          u64 instream and u64 outstream of the start, and zeros
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

    /// From the `sockaddr_in` or `sockaddr_in6` of `accept` and `getsockname`. `None`: another address family.
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

/// Bytes of an outstream that the client has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Ends of the connection.
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
    /// Encoded size, bytes.
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
    /// Ends of the connection.
    pub ends: Ends,
    /// Bytes that the program has read.
    pub instream: u64,
    /// Bytes that the program has written.
    pub outstream: u64,
    /// The program has shut the connection down for writing.
    pub is_shut: bool,
    /// The program has closed the connection, and needs no descriptor.
    pub is_closed: bool,
    /// Identity among connections with the same ends.
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
        /// Ends of the connection.
        ends: Ends,
    },
    /// Position of a client's connection.
    ClientPosition {
        /// The connection's number, the same in all processes.
        connection: u32,
        /// The process that has the connection.
        process: u32,
        /// The position.
        position: ClientPosition,
    },
    /// Position of an upstream connection.
    UpstreamPosition {
        /// The connection's number.
        connection: u32,
        /// The process that has the connection.
        process: u32,
        /// The position.
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
        /// The descriptor of the connection.
        fd: u32,
        /// Ends of the connection.
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
    /// The entry without the output, which follows unencoded.
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

    /// The entry at the beginning of `bytes`, and the number of bytes of the entry. `None`: `bytes` does not begin
    /// with an entry.
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

/// A message of a process on the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// The process has replayed the record, and written the positions of `connections` connections to the file.
    Replayed {
        /// The process.
        process: u32,
        /// Number of connections.
        connections: u32,
    },
    /// The process is about to open an upstream connection, or has just begun if an epoll instance watches the
    /// socket. The descriptor comes with the message: the supervisor keeps the connection when the process ends.
    Opened {
        /// The process.
        process: u32,
        /// As [`UpstreamPosition::serial`].
        serial: u64,
    },
    /// The connection is established, and no data was sent yet. The process asks whether another host is to continue
    /// the connection, too, like a client's. The end of a socket comes with the message, for the answer
    /// ([`JOIN_ANSWER`] bytes, little-endian). If that socket ends without an answer, the supervisor may have died
    /// while it examined the connection, and the connection must not be used any more.
    Joins {
        /// The process.
        process: u32,
        /// As [`UpstreamPosition::serial`].
        serial: u64,
    },
    /// The process has closed the connection, or has recorded that the connection [joins](Self::Joins).
    Closed {
        /// The process.
        process: u32,
        /// As [`UpstreamPosition::serial`].
        serial: u64,
    },
    /// The process has stopped for an image. When the socket is closed, too, all open descriptors belong to the
    /// process.
    Paused {
        /// The process.
        process: u32,
    },
    /// The process has opened a file for reading. The descriptor comes with the message: the content can be read
    /// again after another file took the name.
    Reads {
        /// The process.
        process: u32,
        /// [`Identity::key`](crate::Identity::key) at the time of open(2).
        file: u64,
    },
    /// The process wants such a file. The end of a socket comes with the message, for the answer: one byte with the
    /// descriptor. If the socket ends without an answer, no descriptor of the file is kept.
    Wants {
        /// The process.
        process: u32,
        /// As of [`Message::Reads`].
        file: u64,
    },
    /// After the replay the process is about to open this connection for the first time. The process asks whether the
    /// incarnation before opened the connection, too, and died before the record had that. Answered as
    /// [`Message::Wants`].
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
    /// Encoded size, bytes.
    pub const SIZE: usize = 16;

    /// Encoded for the socket.
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

    /// From the socket. `None`: the bytes are no message.
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
