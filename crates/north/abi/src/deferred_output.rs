//! Deferred output: writes that the program has made, before output commit.
//!
//! With a far logger the program does not wait. The output is stored here, and written when the logger has all
//! determinants on which the output may depend (`ft-tcp-infocom-2001`, IV.D).

/// Most deferred bytes.
const DEFERRED_BYTES_MAX: usize = 1 << 20;
/// Most deferred writes.
const DEFERRED_WRITES_MAX: usize = 1024;

/// A deferred write.
#[derive(Debug, Clone, Copy)]
struct Item {
    fd: i32,
    /// End of the bytes, which begin at the end of the write before.
    end: usize,
    /// Stable position at which the write may leave.
    mark: u64,
}

/// Deferred writes in order. At least 512 writes and 512 KiB fit. Unused memory is never touched.
#[derive(Debug)]
pub struct DeferredOutput {
    bytes: [u8; DEFERRED_BYTES_MAX],
    items: [Item; DEFERRED_WRITES_MAX],
    /// Range of the items, and start of the bytes.
    first: usize,
    end: usize,
    start: usize,
}

impl DeferredOutput {
    /// No deferred output.
    pub const EMPTY: Self = Self {
        bytes: [0; DEFERRED_BYTES_MAX],
        items: [Item {
            fd: 0,
            end: 0,
            mark: 0,
        }; DEFERRED_WRITES_MAX],
        first: 0,
        end: 0,
        start: 0,
    };

    /// Whether no output waits.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first == self.end
    }

    /// Space for `length` bytes to `fd`, which leave at stable position `mark`. Marks do not decrease. `None`: full.
    pub fn push(&mut self, fd: i32, mark: u64, length: usize) -> Option<&mut [u8]> {
        if self.is_empty() {
            (self.first, self.end, self.start) = (0, 0, 0);
        } else if self.end == DEFERRED_WRITES_MAX || self.bytes_end() + length > DEFERRED_BYTES_MAX
        {
            self.move_up()?;
        }
        let start = self.bytes_end();
        let room = self.bytes.get_mut(start..start.checked_add(length)?)?;
        let item = self.items.get_mut(self.end)?;
        *item = Item {
            fd,
            end: start + length,
            mark,
        };
        self.end += 1;
        Some(room)
    }

    fn bytes_end(&self) -> usize {
        match self.items[self.first..self.end].last() {
            Some(last) => last.end,
            None => self.start,
        }
    }

    /// Reuses the space of written output, if that is half of all.
    #[cold]
    fn move_up(&mut self) -> Option<()> {
        let (before, end) = (self.start, self.bytes_end());
        if before < DEFERRED_BYTES_MAX / 2 && self.first < DEFERRED_WRITES_MAX / 2 {
            return None;
        }
        self.bytes.copy_within(before..end, 0);
        self.items.copy_within(self.first..self.end, 0);
        (self.end, self.first, self.start) = (self.end - self.first, 0, 0);
        for item in &mut self.items[..self.end] {
            item.end -= before;
        }
        Some(())
    }

    /// The first write and its descriptor, if the write may leave at this stable position.
    #[must_use]
    pub fn first(&self, stable: u64) -> Option<(i32, &[u8])> {
        let item = self.items[self.first..self.end].first()?;
        (item.mark <= stable).then(|| (item.fd, &self.bytes[self.start..item.end]))
    }

    /// Removes the first write.
    pub fn pop(&mut self) {
        if let Some(item) = self.items[self.first..self.end].first() {
            self.start = item.end;
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{boxed::Box, collections::VecDeque, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Writes leave in order, unchanged, and not before their marks, also after a move.
        #[test]
        fn deferred_output_leaves_in_order(
            writes in prop::collection::vec((0..50i32, 0..9000usize, 0..300u64), 1..4000),
        ) {
            let mut held = Box::new(DeferredOutput::EMPTY);
            let mut expected = VecDeque::new();
            for ((fd, length, behind), mark) in writes.into_iter().zip(1u64..) {
                let byte = mark.to_le_bytes()[0];
                let bytes: usize = expected.iter().map(|(.., bytes): &(_, _, Vec<u8>)| bytes.len()).sum();
                match held.push(fd, mark, length) {
                    Some(room) => {
                        room.fill(byte);
                        expected.push_back((fd, mark, std::vec![byte; length]));
                    }
                    None => {
                        prop_assert!(expected.len() >= DEFERRED_WRITES_MAX / 2 || bytes + length > DEFERRED_BYTES_MAX / 2);
                    }
                }
                let stable = mark.saturating_sub(behind);
                while let Some((fd, bytes)) = held.first(stable) {
                    let (to, mark, written) = expected.pop_front().expect("it was pushed");
                    prop_assert!(mark <= stable);
                    prop_assert_eq!((fd, bytes), (to, &written[..]));
                    held.pop();
                }
                prop_assert!(expected.front().is_none_or(|(_, mark, _)| *mark > stable));
                prop_assert_eq!(held.is_empty(), expected.is_empty());
            }
        }
    }
}
