//! Execution of the actions of the recovery.

use std::{collections::BTreeSet, io, os::fd::AsFd, time::Duration};

use dataplane::{DataplaneError, Space};
use recovery::{Action, Cause, Count, Event as RecoveryEvent, GaveUp, Segment, SplicePoint, Stage};
use south_model::{
    Digest, Flow, expectations, fabricated_syn, keepalive_probe, replayed_segment,
    resets_to_client, window_update, window_update_ack, zero_window_ack,
};
use supervise::{Pid, TcpState, destroy_socket, destroy_sockets};
use wire::{FlowId, FlowKey, SeqNumber};

use crate::{
    clock,
    error::{ServeError, SystemContext},
    events::{Code, Event},
    prefetch::HeadsReply,
    read_ahead::ReadAhead,
    records::Records,
    service::{Service, opened_by_server},
    sysctl_backup,
};

/// Orphans are gone after the first try, or the kernel is too old to destroy orphans.
const ORPHAN_TRIES: u32 = 3;

impl Service {
    /// Do everything that is asked for now.
    /// Tells whether there was anything to do.
    pub(crate) fn execute(&mut self) -> Result<bool, ServeError> {
        let mut acted = false;
        self.clear_prefetched(); // of a round that failed
        while let Some(action) = self.recovery.next_action() {
            tracing::debug!(?action);
            if let Err(error) = self.perform(action) {
                self.recovery.failed(action);
                return Err(error);
            }
            acted = true;
        }
        self.clear_prefetched();
        while let Some(event) = self.recovery.next_event() {
            if let RecoveryEvent::Serving {
                recovered, reset, ..
            } = event
            {
                self.answer_restart(recovered, reset);
            }
            self.emit(Event::Recovery(event));
        }
        if self.recovery.gave_up() == Some(GaveUp::ServerDown) {
            self.fail_restart();
        }
        Ok(acted)
    }

    fn perform(&mut self, action: Action) -> Result<(), ServeError> {
        match action {
            Action::Gate => {
                self.resources.plane.gate()?;
                // A client that sends during the replay must not remove the record of the replay.
                self.hold_turns(true)?;
            }
            Action::KillService => self.resources.cgroup.kill()?,
            Action::RemoveOrphans => self.remove_orphans()?,
            Action::Drain { token } => self.drain(token)?,
            Action::NewIncarnation => {
                self.restore_settings();
                self.resources.plane.new_incarnation()?;
            }
            Action::StartServer => self.schedule_start(),
            Action::ListConnections => self.list_connections()?,
            Action::Expect { flow } => {
                if let Err(error) = self.expect(flow) {
                    self.recovery.no_record(flow); // or a splice would follow
                    return Err(error);
                }
            }
            Action::Splice { key, flow, point } => self.splice(key, flow, point)?,
            Action::Compare { key, flow, digest } => self.compare(key, flow, digest)?,
            Action::Graft { key, flow, point } => self.graft(key, flow, point)?,
            Action::HandOver => self.hand_over_connections()?,
            Action::ProbeClient { key, flow } => self.probe_client(key, flow)?,
            Action::ListWaiting => self.list_waiting()?,
            Action::ZeroWindow { key, flow } => self.send_to_client(key, flow, zero_window_ack)?,
            Action::UpdateWindow { key, flow } => {
                self.send_to_client(key, flow, window_update_ack)?
            }
            Action::RepeatSyn { key, flow } => self.send_syn(key, flow)?,
            Action::Replay { key, flow, segment } => self.replay(key, flow, segment)?,
            Action::MoreRecord { flow, from } => self.more_record(flow, from)?,
            Action::OpenWindow { key, flow } => self.open_window(key, flow)?,
            Action::ForgetExpected { flow } => self.forget_expected(flow)?,
            Action::Recovered => {
                self.resources.plane.recovered()?;
                self.schedule_socket_renewal();
                self.hold_turns(false)?;
            }
            Action::Forget { key, flow } => self.forget(key, flow)?,
            Action::ResetClient { key, flow, .. } => self.reset_client(key, flow)?,
        }
        Ok(())
    }

    /// The kernel's notice that the client has answered may have been lost.
    fn probe_client(&mut self, key: FlowKey, id: FlowId) -> Result<(), ServeError> {
        let flow = self.flow_with_id(key, id)?;
        if flow.is_some_and(|flow| !flow.is_silent()) {
            self.late.push((key, id));
            return Ok(());
        }
        self.send_to_client(key, id, keepalive_probe)
    }

    /// Sockets that the dead server left in the kernel would take the segments of the spliced
    /// connections.
    fn remove_orphans(&mut self) -> Result<(), ServeError> {
        let flows = self.resources.plane.flows()?;
        let opened = opened_by_server(&flows);
        let addresses = self.all_addresses(&opened);
        let such = |is_so: fn(&Flow) -> bool| -> BTreeSet<FlowKey> {
            let such = flows.iter().filter(|(_, flow)| is_so(flow));
            such.map(|(key, _)| *key).collect()
        };
        let finishing = such(|flow| flow.server_closing);
        let unended = such(|flow| flow.half_closed);
        let mut remaining = 0;
        for _ in 0..ORPHAN_TRIES {
            let destroyed = destroy_sockets(&addresses, |local, remote, state| {
                // Other connections may use the port of an upstream connection.
                let key = FlowKey::new(remote, local);
                self.is_of_service(key, &opened) && is_orphan(key, state, &finishing, &unended)
            })?;
            remaining = destroyed.remaining;
            if remaining == 0 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let left = Count(remaining, "socket");
        let reason =
            format!("{left} of the dead server cannot be removed; their connections may be lost");
        self.warn(Code::SocketsLeft, reason);
        Ok(())
    }

    /// A logger that must be restarted has no records whose requests could be lost.
    fn hold_turns(&mut self, hold: bool) -> Result<(), ServeError> {
        self.ask_logger(|logger| logger.hold_turns(hold)).map(drop)
    }

    /// Another program may have reset the settings that injected packets need. If the settings cannot be changed any
    /// more, other connections may still continue.
    fn restore_settings(&mut self) {
        let plane = &mut self.resources.plane;
        let kept = match plane.arrange_again() {
            Ok(false) => return,
            Ok(true) => sysctl_backup::keep(self.resources.lock.directory(), plane),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = kept {
            self.warn(Code::SettingNotChanged, error.to_string());
        }
    }

    /// The ring may be full of frames that the logger has not read yet; the logger is reading.
    fn drain(&mut self, token: u64) -> Result<(), ServeError> {
        let token = self.barriers.wrapping_add(token);
        if let Some(link) = self.resources.logger.link() {
            return link.drain(token, clock::now());
        }
        for _ in 0..1000 {
            match self.resources.plane.barrier(token) {
                Err(DataplaneError::Control { .. }) => std::thread::sleep(Duration::from_millis(1)),
                result => return result.map_err(Into::into),
            }
        }
        Err(ServeError::Logger("it does not read the ring".into()))
    }

    /// When a remote logger does not answer now, and may answer soon, the recovery waits for the logger.
    pub(crate) fn list_connections(&mut self) -> Result<(), ServeError> {
        self.truncate_to_replay_positions()?;
        let summaries = self.ask_logger(|logger| logger.summaries())?;
        self.listing_pending = summaries.is_none() && self.awaits_logger();
        if self.listing_pending {
            return Ok(());
        }
        let records = Records::of(&summaries.unwrap_or_default());
        let flows = self.resources.plane.flows()?;
        self.flows_listed = flows.len();
        let candidates = flows
            .into_iter()
            .filter(|(_, flow)| self.is_of_earlier_incarnation(flow))
            .map(|(key, flow)| self.with_replay_position(records.candidate(key, flow)))
            .collect();
        self.recovery.connections(candidates, clock::now());
        Ok(())
    }

    /// Clients that have found the new server do not need a recovery. (Before the new incarnation has begun, flows of
    /// the dead server still have the present number.)
    fn is_of_earlier_incarnation(&self, flow: &Flow) -> bool {
        self.recovery.stage() == Stage::Clearing || flow.incarnation != self.incarnation
    }

    fn list_waiting(&mut self) -> Result<(), ServeError> {
        let mut flows = self.resources.plane.flows()?;
        flows.retain(|(_, flow)| self.is_of_earlier_incarnation(flow));
        let flows = flows.iter().map(|(key, flow)| (*key, flow));
        self.recovery.waiting(flows, clock::now());
        Ok(())
    }

    /// Connections with a late handshake, or with a late answer of the client.
    pub(crate) fn late_connections(&mut self) -> Result<(), ServeError> {
        let late = std::mem::take(&mut self.late);
        // Earlier, late connections are part of the list.
        let listed = !matches!(self.recovery.stage(), Stage::Serving | Stage::Recovering);
        if late.is_empty() || listed {
            return Ok(());
        }
        let summaries = self.ask_logger(|logger| logger.summaries())?;
        if summaries.is_none() && self.awaits_logger() {
            self.late = late; // until the logger answers
            return Ok(());
        }
        let records = Records::of(&summaries.unwrap_or_default());
        for (key, id) in late {
            if let Some(flow) = self.flow_with_id(key, id)? {
                let candidate = self.with_replay_position(records.candidate(key, flow));
                self.recovery.late_connection(&candidate, clock::now());
            }
        }
        Ok(())
    }

    fn expect(&mut self, flow: FlowId) -> Result<(), ServeError> {
        let (ranges, beginnings, digests) = match self.heads(flow)? {
            HeadsReply::Heads(heads) => heads,
            HeadsReply::NoReply if self.awaits_logger() => {
                self.recovery.unanswered(flow);
                return Ok(());
            }
            HeadsReply::NotKnown | HeadsReply::NoReply => return self.forget_unrecorded(flow),
        };
        let answers: Vec<_> = beginnings.iter().map(|one| one.heard).collect();
        self.recovery.beginnings(flow, beginnings, digests);
        let chunks: Vec<_> = expectations(&ranges, &answers, &self.config.tolerate)
            .into_iter()
            .collect();
        self.resources.plane.expect(flow, &chunks)?;
        self.expected
            .insert(flow, chunks.into_iter().map(|(chunk, _)| chunk).collect());
        Ok(())
    }

    /// The connection may have ended, or been reset by the client, since the list was made.
    fn forget_unrecorded(&mut self, id: FlowId) -> Result<(), ServeError> {
        let flows = self.resources.plane.flows()?;
        let found = flows.iter().find(|(_, flow)| flow.id == id);
        let flow = found.map(|(_, flow)| flow);
        self.recovery.observe(id, flow, clock::now());
        self.recovery.no_record(id);
        Ok(())
    }

    fn forget_expected(&mut self, flow: FlowId) -> Result<(), ServeError> {
        self.read_ahead.forget(flow);
        if let Some(chunks) = self.expected.remove(&flow) {
            self.resources
                .plane
                .forget_expected(flow, chunks.into_iter())?;
        }
        Ok(())
    }

    fn splice(&mut self, key: FlowKey, flow: FlowId, point: SplicePoint) -> Result<(), ServeError> {
        let point = dataplane::SplicePoint {
            instream: point.instream,
            outstream: point.outstream,
            verify_end: point.verify_end,
        };
        if let Some(before) = self.recovery.output_before(flow) {
            let said = self
                .resources
                .plane
                .inherit_digest(key, flow, before.said, before.turn);
            match said {
                Ok(()) | Err(DataplaneError::Control { .. }) => {} // gone
                Err(error) => return Err(error.into()),
            }
        }
        match self.resources.plane.splice(key, flow, point) {
            Err(DataplaneError::Control { .. }) => Ok(()), // gone: the SYN would belong to no flow
            Err(error) => Err(error.into()),
            Ok(()) => {
                if let Some(digest) = self.recovery.compared_first(flow) {
                    self.compare(key, flow, digest)?;
                }
                self.send_syn(key, flow)
            }
        }
    }

    fn compare(&mut self, key: FlowKey, flow: FlowId, digest: Digest) -> Result<(), ServeError> {
        match self.resources.plane.want(key, flow, digest) {
            Ok(()) | Err(DataplaneError::Control { .. }) => Ok(()), // gone
            Err(error) => Err(error.into()),
        }
    }

    /// The flow of this connection; `None` if a newer connection has the same ends.
    pub(crate) fn flow_with_id(
        &self,
        key: FlowKey,
        id: FlowId,
    ) -> Result<Option<Flow>, ServeError> {
        let flow = self.resources.plane.flow(key)?;
        Ok(flow.filter(|flow| flow.id == id))
    }

    fn send_syn(&mut self, key: FlowKey, id: FlowId) -> Result<(), ServeError> {
        let Some(flow) = self.flow_with_id(key, id)? else {
            return Ok(());
        };
        let syn = fabricated_syn(key, &flow)?;
        self.inject(&flow, &syn, Space::Server)
    }

    fn replay(&mut self, key: FlowKey, id: FlowId, segment: Segment) -> Result<(), ServeError> {
        let Some(flow) = self.flow_with_id(key, id)? else {
            return Ok(());
        };
        let here = |ahead: &ReadAhead| ahead.piece(id, segment.from, segment.len).is_some();
        if segment.len > 0 && !here(&self.read_ahead) {
            self.prefetch_replay(id, segment.from, segment.len)?;
        }
        let bytes = match segment.len {
            0 => &[][..],
            // Never replay a gap: without the bytes the replay stalls, and the connection is reset later.
            len => match self.read_ahead.piece(id, segment.from, len) {
                Some(bytes) => bytes,
                None => return Ok(()),
            },
        };
        let packet = replayed_segment(key, &flow, segment.from, bytes, segment.fin)?;
        self.inject(&flow, &packet, Space::Client)
    }

    /// The client's data from the time of the replay: the length of a window is enough to restart the client.
    fn more_record(&mut self, flow: FlowId, from: SeqNumber) -> Result<(), ServeError> {
        let more = self.instream_since(flow, from)?;
        self.read_ahead.forget(flow);
        let len = u32::try_from(more.len()).unwrap_or(0);
        self.recovery.more_record(flow, from + len, clock::now());
        Ok(())
    }

    fn open_window(&mut self, key: FlowKey, id: FlowId) -> Result<(), ServeError> {
        let Some(flow) = self.flow_with_id(key, id)? else {
            return Ok(());
        };
        let packet = window_update(key, &flow)?;
        self.inject(&flow, &packet, Space::Client)
    }

    fn inject(&self, flow: &Flow, packet: &[u8], space: Space) -> Result<(), ServeError> {
        let mut interfaces = self.resources.plane.interfaces();
        let Some(interface) = interfaces.find(|interface| interface.index == flow.ifindex) else {
            tracing::warn!(
                ifindex = flow.ifindex,
                "the interface of a connection is gone"
            );
            return Ok(());
        };
        // A full queue or an interface that is down for a moment: the sender's timer repeats.
        if let Err(error) = self.resources.injector.to_server(interface, packet, space) {
            tracing::warn!(%error, interface = interface.name, "not injected");
        }
        Ok(())
    }

    /// The new server may have the connection, or part of the replay. Without a flow, the next output of the server
    /// would leave untranslated.
    fn forget(&mut self, key: FlowKey, id: FlowId) -> Result<(), ServeError> {
        if self.flow_with_id(key, id)?.is_none() {
            return Ok(());
        }
        if let Err(error) = destroy_socket(key.server(), key.client()) {
            tracing::warn!(%error, %key, "the server's socket of a lost connection stays");
        }
        match self.resources.plane.abandon(key, id) {
            Ok(()) | Err(DataplaneError::Control { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn reset_client(&mut self, key: FlowKey, id: FlowId) -> Result<(), ServeError> {
        let Some(flow) = self.flow_with_id(key, id)? else {
            return Ok(());
        };
        self.forget(key, id)?;
        for packet in resets_to_client(key, &flow)? {
            if let Err(error) = self.resources.send_to_client(&flow, &packet) {
                tracing::warn!(%error, %key, "the client could not be told");
            }
        }
        Ok(())
    }

    /// Schedules the start of the server after the back-off.
    fn schedule_start(&mut self) {
        let now = clock::now();
        self.start_at = Some(now + self.pause);
        self.pause = Duration::ZERO;
    }

    /// Start the server if that is due.
    pub(crate) fn start_if_due(&mut self) -> Result<(), ServeError> {
        let now = clock::now();
        if self.start_at.is_none_or(|at| now < at) {
            return Ok(());
        }
        self.start_at = None;
        let command = supervise::Command::new(self.config.command.clone());
        self.prepare_north()?;
        let shipping = self.sender_socket()?;
        let shipping = shipping.as_ref().map(AsFd::as_fd);
        // A death of the main process counts as a crash only if the programs know the number: also a death at once.
        let plane = &self.resources.plane;
        let number = |pid: Pid| pid.as_raw_pid().unsigned_abs();
        let mut announce = |pid| plane.main_process(number(pid)).map_err(io::Error::other);
        let started = match &mut self.north {
            Some(north) => {
                north.memory().clients_connect_to(&self.config.addresses);
                north.start(&command, &self.resources.cgroup, shipping, &mut announce)
            }
            None => command
                .start_with(&self.resources.cgroup, &[], &mut announce)
                .map_err(ServeError::from),
        };
        match started {
            Ok(server) => {
                // A server that CRIU restored was not announced.
                let pid = number(server.pid());
                self.resources.plane.main_process(pid)?;
                self.server = Some(server);
                self.backoff.started(now);
                self.readiness.started(clock::now());
                self.recovery.started(pid, clock::now());
                self.north_started();
            }
            Err(error) => {
                self.pause = self.backoff.died(now);
                let retry_ms = u64::try_from(self.pause.as_millis()).unwrap_or(u64::MAX);
                self.emit(Event::StartFailed {
                    reason: error.to_string(),
                    retry_ms,
                });
                self.recovery.on_death(Cause::NotServing, now, now);
            }
        }
        Ok(())
    }

    pub(crate) fn reap(&self) {
        let keep: Vec<_> = self.server.iter().map(supervise::Server::pid).collect();
        if let Err(error) = supervise::reap_orphans(&self.resources.cgroup, &keep).doing("reap") {
            tracing::debug!(%error);
        }
    }
}

/// Is this a socket that must be destroyed? The kernel finishes sockets that a living server had closed (`finishing`).
/// Sockets that only wait for the client's FIN or for old segments (RFC 9293 3.6.1) stay, too: their flows may be
/// forgotten by then, and a retransmitted FIN would meet a RST. An exception are sockets of which the server had closed
/// only the output direction (`unended`).
fn is_orphan(
    key: FlowKey,
    state: TcpState,
    finishing: &BTreeSet<FlowKey>,
    unended: &BTreeSet<FlowKey>,
) -> bool {
    let waits = matches!(state, TcpState::FinWait2 | TcpState::TimeWait) && !unended.contains(&key);
    state != TcpState::Listen && !waits && !finishing.contains(&key)
}

#[cfg(test)]
mod tests;
