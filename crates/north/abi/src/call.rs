//! What kinds of outcomes are recorded.

/// Whose outcome a [`crate::Record`] is. Calls of one family share a kind: `read`, `recv` and `readv` bring
/// bytes of a connection, whatever they are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Call {
    /// The beginning of a process's life. The outcome is its process id; the payload of the first process is what
    /// runs, of which another life's is to be the same, and of others the number of their parent.
    Start = 1,
    /// `epoll_wait`: the payload says which descriptors are ready ([`crate::Ready`]).
    Epoll = 2,
    /// `poll`, in the same way; the numbers are places in the array.
    Poll = 3,
    /// `select`, in the same way.
    Select = 4,
    /// Bytes from a client's connection: the payload.
    Read = 5,
    /// A write to a client's connection that took fewer bytes than it was given, or failed. One that took
    /// all leaves no record.
    Write = 6,
    /// A new connection: the outcome is its descriptor, the payload both its addresses.
    Accept = 7,
    /// The clocks have moved on: the payload is a [`crate::Tick`].
    Clock = 8,
    /// Random bytes: the payload.
    Random = 9,
    /// A number that the kernel chose, such as a process id.
    Value = 10,
    /// Whatever a call filled in, such as `getrusage`: the payload.
    Filled = 11,
    /// A child process. Before it begins: the outcome is the number of its stream. Then, with that as the descriptor:
    /// the outcome is its process id.
    Fork = 12,
    /// A child process that ended: the outcome is its number, the payload its status.
    Wait = 13,
    /// A signal arrived here: the outcome is its number.
    Signal = 14,
    /// This is about to be said ([`crate::Header::outstream`]).
    Outstream = 15,
    /// Bytes from what is neither a client's connection nor a regular file (a pipe, `/dev/urandom`, a file
    /// below `/proc`): the payload.
    Input = 16,
    /// What opening, reading, moving in or looking at a file gave. By name: the descriptor is a hash of that. A file
    /// that was opened comes with its [`crate::Identity`], what was read with a hash.
    File = 17,
    /// A connection that the server opened itself.
    Connect = 18,
    /// A name in a file system is about to be made or taken away: the payload says which file had it.
    Intent = 19,
    /// A file has been appended to by somebody else, too: the outcome is where its end is now.
    Moved = 20,
    /// Another thread has closed this file, whose descriptor is free from here on.
    Closed = 21,
    /// What becomes of this process, which is no first one: the outcome is a [`crate::layout::Fate`].
    Fate = 22,
    /// A piece of a file that was read, and that the server is about to put another one in the place of: the outcome
    /// is where it begins, the payload the file's [`crate::Identity`] and the piece.
    Kept = 23,
    /// Helper threads are not waited for from here on: the outcome is a [`crate::layout::Restless`], and the
    /// descriptor how often they were since the last record.
    Helpers = 24,
    /// A signal was sent: the descriptor is the process, as the program knows it, or a group, less than 0.
    Kill = 25,
    /// A connection that the server opened itself is recorded as a client's from here on: the payload is as of
    /// [`Call::Accept`].
    Joined = 26,
    /// An address that a socket was not given (payload: 0), or not allowed to listen on (1): the outcome says why.
    /// Where it was, there is no record.
    Bind = 27,
    /// A connection that another process has passed, with the bytes beside it: the outcome is its descriptor, the
    /// payload both addresses ([`crate::passed_connections::PACKED_ADDRESS_BYTES`] bytes each) and the bytes.
    Passed = 28,
    /// A lock on a file: the outcome, and the range ([`crate::locks::Lock::payload`]). An unlock is recorded before the
    /// call, and once more after a failure ([`crate::locks::UNLOCK_FAILED_PAYLOAD`],
    /// [`crate::locks::IMPLICIT_UNLOCK_PAYLOAD`]).
    Lock = 29,
}

impl Call {
    const ALL: [Self; 29] = [
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

    /// Its number in a stream.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Is the payload of a call that succeeded as long as its outcome says?
    pub(crate) fn brings_bytes(self) -> bool {
        matches!(
            self,
            Self::Epoll | Self::Poll | Self::Select | Self::Read | Self::Random | Self::Input
        )
    }
}
