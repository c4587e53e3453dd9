//! Silence and credit: questions after a timeout, probes, receivers that have failed.

use core::time::Duration;

use super::{Sender, Transmission};
use crate::{PeerSet, window::Phase};

/// Longest time between two probes.
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(2);

impl Sender {
    /// The time of the next call of [`Self::on_timeout`] and [`Self::poll_transmit`]: a time in the past means now.
    /// `None`: nothing happens before an acknowledgement or more data.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        if self.is_over() {
            return None;
        }
        if !self.schedule.questions.is_empty() || self.schedule.probes.is_due {
            return Some(Duration::ZERO);
        }
        let packets = self.may_send().then_some(self.schedule.pace.until);
        let peers = self.live.iter().filter_map(|peer| {
            let since = self.peers[peer].unanswered_since?;
            Some(since.saturating_add(self.settings.peer_timeout))
        });
        let times = peers.chain(packets).chain(self.probe_due());
        times.chain(self.question_due()).min()
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Duration) {
        self.drop_failed_peers(now);
        self.schedule.forget_answered(&self.window);
        if self.question_due().is_some_and(|due| due <= now) {
            self.repeat_questions();
        }
        if self.probe_due().is_some_and(|due| due <= now) {
            self.schedule.probes.is_due = true;
        }
    }

    /// The question of a probe, if due.
    pub(super) fn probe(&mut self, now: Duration) -> Option<Transmission> {
        if !core::mem::take(&mut self.schedule.probes.is_due) {
            return None;
        }
        let blast = self.window.next();
        let Some(round) = self.schedule.probes.of(blast).checked_add(1) else {
            // A nonce is never used a second time.
            for peer in self
                .live
                .iter()
                .filter(|peer| !self.takes(*peer, blast))
                .collect::<Vec<_>>()
            {
                self.drop_peer(peer, now);
            }
            return None;
        };
        self.schedule.probes.sent = (blast, round);
        self.schedule.newest_question = now;
        let mut to = PeerSet::default();
        for peer in self.live.iter() {
            if self.takes(peer, blast) {
                continue;
            }
            let state = &mut self.peers[peer];
            state.unanswered_since = state.unanswered_since.or(Some(now));
            to = to.with(peer);
        }
        (!to.is_empty()).then_some(Transmission::Probe { blast, round, to })
    }

    /// A receiver has not answered within the last timeout.
    pub(super) fn is_silent(&self) -> bool {
        let is_silent = |peer: usize| self.peers[peer].round_trip.is_silent();
        self.live.iter().any(is_silent)
    }

    /// Data or credit limit the transfer now, not the network.
    pub(super) fn is_limited(&self) -> bool {
        let next = self.window.next();
        self.source.len_of(next, &self.settings.layout).is_none() || !self.has_credit(next)
    }

    fn may_send(&self) -> bool {
        if self.is_silent() && self.flaws.waits_in_silence() {
            return false;
        }
        if self.schedule.current.is_some() {
            return true;
        }
        let has_window = self.in_flight == 0 || self.in_flight < self.rate.window();
        has_window && (!self.schedule.repairs.is_empty() || !self.is_limited())
    }

    /// Everything is answered, and a receiver does not take the next blast.
    fn is_out_of_credit(&self) -> bool {
        let next = self.window.next();
        self.in_flight == 0
            && self.schedule.current.is_none()
            && self.schedule.repairs.is_empty()
            && self.source.len_of(next, &self.settings.layout).is_some()
            && !self.has_credit(next)
    }

    /// When the next probe leaves: the receiver tells of more credit by itself, so probes become rare (RFC 9293,
    /// 3.8.6.1).
    fn probe_due(&self) -> Option<Duration> {
        let doubled = 1 << self.schedule.probes.of(self.window.next()).min(16);
        let pause = self.answer_timeout().saturating_mul(doubled);
        let pause = pause.min(PROBE_PAUSE_MAX);
        (self.is_out_of_credit() && self.flaws.probes())
            .then(|| self.schedule.newest_question.saturating_add(pause))
    }

    fn answer_timeout(&self) -> Duration {
        let timeouts = self
            .live
            .iter()
            .map(|peer| self.peers[peer].round_trip.timeout());
        timeouts.max().unwrap_or(Duration::MAX)
    }

    /// When the last packet of a round is repeated.
    fn question_due(&self) -> Option<Duration> {
        let &(oldest, ..) = self.schedule.asked.front()?;
        let start = match self.is_silent() {
            true => self.schedule.newest_question,
            false => oldest,
        };
        Some(start.saturating_add(self.answer_timeout()))
    }

    /// Repeats the last packet of one round for each receiver whose answer is missing: of the oldest round, and in a
    /// silence always of the same blast.
    fn repeat_questions(&mut self) {
        let oldest = self.schedule.asked.iter().map(|asked| asked.1);
        let candidates = core::mem::take(&mut self.schedule.silent).into_iter();
        let mut unasked = self.live;
        for number in candidates.chain(oldest.collect::<Vec<_>>()) {
            let Some(blast) = self.window.get_mut(number) else {
                continue;
            };
            let to = blast.awaited.intersection(unasked);
            if blast.phase != Phase::Asked || to.is_empty() {
                continue;
            }
            blast.phase = Phase::Unanswered;
            for peer in to.iter() {
                self.peers[peer].round_trip.on_timeout();
                unasked = unasked.without(peer);
            }
            self.schedule.silent.push(number);
            self.schedule.questions.push_back(number);
            if unasked.is_empty() {
                return;
            }
        }
    }

    fn drop_failed_peers(&mut self, now: Duration) {
        for peer in self.live.iter() {
            let since = self.peers[peer].unanswered_since;
            if since.is_none_or(|since| since.saturating_add(self.settings.peer_timeout) > now) {
                continue;
            }
            match self.is_awaited(peer) {
                true => self.drop_peer(peer, now),
                false => self.peers[peer].unanswered_since = None,
            }
        }
    }

    /// An answer of the receiver is missing.
    pub(super) fn is_awaited(&self, peer: usize) -> bool {
        let numbers = self.window.base()..self.window.next();
        let is_of = |number: u32| {
            let blast = self.window.get(number);
            blast.is_some_and(|it| it.awaited.contains(peer) && it.is_asked())
        };
        numbers.into_iter().any(is_of)
            || self.is_out_of_credit() && !self.takes(peer, self.window.next())
    }
}
