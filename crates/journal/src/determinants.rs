//! What the processes of a server with state were told, each process's stream from its beginning on
//! (`ft-tcp-infocom-2001`, III.B: the log of what was read and of what else was not the server's own doing).
//!
//! The streams belong together: a part of them that ends anywhere can be replayed, one that lacks something in its
//! middle cannot. So there are no holes, and where there is no room for more all of it goes.

use std::collections::BTreeMap;

/// How much memory is asked for at a time, bytes.
const CHUNK: usize = 1 << 16;

/// Nothing of the record is kept any more: there was no room for what came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no room for more of what the server was told")]
pub struct NoRoom;

/// The streams of a service's processes.
#[derive(Debug, Default)]
pub struct Determinants {
    record: Option<u64>,
    streams: BTreeMap<u32, Stream>,
    /// No more is taken of the record with this number.
    over: Option<u64>,
    held: u64,
    /// How often something was dropped.
    drops: u64,
    /// So much of the streams was with somebody before who has it no more.
    said: BTreeMap<u32, u64>,
}

#[derive(Debug, Default)]
struct Stream {
    length: u64,
    /// All but the last one are full.
    chunks: Vec<Vec<u8>>,
}

impl Stream {
    fn append(&mut self, mut bytes: &[u8]) -> u64 {
        let mut held = 0;
        self.length += bytes.len() as u64;
        while !bytes.is_empty() {
            let room = self.chunks.last().map_or(0, |last| CHUNK - last.len());
            if room == 0 {
                self.chunks.push(Vec::with_capacity(CHUNK));
                held += CHUNK as u64;
                continue;
            }
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            if let Some(last) = self.chunks.last_mut() {
                last.extend_from_slice(now);
            }
            bytes = later;
        }
        held
    }

    /// Tells how much memory is not held any more.
    fn cut(&mut self, length: u64) -> u64 {
        let Some(whole) = usize::try_from(length)
            .ok()
            .filter(|_| length < self.length)
        else {
            return 0;
        };
        let before = self.chunks.len();
        self.chunks.truncate(whole.div_ceil(CHUNK));
        if let Some(last) = self.chunks.last_mut().filter(|_| whole % CHUNK != 0) {
            last.truncate(whole % CHUNK);
        }
        self.length = length;
        ((before - self.chunks.len()) * CHUNK) as u64
    }

    fn read(&self, from: u64, most: usize) -> Vec<u8> {
        let Ok(from) = usize::try_from(from) else {
            return Vec::new();
        };
        let chunks = self.chunks.iter().skip(from / CHUNK);
        let mut out = Vec::new();
        let mut skip = from % CHUNK;
        for chunk in chunks {
            let rest = chunk.get(skip..).unwrap_or_default();
            out.extend_from_slice(&rest[..rest.len().min(most - out.len())]);
            skip = 0;
        }
        out
    }
}

impl Determinants {
    /// The number of the record, if there is one.
    #[must_use]
    pub fn record(&self) -> Option<u64> {
        self.record
    }

    /// The streams: number of the process, and length in bytes.
    pub fn streams(&self) -> impl Iterator<Item = (u32, u64)> {
        let streams = self.streams.iter();
        streams.map(|(process, stream)| (*process, stream.length))
    }

    /// Memory that is held, bytes.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held
    }

    /// What comes from now on belongs to the record with this number; what is kept of another one is dropped.
    pub fn begin(&mut self, record: u64) {
        if self.record != Some(record) && self.over != Some(record) {
            *self = Self {
                record: Some(record),
                drops: self.drops + 1,
                ..Self::default()
            };
        }
    }

    /// So much of this record's streams was with somebody before, and things may have been said on its account.
    pub fn was_said(&mut self, record: u64, streams: &[(u32, u64)]) {
        if self.record == Some(record) {
            for (process, length) in streams {
                let known = self.said.entry(*process).or_default();
                *known = (*known).max(*length);
            }
        }
    }

    /// Is as much of it here as was anywhere before? Where there is less, what was said already would be forgotten.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let length = |process| self.streams.get(process).map_or(0, |stream| stream.length);
        let mut said = self.said.iter();
        said.all(|(process, said)| length(process) >= *said)
    }

    /// The record is over: nothing of it is kept, nor taken.
    pub fn end(&mut self, record: u64) {
        if self.record == Some(record) {
            *self = Self {
                over: Some(record),
                drops: self.drops + 1,
                ..Self::default()
            };
        }
    }

    /// Has this record ended?
    #[must_use]
    pub fn is_over(&self, record: u64) -> bool {
        self.over == Some(record)
    }

    /// Bytes of a stream, of which some may be here and some before them missing. `most` is what may be held.
    /// Tells how long the stream is now; `None`: they belong to another record.
    ///
    /// # Errors
    /// [`NoRoom`]: the record has ended.
    pub fn append(
        &mut self,
        record: u64,
        process: u32,
        offset: u64,
        bytes: &[u8],
        most: u64,
    ) -> Result<Option<u64>, NoRoom> {
        if self.record != Some(record) {
            return if self.is_over(record) {
                Err(NoRoom)
            } else {
                Ok(None)
            };
        }
        let stream = self.streams.entry(process).or_default();
        let known = stream.length.checked_sub(offset);
        let known = known.and_then(|known| usize::try_from(known).ok());
        if let Some(new) = known.and_then(|known| bytes.get(known..)) {
            self.held += stream.append(new);
        }
        let length = stream.length;
        if self.held > most {
            self.end(record);
            return Err(NoRoom);
        }
        Ok(Some(length))
    }

    /// What is behind the first `length` bytes of a stream is dropped.
    pub fn cut(&mut self, process: u32, length: u64) {
        let stream = self.streams.get_mut(&process);
        if let Some(stream) = stream.filter(|stream| length < stream.length) {
            self.held -= stream.cut(length);
            self.drops += 1;
            // Who cuts it knows that nothing was said on account of the rest.
            self.said
                .entry(process)
                .and_modify(|said| *said = length.min(*said));
        }
    }

    /// How often something that was kept was dropped: as long as that is the same, the streams have only grown.
    #[must_use]
    pub fn drops(&self) -> u64 {
        self.drops
    }

    /// So many bytes of a stream at the most, fewer at its end.
    #[must_use]
    pub fn read(&self, process: u32, from: u64, most: usize) -> Vec<u8> {
        let stream = self.streams.get(&process);
        stream.map_or_else(Vec::new, |stream| stream.read(from, most))
    }
}

#[cfg(test)]
mod tests;
