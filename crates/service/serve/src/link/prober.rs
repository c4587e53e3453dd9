//! Prober: is the logger there, and how large may a packet to the logger be?
//!
//! The logger answers small PROBEs as long as the logger lives. At first, and when large PROBEs are not answered any
//! more, PROBEs of all possible sizes go out at once, and the largest answered size decides. The path MTU is known
//! after a single round trip, and no ICMP has to be believed (RFC 8899 calls this a search by datagrams of the
//! packetization layer).

use std::{collections::BTreeMap, time::Duration};

use protocol::link::{KeySet, LinkKeys, PROBE_LEN, Probe, ProbeKind};

/// Sizes of IP packets that paths usually carry, bytes: jumbo frames, Ethernet, PPPoE and tunnels, the minimum of IPv6,
/// and the size that each host must accept.
const SIZES: [u16; 11] = [
    9_000, 8_952, 4_352, 1_500, 1_492, 1_460, 1_420, 1_400, 1_360, 1_280, 576,
];
/// The loopback carries more. But the kernel puts no headers before a longer packet that must not be fragmented
/// (`SKB_MAX_ALLOC`: 16 KiB less the kernel's own part).
const LONGEST: u16 = 16_000;
/// Longest search without an answer to the largest probe. All sizes are sent again after a quarter of this time, or
/// after a probe interval if shorter.
const SEARCH: Duration = Duration::from_millis(400);
/// Of this many probes, a single probe has full size, once the size is known ...
const FULL_EVERY: u64 = 10;
/// ... and when this many full probes in a row are not answered, while small probes are, the path MTU has changed.
const FULL_LOST: u32 = 3;

/// Exchange of probes with a logger.
#[derive(Debug)]
pub(crate) struct Prober {
    keys: LinkKeys,
    answers: KeySet,
    interval: Duration,
    /// Headers of IP and UDP.
    overhead: u16,
    counter: u64,
    /// Probes without an answer: time and size.
    outstanding: BTreeMap<u64, (Duration, u16)>,
    next_at: Duration,
    answered_at: Duration,
    /// Time of the first unanswered probe since the last answer. While `serve` is busy and sends no probes, no logger
    /// counts as silent.
    unanswered: Option<Duration>,
    answered: u64,
    round_trip: Option<Duration>,
    search: Option<Search>,
    mtu: Option<u16>,
    full_lost: u32,
}

#[derive(Debug)]
struct Search {
    until: Duration,
    /// Descending.
    sizes: Vec<u16>,
    answered: u16,
}

impl Prober {
    /// `link_mtu`: of the interface to the logger. `counter`: below any that was used with these
    /// keys.
    pub(crate) fn new(
        keys: LinkKeys,
        counter: u64,
        v6: bool,
        link_mtu: u32,
        interval: Duration,
        now: Duration,
    ) -> Self {
        let mut answers = KeySet::EMPTY;
        answers.put(keys.slot, keys.down);
        let mut prober = Self {
            keys,
            answers,
            interval,
            overhead: if v6 { 48 } else { 28 },
            counter,
            outstanding: BTreeMap::new(),
            next_at: now,
            answered_at: now,
            unanswered: None,
            answered: 0,
            round_trip: None,
            search: None,
            mtu: None,
            full_lost: 0,
        };
        prober.search(link_mtu, now);
        prober
    }

    /// Use these keys from now on; answers made with the old ones still count.
    pub(crate) fn rekey(&mut self, keys: LinkKeys) {
        self.answers.put(keys.slot, keys.down);
        self.keys = keys;
    }

    /// Start a new search for the path MTU.
    pub(crate) fn search(&mut self, link_mtu: u32, now: Duration) {
        let most = u16::try_from(link_mtu).unwrap_or(LONGEST).min(LONGEST);
        let mut sizes: Vec<u16> = SIZES.into_iter().filter(|size| *size < most).collect();
        sizes.insert(0, most);
        self.full_lost = 0;
        self.next_at = now;
        self.search = Some(Search {
            until: now + SEARCH,
            sizes,
            answered: 0,
        });
    }

    /// The largest IP packet that gets there; `None` until that is known.
    pub(crate) fn mtu(&self) -> Option<u16> {
        self.mtu
    }

    /// Round-trip time of the last answer.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// Number of answered probes.
    pub(crate) fn answered(&self) -> u64 {
        self.answered
    }

    /// Time of the next probe or the next check.
    pub(crate) fn due_at(&self) -> Duration {
        self.next_at
    }

    /// Time since the first unanswered probe.
    pub(crate) fn silence(&self, now: Duration) -> Duration {
        self.unanswered
            .map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// Whether a sign of life came after this moment.
    pub(crate) fn answered_since(&self, moment: Duration) -> bool {
        self.answered_at > moment
    }

    /// The logger has given a sign of life in another way.
    pub(crate) fn on_activity(&mut self, now: Duration) {
        self.answered_at = now;
        self.unanswered = None;
    }

    /// Probes that are due now.
    pub(crate) fn due(&mut self, now: Duration) -> Vec<Vec<u8>> {
        if now < self.next_at {
            return Vec::new();
        }
        self.next_at = now + self.interval;
        self.unanswered.get_or_insert(now);
        self.forget_unanswered(now);
        self.settle(now);
        let mut sizes = vec![0];
        match (&self.search, self.mtu) {
            (Some(search), _) => {
                let open = |size: &&u16| **size > search.answered;
                sizes.extend(search.sizes.iter().filter(open).copied());
                self.next_at = now + self.interval.min(SEARCH / 4);
            }
            (None, Some(mtu)) if self.counter.is_multiple_of(FULL_EVERY) => sizes.push(mtu),
            (None, _) => {}
        }
        sizes
            .into_iter()
            .map(|size| self.probe(size, now))
            .collect()
    }

    /// Handles a datagram. Returns whether the path MTU has changed.
    pub(crate) fn on_datagram(&mut self, datagram: &[u8], now: Duration) -> bool {
        let Ok(probed) = Probe::decode(ProbeKind::Probed, datagram, &self.answers) else {
            return false; // a stray acknowledgement, or a foreign datagram
        };
        let Some((at, size)) = self.outstanding.remove(&probed.counter) else {
            return false; // answered already, or too late
        };
        self.on_activity(now);
        self.answered += 1;
        self.round_trip = Some(now.saturating_sub(at));
        if Some(size) == self.mtu {
            self.full_lost = 0;
        }
        let before = self.mtu;
        if let Some(search) = &mut self.search {
            search.answered = search.answered.max(size);
        }
        self.settle(now);
        self.mtu != before
    }

    /// An extra probe, at once: a data plane that has just learned of the link sees the route.
    pub(crate) fn probe_now(&mut self, now: Duration) -> Vec<u8> {
        self.probe(0, now)
    }

    fn probe(&mut self, size: u16, now: Duration) -> Vec<u8> {
        self.counter += 1;
        let probe = Probe {
            version: self.keys.version,
            kind: ProbeKind::Probe,
            slot: self.keys.slot,
            counter: self.counter,
        };
        self.outstanding.insert(self.counter, (now, size));
        let mut datagram = probe.encode(&self.keys.up).to_vec();
        let len = usize::from(size.saturating_sub(self.overhead)).max(PROBE_LEN);
        datagram.resize(len, 0);
        datagram
    }

    /// End the search when the largest size was answered, or the time of the search is over.
    fn settle(&mut self, now: Duration) {
        let Some(search) = &self.search else { return };
        let complete = search.sizes.first() == Some(&search.answered);
        if search.answered > 0 && (complete || now >= search.until) {
            self.mtu = Some(search.answered);
            self.search = None;
        }
    }

    /// Old unanswered probes are lost: losses of full size are counted.
    fn forget_unanswered(&mut self, now: Duration) {
        let old = now.saturating_sub(self.interval * 20);
        let full = self.mtu.filter(|_| self.search.is_none());
        let mut lost = 0;
        self.outstanding.retain(|_, (at, size)| {
            let gone = *at < old;
            lost += u32::from(gone && Some(*size) == full);
            !gone
        });
        self.full_lost += lost;
    }

    /// Packets of full size do not get there any more, and small ones do.
    pub(crate) fn has_shrunk(&self, now: Duration) -> bool {
        self.full_lost >= FULL_LOST && self.silence(now) < self.interval * 3
    }
}

#[cfg(test)]
mod tests;
