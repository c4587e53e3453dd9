//! Times at which an address that has come to this host is announced to the neighbours.

use std::time::Duration;

/// Times since the address came up. At once, because clients lose each millisecond until then. Soon again, because a
/// broadcast may be lost. After two more seconds, as in RFC 5227 2.3. Then less often, and the last time when a switch
/// port that waits for the spanning tree forwards (IEEE 802.1D: twice 15 s). The first three are closer together than
/// RFC 4861 7.2.6 allows for advertisements: a takeover does not wait a second, as in keepalived.
const SCHEDULE: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
    Duration::from_secs(35),
];

/// A few announcements; the last announcement completes the burst.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Burst {
    began: Duration,
    sent: usize,
}

impl Burst {
    /// The burst begins now.
    pub(crate) const fn begin(now: Duration) -> Self {
        Self {
            began: now,
            sent: 0,
        }
    }

    /// Time of the next announcement.
    pub(crate) fn due(&self) -> Option<Duration> {
        SCHEDULE.get(self.sent).map(|at| self.began + *at)
    }

    /// Is an announcement due now? A late call makes up for all missed announcements at once.
    pub(crate) fn step(&mut self, now: Duration) -> bool {
        let passed = SCHEDULE
            .iter()
            .filter(|at| self.began + **at <= now)
            .count();
        let due = passed > self.sent;
        self.sent = self.sent.max(passed);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_MS: Duration = Duration::from_millis(1);

    /// Times of the announcements in a loop that calls `step` a time `late` after the due time.
    fn sent(late: Duration) -> Vec<Duration> {
        let began = Duration::from_secs(7);
        let mut burst = Burst::begin(began);
        let mut when = Vec::new();
        while let Some(due) = burst.due() {
            assert!(
                !burst.step(due.saturating_sub(ONE_MS)) || due == began,
                "{due:?}"
            );
            let now = due + late;
            if burst.step(now) {
                when.push(now - began);
            }
            assert!(!burst.step(now), "twice");
        }
        assert!(!burst.step(Duration::MAX));
        when
    }

    #[test]
    fn announcements_follow_schedule() {
        assert_eq!(sent(Duration::ZERO), SCHEDULE);
    }

    #[test]
    fn missed_announcements_are_sent_once() {
        let late = sent(Duration::from_secs(2));
        let seconds: Vec<u64> = late.iter().map(Duration::as_secs).collect();
        assert_eq!(seconds, [2, 5, 12, 37]);
        assert_eq!(sent(Duration::from_secs(60)).len(), 1);
    }
}
