//! The replay sender: a TCP sender for a record that is complete, towards a receiver on the same
//! host. It obeys the receiver's window, and sends again from the last acknowledged byte when
//! nothing moves (RFC 9293 3.8.1, with a timer that suits a path without a network).
//!
//! The server gets no more than the client would have sent: input after an answer waits until the server has repeated
//! all output before it, and output counts only when equal to the record (`verify.h`). So no request is executed for a
//! connection that the comparison is going to end: the digest (`digest.h`) of the output that is not recorded is
//! recorded at the place at which the client spoke next, and is compared there.

use std::time::Duration;

use south_model::{Digest, DigestHalf};
use wire::SeqNumber;

/// Nothing was acknowledged for this long: send again. The path is a function call, but the
/// server may be busy, and its receive queue may have refused a frame.
const RETRANSMISSION_TIMEOUT: Duration = Duration::from_millis(40);

/// The server has said all but the last number that the client had heard before its FIN, and no more for
/// this long: that number was the server's own FIN, and it waits for the client's before it says it
/// again. (The client's FIN was recorded when it was sent for the second time.)
const SERVER_FIN_WAIT: Duration = Duration::from_secs(1);
/// It may wait for the FIN even longer before its own end: then it has to get it at last, as from the
/// client itself (`ingress.h`).
const CLIENT_FIN_DELAY_MAX: Duration = Duration::from_secs(30);

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

/// A place at which a client began to speak after having heard all output of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beginning {
    /// The first byte of the client.
    pub instream: SeqNumber,
    /// The end of the output before this place.
    pub heard: SeqNumber,
    /// The digest of that, if not all of it is recorded.
    pub said: Option<Digest>,
}

impl Beginning {
    /// Here all of that is compared with a digest, before what lies behind is given to the server.
    pub(crate) fn compares(&self, heard: SeqNumber) -> bool {
        self.said.is_some() && self.heard.at_or_after(heard)
    }
}

/// The part of a client's input that the restarted server was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Given {
    /// How often the client had begun to speak.
    pub(crate) requests: u32,
    pub(crate) bytes: u32,
}

/// What of a replay waits for digests.
#[derive(Debug, Clone, Copy, Default)]
struct Comparing {
    /// Of so many gates it is known whether they have one, and all were asked for.
    up_to: usize,
    /// What lies before this number is not compared yet.
    due: Option<SeqNumber>,
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
    /// The places at which the client waited for the server, in order.
    gates: Vec<Beginning>,
    /// The number of open gates: the server has repeated the output before these.
    open: usize,
    /// The number of gates behind which the first byte was sent.
    begun: usize,
    comparing: Comparing,
    /// What the client says from there on may have been answered by its dead host.
    doubt: Option<Beginning>,
    /// What the client has said since the death of the server before, and of which no earlier server has read
    /// anything, waits until all that the client was sent is said again.
    later: Option<Beginning>,
    /// The server rests before the last number of what the client has heard: that is taken for the server's end.
    trusts_end: Option<SeqNumber>,
    /// The first byte that was never sent.
    reached: SeqNumber,
    /// Times that the client had begun to speak, in what was given before.
    earlier: u32,
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
        let resend_at = now + RETRANSMISSION_TIMEOUT;
        Self {
            start,
            next: start,
            acked: start,
            edge: start,
            end,
            fin,
            gates: Vec::new(),
            open: 0,
            begun: 0,
            comparing: Comparing::default(),
            doubt: None,
            later: None,
            trusts_end: None,
            reached: start,
            earlier: 0,
            said: None,
            asked: false,
            moved: now,
            resend_at,
        }
    }

    /// With the places at which the client waited for the server.
    pub(crate) fn with_gates(mut self, gates: Vec<Beginning>) -> Self {
        self.gates = gates;
        self.gates
            .retain(|gate| gate.instream.at_or_after(self.next));
        let _ = self.want(); // the first was asked for with the splice
        self
    }

    /// The places that lie behind all that was given.
    pub(crate) fn later_gates(&mut self) -> Vec<Beginning> {
        self.gates.split_off(self.open)
    }

    /// What the client has said in the record since the death of the server before waits for this.
    pub(crate) fn set_later(&mut self, later: Option<Beginning>) {
        self.wait_from(self.start, later);
    }

    /// The next digest to be compared, once: before the server is given what lets it say so much.
    pub(crate) fn want(&mut self) -> Option<Digest> {
        if self.open < self.comparing.up_to {
            return None; // there is one at a time
        }
        let mut later = self.gates.iter().enumerate().skip(self.open);
        let next = later.find_map(|(at, gate)| Some((at, gate.said?)));
        self.comparing.up_to = next.map_or(self.gates.len(), |(at, _)| at + 1);
        next.map(|(_, digest)| digest)
    }

    /// What the data plane is still to compare.
    pub(crate) fn compare(&mut self, digest: &DigestHalf) {
        let due = digest.wanted.filter(|wanted| *wanted != digest.now);
        self.comparing.due = due.map(|wanted| wanted.next);
    }

    /// Everything up to `end` was given; more may come.
    pub(crate) fn resumed(start: SeqNumber, end: SeqNumber, given: Given, now: Duration) -> Self {
        Self {
            next: end,
            acked: end,
            edge: end,
            reached: end,
            earlier: given.requests,
            ..Self::new(start, end, None, now)
        }
    }

    /// At one of the places to come all that a client in doubt has heard is compared with a digest: what the dead
    /// server had read by then waits for nothing else.
    pub(crate) fn compares(&self, doubt: Beginning) -> bool {
        let mut later = self.gates[self.open..].iter();
        later.any(|gate| gate.compares(doubt.heard))
    }

    /// What is in doubt waits for what the client has heard. When it is in doubt no more, the record may have grown.
    pub(crate) fn doubt(&mut self, doubt: Option<Beginning>, now: Duration) {
        let rests = |doubt: &Beginning| {
            let lacks_end = self.said.is_some_and(|said| said + 1 == doubt.heard);
            lacks_end && self.idle(now) >= SERVER_FIN_WAIT
        };
        if let Some(doubt) = doubt.filter(rests) {
            self.trusts_end = Some(doubt.heard);
        }
        let doubt = doubt.filter(|doubt| self.trusts_end != Some(doubt.heard));
        self.asked &= self.doubt.is_none() || doubt.is_some();
        self.doubt = doubt;
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
    pub(crate) fn on_output(&mut self, said: SeqNumber, now: Duration) {
        if self.said.is_none_or(|before| said.after(before)) {
            self.said = Some(said);
            if self.fin.is_some() || self.doubt.is_some() || self.awaits().is_some() {
                self.has_moved(now);
            }
        }
        let Some(said) = self.said else { return };
        let is_open = |gate: &&Beginning| {
            said.at_or_after(gate.heard) && self.comparing.due != Some(gate.heard)
        };
        let opened = self.gates[self.open..].iter().take_while(is_open).count();
        self.open += opened;
        self.later = self.later.filter(|later| !said.at_or_after(later.heard));
    }

    /// All input before a gate was sent: the server has to repeat the output before this number.
    pub(crate) fn awaits(&self) -> Option<SeqNumber> {
        let gate = self.next_gate()?;
        let is_there = self.next == gate.instream && gate.instream.before(self.end);
        is_there.then_some(gate.heard)
    }

    /// The next place at which the input waits: what is in doubt may begin before the next place at which the client
    /// waited.
    fn next_gate(&self) -> Option<&Beginning> {
        let gate = self.gates.get(self.open).into_iter();
        let shut = gate.chain(&self.doubt).chain(&self.later);
        shut.reduce(|gate, other| match other.instream.before(gate.instream) {
            true => other,
            false => gate,
        })
    }

    /// The end of the input that may be sent now.
    fn limit(&self) -> SeqNumber {
        let next = self.next_gate().map(|gate| gate.instream);
        next.map_or(self.end, |next| next.min_seq(self.end))
    }

    /// Nothing waits but what the client has said since the server died.
    pub(crate) fn awaits_later_only(&self) -> bool {
        let before = self.later.map(|later| later.instream);
        before.is_some_and(|before| self.acked.at_or_after(before))
    }

    /// The input that was sent so far.
    pub(crate) fn given(&self) -> Given {
        let bytes = self.reached.distance_from(self.start).unwrap_or(0);
        let first = self
            .gates
            .first()
            .is_none_or(|gate| gate.instream != self.start);
        let requests = self.begun + usize::from(first && bytes > 0);
        let requests = match self.earlier {
            0 => u32::try_from(requests).unwrap_or(u32::MAX),
            earlier => earlier,
        };
        Given { requests, bytes }
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
        both.is_some_and(|(heard, said)| {
            idle >= CLIENT_FIN_DELAY_MAX || (said + 1 == heard && idle >= SERVER_FIN_WAIT)
        })
    }

    fn has_moved(&mut self, now: Duration) {
        self.moved = now;
        self.resend_at = now + RETRANSMISSION_TIMEOUT;
    }

    /// Everything was acknowledged.
    pub(crate) fn complete(&self) -> bool {
        self.acked.at_or_after(self.last())
    }

    /// Whether the record may have grown, of a client that has sent up to `sent`: true once, for one that has bytes,
    /// or of which more is known, and no FIN.
    pub(crate) fn ask_for_more(&mut self, sent: SeqNumber) -> bool {
        let may_have = self.len() > 0 || sent.after(self.end);
        !std::mem::replace(&mut self.asked, true) && may_have && self.fin.is_none()
    }

    /// What the client has sent since: the record ends at `end` now. What of that waits for the server is behind
    /// `later`.
    pub(crate) fn extend(&mut self, end: SeqNumber, later: Option<Beginning>, now: Duration) {
        if self.fin.is_none() && end.after(self.end) {
            let from = std::mem::replace(&mut self.end, end);
            self.wait_from(from, later);
            self.has_moved(now);
        }
    }

    fn wait_from(&mut self, from: SeqNumber, later: Option<Beginning>) {
        let later = later.map(|later| Beginning {
            instream: later.instream.max_seq(from),
            ..later
        });
        let later = later.filter(|later| later.instream.before(self.end));
        self.later = self.later.or(later);
    }

    /// The record ends at `end`: what lies behind is lost, but for what the server has taken.
    pub(crate) fn shorten(&mut self, end: SeqNumber) {
        let end = end.max_seq(self.acked);
        if end.before(self.end) {
            self.end = end;
            self.fin = None;
            self.next = self.next.min_seq(end);
            self.asked = false;
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
            self.resend_at = now + RETRANSMISSION_TIMEOUT;
        }
        let window = self.edge.distance_from(self.next).unwrap_or(0);
        let limit = self.limit();
        let left = limit.distance_from(self.next).unwrap_or(0);
        let len = left.min(window).min(max);
        // A FIN takes a sequence number, and so room in the window (RFC 9293 3.4).
        let fin = (self.fin_is_due() || self.rests_before_the_end(now))
            && limit == self.end
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
        self.reach(segment.from + len);
        Some(segment)
    }

    /// All input before `end` was sent. A record may have very many gates: each gate is passed once.
    fn reach(&mut self, end: SeqNumber) {
        self.reached = self.reached.max_seq(end);
        let begun = |gate: &Beginning| gate.instream.before(self.reached);
        while self.gates.get(self.begun).is_some_and(begun) {
            self.begun += 1;
        }
    }

    /// When to look again if nothing happens before.
    pub(crate) fn deadline(&self) -> Duration {
        self.resend_at
    }
}
