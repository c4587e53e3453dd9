//! What a program has said, and what is not to leave yet.
//!
//! Where the logger is far, the program is not made to wait for it: what it writes is taken, kept here, and written
//! when all that it may depend on is safe (*output commit*; `ft-tcp-infocom-2001`, IV.D).

/// Bytes at once.
const ROOM: usize = 1 << 20;
/// Writes at once.
const MOST: usize = 1024;

/// A write that is taken for made.
#[derive(Debug, Clone, Copy)]
struct Item {
    fd: i32,
    /// Where its bytes end; they begin where those of the one before end.
    end: usize,
    /// How much of the record has to be safe before it leaves.
    mark: u64,
}

/// Writes, in their order: 512 of them or more, and 512 KiB. Memory that was never used is never touched.
#[derive(Debug)]
pub struct DeferredOutput {
    bytes: [u8; ROOM],
    items: [Item; MOST],
    /// The items that are there, and where the bytes of the first of them begin.
    first: usize,
    end: usize,
    start: usize,
}

impl DeferredOutput {
    /// Nothing is held.
    pub const EMPTY: Self = Self {
        bytes: [0; ROOM],
        items: [Item {
            fd: 0,
            end: 0,
            mark: 0,
        }; MOST],
        first: 0,
        end: 0,
        start: 0,
    };

    /// Is nothing held?
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first == self.end
    }

    /// Space for `length` bytes that are to go to `fd` when the record is safe up to `mark`. Marks do not decrease.
    /// `None`: there is none.
    pub fn push(&mut self, fd: i32, mark: u64, length: usize) -> Option<&mut [u8]> {
        if self.is_empty() {
            (self.first, self.end, self.start) = (0, 0, 0);
        } else if self.end == MOST || self.bytes_end() + length > ROOM {
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

    /// The place of what has left is used again, if it is worth it: half of all.
    #[cold]
    fn move_up(&mut self) -> Option<()> {
        let (before, end) = (self.start, self.bytes_end());
        if before < ROOM / 2 && self.first < MOST / 2 {
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

    /// The first of them, and where it is to go, if it may leave now that the record is safe up to `stable`.
    #[must_use]
    pub fn first(&self, stable: u64) -> Option<(i32, &[u8])> {
        let item = self.items[self.first..self.end].first()?;
        (item.mark <= stable).then(|| (item.fd, &self.bytes[self.start..item.end]))
    }

    /// The first of them has left.
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

        /// What is pushed leaves in its order, with its bytes, not before its time, and wherever it was moved to.
        #[test]
        fn what_is_held_leaves_in_order(
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
                        prop_assert!(expected.len() >= MOST / 2 || bytes + length > ROOM / 2);
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
