//! The replay sender: a TCP sender for a record that is complete, towards a receiver on the same
//! host. It obeys the receiver's window, and sends again from the last acknowledged byte when
//! nothing moves (RFC 9293 3.8.1, with a timer that suits a path without a network).

use std::time::Duration;

use wire::SeqNumber;

/// Nothing was acknowledged for this long: send again. The path is a function call, but the
/// server may be busy, and its receive queue may have refused a frame.
const RETRANSMIT: Duration = Duration::from_millis(40);

/// The server has said all but the last number that the client had heard before its FIN, and no more for
/// this long: that number was the server's own FIN, and it waits for the client's before it says it
/// again. (The client's FIN was recorded when it was sent for the second time.)
const REST: Duration = Duration::from_secs(1);
/// It may wait for the FIN even longer before its own end: then it has to get it at last, as from the
/// client itself (`ingress.h`).
const PATIENCE: Duration = Duration::from_secs(30);

/// A piece of the record to be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Sequence number of its first byte.
    pub from: SeqNumber,
    /// Number of payload bytes; may be 0 when only the FIN is left.
    pub len: u32,
    /// The client's FIN follows the last byte.
    pub fin: bool,
}

/// Progress of one connection's replay.
#[derive(Debug, Clone)]
pub(crate) struct Replay {
    start: SeqNumber,
    next: SeqNumber,
    acked: SeqNumber,
    edge: SeqNumber,
    /// End of the payload.
    end: SeqNumber,
    /// The FIN follows when the server has said everything before this.
    fin: Option<SeqNumber>,
    /// End of what the server has said, if it has said anything; client space.
    said: Option<SeqNumber>,
    /// The question for more record was asked.
    asked: bool,
    /// When the receiver last took something or opened its window.
    moved: Duration,
    /// When to send again from the last acknowledged byte.
    resend_at: Duration,
}

impl Replay {
    /// A replay of the record from `start` to `end`, and of the FIN behind it, which the client
    /// sent when it had heard what `fin` says.
    pub(crate) fn new(
        start: SeqNumber,
        end: SeqNumber,
        fin: Option<SeqNumber>,
        now: Duration,
    ) -> Self {
        let resend_at = now + RETRANSMIT;
        Self {
            start,
            next: start,
            acked: start,
            edge: start,
            end,
            fin,
            said: None,
            asked: false,
            moved: now,
            resend_at,
        }
    }

    fn last(&self) -> SeqNumber {
        self.end + u32::from(self.fin.is_some())
    }

    /// The server's TCP has acknowledged `acked` and offers a window up to `edge`.
    pub(crate) fn update(&mut self, acked: SeqNumber, edge: SeqNumber, now: Duration) {
        if acked.after(self.acked) {
            self.acked = acked;
            self.next = self.next.max_seq(acked);
            self.has_moved(now);
        }
        if edge.after(self.edge) {
            self.edge = edge;
            self.has_moved(now);
        }
    }

    /// The server has said everything before `said`, in client space. What the client had heard
    /// before its FIN, the server must have said before it hears the FIN.
    pub(crate) fn hear(&mut self, said: SeqNumber, now: Duration) {
        if self.said.is_none_or(|before| said.after(before)) {
            self.said = Some(said);
            if self.fin.is_some() {
                self.has_moved(now);
            }
        }
    }

    /// The server has all but the FIN, and has to speak before it gets that.
    pub(crate) fn holds_fin(&self) -> bool {
        self.has_all_bytes() && !self.complete() && !self.fin_is_due()
    }

    /// The server has all but the FIN.
    pub(crate) fn has_all_bytes(&self) -> bool {
        self.acked.at_or_after(self.end)
    }

    fn fin_is_due(&self) -> bool {
        self.fin
            .zip(self.said)
            .is_some_and(|(heard, said)| said.at_or_after(heard))
    }

    fn rests_before_the_end(&self, now: Duration) -> bool {
        let both = self.fin.zip(self.said);
        let idle = self.idle(now);
        both.is_some_and(|(heard, said)| idle >= PATIENCE || (said + 1 == heard && idle >= REST))
    }

    fn has_moved(&mut self, now: Duration) {
        self.moved = now;
        self.resend_at = now + RETRANSMIT;
    }

    /// Everything was acknowledged.
    pub(crate) fn complete(&self) -> bool {
        self.acked.at_or_after(self.last())
    }

    /// Whether the record may have grown, of a client that has sent up to `sent`: true once, for one that has bytes, or of
    /// which more is known, and no FIN.
    pub(crate) fn ask_for_more(&mut self, sent: SeqNumber) -> bool {
        let may_have = self.len() > 0 || sent.after(self.end);
        !std::mem::replace(&mut self.asked, true) && may_have && self.fin.is_none()
    }

    /// What the client has sent since: the record ends at `end` now.
    pub(crate) fn extend(&mut self, end: SeqNumber, now: Duration) {
        if self.fin.is_none() && end.after(self.end) {
            self.end = end;
            self.has_moved(now);
        }
    }

    /// End of the payload to be delivered.
    pub(crate) fn end(&self) -> SeqNumber {
        self.end
    }

    /// Bytes not yet acknowledged.
    pub(crate) fn missing(&self) -> u32 {
        self.last().distance_from(self.acked).unwrap_or(0)
    }

    /// Payload bytes of the whole record.
    pub(crate) fn len(&self) -> u32 {
        self.end.distance_from(self.start).unwrap_or(0)
    }

    /// How long the receiver has taken nothing, however often it was sent.
    pub(crate) fn idle(&self, now: Duration) -> Duration {
        now.saturating_sub(self.moved)
    }

    /// The next piece that may be sent now, of at most `max` bytes.
    pub(crate) fn next_segment(&mut self, max: u32, now: Duration) -> Option<Segment> {
        if self.complete() {
            return None;
        }
        let due = now >= self.resend_at;
        if due {
            self.next = self.acked;
            self.resend_at = now + RETRANSMIT;
        }
        let window = self.edge.distance_from(self.next).unwrap_or(0);
        let left = self.end.distance_from(self.next).unwrap_or(0);
        let len = left.min(window).min(max);
        // A FIN takes a sequence number, and so room in the window (RFC 9293 3.4).
        let fin = (self.fin_is_due() || self.rests_before_the_end(now))
            && len == left
            && len < window
            && self.next.at_or_before(self.end);
        if len == 0 && !fin {
            // A closed window. The server may have stopped reading because it cannot write, and it
            // cannot write because the client's window, as it knows it, is closed: a segment
            // without payload tells it what the client's window is now.
            return due.then_some(Segment {
                from: self.next,
                len: 0,
                fin: false,
            });
        }
        let segment = Segment {
            from: self.next,
            len,
            fin,
        };
        self.next = self.next + len + u32::from(fin);
        Some(segment)
    }

    /// When to look again if nothing happens before.
    pub(crate) fn deadline(&self) -> Duration {
        self.resend_at
    }
}
