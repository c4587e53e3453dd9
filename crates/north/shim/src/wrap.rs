//! What is done about a call: record its outcome, or replay it.

use core::{
    cell::{Cell, UnsafeCell},
    sync::atomic::Ordering,
};

use libc::{c_int, pid_t, rlimit};
use north_abi::{
    Call, Clock, DeferredOutput, Header, Record,
    layout::{Failure, Mode, Page},
    locks::Locks,
};

use crate::{
    allocators,
    calls::{effects::Remade, kept::Kept, relistening::ClosedListeners, writing::Unrecorded},
    children::Children,
    closing,
    datagrams::Datagrams,
    descriptors::Descriptors,
    determinant_sender::DeterminantSender,
    ipc_replay::PendingIpcWrites,
    live::{self, Positions},
    messages::say,
    output_commit::deferred::{CommitWait, RoundTrip},
    process_group::ProcessGroup,
    read_cursors::UnstableReads,
    signals, snapshot_point,
    stream::Stream,
    sys::{Outcome, sys},
};

/// Locks on files at once.
const FILE_LOCKS_MAX: usize = 256;

/// The wrap of one process.
pub(crate) struct Wrap {
    pub(crate) page: &'static Page,
    pub(crate) process: u32,
    /// Its process id in its first life, and now.
    pub(crate) pid: pid_t,
    pub(crate) pid_now: pid_t,
    pub(crate) stream: Stream,
    pub(crate) descriptors: &'static mut Descriptors,
    pub(crate) clock: Clock,
    /// A hash of all that was written to connections.
    pub(crate) outstream: u64,
    pub(crate) unrecorded: Unrecorded,
    /// How often its helpers have come to rest.
    pub(crate) rests: Unrecorded,
    pub(crate) children: Children,
    pub(crate) group: ProcessGroup,
    /// What is still to be said to others of its session when a replay is over.
    pub(crate) pending_ipc: PendingIpcWrites,
    /// How many descriptors the program allows itself when its record is replayed.
    pub(crate) limit: Option<rlimit>,
    /// What it has locked, and in a replay had.
    pub(crate) locks: Locks<FILE_LOCKS_MAX>,
    /// Listeners that it has closed in a replay.
    pub(crate) closed_listeners: ClosedListeners,
    /// Files that are made again in a replay.
    pub(crate) remade: Remade,
    /// Files that were read, and that may go.
    pub(crate) kept: Kept,
    /// The way to the logger.
    pub(crate) sender: DeterminantSender,
    pub(crate) datagrams: &'static mut Datagrams,
    pub(crate) round_trip: RoundTrip,
    /// What was said and leaves when it may.
    pub(crate) deferred: &'static mut DeferredOutput,
    pub(crate) commit_wait: CommitWait,
    /// What was read, and the logger may not know of.
    pub(crate) reads: &'static mut UnstableReads,
    /// Earliest time of the next request for the table of read cursors, nanoseconds.
    pub(crate) next_table_request: u64,
    /// Which logger has what other processes had recorded when this one's record was so long.
    pub(crate) confirmed: (u32, u64),
    /// How far clients are, while a record is replayed.
    pub(crate) positions: Positions,
    /// The life before may have opened the next connection to another server already.
    pub(crate) may_have_opened: bool,
    /// A record is being replayed; once it has ended, it is not again.
    pub(crate) is_replay: bool,
}

struct Static(UnsafeCell<Option<Wrap>>);
// SAFETY: only the thread that has `IS_FIRST` set refers to it, and never twice at once.
unsafe impl Sync for Static {}
static WRAP: Static = Static(UnsafeCell::new(None));

thread_local! {
    /// This is the process's first thread, and nothing of ours is running in it.
    static IS_FREE: Cell<bool> = const { Cell::new(false) };
    /// This is the process's first thread.
    static IS_FIRST: Cell<bool> = const { Cell::new(false) };
    /// Signals were delivered after the last call, and a call that they interrupt is to be begun again.
    static RESTARTS: Cell<bool> = const { Cell::new(false) };
}

/// The wrap begins; this thread is the process's first.
pub(crate) fn begin(wrap: Wrap) {
    // SAFETY: nobody refers to it before the flag is set.
    unsafe { *WRAP.0.get() = Some(wrap) };
    IS_FIRST.set(true);
    IS_FREE.set(true);
}

/// This process is a child of one that is wrapped, and is not.
pub(crate) fn end() {
    IS_FIRST.set(false);
    IS_FREE.set(false);
    allocators::leave_alone();
}

/// Do it with nothing of it recorded.
pub(crate) fn aside<T>(f: impl FnOnce() -> T) -> T {
    let was_free = IS_FREE.replace(false);
    let result = f();
    IS_FREE.set(was_free);
    result
}

/// Is this the thread that is wrapped, and nothing of ours running in it?
pub(crate) fn is_wrapped() -> bool {
    IS_FREE.get()
}

/// What all share, of a process that is wrapped.
pub(crate) fn page() -> Option<&'static Page> {
    // SAFETY: it is set once, before there are threads, and does not change.
    unsafe { (*WRAP.0.get()).as_ref() }.map(|wrap| wrap.page)
}

/// Is this another thread of a process that is wrapped?
pub(crate) fn is_helper() -> bool {
    page().is_some() && !IS_FIRST.get()
}

/// Is this another thread of the process that is wrapped, and not of a child of its?
pub(crate) fn is_helper_thread() -> bool {
    // SAFETY: as in `page`.
    let wrap = unsafe { (*WRAP.0.get()).as_ref() };
    // SAFETY: no memory is involved.
    let own = unsafe { sys!(SYS_getpid) };
    is_helper() && wrap.is_some_and(|wrap| i64::from(wrap.pid_now) == own)
}

/// The same for a call that sleeps: it is begun again if it was interrupted, and those who did want it so
/// (`SA_RESTART`).
pub(crate) fn restarting(mut f: impl FnMut(&mut Wrap) -> Outcome) -> Option<Outcome> {
    loop {
        let outcome = with(&mut f);
        if outcome != Some(-Outcome::from(libc::EINTR)) || !RESTARTS.get() {
            return outcome;
        }
    }
}

/// Do it with the wrap. `None`: this thread has none, or the call comes from inside of it.
#[inline]
pub(crate) fn with<T>(f: impl FnOnce(&mut Wrap) -> T) -> Option<T> {
    if !IS_FREE.replace(false) {
        return None;
    }
    // SAFETY: the flag was set, so this is the one thread, and nobody else refers to it now.
    let wrap = unsafe { (*WRAP.0.get()).as_mut() };
    let mut signal = None;
    let result = wrap.map(|wrap| {
        let before = wrap.stream.position();
        let result = f(wrap);
        if wrap.stream.position() != before || wrap.is_off() {
            signal = wrap.signal();
        }
        result
    });
    IS_FREE.set(IS_FIRST.get());
    let mut restarts = None;
    while let Some(number) = signal {
        restarts = Some(restarts.unwrap_or(true) & signals::deliver(number));
        signal = with(Wrap::signal).flatten();
    }
    RESTARTS.set(restarts.unwrap_or(false));
    result
}

impl Wrap {
    /// The recorded outcome of this call, of which `take` gets the record. `None`: it is to be performed,
    /// for the record has ended or never was.
    #[inline]
    pub(crate) fn replayed<T>(
        &mut self,
        call: Call,
        fd: c_int,
        take: impl FnOnce(&Record<'_>) -> T,
    ) -> Option<T> {
        if !self.is_replay {
            return None;
        }
        self.replayed_slowly(call, fd, take)
    }

    fn replayed_slowly<T>(
        &mut self,
        call: Call,
        fd: c_int,
        take: impl FnOnce(&Record<'_>) -> T,
    ) -> Option<T> {
        if !self.is_replay() {
            return None;
        }
        let (taken, length) = match self.stream.peek()? {
            Err(_) => self.fail(Failure::BadRecord, call, None),
            Ok((record, _)) if record.call != call => {
                let found = record.call;
                self.fail(Failure::OtherCall, call, Some(found))
            }
            Ok((record, _)) if record.fd != fd.cast_unsigned() => {
                self.fail(Failure::OtherDescriptor, call, Some(call))
            }
            Ok((record, length)) => (take(&record), length),
        };
        self.advance(length);
        Some(taken)
    }

    /// The record with this length was replayed.
    pub(crate) fn advance(&mut self, length: u64) {
        if self.stream.advance(length) {
            snapshot_point::pause(self);
        }
    }

    /// Nothing is recorded any more. What the kernel was told instead of what the program wanted is still to be
    /// translated.
    pub(crate) fn is_off(&self) -> bool {
        self.page.mode.load(Ordering::Relaxed) != Mode::Record as u32
    }

    /// A signal that is to be delivered here.
    #[inline]
    fn signal(&mut self) -> Option<c_int> {
        if self.is_replay {
            self.replay_free_numbers();
        } else if closing::is_pending() {
            self.free_numbers();
        }
        if self.is_replay {
            signals::replayed(self)
        } else if signals::are_pending() {
            signals::take(self)
        } else {
            None
        }
    }

    /// Is there anything left to replay? At the end of the record the process goes live.
    pub(crate) fn is_replay(&mut self) -> bool {
        if self.is_replay && !self.stream.is_replay() {
            self.is_replay = false;
            live::go(self);
        }
        self.is_replay
    }

    /// Record an outcome that was just had.
    #[inline]
    pub(crate) fn record(&mut self, record: &Record<'_>) {
        self.append(record.header(), |room| room.copy_from_slice(record.payload));
    }

    /// The same, with a payload that is filled in.
    #[inline]
    pub(crate) fn append(&mut self, header: Header, fill: impl FnOnce(&mut [u8])) {
        if !self.is_off() && self.stream.append(header, fill).is_err() {
            self.lose_record();
        }
    }

    /// There is no room for the record: the service goes on without one, rather than not at all.
    #[cold]
    fn lose_record(&mut self) {
        say(&[b"the record is full: recording has stopped"]);
        self.end_record(Mode::Full);
    }

    /// The call with its recorded outcome, or performed and recorded. What it fills in is `filled`, once it
    /// has succeeded.
    pub(crate) fn filled(
        &mut self,
        call: Call,
        fd: c_int,
        filled: &mut [u8],
        perform: impl FnOnce(&mut [u8]) -> Outcome,
    ) -> Outcome {
        let replayed = self.replayed(call, fd, |record| {
            let length = record.payload.len().min(filled.len());
            filled[..length].copy_from_slice(&record.payload[..length]);
            record.outcome
        });
        if let Some(outcome) = replayed {
            return outcome;
        }
        let outcome = perform(filled);
        let payload: &[u8] = if outcome < 0 { &[] } else { filled };
        self.record(&Record {
            call,
            fd: fd.cast_unsigned(),
            outcome,
            payload,
        });
        outcome
    }

    /// A number, in the same way.
    pub(crate) fn value(
        &mut self,
        call: Call,
        fd: c_int,
        perform: impl FnOnce() -> Outcome,
    ) -> Outcome {
        self.filled(call, fd, &mut [], |_| perform())
    }

    /// The replay contradicts the record, or cannot go on: nothing of this life may reach a client.
    #[cold]
    pub(crate) fn fail(&mut self, failure: Failure, call: Call, found: Option<Call>) -> ! {
        let page = self.page;
        if self.may_skip_replay() {
            self.give_up_process();
        }
        page.failed_process.store(self.process, Ordering::Relaxed);
        page.failed_at
            .store(self.stream.position(), Ordering::Relaxed);
        page.failed_calls[0].store(u32::from(call.code()), Ordering::Relaxed);
        let found = found.map_or(0, |found| u32::from(found.code()));
        page.failed_calls[1].store(found, Ordering::Relaxed);
        page.failure.store(failure as u32, Ordering::Release);
        exit();
    }
}

/// The process ends here. Of a child nobody but its parent would hear that: it dies of a signal.
pub(crate) fn exit() -> ! {
    // SAFETY: it is set once, before there are threads; what is read does not change while there are any.
    let is_child = unsafe { (*WRAP.0.get()).as_ref() }.is_some_and(|wrap| wrap.process != 0);
    loop {
        // SAFETY: no more than that.
        unsafe {
            if is_child {
                sys!(SYS_kill, sys!(SYS_getpid), libc::SIGKILL);
                fault();
            }
            sys!(SYS_exit_group, EXIT_STATUS);
        }
    }
}

/// The first process of a namespace is spared its own signals, but not its faults.
fn fault() {
    let default = [0u64; 4]; // `struct kernel_sigaction`
    // SAFETY: a structure on our stack.
    unsafe { sys!(SYS_rt_sigaction, libc::SIGILL, &raw const default, 0, 8) };
    // SAFETY: the process ends here.
    unsafe { core::arch::asm!("ud2") };
}

/// The status of a process whose replay has failed.
const EXIT_STATUS: c_int = 125;
