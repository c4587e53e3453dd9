//! The processes of a service: each has a stream of its own, which its parent's record names.
//!
//! A child is known by the number of its stream, which is noted before it is begun. In a replay those are begun again
//! that have clients, or have children that do, and are not done with them; the others' ends and what they told are in
//! the records of those who heard of it. One may go on with a connection where another one has let it go. What two
//! processes would have to decide together is refused: two that serve one connection at once, and one with clients
//! that talks to the first one, or to another program, by pipes ([`crate::ipc_replay`]).

use core::sync::atomic::Ordering;

use libc::{AF_INET, AF_INET6, O_CLOEXEC, SOCK_CLOEXEC, SOCK_DGRAM, c_int, pid_t};
use north_abi::{
    Call, Record,
    layout::{Failure, Fate, Hold, LOGGER_SOCKET_FD, Mode, Process},
};

use crate::{
    calls::{clocks, other_threads, refuse, writing::Unrecorded},
    children::Children,
    closing,
    descriptors::hidden,
    determinant_sender::DeterminantSender,
    helpers, live,
    messages::say,
    process_group::Kinship,
    signals,
    stream::Stream,
    sys::sys,
    wrap::{Wrap, exit},
};

/// No process of the kernel's has this number, or a higher one (`PID_MAX_LIMIT`).
const NO_PROCESS: pid_t = 1 << 22;

/// A child that is about to be begun.
pub(crate) struct Birth {
    /// The number of its stream.
    number: u32,
    /// It is begun in a replay.
    is_again: bool,
    /// Its way to the logger; -1: there is none. It may have a network of its own, where none would be.
    way: c_int,
}

impl Birth {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn is_again(&self) -> bool {
        self.is_again
    }

    /// It is the child's alone.
    fn lets_way_go(&self) {
        if self.way >= 0 {
            // SAFETY: it is ours.
            unsafe { sys!(SYS_close, self.way) };
        }
    }
}

impl Wrap {
    /// A child is to be begun. `None`: there can be none that is followed.
    pub(crate) fn conceive(&mut self) -> Option<Birth> {
        if self.is_off() {
            return None;
        }
        let again = self.replayed(Call::Fork, 0, |record| record.outcome);
        let number = match again {
            Some(number) => self.last_number(number),
            None => self.new_stream(),
        };
        let number = number?;
        self.claim_all();
        self.descriptors.are_shared();
        Some(Birth {
            number,
            is_again: again.is_some(),
            way: self.new_way(),
        })
    }

    /// A child that was begun anew after a replay has another number.
    fn last_number(&mut self, mut number: i64) -> Option<u32> {
        while let Some(Ok((record, length))) = self.stream.peek()
            && (record.call, record.fd) == (Call::Fork, 0)
        {
            number = record.outcome;
            self.advance(length);
        }
        u32::try_from(number).ok()
    }

    fn new_stream(&mut self) -> Option<u32> {
        let number = self.new_number()?;
        self.record(&Record {
            call: Call::Fork,
            fd: 0,
            outcome: number.into(),
            payload: &[],
        });
        Some(number)
    }

    fn new_number(&mut self) -> Option<u32> {
        let number = self.page.next_process.fetch_add(1, Ordering::AcqRel);
        if self.page.processes.0.get(number as usize).is_none() {
            self.page.next_process.fetch_sub(1, Ordering::AcqRel);
            say(&[b"too many processes: recording has stopped"]);
            self.end_record(Mode::Crowded);
            return None;
        }
        Some(number)
    }

    /// Is this child to be begun, now or again?
    fn is_begun(&self, birth: &Birth) -> bool {
        !birth.is_again || self.kin(birth).is_begun.load(Ordering::Acquire) != 0
    }

    /// The same, and if it is, others wait for it from here on.
    pub(crate) fn begins(&self, birth: &Birth) -> bool {
        let is_begun = self.is_begun(birth);
        if is_begun && birth.is_again {
            self.kin(birth).set(Fate::Replays);
        }
        is_begun
    }

    fn kin(&self, birth: &Birth) -> &'static Process {
        &self.page.processes.0[birth.number as usize]
    }

    /// What the dead life could do, this one cannot: begin the child.
    pub(crate) fn is_childless(&mut self) -> ! {
        self.fail(Failure::NotSupported, Call::Fork, Some(Call::Fork))
    }

    /// The parent goes on; the child, if there is one, has this process id. What the program is told; `None`: the dead
    /// life had not come so far, and the child is to be begun now.
    pub(crate) fn parented(&mut self, birth: &mut Birth, real: i64) -> Option<i64> {
        // An earlier replay has begun another one in its place, after a signal.
        if birth.is_again
            && real == 0
            && let Some(Ok((record, _))) = self.stream.peek()
            && (record.call, record.fd) == (Call::Fork, 0)
        {
            birth.number = self.last_number(0)?;
            return None;
        }
        let fd = birth.number.cast_signed();
        let mut told = self.replayed(Call::Fork, fd, |record| record.outcome);
        if told.is_none() {
            let first = self.kin(birth).pid.load(Ordering::Acquire);
            if birth.is_again && real == 0 {
                // If the dead life had begun it, nobody knows of that.
                birth.is_again = false;
                birth.number = self.new_stream()?;
                return None;
            }
            // In a namespace of its own it knows itself by another number.
            let is_known = birth.is_again && first > 1;
            let outcome = match is_known {
                true => first.into(),
                false => self.name(birth, real),
            };
            self.record(&Record {
                call: Call::Fork,
                fd: birth.number,
                outcome,
                payload: &[],
            });
            told = Some(outcome);
        }
        let outcome = told?;
        birth.lets_way_go();
        let begun = if self.is_begun(birth) { real } else { 0 };
        if outcome > 0
            && !self
                .children
                .add(outcome as pid_t, begun as pid_t, birth.number)
        {
            refuse(&[b"the server has too many children"]);
        }
        Some(outcome)
    }

    /// What this process is to know a new child by, which the kernel knows by `real`: by the same number, unless it
    /// knows itself or another child by it, which had it in an earlier life. Number 1 is the first one's of any
    /// namespace.
    fn name(&self, birth: &Birth, real: i64) -> i64 {
        let number = real as pid_t;
        let is_taken = number > 1 && (number == self.pid || self.children.has(number));
        if is_taken {
            i64::from(NO_PROCESS) + i64::from(birth.number)
        } else {
            real
        }
    }

    /// Its parent, as it knows it, whose end only the end of the service is, unless it has left by itself.
    pub(crate) fn parent(&self, now: pid_t) -> pid_t {
        let Some([then, real]) = self.kinship.parent else {
            return now;
        };
        let own = &self.page.processes.0[self.process as usize];
        let parent = own.parent.load(Ordering::Acquire) as usize;
        let has_left = self.page.processes.0[parent].has(Fate::Ends);
        if now == real || !has_left { then } else { now }
    }

    /// A child has died of its client, which is not begun again.
    pub(crate) fn is_orphaned(&self, known: pid_t) {
        if let Some(number) = self.children.number(known) {
            self.page.processes.0[number as usize].set(Fate::Executes);
        }
    }

    /// This child is not begun again. Its end is the service's, whose next life is without it.
    #[cold]
    pub(crate) fn is_given_up(&self) -> ! {
        say(&[b"a child with unfinished work cannot go on and is not started again"]);
        self.page.processes.0[self.process as usize].set(Fate::Gone);
        exit();
    }

    /// How the parent, whose record this still is, knows a child that is begun again.
    fn known_as(&mut self, birth: &Birth) -> Option<i64> {
        match self.stream.peek()? {
            Ok((record, _)) if birth.is_again && record.call == Call::Fork => {
                (record.fd == birth.number && record.outcome > 0).then_some(record.outcome)
            }
            _ => None,
        }
    }

    /// What a child told that is begun again is not what it had told.
    #[cold]
    pub(crate) fn kin_contradicts(&self) -> ! {
        for (number, process) in self.all_processes() {
            if number != 0 && process.has(Fate::Talks) {
                process.set(Fate::Gone);
            }
        }
        say(&[b"a child with unfinished work says something else and is not started again"]);
        // Not an end that it has chosen.
        // SAFETY: no memory is involved.
        unsafe { sys!(SYS_kill, sys!(SYS_getpid), libc::SIGKILL) };
        exit();
    }

    /// This process is the child.
    pub(crate) fn become_child(&mut self, birth: &Birth) {
        let entry = self.kin(birth);
        let parent = (self.process, self.pid);
        let known = self.known_as(birth);
        // SAFETY: no memory is involved.
        let (own, now) = unsafe { (sys!(SYS_getpid), sys!(SYS_getppid)) };
        let name = known.unwrap_or_else(|| self.name(birth, own));
        self.process = birth.number;
        self.lives();
        self.stream = Stream::new(self.page, entry, birth.number);
        // One that is begun again may have had no time to note anything.
        self.is_replay = birth.is_again;
        self.reset_deferred();
        self.let_go_of_listeners();
        self.unrecorded = Unrecorded::default();
        self.rests = Unrecorded::default();
        self.children = Children::default();
        self.may_have_opened = false;
        self.kinship = Kinship {
            parent: None,
            serves: false,
            talks: false,
            confers: 0,
            has_ways: false,
            holds: false,
            ..self.kinship
        };
        self.forget_rest();
        self.inherits_locks();
        signals::forget();
        closing::forget();
        other_threads::forget();
        helpers::forget();
        clocks::forget();
        let mut holds = false;
        for connection in self.descriptors.connections_mut() {
            holds |= !(connection.is_served || connection.is_outgoing());
            (connection.is_served, connection.is_inherited) = (false, true);
        }
        self.descriptors.are_watched_by_parent();
        self.takes_way(birth);
        self.kinship.parent = Some([parent.1, now as pid_t]);
        self.pid_now = own as pid_t;
        entry.parent.store(parent.0, Ordering::Release);
        let began = self.replayed(Call::Start, 0, |record| record.outcome);
        if began.is_none() {
            self.record(&Record {
                call: Call::Start,
                fd: 0,
                outcome: name,
                payload: &parent.0.to_le_bytes(),
            });
        }
        self.pid = began.unwrap_or(name) as pid_t;
        entry.pid.store(self.pid, Ordering::Release);
        self.kinship.holds = holds;
        if holds {
            self.befalls(Fate::Holds, &[]);
        }
        if self.kinship.shares_memory {
            self.befalls(Fate::Shares, &[]);
        }
    }

    /// What the logger answers to a process nobody else is to hear.
    fn new_way(&self) -> c_int {
        if self.page.hold.load(Ordering::Relaxed) == Hold::Never as u32 {
            return -1;
        }
        for family in [AF_INET6, AF_INET] {
            // SAFETY: a new socket.
            let socket = unsafe { sys!(SYS_socket, family, SOCK_DGRAM | SOCK_CLOEXEC, 0) };
            if socket < 0 {
                continue;
            }
            let socket = socket as c_int;
            // Where there is no room for it, it is not ours to take from the program: the child looks for itself.
            let way = hidden(socket);
            // SAFETY: it is ours.
            unsafe { sys!(SYS_close, socket) };
            return way.unwrap_or(-1);
        }
        -1
    }

    fn takes_way(&mut self, birth: &Birth) {
        self.sender = DeterminantSender::default();
        if self.page.hold.load(Ordering::Relaxed) == Hold::Never as u32 {
            return;
        }
        if birth.way < 0 {
            return self.find_own_way();
        }
        // SAFETY: both are ours.
        unsafe { sys!(SYS_dup3, birth.way, LOGGER_SOCKET_FD, O_CLOEXEC) };
        birth.lets_way_go();
    }

    fn find_own_way(&self) {
        for family in [AF_INET6, AF_INET] {
            // SAFETY: a new socket, which is ours.
            let has_way = unsafe {
                let socket = sys!(SYS_socket, family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
                socket >= 0 && {
                    sys!(SYS_dup3, socket, LOGGER_SOCKET_FD, O_CLOEXEC);
                    sys!(SYS_close, socket);
                    true
                }
            };
            if has_way {
                return;
            }
        }
        refuse(&[b"a child has no way to the logger"]);
    }

    /// A number for a connection.
    pub(crate) fn new_connection(&self) -> u32 {
        self.page.next_connection.fetch_add(1, Ordering::Relaxed)
    }

    /// This becomes of the process. Is it so in a replay, too?
    pub(crate) fn befalls(&mut self, fate: Fate, payload: &[u8]) -> bool {
        let replayed = self.replayed(Call::Fate, 0, |record| record.outcome == fate as i64);
        match replayed {
            // Those who go on see then that it has left.
            Some(true) if fate == Fate::Ends => {
                self.page.processes.0[self.process as usize].set(fate);
            }
            Some(true) => {}
            Some(false) => self.fail(Failure::OtherCall, Call::Fate, Some(Call::Fate)),
            None => {
                let own = &self.page.processes.0[self.process as usize];
                // Who is seen to have ended has recorded that; of anything else the next life is to know in any case.
                if fate == Fate::Confers {
                    own.confers(self.kinship.confers);
                } else if fate != Fate::Ends {
                    own.set(fate);
                }
                self.record(&Record {
                    call: Call::Fate,
                    fd: 0,
                    outcome: fate as i64,
                    payload,
                });
                own.set(fate);
            }
        }
        replayed.is_some()
    }

    /// The process ends here: what the kernel closes then, clients hear of.
    pub(crate) fn ends(&mut self) {
        if !self.is_replay {
            self.commit();
        }
        if self.process == 0 {
            return;
        }
        let own = &self.page.processes.0[self.process as usize];
        let is_again = self.befalls(Fate::Ends, &[]);
        if !self.locks.all().is_empty() && !is_again {
            self.commit(); // who has them next may note that at once
        }
        self.lets_all_go();
        self.leaves_passed();
        if !is_again {
            self.lets_opened_go();
            return;
        }
        self.has_said_all();
        own.unset(Fate::Replays); // who receives from it may wait for that
        for (_, connection) in self.descriptors.connections() {
            if connection.is_touched() && connection.received <= connection.outstream {
                live::stands(self.process, connection, true);
            }
        }
        self.await_receivers();
        live::ended(self);
    }

    /// The process becomes another program, or stays what it is after all.
    pub(crate) fn executes(&mut self) {
        if self.process == 0 && !self.is_off() {
            refuse(&[
                b"the server executes another program: give that program to serve, without the wrapper",
            ]);
        }
        self.before_sleep(); // what is held would go with it
        let own = self.process;
        for (fd, maker) in self.descriptors.makers() {
            // SAFETY: no memory is involved.
            let flags = unsafe { sys!(SYS_fcntl, fd, libc::F_GETFD) };
            if maker == own || flags & i64::from(libc::FD_CLOEXEC) != 0 {
                continue;
            }
            // What the other program says there nobody could say again.
            let its = &self.page.processes.0[maker as usize];
            its.set(Fate::Talks);
            if its.has(Fate::Serves) {
                self.kinship.serves = true;
                self.kinship.talks = true;
                self.look_at_kinship();
            }
        }
        if self.process != 0 {
            self.befalls(Fate::Executes, &[]);
        }
    }
}
