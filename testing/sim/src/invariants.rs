//! The invariants: what must hold at every step, whatever dies when.
//!
//! | | |
//! |---|---|
//! | 1 | every byte that leaves for a client is the byte that a run without crashes has there, and so is every byte
//! that its application reads |
//! | 2 | no RST leaves for a client, and no FIN but at the end of what it must be sent |
//! | 3 | nothing of the service leaves between a death and the next life, nor afterwards of a connection that was open
//! then and is not spliced yet; but what a living server closed is finished |
//! | 4 | what is replayed is what the client has sent, and so is what the server reads; a replay begins where a
//! request begins |
//! | 5 | acknowledgements and timestamps told to a client never go back; when the logger has read everything, it has
//! recorded everything that was acknowledged |
//! | 6 | every run ends: the `simulation` sees to that |
//! | 7 | no connection is lost but those that the fault of the run dooms |
//! | 8 | what a server with state says follows from its determinants, in every incarnation; a socket that is
//! made for a connection has the numbers of both sides |
//! | 9 | what a client says after it has heard an answer is not given to a life that answers otherwise |

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use recovery::{LostReason, SplicePoint};
use smoltcp::socket::tcp::State;
use wire::{Flags, FlowKey, IpPacket, Segment, SeqNumber};

use crate::{
    conversation::byte_of_incarnation,
    index,
    scenario::{ClientEnd, ClientSetup, Fault, NorthSetup, Script},
};

mod interleaving;
mod tap;

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(String);

impl Violation {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds {
        Ok(())
    } else {
        Err(Violation(what()))
    }
}

/// What the host has given up of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GivenUp {
    Nothing,
    /// The record of a handshake that the client has no answer of: the client may be refused.
    Handshake,
    /// A connection, which the client loses.
    Connection,
}

/// What was seen of one client.
#[derive(Debug)]
struct ClientView {
    key: FlowKey,
    script: Script,
    doomed: bool,
    has_sack: bool,
    /// Bytes of answers that any life may give, once they were given.
    told: BTreeMap<usize, u8>,
    /// Those of them that have come to it.
    came: BTreeMap<usize, u8>,
    /// Bytes that the client's application has written; it has closed.
    wrote: usize,
    closed: bool,
    /// It has what it wanted, or wants nothing any more.
    gone: bool,
    given_up: GivenUp,
    /// It has got a SYN-ACK.
    established: bool,
    /// Both sides have closed, to its knowledge.
    finished: bool,
    client_isn: Option<SeqNumber>,
    server_isn: Option<SeqNumber>,
    acknowledged: Option<SeqNumber>,
    /// End of what the client's TCP has, as it said.
    has: Option<SeqNumber>,
    /// The most room that the client has ever offered, bytes.
    room: u32,
    window_scale: u8,
    tsval: Option<u32>,
    /// The server's socket of this connection died and has no successor yet.
    orphaned: bool,
    /// A living server closed it.
    closed_by_server: bool,
    /// The server's host has lost its power since.
    restarted: bool,
    /// Something was said to it.
    heard: bool,
    /// It has shaken hands with a host that had lost its power: nothing had come of it before, if it had tried.
    began_again: bool,
    /// Where the server's present life began to read.
    replay_offset: usize,
    /// End of what was read by any life.
    server_read: usize,
}

/// Streams of this many bytes together may reach the limit of [`Fault::RecordLimit`].
const LARGE_STREAM_BYTES: usize = 48 * 1024;

const fn unprotected(reason: types::UnprotectedReason) -> LostReason {
    LostReason::Unprotected { reason }
}

/// Sees everything.
#[derive(Debug)]
pub(crate) struct InvariantChecker {
    seen: Vec<ClientView>,
    by_address: BTreeMap<SocketAddr, usize>,
    fault: Fault,
    north: Option<NorthSetup>,
    /// Between a death and the next life.
    gate_shut: bool,
    pub(crate) lost: BTreeSet<FlowKey>,
}

impl InvariantChecker {
    pub(crate) fn new(clients: &[ClientSetup], fault: Fault, north: Option<NorthSetup>) -> Self {
        let seen: Vec<ClientView> = clients.iter().map(ClientView::new).collect();
        let by_address = clients
            .iter()
            .enumerate()
            .map(|(i, c)| (c.address, i))
            .collect();
        Self {
            seen,
            by_address,
            fault,
            north,
            gate_shut: false,
            lost: BTreeSet::new(),
        }
    }

    fn of(&self, key: FlowKey) -> Option<&ClientView> {
        self.by_address
            .get(&key.client())
            .and_then(|i| self.seen.get(*i))
    }

    fn of_mut(&mut self, key: FlowKey) -> Option<&mut ClientView> {
        self.by_address
            .get(&key.client())
            .and_then(|i| self.seen.get_mut(*i))
    }
}

/// What clients see.
impl InvariantChecker {
    pub(crate) fn client_wrote(&mut self, client: usize, length: usize) {
        self.seen[client].wrote += length;
    }

    pub(crate) fn client_state(&mut self, client: usize, state: State) {
        let seen = &mut self.seen[client];
        seen.established |= !matches!(state, State::Closed | State::SynSent);
        seen.finished |= matches!(state, State::TimeWait);
    }

    /// Both sides have closed, and old segments may be answered by a RST that harms nobody.
    pub(crate) fn is_finished(&self, client: usize) -> bool {
        self.seen[client].finished
    }

    pub(crate) fn client_closed(&mut self, client: usize) {
        self.seen[client].closed = true;
    }

    pub(crate) fn gone(&mut self, client: usize) {
        self.seen[client].gone = true;
    }

    pub(crate) fn client_read(
        &mut self,
        client: usize,
        at: usize,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let seen = &mut self.seen[client];
        for (i, byte) in bytes.iter().enumerate() {
            ensure(seen.may_be_sent(at + i, *byte), || {
                format!("client {client} read a wrong byte at {}", at + i)
            })?;
        }
        Ok(())
    }

    pub(crate) fn client_at_end(&self, client: usize, received: usize) -> Result<(), Violation> {
        let total = self.seen[client].script.outstream.len();
        ensure(received == total, || {
            format!("client {client} was told the end after {received} of {total} bytes")
        })
    }

    /// The client's connection was reset.
    pub(crate) fn client_lost(&mut self, client: usize) -> Result<(), Violation> {
        let seen = &mut self.seen[client];
        seen.gone = true;
        let refused = seen.given_up == GivenUp::Handshake && !seen.established;
        ensure(refused || (seen.doomed && seen.is_lost()), || {
            format!("the connection of client {client} was reset")
        })
    }
}

/// What the server does.
impl InvariantChecker {
    /// It has read these bytes of a connection, `at` bytes after the client's first.
    pub(crate) fn server_read(
        &mut self,
        key: FlowKey,
        at: usize,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let Some(seen) = self.of_mut(key) else {
            return Err(Violation(format!("the server read from a stranger: {key}")));
        };
        let end = at + bytes.len();
        seen.server_read = seen.server_read.max(end);
        ensure(end <= seen.wrote, || {
            format!(
                "{key}: the server read up to {end}, the client wrote {}",
                seen.wrote
            )
        })?;
        ensure(seen.script.instream.get(at..end) == Some(bytes), || {
            format!("{key}: the server read wrong bytes between {at} and {end}")
        })
    }

    /// The server has read what a client said after it had heard what it waited for.
    pub(crate) fn has_more_to_do(&self) -> bool {
        self.seen.iter().any(|seen| {
            let mut heard = seen.script.heard_before.iter();
            heard.any(|(asked, _)| seen.server_read > *asked)
        })
    }

    /// This life of it has read so much. What a client says after it has heard something is not executed by a life
    /// that says something else.
    pub(crate) fn executes(
        &self,
        key: FlowKey,
        end: usize,
        incarnation: u32,
    ) -> Result<(), Violation> {
        let seen = self.of(key).filter(|seen| seen.script.alike);
        let asked = seen.into_iter().flat_map(|seen| {
            let asked = seen.script.heard_before.iter();
            asked.filter_map(|(asked, heard)| Some((*asked, *seen.told.get(&heard.start)?)))
        });
        for (asked, told) in asked {
            ensure(
                end <= asked || told == byte_of_incarnation(incarnation),
                || {
                    format!(
                        "{key}: incarnation {incarnation} executes what was said at {asked}, to which another incarnation's words led"
                    )
                },
            )?;
        }
        Ok(())
    }

    /// A living server closed this connection.
    pub(crate) fn server_closed(&mut self, key: FlowKey) {
        if let Some(seen) = self.of_mut(key) {
            seen.closed_by_server = true;
        }
    }

    /// A process of the server dies now, which has these connections.
    pub(crate) fn died(&mut self) {
        self.gate_shut = true;
        for seen in &mut self.seen {
            seen.orphaned |= seen.client_isn.is_some() && !seen.closed_by_server;
        }
    }

    /// Its host loses its power: nothing is finished by anybody any more.
    pub(crate) fn lost_power(&mut self) {
        for seen in &mut self.seen {
            seen.closed_by_server = false;
            seen.restarted = true;
            // Nor what was lost on the way to a client that is answered otherwise.
            if seen.script.alike {
                seen.told.clone_from(&seen.came);
            }
            // What was on its way, and will not arrive, is not known to the next life.
            seen.tsval = None;
        }
        self.died();
    }

    pub(crate) fn new_incarnation(&mut self) {
        self.gate_shut = false;
    }

    /// Where in the client's stream the server's present life reads its first byte.
    pub(crate) fn replay_offset(&self, key: FlowKey) -> usize {
        self.of(key).map_or(0, |seen| seen.replay_offset)
    }
}

/// What the recovery does.
impl InvariantChecker {
    pub(crate) fn spliced(&mut self, key: FlowKey, point: SplicePoint) -> Result<(), Violation> {
        let Some(seen) = self.of_mut(key) else {
            return Err(Violation(format!("a stranger is spliced: {key}")));
        };
        let (Some(client), Some(server)) = (seen.client_isn, seen.server_isn) else {
            return Err(Violation(format!("{key} is spliced but was never open")));
        };
        let instream = index(point.instream.0.wrapping_sub(client.0));
        let outstream = index(point.outstream.0.wrapping_sub(server.0).wrapping_sub(1));
        ensure(seen.script.turns.contains(&(instream, outstream)), || {
            format!("{key}: a replay begins at {instream} and {outstream}, where no request begins")
        })?;
        seen.orphaned = false;
        seen.replay_offset = instream;
        Ok(())
    }

    pub(crate) fn replayed(
        &self,
        key: FlowKey,
        from: SeqNumber,
        bytes: &[u8],
        fin: bool,
    ) -> Result<(), Violation> {
        let Some((seen, client)) = self.of(key).and_then(|seen| Some((seen, seen.client_isn?)))
        else {
            return Err(Violation(format!("a stranger is replayed: {key}")));
        };
        let at = index(from.0.wrapping_sub(client.0).wrapping_sub(1));
        let end = at + bytes.len();
        ensure(
            end <= seen.wrote && seen.script.instream.get(at..end) == Some(bytes),
            || format!("{key}: between {at} and {end} something is replayed that was not sent"),
        )?;
        ensure(!fin || (seen.closed && end == seen.wrote), || {
            format!("{key}: a FIN is replayed at {end} that was not sent")
        })
    }

    pub(crate) fn lost(&mut self, key: FlowKey, reason: LostReason) -> Result<(), Violation> {
        let (fault, north) = (self.fault, self.north);
        let Some(seen) = self.of_mut(key) else {
            return Err(Violation(format!("a stranger was lost: {key}")));
        };
        let allowed = seen.is_doomed_by(fault, reason) || seen.is_pardoned(north, reason);
        let silent = reason == LostReason::ClientSilent;
        if silent && (seen.began_again || !seen.established) && !allowed {
            // A handshake. A client that has shaken hands again is not told.
            if !seen.established {
                seen.given_up = GivenUp::Handshake;
            }
            return Ok(());
        }
        seen.given_up = GivenUp::Connection;
        seen.doomed |= allowed;
        self.lost.insert(key);
        ensure(allowed, || format!("{key} was lost: {reason}"))
    }

    /// The record of this connection now ends here, and nothing is on its way to it.
    pub(crate) fn recorded(&self, key: FlowKey, stable: SeqNumber) -> Result<(), Violation> {
        let seen = self.of(key).filter(|seen| !seen.has_all()); // its end is between it and the kernel
        let seen = seen.filter(|seen| !seen.has_reset()); // nothing of it is needed any more
        let told = seen.and_then(|seen| seen.acknowledged);
        ensure(told.is_none_or(|told| !told.after(stable)), || {
            format!("{key}: {told:?} was acknowledged, but the record ends at {stable}")
        })
    }
}

impl ClientView {
    fn new(setup: &ClientSetup) -> Self {
        Self {
            key: FlowKey::new(setup.address, setup.server),
            script: setup.script.clone(),
            doomed: setup.doomed,
            has_sack: !setup.stripped.contains(&wire::kind::SACK_PERMITTED),
            told: BTreeMap::new(),
            came: BTreeMap::new(),
            wrote: 0,
            closed: false,
            gone: false,
            given_up: GivenUp::Nothing,
            established: false,
            finished: false,
            client_isn: None,
            server_isn: None,
            acknowledged: None,
            has: None,
            room: 0,
            window_scale: 0,
            tsval: None,
            orphaned: false,
            closed_by_server: false,
            restarted: false,
            heard: false,
            began_again: false,
            replay_offset: 0,
            server_read: 0,
        }
    }

    fn is_lost(&self) -> bool {
        self.given_up == GivenUp::Connection
    }

    /// The client has reset it: whatever is said to it then harms nobody.
    fn has_reset(&self) -> bool {
        self.gone && matches!(self.script.fate, ClientEnd::Resets(_))
    }

    /// Bytes that its record holds at the most.
    fn recorded(&self) -> usize {
        self.script.instream.len() + self.script.outstream.len()
    }

    /// May it be lost for this reason, since the run has this fault?
    fn is_doomed_by(&self, fault: Fault, reason: LostReason) -> bool {
        let fits = match fault {
            Fault::None => false,
            Fault::Poison => matches!(reason, LostReason::Quarantined { .. }),
            Fault::Divergence => matches!(
                reason,
                LostReason::Diverged { .. }
                    | LostReason::DivergedBefore { .. }
                    | LostReason::OutputNotRepeated { .. }
            ),
            Fault::RecordLimit => reason == unprotected(types::UnprotectedReason::ConnectionLimit),
        };
        // Memory is charged in chunks: whoever sends much may reach the limit, too.
        let large = fault == Fault::RecordLimit && self.recorded() > LARGE_STREAM_BYTES;
        (self.doomed || large) && fits
    }

    /// Or in any run?
    fn is_pardoned(&self, north: Option<NorthSetup>, reason: LostReason) -> bool {
        match reason {
            // A client that is gone answers what the new server says with a RST, or not at all.
            LostReason::NotAccepted | LostReason::ReplayStalled { .. } => self.gone,
            // What was said last may not have reached the logger when the power went, nor what it answered.
            LostReason::OutputNotRepeated { .. } => self.gone || self.restarted,
            LostReason::NotComparable { .. } => self.restarted,
            // Nor does a client without selective acknowledgements say what it has of that.
            LostReason::HoleUnknown => self.restarted && !self.has_sack,
            // Of an older handshake on the same ports a record may be left, when the connection is over.
            // And a server may not wait for clients that it knows as long as they may need to be heard.
            LostReason::ClientSilent => {
                let impatient = north.is_some_and(|north| north.is_impatient());
                self.restarted && (self.finished || self.gone || impatient)
            }
            // What it has closed, and not spoken to as far as is known, may be another connection with the same
            // ends.
            LostReason::Forgotten => {
                let unknown = north.is_some_and(|north| !north.knows_syns);
                unknown && (self.restarted || !self.heard)
            }
            _ => false,
        }
    }

    fn is_of_any_incarnation(&self, at: usize) -> bool {
        self.script.any.iter().any(|any| any.contains(&at))
    }

    /// How many of the bytes from `seq` on the client may take by the time of arrival: until then the client takes no
    /// more than one window. Bytes behind are discarded (RFC 9293 3.10.7.4).
    fn window_from(&self, seq: SeqNumber) -> usize {
        let edge = self.has.map(|has| has + self.room + self.room);
        edge.map_or(usize::MAX, |edge| edge.distance_from(seq).map_or(0, index))
    }

    /// May the client be told this byte at this place?
    fn may_be_sent(&mut self, at: usize, byte: u8) -> bool {
        let any = self.script.any.iter().find(|any| any.contains(&at));
        if let Some(any) = any {
            let place = if self.script.alike { any.start } else { at };
            return *self.told.entry(place).or_insert(byte) == byte;
        }
        self.script.outstream.get(at) == Some(&byte)
    }
}
