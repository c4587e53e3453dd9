//! Start of a replay: of the whole log, or of a log that another host still records (replica).

use std::{
    collections::BTreeMap,
    io,
    os::unix::fs::FileExt as _,
    sync::atomic::{AtomicU32, Ordering},
};

use north_abi::{
    handover::Position,
    layout::{ALL_IS_KEPT, Fate, POSITIONS_OFFSET, Process},
};
use rustix::thread::futex;

use super::Memory;
use crate::children::Children;

impl Memory {
    /// The next processes replay the log, and then follow as another host appends to the log. Only the main process
    /// is started, because the children with clients are unknown.
    pub fn follow(&self) {
        let page = self.page();
        self.replay_all();
        page.positions.store(ALL_IS_KEPT, Ordering::Release);
        page.follow.store(1, Ordering::Release);
    }

    /// Whether another host still records the log.
    #[must_use]
    pub fn is_replica(&self) -> bool {
        self.page().follow.load(Ordering::Acquire) != 0
    }

    /// Wakes the processes of a replica after determinants were appended.
    pub fn notify_appended(&self) {
        let follow = &self.page().follow;
        let next = follow.load(Ordering::Relaxed).wrapping_add(1).max(1);
        follow.store(next, Ordering::Release);
        wake(follow);
    }

    /// The log is complete: the processes become live after the replay.
    pub fn end_replica(&self) {
        let follow = &self.page().follow;
        follow.store(0, Ordering::Release);
        wake(follow);
    }

    /// Lag of a replica: bytes of the log that are not replayed.
    #[must_use]
    pub fn lag(&self) -> u64 {
        let all = &self.page().processes.0;
        let behind = self.begun().into_iter().map(|number| {
            let process = &all[number as usize];
            let replayed = process.replayed.load(Ordering::Relaxed);
            let head = process.head.load(Ordering::Acquire);
            head.saturating_sub(replayed)
        });
        behind.sum()
    }

    /// The next processes replay the log. `positions` are the clients' positions, in any order.
    ///
    /// # Errors
    /// No memory.
    pub fn to_be_replayed(&self, positions: &mut [Position]) -> io::Result<()> {
        positions.sort_unstable_by_key(|position| position.ends);
        let bytes: Vec<u8> = positions.iter().flat_map(Position::to_bytes).collect();
        self.file.write_all_at(&bytes, POSITIONS_OFFSET)?;
        let count = positions.len() as u64;
        let page = self.page();
        page.positions.store(count, Ordering::Release);
        page.remade.are_left();
        self.replay_all();
        // A parent of started children is started. Children have higher numbers.
        for number in self.processes().rev() {
            let process = &page.processes.0[number as usize];
            let is_begun = process.is_begun.load(Ordering::Acquire) != 0;
            if is_begun || self.serves(number, positions)? {
                process.is_begun.store(1, Ordering::Release);
                let parent = process.parent.load(Ordering::Acquire) as usize;
                if let Some(parent) = page.processes.0.get(parent) {
                    parent.is_begun.store(1, Ordering::Release);
                }
            }
        }
        for number in self.running_children()? {
            let process = &page.processes.0[number as usize];
            process.is_begun.store(1, Ordering::Release);
        }
        self.start_ipc_makers();
        for number in self.processes().skip(1) {
            let process = &page.processes.0[number as usize];
            if process.is_begun.load(Ordering::Acquire) == 0 {
                process.set(Fate::Gone);
            }
        }
        Ok(())
    }

    /// Children without clients that a replay starts again: children at work, and ended children for which the parent
    /// has not waited yet. The record of a parent that is started, too, names each child.
    fn running_children(&self) -> io::Result<Vec<u32>> {
        let all = &self.page().processes.0;
        let has = |number: u32, fate| all[number as usize].has(fate);
        let is_begun = |number: u32| all[number as usize].is_begun.load(Ordering::Acquire) != 0;
        // Parent by child.
        let mut found: BTreeMap<u32, u32> = BTreeMap::new();
        for parent in self.processes() {
            let goes_on = is_begun(parent) || found.contains_key(&parent);
            if !goes_on || has(parent, Fate::Ends) || !self.may_have_children(parent) {
                continue;
            }
            let children = Children::of(self, parent)?;
            for (number, is_known) in children.unheard(|number| has(number, Fate::Ends)) {
                let process = &all[number as usize];
                let was_begun = is_known || process.pid.load(Ordering::Acquire) != 0;
                if was_begun && may_go_on(process) && !is_begun(number) {
                    process.parent.store(parent, Ordering::Release);
                    found.insert(number, parent);
                }
            }
        }
        // No record has the order of several writers to one pipe.
        let talks = |number: &u32| has(*number, Fate::Talks);
        if found.keys().filter(|number| talks(number)).count() > 1 {
            found.retain(|number, _| !talks(number));
        }
        let mut go_on = Vec::new();
        for (number, parent) in found {
            if is_begun(parent) || go_on.contains(&parent) {
                go_on.push(number);
            }
        }
        Ok(go_on)
    }

    /// Whether this process may have running children. The parent of a child without determinants is unknown.
    fn may_have_children(&self, parent: u32) -> bool {
        let all = &self.page().processes.0;
        self.processes().skip(1).any(|number| {
            let process = &all[number as usize];
            let is_new = process.pid.load(Ordering::Acquire) == 0;
            let is_its = process.parent.load(Ordering::Acquire) == parent;
            may_go_on(process) && (is_new || is_its)
        })
    }

    /// Starts every process that has used a channel of a started process, and the processes between the two, so that
    /// bytes in the channel are there again.
    fn start_ipc_makers(&self) {
        let all = &self.page().processes.0;
        let is_begun = |number: u32| {
            let process = all.get(number as usize);
            process.is_none_or(|process| process.is_begun.load(Ordering::Acquire) != 0)
        };
        let is_left_out = |number: &u32| {
            let process = &all[*number as usize];
            let is_over =
                is_begun(*number) || process.has(Fate::Executes) || process.has(Fate::Gone);
            !is_over && process.maker().is_some_and(is_begun)
        };
        while let Some(left_out) = self.processes().find(is_left_out) {
            let mut number = left_out;
            while !is_begun(number) {
                let process = &all[number as usize];
                process.is_begun.store(1, Ordering::Release);
                number = process.parent.load(Ordering::Acquire);
            }
        }
    }

    /// Resets all processes for a replay. Only the main process is started.
    fn replay_all(&self) {
        let page = self.page();
        page.follow.store(0, Ordering::Release);
        for (number, process) in (0..self.processes().end.max(1)).zip(&page.processes.0) {
            let head = process.head.load(Ordering::Acquire);
            process.replay_end.store(head, Ordering::Release);
            let base = process.base.load(Ordering::Acquire);
            process.replayed.store(base, Ordering::Release);
            let is_first = number == 0;
            process.is_begun.store(is_first.into(), Ordering::Release);
            process.unset(Fate::Replays);
        }
        let connections = page.next_connection.swap(0, Ordering::AcqRel);
        page.serving.clear(connections);
        page.passing.clear();
        page.is_ending.store(0, Ordering::Release);
        for (_, liveness) in self.processes().zip(&page.liveness.0) {
            liveness.forget();
        }
        page.failure.store(0, Ordering::Release);
        page.reason.forget();
        page.restless.store(0, Ordering::Release);
    }
}

/// Whether the process can be started again without clients: no other program, no shared memory.
fn may_go_on(process: &Process) -> bool {
    let others = [Fate::Serves, Fate::Executes, Fate::Gone, Fate::Shares];
    !others.into_iter().any(|fate| process.has(fate))
}

/// Wakes the waiters of a futex, if any.
fn wake(number: &AtomicU32) {
    let _ = futex::wake(number, futex::Flags::empty(), u32::MAX);
}
