//! Which request has killed the server? The one that was read last, if the server dies again and again before it reads
//! another one, and has not said anything since it read that.

use std::{collections::BTreeMap, io};

use wrap_abi::{Arrival, Call, Record};

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

fn ends(record: &Record<'_>) -> Option<Ends> {
    let arrival = Arrival::read(record.payload)?;
    Ends::from_sockaddrs(arrival.peer, arrival.local)
}
