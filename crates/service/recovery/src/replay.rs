//! The replay sender: a TCP sender of a complete record, towards a receiver on the same host. The sender obeys the
//! receiver's window, and retransmits from the last acknowledged byte after a timeout (RFC 9293 3.8.1, with a timer
//! that suits a path without a network).
//!
//! The server gets no more input than the client would have sent: input after a response waits until the server has
//! repeated all output before that input, and output counts only when equal to the record (`verify.h`). Therefore the
//! server executes no request of a connection whose comparison fails before the request. For output that is not
//! recorded, the record has a digest (`digest.h`) at the place of the client's next request, and the comparison takes
//! place there.

use std::time::Duration;

use south_model::{Digest, DigestHalf};
use wire::SeqNumber;

/// A replay retransmits after this time without an acknowledgement. The path is a function call, but the server may be
/// busy, and a full receive queue may have refused a frame.
const RETRANSMISSION_TIMEOUT: Duration = Duration::from_millis(40);

/// The server has repeated all but the last number that the client had before its FIN, and has sent no more for this
/// time. That number was the FIN of the server, and the server waits for the client's FIN before the repetition. (The
/// record has a retransmission of the client's FIN.)
const SERVER_FIN_WAIT: Duration = Duration::from_secs(1);
/// A server may wait even longer for the FIN before its own end. After this time the server gets the FIN, as from the
/// client itself (`ingress.h`).
const CLIENT_FIN_DELAY_MAX: Duration = Duration::from_secs(30);

/// A piece of the record to be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Sequence number of the first byte.
    pub from: SeqNumber,
    /// Number of payload bytes; may be 0 when only the FIN remains.
    pub len: u32,
    /// The client's FIN follows the last byte.
    pub fin: bool,
}

/// A place at which a client began to send after all output of the server had arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beginning {
    /// The first byte of the client.
    pub instream: SeqNumber,
    /// The end of the output before this place.
    pub heard: SeqNumber,
    /// Digest of the output before this place, if the output is not recorded completely.
    pub said: Option<Digest>,
}

impl Beginning {
    /// Whether all output up to `heard` is compared with a digest here, before the server gets later input.
    pub(crate) fn compares(&self, heard: SeqNumber) -> bool {
        self.said.is_some() && self.heard.at_or_after(heard)
    }
}

/// The part of a client's input that the restarted server was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Given {
    /// Number of requests.
    pub(crate) requests: u32,
    pub(crate) bytes: u32,
}

/// Digests of a replay that are still to be compared.
#[derive(Debug, Clone, Copy, Default)]
struct Comparing {
    /// Number of gates whose digests are known, and were asked for.
    up_to: usize,
    /// Output before this number is not compared yet.
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
    /// The FIN follows when the server has sent all output before this number.
    fin: Option<SeqNumber>,
    /// The places at which the client waited for the server, in order.
    gates: Vec<Beginning>,
    /// The number of open gates: the server has repeated the output before these.
    open: usize,
    /// The number of gates behind which the first byte was sent.
    begun: usize,
    comparing: Comparing,
    /// Input from this place on may have been answered by the dead host.
    doubt: Option<Beginning>,
    /// The client's new input since the death, which no earlier server has read, waits until all output is repeated.
    later: Option<Beginning>,
    /// The server pauses before the last number that the client has: this number counts as the FIN of the server.
    trusts_end: Option<SeqNumber>,
    /// The first byte that was never sent.
    reached: SeqNumber,
    /// Number of requests in earlier input.
    earlier: u32,
    /// End of the server's output, if there is any; client space.
    said: Option<SeqNumber>,
    /// The question for more record was asked.
    asked: bool,
    /// Time at which the receiver last took bytes or opened the window.
    moved: Duration,
    /// Time of the next retransmission from the last acknowledged byte.
    resend_at: Duration,
}

impl Replay {
    /// A replay of the record from `start` to `end`, and of the FIN behind the end. The client sent the FIN when the
    /// client had the output up to `fin`.
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
        let _ = self.want(); // the first digest was asked for with the splice
        self
    }

    /// The places that lie behind all that was given.
    pub(crate) fn later_gates(&mut self) -> Vec<Beginning> {
        self.gates.split_off(self.open)
    }

    /// New input in the record since the death waits for this place of the output.
    pub(crate) fn set_later(&mut self, later: Option<Beginning>) {
        self.wait_from(self.start, later);
    }

    /// The next digest to be compared, returned once: before the server gets the input that leads to this output.
    pub(crate) fn want(&mut self) -> Option<Digest> {
        if self.open < self.comparing.up_to {
            return None; // only a single digest is compared at a time
        }
        let mut later = self.gates.iter().enumerate().skip(self.open);
        let next = later.find_map(|(at, gate)| Some((at, gate.said?)));
        self.comparing.up_to = next.map_or(self.gates.len(), |(at, _)| at + 1);
        next.map(|(_, digest)| digest)
    }

    /// Takes the digest that the data plane has still to compare.
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

    /// Whether a later gate compares all output that a client in doubt has with a digest. Then input that the dead
    /// server had read waits for no more output.
    pub(crate) fn compares(&self, doubt: Beginning) -> bool {
        let mut later = self.gates[self.open..].iter();
        later.any(|gate| gate.compares(doubt.heard))
    }

    /// Input in doubt waits for the output that the client has. After the end of the doubt, the record may have grown.
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

    /// The server's output has reached `said`, in client space. The server must repeat the output that the client had
    /// before its FIN, and only then gets the FIN.
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

    /// The next place at which the input waits. Input in doubt may begin before the next gate.
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

    /// Only new input since the server's death waits.
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

    /// The server has all bytes except the FIN, and must send output before the FIN.
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

    /// Whether the record may have grown, for a client that has sent up to `sent`. True once, if the record has bytes
    /// or the client has sent more, and no FIN is recorded.
    pub(crate) fn ask_for_more(&mut self, sent: SeqNumber) -> bool {
        let may_have = self.len() > 0 || sent.after(self.end);
        !std::mem::replace(&mut self.asked, true) && may_have && self.fin.is_none()
    }

    /// The record has more bytes of the client and ends at `end` now. New bytes that must wait for the server begin at
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

    /// The record ends at `end`: later bytes are lost, except bytes that the server has taken.
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

    /// Time since the receiver last took bytes, retransmissions not counted.
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
            // The window is closed. The server may have stopped reading because the server cannot write, while the
            // client's window, as the server knows the window, is closed. A segment without payload carries the
            // client's present window.
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
