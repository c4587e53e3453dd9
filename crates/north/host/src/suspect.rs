//! The request that has killed the server: the last read, if the server dies again and again after the same read and
//! without output since then. After the death of a child the child's session is given up.

use std::{
    collections::{BTreeMap, BTreeSet},
    io, iter,
    sync::atomic::Ordering,
};

use north_abi::{AcceptedConnection, Call, Record, Which, layout::Fate};

use crate::{Ends, Memory, framing::each};

/// The last read of a client's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suspect {
    /// Position of the read in the stream.
    pub at: u64,
    /// The connection; `None`: unknown.
    pub ends: Option<Ends>,
    /// Output has left since the read, and cannot be taken back.
    pub is_answered: bool,
}

impl Suspect {
    /// The suspect of a service whose first process serves all clients. `None`: no read, or other processes serve.
    /// `known` are the open connections at the start of the record, with their descriptors.
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
    /// Whether this process has recorded that its connection joins the clients' connections, under this number.
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

    /// The crashed child: the process with this process id, or else the only process that is dead and has not ended
    /// by itself. Never the first process. The caller asks before killing the other processes.
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
        // In another PID namespace the process has another process id.
        let only = dead.next().filter(|_| dead.next().is_none());
        let known = present().rfind(its);
        known.or(only).filter(|number| *number > 0)
    }

    /// Gives up the session of this child: the child, its ancestors up to the oldest with a client, or with a
    /// possible client, and all descendants of that ancestor. A replay does not start these processes again, and
    /// their parent sees a kill. Returns the clients that only this session has or had.
    ///
    /// # Errors
    /// The records cannot be read.
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
