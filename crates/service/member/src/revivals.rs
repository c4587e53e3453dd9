//! Connections that are being revived: the maps and the injector behind [`objects::revivals`].

use dataplane::{Injector, MemberPlane, ObjectCopy, Space};
use objects::{
    deferred::Released,
    flow::Flow,
    plane::SegmentCopy,
    queue::QueuedRequest,
    record::Record,
    revivals::{self, Died, Ended, Programs},
    revive::{PositionError, Reason, Rules},
    unreachable, window_update,
};
use std::time::Duration;
use wire::{FlowKey, IpPacket, SeqNumber, checksum};

use crate::{clock, error::MemberError, revived_objects::RevivedObjects};

/// Offset of the checksum in a TCP header.
const TCP_CHECKSUM: usize = 16;

/// A copy that outlives the ring.
pub(crate) fn owned(copy: ObjectCopy<'_>) -> SegmentCopy {
    SegmentCopy {
        key: copy.key,
        kind: copy.kind,
        interface: copy.interface,
        packet: copy.packet.to_vec(),
        packet_len: usize::try_from(copy.packet_len).unwrap_or(usize::MAX),
    }
}

/// The packet as a device would give it that leaves the checksum to the kernel.
fn with_partial_checksum(copy: &SegmentCopy) -> Vec<u8> {
    let mut packet = copy.packet.clone();
    let Ok(ip) = IpPacket::parse(&copy.packet) else {
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

/// The kernel's part of a revival.
struct Kernel<'a> {
    plane: &'a MemberPlane,
    injector: &'a Injector,
}

impl Programs for Kernel<'_> {
    type Error = MemberError;

    fn write_flow(
        &mut self,
        key: FlowKey,
        flow: &Flow,
        is_known: bool,
    ) -> Result<bool, MemberError> {
        Ok(self.plane.write_flow(key, flow, is_known)?)
    }

    fn flow(&mut self, key: FlowKey) -> Result<Option<Flow>, MemberError> {
        Ok(self.plane.flow(key)?)
    }

    fn forget_flow(&mut self, key: FlowKey) -> Result<(), MemberError> {
        Ok(self.plane.forget_flow(key)?)
    }

    fn forget_handshakes(&mut self) -> Result<(), MemberError> {
        Ok(self.plane.forget_handshakes()?)
    }

    fn flows(&mut self) -> Result<Vec<(FlowKey, Flow)>, MemberError> {
        Ok(self.plane.flows()?)
    }

    fn to_server(&mut self, interface: u32, packet: &[u8]) -> Result<(), MemberError> {
        to_server(self.plane, self.injector, interface, packet, Space::Server);
        Ok(())
    }

    fn pass_on(&mut self, copy: &SegmentCopy) -> Result<(), MemberError> {
        pass_on(self.plane, self.injector, copy);
        Ok(())
    }

    fn to_client(&mut self, interface: u32, packet: &[u8]) -> Result<(), MemberError> {
        to_client(self.plane, self.injector, interface, packet);
        Ok(())
    }
}

/// A packet that does not leave is lost, as in any network: its sender sends again.
fn to_client(plane: &MemberPlane, injector: &Injector, interface: u32, packet: &[u8]) {
    if let Err(error) = injector.to_client(packet, interface, plane.interfaces()) {
        tracing::debug!(%error, "a packet for a client did not leave");
    }
}

fn to_server(
    plane: &MemberPlane,
    injector: &Injector,
    interface: u32,
    packet: &[u8],
    space: Space,
) {
    let Some(device) = plane.interfaces().find(|it| it.index == interface) else {
        return;
    };
    if let Err(error) = injector.to_server(device, packet, space) {
        tracing::debug!(%error, "a packet for the server did not arrive");
    }
}

fn pass_on(plane: &MemberPlane, injector: &Injector, copy: &SegmentCopy) {
    // A longer segment than the copy comes again.
    if copy.packet.len() == copy.packet_len {
        let packet = with_partial_checksum(copy);
        to_server(plane, injector, copy.interface, &packet, Space::Client);
    }
}

/// The revivals of a member.
pub(crate) struct Revivals {
    injector: Injector,
    revivals: revivals::Revivals,
    objects: RevivedObjects,
}

impl Revivals {
    pub(crate) fn new(injector: Injector) -> Self {
        Self {
            injector,
            revivals: revivals::Revivals::default(),
            objects: RevivedObjects::default(),
        }
    }

    pub(crate) fn knows(&self, key: &FlowKey) -> bool {
        self.revivals.knows(key)
    }

    /// Whether a revival is under way that goes on with this segment.
    pub(crate) fn takes(&self, copy: &SegmentCopy) -> bool {
        self.revivals.takes(copy)
    }

    /// The client's segment takes its way again: now the programs know where to.
    pub(crate) fn send_on(&self, plane: &MemberPlane, copy: &SegmentCopy) {
        pass_on(plane, &self.injector, copy);
    }

    pub(crate) fn leave(&mut self, plane: &MemberPlane) -> Result<(), MemberError> {
        let (mut kernel, revivals) = self.split(plane);
        revivals.leave(&mut kernel, clock::now())
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.revivals.deadline()
    }

    /// `record`: of the connection, or why there is none.
    pub(crate) fn take(
        &mut self,
        plane: &MemberPlane,
        rules: &Rules,
        copy: &SegmentCopy,
        record: Result<Record, PositionError>,
    ) -> Result<Option<Ended>, MemberError> {
        let (mut kernel, revivals) = self.split(plane);
        let ended = revivals.take(&mut kernel, rules, copy, record, clock::now())?;
        self.note_objects(plane, ended.as_slice())?;
        Ok(ended)
    }

    pub(crate) fn poll(&mut self, plane: &MemberPlane) -> Result<Vec<Ended>, MemberError> {
        let (mut kernel, revivals) = self.split(plane);
        let ended = revivals.poll(&mut kernel, clock::now())?;
        self.note_objects(plane, &ended)?;
        Ok(ended)
    }

    pub(crate) fn server_died(
        &mut self,
        plane: &MemberPlane,
        incarnation: u32,
    ) -> Result<Died, MemberError> {
        let (mut kernel, revivals) = self.split(plane);
        revivals.server_died(&mut kernel, incarnation, clock::now())
    }

    pub(crate) fn drop_connections(
        &mut self,
        plane: &MemberPlane,
    ) -> Result<Vec<Ended>, MemberError> {
        let (mut kernel, revivals) = self.split(plane);
        revivals.drop_connections(&mut kernel, clock::now())
    }

    /// The request target of the response under way, if that was revived.
    pub(crate) fn object_of(&self, key: FlowKey, flow: &Flow) -> Option<&str> {
        self.objects.of(key, flow)
    }

    fn note_objects(&mut self, plane: &MemberPlane, ended: &[Ended]) -> Result<(), MemberError> {
        for ended in ended.iter().filter(|ended| ended.refused.is_none()) {
            if let (Some(target), Some(flow)) = (&ended.target, plane.flow(ended.key)?) {
                self.objects.add(ended.key, &flow, target.clone());
            }
        }
        Ok(())
    }

    fn split<'a>(&'a mut self, plane: &'a MemberPlane) -> (Kernel<'a>, &'a mut revivals::Revivals) {
        let injector = &self.injector;
        (Kernel { plane, injector }, &mut self.revivals)
    }

    /// The client has repeated a request that nobody acknowledges: the pauses between repetitions shall not grow, and
    /// the server's TCP shall know the client's window. If a message does not arrive, the next repetition brings
    /// another.
    pub(crate) fn on_repetition(&mut self, plane: &MemberPlane, key: FlowKey, seq: SeqNumber) {
        let Some(flow) = plane.flow(key).ok().flatten() else {
            return;
        };
        if let Some(message) = unreachable::about(key, seq) {
            self.call(plane, &message);
        }
        if let Some(update) = window_update::after_repetition(key, &flow) {
            to_server(
                plane,
                &self.injector,
                flow.interface,
                &update,
                Space::Server,
            );
        }
    }

    /// The connection is reset.
    pub(crate) fn refuse(
        &mut self,
        plane: &MemberPlane,
        key: FlowKey,
        reason: Reason,
    ) -> Result<Option<Ended>, MemberError> {
        let (mut kernel, revivals) = self.split(plane);
        revivals.refuse(&mut kernel, key, reason, clock::now())
    }

    /// A request that has waited for its turn goes to the server. A packet that does not arrive is sent again by the
    /// client.
    pub(crate) fn pass_queued(&self, plane: &MemberPlane, passed: &QueuedRequest) {
        for packet in &passed.packets {
            let interface = passed.interface;
            to_server(plane, &self.injector, interface, packet, Space::Queued);
        }
    }

    /// A segment of the server that waited for its record goes on. A packet that does not leave is sent again by the
    /// server's TCP.
    pub(crate) fn release(&self, plane: &MemberPlane, released: &Released) {
        self.as_server(plane, released.interface, &released.packets);
    }

    /// Packets in the server's name, in the numbers of its socket.
    pub(crate) fn as_server(&self, plane: &MemberPlane, interface: u32, packets: &[Vec<u8>]) {
        let device = plane.interfaces().find(|it| it.index == interface);
        let Some(device) = device else {
            return;
        };
        for packet in packets {
            if let Err(error) = self.injector.from_server(device, packet) {
                tracing::debug!(%error, "a packet of the server did not leave");
            }
        }
    }

    /// A segment or a message that the client answers, on the way that the host knows.
    pub(crate) fn call(&self, plane: &MemberPlane, packet: &[u8]) {
        to_client(plane, &self.injector, 0, packet);
    }
}
