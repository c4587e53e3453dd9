//! The revivals of a member, and the effects of their actions on the member's programs.
//!
//! | segment or event | |
//! |---|---|
//! | payload of a client | a revival begins |
//! | without payload, of a connection without protection | reset: no member has the connection |
//! | FIN of an idle client | closed in the server's name |
//! | the server has died | clients without protection are reset, also silent clients |
//! | long after that | connections whose clients stay silent are forgotten |
//!
//! A caller brings [`Programs`]: production the maps of the kernel and the injector, the simulator the model.

use alloc::collections::{BTreeMap, VecDeque, btree_map::Entry};
use alloc::{borrow::ToOwned, string::String, vec::Vec};
use core::time::Duration;

use wire::{FlowKey, IpPacket, Segment, SeqNumber};

use crate::farewell::{Farewell, Parting};
use crate::flaws::Flaws;
use crate::flow::{Flow, Mode, Phase};
use crate::plane::{CopyKind, SegmentCopy};
use crate::record::Record;
use crate::revive::{Action, PositionError, Reason, Rejected, Revival, Rules};

/// Most revivals at a time: a client that speaks again later gets the next place.
const REVIVALS_MAX: usize = 16_384;
/// A client of a reset connection may have sent more before the RST. A port is not used anew in this time.
const REJECTION_TIME: Duration = Duration::from_secs(1);
/// Longer than the longest pause of a client that repeats a request (RFC 6298, 2.5: 120 s in Linux).
pub(crate) const CLIENT_PAUSE_MAX: Duration = Duration::from_secs(150);

/// The programs of a member, as user space sees these.
pub trait Programs {
    /// A call fails.
    type Error;

    /// Writes a connection. Returns whether the connection was written: a connection that is known and must not be, or
    /// is unknown and must not be, is left alone.
    ///
    /// # Errors
    /// The call fails.
    fn write_flow(
        &mut self,
        key: FlowKey,
        flow: &Flow,
        is_known: bool,
    ) -> Result<bool, Self::Error>;

    /// A connection.
    ///
    /// # Errors
    /// The call fails.
    fn flow(&mut self, key: FlowKey) -> Result<Option<Flow>, Self::Error>;

    /// Forgets a connection.
    ///
    /// # Errors
    /// The call fails.
    fn forget_flow(&mut self, key: FlowKey) -> Result<(), Self::Error>;

    /// Forgets all handshakes under way.
    ///
    /// # Errors
    /// The call fails.
    fn forget_handshakes(&mut self) -> Result<(), Self::Error>;

    /// All connections.
    ///
    /// # Errors
    /// The call fails.
    fn flows(&mut self) -> Result<Vec<(FlowKey, Flow)>, Self::Error>;

    /// Sends an IP packet to the local server, in the numbers of its socket.
    ///
    /// # Errors
    /// The call fails.
    fn to_server(&mut self, interface: u32, packet: &[u8]) -> Result<(), Self::Error>;

    /// A segment of a client takes its way through the programs once more.
    ///
    /// # Errors
    /// The call fails.
    fn pass_on(&mut self, copy: &SegmentCopy) -> Result<(), Self::Error>;

    /// Sends an IP packet to a client.
    ///
    /// # Errors
    /// The call fails.
    fn to_client(&mut self, interface: u32, packet: &[u8]) -> Result<(), Self::Error>;
}

/// The end of a revival.
#[derive(Debug)]
pub struct Ended {
    /// The connection.
    pub key: FlowKey,
    /// The request target, if known.
    pub target: Option<String>,
    /// Bytes of the body that the client had.
    pub offset: Option<u64>,
    /// Time since the first segment.
    pub after: Duration,
    /// Why the connection was reset; `None`: it goes on.
    pub refused: Option<Reason>,
    /// The record with which the revival began.
    pub record: Option<Record>,
    /// The response under way is that of the record.
    pub is_stored: bool,
    /// The request that the server was asked, of a client without timestamps: the response waits for a record.
    pub asked: Option<AskedRequest>,
}

/// The connections of a server that has died.
#[derive(Debug)]
pub struct Died {
    /// Connections that are reset.
    pub ended: Vec<Ended>,
    /// Revivals that were under way, with their records: the clients may wait without a word.
    pub interrupted: Vec<(FlowKey, Record)>,
}

/// A request that no response has begun to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskedRequest {
    /// Number of the first byte.
    pub start: SeqNumber,
    /// The request as the client sent it.
    pub bytes: Vec<u8>,
}

#[derive(Debug)]
struct Underway {
    revival: Revival,
    began: Duration,
    interface: u32,
    target: Option<String>,
    record: Option<Record>,
}

/// The revivals of a member.
#[derive(Debug, Default)]
pub struct Revivals {
    underway: BTreeMap<FlowKey, Underway>,
    farewells: BTreeMap<FlowKey, Farewell>,
    /// Connections that were reset a moment ago.
    rejected: BTreeMap<FlowKey, Duration>,
    /// Lives of servers that are over, and when their last connections are forgotten.
    over: VecDeque<(Duration, u32)>,
    flaws: Flaws,
}

impl SegmentCopy {
    /// The segment; `None` if the copy is damaged.
    #[must_use]
    pub fn segment(&self) -> Option<Segment<'_>> {
        let packet = IpPacket::parse_captured(&self.packet, self.packet_len).ok()?;
        Segment::of(&packet).ok()
    }
}

impl Revivals {
    /// Plants mistakes.
    #[cfg(feature = "flaws")]
    pub const fn plant(&mut self, flaws: Flaws) {
        self.flaws = flaws;
    }

    /// Whether the connection is being revived.
    #[must_use]
    pub fn knows(&self, key: &FlowKey) -> bool {
        self.underway.contains_key(key)
    }

    /// Whether a revival is under way that goes on with this segment.
    #[must_use]
    pub fn takes(&self, copy: &SegmentCopy) -> bool {
        let underway = self.underway.get(&copy.key);
        underway.is_some_and(|underway| {
            let segment = copy.segment();
            !segment.is_some_and(|segment| underway.revival.is_outdated_by(&segment))
        })
    }

    /// Number of revivals under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.underway.len()
    }

    /// Whether no revival is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.underway.is_empty()
    }

    /// When [`Revivals::poll`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let revivals = self.underway.values().map(|it| it.revival.deadline());
        let farewells = self.farewells.values().map(Farewell::deadline);
        let over = self.over.front().map(|(at, _)| *at);
        revivals.chain(farewells).chain(over).min()
    }

    /// Takes a copy. `record`: of the connection in the store, or why there is none. Returns the end of the revival, if
    /// it has ended. Further copies of a connection that was reset are answered with RST, and end nothing.
    ///
    /// # Errors
    /// A call of the programs fails.
    pub fn take<P: Programs>(
        &mut self,
        programs: &mut P,
        rules: &Rules,
        copy: &SegmentCopy,
        record: Result<Record, PositionError>,
        now: Duration,
    ) -> Result<Option<Ended>, P::Error> {
        let ended = self.take_copy(programs, rules, copy, record, now)?;
        let is_first = |ended: &Ended| {
            ended.refused.is_none() || self.rejected.insert(ended.key, now).is_none()
        };
        Ok(ended.filter(is_first))
    }

    fn take_copy<P: Programs>(
        &mut self,
        programs: &mut P,
        rules: &Rules,
        copy: &SegmentCopy,
        record: Result<Record, PositionError>,
        now: Duration,
    ) -> Result<Option<Ended>, P::Error> {
        let Some(segment) = copy.segment() else {
            return Ok(None);
        };
        let is_outdated = |it: &Underway| it.revival.is_outdated_by(&segment);
        if record != Err(PositionError::NoStore)
            && self.underway.get(&copy.key).is_some_and(is_outdated)
        {
            // The placeholder stays, and the revival begins anew.
            self.underway.remove(&copy.key);
        }
        let count = self.underway.len();
        let actions = match (self.underway.entry(copy.key), copy.kind) {
            (Entry::Occupied(mut known), CopyKind::Parked) => {
                known.get_mut().revival.on_server(&segment, now)
            }
            (Entry::Occupied(mut known), _) => known.get_mut().revival.on_client(&segment, now),
            (Entry::Vacant(_), CopyKind::Parked) => return Ok(None),
            // The copy is older than the end of the revival. The server's TCP needs the segment: the client may have
            // told of an open window, and tells once.
            (Entry::Vacant(_), CopyKind::Client)
                if is_served(programs.flow(copy.key)?.as_ref(), rules) =>
            {
                programs.pass_on(copy)?;
                return Ok(None);
            }
            // Without payload a segment has no request, and the answer needs one; the store may have the request.
            (Entry::Vacant(_), _)
                if segment.payload().is_empty()
                    && (matches!(record, Err(PositionError::NoStore))
                        || !Revival::needs_record(&segment)) =>
            {
                return part(programs, rules, copy, &segment);
            }
            (Entry::Vacant(_), _) if count >= REVIVALS_MAX => return Ok(None),
            (Entry::Vacant(place), kind) => {
                let rules = (*rules, self.flaws);
                let known = record.as_ref().map_err(|error| *error);
                let client = (&segment, copy.interface);
                match Revival::with_flaws(copy.key, rules, client, known, now) {
                    Ok((revival, actions)) => {
                        let is_known = kind == CopyKind::Client;
                        if !programs.write_flow(copy.key, &revival.placeholder(), is_known)? {
                            return Ok(None);
                        }
                        place.insert(Underway {
                            target: revival.target().map(ToOwned::to_owned),
                            revival,
                            began: now,
                            interface: copy.interface,
                            record: record.ok(),
                        });
                        actions
                    }
                    Err(Rejected {
                        reason: Reason::Idle,
                        reset,
                    }) => {
                        if let Some(packet) = reset {
                            programs.to_client(copy.interface, &packet)?;
                        }
                        return Ok(None);
                    }
                    Err(rejected) => {
                        let needs_store = known != Err(PositionError::NoStore);
                        if let Some(reset) = rejected.reset.clone().filter(|_| needs_store) {
                            let farewell = Farewell::repeated(reset, copy.interface, now);
                            self.farewells.insert(copy.key, farewell);
                        }
                        return reject(programs, copy, rejected).map(Some);
                    }
                }
            }
        };
        self.perform(programs, copy.key, actions, now)
    }

    /// Repeats segments without an answer.
    ///
    /// # Errors
    /// A call of the programs fails.
    pub fn poll<P: Programs>(
        &mut self,
        programs: &mut P,
        now: Duration,
    ) -> Result<Vec<Ended>, P::Error> {
        self.forget_silent(programs, now)?;
        self.rejected
            .retain(|_, at| now.saturating_sub(*at) < REJECTION_TIME);
        for farewell in self.farewells.values_mut() {
            if let Some(packet) = farewell.on_time(now) {
                programs.to_client(farewell.interface(), &packet)?;
            }
        }
        self.farewells.retain(|_, farewell| !farewell.is_over());
        let due = self
            .underway
            .iter()
            .filter(|(_, it)| it.revival.deadline() <= now);
        let due: Vec<FlowKey> = due.map(|(key, _)| *key).collect();
        let mut ended = Vec::new();
        for key in due {
            let Some(underway) = self.underway.get_mut(&key) else {
                continue;
            };
            let actions = underway.revival.on_time(now);
            ended.extend(self.perform(programs, key, actions, now)?);
        }
        Ok(ended)
    }

    /// The server's life with this number is over: connections that wait for the server begin anew with the clients'
    /// next segments. Clients without protection are reset.
    ///
    /// # Errors
    /// A call of the programs fails.
    pub fn server_died<P: Programs>(
        &mut self,
        programs: &mut P,
        incarnation: u32,
        now: Duration,
    ) -> Result<Died, P::Error> {
        let interrupted = self.clear(programs)?;
        self.over.push_back((now + CLIENT_PAUSE_MAX, incarnation));
        let mut ended = Vec::new();
        for (key, flow) in programs.flows()? {
            if cannot_be_revived(&flow) {
                programs.forget_flow(key)?;
                ended.push(self.take_leave(key, &flow, now));
            }
        }
        Ok(Died { ended, interrupted })
    }

    /// The member leaves the pool, with a lease for a last time: clients without protection are reset.
    ///
    /// # Errors
    /// A call of the programs fails.
    pub fn leave<P: Programs>(&mut self, programs: &mut P, now: Duration) -> Result<(), P::Error> {
        for (key, flow) in programs.flows()? {
            if cannot_be_revived(&flow) {
                programs.forget_flow(key)?;
                let mut farewell = Farewell::of(key, &flow, now);
                if let Some(packet) = farewell.on_time(now) {
                    programs.to_client(flow.interface, &packet)?;
                }
            }
        }
        Ok(())
    }

    /// Other members have the connections. Clients without protection are reset, as soon as the member may send.
    ///
    /// # Errors
    /// A call of the programs fails.
    pub fn drop_connections<P: Programs>(
        &mut self,
        programs: &mut P,
        now: Duration,
    ) -> Result<Vec<Ended>, P::Error> {
        self.clear(programs)?;
        // The client may have the answer to its SYN, and the socket ends.
        programs.forget_handshakes()?;
        let mut ended = Vec::new();
        for (key, flow) in programs.flows()? {
            programs.forget_flow(key)?;
            if cannot_be_revived(&flow) {
                ended.push(self.take_leave(key, &flow, now));
            }
        }
        Ok(ended)
    }

    /// A connection cannot be protected, and must not go on without: the client is reset. `None`: the connection is
    /// gone.
    ///
    /// # Errors
    /// A call of the programs fails.
    pub fn refuse<P: Programs>(
        &mut self,
        programs: &mut P,
        key: FlowKey,
        reason: Reason,
        now: Duration,
    ) -> Result<Option<Ended>, P::Error> {
        let Some(flow) = programs.flow(key)? else {
            return Ok(None);
        };
        programs.forget_flow(key)?;
        self.farewells.insert(key, Farewell::of(key, &flow, now));
        Ok(Some(Ended::at_once(key, reason)))
    }

    fn clear<P: Programs>(&mut self, programs: &mut P) -> Result<Vec<(FlowKey, Record)>, P::Error> {
        let mut records = Vec::new();
        while let Some((key, underway)) = self.underway.pop_first() {
            programs.forget_flow(key)?;
            records.extend(underway.record.map(|record| (key, record)));
        }
        Ok(records)
    }

    fn take_leave(&mut self, key: FlowKey, flow: &Flow, now: Duration) -> Ended {
        self.farewells.insert(key, Farewell::of(key, flow, now));
        let refused = PositionError::Unprotected.into();
        Ended::at_once(key, refused)
    }

    /// Clients that have not spoken since the death of the server are gone.
    fn forget_silent<P: Programs>(
        &mut self,
        programs: &mut P,
        now: Duration,
    ) -> Result<(), P::Error> {
        while let Some((at, incarnation)) = self.over.front().copied()
            && at <= now
        {
            self.over.pop_front();
            for (key, flow) in programs.flows()? {
                if flow.incarnation == incarnation && flow.mode == Mode::Served {
                    programs.forget_flow(key)?;
                }
            }
        }
        Ok(())
    }

    fn perform<P: Programs>(
        &mut self,
        programs: &mut P,
        key: FlowKey,
        actions: Vec<Action>,
        now: Duration,
    ) -> Result<Option<Ended>, P::Error> {
        let Some(underway) = self.underway.get(&key) else {
            return Ok(None);
        };
        // The request of such a client may be acknowledged: nothing of the client would bring a second RST.
        let (interface, has_record) = (underway.interface, underway.record.is_some());
        let mut refused = None;
        for action in actions {
            match action {
                Action::ToServer(packet) => programs.to_server(interface, &packet)?,
                Action::Splice(flow) => {
                    programs.write_flow(key, &flow, true)?;
                }
                Action::ToClient(packet) => programs.to_client(interface, &packet)?,
                Action::Refuse { reason, reset } => {
                    if let Some(packet) = reset {
                        programs.to_client(interface, &packet)?;
                        if has_record {
                            let farewell = Farewell::repeated(packet, interface, now);
                            self.farewells.insert(key, farewell);
                        }
                    }
                    programs.forget_flow(key)?;
                    refused = Some(reason);
                }
            }
        }
        let is_over = |it: &Underway| it.revival.is_over();
        if !self.underway.get(&key).is_some_and(is_over) {
            return Ok(None);
        }
        Ok(self.underway.remove(&key).map(|over| Ended {
            key,
            offset: over.revival.offset(),
            target: over.target,
            after: now.saturating_sub(over.began),
            refused,
            is_stored: over.revival.stored().is_some(),
            asked: over.revival.asked(),
            record: over.record,
        }))
    }
}

/// Whether no other server can go on with the connection, or repeat what the client has asked.
fn cannot_be_revived(flow: &Flow) -> bool {
    let is_open = flow.turn.phase != Phase::Idle && !flow.turn.is_guarded;
    flow.mode == Mode::Served && (flow.unprotected.is_some() || is_open)
}

/// Whether the server that runs now serves the connection.
fn is_served(flow: Option<&Flow>, rules: &Rules) -> bool {
    flow.is_some_and(|flow| flow.mode == Mode::Served && flow.incarnation == rules.incarnation)
}

fn reject<P: Programs>(
    programs: &mut P,
    copy: &SegmentCopy,
    rejected: Rejected,
) -> Result<Ended, P::Error> {
    let Rejected { reason, reset } = rejected;
    if let Some(packet) = reset {
        programs.to_client(copy.interface, &packet)?;
    }
    if copy.kind == CopyKind::Client {
        programs.forget_flow(copy.key)?;
    }
    Ok(Ended::at_once(copy.key, reason))
}

/// A segment without payload, of a connection that no member has.
fn part<P: Programs>(
    programs: &mut P,
    rules: &Rules,
    copy: &SegmentCopy,
    segment: &Segment<'_>,
) -> Result<Option<Ended>, P::Error> {
    let Some(parting) = Parting::of(segment, copy.key, &rules.key) else {
        return Ok(None);
    };
    if copy.kind == CopyKind::Client {
        programs.forget_flow(copy.key)?;
    }
    if let Some(packet) = parting.packet(segment, copy.key) {
        programs.to_client(copy.interface, &packet)?;
    }
    let is_reset = parting == Parting::Reset;
    Ok(is_reset.then(|| Ended::at_once(copy.key, PositionError::Unprotected.into())))
}

impl Ended {
    const fn at_once(key: FlowKey, reason: Reason) -> Self {
        Self {
            key,
            target: None,
            offset: None,
            after: Duration::ZERO,
            refused: Some(reason),
            record: None,
            is_stored: false,
            asked: None,
        }
    }
}

#[cfg(test)]
mod tests;
