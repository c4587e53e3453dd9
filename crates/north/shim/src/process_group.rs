//! What the processes of a service have to do with each other.

use core::sync::atomic::Ordering;

use libc::{MAP_SHARED, PROT_WRITE, c_int, pid_t};
use north_abi::layout::{Fate, Process};

use crate::{calls::refuse, clock, wrap::Wrap};

/// Between two looks at how far others are, nanoseconds.
pub(crate) const PACE: i64 = 100_000;

/// What there is to do about children that are not on their own.
const APART: &[u8] = b"; --stateful=require needs processes that are on their own, or one that serves (nginx: `master_process off; daemon off;`)";

/// What a process has that its children are to find as it was.
#[derive(Default)]
pub(crate) struct Kinship {
    /// Its parent's process id in its first life, and now.
    pub(crate) parent: Option<[pid_t; 2]>,
    /// It has shared memory with others, or may have.
    pub(crate) shares_memory: bool,
    /// It has clients.
    pub(crate) serves: bool,
    /// It has talked to other processes of the service, by what the first one has made.
    pub(crate) talks: bool,
    /// The one that has made what it talks by, if that is another one; 0: it does not.
    pub(crate) confers: u32,
    /// It has, or had, a connection from another process that nobody had served.
    pub(crate) holds: bool,
    /// It has talked to others by what one of its session has made, be it itself.
    pub(crate) has_ways: bool,
}

impl Wrap {
    pub(crate) fn all_processes(&self) -> impl Iterator<Item = (u32, &'static Process)> + use<> {
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

    /// It has clients, or may have as the first one.
    pub(crate) fn has_clients(&self) -> bool {
        self.process == 0 || self.kinship.serves
    }

    /// This leads to other processes, and what was told by it is told again.
    pub(crate) fn leads_to_kin(&self, fd: c_int) -> bool {
        let descriptor = self.descriptors.get(fd);
        self.is_replay && descriptor.crosses && !descriptor.is_counter(fd) && self.is_talked()
    }

    /// Are others not at the end of their replays?
    pub(crate) fn others_replay(&self) -> bool {
        let mut all = self.all_processes();
        all.any(|(number, process)| number != self.process && process.has(Fate::Replays))
    }

    /// The same of those of its own session.
    pub(crate) fn relatives_replay(&self) -> bool {
        let session = self.session(self.process);
        let mut all = self.all_processes();
        all.any(|(number, process)| {
            let replays = number != self.process && process.has(Fate::Replays);
            replays && self.session(number) == session
        })
    }

    /// Is anybody begun who says again what others have said by what this process has made?
    pub(crate) fn is_said_again(&self, maker: u32) -> bool {
        let mut all = self.all_processes();
        all.any(|(number, process)| {
            let is_begun = process.is_begun.load(Ordering::Acquire) != 0;
            let has_its = number == maker || process.maker() == Some(maker);
            number != self.process && is_begun && has_its
        })
    }

    /// The process that the first one has begun, and from which this one is.
    pub(crate) fn session(&self, mut number: u32) -> u32 {
        while let Some(process) = self.page.processes.0.get(number as usize) {
            match process.parent.load(Ordering::Acquire) {
                parent if parent != 0 && parent < number => number = parent,
                _ => break,
            }
        }
        number
    }

    /// Other processes come to this in their replays, if they do: at the end of theirs they will not.
    pub(crate) fn await_kin(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) -> bool {
        loop {
            // In this order.
            let others_replay = self.others_replay();
            if is_so(self) || !others_replay {
                return is_so(self);
            }
            clock::sleep(PACE);
        }
    }

    /// A child without clients contradicts its record, or is contradicted: nobody needs it. It is not begun again, and
    /// its parent is told that it was killed.
    pub(crate) fn is_dispensable(&self) -> bool {
        let own = &self.page.processes.0[self.process as usize];
        let may_serve = own.has(Fate::Holds) && !own.has(Fate::Talks);
        // Others say what they have heard of it, and may have clients.
        let confers =
            own.has(Fate::Confers) || self.kinship.has_ways && self.is_said_again(self.process);
        self.process != 0 && !own.has(Fate::Serves) && !may_serve && !confers
    }

    /// The program is about to read from this, or to write to it, which is no connection.
    #[inline]
    pub(crate) fn crosses(&mut self, fd: c_int) {
        if self.process != 0 && self.descriptors.get(fd).crosses {
            self.crosses_over(fd);
        }
    }

    fn crosses_over(&mut self, fd: c_int) {
        let maker = self.maker(fd);
        self.kinship.has_ways |= maker.is_some();
        match maker {
            Some(maker) if maker == self.process => self.look_at_kinship(),
            Some(maker) if maker == self.kinship.confers => {}
            Some(maker) if self.kinship.confers == 0 => {
                self.kinship.confers = maker;
                self.befalls(Fate::Confers, &maker.to_le_bytes());
            }
            _ if !self.kinship.talks => {
                self.kinship.talks = true;
                self.look_at_kinship();
                self.befalls(Fate::Talks, &[]);
            }
            _ => {}
        }
    }

    /// The program has memory that its children can write to as well.
    pub(crate) fn maps(&mut self, access: c_int, flags: c_int) {
        if flags & MAP_SHARED != 0 && access & PROT_WRITE != 0 {
            self.kinship.shares_memory = true;
        }
    }

    pub(crate) fn look_at_kinship(&self) {
        if !self.kinship.serves {
            return;
        }
        let own = &self.page.processes.0[self.process as usize];
        if self.kinship.talks || own.has(Fate::Talks) {
            refuse(&[
                b"a child with clients talks to other processes by a pipe, or a pair of sockets",
                APART,
            ]);
        }
        if self.kinship.shares_memory {
            refuse(&[
                b"a child with clients shares memory with other processes",
                APART,
            ]);
        }
    }
}
