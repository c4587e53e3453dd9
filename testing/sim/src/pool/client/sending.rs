//! Requests and their retransmissions.

use wire::{Flags, IpPacket, Segment, SeqNumber};

use super::{Downloader, Stage};
use crate::{
    MS, SECOND, length32,
    pool::{site, witness::Broken},
};

const SYN_TIMEOUT: u64 = SECOND;
const RETRY_TIMEOUT: u64 = 200 * MS;
/// Linux' `TCP_RTO_MAX`.
const RETRY_TIMEOUT_MAX: u64 = 120 * SECOND;
/// Time before a probe of the tail (RFC 8985, 7).
const PROBE_TIMEOUT: u64 = 150 * MS;
/// Linux' `tcp_orphan_retries` for a close that nobody answers.
const CLOSE_TRIES: u32 = 8;
/// Time for the server's close; Linux' `tcp_fin_timeout` is a minute.
const FIN_WAIT: u64 = 20 * SECOND;

/// The retransmission timer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timer {
    pub(super) at: u64,
    backoff: u32,
    /// Since the newest acknowledgement.
    tries: u32,
    /// A probe of the tail comes first.
    probes: bool,
    head_sent_at: u64,
}

impl Timer {
    pub(super) const fn begun_at(at: u64) -> Self {
        Self {
            at,
            backoff: 0,
            tries: 0,
            probes: false,
            head_sent_at: 0,
        }
    }

    pub(super) const fn stop(&mut self) {
        self.at = u64::MAX;
        (self.backoff, self.tries) = (0, 0);
    }

    fn timeout(&self) -> u64 {
        (RETRY_TIMEOUT << self.backoff.min(20)).min(RETRY_TIMEOUT_MAX)
    }

    fn start(&mut self, now: u64) {
        (self.backoff, self.tries, self.probes) = (0, 0, true);
        self.at = now + PROBE_TIMEOUT;
    }
}

impl Downloader {
    /// A client sends the next request when it has the whole response before, and waits for the acknowledgement of the
    /// request before, or does not wait.
    pub(super) fn may_ask(&self) -> bool {
        let asked = self.request_ends.len();
        let has_all = asked == self.reader.whole_count();
        let may_send = self.unacked.is_empty() || self.manners.asks_at_once;
        asked < self.fetches.len() && has_all && may_send
    }

    /// Sends segments that are due.
    pub(in crate::pool) fn on_time(&mut self, now: u64) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        match self.stage {
            Stage::Closed | Stage::Reset => return out,
            Stage::Connecting => {
                if now >= self.timer.at {
                    self.nxt = self.isn + 1;
                    self.timer.at = now + (SYN_TIMEOUT << self.timer.tries.min(3));
                    self.timer.tries += 1;
                    out.push(self.syn(now));
                }
                return out;
            }
            Stage::Open => {}
        }
        if self.may_ask() && now >= self.plans.ask_at {
            out.push(self.ask(now));
        }
        let closes = self.plans.close_at.is_some_and(|at| now >= at) || self.reader.has_fin();
        if closes && !self.has_sent_fin && self.has_all() {
            out.push(self.close(now));
        }
        if self.plans.close_at.is_some_and(|at| now >= at) {
            // Behind the last request, which is not acknowledged yet.
            self.plans.close_at = (!self.has_sent_fin).then_some(now + 10 * MS);
        }
        if now >= self.timer.at {
            out.extend(self.repeat(now));
        }
        if self.plans.gives_up_at.is_some_and(|at| now >= at) {
            self.stage = Stage::Closed;
        }
        if self.plans.ack_at.is_some_and(|at| now >= at) {
            out.push(self.ack(now));
        }
        out
    }

    fn ask(&mut self, now: u64) -> Vec<u8> {
        let request = site::request(&self.fetches[self.request_ends.len()]);
        let seq = self.nxt;
        self.nxt += length32(request.len());
        self.request_ends.push(self.nxt);
        self.queue(seq, request.clone(), now);
        self.packet(now, seq, Flags::PSH, &request)
    }

    fn close(&mut self, now: u64) -> Vec<u8> {
        let seq = self.nxt;
        self.nxt += 1;
        self.has_sent_fin = true;
        self.queue(seq, Vec::new(), now);
        self.packet(now, seq, Flags::FIN, &[])
    }

    fn queue(&mut self, seq: SeqNumber, bytes: Vec<u8>, now: u64) {
        self.unacked.push_back((seq, bytes));
        self.timer.start(now);
        self.timer.head_sent_at = now;
    }

    /// The timer: first the newest segment, then the oldest, with pauses that double.
    fn repeat(&mut self, now: u64) -> Option<Vec<u8>> {
        let timer = &mut self.timer;
        if self.unacked.is_empty() {
            timer.stop();
            return None;
        }
        let probes = std::mem::replace(&mut timer.probes, false);
        let (seq, bytes) = if probes {
            timer.at = now + timer.timeout();
            self.unacked.back().cloned()?
        } else {
            timer.tries += 1;
            timer.backoff += 1;
            timer.at = now + timer.timeout();
            timer.head_sent_at = now;
            self.unacked.front().cloned()?
        };
        if bytes.is_empty() {
            if self.timer.tries > CLOSE_TRIES {
                self.stage = Stage::Closed;
                return None;
            }
            return Some(self.packet(now, seq, Flags::FIN, &[]));
        }
        // Linux trims a segment of which a part is acknowledged.
        let known = self.una.distance_from(seq).map_or(0, crate::index);
        let rest = bytes.get(known..).unwrap_or_default();
        Some(self.packet(now, seq + length32(known), Flags::PSH, rest))
    }

    pub(super) fn take_ack(&mut self, ack: SeqNumber, now: u64) -> Result<(), Broken> {
        if !ack.after(self.una) || ack.after(self.nxt) {
            return Ok(());
        }
        if !self.reader.is_unprotected && self.is_acked_early(ack) {
            return Err(Broken::new(
                "a request is acknowledged before its response is whole",
            ));
        }
        self.una = ack;
        // Of a part of a segment Linux takes no round trip: the pause stays.
        self.timer.tries = 0;
        let count = self.unacked.len();
        self.unacked
            .retain(|(seq, bytes)| (*seq + length32(bytes.len().max(1))).after(ack));
        if self.unacked.is_empty() {
            self.timer.stop();
            self.plans.gives_up_at = self.has_sent_fin.then_some(now + FIN_WAIT);
        } else if self.unacked.len() < count {
            self.timer.start(now);
        }
        Ok(())
    }

    /// RFC 6069: the network lost the segment, and not for want of room. Linux takes one doubling back
    /// (`tcp_ld_RTO_revert`).
    pub(super) fn on_unreachable(&mut self, icmp: &[u8], now: u64) {
        let quoted = icmp
            .get(8..)
            .and_then(|quoted| IpPacket::parse(quoted).ok());
        let seq = quoted.and_then(|quoted| Some(Segment::of(&quoted).ok()?.seq()));
        let timer = &mut self.timer;
        if seq != Some(self.una) || timer.tries == 0 || timer.backoff == 0 {
            return;
        }
        timer.backoff -= 1;
        timer.at = (timer.head_sent_at + timer.timeout()).max(now);
    }
}
