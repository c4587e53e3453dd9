//! The invariants: conditions at every step, for any deaths.
//!
//! 1. Every byte that leaves for a client, or that the client's application reads, is the byte of a run without
//!    crashes.
//! 2. No RST leaves for a client, and no FIN except at the end of the right output.
//! 3. No packet of the service leaves between a death and the next incarnation. Afterwards no packet leaves of a
//!    connection that was open then and is not spliced yet. But connections that a living server closed are finished.
//! 4. Replayed bytes, and bytes that the server reads, are the client's bytes. A replay begins where a request begins.
//! 5. Acknowledgements and timestamps to a client never go back. When the logger has read everything, the logger has
//!    recorded everything that was acknowledged.
//! 6. Every run ends: `simulation` checks this.
//! 7. No connection is reset except those that the fault of the run dooms.
//! 8. The output of a server with state follows from the recorded determinants, in every incarnation. A socket that is
//!    made for a connection has the numbers of both sides.
//! 9. Input that a client sends after receiving a response never reaches an incarnation that responds otherwise.

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

/// The part of a client's connection that the host has given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GivenUp {
    Nothing,
    /// The record of a handshake that the client has no answer of: the client may be refused.
    Handshake,
    /// A connection, which the client loses.
    Connection,
}

/// The observations of a client.
#[derive(Debug)]
struct ClientView {
    key: FlowKey,
    script: Script,
    doomed: bool,
    has_sack: bool,
    /// Bytes of responses that any incarnation may choose, once sent.
    told: BTreeMap<usize, u8>,
    /// Chosen bytes that have reached the client.
    came: BTreeMap<usize, u8>,
    /// Bytes that the client's application has written; whether the application has closed.
    wrote: usize,
    closed: bool,
    /// The client has all output, or needs no more.
    gone: bool,
    given_up: GivenUp,
    /// The client has got a SYN-ACK.
    established: bool,
    /// Both sides have closed, as the client knows.
    finished: bool,
    client_isn: Option<SeqNumber>,
    server_isn: Option<SeqNumber>,
    acknowledged: Option<SeqNumber>,
    /// End of the output that the client's TCP has acknowledged.
    has: Option<SeqNumber>,
    /// The most room that the client has ever offered, bytes.
    room: u32,
    window_scale: u8,
    tsval: Option<u32>,
    /// The server's socket of this connection died and has no successor yet.
    orphaned: bool,
    /// A living server closed the connection.
    closed_by_server: bool,
    /// The server's host has lost power since.
    restarted: bool,
    /// A segment was sent to the client.
    heard: bool,
    /// The handshake was with a host after a power-off: an earlier handshake, if any, had no result.
    began_again: bool,
    /// Where the server's present life began to read.
    replay_offset: usize,
    /// End of the input that any incarnation has read.
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

/// The side of the clients.
impl InvariantChecker {
    pub(crate) fn client_wrote(&mut self, client: usize, length: usize) {
        self.seen[client].wrote += length;
    }

    pub(crate) fn client_state(&mut self, client: usize, state: State) {
        let seen = &mut self.seen[client];
        seen.established |= !matches!(state, State::Closed | State::SynSent);
        seen.finished |= matches!(state, State::TimeWait);
    }

    /// Whether both sides have closed: a RST as the answer to an old segment is then harmless.
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

/// The side of the server.
impl InvariantChecker {
    /// The server has read these bytes of a connection, `at` bytes after the client's first.
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

    /// Whether the server has read input that a client sent after an awaited response.
    pub(crate) fn has_more_to_do(&self) -> bool {
        self.seen.iter().any(|seen| {
            let mut heard = seen.script.heard_before.iter();
            heard.any(|(asked, _)| seen.server_read > *asked)
        })
    }

    /// This incarnation of the server has read up to `end`. Input that a client sends after a response must not reach
    /// an incarnation that responds otherwise.
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

    /// The host loses power: no kernel finishes a connection any more.
    pub(crate) fn lost_power(&mut self) {
        for seen in &mut self.seen {
            seen.closed_by_server = false;
            seen.restarted = true;
            // Nor do bytes count that were lost on the way to a client with a response of each incarnation.
            if seen.script.alike {
                seen.told.clone_from(&seen.came);
            }
            // The next incarnation does not know a timestamp that was under way and is lost.
            seen.tsval = None;
        }
        self.died();
    }

    pub(crate) fn new_incarnation(&mut self) {
        self.gate_shut = false;
    }

    /// The position in the client's stream at which the present incarnation reads the first byte.
    pub(crate) fn replay_offset(&self, key: FlowKey) -> usize {
        self.of(key).map_or(0, |seen| seen.replay_offset)
    }
}

/// The side of the recovery.
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

    /// The record of this connection ends here, with no segment under way to the logger.
    pub(crate) fn recorded(&self, key: FlowKey, stable: SeqNumber) -> Result<(), Violation> {
        let seen = self.of(key).filter(|seen| !seen.has_all()); // the end is between client and kernel
        let seen = seen.filter(|seen| !seen.has_reset()); // the record is not needed any more
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

    /// Whether the client has reset the connection: later output is harmless.
    fn has_reset(&self) -> bool {
        self.gone && matches!(self.script.fate, ClientEnd::Resets(_))
    }

    /// Upper bound of the bytes in the connection's record.
    fn recorded(&self) -> usize {
        self.script.instream.len() + self.script.outstream.len()
    }

    /// Whether the fault of the run allows a reset for this reason.
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
        // Memory is charged in chunks: a client with much data may reach the limit, too.
        let large = fault == Fault::RecordLimit && self.recorded() > LARGE_STREAM_BYTES;
        (self.doomed || large) && fits
    }

    /// Or in any run?
    fn is_pardoned(&self, north: Option<NorthSetup>, reason: LostReason) -> bool {
        match reason {
            // A client that is gone answers the new server's output with a RST, or not at all.
            LostReason::NotAccepted | LostReason::ReplayStalled { .. } => self.gone,
            // The last input, or the response, may not have reached the logger before the power-off.
            LostReason::OutputNotRepeated { .. } => self.gone || self.restarted,
            LostReason::NotComparable { .. } => self.restarted,
            // Nor does a client without selective acknowledgements report bytes behind a gap.
            LostReason::HoleUnknown => self.restarted && !self.has_sack,
            // A record of an older handshake on the same ports may be left after the connection is over. And a server
            // may wait for clients for less time than a client may need.
            LostReason::ClientSilent => {
                let impatient = north.is_some_and(|north| north.is_impatient());
                self.restarted && (self.finished || self.gone || impatient)
            }
            // A connection that the server has closed, without known output to the client, may be another connection
            // with the same ends.
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
