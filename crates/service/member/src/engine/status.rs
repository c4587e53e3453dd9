//! The status of a member, read from the maps of the kernel.

use std::collections::BTreeMap;

use lease::Speech;
use objects::{
    PoolKey,
    flow::{Flow, Mode, Phase},
    revive::Position,
    timestamp::Timestamp,
};
use types::JSON_VERSION;
use wire::FlowKey;

use super::{Member, Membership};
use crate::{
    clock,
    error::MemberError,
    records::Records,
    revivals::Revivals,
    status::{
        ConnectionStatus, FlowCount, FlowPhase, HeldBy, PoolStatus, ServerStatus, Status, Totals,
    },
};

/// Label of a response that no other member could go on with, while the connection could be revived before and after.
pub(crate) const UNGUARDED: &str = "response";

impl Member {
    /// The state of this member; with every connection if `list` is true.
    ///
    /// # Errors
    /// A map cannot be read.
    pub(crate) fn status(&self, list: bool) -> Result<Status, MemberError> {
        let flows = self.plane.flows()?;
        let incarnation = self.service.rules.incarnation;
        let (mut counts, mut unprotected_by) = (BTreeMap::new(), BTreeMap::new());
        for (_, flow) in &flows {
            let reason = reason_against(flow);
            let phase = phase(flow, incarnation);
            *counts.entry((phase, held_by(flow))).or_default() += 1;
            if let Some(reason) = reason {
                *unprotected_by.entry(reason.to_owned()).or_default() += 1;
            }
        }
        let flow_count = |((phase, held_by), connections)| FlowCount {
            phase,
            held_by,
            connections,
        };
        let counters = self.plane.counters()?.into_iter();
        let listed = flows.iter().filter(|_| list);
        let listed = listed.map(|(key, flow)| {
            connection(
                *key,
                flow,
                incarnation,
                &self.service.rules.key,
                &self.revivals,
            )
        });
        let pool = self.pool_status();
        Ok(Status {
            version: JSON_VERSION,
            member: self.config.pool.hello.name.to_string(),
            stage: self.stage(&pool).to_owned(),
            uptime_ms: 0,
            server: ServerStatus {
                addresses: self.service.addresses.clone(),
                pid: Some(self.server.main_pid()).filter(|pid| *pid != 0),
                incarnation,
            },
            pool,
            stores: { self.records.as_ref() }.map_or_else(Vec::new, Records::status),
            connections: flows.len(),
            flows: counts.into_iter().map(flow_count).collect(),
            unprotected_by,
            totals: Totals::default(),
            counters: counters
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            list: listed.collect(),
        })
    }

    fn pool_status(&self) -> PoolStatus {
        let balancers = self.config.pool.balancers.clone();
        let Membership::Kept(client, _) = &self.membership else {
            return PoolStatus {
                balancers,
                epoch: None,
                members: 0,
                lease_ms: None,
                balancer_lost: None,
            };
        };
        let view = client.peek();
        let now = clock::boot();
        let rest = match view.speech {
            Speech::Until(end) if end > now => u64::try_from((end - now).as_millis()).ok(),
            Speech::Until(_) | Speech::Silent | Speech::Free => None,
        };
        PoolStatus {
            balancers,
            epoch: Some(view.table.epoch),
            members: view.table.members.len(),
            lease_ms: rest,
            balancer_lost: view.failure,
        }
    }

    fn stage(&self, pool: &PoolStatus) -> &'static str {
        match &self.membership {
            _ if !self.server.listens() => "starting",
            Membership::Waits | Membership::Out(_) => "joining",
            Membership::Kept(..) if pool.lease_ms.is_none() => "silent",
            Membership::Kept(..) => "serving",
        }
    }
}

fn phase(flow: &Flow, incarnation: u32) -> FlowPhase {
    match (flow.mode, flow.turn.phase) {
        (Mode::Reviving, _) => FlowPhase::Reviving,
        _ if flow.incarnation != incarnation => FlowPhase::Orphaned,
        (_, Phase::Idle) if flow.unprotected.is_some() => FlowPhase::Unread,
        (_, Phase::Idle) => FlowPhase::Idle,
        (_, Phase::Asked) => FlowPhase::Asked,
        (_, Phase::Body) => FlowPhase::Body,
    }
}

/// Why no other member could go on with the connection.
fn reason_against(flow: &Flow) -> Option<&'static str> {
    let is_unguarded =
        flow.mode == Mode::Served && flow.turn.phase != Phase::Idle && !flow.turn.is_guarded;
    let of_flow = flow.unprotected.map(|reason| reason.label());
    of_flow.or_else(|| is_unguarded.then_some(UNGUARDED))
}

fn held_by(flow: &Flow) -> HeldBy {
    match reason_against(flow) {
        None if flow.is_released() || !flow.client.has_timestamps => HeldBy::Store,
        None => HeldBy::Client,
        Some(_) => HeldBy::None,
    }
}

/// Bytes of the body that the client has, as the timestamps and the client's acknowledgement tell another member.
fn offset(key: FlowKey, flow: &Flow, pool_key: &PoolKey) -> Option<u64> {
    let turn = &flow.turn;
    let has_echo = flow.client.has_timestamps && !flow.is_exposed();
    let is_told = turn.is_guarded && flow.unprotected.is_none() && has_echo;
    if turn.phase != Phase::Body || !is_told || flow.is_stored() {
        return None;
    }
    let state = Timestamp::from_wire(flow.states.body.bits()).state;
    match Position::of(state, pool_key, &key, flow.client.ack) {
        Ok(Position::Body { offset, .. }) => Some(offset),
        Ok(Position::Idle { .. }) | Err(_) => None,
    }
}

fn connection(
    key: FlowKey,
    flow: &Flow,
    incarnation: u32,
    pool_key: &PoolKey,
    revivals: &Revivals,
) -> ConnectionStatus {
    let reason = reason_against(flow);
    ConnectionStatus {
        connection: key.to_string(),
        phase: phase(flow, incarnation),
        held_by: held_by(flow),
        reason: reason.map(str::to_owned),
        object: revivals.object_of(key, flow).map(str::to_owned),
        offset: offset(key, flow, pool_key),
        acked_bytes: flow.turn.acked,
        response_bytes: flow.turn.response_len(),
    }
}
