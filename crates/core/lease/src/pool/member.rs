//! The member's side: asking for leases, and knowing until when the member may send.

use std::{collections::VecDeque, time::Duration};

use crate::{Speech, Terms};

/// Requests whose answers are waited for; of more, the oldest are forgotten.
const OUTSTANDING_MAX: usize = 16;

/// The lease of this member. Times are those of the member's clock.
///
/// The caller sends the result of [`MemberLease::ask`] at [`MemberLease::asks_at`], and makes the data plane enforce
/// [`MemberLease::speech`].
#[derive(Debug, Clone)]
pub struct MemberLease {
    terms: Terms,
    number: u64,
    answered: u64,
    asked_at: Option<Duration>,
    speech: Speech,
    /// The membership is over.
    over: bool,
    /// Numbers of requests and the times of sending, in order.
    outstanding: VecDeque<(u64, Duration)>,
}

impl MemberLease {
    /// A silent member.
    #[must_use]
    pub const fn new(terms: Terms) -> Self {
        Self {
            terms,
            number: 0,
            answered: 0,
            asked_at: None,
            speech: Speech::Silent,
            over: false,
            outstanding: VecDeque::new(),
        }
    }

    /// A new process of a member whose data plane still enforces `speech`.
    #[must_use]
    pub fn resumed(self, speech: Speech) -> Self {
        Self { speech, ..self }
    }

    /// When the next request is due: three times in a term; at once, if there was none.
    #[must_use]
    pub fn asks_at(&self) -> Duration {
        let interval = self.terms.interval();
        let next = self.asked_at.map(|asked| asked.saturating_add(interval));
        next.unwrap_or_default()
    }

    /// Makes a request, to be sent not before `now`: the number of the request, and of the newest answered request.
    /// `None`: the membership is over.
    pub fn ask(&mut self, now: Duration) -> Option<(u64, u64)> {
        if self.over {
            return None;
        }
        // Above the numbers of an earlier process of this membership, which asked at most once per nanosecond.
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.number = self.number.saturating_add(1).max(nanos);
        self.asked_at = Some(now);
        if self.outstanding.len() == OUTSTANDING_MAX {
            self.outstanding.pop_front();
        }
        self.outstanding.push_back((self.number, now));
        Some((self.number, self.answered))
    }

    /// The stream to the balancer is new: the next request is due at once.
    pub fn on_reconnect(&mut self) {
        self.asked_at = None;
    }

    /// Takes the answer to a request. Returns whether [`MemberLease::speech`] has changed. An answer to an older
    /// request than the newest answered request is ignored.
    pub fn on_grant(&mut self, number: u64, term: Duration) -> bool {
        let mut known = self.outstanding.iter();
        let Some(&(number, sent)) = known.find(|(other, _)| *other == number) else {
            return false;
        };
        self.outstanding.retain(|(other, _)| *other > number);
        self.answered = number;
        // The granted term sets the interval of requests.
        self.terms.term = term.max(Terms::SHORTEST_TERM);
        let end = self.terms.speaks_until(sent, term);
        let before = self.speech;
        self.speech = match before {
            Speech::Until(earlier) => Speech::Until(end.max(earlier)),
            _ => Speech::Until(end),
        };
        self.speech != before
    }

    /// The membership is over, or the member leaves: silent from now on, for good. The caller silences the data plane
    /// before telling the balancer.
    pub fn silence(&mut self) {
        self.over = true;
        self.speech = Speech::Silent;
        self.outstanding.clear();
    }

    /// Until when the member may send.
    #[must_use]
    pub const fn speech(&self) -> Speech {
        self.speech
    }
}
