//! The processes of a service. Each has a stream of its own, whose number is in the parent's record.
//!
//! The number of a child's stream is recorded before the fork. A replay starts the children that have clients, or whose
//! children have clients, and have not finished. The ends and the output of all other children are in the records of
//! the processes that received them. A process may continue a connection that another process has given up. Decisions
//! of two processes together are refused: two processes that serve one connection at once, and a child with clients
//! that uses pipes to the main process or to another program ([`crate::ipc_replay`]).

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
    process_group::ProcessGroup,
    signals,
    stream::Stream,
    sys::sys,
    wrap::{Wrap, exit},
};

/// First number that no process of the kernel has.
const PID_MAX_LIMIT: pid_t = 1 << 22;

/// A child that is about to be forked.
pub(crate) struct PendingFork {
    /// Number of the child's stream.
    number: u32,
    /// The fork is in the record.
    is_replayed: bool,
    /// The child's socket to the logger; -1: none. Opened before the fork, because the child may enter its own
    /// network namespace.
    logger_socket: c_int,
}

impl PendingFork {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn is_replayed(&self) -> bool {
        self.is_replayed
    }

    /// In the parent: the socket is the child's.
    fn close_logger_socket(&self) {
        if self.logger_socket >= 0 {
            // SAFETY: the descriptor is ours.
            unsafe { sys!(SYS_close, self.logger_socket) };
        }
    }
}

impl Wrap {
    /// Before a fork. `None`: the child cannot be recorded.
    pub(crate) fn fork_prepare(&mut self) -> Option<PendingFork> {
        if self.is_off() {
            return None;
        }
        let again = self.replayed(Call::Fork, 0, |record| record.outcome);
        let number = match again {
            Some(number) => self.last_fork_number(number),
            None => self.new_stream(),
        };
        let number = number?;
        self.claim_all();
        self.descriptors.are_shared();
        Some(PendingFork {
            number,
            is_replayed: again.is_some(),
            logger_socket: self.new_logger_socket(),
        })
    }

    /// A child that was forked again after a replay has another number: the last number counts.
    fn last_fork_number(&mut self, mut number: i64) -> Option<u32> {
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

    /// Whether this child is to be forked, for the first time or in a replay.
    fn is_begun(&self, fork: &PendingFork) -> bool {
        !fork.is_replayed || self.fork_entry(fork).is_begun.load(Ordering::Acquire) != 0
    }

    /// As [`Self::is_begun`]. From here on other processes wait for the replay of the child.
    pub(crate) fn begin_fork(&self, fork: &PendingFork) -> bool {
        let is_begun = self.is_begun(fork);
        if is_begun && fork.is_replayed {
            self.fork_entry(fork).set(Fate::Replays);
        }
        is_begun
    }

    fn fork_entry(&self, fork: &PendingFork) -> &'static Process {
        &self.page.processes.0[fork.number as usize]
    }

    /// The fork of the record fails in the replay.
    pub(crate) fn fail_fork(&mut self) -> ! {
        self.fail(Failure::NotSupported, Call::Fork, Some(Call::Fork))
    }

    /// After the fork, in the parent; `real` is the child's process id, or 0 without a child. Returns the outcome for
    /// the program. `None`: the dead incarnation had not forked, and the child is to be forked now.
    pub(crate) fn fork_parent(&mut self, fork: &mut PendingFork, real: i64) -> Option<i64> {
        // After a signal an earlier replay has started another child in place of this child.
        if fork.is_replayed
            && real == 0
            && let Some(Ok((record, _))) = self.stream.peek()
            && (record.call, record.fd) == (Call::Fork, 0)
        {
            fork.number = self.last_fork_number(0)?;
            return None;
        }
        let fd = fork.number.cast_signed();
        let mut told = self.replayed(Call::Fork, fd, |record| record.outcome);
        if told.is_none() {
            let first = self.fork_entry(fork).pid.load(Ordering::Acquire);
            if fork.is_replayed && real == 0 {
                // No process has a determinant of the dead incarnation's child, if there was one.
                fork.is_replayed = false;
                fork.number = self.new_stream()?;
                return None;
            }
            // In its own PID namespace the child has another process id.
            let is_known = fork.is_replayed && first > 1;
            let outcome = match is_known {
                true => first.into(),
                false => self.name(fork, real),
            };
            self.record(&Record {
                call: Call::Fork,
                fd: fork.number,
                outcome,
                payload: &[],
            });
            told = Some(outcome);
        }
        let outcome = told?;
        fork.close_logger_socket();
        let begun = if self.is_begun(fork) { real } else { 0 };
        if outcome > 0
            && !self
                .children
                .add(outcome as pid_t, begun as pid_t, fork.number)
        {
            refuse(&[b"the server has too many children"]);
        }
        Some(outcome)
    }

    /// Process id of a new child for the program: the kernel's `real` one, unless the program knows another process by
    /// that number from an earlier incarnation. Number 1 is the first process of any namespace.
    fn name(&self, fork: &PendingFork, real: i64) -> i64 {
        let number = real as pid_t;
        let is_taken = number > 1 && (number == self.pid || self.children.has(number));
        if is_taken {
            i64::from(PID_MAX_LIMIT) + i64::from(fork.number)
        } else {
            real
        }
    }

    /// The parent's process id for the program. The id changes only if the parent has ended by itself.
    pub(crate) fn parent(&self, now: pid_t) -> pid_t {
        let Some([then, real]) = self.group.parent else {
            return now;
        };
        let own = &self.page.processes.0[self.process as usize];
        let parent = own.parent.load(Ordering::Acquire) as usize;
        let has_left = self.page.processes.0[parent].has(Fate::Ends);
        if now == real || !has_left { then } else { now }
    }

    /// A child has died of `SIGPIPE`, and is not started again.
    pub(crate) fn mark_orphaned(&self, known: pid_t) {
        if let Some(number) = self.children.number(known) {
            self.page.processes.0[number as usize].set(Fate::Executes);
        }
    }

    /// Ends the service. The next incarnation is without this child.
    #[cold]
    pub(crate) fn give_up_process(&self) -> ! {
        say(&[b"a child with unfinished work cannot go on and is not started again"]);
        self.page.processes.0[self.process as usize].set(Fate::Gone);
        exit();
    }

    /// The process id of a replayed child, from the record of the parent.
    fn known_as(&mut self, fork: &PendingFork) -> Option<i64> {
        match self.stream.peek()? {
            Ok((record, _)) if fork.is_replayed && record.call == Call::Fork => {
                (record.fd == fork.number && record.outcome > 0).then_some(record.outcome)
            }
            _ => None,
        }
    }

    /// A replayed child has sent other bytes to another process than before.
    #[cold]
    pub(crate) fn fail_sibling_output(&self) -> ! {
        for (number, process) in self.all_processes() {
            if number != 0 && process.has(Fate::Talks) {
                process.set(Fate::Gone);
            }
        }
        say(&[b"a child with unfinished work says something else and is not started again"]);
        // The end of this process is no choice of the program.
        // SAFETY: no memory is involved.
        unsafe { sys!(SYS_kill, sys!(SYS_getpid), libc::SIGKILL) };
        exit();
    }

    /// After the fork, in the child.
    pub(crate) fn fork_child(&mut self, fork: &PendingFork) {
        let entry = self.fork_entry(fork);
        let parent = (self.process, self.pid);
        let known = self.known_as(fork);
        // SAFETY: no memory is involved.
        let (own, now) = unsafe { (sys!(SYS_getpid), sys!(SYS_getppid)) };
        let name = known.unwrap_or_else(|| self.name(fork, own));
        self.process = fork.number;
        self.register_liveness();
        self.stream = Stream::new(self.page, entry, fork.number);
        // A replayed child may have recorded no determinant.
        self.is_replay = fork.is_replayed;
        self.reset_deferred();
        self.let_go_of_listeners();
        self.unrecorded = Unrecorded::default();
        self.rests = Unrecorded::default();
        self.children = Children::default();
        self.may_have_opened = false;
        self.group = ProcessGroup {
            parent: None,
            serves: false,
            uses_outer_ipc: false,
            session_ipc_maker: 0,
            uses_session_ipc: false,
            holds: false,
            ..self.group
        };
        self.forget_pending_ipc();
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
        self.take_logger_socket(fork);
        self.group.parent = Some([parent.1, now as pid_t]);
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
        self.group.holds = holds;
        if holds {
            self.record_fate(Fate::Holds, &[]);
        }
        if self.group.shares_memory {
            self.record_fate(Fate::Shares, &[]);
        }
    }

    /// A socket to the logger for one process, because answers must reach the process that asked.
    fn new_logger_socket(&self) -> c_int {
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
            // If no high number is free, the shim takes no low number from the program: the child opens a socket
            // itself.
            let way = hidden(socket);
            // SAFETY: the descriptor is ours.
            unsafe { sys!(SYS_close, socket) };
            return way.unwrap_or(-1);
        }
        -1
    }

    fn take_logger_socket(&mut self, fork: &PendingFork) {
        self.sender = DeterminantSender::default();
        if self.page.hold.load(Ordering::Relaxed) == Hold::Never as u32 {
            return;
        }
        if fork.logger_socket < 0 {
            return self.open_logger_socket();
        }
        // SAFETY: both descriptors are ours.
        unsafe { sys!(SYS_dup3, fork.logger_socket, LOGGER_SOCKET_FD, O_CLOEXEC) };
        fork.close_logger_socket();
    }

    fn open_logger_socket(&self) {
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

    /// Records, or replays, a change of the process. Returns whether the change was replayed.
    pub(crate) fn record_fate(&mut self, fate: Fate, payload: &[u8]) -> bool {
        let replayed = self.replayed(Call::Fate, 0, |record| record.outcome == fate as i64);
        match replayed {
            // Other processes see the end.
            Some(true) if fate == Fate::Ends => {
                self.page.processes.0[self.process as usize].set(fate);
            }
            Some(true) => {}
            Some(false) => self.fail(Failure::OtherCall, Call::Fate, Some(Call::Fate)),
            None => {
                let own = &self.page.processes.0[self.process as usize];
                // An end is visible after its determinant. Any other change is visible before, since the next
                // incarnation must know the change in any case.
                if fate == Fate::Confers {
                    own.confers(self.group.session_ipc_maker);
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

    /// The process ends. Clients see the close of its sockets.
    pub(crate) fn record_exit(&mut self) {
        if !self.is_replay {
            self.commit();
        }
        if self.process == 0 {
            return;
        }
        let own = &self.page.processes.0[self.process as usize];
        let is_again = self.record_fate(Fate::Ends, &[]);
        if !self.locks.all().is_empty() && !is_again {
            self.commit(); // the next holder of a lock may record the lock at once
        }
        self.lets_all_go();
        self.leaves_passed();
        if !is_again {
            self.lets_opened_go();
            return;
        }
        self.require_ipc_flushed();
        own.unset(Fate::Replays); // a reader of this process's output may wait for that
        for (_, connection) in self.descriptors.connections() {
            if connection.is_touched() && connection.received <= connection.outstream {
                live::report_position(self.process, connection, true);
            }
        }
        self.await_receivers();
        live::ended(self);
    }

    /// Before execve(2), which may fail.
    pub(crate) fn record_exec(&mut self) {
        if self.process == 0 && !self.is_off() {
            refuse(&[
                b"the server executes another program: give that program to serve, without the wrapper",
            ]);
        }
        self.before_sleep(); // deferred output would be lost with the program
        let own = self.process;
        for (fd, maker) in self.descriptors.makers() {
            // SAFETY: no memory is involved.
            let flags = unsafe { sys!(SYS_fcntl, fd, libc::F_GETFD) };
            if maker == own || flags & i64::from(libc::FD_CLOEXEC) != 0 {
                continue;
            }
            // A replay cannot repeat the output of the other program.
            let its = &self.page.processes.0[maker as usize];
            its.set(Fate::Talks);
            if its.has(Fate::Serves) {
                self.group.serves = true;
                self.group.uses_outer_ipc = true;
                self.check_group();
            }
        }
        if self.process != 0 {
            self.record_fate(Fate::Executes, &[]);
        }
    }
}
