//! Reading and writing a log.

use crate::batch::Batch;
use crate::format::{
    BadHeader, FORMAT, HEADER, RECORD_HEADER, check_header, header, record_at, seal, sealed_at,
};
use crate::storage::Storage;

/// Something that was read from a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Before all others: segments that are there, and that are removed unread, for there is a gap behind them. What
    /// was in them is needed by nobody, unless it is the gap that should not be there.
    Removed {
        /// Which, in their order.
        segments: &'a [u64],
    },
    /// A record.
    Record {
        /// The segment that it is in.
        segment: u64,
        /// Which version of the format wrote that segment: [`VERSION`](crate::VERSION), or the one before.
        version: u32,
        /// What was written.
        bytes: &'a [u8],
    },
    /// The rest of a segment cannot be read, though it had been sealed: records are missing here
    /// that were committed.
    Damaged {
        /// The segment.
        segment: u64,
    },
    /// A segment has ended, in order or with a torn tail. What belongs together is not divided
    /// between two.
    End {
        /// The segment.
        segment: u64,
        /// Its bytes that were read.
        len: u64,
    },
}

/// A log that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError<E> {
    /// The storage failed.
    #[error("{0}")]
    Storage(#[from] E),
    /// A newer program wrote the segment, or a program older than the version before.
    #[error(
        "segment {segment:#x} of the log has version {version}, and this program reads {}: nothing was changed",
        FORMAT.reads()
    )]
    Version {
        /// Which segment.
        segment: u64,
        /// What it says.
        version: u32,
    },
    /// Behind a segment with this number there is no room for as many as are written in all the time.
    #[error(
        "segment {segment:#x} of the log has a number that no log reaches: it is none of the log's"
    )]
    Number {
        /// Which segment.
        segment: u64,
    },
}

/// The highest number of a segment that is read: a later segment always has a number, too.
const LAST: u64 = u64::MAX >> 1;

/// A log that is appended to.
#[derive(Debug)]
pub struct Log<S> {
    storage: S,
    /// The segment that is appended to.
    current: u64,
    /// Its length.
    len: u64,
    /// The oldest that may be there.
    oldest: u64,
}

impl<S: Storage> Log<S> {
    /// Reads what is there, and begins a new segment behind it. What was read is durable when this
    /// returns: who acts on it need not fear that it was not yet.
    ///
    /// # Errors
    /// [`OpenError`], and the storage.
    pub fn open(
        mut storage: S,
        mut each: impl FnMut(Piece<'_>),
    ) -> Result<Self, (S, OpenError<S::Error>)> {
        let numbers = match read_all(&mut storage, &mut each) {
            Ok(numbers) => numbers,
            Err(error) => return Err((storage, error)),
        };
        let oldest = numbers.first().copied();
        let current = numbers.last().map_or(0, |last| last + 1);
        let mut log = Self {
            storage,
            current,
            len: 0,
            oldest: oldest.unwrap_or(current),
        };
        match log.begin(current).and_then(|()| log.commit()) {
            Ok(()) => Ok(log),
            Err(error) => Err((log.storage, error.into())),
        }
    }

    /// The storage. What was not committed may be lost.
    pub fn into_storage(self) -> S {
        self.storage
    }

    /// The number of the segment that is appended to.
    #[must_use]
    pub const fn current(&self) -> u64 {
        self.current
    }

    /// The storage: to be looked at, or made to fail.
    pub const fn storage(&mut self) -> &mut S {
        &mut self.storage
    }

    /// Seals the current segment and begins the next one.
    ///
    /// # Errors
    /// The storage failed: nothing more is to be appended.
    pub fn next_segment(&mut self) -> Result<(), S::Error> {
        self.storage.append(&seal(self.current, self.len))?;
        // What is in it must not become durable later than what follows it.
        self.storage.sync()?;
        self.begin(self.current + 1)
    }

    fn begin(&mut self, number: u64) -> Result<(), S::Error> {
        self.storage.create(number)?;
        self.storage.append(&header(number))?;
        self.current = number;
        self.len = u64::try_from(HEADER).unwrap_or(0);
        Ok(())
    }

    /// Writes the records of a batch to the end of the current segment. They are not durable yet.
    ///
    /// # Errors
    /// The storage failed: nothing more is to be appended.
    pub fn append(&mut self, batch: &mut Batch) -> Result<(), S::Error> {
        self.storage.append(batch.seal(self.current, self.len))?;
        self.len += u64::try_from(batch.len()).unwrap_or(u64::MAX);
        Ok(())
    }

    /// Makes durable what was appended.
    ///
    /// # Errors
    /// The storage failed: nothing more is to be appended.
    pub fn commit(&mut self) -> Result<(), S::Error> {
        self.storage.sync()
    }

    /// Removes the segments before this one, but not the current one.
    ///
    /// # Errors
    /// One could not be removed.
    /// Of what is to stay all must have been committed: the current segment may not even have a name before.
    pub fn remove_before(&mut self, number: u64) -> Result<(), S::Error> {
        let end = number.min(self.current);
        if self.oldest >= end {
            return Ok(());
        }
        for old in self.storage.list()? {
            if old < end {
                self.storage.remove(old)?;
            }
        }
        self.oldest = end;
        Ok(())
    }
}

/// Reads all segments, and makes durable what was read.
fn read_all<S: Storage>(
    storage: &mut S,
    each: &mut impl FnMut(Piece<'_>),
) -> Result<Vec<u64>, OpenError<S::Error>> {
    let mut numbers = storage.list()?;
    if let Some(segment) = numbers.last().copied().filter(|last| *last > LAST) {
        return Err(OpenError::Number { segment });
    }
    let removed: Vec<u64> = numbers.drain(..remains(&numbers)).collect();
    if !removed.is_empty() {
        each(Piece::Removed { segments: &removed });
    }
    for number in &numbers {
        let bytes = storage.read(*number)?;
        read(&bytes, *number, each)?;
        // A sealed one, too: its seal may have been written and never synced.
        storage.sync_old(*number)?;
    }
    // Only now: a refused log stays unchanged.
    for number in removed {
        storage.remove(number)?;
    }
    Ok(numbers)
}

/// How many of these were to be removed: those that were behind them are not there any more, so nobody needs them.
fn remains(numbers: &[u64]) -> usize {
    let is_gap = |pair: &[u64]| pair[0] + 1 != pair[1];
    numbers
        .windows(2)
        .rposition(is_gap)
        .map_or(0, |place| place + 1)
}

/// Reads a segment.
fn read<E>(
    bytes: &[u8],
    segment: u64,
    each: &mut impl FnMut(Piece<'_>),
) -> Result<(), OpenError<E>> {
    let sealed_at = sealed_at(bytes, segment);
    let mut place = 0;
    match check_header(bytes, segment) {
        Ok(version) => {
            place = HEADER;
            while let Some(record) = record_at(bytes, segment, place) {
                each(Piece::Record {
                    segment,
                    version,
                    bytes: record,
                });
                place += RECORD_HEADER + record.len();
            }
        }
        Err(BadHeader::Version(version)) => return Err(OpenError::Version { segment, version }),
        Err(BadHeader::Torn) => {}
    }
    if sealed_at.is_some_and(|seal| seal != place) {
        each(Piece::Damaged { segment });
    }
    each(Piece::End {
        segment,
        len: u64::try_from(place).unwrap_or(u64::MAX),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        format::{OLDEST, VERSION, header_of, record_header},
        simulated::Simulated,
    };

    /// A segment of this version with a record.
    fn of_version(version: u32, number: u64) -> Simulated {
        let mut storage = Simulated::default();
        let record = record_header(number, HEADER as u64, b"record");
        let bytes = [&header_of(version, number)[..], &record, b"record"].concat();
        storage.create(number).expect("made");
        storage.append(&bytes).expect("room");
        storage.sync().expect("kept");
        storage.restart();
        storage
    }

    #[test]
    fn versions_in_range_are_read() {
        for version in 0..10 {
            let mut read = Vec::new();
            let log = Log::open(of_version(version, 7), |piece| {
                if let Piece::Record { version, bytes, .. } = piece {
                    read.push((version, bytes.to_vec()));
                }
            });
            if (OLDEST..=VERSION).contains(&version) {
                assert_eq!(log.expect("a log").current(), 8, "it goes on behind it");
                assert_eq!(read, [(version, b"record".to_vec())]);
            } else {
                let (_, error) = log.expect_err("it is not known");
                let told =
                    matches!(error, OpenError::Version { segment: 7, version: v } if v == version);
                assert!(told && read.is_empty(), "{error}");
            }
        }
    }

    /// A segment before a gap, a segment behind the gap, and a segment of the next version.
    #[test]
    fn log_of_next_version_is_refused_and_stays() {
        let mut storage = of_version(VERSION, 3);
        for (number, version) in [(7, VERSION), (8, VERSION + 1)] {
            storage.create(number).expect("room");
            storage.append(&header_of(version, number)).expect("room");
            storage.sync().expect("kept");
        }
        storage.restart();
        let before = files(storage.clone());
        let (storage, error) = Log::open(storage, |_| ()).expect_err("it is not known");
        let text = error.to_string();
        assert!(
            text.contains(&format!(
                "segment 0x8 of the log has version {}",
                VERSION + 1
            )),
            "{text}"
        );
        assert_eq!(files(storage), before);
    }

    fn files(mut storage: Simulated) -> Vec<(u64, Vec<u8>)> {
        let numbers = storage.list().expect("listed");
        let file = |number: u64| (number, storage.read(number).expect("it is there"));
        numbers.into_iter().map(file).collect()
    }

    #[test]
    fn last_segment_number_is_refused() {
        let open = |number| {
            let mut storage = Simulated::default();
            storage.create(number).expect("made");
            storage.sync().expect("kept");
            storage.restart();
            Log::open(storage, |_| ()).map_err(|(_, error)| error)
        };
        assert_eq!(open(LAST).expect("a log").current(), LAST + 1);
        for number in [LAST + 1, u64::MAX] {
            let error = open(number).expect_err("too high");
            assert!(matches!(error, OpenError::Number { segment } if segment == number));
        }
    }
}
