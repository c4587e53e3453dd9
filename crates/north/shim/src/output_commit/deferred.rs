//! Output that leaves later (*output commit*; `ft-tcp-infocom-2001`, IV.D): the logger is told once of all that is
//! said in a turn of the event loop, and where it is far, the program is not made to wait for it.
//!
//! What it writes is taken for written and kept ([`Held`]). What it has recorded is sent to the logger when its event
//! loop comes to wait. A logger that is near is waited for then; where it is far, we listen to it, too, while the
//! program waits: what is safe by then leaves. If the
//! process dies first, what was not said is said by its next life: the record has the write's causes.
//!
//! That is for writes that the kernel would have taken whole and at once. For any other, for the end of a connection,
//! and before the program sleeps anywhere but in its event loop, all that is held is waited for.

mod sockets;

use core::cell::UnsafeCell;

use libc::{EINTR, MSG_DONTWAIT, MSG_NOSIGNAL, POLLERR, POLLIN, POLLOUT, c_int, iovec, timespec};
use north_abi::{Held, Room, layout::SHIPPING_FD};
use protocol::awake::Awake;

use self::sockets::{
    free_in, is_limited, is_nonblocking, sleep, sockets_take_enough, write_through,
};
use crate::{
    calls::reading::{gather, is_ready, total},
    clock,
    determinant_sender::Heard,
    output_commit::barrier::{FIRST_PATIENCE, LONGEST_PATIENCE, is_stable},
    signals::blocking,
    sys::Outcome,
    wrap::Wrap,
};

/// From this round trip to the logger on the program does not wait for it, nanoseconds; below half of it, it does
/// again.
const FAR: u64 = 100_000;
/// Up to this one it waits without sleeping at first, nanoseconds; for so long: to be woken takes longer than most
/// answers do.
const NEAR: u64 = 150_000;
const AWAKE: u64 = 50_000;
/// For so long after a word the next one belongs to it, nanoseconds; and what is held for longer leaves, near the
/// logger, whatever the program is about to do that we see.
const LATE: u64 = 1_000_000;

struct Static(UnsafeCell<Held>);
// SAFETY: only the process's first thread refers to it (`crate::wrap::with`).
unsafe impl Sync for Static {}

static HELD: Static = Static(UnsafeCell::new(Held::EMPTY));

/// What is held.
///
/// # Safety
/// Once, by the process's first thread.
pub(crate) unsafe fn held() -> &'static mut Held {
    // SAFETY: by the caller.
    unsafe { &mut *HELD.0.get() }
}

/// How long the logger takes to answer.
pub(crate) struct RoundTrip {
    /// Smoothed, nanoseconds; 0: it was never measured.
    time: u64,
    is_long: bool,
    /// Nothing is held on this host.
    is_irrelevant: bool,
    /// Whether the answer is waited for without sleeping.
    pub(crate) awake: Awake,
}

impl RoundTrip {
    pub(crate) fn new() -> Self {
        Self {
            time: 0,
            is_long: false,
            is_irrelevant: !sockets_take_enough(),
            awake: Awake::of(AWAKE),
        }
    }

    /// Is it better not to wait?
    fn is_long(&self) -> bool {
        self.is_long
    }

    /// Is it as long as that of a network within a room?
    pub(crate) fn is_short(&self) -> bool {
        self.time < NEAR
    }

    /// It has taken so long, nanoseconds.
    pub(crate) fn took(&mut self, time: u64) {
        self.time = match self.time {
            0 => time,
            before => before - before / 8 + time / 8,
        };
        self.is_long = match self.is_long {
            true => self.time >= FAR / 2,
            false => self.time >= FAR,
        };
    }
}

/// What is waited for, while something is held.
pub(crate) struct Waiting {
    /// Since when nothing new was heard, nanoseconds.
    since: u64,
    /// For how long before all is sent again, microseconds.
    patience: i64,
    /// The round trip is measured by when the logger has so much, which was sent then; 0: it is not.
    probe: u64,
    probed_at: u64,
    /// Which logger has all that other processes had recorded before what is held was said.
    confirmed_by: u32,
    /// How often something was said in this turn of the event loop, when the last time, and that it was more than once
    /// in the turn before.
    turn: u32,
    said_at: u64,
    is_talkative: bool,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            since: 0,
            patience: FIRST_PATIENCE,
            probe: 0,
            probed_at: 0,
            confirmed_by: 0,
            turn: 0,
            said_at: 0,
            is_talkative: false,
        }
    }
}

impl Waiting {
    /// Something is said. Is it likely that more follows in this turn, or does it follow already? Who pauses between
    /// two words is not in the middle of many.
    fn is_one_of_many(&mut self) -> bool {
        let now = clock::monotonic();
        let follows = self.turn > 0 && now.saturating_sub(self.said_at) < LATE;
        let is_likely = self.turn == 0 && self.is_talkative;
        self.turn = self.turn.saturating_add(1);
        self.said_at = now;
        follows || is_likely
    }
}

impl Wrap {
    /// Take this write for made, and have it leave later. `false`: it is to be made now. One that is made now waits by
    /// itself for its own note, so where there are several in a turn, they are better held.
    pub(crate) fn hold(&mut self, fd: c_int, pieces: &[iovec], flags: c_int) -> bool {
        if !self.has_to_hold() {
            return false;
        }
        let length = total(pieces);
        let plain = flags & !(MSG_DONTWAIT | MSG_NOSIGNAL) == 0;
        let is_better = self.waiting.is_one_of_many() || self.round_trip.is_long();
        if !is_better || self.round_trip.is_irrelevant || !plain || length == 0 {
            return false;
        }
        if !self.others_are_stable() || !self.has_room(fd, length, flags) {
            return false;
        }
        let Some(room) = self.held.push(fd, self.stream.position(), length) else {
            return false;
        };
        // SAFETY: the program has given them to be written.
        unsafe { gather(pieces, room) };
        if let Some(connection) = self.descriptors.connection(fd) {
            connection.room.hold(length);
        }
        self.stream.speaks();
        if self.round_trip.is_long() {
            self.tell_early();
        }
        true
    }

    /// The logger need not wait for the end of this turn, if it has nothing to do.
    fn tell_early(&mut self) {
        let before = self.shipped();
        if before <= self.stable() && self.find_the_way() && self.ship_news() {
            self.sent(before, clock::monotonic());
        }
    }

    /// What another process has recorded may have to do with it: only this one's record is followed here.
    pub(crate) fn others_are_stable(&mut self) -> bool {
        let logger = self.page.shipping.turn();
        let mut all = self.processes();
        let are_stable = all.all(|(number, process)| number == self.process || is_stable(process));
        if are_stable {
            self.waiting.confirmed_by = logger;
        }
        are_stable
    }

    /// Is it still so? Another logger does not have what the one before had.
    fn others_are_still_stable(&mut self) -> bool {
        self.waiting.confirmed_by == self.page.shipping.turn() || self.others_are_stable()
    }

    /// This process is a child: what is held is its parent's, and so is what that waits for.
    pub(crate) fn hold_nothing(&mut self) {
        while !self.held.is_empty() {
            self.held.pop();
        }
        for connection in self.descriptors.connections_mut() {
            connection.room = Room::NONE;
        }
        self.waiting = Waiting::default();
        self.notes_nothing();
    }

    /// Is it certain that the kernel takes so much of this connection, now and later?
    fn has_room(&mut self, fd: c_int, length: usize, flags: c_int) -> bool {
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
        // What has gone to another server is counted by the kernel, so it has to be there before more is recorded.
        if connection.is_outgoing() {
            return false;
        }
        let others_write = connection.is_shared || connection.is_inherited || connection.is_taken;
        let (written, free) = (connection.outstream, || free_in(fd));
        let takes = !connection.is_limited && !connection.is_shut;
        takes && connection.room.takes(length, written, others_write, free)
    }

    /// The program has said whether it does.
    pub(crate) fn may_block(&mut self, fd: c_int) {
        if let Some(connection) = self.descriptors.connection(fd) {
            connection.is_nonblocking = false; // it is asked for again
        }
    }

    /// The program is about to look what is next. A logger that is near is waited for.
    #[inline]
    pub(crate) fn turns(&mut self) {
        self.waiting.is_talkative = self.waiting.turn > 1;
        self.waiting.turn = 0;
        if self.has_to_hold() {
            self.page.commits.turns();
        }
        if !self.round_trip.is_long() {
            self.before_sleep();
        }
    }

    /// Say what is noted by now, and write what may leave.
    pub(crate) fn release(&mut self) {
        self.note_reads();
        if self.held.is_empty() {
            return;
        }
        let stable = match self.has_to_hold() {
            false => u64::MAX,
            true if self.others_are_still_stable() => self.stable(),
            true => return,
        };
        while let Some((fd, bytes)) = self.held.first(stable) {
            write_through(fd, bytes);
            let length = bytes.len();
            self.held.pop();
            if let Some(connection) = self.descriptors.connection(fd) {
                connection.room.leaves(length);
            }
        }
    }

    /// The program is about to sleep where we do not listen to the logger.
    #[inline]
    pub(crate) fn before_sleep(&mut self) {
        if self.has_business() {
            self.await_stable();
        }
    }

    /// Does anything wait for the logger?
    #[inline]
    pub(crate) fn has_business(&self) -> bool {
        !self.held.is_empty() || self.owes_notes()
    }

    /// The same if it sleeps for lack of what this descriptor brings. One that does not sleep may be asking again and
    /// again.
    #[inline]
    pub(crate) fn before_reading(&mut self, fd: c_int, flags: c_int) {
        let holds_nothing = self.held.is_empty();
        if holds_nothing && !self.owes_notes_of_few() {
            return;
        }
        let known = self.descriptors.connection(fd);
        let is_nonblocking =
            flags & MSG_DONTWAIT != 0 || known.is_some_and(|connection| connection.is_nonblocking);
        let sleeps = !is_nonblocking && !is_ready(fd, POLLIN) && !sockets::is_nonblocking(fd);
        if sleeps {
            self.await_stable();
        } else if !holds_nothing {
            self.hurry();
        }
    }

    /// The same before it writes where it may sleep, or be ended.
    #[inline]
    pub(crate) fn before_writing(&mut self, fd: c_int) {
        if !self.held.is_empty() && (!is_ready(fd, POLLOUT) || is_ready(fd, POLLERR)) {
            self.await_stable();
        }
    }

    /// What was held for long leaves.
    fn hurry(&mut self) {
        let now = clock::monotonic();
        if now.saturating_sub(self.waiting.said_at) < LATE {
        } else if self.round_trip.is_long() {
            self.tell_and_hear(now);
        } else {
            self.await_stable();
        }
    }

    /// `epoll_pwait` with these arguments while something is held.
    pub(crate) fn wait_and_release(&mut self, arguments: [usize; 6]) -> Outcome {
        let [epoll, events, most, timeout, mask, size] = arguments;
        let at_once = [epoll, events, most, 0, mask, size];
        let timeout = i64::from(timeout as c_int);
        let began = clock::monotonic();
        loop {
            let listens = self.tell_and_hear(clock::monotonic());
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
            if !self.has_business() {
                let left = if left < 0 { -1 } else { (left + 999) / 1000 };
                let arguments = [epoll, events, most, left as usize, mask, size];
                // SAFETY: as the program has called us.
                return unsafe { blocking(libc::SYS_epoll_pwait, arguments) };
            }
            let patience = self.waiting.patience;
            let left = if left < 0 {
                patience
            } else {
                left.min(patience)
            };
            let logger = if listens { SHIPPING_FD } else { -1 };
            let interrupted = -Outcome::from(EINTR);
            if sleep([epoll as c_int, logger], left, mask) == interrupted {
                return interrupted;
            }
        }
    }

    /// The program is about to ask what is ready, and to sleep for so long if nothing is.
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
        } else if self.has_business() {
            self.tell_and_hear(clock::monotonic());
        }
    }

    /// Send what was recorded, and let go what the logger says is safe. `false`: there is none to listen to now.
    fn tell_and_hear(&mut self, now: u64) -> bool {
        let has_way = self.find_the_way();
        if has_way {
            let before = self.shipped();
            if self.ship_news() {
                self.sent(before, now);
            }
            self.hear_news(now);
            self.send_again(now);
        }
        self.release();
        has_way
    }

    /// More than was sent before is under way.
    fn sent(&mut self, before: u64, now: u64) {
        let (stable, shipped) = (self.stable(), self.shipped());
        let waiting = &mut self.waiting;
        if before <= stable {
            (waiting.since, waiting.patience) = (now, FIRST_PATIENCE);
        }
        if waiting.probe == 0 {
            (waiting.probe, waiting.probed_at) = (shipped, now);
        }
    }

    /// What has not arrived for so long was lost.
    fn send_again(&mut self, now: u64) {
        let passed = now.saturating_sub(self.waiting.since) / 1000;
        if passed <= self.waiting.patience.unsigned_abs() {
            return;
        }
        self.ship();
        self.waiting = Waiting {
            since: now,
            patience: (self.waiting.patience * 2).min(LONGEST_PATIENCE),
            probe: 0,
            probed_at: 0,
            ..self.waiting
        };
    }

    fn hear_news(&mut self, now: u64) {
        loop {
            match self.hear_now() {
                Heard::News => {
                    (self.waiting.since, self.waiting.patience) = (now, FIRST_PATIENCE);
                }
                Heard::Over => self.is_over(),
                Heard::Nothing => {}
                Heard::Silence | Heard::Nobody => break,
            }
        }
        if self.waiting.probe != 0 && self.stable() >= self.waiting.probe {
            let took = now.saturating_sub(self.waiting.probed_at);
            self.round_trip.took(took);
            self.waiting.probe = 0;
        }
    }
}
