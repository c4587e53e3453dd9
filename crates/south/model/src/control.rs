//! Control (`control.h`): state that user space may change.

use protocol::{
    Digest, DigestSeed,
    mirror::{CloseReason, FrameKind},
};
use types::UnprotectedReason;
use wire::{FlowId, FlowKey, SeqNumber};

use crate::{
    digest::DigestKey,
    flow::{Flow, Mode, Restored, SpliceHalf},
    south::SouthSide,
    tolerance::Expect,
};

/// The connection with this key is not known, or no longer: another connection may have the same
/// ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no connection {0} is known")]
pub struct NoSuchFlow(
    /// The key.
    pub FlowKey,
);

/// The ring to the logger has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the ring to the logger is full")]
pub struct RingFull;

/// With a log link, a flow whose first server has closed stays for the client's last segments: long
/// enough for some retransmissions, ns.
const LAST_WORDS: u64 = 5_000_000_000;

/// The service as a whole.
impl SouthSide {
    /// The supervisor lives.
    pub const fn heartbeat(&mut self, now_ns: u64) {
        self.shared.service.heartbeat_ns = now_ns;
    }

    /// Shut the gate now.
    pub const fn gate(&mut self, now_ns: u64) {
        let service = &mut self.shared.service;
        if !service.gated {
            service.gated_ns = now_ns;
        }
        service.gated = true;
    }

    /// Begins a new incarnation of the server: the gate opens for this incarnation alone.
    pub fn new_incarnation(&mut self) {
        let service = &mut self.shared.service;
        service.recovering = true;
        service.incarnation = service.incarnation.wrapping_add(1);
        service.gated = false;
        // No process is left that could say more.
        self.shared.read_cursors.clear();
    }

    /// Until when the service may send, on the clock of `now_ns`; `None`: no lease is needed.
    pub const fn set_lease(&mut self, end_ns: Option<u64>) {
        self.shared.service.lease_until_ns = end_ns;
    }

    /// Every connection that could be kept is live again: strays are reset from now on.
    pub const fn recovered(&mut self) {
        self.shared.service.recovering = false;
    }

    /// Whether the server is asked to end: then deaths are no crashes.
    pub const fn stopping(&mut self, is: bool) {
        self.shared.service.stopping = is;
    }

    /// From now on digests are taken with the key of the host that served before. There are no connections yet.
    pub fn take_digest_key(&mut self, seed: DigestSeed) {
        if let Some(digests) = &mut self.shared.settings.digests {
            digests.key = DigestKey::made_of(seed);
        }
    }

    /// Connections are numbered from here on, or higher: there are some with lower numbers.
    pub const fn number_from(&mut self, first: FlowId) {
        let service = &mut self.shared.service;
        if service.next_flow_id < first.0 {
            service.next_flow_id = first.0;
        }
    }

    /// Sets the server's main process.
    pub const fn main_process(&mut self, pid: u32) {
        self.shared.service.main_pid = pid;
    }

    /// Puts a barrier behind all recorded frames.
    ///
    /// # Errors
    /// The ring has no space.
    pub fn barrier(&mut self, token: u64, now_ns: u64) -> Result<(), RingFull> {
        let none = Flow::default();
        let done = self
            .shared
            .mirror_marker(&none, FrameKind::Barrier { token }, now_ns);
        done.then_some(()).ok_or(RingFull)
    }

    /// Forget the flows whose sockets have been gone for longer than `age_ns`; returns how many.
    pub fn sweep(&mut self, age_ns: u64, now_ns: u64) -> usize {
        let limit = now_ns.saturating_sub(age_ns);
        let ended_limit = now_ns.saturating_sub(age_ns.min(LAST_WORDS));
        let before = self.flows.len();
        let shared = &mut self.shared;
        self.flows.retain(|_, flow| {
            let without_record = flow.log.ended || !shared.settings.link;
            let ended = without_record && flow.mode == Mode::Observed;
            let limit = if ended { ended_limit } else { limit };
            let stays = flow.closed_ns == 0 || flow.closed_ns >= limit;
            if !stays && shared.settings.link && !flow.log.ended {
                let reason = CloseReason::Evicted;
                shared.mirror_marker(flow, FrameKind::Closed(reason), now_ns);
            }
            stays
        });
        before - self.flows.len()
    }
}

/// Changes of one connection, by ends and number.
impl SouthSide {
    fn numbered(&mut self, key: FlowKey, id: FlowId) -> Result<&mut Flow, NoSuchFlow> {
        let flow = self.flows.get_mut(&key).filter(|flow| flow.id == id);
        flow.ok_or(NoSuchFlow(key))
    }

    /// Prepares a flow for the fabricated SYN, which has the number `instream`. `outstream` is the
    /// client-space number of the new server's first byte. Output before `verify_end` is compared
    /// with the record.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn splice(
        &mut self,
        key: FlowKey,
        id: FlowId,
        instream: SeqNumber,
        outstream: SeqNumber,
        verify_end: SeqNumber,
        now_ns: u64,
    ) -> Result<(), NoSuchFlow> {
        let incarnation = self.shared.service.incarnation;
        let digests = self.shared.settings.digests.clone();
        let flow = self.numbered(key, id)?;
        flow.mode = Mode::Splicing;
        flow.splice = SpliceHalf {
            instream,
            outstream,
            ack: instream + 1,
            rcv_wnd_edge: instream + 1,
            ..SpliceHalf::default()
        };
        flow.verify.end = verify_end;
        flow.verify.compared = 0;
        flow.verify.tolerated = 0;
        flow.verify.unverified = 0;
        flow.verify.behind = 0;
        flow.verify.ended_early = false;
        flow.verify.by_digest = false;
        flow.digest
            .restart(digests.as_ref(), outstream, flow.client.ack);
        flow.log.former_ack = flow.log.former_ack.max_seq(flow.log.ack);
        flow.log.ack = instream + 1;
        flow.log.rcv_wnd_edge = instream + 1;
        flow.log.blocks.clear();
        flow.log.deferred.clear();
        flow.log.has_read_cursor = false;
        flow.log.all_acked = false;
        flow.closed_ns = 0;
        (flow.server_closing, flow.half_closed, flow.was_reset) = (false, false, false);
        flow.given_ns = now_ns;
        flow.incarnation = incarnation;
        Ok(())
    }

    /// The same for a socket that was made at the numbers which the client knows, with room for `window` bytes.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn graft(
        &mut self,
        key: FlowKey,
        id: FlowId,
        instream: SeqNumber,
        outstream: SeqNumber,
        window: u32,
        now_ns: u64,
    ) -> Result<(), NoSuchFlow> {
        self.splice(key, id, instream, outstream, outstream, now_ns)?;
        let flow = self.numbered(key, id)?;
        flow.splice.isn = outstream - 1;
        flow.splice.nxt = outstream;
        flow.splice.una = outstream;
        flow.splice.rcv_wnd_edge = flow.splice.ack + window;
        flow.splice.window_scale = flow.server.window_scale;
        flow.splice.first_tsval = flow.server.tsval;
        flow.log.rcv_wnd_edge = flow.splice.rcv_wnd_edge;
        // The determinants of the reads are stable: the server has waited for output commit before
        // telling the position.
        flow.log.stable = flow.log.stable.max_seq(flow.splice.ack);
        flow.log.snd_beyond_stable &= flow.client.nxt.after(flow.log.stable);
        if flow.log.restored != Restored::Not {
            // The client may have this acknowledgement already.
            flow.server.ack = flow.server.ack.max_seq(flow.splice.ack);
            flow.server.rcv_wnd_edge = flow.server.rcv_wnd_edge.max_seq(flow.splice.ack);
        }
        flow.mode = Mode::Spliced;
        Ok(())
    }

    /// Another host's output to the client has the digest `acked`; `turn` covers the output before
    /// the part that a replay repeats. Changes only a restored flow that has not been spliced
    /// since.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn inherit_digest(
        &mut self,
        key: FlowKey,
        id: FlowId,
        acked: Digest,
        turn: Digest,
    ) -> Result<(), NoSuchFlow> {
        let digests = self.shared.settings.digests.clone();
        let flow = self.numbered(key, id)?;
        flow.digest.inherit_digest(digests.as_ref(), acked, turn);
        Ok(())
    }

    /// The client's next request waits until the server has repeated the output that `digest`
    /// covers.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn want(&mut self, key: FlowKey, id: FlowId, digest: Digest) -> Result<(), NoSuchFlow> {
        self.numbered(key, id)?.digest.want(digest);
        Ok(())
    }

    /// Adds a flow from a record (see [`crate::restored_flow`]), instead of from a handshake.
    pub fn restore(&mut self, key: FlowKey, flow: Flow) {
        self.flows.insert(key, flow);
    }

    /// Forget a flow.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn abandon(&mut self, key: FlowKey, id: FlowId, now_ns: u64) -> Result<(), NoSuchFlow> {
        let reason = CloseReason::Evicted;
        let flow = self.numbered(key, id)?.clone();
        self.shared
            .mirror_marker(&flow, FrameKind::Closed(reason), now_ns);
        self.flows.remove(&key);
        Ok(())
    }

    /// The logger has no complete record of this flow.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn unprotect(
        &mut self,
        key: FlowKey,
        id: FlowId,
        reason: UnprotectedReason,
    ) -> Result<(), NoSuchFlow> {
        self.numbered(key, id)?.unprotected = Some(reason);
        Ok(())
    }

    /// The logger takes no record of the handshake with this number: its next SYN-ACK goes to the client at once.
    ///
    /// Returns the connection, or `None` if there is no such handshake.
    pub fn refuse(&mut self, id: FlowId, reason: UnprotectedReason) -> Option<FlowKey> {
        let mut half_open = self.half_open.iter_mut();
        let (key, half_open) =
            half_open.find(|(_, half_open)| half_open.id == id && id != FlowId(0))?;
        half_open.unprotected = Some(reason);
        Some(*key)
    }

    /// Records a flow again that had lost the logger, from the client's next request on. Returns
    /// whether the flow had lost the logger.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn reprotect(&mut self, key: FlowKey, id: FlowId) -> Result<bool, NoSuchFlow> {
        let link = self.shared.settings.link;
        let flow = self.numbered(key, id)?;
        let lost = link && flow.unprotected == Some(UnprotectedReason::LoggerLost);
        if lost {
            flow.unprotected = Some(UnprotectedReason::AwaitsTurn);
        }
        Ok(lost)
    }

    /// Sets the expected replayed outstream of `flow`, by chunk number.
    pub fn expect(&mut self, flow: FlowId, chunks: impl IntoIterator<Item = (u32, Expect)>) {
        let chunks = chunks
            .into_iter()
            .map(|(chunk, expect)| ((flow, chunk), expect));
        self.expected.extend(chunks);
    }

    /// The comparison is over.
    pub fn forget_expected(&mut self, flow: FlowId, chunks: impl IntoIterator<Item = u32>) {
        for chunk in chunks {
            self.expected.remove(&(flow, chunk));
        }
    }
}

#[cfg(test)]
mod tests;
