use alloc::string::String;
use alloc::vec;
use core::convert::Infallible;

use http1::version::VersionCheck;
use wire::{IpPacket, SynOptions};

use super::*;
use crate::key::PoolKey;
use crate::plane::{CopyKind, Packet, Plane, Settings, StoreKind, Verdict};
use crate::revive::WITHHOLD_MAX;

const LEASE_MAX: Duration = Duration::from_secs(1 << 30);
const RESPONSE_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\nETag: \"a\"\r\n\r\n";

fn key() -> FlowKey {
    FlowKey::new(([10, 0, 0, 3], 4000).into(), ([10, 0, 9, 9], 80).into())
}

fn copy(payload: &[u8], flags: Flags) -> SegmentCopy {
    let spec = SegmentSpec {
        source: key().server(),
        destination: key().client(),
        seq: SeqNumber(u32::MAX - 100),
        ack: SeqNumber(7),
        flags,
        window: 500,
        options: &[],
        payload,
    };
    let mut packet = Vec::new();
    spec.emit(&mut packet, ChecksumMode::Partial).unwrap();
    SegmentCopy {
        key: key(),
        kind: CopyKind::Deferred,
        interface: 1,
        packet_len: packet.len(),
        packet,
    }
}

fn segments(packets: &[Vec<u8>]) -> Vec<(SeqNumber, usize, Flags)> {
    let of = |packet: &Vec<u8>| {
        let ip = IpPacket::parse(packet).unwrap();
        let segment = Segment::of(&ip).unwrap();
        assert_eq!(segment.ack(), SeqNumber(7));
        (segment.seq(), segment.payload().len(), segment.flags())
    };
    packets.iter().map(of).collect()
}

#[test]
fn long_segment_is_cut_and_its_end_has_the_flags() {
    let flags = Flags::ACK.union(Flags::FIN);
    let copy = copy(&vec![1; 2500], flags);
    let cut = cut(key(), &copy.segment().unwrap(), 1000, |_| {});
    let first = SeqNumber(u32::MAX - 100);
    let wanted = vec![
        (first, 1000, Flags::ACK),
        (first + 1000, 1000, Flags::ACK),
        (first + 2000, 500, flags),
    ];
    assert_eq!(segments(&cut), wanted);
}

#[test]
fn segment_without_payload_is_one_packet() {
    let flags = Flags::ACK.union(Flags::FIN);
    let cut = cut(key(), &copy(&[], flags).segment().unwrap(), 1000, |_| {});
    assert_eq!(segments(&cut), [(SeqNumber(u32::MAX - 100), 0, flags)]);
}

/// The end of the segment, with its FIN, is not in the copy.
#[test]
fn beginning_of_a_segment_leaves_without_the_flags_of_the_end() {
    let mut copy = copy(&[1; 1500], Flags::ACK.union(Flags::FIN));
    copy.packet.truncate(40 + 900);
    let cut = cut(key(), &copy.segment().unwrap(), 1000, |_| {});
    assert_eq!(
        segments(&cut),
        [(SeqNumber(u32::MAX - 100), 900, Flags::ACK)]
    );
}

#[test]
fn segments_of_a_connection_that_is_gone_are_dropped() {
    let mut deferred = DeferredResponses::default();
    deferred.add(copy(b"x", Flags::ACK), Duration::ZERO);
    assert_eq!(deferred.deadline(), Some(Duration::ZERO));
    let no_flow = |_| Ok::<_, Infallible>(None);
    let Ok(released) = deferred.take_due(Duration::ZERO, no_flow, |_| true);
    assert_eq!((released.len(), deferred.deadline()), (0, None));
}

#[test]
fn number_of_segments_is_limited() {
    let mut deferred = DeferredResponses::default();
    for _ in 0..FLOW_SEGMENTS_MAX + 5 {
        deferred.add(copy(b"x", Flags::ACK), Duration::ZERO);
    }
    assert_eq!(deferred.segments, FLOW_SEGMENTS_MAX);
    deferred.clear();
    assert_eq!(deferred.segments, 0);
}

/// A client without timestamps and its server, of which each has sent everything before `client` and `server`.
struct Talk {
    plane: Plane,
    client: SeqNumber,
    server: SeqNumber,
}

impl Talk {
    /// The server has the request.
    fn begin(client: u32, server: u32) -> Self {
        Self::begin_with(client, server, false)
    }

    fn begin_with(client: u32, server: u32, takes_inputs: bool) -> Self {
        let mut plane = Plane::new(Settings {
            addresses: vec![key().server()],
            keys: vec![PoolKey([1; 16])],
            mark: 100,
            version_check: VersionCheck::Etag,
            is_immutable: false,
            withhold: WITHHOLD_MAX,
            takes_inputs,
            takes_chunks: false,
            encapsulates: false,
        });
        plane.accept(true);
        plane.set_lease(LEASE_MAX);
        plane.set_store(StoreKind::Indexed);
        plane.new_incarnation(1);
        let (client, server) = (SeqNumber(client), SeqNumber(server));
        let mut talk = Self {
            plane,
            client,
            server,
        };
        let syn = SynOptions {
            mss: Some(1460),
            window_scale: None,
            sack_permitted: true,
            timestamps: None,
        };
        talk.send(true, client, SeqNumber(0), Flags::SYN, &[], &syn);
        let flags = Flags::SYN.union(Flags::ACK);
        talk.send(false, server, client + 1, flags, &[], &syn);
        (talk.client, talk.server) = (client + 1, server + 1);
        let none = SynOptions {
            mss: None,
            sack_permitted: false,
            ..syn
        };
        let first = crate::isn::initial(&PoolKey([1; 16]), &key(), crate::isn::Slot::new(0)) + 1;
        talk.send(true, client + 1, first, Flags::ACK, &[], &none);
        let request = b"GET / HTTP/1.1\r\n\r\n";
        talk.send(true, client + 1, first, Flags::ACK, request, &none);
        talk.client += 18;
        talk
    }

    fn send(
        &mut self,
        is_client: bool,
        seq: SeqNumber,
        ack: SeqNumber,
        flags: Flags,
        payload: &[u8],
        options: &SynOptions,
    ) -> Verdict {
        let (source, destination) = if is_client {
            (key().client(), key().server())
        } else {
            (key().server(), key().client())
        };
        let options = options.emit();
        let spec = SegmentSpec {
            source,
            destination,
            seq,
            ack,
            flags,
            window: 60_000,
            options: options.as_slice(),
            payload,
        };
        let mut bytes = Vec::new();
        spec.emit(&mut bytes, ChecksumMode::Full).unwrap();
        let mut packet = Packet {
            bytes,
            mark: 0,
            interface: 1,
            checksum: ChecksumMode::Full,
        };
        let now = Duration::from_secs(1);
        if is_client {
            self.plane.ingress(&mut packet, now)
        } else {
            self.plane.egress(&mut packet, now)
        }
    }

    /// A segment of the response, `offset` bytes behind its beginning.
    fn respond(&mut self, offset: u32, payload: &[u8]) -> SegmentCopy {
        let none = SynOptions {
            mss: None,
            window_scale: None,
            sack_permitted: false,
            timestamps: None,
        };
        let (seq, ack) = (self.server + offset, self.client);
        let verdict = self.send(false, seq, ack, Flags::ACK, payload, &none);
        assert_eq!(verdict, Verdict::Withheld);
        self.plane.take_copy().expect("a copy")
    }

    fn flow(&self) -> Flow {
        self.plane.flow(&key()).expect("a connection").clone()
    }
}

fn take_due(
    deferred: &mut DeferredResponses,
    now: Duration,
    flow: &Flow,
    may_be_stored: bool,
) -> Vec<Released> {
    let flow = |_| Ok::<_, Infallible>(Some(flow.clone()));
    let Ok(released) = deferred.take_due(now, flow, |_| may_be_stored);
    released
}

#[test]
fn response_waits_for_the_store_and_a_second_at_most() {
    let mut talk = Talk::begin(99, 4999);
    let mut deferred = DeferredResponses::default();
    let now = Duration::from_secs(5);
    deferred.add(talk.respond(0, RESPONSE_HEAD), now);
    let flow = talk.flow();
    assert!(flow.awaits_store());
    assert_eq!(take_due(&mut deferred, now, &flow, true), []);
    assert_eq!(deferred.deadline(), Some(now + LOOK_PERIOD));
    let late = now + WAIT_MAX;
    let [released] = &take_due(&mut deferred, late, &flow, true)[..] else {
        panic!("not released");
    };
    let given_up = GivenUp {
        number: flow.turn.number,
        request_start: flow.turn.request_start,
        must_reset: false,
    };
    assert_eq!(released.given_up, Some(given_up));
    assert_eq!(released.packets.len(), 1);
}

#[test]
fn response_without_a_record_under_way_is_given_up_at_once() {
    let mut talk = Talk::begin(99, 4999);
    let mut deferred = DeferredResponses::default();
    deferred.add(talk.respond(0, RESPONSE_HEAD), Duration::ZERO);
    let released = take_due(&mut deferred, Duration::ZERO, &talk.flow(), false);
    assert!(released[0].given_up.is_some());
}

#[test]
fn stored_response_leaves_with_the_rest_in_order() {
    let mut talk = Talk::begin(99, 4999);
    let mut deferred = DeferredResponses::default();
    let now = Duration::ZERO;
    deferred.add(talk.respond(0, RESPONSE_HEAD), now);
    let behind = u32::try_from(RESPONSE_HEAD.len()).unwrap();
    deferred.add(talk.respond(behind, b"body"), now);
    // Behind a gap: the server's TCP sends this again.
    deferred.add(talk.respond(behind + 5, b"more"), now);
    let mut flow = talk.flow();
    flow.storage.stored = flow.turn.number + 1;
    deferred.wake(&key());
    let released = take_due(&mut deferred, now, &flow, true);
    assert_eq!((released[0].given_up, released[0].packets.len()), (None, 2));
}

/// The client has begun anew from the same port.
#[test]
fn segments_of_an_earlier_socket_are_dropped() {
    let mut deferred = DeferredResponses::default();
    let before = Talk::begin(99, 4999).respond(0, RESPONSE_HEAD);
    deferred.add(before, Duration::ZERO);
    let mut talk = Talk::begin(99, 77_777);
    talk.respond(0, RESPONSE_HEAD);
    let mut flow = talk.flow();
    flow.storage.stored = flow.turn.number + 1;
    let released = take_due(&mut deferred, Duration::ZERO, &flow, true);
    assert_eq!(released[0].packets, Vec::<Vec<u8>>::new());
}

const HEAD_WITH_INPUTS: &[u8] = b"HTTP/1.1 200 OK\r\nX-TRODS: seed=7\r\nContent-Length: 40\r\n\r\n";

fn payload_of(packets: &[Vec<u8>]) -> Vec<u8> {
    let of = |packet: &Vec<u8>| {
        let ip = IpPacket::parse(packet).unwrap();
        Segment::of(&ip).unwrap().payload().to_vec()
    };
    packets.iter().flat_map(of).collect()
}

/// The head leaves with spaces in the place of the inputs, whole and in parts.
#[test]
fn inputs_do_not_reach_the_client() {
    let mut talk = Talk::begin_with(99, 4999, true);
    let mut deferred = DeferredResponses::default();
    deferred.add(talk.respond(0, HEAD_WITH_INPUTS), Duration::ZERO);
    let mut flow = talk.flow();
    flow.storage.stored = flow.turn.number + 1;
    let released = take_due(&mut deferred, Duration::ZERO, &flow, true);
    let blanked = String::from_utf8(payload_of(&released[0].packets)).unwrap();
    let expected = String::from_utf8(HEAD_WITH_INPUTS.to_vec()).unwrap();
    assert_eq!(blanked, expected.replace(" seed=7", "       "));
    // The client has ten bytes of the head, and the server's TCP sends the rest once more.
    flow.server.nxt = flow.turn.response_start + length(HEAD_WITH_INPUTS);
    deferred.add(talk.respond(10, &HEAD_WITH_INPUTS[10..]), Duration::ZERO);
    let released = take_due(&mut deferred, Duration::ZERO, &flow, true);
    assert_eq!(payload_of(&released[0].packets), blanked.as_bytes()[10..]);
}

/// The copy of the first segment found no room: nothing of the head leaves until the segment comes once more.
#[test]
fn head_with_inputs_in_unknown_places_does_not_leave() {
    let mut talk = Talk::begin_with(99, 4999, true);
    let mut deferred = DeferredResponses::default();
    talk.respond(0, HEAD_WITH_INPUTS);
    deferred.add(talk.respond(10, &HEAD_WITH_INPUTS[10..]), Duration::ZERO);
    let mut flow = talk.flow();
    flow.storage.stored = flow.turn.number + 1;
    flow.server.nxt = flow.turn.response_start + length(HEAD_WITH_INPUTS);
    let released = take_due(&mut deferred, Duration::ZERO, &flow, true);
    assert_eq!(released[0].packets, Vec::<Vec<u8>>::new());
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap()
}
