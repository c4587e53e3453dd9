//! A connection from handshake to the second crash and beyond, packet by packet, and properties that
//! hold for any packets.

use proptest::prelude::*;
use protocol::mirror::FrameKind;
use wire::{ChecksumMode, Flags, FlowId, SeqNumber};

use crate::{
    DEFAULT_FIELDS, EventKind, Exit, MARK_CLIENT_SPACE, MARK_SERVER_SPACE, Mode, Packet, Verdict,
    expectations, fabricated_syn, replayed_segment, testing::*, window_update,
};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap()
}

/// Sends a fabricated segment of a recovery out at egress, which redirects the segment, and in at
/// ingress.
fn inject(lab: &mut Lab, bytes: Vec<u8>, space: u32) -> Out {
    let packet = Packet {
        bytes,
        mark: MARK + space,
        ifindex: 3,
        checksum: ChecksumMode::Partial,
    };
    let turned = lab.egress(packet);
    assert_eq!(turned.verdict, Verdict::RedirectIngress);
    let out = lab.ingress(turned.packet);
    assert_eq!((out.verdict, out.packet.mark), (Verdict::Next, 0));
    out
}

/// Kills the main process; starts a new server, with sequence numbers from `s2`; splices and
/// replays the whole connection up to the end of `answers`, of which the client has the first
/// `acked` bytes.
fn crash_and_recover(lab: &mut Lab, s2: SeqNumber, requests: &[u8], answers: &[u8]) {
    let killed = Exit {
        in_service: true,
        tgid: 42,
        exit_code: 9,
        last_thread: true,
        group_exit: false,
    };
    lab.south.process_exit(killed, lab.now);
    assert!(matches!(
        lab.events()[..],
        [crate::Event {
            kind: EventKind::Death { pid: 42, status: 9 },
            ..
        }]
    ));
    let (c, s) = (lab.c, lab.s);
    let nxt = lab.flow().server.nxt;
    for dying in [FIN_ACK, RST] {
        assert_eq!(
            lab.server(segment(nxt, c + 1).flags(dying)).verdict,
            Verdict::Drop
        );
    }
    let told = lab.flow().server.ack;

    let chunks = expectations(&[(s + 1, answers.to_vec())], &[], DEFAULT_FIELDS);
    let numbers: Vec<u32> = chunks.keys().copied().collect();
    lab.south.expect(FlowId(1), chunks);
    lab.south.new_incarnation();
    assert_eq!(
        lab.server(segment(nxt, c + 1).flags(RST)).verdict,
        Verdict::Drop
    );
    lab.south
        .splice(
            lab.key,
            FlowId(1),
            c,
            s + 1,
            s + 1 + length(answers),
            lab.now,
        )
        .unwrap();
    let syn = fabricated_syn(lab.key, lab.flow()).unwrap();
    let syn = inject(lab, syn, MARK_SERVER_SPACE);
    assert_eq!((syn.segment().seq(), syn.segment().flags()), (c, SYN));

    let answer = segment(s2, c + 1)
        .flags(SYN_ACK)
        .options(&syn_options(70, 11, LATER_SCALE));
    let third = lab.server(answer);
    assert_eq!(
        (third.verdict, third.segment().ack()),
        (Verdict::RedirectIngress, s2 + 1)
    );
    assert_eq!(lab.ingress(third.packet).verdict, Verdict::Next);

    let request = replayed_segment(lab.key, lab.flow(), c + 1, requests, false).unwrap();
    let request = inject(lab, request, MARK_CLIENT_SPACE);
    assert_eq!(
        (request.segment().seq(), request.segment().payload()),
        (c + 1, requests)
    );
    assert_eq!(request.segment().ack(), s2 + 1, "no more than it has said");

    let heard = lab.flow().client.ack.distance_from(s + 1).unwrap();
    let (old, new) = answers.split_at(usize::try_from(heard).unwrap());
    let stamped = |seq, payload| segment(seq, told).timestamps(90, 11).payload(payload);
    let out = lab.server(stamped(s2 + 1, old));
    assert_eq!(
        (out.verdict, out.segment().ack()),
        (Verdict::RedirectIngress, s2 + 1 + heard)
    );
    if !new.is_empty() {
        let out = lab.server(stamped(s2 + 1 + heard, new));
        assert_eq!(
            (out.verdict, out.segment().seq()),
            (Verdict::Next, s + 1 + heard)
        );
    }
    assert_eq!(lab.flow().verify.compared, length(answers));
    let update = window_update(lab.key, lab.flow()).unwrap();
    inject(lab, update, MARK_CLIENT_SPACE);
    lab.south.forget_expected(FlowId(1), numbers);
    lab.south.recovered();
}

/// The client sends a request, receives the first `heard` bytes of the response, and acknowledges
/// these bytes.
fn exchange(lab: &mut Lab, delta: u32, asked: u32, answered: u32, heard: u32) {
    let (c, s) = (lab.c + 1 + asked, lab.s + 1 + answered);
    let out = lab.client(segment(c, s).timestamps(20, 900).payload(REQUEST));
    assert_eq!(
        (out.verdict, out.segment().ack()),
        (Verdict::Next, s - delta)
    );
    let reply = segment(s - delta, c + length(REQUEST))
        .timestamps(95, 20)
        .payload(ANSWER);
    let out = lab.server(reply);
    assert_eq!((out.verdict, out.segment().seq()), (Verdict::Next, s));
    assert_eq!(out.segment().ack(), c + length(REQUEST));
    let ack = segment(c + length(REQUEST), s + heard).timestamps(21, 900);
    assert_eq!(lab.client(ack).verdict, Verdict::Next);
}

fn life(c: u32, s: u32, s2: u32, s3: u32, v6: bool) {
    let mut lab = Lab::with(settings(), c, s, v6).open();
    lab.south.main_process(42);
    exchange(&mut lab, 0, 0, 0, 10);

    crash_and_recover(&mut lab, SeqNumber(s2), REQUEST, ANSWER);
    // Live: the client hears the rest, and asks again.
    let all = lab.s + 1 + length(ANSWER);
    lab.client(segment(lab.c + 1 + length(REQUEST), all).timestamps(22, 900));
    let delta = s.wrapping_sub(s2);
    assert_eq!(lab.flow().splice.delta_seq, delta);
    exchange(
        &mut lab,
        delta,
        length(REQUEST),
        length(ANSWER),
        length(ANSWER),
    );

    crash_and_recover(
        &mut lab,
        SeqNumber(s3),
        &[REQUEST, REQUEST].concat(),
        &[ANSWER, ANSWER].concat(),
    );
    let (asked, answered) = (2 * length(REQUEST), 2 * length(ANSWER));
    exchange(
        &mut lab,
        s.wrapping_sub(s3),
        asked,
        answered,
        length(ANSWER),
    );

    let flow = lab.flow();
    assert_eq!(
        (flow.mode, flow.incarnation, flow.id),
        (Mode::Spliced, 3, FlowId(1))
    );
    assert_eq!(flow.unprotected, None);
    assert_eq!(lab.south.counters().self_acks, 2);
    let frames = lab.mirrored();
    let instream = frames
        .iter()
        .filter(|frame| frame.kind == FrameKind::Instream)
        .count();
    assert_eq!(instream, 3, "each request once, no replay");
}

#[test]
fn a_connection_outlives_two_servers() {
    life(1000, 5000, 7000, 3000, false);
    life(1000, 5000, 7000, 3000, true);
}

#[test]
fn numbers_may_pass_through_zero() {
    for isn in [u32::MAX, u32::MAX - 1, u32::MAX - 20, 0, 1, 1 << 31] {
        life(isn, 0, isn, u32::MAX, false);
        life(u32::MAX - 3, isn, 0, isn, true);
    }
}

/// A segment that is often nearly right.
fn any_segment() -> impl Strategy<Value = Spec> {
    let near = || prop_oneof![4 => -3i32..120, 1 => any::<i32>()];
    let flags = prop_oneof![4 => Just(Flags::ACK.bits()), 1 => any::<u8>()];
    let options = prop_oneof![
        (any::<u32>(), any::<u32>()).prop_map(|(value, echo)| timestamps(value, echo)),
        proptest::collection::vec(any::<u8>(), 0..=40),
    ];
    let payload = proptest::collection::vec(any::<u8>(), 0..60);
    let mark = prop_oneof![8 => Just(0), 1 => MARK..MARK + 8];
    (
        near(),
        near(),
        flags,
        any::<u16>(),
        options,
        payload,
        mark,
        any::<bool>(),
    )
        .prop_map(|(seq, ack, flags, window, options, payload, mark, full)| {
            let spec = segment(
                SeqNumber(seq.cast_unsigned()),
                SeqNumber(ack.cast_unsigned()),
            )
            .flags(Flags::from_bits(flags))
            .window(window)
            .options(&options)
            .payload(&payload)
            .mark(mark);
            if full { spec } else { spec.partial() }
        })
}

fn at(base: SeqNumber, offset: SeqNumber) -> SeqNumber {
    base + offset.0
}

proptest! {
    #[test]
    fn no_bytes_panic_or_grow_anything(
        packets in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..120), any::<bool>()), 1..20),
        version in prop_oneof![Just(0x45u8), Just(0x60)],
    ) {
        let mut lab = Lab::new().open();
        for (mut bytes, out) in packets {
            if let Some(first) = bytes.first_mut() {
                *first = version;
            }
            let packet = Packet { bytes, mark: 0, ifindex: 1, checksum: ChecksumMode::Full };
            let passed = if out { lab.egress(packet.clone()) } else { lab.ingress(packet.clone()) };
            prop_assert!(passed.packet.bytes.len() <= packet.bytes.len());
        }
        prop_assert_eq!((lab.south.flows().count(), lab.south.half_open()), (1, 0));
    }

    #[test]
    fn a_flood_of_syns_evicts_only_handshakes(ports in proptest::collection::vec(any::<u16>(), 1..40)) {
        let mut lab = Lab::new().open();
        let own = client_end(false).port();
        for port in ports.into_iter().filter(|port| *port != own) {
            let mut source = client_end(false);
            source.set_port(port);
            let packet = lab.syn().packet(source, server_end(false));
            lab.ingress(packet);
            prop_assert!(lab.south.half_open() <= settings().max_half_open);
            prop_assert_eq!(lab.south.flows().count(), 1);
        }
    }

    /// For any segments of both ends of a spliced connection: checksums stay right (`Lab` checks
    /// each), the client's acknowledgement never goes back, and both rings stay within bounds.
    #[test]
    fn whatever_comes_the_client_is_never_told_less(
        segments in proptest::collection::vec((any_segment(), any::<bool>()), 1..40),
        c in prop_oneof![Just(u32::MAX - 5), Just(0), any::<u32>()],
        s in any::<u32>(),
        s2 in prop_oneof![Just(u32::MAX - 5), Just(0), any::<u32>()],
    ) {
        let mut lab = Lab::with(crate::Settings { mirror_capacity: 4096, ..settings() }, c, s, false).open();
        lab.crash();
        let s2 = SeqNumber(s2);
        lab.splice(s2);
        for (spec, from_server) in segments {
            let told = lab.flow().server.ack;
            if from_server {
                let spec = Spec { seq: at(s2, spec.seq), ack: at(lab.c, spec.ack), ..spec };
                let (marked, acks) = (spec.mark != 0, spec.flags.contains(Flags::ACK));
                let out = lab.server(spec);
                if lab.south.flow(&lab.key).is_none() {
                    break; // it has answered a SYN: it is another connection
                }
                if out.verdict == Verdict::Next && !marked && acks {
                    prop_assert!(!out.segment().ack().before(told));
                }
            } else {
                let spec = Spec { seq: at(lab.c, spec.seq), ack: at(lab.s, spec.ack), ..spec };
                lab.client(spec);
            }
            prop_assert!(!lab.flow().server.ack.before(told));
        }
        let frames = lab.mirrored();
        let bytes: usize = frames.iter().map(|frame| frame.packet.len() + 48).sum();
        prop_assert!(bytes < 4096);
    }

    /// The server's number `x` reaches the client, the client acknowledges, and the server reads
    /// `x` again.
    #[test]
    fn translation_there_and_back_is_the_identity(c: u32, s: u32, s2: u32, tsval: u16, len in 1usize..100) {
        let mut lab = Lab::with(settings(), c, s, false).open();
        lab.crash();
        let s2 = SeqNumber(s2);
        lab.splice(s2);
        let tsval = 70 + u32::from(tsval);
        let data = segment(s2 + 1, lab.c + 1).timestamps(tsval, 11).payload(&vec![1; len]);
        let heard = lab.server(data);
        let (seq, stamp) = (heard.segment().end_seq(), heard.segment().timestamps().unwrap().value);
        let out = lab.client(segment(lab.c + 1, seq).timestamps(12, stamp));
        prop_assert_eq!(out.segment().ack(), s2 + 1 + length(&vec![1; len]));
        prop_assert_eq!(out.segment().timestamps().unwrap().echo, tsval);
    }
}
