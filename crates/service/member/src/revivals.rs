//! Connections that are being revived.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::Duration,
};

use dataplane::{CopyKind, Injector, Interface, MemberPlane, ObjectCopy, Space};
use objects::{
    flow::{Flow, Mode},
    revive::{Action, Reason, Rejected, Revival, Rules},
    unreachable,
};
use wire::{FlowKey, IpPacket, Segment, SeqNumber, checksum};

use crate::{clock, error::MemberError};

/// Most revivals at a time: a client that speaks again later gets the next place.
const REVIVALS_MAX: usize = 16_384;

/// Offset of the checksum in a TCP header.
const TCP_CHECKSUM: usize = 16;

/// A copy of a segment that outlives the ring.
pub(crate) struct Copy {
    pub(crate) key: FlowKey,
    pub(crate) kind: CopyKind,
    interface: u32,
    packet: Vec<u8>,
    packet_len: usize,
}

impl Copy {
    /// The packet as a device would give it that leaves the checksum to the kernel.
    fn with_partial_checksum(&self) -> Vec<u8> {
        let mut packet = self.packet.clone();
        let Ok(ip) = IpPacket::parse(&self.packet) else {
            return packet;
        };
        let (start, payload) = (ip.header_len(), ip.payload());
        let len = u32::try_from(payload.len()).unwrap_or(0);
        let sum = checksum::pseudo_header(ip.source(), ip.destination(), ip.protocol(), len);
        let field = start + TCP_CHECKSUM..start + TCP_CHECKSUM + 2;
        if let Some(field) = packet.get_mut(field) {
            field.copy_from_slice(&checksum::fold(sum).to_be_bytes());
        }
        packet
    }

    fn segment(&self) -> Option<Segment<'_>> {
        let packet = IpPacket::parse_captured(&self.packet, self.packet_len).ok()?;
        Segment::of(&packet).ok()
    }

    pub(crate) fn of(copy: ObjectCopy<'_>) -> Self {
        Self {
            key: copy.key,
            kind: copy.kind,
            interface: copy.interface,
            packet: copy.packet.to_vec(),
            packet_len: usize::try_from(copy.packet_len).unwrap_or(usize::MAX),
        }
    }
}

/// The end of a revival.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) key: FlowKey,
    pub(crate) target: Option<String>,
    pub(crate) offset: Option<u64>,
    pub(crate) after: Duration,
    /// Why the connection was reset; `None`: it goes on.
    pub(crate) refused: Option<Reason>,
}

struct Underway {
    revival: Revival,
    began: Duration,
    interface: u32,
    target: Option<String>,
}

/// The revivals of a member.
pub(crate) struct Revivals {
    injector: Injector,
    underway: HashMap<FlowKey, Underway>,
}

impl Revivals {
    pub(crate) fn new(injector: Injector) -> Self {
        Self {
            injector,
            underway: HashMap::new(),
        }
    }

    pub(crate) fn knows(&self, key: &FlowKey) -> bool {
        self.underway.contains_key(key)
    }

    /// The client's segment takes its way again: now the programs know where to.
    pub(crate) fn send_on(&self, plane: &MemberPlane, copy: &Copy) {
        // A longer segment than the copy comes again.
        if copy.packet.len() == copy.packet_len {
            let packet = copy.with_partial_checksum();
            self.to_server(plane, copy.interface, &packet, Space::Client);
        }
    }

    /// Ends connections of clients that cannot be revived.
    pub(crate) fn reset(&self, plane: &MemberPlane, key: FlowKey, flow: &Flow) {
        if let Some(packet) = objects::revive::reset_of(key, flow) {
            self.to_client(plane, flow.interface, &packet);
        }
    }

    /// When [`Revivals::poll`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let deadlines = self.underway.values().map(|it| it.revival.deadline());
        deadlines.min()
    }

    /// Takes a copy. Returns the end of the revival, if it has ended.
    pub(crate) fn take(
        &mut self,
        plane: &MemberPlane,
        rules: &Rules,
        copy: &Copy,
    ) -> Result<Option<Ended>, MemberError> {
        let Some(segment) = copy.segment() else {
            return Ok(None);
        };
        let now = clock::now();
        let count = self.underway.len();
        let actions = match (self.underway.entry(copy.key), copy.kind) {
            (Entry::Occupied(mut known), CopyKind::Parked) => {
                known.get_mut().revival.on_server(&segment, now)
            }
            (Entry::Occupied(mut known), _) => known.get_mut().revival.on_client(&segment, now),
            (Entry::Vacant(_), CopyKind::Parked) => return Ok(None),
            (Entry::Vacant(_), CopyKind::Client) if is_served(plane, copy.key, rules)? => {
                // The copy is older than the end of the revival.
                return Ok(None);
            }
            (Entry::Vacant(_), _) if count >= REVIVALS_MAX => return Ok(None),
            (Entry::Vacant(place), kind) => {
                let begun = Revival::new(copy.key, *rules, &segment, copy.interface, now);
                match begun {
                    // The answer needs a request.
                    Ok(_) if segment.payload().is_empty() => return Ok(None),
                    Ok((revival, actions)) => {
                        let waiting = revival.placeholder();
                        if !plane.write_flow(copy.key, &waiting, kind == CopyKind::Client)? {
                            return Ok(None);
                        }
                        let target = revival.target().map(str::to_owned);
                        place.insert(Underway {
                            revival,
                            began: now,
                            interface: copy.interface,
                            target,
                        });
                        actions
                    }
                    Err(Rejected { reason, reset }) => {
                        if let Some(packet) = reset {
                            self.to_client(plane, copy.interface, &packet);
                        }
                        if kind == CopyKind::Client {
                            plane.forget_flow(copy.key)?;
                        }
                        return Ok(Some(Ended {
                            key: copy.key,
                            target: None,
                            offset: None,
                            after: Duration::ZERO,
                            refused: Some(reason),
                        }));
                    }
                }
            }
        };
        self.perform(plane, copy.key, actions)
    }

    /// Repeats segments without an answer.
    pub(crate) fn poll(&mut self, plane: &MemberPlane) -> Result<Vec<Ended>, MemberError> {
        let now = clock::now();
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
            ended.extend(self.perform(plane, key, actions)?);
        }
        Ok(ended)
    }

    /// The client has repeated a request that nobody acknowledges: the pauses between repetitions shall not grow. If
    /// the message does not arrive, the next repetition brings another one.
    pub(crate) fn keep_close(&self, plane: &MemberPlane, key: FlowKey, seq: SeqNumber) {
        let Some(message) = unreachable::about(key, seq) else {
            return;
        };
        self.to_client(plane, 0, &message);
    }

    /// The server has died: the connections that wait for it begin anew with the clients' next segments.
    pub(crate) fn clear(&mut self, plane: &MemberPlane) -> Result<(), MemberError> {
        for (key, _) in self.underway.drain() {
            plane.forget_flow(key)?;
        }
        Ok(())
    }

    fn perform(
        &mut self,
        plane: &MemberPlane,
        key: FlowKey,
        actions: Vec<Action>,
    ) -> Result<Option<Ended>, MemberError> {
        let Some(interface) = self.underway.get(&key).map(|it| it.interface) else {
            return Ok(None);
        };
        let mut refused = None;
        for action in actions {
            match action {
                Action::ToServer(packet) => {
                    self.to_server(plane, interface, &packet, Space::Server);
                }
                Action::Splice(flow) => {
                    plane.write_flow(key, &flow, true)?;
                }
                Action::ToClient(packet) => self.to_client(plane, interface, &packet),
                Action::Refuse { reason, reset } => {
                    if let Some(packet) = reset {
                        self.to_client(plane, interface, &packet);
                    }
                    plane.forget_flow(key)?;
                    refused = Some(reason);
                }
            }
        }
        if !self
            .underway
            .get(&key)
            .is_some_and(|it| it.revival.is_over())
        {
            return Ok(None);
        }
        let Some(over) = self.underway.remove(&key) else {
            return Ok(None);
        };
        Ok(Some(Ended {
            key,
            target: over.target,
            offset: over.revival.offset(),
            after: clock::now().saturating_sub(over.began),
            refused,
        }))
    }

    /// A packet that does not leave is lost, as in any network: its sender sends again.
    fn to_client(&self, plane: &MemberPlane, interface: u32, packet: &[u8]) {
        let interfaces = plane.interfaces();
        if let Err(error) = self.injector.to_client(packet, interface, interfaces) {
            tracing::debug!(%error, "a packet for a client did not leave");
        }
    }

    fn to_server(&self, plane: &MemberPlane, interface: u32, packet: &[u8], space: Space) {
        let Some(device) = interface_of(plane, interface) else {
            return;
        };
        if let Err(error) = self.injector.to_server(device, packet, space) {
            tracing::debug!(%error, "a packet for the server did not arrive");
        }
    }
}

/// Whether the server that runs now serves a connection.
fn is_served(plane: &MemberPlane, key: FlowKey, rules: &Rules) -> Result<bool, MemberError> {
    let flow = plane.flow(key)?;
    Ok(flow.is_some_and(|flow| flow.mode == Mode::Served && flow.incarnation == rules.incarnation))
}

fn interface_of(plane: &MemberPlane, index: u32) -> Option<&Interface> {
    plane
        .interfaces()
        .find(|interface| interface.index == index)
}
