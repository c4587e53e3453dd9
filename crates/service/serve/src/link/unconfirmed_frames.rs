//! Frames that were sent, and that the logger may not have recorded. A logger that dies loses the data in the sockets,
//! and unwritten data: the next process on the same log gets these frames once more. Two copies of a frame make a
//! single record.

use std::{collections::VecDeque, time::Duration};

/// Bytes that may be unconfirmed; more frames wait in the ring.
const UNCONFIRMED_BYTES: usize = 8 << 20;
/// Interval between requests to confirm.
const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes since the last barrier after which the next barrier does not wait for [`ASK_INTERVAL`].
const ASK_BYTES: usize = UNCONFIRMED_BYTES / 8;

/// The sent frames, oldest first, in the pieces that were sent.
#[derive(Debug, Default)]
pub(super) struct UnconfirmedFrames {
    pieces: VecDeque<Vec<u8>>,
    bytes: usize,
    pending: Option<Pending>,
    asked_at: Duration,
    /// Bytes sent since the logger was asked last.
    fresh: usize,
}

/// A barrier that the logger has not answered.
#[derive(Debug)]
struct Pending {
    token: u64,
    /// Pieces that were sent before the barrier.
    pieces: usize,
}

impl UnconfirmedFrames {
    /// A piece is on its way to the logger.
    pub(super) fn sent(&mut self, piece: Vec<u8>) {
        self.bytes += piece.len();
        self.fresh += piece.len();
        self.pieces.push_back(piece);
    }

    pub(super) fn accepts_more(&self) -> bool {
        self.bytes < UNCONFIRMED_BYTES
    }

    /// Whether the logger should be asked now.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        let is_late = now.saturating_sub(self.asked_at) >= ASK_INTERVAL;
        self.pending.is_none() && self.fresh > 0 && (is_late || self.fresh >= ASK_BYTES)
    }

    /// The logger is asked by a barrier with this token.
    pub(super) fn asks(&mut self, token: u64, now: Duration) {
        let pieces = self.pieces.len();
        self.pending = Some(Pending { token, pieces });
        self.asked_at = now;
        self.fresh = 0;
    }

    /// A barrier was answered. Tells whether the barrier asked for these frames.
    pub(super) fn confirmed(&mut self, token: u64) -> bool {
        let Some(pending) = self.pending.take_if(|one| one.token == token) else {
            return false;
        };
        let recorded = self.pieces.drain(..pending.pieces);
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

    const START_TIME: Duration = Duration::from_secs(5);

    fn piece(length: usize) -> Vec<u8> {
        vec![u8::try_from(length % 256).unwrap(); length]
    }

    #[test]
    fn piece_sent_after_the_question_is_not_confirmed_by_the_answer() {
        let mut frames = UnconfirmedFrames::default();
        frames.sent(piece(10));
        frames.sent(piece(20));
        assert!(frames.is_due(START_TIME));
        frames.asks(7, START_TIME);
        frames.sent(piece(30));
        assert!(!frames.is_due(START_TIME + ASK_INTERVAL), "one at a time");
        assert!(!frames.confirmed(8), "the barrier of somebody else");
        assert!(frames.confirmed(7));
        assert!(!frames.confirmed(7));
        assert_eq!(frames.take(), [piece(30)]);
        assert_eq!(frames.bytes, 0);
        assert!(
            !frames.is_due(START_TIME + ASK_INTERVAL),
            "all is confirmed"
        );
    }

    #[test]
    fn answer_of_the_logger_before_does_not_confirm_a_repetition() {
        let mut frames = UnconfirmedFrames::default();
        frames.sent(piece(10));
        frames.asks(7, START_TIME);
        let pieces = frames.take();
        assert_eq!(pieces, [piece(10)]);
        pieces.into_iter().for_each(|piece| frames.sent(piece));
        assert!(!frames.confirmed(7));
        assert_eq!(frames.take(), [piece(10)]);
    }

    #[test]
    fn question_waits_for_its_interval_or_for_many_bytes() {
        let mut frames = UnconfirmedFrames::default();
        frames.asks(1, START_TIME);
        assert!(frames.confirmed(1));
        frames.sent(piece(10));
        assert!(!frames.is_due(START_TIME));
        assert!(frames.is_due(START_TIME + ASK_INTERVAL));
        frames.sent(piece(ASK_BYTES));
        assert!(frames.is_due(START_TIME));
        frames.asks(2, START_TIME);
        while frames.accepts_more() {
            frames.sent(piece(ASK_BYTES));
        }
        assert!(frames.confirmed(2));
        assert!(frames.accepts_more());
    }
}
