//! The memory file that the processes of a service share with the supervisor.
//!
//! ```text
//! offset 0              Page: one for the service, with an entry for each process
//! (1 + number) << 36    the stream of the process with this number
//! ```
//!
//! The file is sparse: unwritten parts take no memory, and parts that the logger has are punched out. The file
//! outlives every process of the service, so a written record survives any death.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

pub use crate::{
    addresses::Addresses,
    commit_cost::{CommitCounters, Committed},
    reason::Reason,
    recreated_files::{RemadeFiles, Whole},
};

/// "OUTLWRAP".
pub const MAGIC: u64 = u64::from_le_bytes(*b"OUTLWRAP");
/// Changes of this file, of the records in the file, and of the handover. A change of these raises this number.
const CHANGES_COUNT: u32 = 21;
/// Version of the determinants. The version contains the version of the log link: running processes keep their library,
/// the library sends datagrams, and `serve` and the logger agree on a version that the library must know. So a record
/// of this version always belongs to a library with this version of the link.
pub const VERSION: u32 = CHANGES_COUNT + protocol::link::VERSION as u32;

/// The format, for lists of versions.
pub const FORMAT: types::Format = types::Format {
    name: "determinants",
    version: VERSION,
    oldest: VERSION,
};

/// Most processes of a service, ended processes included.
pub const PROCESSES: usize = 1 << 14;

/// The file's descriptor in the service's processes. High, because a server takes the lowest free descriptors; below
/// 1024, because a server may be limited to 1024 descriptors.
pub const FILE_FD: i32 = 1000;
/// Descriptor of the socket to the supervisor, high as [`FILE_FD`].
pub const SOCKET_FD: i32 = 1001;

/// Descriptor of the handover file ([`crate::handover`]), high as [`FILE_FD`].
pub const HANDOVER_FD: i32 = 1002;
/// Descriptor of the socket on which a process sends determinants to the logger, high as [`FILE_FD`]. Absent without
/// a logger on another machine.
pub const LOGGER_SOCKET_FD: i32 = 1003;
/// Descriptor of the preloaded library until the library is loaded, high as [`FILE_FD`].
pub const LIBRARY_FD: i32 = 1004;
/// First of the [`THREADS`] descriptors with which the shim observes the threads of a process.
pub const THREADS_FD: i32 = 1005;
/// Observed threads: the first thread and the helper threads. All descriptors stay below 1024.
pub const THREADS: usize = 17;

/// Environment variable that announces the file. The value is the version.
pub const VARIABLE: &str = "OUTLIVE_WRAP";

/// Offset of the positions of clients: [`crate::handover::Position`]s, sorted by the ends. Only for a replay.
pub const POSITIONS_OFFSET: u64 = (PROCESSES as u64 + 1) << STREAM_SHIFT;

/// In place of the number of positions: the positions of clients are unknown, and all output is kept.
pub const ALL_IS_KEPT: u64 = u64::MAX;

const STREAM_SHIFT: u32 = 36;

/// Most bytes of a stream.
pub const STREAM_MAX: u64 = 1 << STREAM_SHIFT;

/// Offset of a process's stream in the file.
#[must_use]
pub fn stream_offset(process: u32) -> u64 {
    (u64::from(process) + 1) << STREAM_SHIFT
}

/// Name of the abstract socket for the image with this number, without the leading 0. The supervisor that has
/// restored the image waits on this socket for the process.
#[must_use]
pub fn resume_name(image: u64) -> [u8; 24] {
    let mut name = *b"outlive-0000000000000000";
    let digits = name[8..].iter_mut().rev().enumerate();
    for (place, digit) in digits {
        let value = (image >> (4 * place) & 15).to_le_bytes()[0];
        *digit = if value < 10 {
            b'0' + value
        } else {
            b'a' + value - 10
        };
    }
    name
}

/// Descriptors that a restored process receives there, with one byte: the file, the socket, the handover file, the
/// three standard streams, and the socket to the logger, if there is one.
pub const RESUMED: usize = 6;

/// The standard streams of a shadow replay are `/dev/null`, opened for reading and writing with these flags, which
/// have no effect there (`O_APPEND` and `O_NOATIME`). At the promotion to the service the flags identify the streams.
pub const MUTE_FLAGS: i32 = 0o2_000 | 0o1_000_000;

/// Treatment of outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// Outcomes are recorded. Records that a stream already has are replayed first.
    Record = 0,
    /// Recording has stopped: the record is lost, and the service continues without.
    Off = 1,
    /// Recording has stopped because this file was full.
    Full = 2,
    /// Recording has stopped because the logger's memory was full.
    LoggerFull = 3,
    /// Recording has stopped because there were more than [`PROCESSES`] processes.
    Crowded = 4,
}

impl Mode {
    /// The mode with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Record),
            1 => Some(Self::Off),
            2 => Some(Self::Full),
            3 => Some(Self::LoggerFull),
            4 => Some(Self::Crowded),
            _ => None,
        }
    }
}

/// Condition for output to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Hold {
    /// None: output leaves at once, because this file is safe enough.
    Never = 0,
    /// Output to clients waits until the logger has all determinants before the output (*output commit*).
    UntilStable = 1,
    /// Output to files and pipes waits, too (`ft-tcp-infocom-2001`, VI.B).
    EffectsToo = 2,
}

impl Hold {
    /// The condition with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Never),
            1 => Some(Self::UntilStable),
            2 => Some(Self::EffectsToo),
            _ => None,
        }
    }
}

/// State of the service. The first four fields are the same in all versions: another version ends a record with them.
#[derive(Debug, Default)]
#[repr(C, align(4096))]
pub struct Page {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// [`Mode`]: `Record` and `Off` have the same numbers in all versions.
    pub mode: AtomicU32,
    /// [`Hold`]: `Never` has the same number in all versions.
    pub hold: AtomicU32,
    /// The number of the next process.
    pub next_process: AtomicU32,
    /// Processes whose determinants need no further check.
    pub settled: Settled,
    /// Random number of this record.
    pub record: AtomicU64,
    /// Destination of determinants.
    pub destination: DestinationCell,
    /// Number of positions at [`POSITIONS_OFFSET`], or [`ALL_IS_KEPT`].
    pub positions: AtomicU64,
    /// Not 0: the process runs a *shadow replay*. The process stops at this position of the stream for an image, and
    /// makes no files. 0: the process is of the service.
    pub pause_at: AtomicU64,
    /// Image for which a stopped process continues, as a name of a socket ([`resume_name`]). In the service: the last
    /// image; 0: none.
    pub image: AtomicU64,
    /// Reason of a failed replay: a [`Failure`], or 0.
    pub failure: AtomicU32,
    /// The process whose replay failed.
    pub failed_process: AtomicU32,
    /// Position in the stream of that process.
    pub failed_at: AtomicU64,
    /// The call of the process, and the call in the record: [`crate::Call`]s.
    pub failed_calls: [AtomicU32; 2],
    /// Not 0: another host still makes the record. A process that has replayed the whole record waits for a change of
    /// this number (a futex), which announces more records. 0: the record is complete.
    pub follow: AtomicU32,
    /// Number of the next connection of this incarnation.
    pub next_connection: AtomicU32,
    /// Reason why helper threads are not waited for any more: a [`Restless`], or 0.
    pub restless: AtomicU32,
    /// One entry for each process number.
    pub processes: Processes,
    /// Owners of connections that several processes have.
    pub serving: Serving,
    /// Connections that one process passes to another.
    pub passing: Passing,
    /// Death marks of the processes.
    pub liveness: LivenessTable,
    /// Not 0: the supervisor ends the service on purpose. A process that sees another process end continues until its
    /// own end.
    pub is_ending: AtomicU32,
    /// Not 0: a process with the shim has listened to clients.
    pub listens: AtomicU32,
    /// Files that replays on this host have recreated.
    pub remade: RemadeFiles,
    /// Cost of output commit.
    pub commits: CommitCounters,
    /// Addresses to which clients connect.
    pub addresses: Addresses,
    /// An action of the server that cannot be replayed.
    pub reason: Reason,
}

/// All processes before this number, except process 0, have ended, and the logger has all determinants of these
/// processes. The number is revoked when another logger takes over. The upper half of the word counts the
/// revocations.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Settled(AtomicU64);

impl Settled {
    const NUMBER: u64 = u32::MAX as u64;

    /// The number now: at least 1.
    #[must_use]
    pub fn number(&self) -> u32 {
        Self::of(self.0.load(Ordering::Acquire))
    }

    fn of(word: u64) -> u32 {
        u32::try_from(word & Self::NUMBER).map_or(1, |number| number.max(1))
    }

    /// `look` receives the known number and returns the present number. A revocation during `look` wins.
    pub fn advance(&self, look: impl FnOnce(u32) -> u32) {
        let before = self.0.load(Ordering::Acquire);
        let after = (before & !Self::NUMBER) | u64::from(look(Self::of(before)));
        let (made, known) = (Ordering::AcqRel, Ordering::Relaxed);
        let _ = self.0.compare_exchange(before, after, made, known);
    }

    /// Revokes the number: another logger may have fewer determinants.
    pub fn take_back(&self) {
        let next = |word: u64| Some((word | Self::NUMBER).wrapping_add(1));
        let _ = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }
}

pub use crate::{
    connection_owner::{Claimed, Serving},
    liveness::{Liveness, LivenessTable},
    passed_connections::Passing,
};

/// Fate of a process, recorded in the stream ([`crate::Call::Fate`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Fate {
    /// The process serves a connection that the parent accepted: the payload has the [`crate::handover::Ends`], and
    /// the [`crate::handover::StreamOffsets`] of the start.
    Serves = 1,
    /// The process ends.
    Ends = 2,
    /// The process becomes another program, which is not part of the service. (Or the process died of SIGPIPE, which
    /// only the parent's record shows.)
    Executes = 4,
    /// The process has a connection from the parent, and neither process has served the connection yet.
    Holds = 8,
    /// The process communicates with other processes of the service over channels that the first process made, or
    /// with other programs.
    Talks = 16,
    /// The process has died with the service and is not started again. No record has this fate.
    Gone = 32,
    /// The process has memory to which other processes of the service write, too.
    Shares = 64,
    /// The process replays and is not at the end of the record. No record has this fate.
    Replays = 128,
    /// The process communicates over channels that a process other than the first made: the payload has the number of
    /// the maker.
    Confers = 256,
}

impl Fate {
    /// The fate with this number.
    #[must_use]
    pub fn from_code(code: i64) -> Option<Self> {
        let all = [
            Self::Serves,
            Self::Ends,
            Self::Executes,
            Self::Holds,
            Self::Talks,
            Self::Shares,
            Self::Confers,
        ];
        all.into_iter().find(|fate| *fate as i64 == code)
    }
}

/// Destination of determinants. The supervisor writes the cell, the processes read the cell.
#[derive(Debug, Default)]
#[repr(C)]
pub struct DestinationCell {
    /// Odd during a write; 0: no destination yet.
    generation: AtomicU32,
    /// [`Destination`], in words.
    words: [AtomicU64; DESTINATION_WORDS],
}

const DESTINATION_WORDS: usize = 9;

/// A logger, and the keys of the tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Destination {
    /// The logger's address; IPv4 addresses are mapped to IPv6.
    pub ip: [u8; 16],
    /// The logger's port.
    pub port: u16,
    /// Interface index for a link-local address; else 0.
    pub scope: u32,
    /// Most bytes of a datagram.
    pub datagram: u16,
    /// The agreed version of the log link.
    pub version: u8,
    /// The slot of the keys.
    pub slot: u8,
    /// The instance of the service.
    pub instance: u64,
    /// Key of datagrams to the logger.
    pub up: [u8; 16],
    /// Key of datagrams from the logger.
    pub down: [u8; 16],
}

impl Destination {
    fn to_words(self) -> [u64; DESTINATION_WORDS] {
        let mut bytes = [0; DESTINATION_WORDS * 8];
        bytes[..16].copy_from_slice(&self.ip);
        bytes[16..32].copy_from_slice(&self.up);
        bytes[32..48].copy_from_slice(&self.down);
        bytes[48..56].copy_from_slice(&self.instance.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.scope.to_le_bytes());
        bytes[60..62].copy_from_slice(&self.port.to_le_bytes());
        bytes[62..64].copy_from_slice(&self.datagram.to_le_bytes());
        bytes[64] = self.slot;
        bytes[65] = self.version;
        let (words, _) = bytes.as_chunks();
        core::array::from_fn(|index| u64::from_le_bytes(words[index]))
    }

    fn from_words(words: [u64; DESTINATION_WORDS]) -> Self {
        let mut bytes = [0; DESTINATION_WORDS * 8];
        for (word, out) in words.iter().zip(bytes.chunks_exact_mut(8)) {
            out.copy_from_slice(&word.to_le_bytes());
        }
        let mut read = &bytes[..];
        Self {
            ip: take(&mut read),
            up: take(&mut read),
            down: take(&mut read),
            instance: u64::from_le_bytes(take(&mut read)),
            scope: u32::from_le_bytes(take(&mut read)),
            port: u16::from_le_bytes(take(&mut read)),
            datagram: u16::from_le_bytes(take(&mut read)),
            slot: u8::from_le_bytes(take(&mut read)),
            version: u8::from_le_bytes(take(&mut read)),
        }
    }
}

/// Takes the next bytes. `from` is long enough.
fn take<const N: usize>(from: &mut &[u8]) -> [u8; N] {
    let (taken, rest) = from.split_first_chunk().unwrap_or((&[0; N], &[]));
    *from = rest;
    *taken
}

impl DestinationCell {
    /// Sets another destination. The caller is the only writer.
    pub fn set(&self, destination: &Destination) {
        let generation = self.generation.load(Ordering::Relaxed) | 1;
        self.generation.store(generation, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(destination.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.generation
            .store(generation.wrapping_add(1), Ordering::Release);
    }

    /// Number of the present destination: another destination has another number.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// The destination with its number; `None`: there is no destination now.
    #[must_use]
    pub fn get(&self) -> Option<(u32, Destination)> {
        let generation = self.generation();
        if generation == 0 || !generation.is_multiple_of(2) {
            return None;
        }
        let mut words = [0; DESTINATION_WORDS];
        for (word, value) in self.words.iter().zip(&mut words) {
            *value = word.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        let same = self.generation.load(Ordering::Relaxed) == generation;
        same.then(|| (generation, Destination::from_words(words)))
    }
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
    /// Length of the stream. The process writes the length after the bytes: the stream ends with a whole record.
    pub head: AtomicU64,
    /// Stable position: the logger has the stream up to here.
    pub stable: AtomicU64,
    /// The next incarnation replays the stream up to here.
    pub replay_end: AtomicU64,
    /// Position before the last output to a client.
    pub said: AtomicU64,
    /// Start of the stream: an image of the process has replaced the records before.
    pub base: AtomicU64,
    /// Number of the parent.
    pub parent: AtomicU32,
    /// Process id in the first incarnation; 0: the process was never started.
    pub pid: AtomicI32,
    /// [`Fate`]s as bits. The number of the maker ([`Fate::Confers`]) is above the bits.
    pub fate: AtomicU32,
    /// Not 0: a replay has started the process again.
    pub is_begun: AtomicU32,
    /// Replayed bytes of the stream. Written by the process.
    pub replayed: AtomicU64,
}

/// Place of the maker's number, above all [`Fate`]s.
const GROUP_SHIFT: u32 = 16;
const _: () = assert!(PROCESSES <= 1 << (u32::BITS - GROUP_SHIFT));

impl Process {
    const fn new() -> Self {
        Self {
            head: AtomicU64::new(0),
            stable: AtomicU64::new(0),
            replay_end: AtomicU64::new(0),
            said: AtomicU64::new(0),
            base: AtomicU64::new(0),
            parent: AtomicU32::new(0),
            pid: AtomicI32::new(0),
            fate: AtomicU32::new(0),
            is_begun: AtomicU32::new(0),
            replayed: AtomicU64::new(0),
        }
    }

    /// Whether the process has this fate.
    #[must_use]
    pub fn has(&self, fate: Fate) -> bool {
        self.fate.load(Ordering::Acquire) & fate as u32 != 0
    }

    /// Adds a fate.
    pub fn set(&self, fate: Fate) {
        self.fate.fetch_or(fate as u32, Ordering::AcqRel);
    }

    /// The process communicates over channels of this maker.
    pub fn confers(&self, maker: u32) {
        let fate = (maker << GROUP_SHIFT) | Fate::Confers as u32;
        self.fate.fetch_or(fate, Ordering::AcqRel);
    }

    /// The maker of the channels; `None`: no maker is known.
    #[must_use]
    pub fn maker(&self) -> Option<u32> {
        let maker = self.fate.load(Ordering::Acquire) >> GROUP_SHIFT;
        (maker != 0).then_some(maker)
    }

    /// Removes a fate.
    pub fn unset(&self, fate: Fate) {
        self.fate.fetch_and(!(fate as u32), Ordering::AcqRel);
    }
}

/// Reason why a process does not wait for its helper threads. The first thread may then see effects of helper threads
/// that a replay does not repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Restless {
    /// A helper thread has run for too long.
    Runs = 1,
    /// The process has more than the observed threads.
    TooMany = 2,
    /// The state of a helper thread cannot be observed.
    Unseen = 3,
}

impl Restless {
    /// The reason with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        let all = [Self::Runs, Self::TooMany, Self::Unseen];
        all.into_iter().find(|reason| *reason as u32 == code)
    }
}

/// Reason of a failed replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Failure {
    /// The server made another call than the record has.
    OtherCall = 1,
    /// The server made the recorded call on another descriptor.
    OtherDescriptor = 2,
    /// The record cannot be read.
    BadRecord = 3,
    /// The server wrote other output.
    OtherOutput = 4,
    /// The server read its clocks more or less often.
    OtherClock = 5,
    /// The recorded number of a descriptor was not free.
    DescriptorTaken = 6,
    /// The server asked for more, or fewer, bytes than the recorded call returned.
    OtherLength = 7,
    /// The server is another program, or another version of the program.
    OtherProgram = 8,
    /// The server's action cannot be replayed; [`Page::reason`] has the action.
    NotSupported = 9,
    /// A file has changed.
    OtherFile = 10,
    /// Another program has the port that the kernel had chosen, and that clients may know.
    PortTaken = 16,
    /// A helper thread does not come to rest, where it had rested.
    HelperRuns = 17,
    /// A helper thread has not repeated its output.
    HelperIsSilent = 18,
    /// Another version of the shim made the record.
    OtherVersion = 19,
    /// Another program has locked a file that the server had locked.
    LockTaken = 20,
    /// Only in a shadow replay, as the following failures: the server would take the name of a socket in the file
    /// system.
    NamedSocket = 11,
    /// The server would map a file for shared writing.
    SharedMemory = 12,
    /// The server would open a FIFO.
    Fifo = 14,
    /// A helper thread would change files.
    HelperChanges = 15,
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
            Self::OtherFile,
            Self::PortTaken,
            Self::NamedSocket,
            Self::SharedMemory,
            Self::Fifo,
            Self::HelperChanges,
            Self::HelperRuns,
            Self::HelperIsSilent,
            Self::OtherVersion,
            Self::LockTaken,
        ]
        .into_iter()
        .find(|failure| *failure as u32 == code)
    }
}
