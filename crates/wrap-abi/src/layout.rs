//! The memory file that a service's processes share with those who keep its record.
//!
//! ```text
//! offset 0              Page: one for the service, with an entry for each process
//! (1 + number) << 36    the stream of the process with this number
//! ```
//!
//! The file is sparse: what nobody has written takes no memory, and what is on the logger is punched out. It
//! outlives every process that writes to it, so a record that was written is there whatever
//! the process died of.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// "OUTLWRAP".
pub const MAGIC: u64 = u64::from_le_bytes(*b"OUTLWRAP");
/// Of this file and of the records in it.
pub const VERSION: u32 = 1;

/// Processes of a service that can be followed, those that have ended included.
pub const PROCESSES: usize = 1024;

/// The file's descriptor in the service's processes. A server may be limited to 1024 descriptors, and takes the
/// lowest that are free.
pub const FILE_FD: i32 = 1000;
/// The socket to the supervisor, in the same way.
pub const SOCKET_FD: i32 = 1001;

/// The file in which connections are handed over ([`crate::handover`]), in the same way.
pub const HANDOVER_FD: i32 = 1002;

/// The variable that says that the file is there. Its value is the version.
pub const VARIABLE: &str = "OUTLIVE_WRAP";

/// Where in the file it says how far clients are: a row of [`crate::handover::Position`]s, in the order of their
/// ends. Only for a replay.
pub const POSITIONS_OFFSET: u64 = (PROCESSES as u64 + 1) << STREAM_SHIFT;

const STREAM_SHIFT: u32 = 36;

/// No stream is longer, bytes.
pub const STREAM_MAX: u64 = 1 << STREAM_SHIFT;

/// Where the stream of a process begins in the file.
#[must_use]
pub fn stream_offset(process: u32) -> u64 {
    (u64::from(process) + 1) << STREAM_SHIFT
}

/// What is done about outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// They are recorded. Where a stream has records already, these are replayed first.
    Record = 0,
    /// Nothing is recorded any more: the record is lost, and the service goes on without.
    Off = 1,
}

impl Mode {
    /// The mode with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Record),
            1 => Some(Self::Off),
            _ => None,
        }
    }
}

/// When output may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Hold {
    /// At once: what is in this file is safe enough.
    Never = 0,
    /// When all that was recorded before it is on the logger.
    UntilStable = 1,
}

impl Hold {
    /// The one with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Never),
            1 => Some(Self::UntilStable),
            _ => None,
        }
    }
}

/// One for the service.
#[derive(Debug, Default)]
#[repr(C, align(4096))]
pub struct Page {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// [`Mode`].
    pub mode: AtomicU32,
    /// [`Hold`].
    pub hold: AtomicU32,
    /// The number of the next process.
    pub next_process: AtomicU32,
    /// Counts what has become stable: those who hold output sleep on it.
    pub stable_count: AtomicU32,
    /// How many sleep.
    pub sleepers: AtomicU32,
    /// How many positions there are at [`POSITIONS_OFFSET`].
    pub positions: AtomicU64,
    /// Why replay has failed: a [`Failure`], or 0.
    pub failure: AtomicU32,
    /// The process whose replay failed.
    pub failed_process: AtomicU32,
    /// Where in its stream.
    pub failed_at: AtomicU64,
    /// What was called there, and what the record has: [`crate::Call`]s.
    pub failed_calls: [AtomicU32; 2],
    /// The processes, by their numbers.
    pub processes: Processes,
}

/// The processes of a service.
#[derive(Debug)]
#[repr(C)]
pub struct Processes(pub [Process; PROCESSES]);

impl Default for Processes {
    fn default() -> Self {
        Self([const { Process::new() }; PROCESSES])
    }
}

/// One process of the service.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Process {
    /// How far its stream reaches. Written by the process after the bytes: they are whole records.
    pub head: AtomicU64,
    /// How far of it is on the logger.
    pub stable: AtomicU64,
    /// How far of it is to be replayed by the next life.
    pub replay_end: AtomicU64,
    /// The number of its parent.
    pub parent: AtomicU32,
    /// Which child of its parent it is.
    pub ordinal: AtomicU32,
    /// Its process id; 0: it has ended.
    pub pid: AtomicI32,
    unused: [AtomicU32; 5],
}

impl Process {
    const fn new() -> Self {
        Self {
            head: AtomicU64::new(0),
            stable: AtomicU64::new(0),
            replay_end: AtomicU64::new(0),
            parent: AtomicU32::new(0),
            ordinal: AtomicU32::new(0),
            pid: AtomicI32::new(0),
            unused: [const { AtomicU32::new(0) }; 5],
        }
    }
}

/// Why a replay was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Failure {
    /// The server made another call than the record has.
    OtherCall = 1,
    /// The same, on another descriptor.
    OtherDescriptor = 2,
    /// The record cannot be read.
    BadRecord = 3,
    /// It wrote something else.
    OtherOutput = 4,
    /// It read its clocks more or less often.
    OtherClock = 5,
    /// A descriptor could not be given the number that it had.
    DescriptorTaken = 6,
    /// It asked for more, or less, than it got then.
    OtherLength = 7,
    /// It runs another program, or another version of it.
    OtherProgram = 8,
    /// It does what cannot be replayed; it has said what.
    NotSupported = 9,
}

impl Failure {
    /// The failure with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        [
            Self::OtherCall,
            Self::OtherDescriptor,
            Self::BadRecord,
            Self::OtherOutput,
            Self::OtherClock,
            Self::DescriptorTaken,
            Self::OtherLength,
            Self::OtherProgram,
            Self::NotSupported,
        ]
        .into_iter()
        .find(|failure| *failure as u32 == code)
    }
}
