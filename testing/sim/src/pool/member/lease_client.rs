//! The thread that keeps the lease: the crate `member` does the same with a stream (`pool_client.rs`).

use std::{num::NonZeroU16, time::Duration};

use lease::{Speech, Terms, pool::MemberLease};
use objects::plane::Plane;
use pool::StreamId;
use protocol::pool::{
    BalancerMessage, Config, Hello, MemberAddress, MemberMessage, MembershipState, Refused, Table,
};

use super::{Around, Member, address};
use crate::{
    MS, SECOND,
    pool::{balancer::Balancer, network::Clock, scenario::PoolFlaw},
};

const RECONNECT_PAUSE: u64 = 100 * MS;
const CONNECT_TIMEOUT: u64 = SECOND;
/// A stream is given up after this time without an answer.
const UNANSWERED_TIMEOUT: u64 = 2 * SECOND;
/// Time for the first answers of the balancer.
const ADMISSION_TIMEOUT: u64 = 5 * SECOND;

/// An admission, or a lease that is kept.
pub(super) struct LeaseClient {
    pub(super) stream: Option<StreamId>,
    pub(super) membership: u64,
    /// `None` before the admission.
    pub(super) lease: Option<MemberLease>,
    config: Option<Config>,
    pub(super) table: Option<Table>,
    pub(super) refused: Option<Refused>,
    pub(super) stopped_until: u64,
    answered_at: u64,
    reconnects_at: u64,
}

impl LeaseClient {
    fn joining(membership: u64, now: u64) -> Self {
        Self {
            stream: None,
            membership,
            lease: None,
            config: None,
            table: None,
            refused: None,
            stopped_until: 0,
            answered_at: now,
            reconnects_at: now,
        }
    }

    /// The balancer does not answer a member that joins.
    pub(super) fn has_failed(&self, now: u64) -> bool {
        self.lease.is_none() && now > self.answered_at + ADMISSION_TIMEOUT
    }

    pub(super) const fn gives_up_at(&self) -> u64 {
        match self.lease {
            None => self.answered_at + ADMISSION_TIMEOUT + 1,
            Some(_) => u64::MAX,
        }
    }

    pub(super) fn speaks(&self, reading: Duration) -> bool {
        let lease = self.lease.as_ref();
        lease.is_some_and(|lease| lease.speech().at(reading))
    }

    pub(super) fn due(&self, balancer: &Balancer, clock: &Clock) -> u64 {
        if self.refused.is_some() {
            return u64::MAX;
        }
        let due = match self.stream {
            None => self.reconnects_at,
            Some(stream) => {
                let asks = self.lease.as_ref().map(MemberLease::asks_at);
                let asks = asks.map_or(u64::MAX, |at| clock.when(at));
                let unanswered = self.answered_at + UNANSWERED_TIMEOUT + 1;
                balancer.next_message_at(stream).min(asks).min(unanswered)
            }
        };
        due.max(self.stopped_until)
    }

    /// The pool has changed a short time ago.
    fn note_change(&self, now: Duration, plane: &mut Plane, around: &Around<'_>) {
        if let Some(config) = &self.config
            && !around.scenario.has(PoolFlaw::NoQuiescence)
        {
            let quiescence = Duration::from_millis(config.quiescence_ms.into());
            plane.set_quiescence(now + quiescence);
        }
    }

    fn lose_stream(&mut self, now: u64) {
        self.stream = None;
        self.reconnects_at = now + RECONNECT_PAUSE;
    }
}

impl Member {
    /// Begins a membership.
    pub(super) fn begin_membership(&mut self, membership: u64, now: u64) {
        self.lease_client = Some(LeaseClient::joining(membership, now));
    }

    /// Asks for the lease, and enforces the answer.
    pub(super) fn keep(&mut self, around: &mut Around<'_>) {
        let Some(mut lease_client) = self.lease_client.take() else {
            return;
        };
        let is_due = lease_client.due(around.balancer, &self.clock) <= around.now;
        if is_due {
            match lease_client.stream {
                None => self.connect(&mut lease_client, around),
                Some(stream) => self.exchange(&mut lease_client, stream, around),
            }
        }
        self.lease_client = Some(lease_client);
    }

    fn connect(&mut self, lease_client: &mut LeaseClient, around: &mut Around<'_>) {
        let now = around.now;
        if now < self.control_side_cut_until || !around.balancer.has_power() {
            lease_client.reconnects_at = now + CONNECT_TIMEOUT + RECONNECT_PAUSE;
            return;
        }
        let Some(stream) = around.balancer.connect() else {
            lease_client.reconnects_at = now + RECONNECT_PAUSE;
            return;
        };
        let state = match &lease_client.lease {
            None => MembershipState::New,
            Some(_) if lease_client.speaks(self.clock.reading(now)) => MembershipState::Speaks,
            Some(_) => MembershipState::Silent,
        };
        let hello = Hello {
            name: self.name.clone(),
            membership: lease_client.membership,
            state,
            address: MemberAddress::new(address(self.number, around.scenario.is_v6))
                .expect("an address"),
            claim_port: NonZeroU16::MIN,
            epoch: lease_client.table.as_ref().map_or(0, |it| it.epoch),
        };
        let way = (now, &mut *around.rng);
        let message = Some(MemberMessage::Hello(hello));
        around.balancer.say(stream, message, way);
        lease_client.stream = Some(stream);
        lease_client.answered_at = now;
        if let Some(lease) = &mut lease_client.lease {
            lease.on_reconnect();
        }
    }

    fn exchange(
        &mut self,
        lease_client: &mut LeaseClient,
        stream: StreamId,
        around: &mut Around<'_>,
    ) {
        let now = around.now;
        let reading = self.clock.reading(now);
        if let Some(lease) = lease_client
            .lease
            .as_mut()
            .filter(|it| it.asks_at() <= reading)
            && let Some((number, answered)) = lease.ask(reading)
        {
            let message = Some(MemberMessage::LeaseRequest { number, answered });
            let from = now.max(self.control_side_cut_until);
            around.balancer.say(stream, message, (from, around.rng));
        }
        while let Some(message) = around.balancer.next_message(stream, now) {
            let Some(message) = message else {
                return lease_client.lose_stream(now);
            };
            lease_client.answered_at = now;
            self.on_message(lease_client, message, around);
        }
        if now > lease_client.answered_at + UNANSWERED_TIMEOUT {
            let from = now.max(self.control_side_cut_until);
            around.balancer.say(stream, None, (from, around.rng));
            lease_client.lose_stream(now);
        }
    }

    fn on_message(
        &mut self,
        lease_client: &mut LeaseClient,
        message: BalancerMessage,
        around: &Around<'_>,
    ) {
        match message {
            BalancerMessage::Lease { number, term_us } => {
                let term = Duration::from_micros(term_us.into());
                let Some(lease) = &mut lease_client.lease else {
                    return;
                };
                if lease.on_grant(number, term) {
                    enforce(&mut self.plane, lease.speech(), around);
                }
            }
            BalancerMessage::Table(table) => {
                let known = lease_client.table.as_ref();
                if known.is_none_or(|known| table.epoch > known.epoch) {
                    lease_client.table = Some(table);
                    lease_client.note_change(
                        self.clock.reading(around.now),
                        &mut self.plane,
                        around,
                    );
                }
            }
            BalancerMessage::Config(config) => lease_client.config = Some(config),
            BalancerMessage::Granter { .. } => {}
            BalancerMessage::Refused { reason } => {
                if let Some(lease) = &mut lease_client.lease {
                    lease.silence();
                }
                enforce(&mut self.plane, Speech::Silent, around);
                lease_client.refused = Some(reason);
            }
        }
        if lease_client.lease.is_none()
            && lease_client.table.is_some()
            && let Some(config) = &lease_client.config
        {
            let terms = Terms::of_config(config).expect("terms of a balancer");
            lease_client.lease = Some(MemberLease::new(terms));
            lease_client.note_change(self.clock.reading(around.now), &mut self.plane, around);
        }
    }
}

fn enforce(plane: &mut Plane, speech: Speech, around: &Around<'_>) {
    let end = match speech {
        Speech::Until(_) if around.scenario.has(PoolFlaw::LeaseNotEnforced) => Duration::MAX,
        Speech::Until(end) => end,
        Speech::Silent | Speech::Free => Duration::ZERO,
    };
    plane.set_lease(end);
}
