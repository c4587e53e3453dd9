//! Which request has killed the server? The one that was read last, if the server dies again and again before it reads
//! another one, and has not said anything since it read that. Where a child has died, what is the matter is the
//! child's.

use std::{
    collections::{BTreeMap, BTreeSet},
    io, iter,
    sync::atomic::Ordering,
};

use north_abi::{AcceptedConnection, Call, Record, Which, layout::Fate};

use crate::{Ends, Memory, framing::each};

/// What a client said last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suspect {
    /// Where in the stream it is read.
    pub at: u64,
    /// Its connection; `None`: that cannot be told.
    pub ends: Option<Ends>,
    /// Something was said since: what was answered cannot be taken back.
    pub is_answered: bool,
}

impl Suspect {
    /// Of a service whose first process serves all clients; `None`: nothing was read, or others do. `known` are the
    /// connections, with their descriptors, that were open where the record begins.
    ///
    /// # Errors
    /// The record cannot be read.
    pub fn of(memory: &Memory, known: &[(u32, Ends)]) -> io::Result<Option<Self>> {
        if memory.is_served_by_children() {
            return Ok(None);
        }
        let mut open: BTreeMap<u32, Ends> = known.iter().copied().collect();
        let mut last = None;
        each(memory, 0, memory.base(0), |at, record| match record.call {
            Call::Accept => {
                if let (Ok(fd), Some(ends)) = (u32::try_from(record.outcome), ends(record)) {
                    open.insert(fd, ends);
                }
            }
            Call::Joined => {
                if let Some(ends) = ends(record) {
                    open.insert(record.fd, ends);
                }
            }
            Call::Read if record.outcome > 0 => {
                last = Some((at, open.get(&record.fd).copied()));
            }
            _ => {}
        })?;
        Ok(last.map(|(at, ends)| Self {
            at,
            ends,
            is_answered: memory.last_output(0) > at,
        }))
    }
}

impl Memory {
    /// Has this process noted that its connection goes on as its clients' do, by this number?
    ///
    /// # Errors
    /// The record cannot be read.
    pub fn has_joined(&self, process: u32, flow: u64) -> io::Result<bool> {
        let mut has_joined = false;
        each(self, process, self.base(process), |_, record| {
            let joined =
                AcceptedConnection::read(record.payload).filter(|_| record.call == Call::Joined);
            has_joined |= joined.is_some_and(|joined| joined.which == Which::Flow(flow));
        })?;
        Ok(has_joined)
    }

    /// The child that has crashed, which is no first process: the one with this number (the kernel's), or the only one
    /// that is dead and has not ended by itself. To be asked before the others are killed.
    #[must_use]
    pub fn crashed_child(&self, pid: u32) -> Option<u32> {
        let page = self.page();
        let has_left = |number: &u32| {
            let process = &page.processes.0[*number as usize];
            let ends = [Fate::Ends, Fate::Executes, Fate::Gone];
            ends.into_iter().any(|fate| process.has(fate))
        };
        let liveness = |number: &u32| &page.liveness.0[*number as usize];
        let present = || self.processes().filter(|number| !has_left(number));
        let its = |number: &u32| pid > 1 && liveness(number).pid() == pid;
        let mut dead = present().filter(|number| liveness(number).is_dead());
        // In a namespace of its own it has another number there.
        let only = dead.next().filter(|_| dead.next().is_none());
        let known = present().rfind(its);
        known.or(only).filter(|number| *number > 0)
    }

    /// This child is not begun again, nor is who is of its session: of the oldest of its ancestors that has a client,
    /// or may have. Their parent hears that they were killed. Tells which clients they have, or had, and no other
    /// process of the service.
    ///
    /// # Errors
    /// Their records cannot be read.
    pub fn give_up_session(&self, child: u32) -> io::Result<BTreeSet<Ends>> {
        let all = &self.page().processes.0;
        let parent = |number: u32| all[number as usize].parent.load(Ordering::Acquire);
        let line = |number: u32| {
            let next = move |below: &u32| Some(parent(*below)).filter(|above| above < below);
            iter::successors(Some(number), next).filter(|number| *number > 0)
        };
        let serves = |number: &u32| {
            let process = &all[*number as usize];
            process.has(Fate::Serves) || process.has(Fate::Holds)
        };
        let oldest = line(child).filter(serves).last().unwrap_or(child);
        let (mut its, mut others) = (BTreeSet::new(), BTreeSet::new());
        for number in self.processes().skip(1) {
            let is_its = line(number).any(|above| above == oldest);
            if is_its {
                all[number as usize].set(Fate::Gone);
            }
            let clients = if is_its { &mut its } else { &mut others };
            each(self, number, self.base(number), |_, record| {
                let is_client = record.call == Call::Fate && record.outcome == Fate::Serves as i64;
                let ends = record.payload.first_chunk().copied().map(Ends);
                clients.extend(ends.filter(|_| is_client));
            })?;
        }
        Ok(&its - &others)
    }
}

fn ends(record: &Record<'_>) -> Option<Ends> {
    let arrival = AcceptedConnection::read(record.payload)?;
    Ends::from_sockaddrs(arrival.peer, arrival.local)
}
