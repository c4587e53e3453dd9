//! What the programs tell a logger on another machine through us: heads of the outstream and ends
//! of connections. They are in the ring, one frame a record; the logger is sent many at a time.

use std::{cell::RefCell, os::fd::BorrowedFd, rc::Rc};

use dataplane::{DataplaneError, PinDirectory, Ring};
use protocol::mirror::{HEADER_LEN, MirrorFrame};

/// Records read before what they hold is sent.
const AT_A_TIME: usize = 256;
/// A record is at most an IP packet and its header.
const _: () = assert!(AT_A_TIME * (65_535 + HEADER_LEN) < 64 << 20);

/// The ring, and what was read from it.
pub(super) struct Frames {
    ring: Ring<'static>,
    read: Rc<RefCell<Vec<Vec<u8>>>>,
}

impl Frames {
    pub(super) fn of(pins: &PinDirectory) -> Result<Self, DataplaneError> {
        let read = Rc::new(RefCell::new(Vec::new()));
        let each = Rc::clone(&read);
        let ring = Ring::mirror(pins, move |record| each.borrow_mut().push(frame(record)))?;
        Ok(Self { ring, read })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    /// The next frames, in pieces that fit a message; empty: there are none now.
    pub(super) fn next(&mut self, most: usize) -> Result<Vec<Vec<u8>>, DataplaneError> {
        self.ring.consume_at_most(AT_A_TIME)?;
        let frames = std::mem::take(&mut *self.read.borrow_mut());
        Ok(together(frames, most))
    }
}

/// The record without what it is longer than its frame.
fn frame(record: &[u8]) -> Vec<u8> {
    // One that cannot be read is the logger's to count.
    let len =
        MirrorFrame::decode(record).map_or(record.len(), |frame| HEADER_LEN + frame.packet.len());
    record[..len].to_vec()
}

/// Whole frames, joined as long as they are at most `most` bytes.
fn together(frames: Vec<Vec<u8>>, most: usize) -> Vec<Vec<u8>> {
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    for frame in frames {
        match pieces.last_mut() {
            Some(piece) if piece.len() + frame.len() <= most => piece.extend(frame),
            _ => pieces.push(frame),
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_joined_and_never_cut() {
        let frames = vec![vec![1; 4], vec![2; 4], vec![3; 9], vec![4; 1], vec![5; 20]];
        let pieces = together(frames, 10);
        let lens: Vec<usize> = pieces.iter().map(Vec::len).collect();
        assert_eq!(lens, [8, 10, 20]);
        assert!(together(Vec::new(), 10).is_empty());
    }
}
