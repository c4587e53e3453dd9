//! Copying of records: forward, so that old log files can be removed, and into a new log.

use journal::{OutstreamSegment, State};
use protocol::control::Resume;
use wire::{FlowId, SeqNumber};

use super::super::entry::{self, Entry};
use super::{Ledger, Mode};
use crate::ingest::digest_of;
use crate::link::{Session, Sessions};

/// Fraction of a log file that is copied forward per commit: 1/16.
const COPY_AT_A_TIME: u64 = 16;
/// Log files that the log may have in addition to twice the size of the records.
const SPARE_SEGMENTS: u64 = 4;
/// Longest piece of a copied record, bytes.
const PIECE: usize = 64 << 10;
/// Places per entry, of eight bytes each.
const PLACES: usize = PIECE / 8;

/// A copy under way.
#[derive(Debug)]
pub(super) struct Copying {
    pub(super) instance: u64,
    pub(super) flow: FlowId,
    pub(super) begun_in: u64,
    /// Start of the record at the start of the copying.
    start: SeqNumber,
    next: SeqNumber,
}

impl Ledger {
    /// The next connection without a record in the log.
    pub(super) fn without_base(&mut self, sessions: &Sessions) -> Option<(u64, FlowId)> {
        for (attach, session) in sessions.iter() {
            let instance = attach.instance;
            let mut after = match self.caught_up_to {
                Some((earlier, _)) if instance < earlier => continue,
                Some((same, flow)) if instance == same => Some(flow),
                _ => None,
            };
            while let Some(flow) = session.journal().next_protected(after) {
                if !self.bases.has(instance, flow) {
                    return Some((instance, flow));
                }
                after = Some(flow);
                self.caught_up_to = Some((instance, flow));
            }
        }
        None
    }

    /// The next connection to copy.
    fn next_to_copy(&mut self, sessions: &Sessions) -> Option<(u64, FlowId)> {
        if self.mode == Mode::CatchingUp {
            return self.without_base(sessions);
        }
        let size: u64 = self.sizes.values().sum();
        let recorded: u64 = sessions
            .iter()
            .map(|(_, s)| s.journal().statistics().held)
            .sum();
        if size <= 2 * recorded + SPARE_SEGMENTS * self.segment_size {
            return None;
        }
        let (segment, flows) = self.bases.by_segment.first_key_value()?;
        flows.first().filter(|_| *segment < self.segment).copied()
    }

    pub(super) fn copy_forward(&mut self, sessions: &Sessions) {
        let part = usize::try_from(self.segment_size / COPY_AT_A_TIME).unwrap_or(usize::MAX);
        let most = self.batch.len().saturating_add(part);
        while self.batch.len() < most {
            let (instance, flow) = match &self.copying {
                Some(copying) => (copying.instance, copying.flow),
                None => match self.next_to_copy(sessions) {
                    Some(next) => next,
                    None => return,
                },
            };
            let session = sessions.get(instance);
            let beginning = session.and_then(|s| Some((s, s.beginning(flow)?)));
            match (beginning, self.copying.take()) {
                // Without a record the entries are not needed.
                (None, _) => {
                    self.bases.remove(instance, flow);
                    self.caught_up_to = Some((instance, flow));
                }
                (Some((session, resume)), Some(copying)) if copying.start == resume.instream => {
                    self.go_on_copying(copying, session);
                }
                // The request has ended: a copy of an earlier request is useless.
                (Some((session, resume)), _) => self.begin_copy(instance, &resume, session),
            }
        }
    }

    fn begin_copy(&mut self, instance: u64, resume: &Resume, session: &Session) {
        let flow = resume.flow;
        self.record(instance, &Entry::CopyBegins(*resume));
        if let Some(progress) = session.progress(flow) {
            let change = entry::Change::Progress(*progress);
            self.record(instance, &Entry::Copied(flow, change));
        }
        for change in said(session, resume) {
            self.record(instance, &Entry::Copied(flow, change));
        }
        self.copying = Some(Copying {
            instance,
            flow,
            begun_in: self.segment,
            start: resume.instream,
            next: resume.instream,
        });
    }

    fn go_on_copying(&mut self, copying: Copying, session: &Session) {
        let Copying { instance, flow, .. } = copying;
        let Some((seq, bytes)) = session.journal().recorded_from(flow, copying.next) else {
            self.end_copy(instance, flow, copying.begun_in, session);
            return;
        };
        let bytes = &bytes[..bytes.len().min(PIECE)];
        self.record(instance, &Entry::Copied(flow, piece(seq, bytes)));
        self.copying = Some(Copying {
            next: seq + u32::try_from(bytes.len()).unwrap_or(0),
            ..copying
        });
    }

    fn end_copy(&mut self, instance: u64, flow: FlowId, begun_in: u64, session: &Session) {
        let summary = session.journal().summary(flow);
        let Some(State::Protected(record)) = summary.map(|summary| summary.state) else {
            self.bases.remove(instance, flow);
            return;
        };
        let beginnings: Vec<_> = session.journal().beginnings(flow).collect();
        for places in beginnings.chunks(PLACES) {
            self.record(instance, &Entry::CopyBeginnings(flow, places.to_vec()));
        }
        let entry = Entry::CopyEnds {
            flow,
            fin: record.fin,
            turn: record.turn,
            answers: record.answers,
            asked: [record.asked, record.doubt],
        };
        self.record(instance, &entry);
        self.bases.put(instance, flow, begun_in);
    }
}

/// Heads and digests of a record, in the order of the outstream: the reader expects each sequence number near the
/// one before, or ahead.
fn said<'a>(session: &'a Session, resume: &Resume) -> Vec<entry::Change<'a>> {
    let journal = session.journal();
    let behind = |seq: SeqNumber| seq.0.wrapping_sub(resume.outstream.0);
    let heads = journal
        .outstream_ranges(resume.flow)
        .flat_map(|(seq, bytes)| {
            let starts = (0u32..).step_by(PIECE);
            let pieces = starts.zip(bytes.chunks(PIECE));
            pieces.map(move |(start, bytes)| (seq + start, bytes))
        });
    let heads = heads.map(|(seq, bytes)| {
        let change = entry::Change::Outstream(OutstreamSegment::in_order(seq, bytes));
        (behind(seq), change)
    });
    let marks = journal.marks(resume.flow).map(|mark| {
        let change = entry::Change::Digest(digest_of(mark), None);
        (behind(mark.next), change)
    });
    let mut all: Vec<_> = heads.chain(marks).collect();
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, change)| change).collect()
}

/// A piece of a record, without the lost details of the arrival.
const fn piece(seq: SeqNumber, bytes: &[u8]) -> entry::Change<'_> {
    entry::Change::Instream {
        seq,
        client_ack: SeqNumber(0),
        heard_all: false,
        heads_known: false,
        doubted: None,
        server: None,
        fin: false,
        bytes,
    }
}
