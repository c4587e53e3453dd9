//! Operations of a store, and outcomes.

use alloc::{string::String, vec::Vec};
use core::fmt;
use core::time::Duration;

use wire::FlowKey;

use crate::record::{HashName, MemberHash, MemberList, RecordError, StoreKey};

/// A key-value store: a queue of operations.
pub trait Store {
    /// Queues an operation.
    ///
    /// # Errors
    /// [`QueueFull`]: as many operations as the queue holds have no outcome, or an outcome that was not polled.
    fn submit(&mut self, operation: Operation) -> Result<Ticket, QueueFull>;

    /// Appends all outcomes and changes since the last call. Never waits.
    fn poll(&mut self, reports: &mut Vec<Report>);

    /// The address, without secrets.
    fn name(&self) -> &str;
}

/// An operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Writes a record.
    Put {
        /// Name of the record.
        key: StoreKey,
        /// The sealed record.
        value: Vec<u8>,
    },
    /// Reads the records of a connection.
    Get {
        /// The hashes of all members that may have written a record.
        hashes: Vec<HashName>,
        /// The connection.
        flow: FlowKey,
    },
    /// Reads a part of the records of a member. Records that are written meanwhile may be in no page, and a record may
    /// be in two pages.
    Scan {
        /// The member.
        hash: HashName,
        /// Where the page begins.
        cursor: Cursor,
    },
    /// Deletes a record.
    Delete {
        /// Name of the record.
        key: StoreKey,
    },
    /// Begins the time to live of a record anew, and in stores with hashes of all records of the member.
    Renew {
        /// Name of the record.
        key: StoreKey,
    },
    /// Adds a name to a list of members.
    AddMember {
        /// The list.
        list: MemberList,
        /// The member.
        member: MemberHash,
    },
    /// Reads lists of members.
    Members {
        /// The lists.
        lists: Vec<MemberList>,
    },
    /// Asks the store about itself.
    Probe,
}

impl Operation {
    /// The kind.
    #[must_use]
    pub const fn kind(&self) -> OperationKind {
        match self {
            Self::Put { .. } => OperationKind::Put,
            Self::Get { .. } => OperationKind::Get,
            Self::Scan { .. } => OperationKind::Scan,
            Self::Delete { .. } => OperationKind::Delete,
            Self::Renew { .. } => OperationKind::Renew,
            Self::AddMember { .. } => OperationKind::AddMember,
            Self::Members { .. } => OperationKind::Members,
            Self::Probe => OperationKind::Probe,
        }
    }
}

/// Kind of an operation, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperationKind {
    /// [`Operation::Put`].
    Put,
    /// [`Operation::Get`].
    Get,
    /// [`Operation::Scan`].
    Scan,
    /// [`Operation::Delete`].
    Delete,
    /// [`Operation::Renew`].
    Renew,
    /// [`Operation::AddMember`].
    AddMember,
    /// [`Operation::Members`].
    Members,
    /// [`Operation::Probe`].
    Probe,
}

impl OperationKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Put,
        Self::Get,
        Self::Scan,
        Self::Delete,
        Self::Renew,
        Self::AddMember,
        Self::Members,
        Self::Probe,
    ];

    /// The label of metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Scan => "scan",
            Self::Delete => "delete",
            Self::Renew => "renew",
            Self::AddMember => "add_member",
            Self::Members => "members",
            Self::Probe => "probe",
        }
    }
}

/// Position in the records of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cursor(
    /// In the numbers of the store.
    pub u64,
);

impl Cursor {
    /// Before the first record.
    pub const START: Self = Self(0);
}

/// Number of an operation at a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(
    /// Operations before.
    pub u64,
);

/// The queue of a store is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("the queue of the store is full")]
pub struct QueueFull;

/// An outcome, or a change of the connection to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// An operation is over.
    Completed(Completion),
    /// The store cannot be used. Attempts to connect go on, and operations fail at once.
    Lost(Failure),
    /// The store can be used from now on.
    Connected {
        /// The store is another instance than before: without persistence the records are lost.
        is_other_instance: bool,
    },
}

/// The outcome of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// From [`Store::submit`].
    pub ticket: Ticket,
    /// The outcome.
    pub result: Result<Outcome, Failure>,
}

/// What an operation has found or done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The store has written the record, or the name of the member.
    Stored,
    /// The records of the connection. None: no hash has a record, and every hash was read.
    Found(Vec<StoredValue>),
    /// Records of a member.
    Page(Page),
    /// The record is deleted.
    Deleted {
        /// The store had the record.
        existed: bool,
    },
    /// The time to live began anew.
    Renewed {
        /// The store has the record; in stores with hashes: a record of the member.
        exists: bool,
    },
    /// The members of all lists, each once.
    Members(Vec<MemberHash>),
    /// About the store.
    Probed(Probe),
}

/// A sealed record of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredValue {
    /// Name of the record.
    pub key: StoreKey,
    /// The sealed record.
    pub value: Vec<u8>,
}

/// A part of the records of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Records.
    pub values: Vec<StoredValue>,
    /// Entries that no member has written.
    pub foreign: usize,
    /// Where the next page begins. `None`: this is the last page.
    pub next: Option<Cursor>,
}

/// About a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The program.
    pub product: Product,
    /// Version of the program, if the store tells.
    pub version: Option<String>,
    /// Name of this run of the program: changes with each start.
    pub instance: Option<String>,
    /// What happens when the memory is full, in words of the program: `maxmemory-policy` of Valkey and Redis, `on` or
    /// `off` (`evictions`) of memcached.
    pub eviction: Option<String>,
    /// Limit of the memory, bytes. `None`: no limit, or unknown.
    pub memory_limit: Option<u64>,
    /// Time until the answer.
    pub round_trip: Duration,
}

impl Probe {
    /// Whether the store drops records when the memory is full, before the records are old. `None`: unknown.
    #[must_use]
    pub fn evicts(&self) -> Option<bool> {
        let eviction = self.eviction.as_deref()?;
        Some(!matches!(eviction, "noeviction" | "off"))
    }
}

/// A program that is a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Product {
    /// Valkey.
    Valkey,
    /// Redis.
    Redis,
    /// memcached.
    Memcached,
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Valkey => "valkey",
            Self::Redis => "redis",
            Self::Memcached => "memcached",
        })
    }
}

/// Why an operation has failed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// No connection; the operation was not sent.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// The connection was lost. The store may have performed the operation.
    #[error("the connection to the store was lost: {0}")]
    ConnectionLost(String),
    /// No answer in time. The store may have performed the operation.
    #[error("the store did not answer in time")]
    TimedOut,
    /// The memory of the store is full, and the store evicts no record.
    #[error("the memory of the store is full: {0}")]
    OutOfMemory(String),
    /// The store is a copy, or cannot write to its disk.
    #[error("the store does not write: {0}")]
    ReadOnly(String),
    /// The password is wrong or missing, or the user may not use the command.
    #[error("the store denies access: {0}")]
    Denied(String),
    /// The name is in use for another type of value: by another program.
    #[error("another program uses the name in the store: {0}")]
    WrongType(String),
    /// The store is starting, or busy.
    #[error("the store is busy: {0}")]
    Busy(String),
    /// The store has dropped the record at once.
    #[error("the store has evicted the record at once")]
    Evicted,
    /// The record is larger than the store takes.
    #[error("the record is too large for the store: {0}")]
    TooLarge(String),
    /// The store has no such operation: memcached has no index.
    #[error("the store cannot do this operation")]
    Unsupported,
    /// Another error of the store.
    #[error("the store answers with an error: {0}")]
    Other(String),
    /// The answer is not of the protocol.
    #[error("the answer of the store is not of the protocol: {0}")]
    Protocol(&'static str),
    /// The queue was full.
    #[error(transparent)]
    QueueFull(#[from] QueueFull),
    /// The store has a record that cannot be read.
    #[error("the store has an unreadable record: {0}")]
    Unreadable(#[from] RecordError),
}

impl Failure {
    /// The label of metrics.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::ConnectionLost(_) => "connection_lost",
            Self::TimedOut => "timed_out",
            Self::OutOfMemory(_) => "out_of_memory",
            Self::ReadOnly(_) => "read_only",
            Self::Denied(_) => "denied",
            Self::WrongType(_) => "wrong_type",
            Self::Busy(_) => "busy",
            Self::Evicted => "evicted",
            Self::TooLarge(_) => "too_large",
            Self::Unsupported => "unsupported",
            Self::Other(_) => "error",
            Self::Protocol(_) => "protocol",
            Self::QueueFull(_) => "queue_full",
            Self::Unreadable(_) => "unreadable",
        }
    }
}
