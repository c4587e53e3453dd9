//! Notes (`read_cursors.h`): with a log link, a server with state (north side) tells its logger by itself what it has read,
//! before it says anything that may depend on it. What was read and is noted there needs no copy.
//!
//! The server's process says how far that is, connection by connection ([`SouthSide::note`]); `stable_seq` is at least
//! that. A copy is left out of a segment that is short, is the next one, comes from a client of which all before was
//! answered and noted, and which waits for no ACK, and soon behind a copy, where many come. What comes again was not
//! answered, and is copied.

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
/// So far behind what the logger has, bytes, a note is of no use.
const STALE: u32 = 1 << 30;

/// How far the server's process has read its connections, and its logger knows what.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notes {
    /// By their ends, and the initial sequence numbers of their clients.
    noted: BTreeMap<(FlowKey, u32), Note>,
    /// Segments that have come since then, and need no copy.
    copies: u32,
    since: u64,
    /// Before that there were few.
    were_few: bool,
}

/// How far one is.
#[derive(Debug, Clone, Copy)]
struct Note {
    /// What lies before that is noted.
    seq: SeqNumber,
    /// Its flow is known.
    is_found: bool,
    /// Its process has not gone on with it: nothing is believed of it any more.
    is_dead: bool,
    /// Up to there no copy was made, and it was not noted yet; 0: all is.
    left: SeqNumber,
}

impl Notes {
    fn of(&mut self, key: &FlowKey, flow: &Flow) -> Option<&mut Note> {
        let note = self.noted.get_mut(&(*key, flow.client.isn.0));
        note.filter(|note| !note.is_dead)
    }

    pub(crate) fn clear(&mut self) {
        self.noted.clear();
    }
}

impl SouthSide {
    /// The server's process says that of this connection, whose client has begun with `isn`, all that lies before
    /// `noted` was read, and that the logger knows what.
    pub fn note(&mut self, key: FlowKey, isn: SeqNumber, noted: SeqNumber) {
        let fresh = Note {
            seq: noted,
            is_found: false,
            is_dead: false,
            left: SeqNumber(0),
        };
        let known = self.shared.notes.noted.entry((key, isn.0));
        let known = known.or_insert(fresh);
        *known = match known.is_dead {
            true => fresh,
            false => Note {
                seq: known.seq.max_seq(noted),
                ..*known
            },
        };
    }
}

impl Shared {
    /// Hear what the server's process has said by now.
    pub(crate) fn hear_note(&mut self, key: &FlowKey, flow: &mut Flow) {
        if let Some(noted) = self.noted_up_to(key, flow) {
            flow.log.stable = flow.log.stable.max_seq(noted);
        }
    }

    /// What lies before that is noted, if that is known of this flow. A note that stays behind, because another
    /// process goes on with the connection, is believed no more before its number comes round.
    fn noted_up_to(&mut self, key: &FlowKey, flow: &Flow) -> Option<SeqNumber> {
        let note = self.notes.of(key, flow);
        let note = note.filter(|note| note.is_found && flow.log.is_noted)?;
        if !note.seq.before(note.left) {
            note.left = SeqNumber(0);
        }
        note.is_dead = note.seq.before(flow.log.stable - STALE);
        (!note.is_dead && !note.seq.after(flow.client.nxt)).then_some(note.seq)
    }

    /// A segment of the client has come. Answers whether anything is noted.
    pub(crate) fn look_at_note(&mut self, key: &FlowKey, flow: &mut Flow) -> bool {
        if self.settings.notes.is_none() {
            return false;
        }
        if let Some(note) = self.notes.of(key, flow) {
            (note.is_found, flow.log.is_noted) = (true, true);
        }
        let noted = self.noted_up_to(key, flow);
        flow.log.stable = noted.map_or(flow.log.stable, |noted| flow.log.stable.max_seq(noted));
        noted.is_some()
    }

    /// Need the logger have no copy of this segment?
    pub(crate) fn is_left_to_notes(
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
        let note = self.notes.of(key, flow);
        if !flow.log.all_acked
            || note.is_none_or(|note| note.left != SeqNumber(0))
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
        if let Some(note) = self.notes.of(key, flow) {
            note.left = flow.client.nxt;
        }
        self.counters.mirror_skipped += 1;
        true
    }

    /// Do so few segments come that all may be copied? As many as that are, too, when more come all at once.
    fn copies_are_few(&mut self, now_ns: u64) -> bool {
        let most = self.settings.notes.unwrap_or(0);
        let notes = &mut self.notes;
        let passed = now_ns.saturating_sub(notes.since);
        if passed > TENTH {
            notes.were_few = passed > 2 * TENTH || notes.copies <= most;
            (notes.since, notes.copies) = (now_ns, 0);
        }
        let before = notes.copies;
        notes.copies = before.saturating_add(1);
        before < most && notes.were_few
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

/// The server says something that acknowledges so much.
pub(crate) fn observe_payload_ack(flow: &mut Flow, segment: &Segment, ack: SeqNumber) {
    if segment.payload_len > 0 {
        flow.log.all_acked = ack == flow.client.nxt;
    }
}
