//! The common path of all calls: record an outcome, or replay an outcome.

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
    /// Process id in the first incarnation, and now.
    pub(crate) pid: pid_t,
    pub(crate) pid_now: pid_t,
    pub(crate) stream: Stream,
    pub(crate) descriptors: &'static mut Descriptors,
    pub(crate) clock: Clock,
    /// A hash of all that was written to connections.
    pub(crate) outstream: u64,
    pub(crate) unrecorded: Unrecorded,
    /// Rests of helpers without a record.
    pub(crate) rests: Unrecorded,
    pub(crate) children: Children,
    pub(crate) group: ProcessGroup,
    /// Output of a replay to other processes of the session, not written yet.
    pub(crate) pending_ipc: PendingIpcWrites,
    /// The program's limit of descriptors in a replay, set at the end of the replay.
    pub(crate) limit: Option<rlimit>,
    /// Locks on files; in a replay the recorded locks.
    pub(crate) locks: Locks<FILE_LOCKS_MAX>,
    /// Listeners that the program has closed in a replay.
    pub(crate) closed_listeners: ClosedListeners,
    /// Files that a replay has recreated.
    pub(crate) remade: Remade,
    /// Files that were read, and that may go.
    pub(crate) kept: Kept,
    /// The way to the logger.
    pub(crate) sender: DeterminantSender,
    pub(crate) datagrams: &'static mut Datagrams,
    pub(crate) round_trip: RoundTrip,
    /// Deferred output.
    pub(crate) deferred: &'static mut DeferredOutput,
    pub(crate) commit_wait: CommitWait,
    /// Reads that may be unstable.
    pub(crate) reads: &'static mut UnstableReads,
    /// Earliest time of the next request for the table of read cursors, nanoseconds.
    pub(crate) next_table_request: u64,
    /// A logger, and the position of this stream at which the logger had all determinants of other processes.
    pub(crate) confirmed: (u32, u64),
    /// Positions of the clients in a replay.
    pub(crate) positions: Positions,
    /// The incarnation before may have opened the next upstream connection already.
    pub(crate) may_have_opened: bool,
    /// A replay runs. After its end no second replay begins.
    pub(crate) is_replay: bool,
}

struct Static(UnsafeCell<Option<Wrap>>);
// SAFETY: only the thread with `IS_FIRST` set refers to the value, and never twice at once.
unsafe impl Sync for Static {}
static WRAP: Static = Static(UnsafeCell::new(None));

thread_local! {
    /// This is the process's first thread, outside the shim.
    static IS_FREE: Cell<bool> = const { Cell::new(false) };
    /// This is the process's first thread.
    static IS_FIRST: Cell<bool> = const { Cell::new(false) };
    /// Signals were delivered after the last call, and the interrupted call starts again.
    static RESTARTS: Cell<bool> = const { Cell::new(false) };
}

/// The wrap begins; this thread is the process's first.
pub(crate) fn begin(wrap: Wrap) {
    // SAFETY: no other reference exists before the flag is set.
    unsafe { *WRAP.0.get() = Some(wrap) };
    IS_FIRST.set(true);
    IS_FREE.set(true);
}

/// This process is a child of a recorded process, and is not recorded.
pub(crate) fn end() {
    IS_FIRST.set(false);
    IS_FREE.set(false);
    allocators::leave_alone();
}

/// Runs `f` without recording.
pub(crate) fn aside<T>(f: impl FnOnce() -> T) -> T {
    let was_free = IS_FREE.replace(false);
    let result = f();
    IS_FREE.set(was_free);
    result
}

/// Whether this is the recorded thread, outside the shim.
pub(crate) fn is_wrapped() -> bool {
    IS_FREE.get()
}

/// The shared page, in a recorded process.
pub(crate) fn page() -> Option<&'static Page> {
    // SAFETY: set once, before there are threads, and never changed.
    unsafe { (*WRAP.0.get()).as_ref() }.map(|wrap| wrap.page)
}

/// Whether this is a helper thread of a wrapped process.
pub(crate) fn is_helper() -> bool {
    page().is_some() && !IS_FIRST.get()
}

/// Whether this is another thread of the recorded process, and not of a child.
pub(crate) fn is_helper_thread() -> bool {
    // SAFETY: as in `page`.
    let wrap = unsafe { (*WRAP.0.get()).as_ref() };
    // SAFETY: no memory is involved.
    let own = unsafe { sys!(SYS_getpid) };
    is_helper() && wrap.is_some_and(|wrap| i64::from(wrap.pid_now) == own)
}

/// As [`with`], for a call that sleeps: an interrupted call starts again if all interrupting handlers were set with
/// `SA_RESTART`.
pub(crate) fn restarting(mut f: impl FnMut(&mut Wrap) -> Outcome) -> Option<Outcome> {
    loop {
        let outcome = with(&mut f);
        if outcome != Some(-Outcome::from(libc::EINTR)) || !RESTARTS.get() {
            return outcome;
        }
    }
}

/// Runs `f` with the wrap. `None`: this thread has no wrap, or the call comes from inside the shim.
#[inline]
pub(crate) fn with<T>(f: impl FnOnce(&mut Wrap) -> T) -> Option<T> {
    if !IS_FREE.replace(false) {
        return None;
    }
    // SAFETY: the flag was set, so this is the only thread with access, and no other reference exists now.
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
    /// The recorded outcome of this call; `take` gets the record. `None`: the call is to be performed, because the
    /// record has ended, or no replay runs.
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

    /// Recording has stopped. Values that the kernel got in place of the program's values must still be translated.
    pub(crate) fn is_off(&self) -> bool {
        self.page.mode.load(Ordering::Relaxed) != Mode::Record as u32
    }

    /// A signal to deliver now.
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

    /// Whether records are left to replay. At the end of the record the process goes live.
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

    /// As [`Self::record`]: `fill` writes the payload.
    #[inline]
    pub(crate) fn append(&mut self, header: Header, fill: impl FnOnce(&mut [u8])) {
        if !self.is_off() && self.stream.append(header, fill).is_err() {
            self.lose_record();
        }
    }

    /// The stream is full: the service continues without a record.
    #[cold]
    fn lose_record(&mut self) {
        say(&[b"the record is full: recording has stopped"]);
        self.end_record(Mode::Full);
    }

    /// The recorded outcome of the call, or the outcome of `perform`, which is recorded. `filled` is the memory that
    /// the call fills in after success.
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

    /// The replay contradicts the record, or cannot continue: no output of this incarnation may reach a client.
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

/// The process ends. A child dies of a signal, because only its parent would see an exit status.
pub(crate) fn exit() -> ! {
    // SAFETY: set once, before there are threads; the read field never changes.
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

/// The first process of a PID namespace survives its own signals, but not its own faults.
fn fault() {
    let default = [0u64; 4]; // `struct kernel_sigaction`
    // SAFETY: a structure on our stack.
    unsafe { sys!(SYS_rt_sigaction, libc::SIGILL, &raw const default, 0, 8) };
    // SAFETY: the process ends here.
    unsafe { core::arch::asm!("ud2") };
}

/// The status of a process whose replay has failed.
const EXIT_STATUS: c_int = 125;
