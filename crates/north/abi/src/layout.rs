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

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

pub use crate::{
    addresses::Addresses,
    commit_cost::{CommitCounters, Committed},
    reason::Reason,
    recreated_files::{RemadeFiles, Whole},
};

/// "OUTLWRAP".
pub const MAGIC: u64 = u64::from_le_bytes(*b"OUTLWRAP");
/// Of this file and of the records in it. Goes up with the version of the log link, too: processes that run keep their
/// library, and send datagrams. The feature `next-version` raises the version.
pub const VERSION: u32 = 29 + cfg!(feature = "next-version") as u32;

/// The format, for lists of versions.
pub const FORMAT: types::Format = types::Format {
    name: "determinants",
    version: VERSION,
    oldest: VERSION,
};

/// Processes of a service that can be followed, those that have ended included.
pub const PROCESSES: usize = 1 << 14;

/// The file's descriptor in the service's processes. A server may be limited to 1024 descriptors, and takes the
/// lowest that are free.
pub const FILE_FD: i32 = 1000;
/// The socket to the supervisor, in the same way.
pub const SOCKET_FD: i32 = 1001;

/// The file in which connections are handed over ([`crate::handover`]), in the same way.
pub const HANDOVER_FD: i32 = 1002;
/// The socket by which a process tells the logger what it was told, in the same way; only where there is one.
pub const LOGGER_SOCKET_FD: i32 = 1003;
/// The preloaded library, in the same way, until it is there.
pub const LIBRARY_FD: i32 = 1004;
/// From here on the shim has so many for looking at a process's threads.
pub const THREADS_FD: i32 = 1005;
/// As many, so that all are below 1024: the first one, and its helpers.
pub const THREADS: usize = 17;

/// The variable that says that the file is there. Its value is the version.
pub const VARIABLE: &str = "OUTLIVE_WRAP";

/// Where in the file it says how far clients are: a row of [`crate::handover::Position`]s, in the order of their
/// ends. Only for a replay.
pub const POSITIONS_OFFSET: u64 = (PROCESSES as u64 + 1) << STREAM_SHIFT;

/// In place of the number of positions: nothing is known of clients, and all that is said is to be kept.
pub const ALL_IS_KEPT: u64 = u64::MAX;

const STREAM_SHIFT: u32 = 36;

/// No stream is longer, bytes.
pub const STREAM_MAX: u64 = 1 << STREAM_SHIFT;

/// Where the stream of a process begins in the file.
#[must_use]
pub fn stream_offset(process: u32) -> u64 {
    (u64::from(process) + 1) << STREAM_SHIFT
}

/// The name of the abstract socket on which whoever has restored the image with this number waits for its process,
/// without the leading 0.
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

/// Descriptors that it is given there, beside one byte: the file, the socket, the handover file, the three standard
/// streams, and, where there is one, the socket to the logger.
pub const RESUMED: usize = 6;

/// The standard streams of a rehearsal are `/dev/null`, opened for reading and writing with these flags, by which they
/// are known when it becomes the service (`O_APPEND` and `O_NOATIME`: of no effect there).
pub const MUTE_FLAGS: i32 = 0o2_000 | 0o1_000_000;

/// What is done about outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// They are recorded. Where a stream has records already, these are replayed first.
    Record = 0,
    /// Nothing is recorded any more: the record is lost, and the service goes on without.
    Off = 1,
    /// The same, for there was no room for more in this file.
    Full = 2,
    /// The same, for there was none with the logger.
    LoggerFull = 3,
    /// The same, for there were more processes than can be followed.
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

/// When output may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Hold {
    /// At once: what is in this file is safe enough.
    Never = 0,
    /// To clients when all that was recorded before it is on the logger (*output commit*).
    UntilStable = 1,
    /// Into files and pipes, too (`ft-tcp-infocom-2001`, VI.B).
    EffectsToo = 2,
}

impl Hold {
    /// The one with this number.
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

/// One for the service. The first four fields are the same in all versions: another version ends a record with them.
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
    /// Which processes need not be looked at again.
    pub settled: Settled,
    /// A number that was drawn for this record.
    pub record: AtomicU64,
    /// Where determinants go.
    pub destination: DestinationCell,
    /// How many positions there are at [`POSITIONS_OFFSET`], or [`ALL_IS_KEPT`].
    pub positions: AtomicU64,
    /// The process is a *rehearsal*: it stops where this much of its stream is replayed, so that an image of it can be
    /// made, and makes no files; 0: it is the service.
    pub pause_at: AtomicU64,
    /// Where a process that has stopped so finds what it goes on with ([`resume_name`]). Of the service: its last
    /// image; 0: none.
    pub image: AtomicU64,
    /// Why replay has failed: a [`Failure`], or 0.
    pub failure: AtomicU32,
    /// The process whose replay failed.
    pub failed_process: AtomicU32,
    /// Where in its stream.
    pub failed_at: AtomicU64,
    /// What was called there, and what the record has: [`crate::Call`]s.
    pub failed_calls: [AtomicU32; 2],
    /// The record is still being made on another host: who has replayed all that there is waits for more (a futex),
    /// which is there when this is another number. 0: what there is is all.
    pub follow: AtomicU32,
    /// The number of the next connection of this life.
    pub next_connection: AtomicU32,
    /// Why helper threads of a process are not waited for any more: a [`Restless`], or 0.
    pub restless: AtomicU32,
    /// The processes, by their numbers.
    pub processes: Processes,
    /// Which process serves a connection that several have.
    pub serving: Serving,
    /// Connections that one process passes to another.
    pub passing: Passing,
    /// Which processes are dead.
    pub liveness: LivenessTable,
    /// Not 0: the service is ended on purpose, and who sees others end may go on until it is its turn.
    pub is_ending: AtomicU32,
    /// Not 0: a process with the library in it has listened to clients.
    pub listens: AtomicU32,
    /// Files that replays on this host have made again.
    pub remade: RemadeFiles,
    /// What output commit costs.
    pub commits: CommitCounters,
    /// Where clients connect to.
    pub addresses: Addresses,
    /// What the server does that cannot be replayed.
    pub reason: Reason,
}

/// Processes before a number, but for 0, have ended, and all that they have recorded is with the logger: until that is
/// taken back, for the logger is another one. The upper half of the word is how often it was.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Settled(AtomicU64);

impl Settled {
    const NUMBER: u64 = u32::MAX as u64;

    /// The number.
    #[must_use]
    pub fn number(&self) -> u32 {
        Self::of(self.0.load(Ordering::Acquire))
    }

    fn of(word: u64) -> u32 {
        u32::try_from(word & Self::NUMBER).map_or(1, |number| number.max(1))
    }

    /// `look` tells how far it goes by now, and from where on it was known; unless it is taken back meanwhile.
    pub fn advance(&self, look: impl FnOnce(u32) -> u32) {
        let before = self.0.load(Ordering::Acquire);
        let after = (before & !Self::NUMBER) | u64::from(look(Self::of(before)));
        let (made, known) = (Ordering::AcqRel, Ordering::Relaxed);
        let _ = self.0.compare_exchange(before, after, made, known);
    }

    /// What is with the logger may be less by now.
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

/// What becomes of a process, as its stream says ([`crate::Call::Fate`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Fate {
    /// It serves a connection that it has from its parent: the payload says which, as [`crate::handover::Ends`], and
    /// from where on, as [`crate::handover::StreamOffsets`].
    Serves = 1,
    /// It ends.
    Ends = 2,
    /// It becomes another program, which is not part of the service. (Or it has died of a client's going away, which
    /// nobody's record says but its parent's.)
    Executes = 4,
    /// It has a connection from its parent which neither has served yet.
    Holds = 8,
    /// It talks to other processes of the service by what the first one has made, or to other programs.
    Talks = 16,
    /// It has died with the service, and is not begun again. That is in no record.
    Gone = 32,
    /// It has memory that other processes of the service write to as well.
    Shares = 64,
    /// It is replaying, and not at the end of its record. That is in no record.
    Replays = 128,
    /// It talks to others by what another one than the first has made: the payload says which one that is.
    Confers = 256,
}

impl Fate {
    /// The one with this number.
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

/// Where determinants go. Written by the supervisor, read by the processes.
#[derive(Debug, Default)]
#[repr(C)]
pub struct DestinationCell {
    /// Odd while the rest is being written; 0: it never was.
    generation: AtomicU32,
    /// [`Destination`], in words.
    words: [AtomicU64; DESTINATION_WORDS],
}

const DESTINATION_WORDS: usize = 9;

/// A logger, and how what goes there is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Destination {
    /// Its address, as IPv6 has it.
    pub ip: [u8; 16],
    /// Its port.
    pub port: u16,
    /// The interface by which it is reached, if its address is a link's own; else 0.
    pub scope: u32,
    /// Most bytes of a datagram.
    pub datagram: u16,
    /// The agreed version of the log link.
    pub version: u8,
    /// The slot of the keys.
    pub slot: u8,
    /// The instance of the service.
    pub instance: u64,
    /// The key of what goes there.
    pub up: [u8; 16],
    /// The key of what comes from there.
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

/// The next bytes, of which there are enough.
fn take<const N: usize>(from: &mut &[u8]) -> [u8; N] {
    let (taken, rest) = from.split_first_chunk().unwrap_or((&[0; N], &[]));
    *from = rest;
    *taken
}

impl DestinationCell {
    /// Another destination. Only one writes at a time.
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

    /// Which destination there is by now: another one has another number.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// The destination with its number; `None`: there is none now.
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
    /// How far its stream reaches. Written by the process after the bytes: they are whole records.
    pub head: AtomicU64,
    /// How far of it is on the logger.
    pub stable: AtomicU64,
    /// How far of it is to be replayed by the next life.
    pub replay_end: AtomicU64,
    /// How far it was when the process was last about to say something to a client.
    pub said: AtomicU64,
    /// Where it begins: what was before is in an image of the process.
    pub base: AtomicU64,
    /// The number of its parent.
    pub parent: AtomicU32,
    /// The process id of its first life; 0: it was never begun.
    pub pid: AtomicI32,
    /// Its [`Fate`]s, as bits, and behind all of them the number of the process of [`Fate::Confers`].
    pub fate: AtomicU32,
    /// Not 0: it is begun again in a replay.
    pub is_begun: AtomicU32,
    /// How far it has replayed. Written by the process.
    pub replayed: AtomicU64,
}

/// Behind all [`Fate`]s.
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

    /// Is this its fate?
    #[must_use]
    pub fn has(&self, fate: Fate) -> bool {
        self.fate.load(Ordering::Acquire) & fate as u32 != 0
    }

    /// This is its fate.
    pub fn set(&self, fate: Fate) {
        self.fate.fetch_or(fate as u32, Ordering::AcqRel);
    }

    /// It talks by what this process has made.
    pub fn confers(&self, maker: u32) {
        let fate = (maker << GROUP_SHIFT) | Fate::Confers as u32;
        self.fate.fetch_or(fate, Ordering::AcqRel);
    }

    /// The process that has made what it talks by; `None`: it does not.
    #[must_use]
    pub fn maker(&self) -> Option<u32> {
        let maker = self.fate.load(Ordering::Acquire) >> GROUP_SHIFT;
        (maker != 0).then_some(maker)
    }

    /// It is not any more.
    pub fn unset(&self, fate: Fate) {
        self.fate.fetch_and(!(fate as u32), Ordering::AcqRel);
    }
}

/// Why a process's helper threads are not waited for: its first thread may see then what a replay does not find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Restless {
    /// One has run for too long.
    Runs = 1,
    /// There are too many.
    TooMany = 2,
    /// What they do cannot be looked at.
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
    /// A file is not what it was.
    OtherFile = 10,
    /// A port that the kernel had chosen, and that clients may know, is another program's by now.
    PortTaken = 16,
    /// Another thread than the first does not come to rest, where it had.
    HelperRuns = 17,
    /// One has not said again what it had said.
    HelperIsSilent = 18,
    /// The record is another version's of ours.
    OtherVersion = 19,
    /// A file that it had locked another program has locked by now.
    LockTaken = 20,
    /// Of a rehearsal, as all that follow: it would take the name of a socket in the file system.
    NamedSocket = 11,
    /// It would have a file in its memory, and write to it there.
    SharedMemory = 12,
    /// It would open a FIFO.
    Fifo = 14,
    /// Another thread than the first would change files.
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
