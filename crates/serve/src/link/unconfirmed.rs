//! Frames that the logger was sent and perhaps has not recorded. A logger that dies loses what waits in its sockets, and what it
//! has not written: the next process on the same log is sent the frames again. The record of a frame twice is one record.

use std::{collections::VecDeque, time::Duration};

/// Bytes that may be unconfirmed; more frames wait in the ring.
const UNCONFIRMED_BYTES: usize = 8 << 20;
/// How often the logger is asked to confirm.
const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// It is asked at once when this part of [`UNCONFIRMED_BYTES`] has been sent since.
const ASK_BYTES: usize = UNCONFIRMED_BYTES / 8;

/// The frames that were sent, oldest first, in pieces as the logger was sent them.
#[derive(Debug, Default)]
pub(super) struct Unconfirmed {
    pieces: VecDeque<Vec<u8>>,
    bytes: usize,
    asked: Option<Asked>,
    asked_at: Duration,
    /// Bytes sent since the logger was asked last.
    fresh: usize,
}

/// A barrier that the logger has not answered.
#[derive(Debug)]
struct Asked {
    token: u64,
    /// Pieces that were sent before the barrier.
    pieces: usize,
}

impl Unconfirmed {
    /// A piece is on its way to the logger.
    pub(super) fn sent(&mut self, piece: Vec<u8>) {
        self.bytes += piece.len();
        self.fresh += piece.len();
        self.pieces.push_back(piece);
    }

    pub(super) fn has_room(&self) -> bool {
        self.bytes < UNCONFIRMED_BYTES
    }

    /// Whether the logger should be asked now.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        let is_late = now.saturating_sub(self.asked_at) >= ASK_INTERVAL;
        self.asked.is_none() && self.fresh > 0 && (is_late || self.fresh >= ASK_BYTES)
    }

    /// The logger is asked by a barrier with this token.
    pub(super) fn asks(&mut self, token: u64, now: Duration) {
        let pieces = self.pieces.len();
        self.asked = Some(Asked { token, pieces });
        self.asked_at = now;
        self.fresh = 0;
    }

    /// A barrier was answered. Tells whether the barrier was one of these.
    pub(super) fn confirmed(&mut self, token: u64) -> bool {
        let Some(asked) = self.asked.take_if(|asked| asked.token == token) else {
            return false;
        };
        let recorded = self.pieces.drain(..asked.pieces);
        self.bytes -= recorded.map(|piece| piece.len()).sum::<usize>();
        true
    }

    /// There is a new stream to a logger with the same record: all that is not confirmed, to be sent again.
    pub(super) fn take(&mut self) -> Vec<Vec<u8>> {
        let pieces = std::mem::take(self).pieces;
        pieces.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(5);

    fn piece(length: usize) -> Vec<u8> {
        vec![u8::try_from(length % 256).unwrap(); length]
    }

    #[test]
    fn piece_sent_after_the_question_is_not_confirmed_by_the_answer() {
        let mut frames = Unconfirmed::default();
        frames.sent(piece(10));
        frames.sent(piece(20));
        assert!(frames.is_due(NOW));
        frames.asks(7, NOW);
        frames.sent(piece(30));
        assert!(!frames.is_due(NOW + ASK_INTERVAL), "one at a time");
        assert!(!frames.confirmed(8), "the barrier of somebody else");
        assert!(frames.confirmed(7));
        assert!(!frames.confirmed(7));
        assert_eq!(frames.take(), [piece(30)]);
        assert_eq!(frames.bytes, 0);
        assert!(!frames.is_due(NOW + ASK_INTERVAL), "there is nothing");
    }

    #[test]
    fn answer_of_the_logger_before_confirms_nothing_that_was_sent_again() {
        let mut frames = Unconfirmed::default();
        frames.sent(piece(10));
        frames.asks(7, NOW);
        let again = frames.take();
        assert_eq!(again, [piece(10)]);
        again.into_iter().for_each(|piece| frames.sent(piece));
        assert!(!frames.confirmed(7));
        assert_eq!(frames.take(), [piece(10)]);
    }

    #[test]
    fn question_waits_for_its_interval_or_for_many_bytes() {
        let mut frames = Unconfirmed::default();
        frames.asks(1, NOW);
        assert!(frames.confirmed(1));
        frames.sent(piece(10));
        assert!(!frames.is_due(NOW));
        assert!(frames.is_due(NOW + ASK_INTERVAL));
        frames.sent(piece(ASK_BYTES));
        assert!(frames.is_due(NOW));
        frames.asks(2, NOW);
        while frames.has_room() {
            frames.sent(piece(ASK_BYTES));
        }
        assert!(frames.confirmed(2));
        assert!(frames.has_room());
    }
}
