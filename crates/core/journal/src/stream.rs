//! Bytes that are appended at the end, and freed from the front.

use std::collections::VecDeque;

use crate::{index, len64};

/// Allocation unit, bytes.
pub(crate) const CHUNK_BYTES: usize = 1 << 16;

/// A stream, from the base on.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Bytes before the base are not kept.
    base: u64,
    /// The position of the first byte in `chunks`: the base, or less than a chunk before.
    begin: u64,
    length: u64,
    /// All chunks but the last are full.
    chunks: VecDeque<Vec<u8>>,
}

impl Stream {
    /// Where the kept bytes begin.
    pub(crate) const fn base(&self) -> u64 {
        self.base
    }

    /// Where the stream ends, dropped bytes included.
    pub(crate) const fn length(&self) -> u64 {
        self.length
    }

    /// Tells how much more memory is held.
    pub(crate) fn append(&mut self, mut bytes: &[u8]) -> u64 {
        let mut held = 0;
        self.length += len64(bytes.len());
        while !bytes.is_empty() {
            let room = self
                .chunks
                .back()
                .map_or(0, |last| CHUNK_BYTES - last.len());
            if room == 0 {
                self.chunks.push_back(Vec::with_capacity(CHUNK_BYTES));
                held += len64(CHUNK_BYTES);
                continue;
            }
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            if let Some(last) = self.chunks.back_mut() {
                last.extend_from_slice(now);
            }
            bytes = later;
        }
        held
    }

    /// Cuts the stream at `length`, or at the base. Returns the number of freed bytes.
    pub(crate) fn cut(&mut self, length: u64) -> u64 {
        let length = length.max(self.base);
        if length >= self.length {
            return 0;
        }
        let before = self.chunks.len();
        let whole = index(length - self.begin);
        self.chunks.truncate(whole.div_ceil(CHUNK_BYTES));
        if let Some(last) = self
            .chunks
            .back_mut()
            .filter(|_| !whole.is_multiple_of(CHUNK_BYTES))
        {
            last.truncate(whole % CHUNK_BYTES);
        }
        self.length = length;
        len64((before - self.chunks.len()) * CHUNK_BYTES)
    }

    /// Moves the base, even behind the end. Returns the number of freed bytes.
    pub(crate) fn release(&mut self, base: u64) -> u64 {
        if base <= self.base {
            return 0;
        }
        let before = self.chunks.len();
        self.base = base;
        if base >= self.length {
            self.chunks.clear();
            (self.begin, self.length) = (base, base);
        }
        while base - self.begin >= len64(CHUNK_BYTES) {
            self.chunks.pop_front();
            self.begin += len64(CHUNK_BYTES);
        }
        len64((before - self.chunks.len()) * CHUNK_BYTES)
    }

    /// At most `most` bytes, fewer at the end; none before the base.
    pub(crate) fn read(&self, from: u64, most: usize) -> Vec<u8> {
        if from < self.base {
            return Vec::new();
        }
        let from = index(from - self.begin);
        let mut skip = from % CHUNK_BYTES;
        let mut out = Vec::new();
        for chunk in self.chunks.iter().skip(from / CHUNK_BYTES) {
            let rest = chunk.get(skip..).unwrap_or_default();
            out.extend_from_slice(&rest[..rest.len().min(most - out.len())]);
            skip = 0;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Append(usize),
        Cut(u64),
        Release(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..150_000usize).prop_map(Step::Append),
            1 => (0..500_000u64).prop_map(Step::Cut),
            2 => (0..500_000u64).prop_map(Step::Release),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// For any operations in any order: a read returns the bytes that were last appended there, and memory is
        /// given back.
        #[test]
        fn stream_equals_appended_bytes(
            steps in prop::collection::vec(step(), 0..20),
            (from, most) in (0..600_000u64, 0..200_000usize),
        ) {
            let (mut stream, mut held, mut next) = (Stream::default(), 0, 0u8);
            // All bytes so far; bytes before the base may have any value.
            let (mut all, mut base) = (Vec::<u8>::new(), 0);
            for step in steps {
                match step {
                    Step::Append(length) => {
                        let bytes: Vec<u8> = (0..length).map(|_| { next = next.wrapping_add(7); next }).collect();
                        held += stream.append(&bytes);
                        all.extend_from_slice(&bytes);
                    }
                    Step::Cut(length) => {
                        held -= stream.cut(length);
                        all.truncate(index(length.max(base)));
                    }
                    Step::Release(to) => {
                        held -= stream.release(to);
                        base = base.max(to);
                        if base > len64(all.len()) {
                            all.resize(index(base), 0);
                        }
                    }
                }
                prop_assert_eq!((stream.base(), stream.length()), (base, len64(all.len())));
                prop_assert_eq!(held, len64(stream.chunks.len() * CHUNK_BYTES));
                prop_assert!(held <= (stream.length() - base) + 2 * len64(CHUNK_BYTES));
            }
            prop_assert!(stream.read(base, usize::MAX) == all[index(base)..]);
            let kept = all.get(index(from)..).filter(|_| from >= base).unwrap_or_default();
            prop_assert!(stream.read(from, most) == kept[..most.min(kept.len())]);
        }
    }
}
