//! Reading and writing a log.

use crate::batch::Batch;
use crate::format::{
    BadHeader, FORMAT, HEADER, RECORD_HEADER, check_header, header, record_at, seal, sealed_at,
};
use crate::storage::Storage;

/// A piece of a log that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Before all other pieces: segments that are removed unread, because a later segment is missing. The removed
    /// segments are not needed, unless the missing segment should exist.
    Removed {
        /// The numbers, in rising order.
        segments: &'a [u64],
    },
    /// A record.
    Record {
        /// The segment of the record.
        segment: u64,
        /// The version of the segment's format: from [`OLDEST`](crate::OLDEST) to [`VERSION`](crate::VERSION).
        version: u32,
        /// The content.
        bytes: &'a [u8],
    },
    /// The rest of a sealed segment cannot be read: committed records are missing here.
    Damaged {
        /// The segment.
        segment: u64,
    },
    /// A segment has ended, in order or with a torn tail. A group of records never continues in the next segment.
    End {
        /// The segment.
        segment: u64,
        /// Bytes that were read.
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
        /// The number of the segment.
        segment: u64,
        /// The version in the segment.
        version: u32,
    },
    /// The number is too high: not enough numbers are left for later segments.
    #[error(
        "segment {segment:#x} of the log has a number that no log reaches: it is none of the log's"
    )]
    Number {
        /// The number of the segment.
        segment: u64,
    },
}

/// The highest number of a segment that is read: a later segment always has a number, too.
const LAST: u64 = u64::MAX >> 1;

/// A log, for appending.
#[derive(Debug)]
pub struct Log<S> {
    storage: S,
    /// The segment for appending.
    current: u64,
    /// The length of the current segment, bytes.
    len: u64,
    /// The oldest segment that may exist.
    oldest: u64,
}

impl<S: Storage> Log<S> {
    /// Reads all segments, and begins a new segment. Everything that was read is durable on return, so the caller
    /// may act on the records.
    ///
    /// # Errors
    /// [`OpenError`], with the storage.
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

    /// The storage. Records that were not committed may be lost.
    pub fn into_storage(self) -> S {
        self.storage
    }

    /// The number of the segment for appending.
    #[must_use]
    pub const fn current(&self) -> u64 {
        self.current
    }

    /// The storage, to inspect or to inject failures.
    pub const fn storage(&mut self) -> &mut S {
        &mut self.storage
    }

    /// Seals the current segment and begins the next one.
    ///
    /// # Errors
    /// The storage failed: append no more.
    pub fn next_segment(&mut self) -> Result<(), S::Error> {
        self.storage.append(&seal(self.current, self.len))?;
        // The content must not become durable later than the next segment.
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

    /// Appends the records of a batch to the current segment, without a commit.
    ///
    /// # Errors
    /// The storage failed: append no more.
    pub fn append(&mut self, batch: &mut Batch) -> Result<(), S::Error> {
        self.storage.append(batch.seal(self.current, self.len))?;
        self.len += u64::try_from(batch.len()).unwrap_or(u64::MAX);
        Ok(())
    }

    /// Makes all appended records durable.
    ///
    /// # Errors
    /// The storage failed: append no more.
    pub fn commit(&mut self) -> Result<(), S::Error> {
        self.storage.sync()
    }

    /// Removes the segments before this number, but not the current segment. All records that stay must be
    /// committed before: an uncommitted current segment may not even have a name.
    ///
    /// # Errors
    /// A segment could not be removed.
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

/// Reads all segments, and makes the content durable.
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
        // Sealed segments, too: a seal may have been written without a sync.
        storage.sync_old(*number)?;
    }
    // Only now: a refused log stays unchanged.
    for number in removed {
        storage.remove(number)?;
    }
    Ok(numbers)
}

/// Number of segments before the last gap: a removal was under way, so these segments are not needed.
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
