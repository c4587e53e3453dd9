//! Read cursors (`read_cursors.h`): with a log link, a server with state (north side) sends its determinants to the
//! logger before any output that may depend on them. Bytes whose reads are stable there need no copy.
//! The server's process keeps a read cursor for each connection
//! ([`SouthSide::advance_read_cursor`]); `stable_seq` is at least the cursor. A segment is not
//! mirrored if all of these hold: the segment is short, is the next segment, comes soon after a
//! mirrored segment, and comes where many segments come; the server has read and answered the
//! client's earlier bytes; and the client waits for no ACK. A retransmission was not answered, and
//! is mirrored.

use std::collections::BTreeMap;

use wire::{FlowKey, SeqNumber};

use crate::{
    flow::Flow,
    link::PROGRESS,
    packet::Segment,
    south::{Shared, SouthSide},
};

/// As long as a segment of a request may be, bytes.
const PAYLOAD: usize = 1400;
/// A copy follows another within these: bytes of the instream, and nanoseconds.
const BYTES: u32 = 32 * 1024;
const TIME: u64 = 1_000_000_000;
const TENTH: u64 = 100_000_000;
/// A cursor so far behind `stable`, bytes, is useless.
const STALE: u32 = 1 << 30;

/// Read cursors of the server's processes, with stable determinants.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadCursors {
    /// By both ends, and the initial sequence number of the client.
    entries: BTreeMap<(FlowKey, u32), ReadCursor>,
    /// Segments that have come since then, and need no copy.
    copies: u32,
    since: u64,
    /// Before that there were few.
    were_few: bool,
}

/// The cursor of one connection.
#[derive(Debug, Clone, Copy)]
struct ReadCursor {
    /// The determinants of all reads before `seq` are stable.
    seq: SeqNumber,
    /// The flow of the cursor is known.
    is_found: bool,
    /// The process no longer advances the cursor: the cursor is distrusted.
    is_dead: bool,
    /// End of the newest segment that was not mirrored; 0: the cursor has passed that end.
    skipped_to: SeqNumber,
}

impl ReadCursors {
    fn of(&mut self, key: &FlowKey, flow: &Flow) -> Option<&mut ReadCursor> {
        let cursor = self.entries.get_mut(&(*key, flow.client.isn.0));
        cursor.filter(|cursor| !cursor.is_dead)
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}

impl SouthSide {
    /// The server's process has read all before `seq` of this connection, whose client has begun with `isn`, and the
    /// logger has the determinants.
    pub fn advance_read_cursor(&mut self, key: FlowKey, isn: SeqNumber, seq: SeqNumber) {
        let fresh = ReadCursor {
            seq,
            is_found: false,
            is_dead: false,
            skipped_to: SeqNumber(0),
        };
        let known = self.shared.read_cursors.entries.entry((key, isn.0));
        let known = known.or_insert(fresh);
        *known = match known.is_dead {
            true => fresh,
            false => ReadCursor {
                seq: known.seq.max_seq(seq),
                ..*known
            },
        };
    }
}

impl Shared {
    /// Advance `stable` to the read cursor.
    pub(crate) fn advance_stable(&mut self, key: &FlowKey, flow: &mut Flow) {
        if let Some(read) = self.read_up_to(key, flow) {
            flow.log.stable = flow.log.stable.max_seq(read);
        }
    }

    /// Everything before the result is read, with stable determinants; `None`: this flow has no
    /// cursor. A cursor that stays behind, because another process continues the connection, is
    /// distrusted before the number comes round.
    fn read_up_to(&mut self, key: &FlowKey, flow: &Flow) -> Option<SeqNumber> {
        let cursor = self.read_cursors.of(key, flow);
        let cursor = cursor.filter(|cursor| cursor.is_found && flow.log.has_read_cursor)?;
        if !cursor.seq.before(cursor.skipped_to) {
            cursor.skipped_to = SeqNumber(0);
        }
        cursor.is_dead = cursor.seq.before(flow.log.stable - STALE);
        (!cursor.is_dead && !cursor.seq.after(flow.client.nxt)).then_some(cursor.seq)
    }

    /// A segment of the client has come. Answers whether there is a cursor.
    pub(crate) fn poll_read_cursor(&mut self, key: &FlowKey, flow: &mut Flow) -> bool {
        if self.settings.read_cursors.is_none() {
            return false;
        }
        if let Some(cursor) = self.read_cursors.of(key, flow) {
            (cursor.is_found, flow.log.has_read_cursor) = (true, true);
        }
        let read = self.read_up_to(key, flow);
        flow.log.stable = read.map_or(flow.log.stable, |read| flow.log.stable.max_seq(read));
        read.is_some()
    }

    /// Need the logger have no copy of this segment?
    pub(crate) fn is_mirror_skipped(
        &mut self,
        key: &FlowKey,
        flow: &mut Flow,
        segment: &Segment,
        now_ns: u64,
    ) -> bool {
        let length = segment.payload_len;
        let is_next = segment.seq == flow.log.stable && segment.end() == flow.client.nxt;
        let is_request =
            (1..=PAYLOAD).contains(&length) && !segment.flags.contains(wire::Flags::FIN);
        let cursor = self.read_cursors.of(key, flow);
        if !flow.log.all_acked
            || cursor.is_none_or(|cursor| cursor.skipped_to != SeqNumber(0))
            || !is_request
            || !is_next
            || flow.closed_ns != 0
            || self.flow_stands_still(flow, now_ns)
            || is_copy_due(flow, segment, now_ns)
            || self.copies_are_few(now_ns)
        {
            return false;
        }
        flow.log.all_acked = false;
        if let Some(cursor) = self.read_cursors.of(key, flow) {
            cursor.skipped_to = flow.client.nxt;
        }
        self.counters.mirror_skipped += 1;
        true
    }

    /// Whether segments are rare enough to mirror all. In a burst, the same number of segments is
    /// mirrored.
    fn copies_are_few(&mut self, now_ns: u64) -> bool {
        let most = self.settings.read_cursors.unwrap_or(0);
        let cursors = &mut self.read_cursors;
        let passed = now_ns.saturating_sub(cursors.since);
        if passed > TENTH {
            cursors.were_few = passed > 2 * TENTH || cursors.copies <= most;
            (cursors.since, cursors.copies) = (now_ns, 0);
        }
        let before = cursors.copies;
        cursors.copies = before.saturating_add(1);
        before < most && cursors.were_few
    }
}

/// Is a copy due, for the logger to know about where the client is, or for the client to go on?
fn is_copy_due(flow: &Flow, segment: &Segment, now_ns: u64) -> bool {
    let log = &flow.log;
    let is_early_ack_recent =
        log.early_ack_ns != 0 && now_ns.saturating_sub(log.early_ack_ns) < TIME;
    is_early_ack_recent
        || now_ns.saturating_sub(log.copied_ns) > TIME
        || !segment.seq.before(log.copied + BYTES)
        || !segment.ack.before(log.copied_ack + progress_step(flow))
}

/// The logger hears how far a client is that only listens, this many bytes behind at the most.
pub(crate) fn progress_step(flow: &Flow) -> u32 {
    let window = u32::from(flow.client.window) << (flow.client.window_scale & 15);
    PROGRESS.max(window / 2)
}

/// A segment of the server acknowledges so much.
pub(crate) fn observe_payload_ack(flow: &mut Flow, segment: &Segment, ack: SeqNumber) {
    if segment.payload_len > 0 {
        flow.log.all_acked = ack == flow.client.nxt;
    }
}
