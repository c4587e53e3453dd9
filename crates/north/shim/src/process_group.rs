//! Relations between the processes of a service: shared channels, shared memory, and the end of replays.
//!
//! A *sibling* is a process of the same process session.

use core::sync::atomic::Ordering;

use libc::{MAP_SHARED, PROT_WRITE, c_int, pid_t};
use north_abi::layout::{Fate, Process};

use crate::{calls::refuse, clock, wrap::Wrap};

/// Interval of polls for the replays of other processes.
pub(crate) const REPLAY_POLL_INTERVAL_NS: i64 = 100_000;

/// Advice in the refusal of children that share state with other processes.
const SEPARATE_PROCESSES_ADVICE: &[u8] = b"; --stateful=require needs processes that are on their own, or one that serves (nginx: `master_process off; daemon off;`)";

/// Relations of a process to other processes. A child starts from the state of its parent.
#[derive(Default)]
pub(crate) struct ProcessGroup {
    /// The parent's process id in the first incarnation, and now.
    pub(crate) parent: Option<[pid_t; 2]>,
    /// The process may share memory with other processes.
    pub(crate) shares_memory: bool,
    /// The process has clients.
    pub(crate) serves: bool,
    /// The process has used a channel that the main process, or another program, has made.
    pub(crate) uses_outer_ipc: bool,
    /// Maker of the session's channel that the process uses; 0: none, or the process itself.
    pub(crate) session_ipc_maker: u32,
    /// The process has inherited a connection that no process had served.
    pub(crate) holds: bool,
    /// The process has used a channel that a process of its session has made.
    pub(crate) uses_session_ipc: bool,
}

impl Wrap {
    pub(crate) fn all_processes(&self) -> impl Iterator<Item = (u32, &'static Process)> + use<> {
        let count = self.page.next_process.load(Ordering::Acquire);
        (0..count).zip(&self.page.processes.0)
    }

    /// Whether a child with outer channels is replayed.
    fn is_ipc_replayed_by_any(&self) -> bool {
        self.is_replay && {
            let talks =
                |one: &Process| one.has(Fate::Talks) && one.is_begun.load(Ordering::Acquire) != 0;
            self.all_processes().any(|(_, process)| talks(process))
        }
    }

    /// The process has clients, or is the main process.
    pub(crate) fn has_clients(&self) -> bool {
        self.process == 0 || self.group.serves
    }

    /// Whether `fd` is a channel to other processes whose input is replayed.
    pub(crate) fn is_shared_channel(&self, fd: c_int) -> bool {
        let descriptor = self.descriptors.get(fd);
        self.is_replay
            && descriptor.is_channel
            && !descriptor.is_counter(fd)
            && self.is_ipc_replayed_by_any()
    }

    /// Whether another process still replays.
    pub(crate) fn service_replays(&self) -> bool {
        let mut all = self.all_processes();
        all.any(|(number, process)| number != self.process && process.has(Fate::Replays))
    }

    /// Whether a sibling still replays.
    pub(crate) fn siblings_replay(&self) -> bool {
        let session = self.session(self.process);
        let mut all = self.all_processes();
        all.any(|(number, process)| {
            let replays = number != self.process && process.has(Fate::Replays);
            replays && self.session(number) == session
        })
    }

    /// Whether another replayed process writes to the channels of `maker` again.
    pub(crate) fn is_ipc_replayed(&self, maker: u32) -> bool {
        let mut all = self.all_processes();
        all.any(|(number, process)| {
            let is_begun = process.is_begun.load(Ordering::Acquire) != 0;
            let has_its = number == maker || process.maker() == Some(maker);
            number != self.process && is_begun && has_its
        })
    }

    /// Number of the first process of the session: the child of the main process from which this process descends.
    pub(crate) fn session(&self, mut number: u32) -> u32 {
        while let Some(process) = self.page.processes.0.get(number as usize) {
            match process.parent.load(Ordering::Acquire) {
                parent if parent != 0 && parent < number => number = parent,
                _ => break,
            }
        }
        number
    }

    /// Waits for a state that other processes reach in their replays. Returns whether the state was reached before
    /// the last replay ended.
    pub(crate) fn await_service_replay(
        &mut self,
        mut is_so: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        loop {
            // In this order: the last replay may reach the state just before its end.
            let service_replays = self.service_replays();
            if is_so(self) || !service_replays {
                return is_so(self);
            }
            clock::sleep(REPLAY_POLL_INTERVAL_NS);
        }
    }

    /// Whether the service can continue without this child after a divergence. The child is not started again, and its
    /// parent sees a kill.
    pub(crate) fn may_skip_replay(&self) -> bool {
        let own = &self.page.processes.0[self.process as usize];
        let may_serve = own.has(Fate::Holds) && !own.has(Fate::Talks);
        // Siblings depend on the output of this process, and may have clients.
        let confers = own.has(Fate::Confers)
            || self.group.uses_session_ipc && self.is_ipc_replayed(self.process);
        self.process != 0 && !own.has(Fate::Serves) && !may_serve && !confers
    }

    /// The program is about to read from, or to write to, a channel.
    #[inline]
    pub(crate) fn use_channel(&mut self, fd: c_int) {
        if self.process != 0 && self.descriptors.get(fd).is_channel {
            self.use_first_time(fd);
        }
    }

    fn use_first_time(&mut self, fd: c_int) {
        let maker = self.channel_maker(fd);
        self.group.uses_session_ipc |= maker.is_some();
        match maker {
            Some(maker) if maker == self.process => self.check_group(),
            Some(maker) if maker == self.group.session_ipc_maker => {}
            Some(maker) if self.group.session_ipc_maker == 0 => {
                self.group.session_ipc_maker = maker;
                self.record_fate(Fate::Confers, &maker.to_le_bytes());
            }
            _ if !self.group.uses_outer_ipc => {
                self.group.uses_outer_ipc = true;
                self.check_group();
                self.record_fate(Fate::Talks, &[]);
            }
            _ => {}
        }
    }

    /// The program maps memory that its children can write to.
    pub(crate) fn record_mapping(&mut self, access: c_int, flags: c_int) {
        if flags & MAP_SHARED != 0 && access & PROT_WRITE != 0 {
            self.group.shares_memory = true;
        }
    }

    pub(crate) fn check_group(&self) {
        if !self.group.serves {
            return;
        }
        let own = &self.page.processes.0[self.process as usize];
        if self.group.uses_outer_ipc || own.has(Fate::Talks) {
            refuse(&[
                b"a child with clients talks to other processes by a pipe, or a pair of sockets",
                SEPARATE_PROCESSES_ADVICE,
            ]);
        }
        if self.group.shares_memory {
            refuse(&[
                b"a child with clients shares memory with other processes",
                SEPARATE_PROCESSES_ADVICE,
            ]);
        }
    }
}
