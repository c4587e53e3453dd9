//! Which request has killed the server? The one that was read last, if the server dies again and again before it reads
//! another one, and has not said anything since it read that. Where a child has died, what is the matter is the child's.

use std::{collections::BTreeMap, io};

use wrap_abi::{Arrival, Call, Record, layout::Fate};

use crate::{Ends, Memory, whole::each};

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
    /// Of a service whose first process serves all clients; `None`: nothing was read, or others do. `known` are the connections,
    /// with their descriptors, that were open where the record begins.
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
            is_answered: memory.said(0) > at,
        }))
    }
}

impl Memory {
    /// The child that has crashed: the only process that is dead and has not ended by itself. To be asked before the others are killed.
    #[must_use]
    pub fn crashed_child(&self) -> Option<u32> {
        let page = self.page();
        let is_crashed = |number: &u32| {
            let (process, life) = (
                &page.processes.0[*number as usize],
                &page.lives.0[*number as usize],
            );
            let ends = [Fate::Ends, Fate::Executes, Fate::Gone];
            life.is_over() && !ends.into_iter().any(|fate| process.has(fate))
        };
        let mut crashed = self.processes().filter(is_crashed);
        let first = crashed.next().filter(|number| *number > 0);
        first.filter(|_| crashed.next().is_none())
    }

    /// This child is not begun again, nor is who is of its session: their parent hears that they were killed. Tells which clients
    /// they have, or had.
    ///
    /// # Errors
    /// Their records cannot be read.
    pub fn give_up_session(&self, child: u32) -> io::Result<Vec<Ends>> {
        let page = self.page();
        let session = page.session(child);
        let mut clients = Vec::new();
        for number in self.processes().skip(1) {
            if page.session(number) != session {
                continue;
            }
            page.processes.0[number as usize].set(Fate::Gone);
            each(self, number, self.base(number), |_, record| {
                let is_client = record.call == Call::Fate && record.outcome == Fate::Serves as i64;
                let ends = record.payload.first_chunk().copied().map(Ends);
                clients.extend(ends.filter(|_| is_client));
            })?;
        }
        Ok(clients)
    }
}

fn ends(record: &Record<'_>) -> Option<Ends> {
    let arrival = Arrival::read(record.payload)?;
    Ends::from_sockaddrs(arrival.peer, arrival.local)
}
