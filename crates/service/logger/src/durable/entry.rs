//! The entries of the log.
//!
//! ```text
//! u8 kind | u64 instance | u64 flow (0 if it is about none) | body
//! ```
//!
//! All numbers are little-endian. A change of this encoding needs a new version in the header of the
//! files (`wal`). Entries of all versions that `wal` reads are read.

use std::net::{IpAddr, Ipv6Addr};

use journal::{ClientFin, InstreamSegment, OutstreamSegment, Position, ServerProgress};
use protocol::{Digest, DigestSeed, control::Resume};
use wire::{FlowId, SeqNumber, Timestamps};

use crate::link::{Attachment, progress::Progress};

mod parts;

use parts::{
    known, number, numbers, read_attach, read_beginning, take, truth, write_attach, write_beginning,
};

/// A change of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// A segment of the client.
    Instream {
        seq: SeqNumber,
        client_ack: SeqNumber,
        heard_all: bool,
        heads_known: bool,
        doubted: Option<SeqNumber>,
        server: Option<ServerProgress>,
        fin: bool,
        bytes: &'a [u8],
    },
    /// Output of the server.
    Outstream(OutstreamSegment<'a>),
    /// How far the client has received the outstream.
    Progress(Progress),
    /// The determinants have the client's bytes before this number. The record begins there, even where earlier
    /// bytes were missing.
    Released(SeqNumber),
    /// The digest of the output so far; and where the client goes on sending after all of that output, if known.
    Digest(Digest, Option<SeqNumber>),
    /// The connection has no record any more.
    Unprotected,
    /// The connection has ended.
    Closed,
}

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry<'a> {
    /// A session exists.
    Attached(Attachment),
    /// This instance has inherited the session of instance `from`.
    Inherited { from: u64 },
    /// Whether the session holds requests back.
    TurnsHeld(bool),
    /// The session was dropped.
    Forgotten,
    /// Seed of the key of the digests in an instance's records.
    DigestSeed(DigestSeed),
    /// The record of a connection begins here.
    Opened(Resume),
    /// The record has changed.
    Changed(FlowId, Change<'a>),
    /// A copy of the record begins.
    CopyBegins(Resume),
    /// A part of the copy.
    Copied(FlowId, Change<'a>),
    /// Places where the client of the copy began to send after all output: more of
    /// [`journal::Journal::beginnings`].
    CopyBeginnings(FlowId, Vec<Position>),
    /// The copy is complete and replaces the record.
    CopyEnds {
        flow: FlowId,
        fin: Option<ClientFin>,
        turn: Position,
        /// [`journal::Protected::answers`].
        answers: [SeqNumber; 4],
        /// [`journal::Protected::asked`] and [`journal::Protected::doubt`].
        asked: [SeqNumber; 2],
    },
}

const ATTACHED: u8 = 1;
const TURNS_HELD: u8 = 2;
const FORGOTTEN: u8 = 3;
const OPENED: u8 = 4;
const COPY_BEGINS: u8 = 5;
const COPY_ENDS: u8 = 6;
const INHERITED: u8 = 7;
const COPY_BEGINNINGS: u8 = 8;
const DIGEST_SEED: u8 = 9;
const INSTREAM: u8 = 16;
const OUTSTREAM: u8 = 17;
const UNPROTECTED: u8 = 18;
const CLOSED: u8 = 19;
const PROGRESS: u8 = 20;
const RELEASED: u8 = 22;
const DIGEST: u8 = 23;
/// Added to the kind of a change: the change is a part of a copy.
const OF_COPY: u8 = 16;

const FIN: u8 = 1;
const SERVER_KNOWN: u8 = 2;
const HEARD_ALL: u8 = 4;
const HEADS_KNOWN: u8 = 8;
const DOUBTED: u8 = 16;

const AFTER: u8 = 1;
const ASKED: u8 = 2;

impl<'a> Entry<'a> {
    /// The connection of the entry.
    pub(crate) const fn flow(&self) -> Option<FlowId> {
        match self {
            Self::Attached(_)
            | Self::Inherited { .. }
            | Self::TurnsHeld(_)
            | Self::Forgotten
            | Self::DigestSeed(_) => None,
            Self::Opened(resume) | Self::CopyBegins(resume) => Some(resume.flow),
            Self::Changed(flow, _)
            | Self::Copied(flow, _)
            | Self::CopyBeginnings(flow, _)
            | Self::CopyEnds { flow, .. } => Some(*flow),
        }
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::Attached(_) => ATTACHED,
            Self::Inherited { .. } => INHERITED,
            Self::TurnsHeld(_) => TURNS_HELD,
            Self::Forgotten => FORGOTTEN,
            Self::DigestSeed(_) => DIGEST_SEED,
            Self::Opened(_) => OPENED,
            Self::CopyBegins(_) => COPY_BEGINS,
            Self::CopyBeginnings(..) => COPY_BEGINNINGS,
            Self::CopyEnds { .. } => COPY_ENDS,
            Self::Changed(_, change) => change.kind(),
            Self::Copied(_, change) => change.kind() + OF_COPY,
        }
    }

    /// Appends the entry to `out`.
    pub(crate) fn write(&self, instance: u64, out: &mut Vec<u8>) {
        out.push(self.kind());
        out.extend_from_slice(&instance.to_le_bytes());
        let flow = self.flow().unwrap_or(FlowId(0));
        out.extend_from_slice(&flow.0.to_le_bytes());
        match self {
            Self::Attached(attachment) => {
                let from = match attachment.from {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                out.extend_from_slice(&from.octets());
                out.extend_from_slice(&attachment.number.to_le_bytes());
                out.extend_from_slice(&attachment.session.to_le_bytes());
                // Names of keys are short.
                let key = attachment.key.as_bytes();
                let len = u8::try_from(key.len()).unwrap_or(u8::MAX);
                out.push(len);
                out.extend_from_slice(key.get(..len.into()).unwrap_or(key));
                write_attach(&attachment.attach, out);
            }
            Self::Inherited { from } => out.extend_from_slice(&from.to_le_bytes()),
            Self::TurnsHeld(hold) => out.push(u8::from(*hold)),
            Self::Forgotten => {}
            Self::DigestSeed(DigestSeed(seed)) => {
                for half in seed {
                    out.extend_from_slice(&half.to_le_bytes());
                }
            }
            Self::Opened(resume) | Self::CopyBegins(resume) => {
                write_beginning(resume, out);
            }
            Self::Changed(_, change) | Self::Copied(_, change) => change.write(out),
            Self::CopyBeginnings(_, places) => {
                for seq in places.iter().flat_map(|at| [at.instream, at.outstream]) {
                    out.extend_from_slice(&seq.0.to_le_bytes());
                }
            }
            Self::CopyEnds {
                fin,
                turn,
                answers,
                asked,
                ..
            } => {
                out.push(u8::from(fin.is_some()));
                let fin = fin.unwrap_or(ClientFin {
                    seq: SeqNumber(0),
                    heard: SeqNumber(0),
                });
                let places = [fin.seq, fin.heard, turn.instream, turn.outstream];
                for seq in places.iter().chain(answers).chain(asked) {
                    out.extend_from_slice(&seq.0.to_le_bytes());
                }
            }
        }
    }

    /// Reads an entry that [`Entry::write`] of this version wrote, and the instance; `None` for any other bytes. Each
    /// entry has exactly one encoding: dropping unknown bytes of a newer program would change the meaning of an entry.
    pub(crate) fn read(version: u32, bytes: &'a [u8]) -> Option<(u64, Self)> {
        let mut rest = bytes;
        let [kind] = take(&mut rest)?;
        let instance = u64::from_le_bytes(take(&mut rest)?);
        let flow = FlowId(u64::from_le_bytes(take(&mut rest)?));
        let entry = match kind {
            ATTACHED => Self::Attached(attachment(std::mem::take(&mut rest))?),
            INHERITED => Self::Inherited {
                from: u64::from_le_bytes(take(&mut rest)?),
            },
            OPENED | COPY_BEGINS => {
                let resume = read_beginning(version, &mut rest)?;
                match kind {
                    OPENED => Self::Opened(resume),
                    _ => Self::CopyBegins(resume),
                }
            }
            TURNS_HELD => Self::TurnsHeld(truth(&mut rest)?),
            FORGOTTEN => Self::Forgotten,
            DIGEST_SEED => {
                let mut half = || take(&mut rest).map(u64::from_le_bytes);
                Self::DigestSeed(DigestSeed([half()?, half()?]))
            }
            COPY_BEGINNINGS => {
                let mut places = Vec::with_capacity(rest.len() / 8);
                while !rest.is_empty() {
                    let [instream, outstream] = numbers(&mut rest)?;
                    places.push(Position {
                        instream,
                        outstream,
                    });
                }
                Self::CopyBeginnings(flow, places)
            }
            COPY_ENDS => {
                let has_fin = truth(&mut rest)?;
                let [seq, heard, instream, outstream] = numbers(&mut rest)?;
                let answers = numbers(&mut rest)?;
                let asked = numbers(&mut rest)?;
                Self::CopyEnds {
                    flow,
                    fin: known(has_fin, [seq, heard], ClientFin { seq, heard })?,
                    turn: Position {
                        instream,
                        outstream,
                    },
                    answers,
                    asked,
                }
            }
            INSTREAM..=DIGEST => Self::Changed(flow, Change::read(kind, &mut rest)?),
            _ => {
                let kind = kind.checked_sub(OF_COPY)?;
                Self::Copied(flow, Change::read(kind, &mut rest)?)
            }
        };
        // An attachment names the instance in the entry.
        let owner = match &entry {
            Self::Attached(attachment) => attachment.attach.instance,
            _ => instance,
        };
        let is_one = entry.flow().unwrap_or(FlowId(0)) == flow && owner == instance;
        let is_all = rest.is_empty() && is_one;
        is_all.then_some((instance, entry))
    }
}

fn attachment(mut bytes: &[u8]) -> Option<Attachment> {
    let from = Ipv6Addr::from(take::<16>(&mut bytes)?).to_canonical();
    let number = u64::from_le_bytes(take(&mut bytes)?);
    let session = u64::from_le_bytes(take(&mut bytes)?);
    let [len] = take(&mut bytes)?;
    let (key, body) = bytes.split_at_checked(len.into())?;
    let key = std::str::from_utf8(key).ok()?.to_owned();
    Some(Attachment {
        attach: read_attach(body)?,
        from,
        key,
        number,
        session,
    })
}

impl<'a> Change<'a> {
    /// The change by a segment.
    pub(crate) const fn of(arrival: &InstreamSegment<'a>) -> Self {
        Self::Instream {
            seq: arrival.seq,
            client_ack: arrival.client_ack,
            heard_all: arrival.heard_all,
            heads_known: arrival.heads_known,
            doubted: arrival.doubted,
            server: arrival.server,
            fin: arrival.fin,
            bytes: arrival.payload,
        }
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::Instream { .. } => INSTREAM,
            Self::Outstream(_) => OUTSTREAM,
            Self::Unprotected => UNPROTECTED,
            Self::Closed => CLOSED,
            Self::Progress(_) => PROGRESS,
            Self::Released(_) => RELEASED,
            Self::Digest(..) => DIGEST,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Instream {
                seq,
                client_ack,
                heard_all,
                heads_known,
                doubted,
                server,
                fin,
                bytes,
            } => {
                let (nxt, ack) = server.map_or((SeqNumber(0), SeqNumber(0)), |s| (s.nxt, s.ack));
                for seq in [*seq, *client_ack, nxt, ack] {
                    out.extend_from_slice(&seq.0.to_le_bytes());
                }
                let flags = [
                    (*fin, FIN),
                    (server.is_some(), SERVER_KNOWN),
                    (*heard_all, HEARD_ALL),
                    (*heads_known, HEADS_KNOWN),
                    (doubted.is_some(), DOUBTED),
                ];
                let set = flags.iter().filter(|(is, _)| *is);
                out.push(set.map(|(_, flag)| flag).sum());
                if let Some(heard) = doubted {
                    out.extend_from_slice(&heard.0.to_le_bytes());
                }
                out.extend_from_slice(bytes);
            }
            Self::Outstream(said) => {
                out.extend_from_slice(&said.seq.0.to_le_bytes());
                let after = said.after.map_or(0, |_| AFTER);
                out.push(after | said.asked.map_or(0, |_| ASKED));
                if let Some(after) = said.after {
                    out.extend_from_slice(&after.0.to_le_bytes());
                    out.extend_from_slice(&said.more.to_le_bytes());
                }
                if let Some(asked) = said.asked {
                    out.extend_from_slice(&asked.0.to_le_bytes());
                }
                out.extend_from_slice(said.payload);
            }
            Self::Progress(progress) => {
                out.extend_from_slice(&progress.acknowledged.to_le_bytes());
                out.push(u8::from(progress.timestamps.is_some()));
                if let Some(Timestamps { value, echo }) = progress.timestamps {
                    out.extend_from_slice(&value.to_le_bytes());
                    out.extend_from_slice(&echo.to_le_bytes());
                }
            }
            Self::Released(to) => out.extend_from_slice(&to.0.to_le_bytes()),
            Self::Digest(digest, speaks) => {
                out.extend_from_slice(&digest.to_bytes());
                out.extend(speaks.iter().flat_map(|seq| seq.0.to_le_bytes()));
            }
            Self::Unprotected | Self::Closed => {}
        }
    }

    fn read(kind: u8, rest: &mut &'a [u8]) -> Option<Self> {
        Some(match kind {
            INSTREAM => {
                let [seq, client_ack, nxt, ack] = numbers(rest)?;
                let [flags] = take(rest)?;
                if flags & !(FIN | SERVER_KNOWN | HEARD_ALL | HEADS_KNOWN | DOUBTED) != 0 {
                    return None;
                }
                let doubted = match flags & DOUBTED {
                    0 => None,
                    _ => Some(number(rest)?),
                };
                let is_known = flags & SERVER_KNOWN != 0;
                Self::Instream {
                    seq,
                    client_ack,
                    heard_all: flags & HEARD_ALL != 0,
                    heads_known: flags & HEADS_KNOWN != 0,
                    doubted,
                    server: known(is_known, [nxt, ack], ServerProgress { nxt, ack })?,
                    fin: flags & FIN != 0,
                    bytes: std::mem::take(rest),
                }
            }
            OUTSTREAM => {
                let seq = number(rest)?;
                let [has] = take(rest)?;
                if has & !(AFTER | ASKED) != 0 {
                    return None;
                }
                let (after, more) = match has & AFTER {
                    0 => (None, 0),
                    _ => (Some(number(rest)?), u32::from_le_bytes(take(rest)?)),
                };
                let asked = match has & ASKED {
                    0 => None,
                    _ => Some(number(rest)?),
                };
                Self::Outstream(OutstreamSegment {
                    seq,
                    payload: std::mem::take(rest),
                    more,
                    after,
                    asked,
                })
            }
            PROGRESS => {
                let mut progress = Progress::from(u64::from_le_bytes(take(rest)?));
                if truth(rest)? {
                    let value = u32::from_le_bytes(take(rest)?);
                    let echo = u32::from_le_bytes(take(rest)?);
                    progress.time(Timestamps { value, echo });
                }
                Self::Progress(progress)
            }
            RELEASED => Self::Released(number(rest)?),
            DIGEST => {
                let digest = Digest::from_bytes(take(rest)?);
                let speaks = match rest.is_empty() {
                    true => None,
                    false => {
                        let [seq] = numbers(rest)?;
                        Some(seq)
                    }
                };
                Self::Digest(digest, speaks)
            }
            UNPROTECTED => Self::Unprotected,
            CLOSED => Self::Closed,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
