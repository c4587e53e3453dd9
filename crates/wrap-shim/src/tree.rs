//! The processes of a service: each has a stream of its own, which its parent's record names.
//!
//! A child is known by the number of its stream, which is noted before it is begun. In a replay those are begun again that
//! have clients, or have children that do, and are not done with them; the others' ends and what they told are in
//! the records of those who heard of it. What two processes would have to decide together is refused: two that serve one
//! connection, and one with clients that talks to others by pipes.

use core::sync::atomic::Ordering;

use libc::{
    AF_INET, AF_INET6, MAP_SHARED, O_CLOEXEC, PROT_WRITE, SOCK_CLOEXEC, SOCK_DGRAM, c_int, pid_t,
};
use wrap_abi::{
    Call, Record,
    handover::Ends,
    layout::{Failure, Fate, Hold, Mode, Process, SHIPPING_FD},
};

use crate::{
    calls::{refuse, writing::Unrecorded},
    children::Children,
    closing, helpers, live,
    say::say,
    shipping::Shipping,
    signals,
    stream::Stream,
    sys::sys,
    wrap::{Wrap, exit},
};

/// What a process has that its children are to find as it was.
#[derive(Default)]
pub(crate) struct Kinship {
    /// Its parent's process id in its first life, and now.
    pub(crate) parent: Option<[pid_t; 2]>,
    /// It has shared memory with others, or may have.
    shares_memory: bool,
    /// It has clients.
    serves: bool,
    /// It has talked to other processes of the service.
    talks: bool,
}

/// How long a process that has seen another one crash waits for its own end, seconds: `serve` ends all of them. Where it
/// does not, because it is ending the service anyway, they go on.
const PATIENCE: i64 = 1;
/// Between two looks at how far others are, nanoseconds.
const PACE: i64 = 100_000;

/// Has a process that ended like this crashed, so that the service has?
pub(crate) fn is_crash(status: c_int) -> bool {
    libc::WIFSIGNALED(status) && libc::WTERMSIG(status) != libc::SIGPIPE
}

/// The service has crashed, and this process is to end with it: nothing that it finds out now is to be in its record.
#[cold]
pub(crate) fn await_end() {
    let time = libc::timespec {
        tv_sec: PATIENCE,
        tv_nsec: 0,
    };
    // SAFETY: a structure on our stack.
    unsafe { sys!(SYS_nanosleep, &raw const time, 0) };
}

/// A child that is about to be begun.
pub(crate) struct Birth {
    /// The number of its stream.
    number: u32,
    /// It is begun in a replay.
    is_again: bool,
}

impl Birth {
    pub(crate) fn is_again(&self) -> bool {
        self.is_again
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
            say(&[b"there were too many processes: what follows is not recorded"]);
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

    fn all_processes(&self) -> impl Iterator<Item = (u32, &'static Process)> + use<> {
        let count = self.page.next_process.load(Ordering::Acquire);
        (0..count).zip(&self.page.processes.0)
    }

    /// Does a child that is begun again talk to others of the service in this replay?
    fn is_talked(&self) -> bool {
        self.is_replay && {
            let talks =
                |one: &Process| one.has(Fate::Talks) && one.is_begun.load(Ordering::Acquire) != 0;
            self.all_processes().any(|(_, process)| talks(process))
        }
    }

    /// This leads to other processes, and what was told by it is told again.
    pub(crate) fn leads_to_kin(&self, fd: c_int) -> bool {
        let descriptor = self.descriptors.get(fd);
        self.is_replay && descriptor.crosses && !descriptor.is_counter(fd) && self.is_talked()
    }

    /// Other processes come to this in their replays, if they do: at the end of theirs they will not.
    pub(crate) fn await_kin(&self, mut is_so: impl FnMut() -> bool) -> bool {
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: PACE,
        };
        loop {
            // In this order.
            let others_replay = self
                .all_processes()
                .any(|(number, process)| number != self.process && process.has(Fate::Replays));
            if is_so() || !others_replay {
                return is_so();
            }
            // SAFETY: a structure on our stack.
            unsafe { sys!(SYS_nanosleep, &raw const time, 0) };
        }
    }

    /// Nobody has the other end of what leads to other processes. If that is because the parent has crashed, which is known a
    /// moment later, this process is to end with it.
    #[cold]
    pub(crate) fn is_left_alone(&self, fd: c_int) {
        const LOOKS: u32 = 500;
        let kin = self.kinship.parent;
        let Some([_, parent]) = kin.filter(|_| self.descriptors.get(fd).crosses) else {
            return;
        };
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: PACE,
        };
        for _ in 0..LOOKS {
            // SAFETY: no memory is involved.
            if unsafe { sys!(SYS_getppid) } != i64::from(parent) {
                return await_end();
            }
            // SAFETY: a structure on our stack.
            unsafe { sys!(SYS_nanosleep, &raw const time, 0) };
        }
    }

    /// A child without clients contradicts its record, or is contradicted: nobody needs it. It is not begun again, and its
    /// parent is told that it was killed.
    pub(crate) fn is_dispensable(&self) -> bool {
        let own = &self.page.processes.0[self.process as usize];
        let may_serve = own.has(Fate::Holds) && !own.has(Fate::Talks);
        self.process != 0 && !own.has(Fate::Serves) && !may_serve
    }

    fn kin(&self, birth: &Birth) -> &'static Process {
        &self.page.processes.0[birth.number as usize]
    }

    /// What the dead life could do, this one cannot: begin the child.
    pub(crate) fn is_childless(&mut self) -> ! {
        self.fail(Failure::NotSupported, Call::Fork, Some(Call::Fork))
    }

    /// The parent goes on; the child, if there is one, has this process id. What the program is told; `None`: the dead life had
    /// not come so far, and the child is to be begun now.
    pub(crate) fn parented(&mut self, birth: &mut Birth, real: i64) -> Option<i64> {
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
            let outcome = if birth.is_again { first.into() } else { real };
            self.record(&Record {
                call: Call::Fork,
                fd: birth.number,
                outcome,
                payload: &[],
            });
            told = Some(outcome);
        }
        let outcome = told?;
        let begun = if self.is_begun(birth) { real } else { 0 };
        if outcome > 0
            && !self
                .children
                .add(outcome as pid_t, begun as pid_t, birth.number)
        {
            refuse(&[b"it has too many children"]);
        }
        Some(outcome)
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
        say(&[b"a child that was at work cannot go on: it is not begun again"]);
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
        say(&[b"a child that was at work tells something else: it is not begun again"]);
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
        self.process = birth.number;
        self.stream = Stream::new(self.page, entry, birth.number);
        // One that is begun again may have had no time to note anything.
        self.is_replay = birth.is_again;
        self.hold_nothing();
        self.unrecorded = Unrecorded::default();
        self.rests = Unrecorded::default();
        self.children = Children::default();
        self.kinship = Kinship {
            parent: None,
            serves: false,
            talks: false,
            ..self.kinship
        };
        signals::forget();
        closing::forget();
        helpers::forget();
        let mut holds = false;
        for connection in self.descriptors.connections_mut() {
            holds |= !(connection.is_served || connection.is_outgoing());
            connection.is_served = false;
        }
        self.find_own_way();
        // SAFETY: no memory is involved.
        let (own, now) = unsafe { (sys!(SYS_getpid), sys!(SYS_getppid)) };
        self.kinship.parent = Some([parent.1, now as pid_t]);
        self.pid_now = own as pid_t;
        entry.parent.store(parent.0, Ordering::Release);
        let mut began = self.replayed(Call::Start, 0, |record| record.outcome);
        if began.is_none() {
            began = known;
            self.record(&Record {
                call: Call::Start,
                fd: 0,
                outcome: known.unwrap_or(own),
                payload: &parent.0.to_le_bytes(),
            });
        }
        self.pid = began.unwrap_or(own) as pid_t;
        entry.pid.store(self.pid, Ordering::Release);
        if holds {
            self.befalls(Fate::Holds, &[]);
        }
        if self.kinship.shares_memory {
            self.befalls(Fate::Shares, &[]);
        }
    }

    /// What the logger answers to this process nobody else is to hear.
    fn find_own_way(&mut self) {
        self.shipping = Shipping::default();
        if self.page.hold.load(Ordering::Relaxed) == Hold::Never as u32 {
            return;
        }
        for family in [AF_INET6, AF_INET] {
            // SAFETY: a new socket.
            let socket = unsafe { sys!(SYS_socket, family, SOCK_DGRAM | SOCK_CLOEXEC, 0) };
            if socket >= 0 {
                // SAFETY: both are ours.
                unsafe {
                    sys!(SYS_dup3, socket, SHIPPING_FD, O_CLOEXEC);
                    sys!(SYS_close, socket);
                }
                return;
            }
        }
        refuse(&[b"a child has no way to the logger"]);
    }

    /// Connections that this process serves are its own, whoever has them from now on.
    fn claim_all(&mut self) {
        let (page, process) = (self.page, self.process);
        for connection in self.descriptors.connections_mut() {
            if connection.is_touched() && !connection.is_served {
                connection.is_served = page.serving.claim(connection.number, process);
            }
        }
    }

    /// A number for a connection.
    pub(crate) fn new_connection(&self) -> u32 {
        self.page.next_connection.fetch_add(1, Ordering::Relaxed)
    }

    /// The program is about to read from this connection, or to write to it.
    #[inline]
    pub(crate) fn serves(&mut self, fd: c_int) {
        let is_first = self.process == 0;
        if let Some(connection) = self.descriptors.connection(fd)
            && !connection.is_served
            && (connection.is_shared || !is_first && !connection.is_outgoing())
        {
            self.begins_to_serve(fd);
        }
    }

    #[cold]
    fn begins_to_serve(&mut self, fd: c_int) {
        let (page, process) = (self.page, self.process);
        let Some(connection) = self.descriptors.connection(fd) else {
            return;
        };
        if !page.serving.claim(connection.number, process) {
            refuse(&[b"two of its processes serve one connection"]);
        }
        connection.is_served = true;
        if process == 0 || connection.is_outgoing() {
            return;
        }
        let ends = Ends::from_sockaddrs(connection.peer.as_bytes(), connection.local.as_bytes());
        self.kinship.serves = true;
        self.look_at_kinship();
        self.befalls(Fate::Serves, &ends.unwrap_or_default().0);
    }

    /// The program is about to read from this, or to write to it, which is no connection.
    #[inline]
    pub(crate) fn crosses(&mut self, fd: c_int) {
        if self.process != 0 && !self.kinship.talks && self.descriptors.get(fd).crosses {
            self.kinship.talks = true;
            self.look_at_kinship();
            self.befalls(Fate::Talks, &[]);
        }
    }

    /// The program has memory that its children can write to as well.
    pub(crate) fn maps(&mut self, access: c_int, flags: c_int) {
        if flags & MAP_SHARED != 0 && access & PROT_WRITE != 0 {
            self.kinship.shares_memory = true;
        }
    }

    fn look_at_kinship(&self) {
        if !self.kinship.serves {
            return;
        }
        if self.kinship.talks {
            refuse(&[
                b"a child with clients talks to other processes by a pipe, or a pair of sockets",
            ]);
        }
        if self.kinship.shares_memory {
            refuse(&[b"a child with clients shares memory with other processes"]);
        }
    }

    /// This becomes of the process. Is it so in a replay, too?
    fn befalls(&mut self, fate: Fate, payload: &[u8]) -> bool {
        let replayed = self.replayed(Call::Fate, 0, |record| record.outcome == fate as i64);
        match replayed {
            Some(true) => {}
            Some(false) => self.fail(Failure::OtherCall, Call::Fate, Some(Call::Fate)),
            None => {
                let own = &self.page.processes.0[self.process as usize];
                // Who is seen to have ended has recorded that; of anything else the next life is to know in any case.
                if fate != Fate::Ends {
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
        if self.process == 0 || !self.befalls(Fate::Ends, &[]) {
            return;
        }
        for (_, connection) in self.descriptors.connections() {
            if connection.is_touched() && connection.received <= connection.outstream {
                live::stands(self.process, connection, true);
            }
        }
        live::ended(self);
    }

    /// The process becomes another program, or stays what it is after all.
    pub(crate) fn executes(&mut self) {
        self.before_sleep(); // what is held would go with it
        if self.process != 0 {
            self.befalls(Fate::Executes, &[]);
        }
    }
}
