//! Mirror frames from the programs to a remote logger by way of `serve`: response heads and ends of connections. The
//! ring has a record for each frame; the logger gets many frames at a time.

use std::{cell::RefCell, os::fd::BorrowedFd, rc::Rc, time::Duration};

use dataplane::{DataplaneError, PinDirectory, Ring};
use protocol::{
    control::MAX_DATA,
    mirror::{HEADER_LEN, MirrorFrame},
};
use rand::Rng as _;

use super::unconfirmed_frames::UnconfirmedFrames;
use crate::{error::ServeError, logger_client::LoggerClient};

/// Bytes of frames that may wait for the logger; more wait in the ring.
const WAITING_BYTES: usize = 1 << 20;
/// Records read before their frames are sent.
const AT_A_TIME: usize = 256;
/// A record is at most an IP packet and a header.
const _: () = assert!(AT_A_TIME * (65_535 + HEADER_LEN) < 64 << 20);

/// The ring, and the records read from the ring.
pub(super) struct Frames {
    ring: Ring<'static>,
    read: Rc<RefCell<Vec<Vec<u8>>>>,
    /// Frames that were read and not sent, in pieces that fit a message.
    fetched: Vec<Vec<u8>>,
    unconfirmed: UnconfirmedFrames,
}

impl Frames {
    pub(super) fn of(pins: &PinDirectory) -> Result<Self, DataplaneError> {
        let read = Rc::new(RefCell::new(Vec::new()));
        let each = Rc::clone(&read);
        let ring = Ring::mirror(pins, move |record| each.borrow_mut().push(frame(record)))?;
        Ok(Self {
            ring,
            read,
            fetched: Vec::new(),
            unconfirmed: UnconfirmedFrames::default(),
        })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    /// Reads the next frames. Tells whether there were any.
    pub(super) fn fetch(&mut self) -> Result<bool, DataplaneError> {
        self.ring.consume_at_most(AT_A_TIME)?;
        let frames = std::mem::take(&mut *self.read.borrow_mut());
        let pieces = together(frames, MAX_DATA);
        let any = !pieces.is_empty();
        self.fetched.extend(pieces);
        Ok(any)
    }

    /// Whether to read on while `queued` bytes wait in the control stream to the logger.
    pub(super) fn accepts_more(&self, queued: usize) -> bool {
        let fetched: usize = self.fetched.iter().map(Vec::len).sum();
        queued + fetched < WAITING_BYTES && self.unconfirmed.accepts_more()
    }

    /// Sends the frames that were read. From time to time a barrier asks the logger for a confirmation.
    pub(super) fn forward(
        &mut self,
        client: &mut LoggerClient,
        now: Duration,
    ) -> Result<(), ServeError> {
        let mut sent = Ok(());
        for piece in std::mem::take(&mut self.fetched) {
            sent = sent.and_then(|()| client.frames(&piece));
            self.unconfirmed.sent(piece);
        }
        sent?;
        if self.unconfirmed.is_due(now) {
            let token = rand::rng().random();
            client.barrier(token)?;
            self.unconfirmed.asks(token, now);
        }
        Ok(())
    }

    /// The logger has recorded all frames before this barrier. Tells whether the barrier belongs to the frames.
    pub(super) fn confirmed(&mut self, token: u64) -> bool {
        self.unconfirmed.confirmed(token)
    }

    /// A logger has a new stream. If the logger has the same record, the unconfirmed frames of the earlier stream come
    /// first.
    pub(super) fn attached(&mut self, same_record: bool) {
        let pieces = self.unconfirmed.take();
        if same_record {
            self.fetched.splice(..0, pieces);
        }
    }

    /// Without a logger, the frames are dropped.
    pub(super) fn discard(&mut self) {
        self.fetched.clear();
        self.unconfirmed.take();
    }
}

/// The frame of a record, without the padding.
fn frame(record: &[u8]) -> Vec<u8> {
    // An unreadable frame is left to the logger, which counts such frames.
    let behind = MirrorFrame::first(record).map_or(0, |(_, rest)| rest.len());
    record[..record.len() - behind].to_vec()
}

/// Whole frames, joined to pieces of at most `most` bytes.
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
