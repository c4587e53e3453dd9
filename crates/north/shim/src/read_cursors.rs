//! What was read and is with the logger, the data plane is told ([`Notes`]): it acknowledges that to clients, and need
//! not give the logger a copy of what they send. That is said for a connection of a client that this process has
//! accepted itself, and whose SYN the kernel had kept: no other one has its name.

use core::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, Ordering},
};

use libc::{MAP_FIXED_NOREPLACE, MAP_SHARED, PROT_READ, PROT_WRITE, c_int};
use north_abi::{
    Which,
    handover::Message,
    read_cursors::{NOTES, Note, Notes},
};

use crate::{clock, live, places, sys::sys, wrap::Wrap};

/// Reads that may be waiting for the logger at once. When there are more, the oldest is not said: the next read of that
/// connection says it, or a copy is made when its client sends it again.
const MOST: usize = 4096;
/// When so many wait, the logger is told, though nothing is to be said.
const MANY: usize = 256;
/// A program that sleeps in a read looks after one connection, or some.
const FEW: usize = 4;
/// So many connections that were closed keep their notes: their last words may still be on the way.
const RETIRED: usize = 64;
/// So far behind, bytes, nothing is on its way to the logger any more.
const LONG_AGO: u64 = 1 << 29;
/// In place of a note: this connection has none.
const NONE: u32 = u32::MAX;
/// For so long the supervisor's answer is waited for, nanoseconds.
const PATIENCE: u64 = 20_000_000;
/// And after so long it is asked again, nanoseconds.
const AGAIN: u64 = 1_000_000_000;

/// A read that the logger may not know of.
#[derive(Clone, Copy)]
struct Read {
    /// Of which connection, and the number of its SYN: by now it may be another's.
    note: u32,
    isn: u32,
    /// It has read up to there.
    seq: u32,
    /// The logger knows what when it has so much of this process's record.
    until: u64,
}

/// Reads that the logger may not know of, the oldest first.
pub(crate) struct Reads {
    ring: [Read; MOST],
    first: usize,
    count: usize,
}

struct Static(UnsafeCell<Reads>);
// SAFETY: only the process's first thread refers to it (`crate::wrap::with`).
unsafe impl Sync for Static {}

static READS: Static = Static(UnsafeCell::new(Reads {
    ring: [Read {
        note: 0,
        isn: 0,
        seq: 0,
        until: 0,
    }; MOST],
    first: 0,
    count: 0,
}));

/// Those of this process.
///
/// # Safety
/// Once, by the process's first thread.
pub(crate) unsafe fn reads() -> &'static mut Reads {
    // SAFETY: by the caller.
    unsafe { &mut *READS.0.get() }
}

impl Reads {
    fn push(&mut self, read: Read) {
        if self.count == MOST {
            self.first = (self.first + 1) % MOST;
            self.count -= 1;
        }
        self.ring[(self.first + self.count) % MOST] = read;
        self.count += 1;
    }

    fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The oldest, if the logger knows of it when it has so much.
    fn pop(&mut self, stable: u64) -> Option<Read> {
        let read = self.ring[self.first];
        if self.is_empty() || read.until > stable {
            return None;
        }
        self.first = (self.first + 1) % MOST;
        self.count -= 1;
        Some(read)
    }

    fn iter(&self) -> impl Iterator<Item = Read> {
        (0..self.count).map(|nth| self.ring[(self.first + nth) % MOST])
    }

    pub(crate) fn forget(&mut self) {
        self.count = 0;
    }
}

/// Notes of connections that are closed.
pub(crate) struct Retired {
    notes: [u32; RETIRED],
    next: usize,
}

impl Retired {
    pub(crate) const NONE: Self = Self {
        notes: [0; RETIRED],
        next: 0,
    };

    pub(crate) fn push(&mut self, note: u32) {
        if place_of(note).is_none() {
            return;
        }
        let place = &mut self.notes[self.next % RETIRED];
        let oldest = core::mem::replace(place, note);
        self.next = (self.next + 1) % RETIRED;
        if let (Some(notes), Some(oldest)) = (table(), place_of(oldest)) {
            notes.free(oldest);
        }
    }
}

/// The table is in its place.
static IS_MAPPED: AtomicBool = AtomicBool::new(false);

fn table() -> Option<Notes<'static>> {
    let at: *const [Note; NOTES] = core::ptr::with_exposed_provenance(places::NOTES);
    // SAFETY: mapped for good, and large enough; it is all atomics, so that anything is a valid value.
    IS_MAPPED
        .load(Ordering::Relaxed)
        .then(|| Notes(unsafe { &*at }))
}

/// `Connection::note` is one more.
fn place_of(note: u32) -> Option<u32> {
    note.checked_sub(1).filter(|_| note != NONE)
}

impl Wrap {
    /// The program has just read from a client's connection.
    #[inline]
    pub(crate) fn has_read(&mut self, fd: c_int) {
        if self.is_replay || !self.requires_commit() {
            return;
        }
        let until = self.stream.position();
        let Some(connection) = self.descriptors.connection(fd) else {
            return;
        };
        let Which::Isn(isn) = connection.which else {
            return;
        };
        let seq = isn.wrapping_add(1).wrapping_add(connection.instream as u32);
        let note = match connection.note {
            0 => self.take_note(fd, isn),
            known => known,
        };
        if let Some(note) = place_of(note) {
            self.reads.push(Read {
                note,
                isn,
                seq,
                until,
            });
        }
    }

    #[cold]
    fn take_note(&mut self, fd: c_int, isn: u32) -> u32 {
        let notes = self.find_notes();
        let (Some(connection), Some(notes)) = (self.descriptors.connection(fd), notes) else {
            return 0;
        };
        let is_own = !connection.is_inherited && !connection.is_taken && !connection.is_outgoing();
        let ends = live::ends(connection);
        // What was read long ago is noted.
        let noted = connection.instream.saturating_sub(LONG_AGO) as u32;
        let taken = is_own.then(|| notes.take(&ends, isn, isn.wrapping_add(1).wrapping_add(noted)));
        connection.note = taken.flatten().map_or(NONE, |place| place + 1);
        connection.note
    }

    /// The table. A supervisor that does not answer at once is asked again, but not soon.
    fn find_notes(&mut self) -> Option<Notes<'static>> {
        if IS_MAPPED.load(Ordering::Relaxed) {
            return table();
        }
        let now = clock::monotonic();
        if now >= self.ask_for_notes_at {
            self.ask_for_notes_at = now + AGAIN;
            let process = self.process;
            if let Some(given) = live::ask_soon(&Message::Notes { process }, PATIENCE) {
                IS_MAPPED.store(map(given), Ordering::Relaxed);
            }
        }
        table()
    }

    /// Say what is with the logger by now.
    #[inline]
    pub(crate) fn note_reads(&mut self) {
        if !self.reads.is_empty() {
            self.note_those_that_are_stable();
        }
    }

    fn note_those_that_are_stable(&mut self) {
        let Some(notes) = table().filter(|_| self.requires_commit()) else {
            return self.reads.forget(); // nobody is told any more
        };
        let stable = self.stable().min(self.others_are_stable_up_to());
        while let Some(read) = self.reads.pop(stable) {
            // A client hears of it, as of what is said.
            self.stream.record_ack(read.until);
            notes.note(read.note, read.isn, read.seq);
        }
    }

    /// What others had recorded when this process's record was so long, the logger has: what was read before may
    /// follow from that.
    fn others_are_stable_up_to(&mut self) -> u64 {
        let logger = self.page.destination.generation();
        if self.others_are_stable() {
            self.confirmed = (logger, self.stream.position());
        }
        let (by, position) = self.confirmed;
        if by == logger { position } else { 0 }
    }

    /// The same before it reads from one where it may sleep: who does so has not read many before.
    pub(crate) fn owes_notes_of_few(&self) -> bool {
        self.reads.count <= FEW && self.owes_notes()
    }

    /// Has the logger neither a copy nor a note of what this process has read? Its client may be waiting for the
    /// acknowledgement.
    pub(crate) fn owes_notes(&self) -> bool {
        let owed = |notes: Notes<'_>| {
            self.reads.count > MANY || self.reads.iter().any(|read| notes.is_owed(read.note))
        };
        !self.reads.is_empty() && table().is_some_and(owed)
    }

    /// This process is a child: its parent says what is noted.
    pub(crate) fn notes_nothing(&mut self) {
        self.reads.forget();
        self.descriptors.retired = Retired::NONE;
        for connection in self.descriptors.connections_mut() {
            connection.note = NONE;
        }
    }
}

fn map(given: c_int) -> bool {
    // SAFETY: a new mapping, at a place where nothing of ours is, nor of the program's.
    let mapped = unsafe {
        let length = size_of::<[Note; NOTES]>();
        let access = PROT_READ | PROT_WRITE;
        let how = MAP_SHARED | MAP_FIXED_NOREPLACE;
        sys!(SYS_mmap, places::NOTES, length, access, how, given, 0)
    };
    // SAFETY: it was given to us.
    unsafe { sys!(SYS_close, given) };
    usize::try_from(mapped) == Ok(places::NOTES)
}
