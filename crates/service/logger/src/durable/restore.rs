//! Reading a log, which rebuilds the records.

use journal::{InstreamSegment, Position, Unprotected};
use protocol::control::Resume;
use wal::{Log, OpenError, Piece, Storage};
use wire::{FlowId, SeqNumber};

use super::entry::{Change, Entry};
use super::ledger::{Job, Ledger};
use crate::link::{Session, Sessions};

/// The result of reading a log.
#[derive(Debug)]
pub struct Restored<S> {
    /// The log, to be continued.
    pub log: Log<S>,
    /// The account of the log.
    pub ledger: Ledger,
    /// Number of connections with a record.
    pub connections: usize,
    /// Number of sessions.
    pub sessions: usize,
    /// Connections that are unprotected because of damage to the files.
    pub damaged: usize,
    /// Segments before a gap, which were not read, and are removed.
    pub removed: Vec<u64>,
}

/// Stands for the number of a connection whose record is being copied. A session records no connection with this
/// number.
const COPY: FlowId = FlowId::RESERVED;

/// Reads a log into `sessions`, which must be empty. A log file ends at `segment_size` bytes.
///
/// # Errors
/// The storage fails, or the log has a version that this program does not read.
pub fn restore<S: Storage>(
    storage: S,
    sessions: &mut Sessions,
    segment_size: u64,
) -> Result<Restored<S>, OpenError<S::Error>> {
    let mut reading = Reading {
        sessions,
        ledger: Ledger::new(segment_size, 0),
        copying: None,
        beginnings: Vec::new(),
        damaged: 0,
        removed: Vec::new(),
    };
    let log = Log::open(storage, |piece| match piece {
        Piece::Record {
            segment,
            version,
            bytes,
        } => reading.record(segment, version, bytes),
        Piece::Removed { segments } => reading.removed = segments.to_vec(),
        Piece::Damaged { segment } => reading.damage(segment),
        Piece::End { segment, len } => reading.ledger.add_segment(segment, len),
    });
    let log = log.map_err(|(_, error)| error)?;
    let Reading {
        mut ledger,
        damaged,
        removed,
        ..
    } = reading;
    ledger.continue_in(log.current());
    sessions.close_everywhere(COPY);
    sessions.restored();
    let connections = sessions.iter().map(|(_, s)| s.protected()).sum();
    let count = sessions.iter().count();
    ledger.preamble(sessions);
    Ok(Restored {
        log,
        ledger,
        connections,
        sessions: count,
        damaged,
        removed,
    })
}

/// Carries out an order to write.
///
/// # Errors
/// The storage failed: the log must not be continued.
pub fn write<S: Storage>(log: &mut Log<S>, job: &mut Job) -> Result<(), S::Error> {
    while log.current() < job.segment {
        log.next_segment()?;
    }
    log.append(&mut job.batch)?;
    log.commit()?;
    log.remove_before(job.remove_before)
}

struct Reading<'a> {
    sessions: &'a mut Sessions,
    ledger: Ledger,
    /// The connection whose record is being copied, and the log file in which the copy began.
    copying: Option<(u64, Resume, u64)>,
    /// Beginnings in the copy so far.
    beginnings: Vec<Position>,
    damaged: usize,
    removed: Vec<u64>,
}

impl Reading<'_> {
    fn record(&mut self, segment: u64, version: u32, bytes: &[u8]) {
        let Some((instance, entry)) = Entry::read(version, bytes) else {
            // The checksum is right: a newer program wrote the entry.
            self.damage(segment);
            return;
        };
        match &entry {
            Entry::Attached(attachment) => {
                self.sessions.restore(instance, attachment);
                return;
            }
            Entry::Inherited { from } => {
                if self.sessions.rename(*from, instance) {
                    self.ledger.rename(*from, instance);
                    self.copying = self.copying.filter(|(i, ..)| i != from);
                }
                return;
            }
            Entry::Forgotten => {
                self.sessions.forget(instance);
                self.ledger.remove_instance(instance);
                self.copying = self.copying.filter(|(i, ..)| *i != instance);
                return;
            }
            _ => {}
        }
        let Some(session) = self.sessions.get_mut(instance) else {
            return;
        };
        match entry {
            Entry::TurnsHeld(hold) => session.hold_turns(hold),
            Entry::DigestSeed(seed) => session.restore_digest_seed(seed),
            Entry::Opened(resume) => {
                session.restore(&resume);
                self.ledger.add_base(instance, resume.flow, segment);
                self.abandon_copy_of(instance, resume.flow);
            }
            Entry::Changed(flow, change) => self.change(instance, flow, &change),
            Entry::CopyBegins(resume) => {
                session.restore(&Resume {
                    flow: COPY,
                    ..resume
                });
                self.copying = Some((instance, resume, segment));
                self.beginnings.clear();
            }
            Entry::Copied(flow, change) => {
                if matches!(&self.copying, Some((i, r, _)) if (*i, r.flow) == (instance, flow)) {
                    apply(session, COPY, &change);
                }
            }
            Entry::CopyBeginnings(flow, places) => {
                if self.is_copied(instance, flow) {
                    self.beginnings.extend(places);
                }
            }
            Entry::CopyEnds {
                flow,
                fin,
                turn,
                answers,
                asked,
            } => self.end_copy(instance, flow, fin, (turn, answers, asked)),
            Entry::Attached(_) | Entry::Inherited { .. } | Entry::Forgotten => {}
        }
    }

    fn change(&mut self, instance: u64, flow: FlowId, change: &Change<'_>) {
        let copied = self.is_copied(instance, flow);
        let Some(session) = self.sessions.get_mut(instance) else {
            return;
        };
        apply(session, flow, change);
        if copied {
            apply(session, COPY, change);
        }
        if let Change::Instream { client_ack, .. } = change {
            session.restore_acknowledged(flow, *client_ack);
            if copied {
                session.restore_acknowledged(COPY, *client_ack);
            }
        }
        if matches!(change, Change::Closed | Change::Unprotected) {
            self.ledger.remove_base(instance, flow);
            self.abandon_copy_of(instance, flow);
        }
    }

    fn end_copy(
        &mut self,
        instance: u64,
        flow: FlowId,
        fin: Option<journal::ClientFin>,
        places: (Position, [SeqNumber; 4], [SeqNumber; 2]),
    ) {
        let copying = self
            .copying
            .take_if(|(i, r, _)| (*i, r.flow) == (instance, flow));
        let Some((_, resume, segment)) = copying else {
            return;
        };
        let Some(session) = self.sessions.get_mut(instance) else {
            return;
        };
        if let Some(fin) = fin {
            let end = Change::Instream {
                seq: fin.seq,
                client_ack: fin.heard,
                heard_all: false,
                heads_known: false,
                doubted: None,
                server: None,
                fin: true,
                bytes: &[],
            };
            apply(session, COPY, &end);
        }
        let beginnings = std::mem::take(&mut self.beginnings);
        session.end_copy(&resume, COPY, places, beginnings);
        self.ledger.add_base(instance, flow, segment);
    }

    fn is_copied(&self, instance: u64, flow: FlowId) -> bool {
        self.copying
            .is_some_and(|(i, r, _)| (i, r.flow) == (instance, flow))
    }

    fn abandon_copy_of(&mut self, instance: u64, flow: FlowId) {
        if self.is_copied(instance, flow) {
            self.copying = None;
        }
    }

    /// Committed records of unknown connections are missing in this segment: all connections that begin up to here
    /// lose the record.
    fn damage(&mut self, segment: u64) {
        self.copying = None;
        for (instance, flow) in self.ledger.based_up_to(segment) {
            if let Some(session) = self.sessions.get_mut(instance) {
                self.damaged += usize::from(session.unprotect(flow, Unprotected::MirrorLost));
            }
        }
    }
}

fn apply(session: &mut Session, flow: FlowId, change: &Change<'_>) {
    match *change {
        Change::Instream {
            seq,
            client_ack,
            heard_all,
            heads_known,
            doubted,
            server,
            fin,
            bytes,
        } => session.restore_instream(
            flow,
            &InstreamSegment {
                seq,
                payload: bytes,
                fin,
                client_ack,
                heard_all,
                heads_known,
                doubted,
                server,
            },
        ),
        Change::Outstream(said) => session.restore_outstream(flow, &said),
        Change::Progress(progress) => session.restore_progress(flow, &progress),
        Change::Released(to) => session.restore_released(flow, to),
        Change::Digest(digest, speaks) => {
            session.restore_digest(flow, digest, speaks, flow == COPY);
        }
        Change::Unprotected => {
            session.unprotect(flow, Unprotected::Requested);
        }
        Change::Closed => session.close(flow),
    }
}
