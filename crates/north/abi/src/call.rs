//! Kinds of recorded outcomes.

/// The kind of call whose outcome a [`crate::Record`] is. Calls of one family share a kind: `read`, `recv` and
/// `readv` all bring bytes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Call {
    /// A process begins. The outcome is the process id. The payload of the first process identifies the program,
    /// which must be the same in the next incarnation; the payload of any other process is the number of the parent.
    Start = 1,
    /// `epoll_wait`: the payload lists the ready descriptors ([`crate::Ready`]).
    Epoll = 2,
    /// `poll`: as [`Self::Epoll`], with places in the caller's array in place of descriptors.
    Poll = 3,
    /// `select`: as [`Self::Epoll`].
    Select = 4,
    /// Bytes from a client's connection: the payload.
    Read = 5,
    /// A write to a client's connection that took only a part of the bytes, or failed. A complete write leaves no
    /// record.
    Write = 6,
    /// A new connection: the outcome is the descriptor, the payload both addresses.
    Accept = 7,
    /// The clocks were put forward: the payload is a [`crate::Tick`].
    Clock = 8,
    /// Random bytes: the payload.
    Random = 9,
    /// A number that the kernel chose, such as a process id.
    Value = 10,
    /// Data that a call such as `getrusage` filled in: the payload.
    Filled = 11,
    /// A child process. Before the child begins, the outcome is the number of the child's stream. A second record has
    /// that number as the descriptor, and the process id as the outcome.
    Fork = 12,
    /// A child process that ended: the outcome is the child's number, the payload the status.
    Wait = 13,
    /// A signal arrived at this place: the outcome is the number of the signal.
    Signal = 14,
    /// Output is about to leave ([`crate::Header::outstream`]).
    Outstream = 15,
    /// Bytes from a descriptor that is neither a client's connection nor a regular file (a pipe, `/dev/urandom`, a
    /// file below `/proc`): the payload.
    Input = 16,
    /// The outcome of opening, reading, seeking in or looking at a file. In a call by name the descriptor is a hash
    /// of the name. An opened file comes with the [`crate::Identity`], bytes of a read come with a hash.
    File = 17,
    /// A connection that the server opened itself.
    Connect = 18,
    /// A name in a file system is about to be made or removed: the payload identifies the file that had the name.
    Intent = 19,
    /// Another program has appended to the file, too: the outcome is the present end of the file.
    Moved = 20,
    /// Another thread has closed this file. The descriptor is free from here on.
    Closed = 21,
    /// The fate of this process, which is not the first of the service: the outcome is a [`crate::layout::Fate`].
    Fate = 22,
    /// A piece of a file that the server has read and is about to overwrite: the outcome is the offset, the payload
    /// the file's [`crate::Identity`] and the piece.
    Kept = 23,
    /// Helper threads are not waited for from here on: the outcome is a [`crate::layout::Restless`], the descriptor
    /// the number of waits since the last record.
    Helpers = 24,
    /// A signal was sent: the descriptor is the process as the program knows the process, or a group as a negative
    /// number.
    Kill = 25,
    /// A connection that the server opened is recorded like a client's from here on: the payload is as of
    /// [`Call::Accept`].
    Joined = 26,
    /// The kernel refused an address to a socket (payload: 0), or refused to listen there (payload: 1): the outcome
    /// is the error. Success leaves no record.
    Bind = 27,
    /// A connection that another process has passed, with the bytes beside the descriptor: the outcome is the
    /// descriptor, the payload both addresses ([`crate::passed_connections::PACKED_ADDRESS_BYTES`] bytes each) and
    /// the bytes.
    Passed = 28,
    /// A lock on a file: the outcome, and the range ([`crate::locks::Lock::payload`]). An unlock is recorded before the
    /// call, and once more after a failure ([`crate::locks::UNLOCK_FAILED_PAYLOAD`],
    /// [`crate::locks::IMPLICIT_UNLOCK_PAYLOAD`]).
    Lock = 29,
}

impl Call {
    pub(crate) const ALL: [Self; 29] = [
        Self::Start,
        Self::Epoll,
        Self::Poll,
        Self::Select,
        Self::Read,
        Self::Write,
        Self::Accept,
        Self::Clock,
        Self::Random,
        Self::Value,
        Self::Filled,
        Self::Fork,
        Self::Wait,
        Self::Signal,
        Self::Outstream,
        Self::Input,
        Self::File,
        Self::Connect,
        Self::Intent,
        Self::Moved,
        Self::Closed,
        Self::Fate,
        Self::Kept,
        Self::Helpers,
        Self::Kill,
        Self::Joined,
        Self::Bind,
        Self::Passed,
        Self::Lock,
    ];

    /// The kind with this number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        let index = usize::from(code).checked_sub(1)?;
        Self::ALL.get(index).copied()
    }

    /// The number of the kind in a stream.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Whether the payload of a successful call is as long as the outcome says.
    pub(crate) fn brings_bytes(self) -> bool {
        matches!(
            self,
            Self::Epoll | Self::Poll | Self::Select | Self::Read | Self::Random | Self::Input
        )
    }
}
