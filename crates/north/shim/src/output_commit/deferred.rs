//! Deferred output: the shim accepts a write and sends the output after output commit. One round trip to the logger
//! then covers all output of a loop iteration, and the program does not wait for a far logger.
//!
//! Accepted output is stored ([`DeferredOutput`]). The determinants are sent when the event loop begins to wait. The
//! shim waits for a near logger then. With a far logger the shim receives acknowledgements while the program waits, and
//! sends the output that is stable. If the process dies before, the next incarnation sends the output: the record has
//! the causes of the write.
//!
//! Only writes that the kernel takes whole and at once are deferred. Any other write, the end of a connection, and any
//! sleep outside the event loop wait for all deferred output.

mod sockets;

use core::cell::UnsafeCell;

use libc::{EINTR, MSG_DONTWAIT, MSG_NOSIGNAL, POLLERR, POLLIN, POLLOUT, c_int, iovec, timespec};
use north_abi::{DeferredOutput, SocketBudget, layout::LOGGER_SOCKET_FD};
use protocol::awake::Awake;

use self::sockets::{
    free_in, is_limited, is_nonblocking, sleep, sockets_take_enough, write_through,
};
use crate::{
    calls::reading::{gather, is_ready, total},
    clock,
    determinant_sender::LoggerReply,
    output_commit::barrier::{REPLY_TIMEOUT_MAX_US, REPLY_TIMEOUT_MIN_US, is_stable},
    signals::blocking,
    sys::Outcome,
    wrap::Wrap,
};

/// From this round trip on the program does not wait for the logger. Below half of it the program waits again.
const FAR_ROUND_TRIP_NS: u64 = 100_000;
/// Up to this round trip a wait starts with busy polling, of this length: a wakeup takes longer than most answers.
const NEAR_ROUND_TRIP_NS: u64 = 150_000;
const BUSY_POLL_NS: u64 = 50_000;
/// A write within this time of the last one belongs to it. Near the logger, output that is deferred for longer leaves
/// at the next call of the program.
const DEFER_MAX_NS: u64 = 1_000_000;

struct Static(UnsafeCell<DeferredOutput>);
// SAFETY: only the process's first thread refers to the value (`crate::wrap::with`).
unsafe impl Sync for Static {}

static DEFERRED: Static = Static(UnsafeCell::new(DeferredOutput::EMPTY));

/// The deferred output of this process.
///
/// # Safety
/// Once, by the process's first thread.
pub(crate) unsafe fn deferred_output() -> &'static mut DeferredOutput {
    // SAFETY: by the caller.
    unsafe { &mut *DEFERRED.0.get() }
}

/// Round trip to the logger.
pub(crate) struct RoundTrip {
    /// Smoothed, nanoseconds; 0: not measured.
    time: u64,
    is_long: bool,
    /// Output is never deferred on this host.
    never_defers: bool,
    /// Whether a wait starts with busy polling.
    pub(crate) awake: Awake,
}

impl RoundTrip {
    pub(crate) fn new() -> Self {
        Self {
            time: 0,
            is_long: false,
            never_defers: !sockets_take_enough(),
            awake: Awake::of(BUSY_POLL_NS),
        }
    }

    /// Whether output is to be deferred.
    fn is_long(&self) -> bool {
        self.is_long
    }

    /// Whether the logger is near.
    pub(crate) fn is_short(&self) -> bool {
        self.time < NEAR_ROUND_TRIP_NS
    }

    /// A measurement, nanoseconds.
    pub(crate) fn took(&mut self, time: u64) {
        self.time = match self.time {
            0 => time,
            before => before - before / 8 + time / 8,
        };
        self.is_long = match self.is_long {
            true => self.time >= FAR_ROUND_TRIP_NS / 2,
            false => self.time >= FAR_ROUND_TRIP_NS,
        };
    }
}

/// State of the wait for the logger, while output is deferred.
pub(crate) struct CommitWait {
    /// Time of the last news from the logger, nanoseconds.
    since: u64,
    /// Wait before determinants are sent again, microseconds.
    patience: i64,
    /// Stable position that ends the running measurement, and its start; 0: no measurement.
    probe: u64,
    probed_at: u64,
    /// Generation of the logger that has all earlier determinants of other processes.
    confirmed_by: u32,
    /// Writes of this loop iteration, time of the last write, and whether the iteration before had more than one.
    writes_in_iteration: u32,
    written_at: u64,
    has_many_writes: bool,
}

impl Default for CommitWait {
    fn default() -> Self {
        Self {
            since: 0,
            patience: REPLY_TIMEOUT_MIN_US,
            probe: 0,
            probed_at: 0,
            confirmed_by: 0,
            writes_in_iteration: 0,
            written_at: 0,
            has_many_writes: false,
        }
    }
}

impl CommitWait {
    /// Counts a write. Returns whether the write follows the last write closely, or more writes are likely in this
    /// iteration.
    fn is_likely_followed(&mut self) -> bool {
        let now = clock::monotonic();
        let follows =
            self.writes_in_iteration > 0 && now.saturating_sub(self.written_at) < DEFER_MAX_NS;
        let is_likely = self.writes_in_iteration == 0 && self.has_many_writes;
        self.writes_in_iteration = self.writes_in_iteration.saturating_add(1);
        self.written_at = now;
        follows || is_likely
    }
}

impl Wrap {
    /// Defers a write. `false`: the write is to be made now. Such a write waits for its own determinant, so several
    /// writes of one iteration are deferred.
    pub(crate) fn defer(&mut self, fd: c_int, pieces: &[iovec], flags: c_int) -> bool {
        if !self.requires_commit() {
            return false;
        }
        let length = total(pieces);
        let plain = flags & !(MSG_DONTWAIT | MSG_NOSIGNAL) == 0;
        let is_better = self.commit_wait.is_likely_followed() || self.round_trip.is_long();
        if !is_better || self.round_trip.never_defers || !plain || length == 0 {
            return false;
        }
        if !self.others_are_stable() || !self.fits_socket(fd, length, flags) {
            return false;
        }
        let Some(room) = self.deferred.push(fd, self.stream.position(), length) else {
            return false;
        };
        // SAFETY: the program passed the pieces for writing.
        unsafe { gather(pieces, room) };
        if let Some(connection) = self.descriptors.connection(fd) {
            connection.budget.reserve(length);
        }
        self.stream.record_output();
        if self.round_trip.is_long() {
            self.send_early();
        }
        true
    }

    /// Sends determinants before the end of the iteration, if the logger has acknowledged all earlier ones.
    fn send_early(&mut self) {
        let before = self.sent_position();
        if before <= self.stable() && self.connect_logger() && self.send_new() {
            self.on_sent(before, clock::monotonic());
        }
    }

    /// Whether the determinants of all other processes are stable: deferred output may depend on them, and only this
    /// process's stream is tracked.
    pub(crate) fn others_are_stable(&mut self) -> bool {
        let logger = self.page.destination.generation();
        let mut all = self.processes();
        let are_stable = all.all(|(number, process)| number == self.process || is_stable(process));
        if are_stable {
            self.commit_wait.confirmed_by = logger;
        }
        are_stable
    }

    /// As [`Self::others_are_stable`], at a later time: a new logger does not have the determinants of the logger
    /// before.
    fn others_are_still_stable(&mut self) -> bool {
        self.commit_wait.confirmed_by == self.page.destination.generation()
            || self.others_are_stable()
    }

    /// In a child: deferred output and its wait are the parent's.
    pub(crate) fn reset_deferred(&mut self) {
        while !self.deferred.is_empty() {
            self.deferred.pop();
        }
        for connection in self.descriptors.connections_mut() {
            connection.budget = SocketBudget::NONE;
        }
        self.commit_wait = CommitWait::default();
        self.forget_reads();
    }

    /// Whether the kernel certainly takes this many bytes of the connection, now and later.
    fn fits_socket(&mut self, fd: c_int, length: usize, flags: c_int) -> bool {
        let Some(connection) = self.descriptors.connection(fd) else {
            return false;
        };
        if flags & MSG_DONTWAIT == 0 && !connection.is_nonblocking {
            connection.is_nonblocking = is_nonblocking(fd);
            if !connection.is_nonblocking {
                return false;
            }
            connection.is_limited |= is_limited(fd);
        }
        // The kernel counts the bytes of an upstream connection, so the bytes must be in the socket before the next
        // record.
        if connection.is_outgoing() {
            return false;
        }
        let others_write = connection.is_shared || connection.is_inherited || connection.is_taken;
        let (written, free) = (connection.outstream, || free_in(fd));
        let takes = !connection.is_limited && !connection.is_shut;
        takes && connection.budget.fits(length, written, others_write, free)
    }

    /// The program may change whether the descriptor blocks.
    pub(crate) fn may_block(&mut self, fd: c_int) {
        if let Some(connection) = self.descriptors.connection(fd) {
            connection.is_nonblocking = false; // asked again at the next write
        }
    }

    /// A loop iteration begins. Waits for a near logger.
    #[inline]
    pub(crate) fn begin_iteration(&mut self) {
        self.commit_wait.has_many_writes = self.commit_wait.writes_in_iteration > 1;
        self.commit_wait.writes_in_iteration = 0;
        if self.requires_commit() {
            self.page.commits.count_iteration();
        }
        if !self.round_trip.is_long() {
            self.before_sleep();
        }
    }

    /// Publishes stable reads, and sends stable output.
    pub(crate) fn release_deferred(&mut self) {
        self.publish_reads();
        if self.deferred.is_empty() {
            return;
        }
        let stable = match self.requires_commit() {
            false => u64::MAX,
            true if self.others_are_still_stable() => self.stable(),
            true => return,
        };
        while let Some((fd, bytes)) = self.deferred.first(stable) {
            write_through(fd, bytes);
            let length = bytes.len();
            self.deferred.pop();
            if let Some(connection) = self.descriptors.connection(fd) {
                connection.budget.release(length);
            }
        }
    }

    /// Before a sleep in which the shim does not receive from the logger.
    #[inline]
    pub(crate) fn before_sleep(&mut self) {
        if self.awaits_logger() {
            self.await_stable();
        }
    }

    /// Whether output, or an acknowledgement to a client, waits for the logger.
    #[inline]
    pub(crate) fn awaits_logger(&self) -> bool {
        !self.deferred.is_empty() || self.owes_cursors()
    }

    /// As [`Self::before_sleep`], before a read that may sleep. A program that does not sleep may poll.
    #[inline]
    pub(crate) fn before_reading(&mut self, fd: c_int, flags: c_int) {
        let holds_nothing = self.deferred.is_empty();
        if holds_nothing && !self.owes_cursors_of_few() {
            return;
        }
        let known = self.descriptors.connection(fd);
        let is_nonblocking =
            flags & MSG_DONTWAIT != 0 || known.is_some_and(|connection| connection.is_nonblocking);
        let sleeps = !is_nonblocking && !is_ready(fd, POLLIN) && !sockets::is_nonblocking(fd);
        if sleeps {
            self.await_stable();
        } else if !holds_nothing {
            self.release_late();
        }
    }

    /// As [`Self::before_sleep`], before a write that may sleep, or end the process.
    #[inline]
    pub(crate) fn before_writing(&mut self, fd: c_int) {
        if !self.deferred.is_empty() && (!is_ready(fd, POLLOUT) || is_ready(fd, POLLERR)) {
            self.await_stable();
        }
    }

    /// Sends output that is deferred for long.
    fn release_late(&mut self) {
        let now = clock::monotonic();
        if now.saturating_sub(self.commit_wait.written_at) < DEFER_MAX_NS {
        } else if self.round_trip.is_long() {
            self.exchange_determinants(now);
        } else {
            self.await_stable();
        }
    }

    /// `epoll_pwait` with these arguments, while output is deferred.
    pub(crate) fn epoll_wait_and_release(&mut self, arguments: [usize; 6]) -> Outcome {
        let [epoll, events, most, timeout, mask, size] = arguments;
        let at_once = [epoll, events, most, 0, mask, size];
        let timeout = i64::from(timeout as c_int);
        let began = clock::monotonic();
        loop {
            let listens = self.exchange_determinants(clock::monotonic());
            // SAFETY: as the program has called us.
            let outcome = unsafe { blocking(libc::SYS_epoll_pwait, at_once) };
            let passed = clock::monotonic().saturating_sub(began) / 1000;
            // Microseconds; less than none: for ever.
            let left = match timeout {
                ..0 => -1,
                _ => (timeout * 1000 - passed.cast_signed()).max(0),
            };
            if outcome != 0 || left == 0 {
                return outcome;
            }
            if !self.awaits_logger() {
                let left = if left < 0 { -1 } else { (left + 999) / 1000 };
                let arguments = [epoll, events, most, left as usize, mask, size];
                // SAFETY: as the program has called us.
                return unsafe { blocking(libc::SYS_epoll_pwait, arguments) };
            }
            let patience = self.commit_wait.patience;
            let left = if left < 0 {
                patience
            } else {
                left.min(patience)
            };
            let logger = if listens { LOGGER_SOCKET_FD } else { -1 };
            let interrupted = -Outcome::from(EINTR);
            if sleep([epoll as c_int, logger], left, mask) == interrupted {
                return interrupted;
            }
        }
    }

    /// Before a poll with this timeout.
    ///
    /// # Safety
    /// As `ppoll(2)`.
    #[inline]
    pub(crate) unsafe fn before_polling(&mut self, timeout: *const timespec) {
        // SAFETY: by the caller.
        let sleeps = unsafe { timeout.as_ref() }
            .is_none_or(|timeout| timeout.tv_sec > 0 || timeout.tv_nsec > 0);
        if sleeps {
            self.before_sleep();
        } else if self.awaits_logger() {
            self.exchange_determinants(clock::monotonic());
        }
    }

    /// Sends new determinants, receives acknowledgements, and sends stable output. `false`: no logger.
    fn exchange_determinants(&mut self, now: u64) -> bool {
        let has_way = self.connect_logger();
        if has_way {
            let before = self.sent_position();
            if self.send_new() {
                self.on_sent(before, now);
            }
            self.receive_acks(now);
            self.resend(now);
        }
        self.release_deferred();
        has_way
    }

    /// More determinants are under way than before.
    fn on_sent(&mut self, before: u64, now: u64) {
        let (stable, shipped) = (self.stable(), self.sent_position());
        let waiting = &mut self.commit_wait;
        if before <= stable {
            (waiting.since, waiting.patience) = (now, REPLY_TIMEOUT_MIN_US);
        }
        if waiting.probe == 0 {
            (waiting.probe, waiting.probed_at) = (shipped, now);
        }
    }

    /// Sends determinants again after the timeout.
    fn resend(&mut self, now: u64) {
        let passed = now.saturating_sub(self.commit_wait.since) / 1000;
        if passed <= self.commit_wait.patience.unsigned_abs() {
            return;
        }
        self.send_determinants();
        self.commit_wait = CommitWait {
            since: now,
            patience: (self.commit_wait.patience * 2).min(REPLY_TIMEOUT_MAX_US),
            probe: 0,
            probed_at: 0,
            ..self.commit_wait
        };
    }

    fn receive_acks(&mut self, now: u64) {
        loop {
            match self.receive_now() {
                LoggerReply::Progress => {
                    (self.commit_wait.since, self.commit_wait.patience) =
                        (now, REPLY_TIMEOUT_MIN_US);
                }
                LoggerReply::Full => self.is_over(),
                LoggerReply::Ignored => {}
                LoggerReply::TimedOut | LoggerReply::Unreachable => break,
            }
        }
        if self.commit_wait.probe != 0 && self.stable() >= self.commit_wait.probe {
            let took = now.saturating_sub(self.commit_wait.probed_at);
            self.round_trip.took(took);
            self.commit_wait.probe = 0;
        }
    }
}
