//! Which request has killed the server? The one that was read last, if the server dies again and again before it reads
//! another one, and has not said anything since it read that.

use std::io;

use wrap_abi::{Call, Record};

use crate::{Ends, Memory, whole::each_whole};

/// How much is read at a time, bytes.
const PIECE: usize = 1 << 20;

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
    /// Of a service with one process; `None`: nothing was read, or there are several.
    ///
    /// # Errors
    /// The record cannot be read.
    pub fn of(memory: &Memory) -> io::Result<Option<Self>> {
        if memory.processes().len() > 1 {
            return Ok(None);
        }
        let mut open = Vec::new();
        let mut last = None;
        each(memory, 0, |at, record| match record.call {
            Call::Accept => {
                if let (Ok(fd), Some(ends)) = (usize::try_from(record.outcome), ends(record)) {
                    if open.len() <= fd {
                        open.resize(fd + 1, None);
                    }
                    open[fd] = Some(ends);
                }
            }
            Call::Read if record.outcome > 0 => {
                let ends = open.get(record.fd as usize).copied().flatten();
                last = Some((at, ends));
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
    let (length, rest) = record.payload.split_first()?;
    let (peer, local) = rest.split_at_checked(usize::from(*length))?;
    Ends::from_sockaddrs(peer, local)
}

/// Each record of a stream, with where it begins.
fn each(memory: &Memory, process: u32, mut look: impl FnMut(u64, &Record<'_>)) -> io::Result<()> {
    let length = memory.length(process);
    let (mut bytes, mut begins, mut read) = (Vec::new(), 0, 0);
    while read < length {
        let piece = usize::try_from(length - read).unwrap_or(PIECE).min(PIECE);
        let known = bytes.len();
        bytes.resize(known + piece, 0);
        memory.read(process, read, &mut bytes[known..])?;
        read += piece as u64;
        let whole = each_whole(&bytes, |at, record| look(begins + at as u64, record))
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        bytes.drain(..whole);
        begins += whole as u64;
    }
    Ok(())
}
