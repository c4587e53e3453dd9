//! Publishes stable reads to the data plane ([`ReadCursors`]). The data plane acknowledges these bytes to the client,
//! and need not mirror them (mirror skip). A connection has a cursor if this process has accepted it and the kernel has
//! kept its SYN: other connections have no certain name.

use core::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, Ordering},
};

use libc::{MAP_FIXED_NOREPLACE, MAP_SHARED, PROT_READ, PROT_WRITE, c_int};
use north_abi::{
    Which,
    handover::Message,
    read_cursors::{READ_CURSORS, ReadCursor, ReadCursors},
};

use crate::{clock, live, places, sys::sys, wrap::Wrap};

/// Unstable reads at once. Beyond that the oldest is dropped: the next read of the connection includes it, or its
/// segment is mirrored when the client retransmits.
const UNSTABLE_READS_MAX: usize = 4096;
/// From this many unstable reads on, determinants are sent even without output.
const UNSTABLE_READS_BEFORE_SEND: usize = 256;
/// A program that sleeps in read(2) serves few connections.
const SLEEPING_READER_READS_MAX: usize = 4;
/// Closed connections that keep their cursors, while their last segments are under way.
const RETIRED_CURSORS: usize = 64;
/// Bytes this far behind a read are stable.
const STABLE_DISTANCE_BYTES: u64 = 1 << 29;
/// Instead of a cursor: the connection has none.
const NO_CURSOR: u32 = u32::MAX;
/// Wait for the supervisor's answer.
const TABLE_REPLY_TIMEOUT_NS: u64 = 20_000_000;
/// Interval of requests for the table.
const TABLE_REQUEST_INTERVAL_NS: u64 = 1_000_000_000;

/// A read whose determinant may be unstable.
#[derive(Clone, Copy)]
struct UnstableRead {
    /// Cursor of the connection, and ISN of the client: the cursor may belong to a later connection by now.
    cursor: u32,
    isn: u32,
    /// End of the read.
    seq: u32,
    /// Position in the process's stream at which the read is stable.
    stable_at: u64,
}

/// Unstable reads, the oldest first.
pub(crate) struct UnstableReads {
    ring: [UnstableRead; UNSTABLE_READS_MAX],
    first: usize,
    count: usize,
}

struct Static(UnsafeCell<UnstableReads>);
// SAFETY: only the process's first thread refers to the value (`crate::wrap::with`).
unsafe impl Sync for Static {}

static READS: Static = Static(UnsafeCell::new(UnstableReads {
    ring: [UnstableRead {
        cursor: 0,
        isn: 0,
        seq: 0,
        stable_at: 0,
    }; UNSTABLE_READS_MAX],
    first: 0,
    count: 0,
}));

/// The unstable reads of this process.
///
/// # Safety
/// Once, by the process's first thread.
pub(crate) unsafe fn reads() -> &'static mut UnstableReads {
    // SAFETY: by the caller.
    unsafe { &mut *READS.0.get() }
}

impl UnstableReads {
    fn push(&mut self, read: UnstableRead) {
        if self.count == UNSTABLE_READS_MAX {
            self.first = (self.first + 1) % UNSTABLE_READS_MAX;
            self.count -= 1;
        }
        self.ring[(self.first + self.count) % UNSTABLE_READS_MAX] = read;
        self.count += 1;
    }

    fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The oldest read, if it is stable.
    fn pop(&mut self, stable: u64) -> Option<UnstableRead> {
        let read = self.ring[self.first];
        if self.is_empty() || read.stable_at > stable {
            return None;
        }
        self.first = (self.first + 1) % UNSTABLE_READS_MAX;
        self.count -= 1;
        Some(read)
    }

    fn iter(&self) -> impl Iterator<Item = UnstableRead> {
        (0..self.count).map(|nth| self.ring[(self.first + nth) % UNSTABLE_READS_MAX])
    }

    pub(crate) fn forget(&mut self) {
        self.count = 0;
    }
}

/// Cursors of closed connections.
pub(crate) struct Retired {
    cursors: [u32; RETIRED_CURSORS],
    next: usize,
}

impl Retired {
    pub(crate) const NONE: Self = Self {
        cursors: [0; RETIRED_CURSORS],
        next: 0,
    };

    pub(crate) fn push(&mut self, cursor: u32) {
        if index_of(cursor).is_none() {
            return;
        }
        let place = &mut self.cursors[self.next % RETIRED_CURSORS];
        let oldest = core::mem::replace(place, cursor);
        self.next = (self.next + 1) % RETIRED_CURSORS;
        if let (Some(cursors), Some(oldest)) = (table(), index_of(oldest)) {
            cursors.free(oldest);
        }
    }
}

/// The table is mapped.
static IS_MAPPED: AtomicBool = AtomicBool::new(false);

fn table() -> Option<ReadCursors<'static>> {
    let at: *const [ReadCursor; READ_CURSORS] =
        core::ptr::with_exposed_provenance(places::READ_CURSORS);
    // SAFETY: mapped for good, and large enough; the table has only atomics, for which all bytes are valid.
    IS_MAPPED
        .load(Ordering::Relaxed)
        .then(|| ReadCursors(unsafe { &*at }))
}

/// Index of a cursor: `Connection::cursor` is one more.
fn index_of(cursor: u32) -> Option<u32> {
    cursor.checked_sub(1).filter(|_| cursor != NO_CURSOR)
}

impl Wrap {
    /// The program has just read from a client's connection.
    #[inline]
    pub(crate) fn record_read(&mut self, fd: c_int) {
        if self.is_replay || !self.requires_commit() {
            return;
        }
        let stable_at = self.stream.position();
        let Some(connection) = self.descriptors.connection(fd) else {
            return;
        };
        let Which::Isn(isn) = connection.which else {
            return;
        };
        let seq = isn.wrapping_add(1).wrapping_add(connection.instream as u32);
        let cursor = match connection.cursor {
            0 => self.take_cursor(fd, isn),
            known => known,
        };
        if let Some(cursor) = index_of(cursor) {
            self.reads.push(UnstableRead {
                cursor,
                isn,
                seq,
                stable_at,
            });
        }
    }

    #[cold]
    fn take_cursor(&mut self, fd: c_int, isn: u32) -> u32 {
        let cursors = self.find_table();
        let (Some(connection), Some(cursors)) = (self.descriptors.connection(fd), cursors) else {
            return 0;
        };
        let is_own = !connection.is_inherited && !connection.is_taken && !connection.is_outgoing();
        let ends = live::ends(connection);
        // Earlier reads are stable.
        let cursor_at = connection.instream.saturating_sub(STABLE_DISTANCE_BYTES) as u32;
        let taken =
            is_own.then(|| cursors.take(&ends, isn, isn.wrapping_add(1).wrapping_add(cursor_at)));
        connection.cursor = taken.flatten().map_or(NO_CURSOR, |place| place + 1);
        connection.cursor
    }

    /// The table, requested from the supervisor at most once per interval.
    fn find_table(&mut self) -> Option<ReadCursors<'static>> {
        if IS_MAPPED.load(Ordering::Relaxed) {
            return table();
        }
        let now = clock::monotonic();
        if now >= self.next_table_request {
            self.next_table_request = now + TABLE_REQUEST_INTERVAL_NS;
            let process = self.process;
            if let Some(given) =
                live::ask_soon(&Message::ReadCursors { process }, TABLE_REPLY_TIMEOUT_NS)
            {
                IS_MAPPED.store(map(given), Ordering::Relaxed);
            }
        }
        table()
    }

    /// Publishes the reads that are stable by now.
    #[inline]
    pub(crate) fn publish_reads(&mut self) {
        if !self.reads.is_empty() {
            self.publish_stable_reads();
        }
    }

    fn publish_stable_reads(&mut self) {
        let Some(cursors) = table().filter(|_| self.requires_commit()) else {
            return self.reads.forget(); // the data plane needs no cursors any more
        };
        let stable = self.stable().min(self.others_stable_position());
        while let Some(read) = self.reads.pop(stable) {
            // An acknowledgement is visible to the client, as output is.
            self.stream.record_ack(read.stable_at);
            cursors.advance(read.cursor, read.isn, read.seq);
        }
    }

    /// Position of this process up to which the logger also has all determinants of other processes: a read may depend
    /// on them.
    fn others_stable_position(&mut self) -> u64 {
        let logger = self.page.destination.generation();
        if self.others_are_stable() {
            self.confirmed = (logger, self.stream.position());
        }
        let (by, position) = self.confirmed;
        if by == logger { position } else { 0 }
    }

    /// The same before a read that may sleep.
    pub(crate) fn owes_cursors_of_few(&self) -> bool {
        self.reads.count <= SLEEPING_READER_READS_MAX && self.owes_cursors()
    }

    /// Whether a skipped mirror copy is not covered by a published read: the client may wait for its acknowledgement.
    pub(crate) fn owes_cursors(&self) -> bool {
        let owed = |cursors: ReadCursors<'_>| {
            self.reads.count > UNSTABLE_READS_BEFORE_SEND
                || self.reads.iter().any(|read| cursors.is_owed(read.cursor))
        };
        !self.reads.is_empty() && table().is_some_and(owed)
    }

    /// In a child: the cursors are the parent's.
    pub(crate) fn forget_reads(&mut self) {
        self.reads.forget();
        self.descriptors.retired = Retired::NONE;
        for connection in self.descriptors.connections_mut() {
            connection.cursor = NO_CURSOR;
        }
    }
}

fn map(given: c_int) -> bool {
    // SAFETY: a new mapping, at an address that neither the shim nor the program uses.
    let mapped = unsafe {
        let length = size_of::<[ReadCursor; READ_CURSORS]>();
        let access = PROT_READ | PROT_WRITE;
        let how = MAP_SHARED | MAP_FIXED_NOREPLACE;
        sys!(
            SYS_mmap,
            places::READ_CURSORS,
            length,
            access,
            how,
            given,
            0
        )
    };
    // SAFETY: the descriptor is ours.
    unsafe { sys!(SYS_close, given) };
    usize::try_from(mapped) == Ok(places::READ_CURSORS)
}
