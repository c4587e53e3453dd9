use alloc::borrow::ToOwned;
use alloc::vec;
use core::convert::Infallible;

use http1::version::VersionCheck;
use wire::{IpPacket, SynOptions};

use super::*;
use crate::key::PoolKey;
use crate::plane::{CopyKind, Event, MARK_QUEUED, Packet, Plane, Settings, StoreKind, Verdict};
use crate::revive::WITHHOLD_MAX;

const MARK_BASE: u32 = 0x0f70_0000;
const NOW_SINCE_BOOT: Duration = Duration::from_secs(1);
const FIRST: SeqNumber = SeqNumber(7);

fn key() -> FlowKey {
    FlowKey::new(([10, 0, 0, 3], 4000).into(), ([10, 0, 9, 9], 80).into())
}

fn packet(spec: &SegmentSpec<'_>) -> Packet {
    let mut bytes = Vec::new();
    spec.emit(&mut bytes, ChecksumMode::Full).unwrap();
    Packet {
        bytes,
        mark: 0,
        interface: 1,
        checksum: ChecksumMode::Full,
    }
}

fn spec<'a>(seq: SeqNumber, ack: SeqNumber, flags: Flags, payload: &'a [u8]) -> SegmentSpec<'a> {
    SegmentSpec {
        source: key().client(),
        destination: key().server(),
        seq,
        ack,
        flags,
        window: 500,
        options: &[],
        payload,
    }
}

/// A member with a connection, and the queues of its user space.
struct Member {
    plane: Plane,
    queues: RequestQueues,
    has_store: bool,
    /// First byte of the server.
    first: SeqNumber,
}

impl Member {
    fn with_connection(store: StoreKind) -> Self {
        let mut plane = Plane::new(Settings {
            addresses: vec![key().server()],
            keys: vec![PoolKey([1; 16])],
            mark: MARK_BASE,
            version_check: VersionCheck::Etag,
            is_immutable: false,
            withhold: WITHHOLD_MAX,
            takes_inputs: false,
            takes_chunks: false,
            encapsulates: false,
        });
        plane.accept(true);
        plane.set_lease(Duration::from_secs(1 << 30));
        plane.set_store(store);
        plane.new_incarnation(1);
        let options = SynOptions {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: None,
        };
        let options = options.emit();
        let syn = SegmentSpec {
            options: options.as_slice(),
            ..spec(FIRST - 1, SeqNumber(0), Flags::SYN, &[])
        };
        assert_eq!(
            plane.ingress(&mut packet(&syn), NOW_SINCE_BOOT),
            Verdict::Next
        );
        let mut synack = packet(&SegmentSpec {
            source: key().server(),
            destination: key().client(),
            ..SegmentSpec {
                options: options.as_slice(),
                ..spec(SeqNumber(50), FIRST, Flags::SYN.union(Flags::ACK), &[])
            }
        });
        assert_eq!(plane.egress(&mut synack, NOW_SINCE_BOOT), Verdict::Next);
        let ip = IpPacket::parse(&synack.bytes).unwrap();
        let first = Segment::of(&ip).unwrap().seq() + 1;
        Self {
            plane,
            queues: RequestQueues::default(),
            has_store: store != StoreKind::None,
            first,
        }
    }

    /// A segment of the client arrives. Returns the payload that reaches the server, and user space's share.
    fn arrives(&mut self, seq: SeqNumber, payload: &[u8], now: Duration) -> Option<Vec<u8>> {
        let flags = Flags::ACK.union(Flags::PSH);
        let mut arriving = packet(&spec(seq, self.acked(), flags, payload));
        let verdict = self.plane.ingress(&mut arriving, now);
        while let Some(copy) = self.plane.take_copy() {
            assert_eq!(copy.kind, CopyKind::Queued);
            let flow = self.plane.flow(&key()).unwrap();
            self.queues.add(key(), flow, &copy.segment().unwrap(), now);
        }
        (verdict == Verdict::Next).then(|| payload.to_owned())
    }

    fn acked(&self) -> SeqNumber {
        self.plane
            .flow(&key())
            .map_or(self.first, |flow| flow.client.ack)
    }

    /// The bytes that reach the server now.
    fn passed(&mut self, now: Duration) -> Vec<Vec<u8>> {
        while let Some(event) = self.plane.take_event() {
            if let Event::TurnOver { key } | Event::Unprotected { key, .. } = event {
                self.queues.wake(&key);
            }
        }
        let plane = &self.plane;
        let flow = |key| Ok::<_, Infallible>(plane.flow(&key).cloned());
        let server = ServerTerms {
            incarnation: 1,
            has_store: self.has_store,
        };
        let Ok(passed) = self.queues.take_due(now, server, flow);
        let mut payloads = Vec::new();
        for bytes in passed.into_iter().flat_map(|it| it.packets) {
            let mut queued = Packet {
                bytes,
                mark: MARK_BASE + MARK_QUEUED,
                interface: 1,
                checksum: ChecksumMode::Partial,
            };
            assert_eq!(
                self.plane.egress(&mut queued, now),
                Verdict::RedirectIngress
            );
            assert_eq!(self.plane.ingress(&mut queued, now), Verdict::Next);
            let ip = IpPacket::parse(&queued.bytes).unwrap();
            payloads.push(Segment::of(&ip).unwrap().payload().to_vec());
        }
        payloads
    }

    /// The server answers with this response, and the client acknowledges it.
    fn answers(&mut self, response: &[u8], received: SeqNumber) {
        let seq = SeqNumber(51) + (self.acked().0.wrapping_sub(self.first.0));
        let mut response = packet(&SegmentSpec {
            source: key().server(),
            destination: key().client(),
            ..spec(seq, received, Flags::ACK, response)
        });
        assert_eq!(
            self.plane.egress(&mut response, NOW_SINCE_BOOT),
            Verdict::Next
        );
        let flow = self.plane.flow(&key()).unwrap();
        let (nxt, sent) = (flow.client.nxt, flow.server.nxt);
        let mut ack = packet(&spec(nxt, sent, Flags::ACK, &[]));
        assert_eq!(self.plane.ingress(&mut ack, NOW_SINCE_BOOT), Verdict::Next);
    }

    fn unprotected(&self) -> Option<crate::flow::Unprotected> {
        self.plane.flow(&key()).unwrap().unprotected
    }
}

const NOT_FOUND: &[u8] = b"HTTP/1.1 404 N\r\nContent-Length: 2\r\n\r\nno";

fn request(number: u32) -> Vec<u8> {
    alloc::format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes()
}

fn end_of(requests: u32) -> SeqNumber {
    FIRST + requests * u32::try_from(request(0).len()).unwrap()
}

/// The bytes of an earlier connection from the same port reach no server.
#[test]
fn queue_ends_with_its_connection() {
    let mut member = Member::with_connection(StoreKind::Indexed);
    let joined = [request(1), request(2)].concat();
    member.arrives(FIRST, &joined, NOW_SINCE_BOOT);
    let mut later = member.plane.flow(&key()).unwrap().clone();
    later.client.isn += 1;
    let server = ServerTerms {
        incarnation: 1,
        has_store: true,
    };
    let mut queues = member.queues.clone();
    let flow = |_| Ok::<_, Infallible>(Some(later.clone()));
    let Ok(passed) = queues.take_due(NOW_SINCE_BOOT, server, flow);
    assert_eq!((passed.len(), queues.knows(&key())), (0, false));
    let segment = packet(&spec(FIRST, member.acked(), Flags::ACK, &request(3)));
    let ip = IpPacket::parse(&segment.bytes).unwrap();
    let segment = Segment::of(&ip).unwrap();
    member.queues.add(key(), &later, &segment, NOW_SINCE_BOOT);
    let flow = |_| Ok::<_, Infallible>(Some(later.clone()));
    let Ok(passed) = member.queues.take_due(NOW_SINCE_BOOT, server, flow);
    let ip = IpPacket::parse(&passed[0].packets[0]).unwrap();
    assert_eq!(Segment::of(&ip).unwrap().payload(), request(3));
}

#[test]
fn joined_requests_reach_the_server_one_by_one() {
    let mut member = Member::with_connection(StoreKind::Indexed);
    let joined = [request(1), request(2), request(3)].concat();
    assert_eq!(member.arrives(FIRST, &joined, NOW_SINCE_BOOT), None);
    for number in 1..=3 {
        assert_eq!(member.passed(NOW_SINCE_BOOT), [request(number)]);
        assert_eq!(
            member.passed(NOW_SINCE_BOOT),
            Vec::<Vec<u8>>::new(),
            "the turn is under way"
        );
        member.answers(NOT_FOUND, end_of(number));
    }
    assert_eq!(member.passed(NOW_SINCE_BOOT), Vec::<Vec<u8>>::new());
    assert_eq!(member.queues.deadline(), None, "nothing waits");
    assert_eq!(member.unprotected(), None);
}

#[test]
fn request_behind_a_response_waits_for_its_end() {
    let mut member = Member::with_connection(StoreKind::Indexed);
    assert!(member.arrives(FIRST, &request(1), NOW_SINCE_BOOT).is_some());
    // The second of two segments comes first.
    assert_eq!(member.arrives(end_of(2), &request(3), NOW_SINCE_BOOT), None);
    assert_eq!(member.arrives(end_of(1), &request(2), NOW_SINCE_BOOT), None);
    assert_eq!(member.passed(NOW_SINCE_BOOT), Vec::<Vec<u8>>::new());
    member.answers(NOT_FOUND, end_of(1));
    assert_eq!(member.passed(NOW_SINCE_BOOT), [request(2)]);
    member.answers(NOT_FOUND, end_of(2));
    assert_eq!(member.passed(NOW_SINCE_BOOT), [request(3)]);
}

#[test]
fn parts_of_a_request_are_joined() {
    let mut member = Member::with_connection(StoreKind::Indexed);
    let whole = request(1);
    let (part, rest) = whole.split_at(9);
    assert_eq!(member.arrives(FIRST, part, NOW_SINCE_BOOT), None);
    assert_eq!(member.passed(NOW_SINCE_BOOT), Vec::<Vec<u8>>::new());
    assert_eq!(member.arrives(FIRST + 9, rest, NOW_SINCE_BOOT), None);
    assert_eq!(member.passed(NOW_SINCE_BOOT), [whole]);
    assert_eq!(member.unprotected(), None);
}

#[test]
fn part_without_its_rest_passes_without_protection() {
    let mut member = Member::with_connection(StoreKind::Indexed);
    assert_eq!(
        member.arrives(FIRST, &request(1)[..9], NOW_SINCE_BOOT),
        None
    );
    let late = NOW_SINCE_BOOT + PART_WAIT_MAX;
    assert_eq!(
        member.passed(late - Duration::from_millis(1)),
        Vec::<Vec<u8>>::new()
    );
    assert_eq!(member.queues.deadline(), Some(late));
    assert_eq!(member.passed(late), [request(1)[..9].to_vec()]);
    assert_eq!(
        member.unprotected(),
        Some(crate::flow::Unprotected::SplitRequest)
    );
    assert!(member.arrives(FIRST + 9, &request(1)[9..], late).is_some());
}

#[test]
fn bytes_behind_a_lost_protection_pass() {
    let mut member = Member::with_connection(StoreKind::Indexed);
    assert!(member.arrives(FIRST, &request(1), NOW_SINCE_BOOT).is_some());
    assert_eq!(member.arrives(end_of(1), &request(2), NOW_SINCE_BOOT), None);
    assert_eq!(member.passed(NOW_SINCE_BOOT), Vec::<Vec<u8>>::new());
    member.answers(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        end_of(1),
    );
    assert_eq!(member.passed(NOW_SINCE_BOOT), [request(2)]);
    assert_eq!(
        member.unprotected(),
        Some(crate::flow::Unprotected::Chunked)
    );
}

#[test]
fn request_with_a_body_goes_with_the_part_that_is_there() {
    let mut member = Member::with_connection(StoreKind::Indexed);
    assert!(member.arrives(FIRST, &request(1), NOW_SINCE_BOOT).is_some());
    let upload = b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc";
    assert_eq!(member.arrives(end_of(1), upload, NOW_SINCE_BOOT), None);
    member.answers(NOT_FOUND, end_of(1));
    assert_eq!(member.passed(NOW_SINCE_BOOT), [upload.to_vec()]);
    let behind = end_of(1) + u32::try_from(upload.len()).unwrap();
    assert!(
        member.arrives(behind, b"defghi", NOW_SINCE_BOOT).is_some(),
        "the rest of the body"
    );
    assert_eq!(member.unprotected(), None);
}

fn add(member: &mut Member, seq: SeqNumber, payload: &[u8], now: Duration) -> bool {
    let packet = packet(&spec(seq, SeqNumber(9), Flags::ACK, payload));
    let ip = IpPacket::parse(&packet.bytes).unwrap();
    let flow = member.plane.flow(&key()).unwrap().clone();
    let segment = Segment::of(&ip).unwrap();
    member.queues.add(key(), &flow, &segment, now)
}

/// A member whose client waits for a response.
fn asked() -> Member {
    let mut member = Member::with_connection(StoreKind::Indexed);
    assert!(member.arrives(FIRST, &request(1), NOW_SINCE_BOOT).is_some());
    member
}

#[test]
fn repetition_is_known_as_such() {
    let mut member = asked();
    for is_repetition in [false, true, true] {
        let added = add(&mut member, end_of(1), &request(2), NOW_SINCE_BOOT);
        assert_eq!(added, is_repetition);
    }
    // Two senders.
    assert!(add(&mut member, end_of(1), &request(3), NOW_SINCE_BOOT));
    assert_eq!(member.queues.len, 0, "nobody knows whose bytes are right");
}

/// The server's TCP had no room for the request. The client joins the request with the next.
#[test]
fn request_that_the_server_has_not_received_is_given_to_the_server_once_more() {
    let mut member = asked();
    let joined = [request(1), request(2)].concat();
    assert_eq!(member.arrives(FIRST, &joined, NOW_SINCE_BOOT), None);
    assert_eq!(member.passed(NOW_SINCE_BOOT), [request(1)]);
    member.answers(NOT_FOUND, end_of(1));
    assert_eq!(member.passed(NOW_SINCE_BOOT), [request(2)]);
}

/// The first segment of an upload is lost, and comes behind the others.
#[test]
fn body_of_a_request_passes_when_the_hole_is_filled() {
    let mut member = Member::with_connection(StoreKind::Indexed);
    let upload = b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n";
    let body = FIRST + u32::try_from(upload.len()).unwrap();
    assert_eq!(member.arrives(body, b"abcdefghi", NOW_SINCE_BOOT), None);
    assert_eq!(member.passed(NOW_SINCE_BOOT), Vec::<Vec<u8>>::new());
    assert!(member.arrives(FIRST, upload, NOW_SINCE_BOOT).is_some());
    member.queues.wake(&key());
    assert_eq!(member.passed(NOW_SINCE_BOOT), [b"abcdefghi".to_vec()]);
}

/// A client whose pauses double gives up soon.
#[test]
fn request_passes_without_protection_before_the_client_gives_up() {
    let mut member = asked();
    let mut now = NOW_SINCE_BOOT;
    assert!(!add(&mut member, end_of(1), &request(2), now));
    for pause in [300, 600, 1200, 2400] {
        assert_eq!(member.passed(now), Vec::<Vec<u8>>::new());
        now += Duration::from_millis(pause);
        assert!(add(&mut member, end_of(1), &request(2), now));
    }
    assert_eq!(member.passed(now), [request(2)]);
    assert_eq!(
        member.unprotected(),
        Some(crate::flow::Unprotected::Pipelined)
    );
}

/// A client that hears of an unreachable host keeps its pauses short, and waits for longer.
#[test]
fn request_waits_while_the_pauses_of_the_client_stay_short() {
    let mut member = asked();
    let mut now = NOW_SINCE_BOOT;
    add(&mut member, end_of(1), &request(2), now);
    while now < NOW_SINCE_BOOT + WAIT_MAX {
        assert_eq!(member.passed(now), Vec::<Vec<u8>>::new());
        now += Duration::from_millis(700);
        add(&mut member, end_of(1), &request(2), now);
    }
    assert_eq!(member.passed(now), [request(2)]);
}

/// No member joins the segments of a repetition.
#[test]
fn request_of_two_segments_is_unprotected_without_a_store() {
    let mut member = Member::with_connection(StoreKind::None);
    let both = [request(1), request(2)].concat();
    let (first, second) = both.split_at(request(1).len() + 9);
    member.plane.set_store(StoreKind::Indexed);
    assert_eq!(member.arrives(FIRST, first, NOW_SINCE_BOOT), None);
    member.plane.set_store(StoreKind::None);
    assert_eq!(member.passed(NOW_SINCE_BOOT), [request(1)]);
    let rest = FIRST + u32::try_from(first.len()).unwrap();
    assert_eq!(member.arrives(rest, second, NOW_SINCE_BOOT), None);
    member.answers(NOT_FOUND, end_of(1));
    assert_eq!(member.passed(NOW_SINCE_BOOT), [request(2)[..9].to_vec()]);
    assert!(member.unprotected().is_some());
    assert_eq!(member.passed(NOW_SINCE_BOOT), [request(2)[9..].to_vec()]);
}

#[test]
fn bytes_beyond_the_limits_are_left_to_the_client() {
    let mut member = asked();
    for number in 1..100_u32 {
        add(
            &mut member,
            end_of(1) + number * 1400,
            &[b'a'; 1400],
            NOW_SINCE_BOOT,
        );
    }
    assert!(member.queues.len <= FLOW_LEN_MAX);
    // The next bytes find room: those that are farthest behind make way.
    assert!(!add(&mut member, end_of(1), &[b'b'; 1400], NOW_SINCE_BOOT));
    assert!(member.queues.len <= FLOW_LEN_MAX);
    let gone = |_| Ok::<_, Infallible>(None);
    let server = ServerTerms {
        incarnation: 1,
        has_store: true,
    };
    assert_eq!(
        member.queues.take_due(NOW_SINCE_BOOT, server, gone),
        Ok(Vec::new())
    );
    assert_eq!((member.queues.len, member.queues.deadline()), (0, None));
}
