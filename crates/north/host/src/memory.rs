//! The memory file.

mod divergence;
mod log_section;
mod other_version;
mod replay;

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    net::{IpAddr, SocketAddr},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{FileExt as _, OpenOptionsExt as _},
    },
    path::Path,
    ptr::NonNull,
    sync::atomic::Ordering,
};

use north_abi::{
    Call, Record,
    addresses::mapped,
    handover::{Ends, Position},
    layout::{
        Destination, Fate, Hold, MAGIC, Mode, POSITIONS_OFFSET, PROCESSES, Page, Process, Restless,
        STREAM_MAX, VERSION, stream_offset,
    },
};
use rustix::{
    fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

pub use divergence::Divergence;
pub use log_section::LogSection;
pub use other_version::OtherVersion;

use crate::framing::each;

/// Name of the file in its directory.
const FILE_NAME: &str = "record";

/// The record of a service's processes, in memory that outlives the processes.
#[derive(Debug)]
pub struct Memory {
    file: File,
    page: NonNull<Page>,
}

// SAFETY: the page has only atomics, and is mapped as long as this value lives.
unsafe impl Send for Memory {}

impl Memory {
    /// Memory of a record besides its determinants, bytes. Two records can exist at a time.
    pub const OVERHEAD: u64 = size_of::<Page>() as u64;

    /// An empty record in anonymous memory.
    ///
    /// # Errors
    /// No memory is left.
    pub fn new() -> io::Result<Self> {
        let file = memfd_create("outlive-record", MemfdFlags::CLOEXEC)?;
        Self::begin(File::from(file), 0)
    }

    /// An empty record in this directory of a file system in memory. An existing record is removed. `record` is the
    /// number of the new record.
    ///
    /// # Errors
    /// The file cannot be made, or no memory is left.
    pub fn create(directory: &Path, record: u64) -> io::Result<Self> {
        Self::remove(directory)?;
        let mut options = File::options();
        // The record has random numbers, such as the keys of TLS: only the owner may read.
        options.read(true).write(true).create_new(true).mode(0o600);
        Self::begin(options.open(directory.join(FILE_NAME))?, record)
    }

    /// Removes the record from this directory. Processes that have the record open keep the memory.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(directory: &Path) -> io::Result<()> {
        match fs::remove_file(directory.join(FILE_NAME)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The record of an earlier incarnation in this directory. `None`: no record of this version.
    #[must_use]
    pub fn leftover(directory: &Path) -> Option<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .open(directory.join(FILE_NAME));
        Self::open(file.ok()?).ok().filter(Self::is_current)
    }

    fn begin(file: File, record: u64) -> io::Result<Self> {
        ftruncate(&file, POSITIONS_OFFSET + STREAM_MAX)?;
        // A write to a page without memory would kill the process later (SIGBUS).
        fallocate(&file, FallocateFlags::empty(), 0, Self::OVERHEAD)?;
        let memory = Self::open(file)?;
        let page = memory.page();
        page.version.store(VERSION, Ordering::Relaxed);
        page.record.store(record, Ordering::Relaxed);
        page.magic.store(MAGIC, Ordering::Release);
        Ok(memory)
    }

    /// Maps an existing file.
    ///
    /// # Errors
    /// The file cannot be mapped, or has no page yet: its `serve` was killed meanwhile.
    fn open(file: File) -> io::Result<Self> {
        if file.metadata()?.len() < size_of::<Page>() as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: a new mapping at a free address.
        let page = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(
                std::ptr::null_mut(),
                size_of::<Page>(),
                access,
                MapFlags::SHARED,
                &file,
                0,
            )?
        };
        let page = NonNull::new(page.cast::<Page>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { file, page })
    }

    /// Whether the record has this version.
    fn is_current(&self) -> bool {
        let page = self.page();
        page.magic.load(Ordering::Acquire) == MAGIC
            && page.version.load(Ordering::Acquire) == VERSION
    }

    /// The shared page.
    #[must_use]
    pub fn page(&self) -> &Page {
        // SAFETY: mapped as long as this value lives; atomics, for which all bytes are valid.
        unsafe { self.page.as_ref() }
    }

    /// The numbers of the processes with a stream.
    #[must_use]
    pub fn processes(&self) -> std::ops::Range<u32> {
        let count = self.page().next_process.load(Ordering::Acquire);
        let most = u32::try_from(PROCESSES).unwrap_or(u32::MAX);
        0..count.min(most)
    }

    /// Length of a process's stream, bytes.
    #[must_use]
    pub fn length(&self, process: u32) -> u64 {
        let all = &self.page().processes.0;
        all.get(process as usize)
            .map_or(0, |process| process.head.load(Ordering::Acquire))
    }

    /// Reads a part of a stream.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self, process: u32, from: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, stream_offset(process) + from)
    }

    /// Start of a process's stream, bytes: an image has replaced the records before.
    #[must_use]
    pub fn base(&self, process: u32) -> u64 {
        let all = &self.page().processes.0;
        all.get(process as usize)
            .map_or(0, |process| process.base.load(Ordering::Acquire))
    }

    /// The image at the start of a replay; 0: no image.
    #[must_use]
    pub fn image(&self) -> u64 {
        self.page().image.load(Ordering::Acquire)
    }

    /// The image with this number replaces the only process's stream before `base`.
    ///
    /// # Errors
    /// The memory cannot be freed. The replacement holds all the same.
    pub fn is_in_image(&self, image: u64, base: u64) -> io::Result<()> {
        let page = self.page();
        let before = page.processes.0[0].base.load(Ordering::Acquire);
        page.image.store(image, Ordering::Release);
        page.processes.0[0].base.store(base, Ordering::Release);
        let [from, to] = [before, base].map(|at| at / 4096 * 4096);
        if from < to {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&self.file, flags, stream_offset(0) + from, to - from)?;
        }
        Ok(())
    }

    /// Starts a record from elsewhere with this image: the records before `base` of the first process are not here.
    /// The service had started `processes` processes.
    ///
    /// # Errors
    /// The numbers are out of range.
    pub fn begins_with(&self, image: u64, base: u64, processes: u32) -> io::Result<()> {
        if image == 0 || base > STREAM_MAX || processes as usize > PROCESSES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let page = self.page();
        let first = &page.processes.0[0];
        for place in [&first.base, &first.said, &first.head] {
            place.store(base, Ordering::Release);
        }
        page.image.store(image, Ordering::Release);
        page.next_process.fetch_max(processes, Ordering::AcqRel);
        Ok(())
    }

    /// Frees the memory of all streams. No process may use the streams any more.
    ///
    /// # Errors
    /// The memory cannot be freed.
    pub fn release(&self) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (from, to) = (stream_offset(0), POSITIONS_OFFSET + STREAM_MAX);
        fallocate(&self.file, flags, from, to - from)?;
        Ok(())
    }

    /// The present stream of the only process, for a shadow replay.
    ///
    /// # Errors
    /// The process has too many open files.
    pub fn log_section(&self) -> io::Result<LogSection> {
        Ok(LogSection {
            file: self.file.try_clone()?,
            base: self.base(0),
            end: self.length(0),
        })
    }

    /// Random number of the record.
    #[must_use]
    pub fn record(&self) -> u64 {
        self.page().record.load(Ordering::Relaxed)
    }

    /// Appends bytes of the logger to a stream that no process writes yet. The output of the earlier host is unknown,
    /// so all appended records count as followed by output.
    ///
    /// # Errors
    /// The file is full, or the stream does not exist.
    pub fn append(&self, process: u32, bytes: &[u8]) -> io::Result<()> {
        let all = &self.page().processes.0;
        let stream = all
            .get(process as usize)
            .ok_or(io::ErrorKind::InvalidData)?;
        let head = stream.head.load(Ordering::Acquire);
        let end = head.checked_add(bytes.len() as u64);
        let end = end.filter(|end| *end <= STREAM_MAX);
        let end = end.ok_or(io::ErrorKind::InvalidData)?;
        self.file
            .write_all_at(bytes, stream_offset(process) + head)?;
        stream.said.store(end, Ordering::Release);
        stream.head.store(end, Ordering::Release);
        if self.is_replica() {
            stream.replay_end.store(end, Ordering::Release);
        }
        self.has_number(process);
        Ok(())
    }

    /// Reserves the number of a process.
    fn has_number(&self, process: u32) {
        let page = self.page();
        page.next_process.fetch_max(process + 1, Ordering::AcqRel);
    }

    /// Learns the properties of a process from a record that comes from elsewhere.
    pub(crate) fn learn(&self, process: u32, record: &Record<'_>) {
        let Some(entry) = self.page().processes.0.get(process as usize) else {
            return;
        };
        match record.call {
            Call::Start => {
                let pid = i32::try_from(record.outcome).unwrap_or(0);
                entry.pid.store(pid, Ordering::Release);
                let parent = record.payload.try_into().map(u32::from_le_bytes);
                entry.parent.store(parent.unwrap_or(0), Ordering::Release);
            }
            Call::Fate => {
                let maker = record.payload.try_into().map(u32::from_le_bytes);
                match (Fate::from_code(record.outcome), maker) {
                    (Some(Fate::Confers), Ok(maker)) => entry.confers(maker),
                    (Some(fate), _) => entry.set(fate),
                    (None, _) => {}
                }
            }
            // Perhaps no record of the child has arrived.
            Call::Fork if record.fd == 0 => {
                if let Ok(child) = u32::try_from(record.outcome)
                    && (child as usize) < PROCESSES
                {
                    self.has_number(child);
                }
            }
            _ => {}
        }
    }

    /// Cuts the stream of the only process, and gives the record a new number.
    pub fn cut(&self, length: u64, record: u64) {
        let page = self.page();
        page.record.store(record, Ordering::Release);
        page.processes.0[0].head.store(length, Ordering::Release);
        self.set_stable(0, 0);
    }

    /// Sets the destination of determinants.
    pub fn set_destination(&self, destination: &Destination) {
        self.page().destination.set(destination);
    }

    /// Sets the condition for output to leave.
    pub fn hold(&self, hold: Hold) {
        self.page().hold.store(hold as u32, Ordering::Release);
    }

    /// Length of a stream before the last output of the process, bytes.
    #[must_use]
    pub fn last_output(&self, process: u32) -> u64 {
        let all = &self.page().processes.0;
        all.get(process as usize)
            .map_or(0, |process| process.said.load(Ordering::Acquire))
    }

    /// Stable position of a stream, bytes.
    #[must_use]
    pub fn stable(&self, process: u32) -> u64 {
        let all = &self.page().processes.0;
        all.get(process as usize)
            .map_or(0, |process| process.stable.load(Ordering::Acquire))
    }

    /// Sets the stable position of a stream, which may go back.
    pub fn set_stable(&self, process: u32, bytes: u64) {
        if let Some(stream) = self.page().processes.0.get(process as usize) {
            stream.stable.store(bytes, Ordering::Release);
        }
        self.page().settled.take_back();
    }

    /// Whether this child has a client, or may have. An ended child counts if `positions` has its client, to whom the
    /// end must be repeated.
    fn serves(&self, process: u32, positions: &[Position]) -> io::Result<bool> {
        let entry = &self.page().processes.0[process as usize];
        let is_gone = entry.has(Fate::Executes) || entry.has(Fate::Gone);
        if !(entry.has(Fate::Serves) || may_serve(entry)) || is_gone {
            return Ok(false);
        }
        let mut serves = !entry.has(Fate::Ends);
        if !serves {
            each(self, process, 0, |_, record| {
                let is_new = record.call == Call::Fate && record.outcome == Fate::Serves as i64;
                let ends = record.payload.first_chunk().copied().map(Ends);
                serves |= is_new
                    && ends
                        .is_some_and(|ends| positions.iter().any(|position| position.ends == ends));
            })?;
        }
        Ok(serves)
    }

    /// Whether processes other than the first have or had clients.
    #[must_use]
    pub fn is_served_by_children(&self) -> bool {
        let all = &self.page().processes.0;
        self.processes()
            .any(|number| all[number as usize].has(Fate::Serves))
    }

    /// Whether a process has a connection that neither parent nor child has served yet.
    #[must_use]
    pub fn may_be_served_by_children(&self) -> bool {
        let all = &self.page().processes.0;
        self.processes().any(|number| {
            let process = &all[number as usize];
            may_serve(process) && !process.has(Fate::Executes)
        })
    }

    /// Whether a child is at work, or might be started again. An image of the first process does not contain
    /// children.
    #[must_use]
    pub fn has_children_at_work(&self) -> bool {
        let all = &self.page().processes.0;
        let is_over = |process: &Process| {
            let fates = [Fate::Ends, Fate::Executes, Fate::Gone];
            fates.into_iter().any(|fate| process.has(fate))
        };
        self.is_served_by_children()
            || self.processes().skip(1).any(|number| {
                let process = &all[number as usize];
                !is_over(process)
            })
    }

    /// The processes that a replay starts again.
    #[must_use]
    pub fn begun(&self) -> BTreeSet<u32> {
        let begun = |number: &u32| {
            let process = &self.page().processes.0[*number as usize];
            process.is_begun.load(Ordering::Acquire) != 0
        };
        self.processes().filter(begun).collect()
    }

    /// Reason why the helper threads of a process are not waited for any more; `None`: the process waits.
    #[must_use]
    pub fn restless(&self) -> Option<Restless> {
        Restless::from_code(self.page().restless.load(Ordering::Acquire))
    }

    /// Whether outcomes are recorded.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.ended().is_none()
    }

    /// Reason why recording has stopped; `None`: recording continues.
    #[must_use]
    pub fn ended(&self) -> Option<Mode> {
        let mode = self.page().mode.load(Ordering::Acquire);
        Some(Mode::from_code(mode).unwrap_or(Mode::Off)).filter(|mode| *mode != Mode::Record)
    }

    /// Bytes of a stream that a logger has had at some time.
    #[must_use]
    pub fn ever_stable(&self, process: u32) -> u64 {
        self.stable(process).max(self.base(process))
    }

    /// Stops recording because the logger's memory is full. Output no longer waits.
    pub fn logger_is_full(&self) {
        let ended = Mode::LoggerFull as u32;
        self.page().mode.store(ended, Ordering::Release);
    }

    /// The action of the server that cannot be replayed, in the words of the shim; `None`: no such action.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        let said: Vec<u8> = self.page().reason.said().collect();
        (!said.is_empty()).then(|| String::from_utf8_lossy(&said).into_owned())
    }

    /// Sets the addresses to which clients connect.
    pub fn clients_connect_to(&self, addresses: &[SocketAddr]) {
        let ip = |address: &SocketAddr| match address.ip() {
            IpAddr::V4(ip) => mapped(ip.octets()),
            IpAddr::V6(ip) => ip.octets(),
        };
        let all = addresses
            .iter()
            .map(|address| (ip(address), address.port()));
        self.page().addresses.set(all);
    }

    /// The supervisor ends the service on purpose: processes stop waiting.
    pub fn is_ending(&self) {
        self.page().is_ending.store(1, Ordering::Release);
    }

    /// Whether a recorded process has listened to clients.
    #[must_use]
    pub fn has_listener(&self) -> bool {
        self.page().listens.load(Ordering::Acquire) != 0
    }

    /// Stops recording and gives the record up. Output no longer waits.
    pub fn give_up(&self) {
        let page = self.page();
        page.mode.store(Mode::Off as u32, Ordering::Release);
        page.hold.store(Hold::Never as u32, Ordering::Release);
    }
}

/// Whether the process has a connection that neither parent nor child has served yet.
fn may_serve(process: &Process) -> bool {
    let has = |fate| process.has(fate);
    has(Fate::Holds) && !has(Fate::Talks) && !has(Fate::Ends)
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our mapping, and all references have ended.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), size_of::<Page>()) };
    }
}
