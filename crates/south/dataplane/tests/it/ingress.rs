//! Every row of the table in `ingress.h`.

use std::{thread, time::Duration};

use south_model::{EventKind, Mode, Packet, UnprotectedReason};
use wire::{ChecksumMode, Flags, SeqNumber};

use crate::harness::*;

#[test]
fn packets_of_others_pass_untouched() {
    let mut both = Both::new();
    let (client, server) = (both.key.client(), both.key.server());
    let plain = segment(both.c, both.s).payload(b"x");
    let elsewhere = "10.0.0.77:80".parse().unwrap();
    let mut udp = plain.packet(client, server);
    udp.bytes[9] = 17;
    let mut fragment = plain.packet(client, server);
    fragment.bytes[6] = 0x20; // more fragments follow
    let mut later_fragment = plain.packet(client, server);
    later_fragment.bytes[7] = 1;
    let mut short_header = plain.packet(client, server);
    short_header.bytes[0] = 0x44;
    let mut cut = plain.packet(client, server);
    cut.bytes.truncate(38);
    let mut shorter_than_it_says = plain.packet(client, server);
    shorter_than_it_says.bytes[3] += 1;
    let mut data_offset = plain.packet(client, server);
    data_offset.bytes[20 + 12] = 0x40;
    let mut header_beyond_packet = plain.packet(client, server);
    header_beyond_packet.bytes[20 + 12] = 0x60;
    let arp = Packet {
        bytes: vec![0; 28],
        ..plain.packet(client, server)
    };
    let v6 = other_key(true, 0);
    let mut extension = plain.packet(v6.client(), v6.server());
    extension.bytes[6] = 0; // hop-by-hop options
    let strangers = [
        plain.packet(client, elsewhere),
        plain.packet(client, std::net::SocketAddr::new(server.ip(), 81)),
        udp,
        fragment,
        later_fragment,
        short_header,
        cut,
        shorter_than_it_says,
        data_offset,
        header_beyond_packet,
        arp,
        extension,
    ];
    both.gate(); // ours would be dropped
    for (i, packet) in strangers.into_iter().enumerate() {
        let out = both.ingress(packet.clone());
        assert_eq!((out.verdict, out.packet), (Next, packet), "stranger {i}");
    }
}

#[test]
fn a_handshake_makes_a_flow() {
    for v6 in [false, true] {
        for bare in [false, true] {
            for (c, s) in [
                (1000, 5000),
                (u32::MAX, u32::MAX),
                (u32::MAX - 1, 0),
                (0, 1 << 31),
            ] {
                let both = Both::numbered(c, s, v6);
                let mut both = if bare { both.open_bare() } else { both.open() };
                let flow = both.flow();
                assert_eq!((flow.client.isn, flow.server.isn), (both.c, both.s));
                assert_eq!((flow.client.nxt, flow.client.ack), (both.c + 1, both.s + 1));
                assert_eq!(flow.server.timestamps, !bare);
                assert_eq!(
                    flow.client.window_scale,
                    if bare { 0 } else { CLIENT_SCALE }
                );
                assert_eq!(both.kernel.half_open(), 0);
                assert_eq!(both.frames().len(), 1, "opened");
            }
        }
    }
}

#[test]
fn options_that_cannot_be_carried_are_blanked_in_the_syn() {
    let multipath = [30, 4, 0, 0x81];
    let fast_open = [34, 2];
    let experiment = [254, 4, 0xf9, 0x89];
    for unsupported in [&multipath[..], &fast_open, &experiment] {
        let mut both = Both::new();
        let options = [&syn_options(10, 0, 2)[..], unsupported, &[1, 1, 0, 0]].concat();
        let options = &options[..options.len() / 4 * 4];
        let out = both.client(both.syn().options(options));
        assert_eq!(out.verdict, Next);
        let segment = out.segment();
        let blank = vec![1; unsupported.len()];
        let at = syn_options(10, 0, 2).len();
        assert_eq!(&segment.option_bytes()[at..at + unsupported.len()], blank);
        assert_eq!(both.counted("stripped"), 1);
        both.server(both.syn_ack());
        both.client(segment_after(&both));
        assert_eq!(
            both.flow().syn_options,
            segment.option_bytes(),
            "as the server saw it"
        );
    }
}

fn segment_after(both: &Both) -> Spec {
    segment(both.c + 1, both.s + 1).timestamps(11, 900)
}

#[test]
fn an_authenticated_syn_is_left_alone() {
    for option in [vec![19, 18], vec![29, 18]] {
        let mut both = Both::new();
        let mut options = option;
        options.resize(18, 7);
        options.extend([30, 2]); // would be blanked
        let out = both.client(both.syn().options(&options));
        assert_eq!(
            (out.verdict, out.segment().option_bytes()),
            (Next, &options[..])
        );
        assert_eq!((both.kernel.half_open(), both.counted("untracked")), (0, 1));
    }
}

#[test]
fn malformed_options_end_the_walk() {
    let tables: [&[u8]; 6] = [
        &[3, 0, 1, 1],              // length 0
        &[3, 1, 1, 1],              // length 1
        &[1, 1, 1, 3],              // a kind without a length
        &[8, 10, 0, 0],             // longer than the header
        &[0, 3, 3, 9],              // after the end of the list
        &[3, 4, 9, 9, 3, 3, 15, 1], // a length of its own; then a shift that is too large
    ];
    for options in tables {
        let mut both = Both::new();
        both.client(both.syn().options(options));
        both.server(both.syn_ack());
        assert_eq!(both.client(segment_after(&both)).verdict, Next);
        let scale = both.flow().client.window_scale;
        assert_eq!(
            scale,
            if options.len() == 8 { 14 } else { 0 },
            "{options:?}"
        );
    }
}

#[test]
fn the_servers_tcp_says_which_connection_a_syn_for_known_ends_is_of() {
    for spliced in [false, true] {
        let mut both = Both::new().open();
        if spliced {
            both.splice(both.s + 77_000);
        }
        let earlier = both.flow().clone();
        (both.c, both.s) = (both.c + 12_345, both.s + 54_321);
        assert_eq!(both.client(both.syn()).verdict, Next);
        assert_eq!((both.flow(), both.kernel.half_open()), (&earlier, 1));
        let challenge = segment(earlier.splice.nxt, earlier.client.isn + 1);
        both.server(challenge); // RFC 5961 4.2
        assert_eq!(both.flow().id, earlier.id);
        assert_eq!(both.server(both.syn_ack()).verdict, Next);
        assert_eq!(both.model.flows().count(), 0);
        both.client(segment(both.c + 1, both.s + 1));
        let flow = both.flow();
        assert_eq!((flow.mode, flow.client.isn), (Mode::Observed, both.c));
    }
}

#[test]
fn a_syn_sent_again_does_not_forget_the_answer() {
    let mut both = Both::new();
    both.client(both.syn());
    both.server(both.syn_ack());
    both.client(both.syn());
    both.client(segment_after(&both));
    assert_eq!(both.flow().server.isn, both.s);
    // But another SYN from the same port begins anew.
    let mut both = Both::new();
    both.client(both.syn());
    both.server(both.syn_ack());
    both.c += 77;
    both.client(both.syn());
    both.client(segment_after(&both));
    assert_eq!(
        (both.model.flows().count(), both.counted("untracked")),
        (0, 1)
    );
}

/// A handshake that was answered before the crash; the next life has begun, and is recovering.
fn answered_before_the_crash() -> Both {
    let mut both = Both::new();
    both.client(both.syn());
    both.server(both.syn_ack());
    both.gate();
    both.new_incarnation();
    both
}

#[test]
fn what_an_earlier_life_has_answered_is_not_answered_again_while_that_is_recovered() {
    let mut both = answered_before_the_crash();
    assert_eq!(both.client(both.syn()).verdict, DROP);
    assert_eq!(both.counted("gated_in"), 1);
    assert_eq!(both.client(segment_after(&both)).verdict, DROP);
    assert_eq!(both.flow().server.isn, both.s, "the first answer holds");
    // Another connection is another matter. The same SYN passes when the recovery is over and no
    // duplicate of the network is possible, or when no supervisor recovers.
    let mut both = answered_before_the_crash();
    both.c += 77;
    assert_eq!(both.client(both.syn()).verdict, Next);
    let mut both = answered_before_the_crash();
    both.recovered();
    assert_eq!(both.client(both.syn()).verdict, DROP);
    thread::sleep(Duration::from_secs(1));
    assert_eq!(both.client(both.syn()).verdict, Next);
    let mut both = answered_before_the_crash();
    both.fall_silent();
    assert_eq!(both.client(both.syn()).verdict, Next);
}

#[test]
fn incomplete_handshake_promotes_no_flow() {
    let right = segment(SeqNumber(1001), SeqNumber(5001));
    let wrong = [
        right.clone().flags(RST),
        right.clone().flags(RST.union(ACK)),
        right.clone().flags(Flags::PSH),
        Spec {
            ack: SeqNumber(5002),
            ..right.clone()
        },
        Spec {
            ack: SeqNumber(5000),
            ..right.clone()
        },
        Spec {
            seq: SeqNumber(1000),
            ..right.clone()
        },
        Spec {
            seq: SeqNumber(1001 + 60_001),
            ..right.clone()
        },
        Spec {
            flags: SYN_ACK,
            ..right.clone()
        },
    ];
    for spec in wrong {
        let mut both = Both::new();
        both.client(both.syn());
        assert_eq!(
            both.client(right.clone()).verdict,
            Next,
            "before the answer"
        );
        both.server(both.syn_ack());
        assert_eq!(both.client(spec.clone()).verdict, Next);
        assert_eq!(both.model.flows().count(), 0, "{spec:?}");
        assert_eq!(both.counted("untracked"), 2);
        // The right ACK still does; data does, too, and out of order.
        both.client(
            Spec {
                seq: right.seq + 5,
                ..right.clone()
            }
            .payload(b"data"),
        );
        assert_eq!(both.flow().client.nxt, right.seq + 9);
        assert_eq!(both.frames().len(), 2, "opened, instream");
    }
}

#[test]
fn a_full_table_leaves_a_connection_unprotected() {
    let mut both = Both::new();
    for number in 0..17 {
        both.key = other_key(number % 2 == 0, number);
        both.client(both.syn());
        both.server(both.syn_ack());
        assert_eq!(both.client(segment_after(&both)).verdict, Next);
    }
    assert_eq!(
        (both.model.flows().count(), both.counted("table_full")),
        (16, 1)
    );
    let reason = UnprotectedReason::TooManyConnections;
    let events = both.events();
    assert!(
        matches!(events[..], [EventKind::Unprotected { reason: r, .. }] if r == reason),
        "{events:?}"
    );
}

#[test]
fn strays_are_dropped_only_while_a_recovery_is_under_way() {
    for spec in [
        segment(SeqNumber(7), SeqNumber(9)),
        segment(SeqNumber(7), SeqNumber(9)).flags(RST),
    ] {
        let mut both = Both::new();
        assert_eq!(both.client(spec.clone()).verdict, Next);
        both.gate();
        assert_eq!(both.client(spec.clone()).verdict, DROP, "gated");
        assert_eq!(both.client(both.syn()).verdict, DROP);
        both.new_incarnation();
        assert_eq!(both.client(spec.clone()).verdict, DROP, "recovering");
        assert_eq!(
            both.client(both.syn()).verdict,
            Next,
            "new connections are served"
        );
        both.recovered();
        both.key = other_key(false, 5);
        assert_eq!(both.client(spec.clone()).verdict, Next);
        both.gate();
        both.fall_silent();
        assert_eq!(
            both.client(spec).verdict,
            Next,
            "nobody would open the gate"
        );
        both.heartbeat();
        assert_eq!(both.client(both.syn()).verdict, DROP);
    }
}

#[test]
fn a_client_is_believed_as_its_servers_tcp_would_believe_it() {
    let both = || Both::new().open();
    let (c, s) = (SeqNumber(1001), SeqNumber(5001));
    let before = both().flow().client;
    let ignored = [
        segment(c - 1, s).timestamps(12, 900),         // wholly old
        segment(c + 60_001, s).timestamps(12, 900),    // beyond the window
        segment(c, s + 1).timestamps(12, 900),         // acknowledges what was not sent
        segment(c, s).timestamps(10, 900).window(1),   // PAWS
        segment(c, s).flags(Flags::PSH).payload(b"x"), // no ACK
        segment(c, s).flags(SYN_ACK).payload(b"x"),    // challenged
        segment(c, s).flags(SYN),
        segment(c, s).flags(RST),
    ];
    for spec in ignored {
        let mut both = both();
        assert_eq!(both.client(spec.clone()).verdict, Next);
        let mut after = both.flow().client;
        if spec.options.is_empty() {
            after.tsval = before.tsval;
        }
        assert_eq!(after, before, "{spec:?}");
    }
    let mut both = both();
    both.client(
        segment(c, s)
            .timestamps(12, 900)
            .window(77)
            .payload(b"hello"),
    );
    let client = both.flow().client;
    assert_eq!((client.nxt, client.tsval, client.window), (c + 5, 12, 77));
    both.client(
        segment(c + 10, s)
            .timestamps(12, 900)
            .payload(b"hello")
            .flags(FIN_ACK),
    );
    assert_eq!(both.flow().client.nxt, c + 16, "FIN counts");
    both.client(segment(c + 5, s).timestamps(12, 900).payload(b"hello"));
    assert_eq!(both.flow().client.nxt, c + 16);
}

#[test]
fn what_was_acknowledged_before_is_not_recorded_again() {
    let mut both = Both::new().open();
    let (c, s) = (both.c + 1, both.s + 1);
    both.frames();
    both.client(segment(c, s).timestamps(12, 900).payload(b"hello"));
    both.server(segment(s, c + 5).timestamps(901, 12));
    both.client(segment(c, s).timestamps(13, 900).payload(b"hello"));
    assert_eq!(both.frames().len(), 1);
    both.client(segment(c, s).timestamps(14, 900).payload(b"hello!"));
    assert_eq!(both.frames().len(), 1, "a new byte");
}

#[test]
fn at_the_gate_a_client_is_still_heard() {
    for v6 in [false, true] {
        let mut both = Both::numbered(1000, 5000, v6).open();
        let (c, s) = (both.c + 1, both.s + 1);
        both.server(segment(s, c).timestamps(901, 11).payload(b"answer"));
        both.frames();
        both.gate();
        let out = both.client(segment(c, s + 6).timestamps(13, 901).payload(b"more"));
        assert_eq!(
            (out.verdict, both.frames().len()),
            (DROP, 1),
            "the replay brings it along"
        );
        assert_eq!(
            (both.flow().client.ack, both.flow().client.nxt),
            (s + 6, c + 4)
        );
        // RFC 5961: a RST counts at exactly RCV.NXT, or at the client's SND.NXT.
        both.client(segment(c + 2, s).flags(RST));
        assert!(!both.flow().client.reset);
        both.client(segment(c + 4, s).flags(RST));
        assert!(both.flow().client.reset);
    }
    let mut both = Both::new().open();
    both.gate();
    both.client(segment(both.c + 1, both.s + 1).flags(RST.union(ACK)));
    assert!(both.flow().client.reset);
}

#[test]
fn a_flow_of_an_earlier_life_stays_gated() {
    let mut both = Both::new().open();
    both.gate();
    both.new_incarnation();
    both.recovered();
    let ack = || segment(SeqNumber(1001), SeqNumber(5001)).timestamps(12, 900);
    assert_eq!(both.client(ack()).verdict, DROP);
    both.fall_silent();
    assert_eq!(both.client(ack()).verdict, Next);
    assert_eq!(both.flow().mode, Mode::Observed);
}

#[test]
fn a_handshake_completed_after_the_death_is_announced_as_late() {
    let mut both = Both::new();
    both.client(both.syn());
    both.server(both.syn_ack());
    both.gate();
    both.new_incarnation();
    assert_eq!(both.client(segment_after(&both)).verdict, DROP);
    assert!(matches!(both.events()[..], [EventKind::Late { .. }]));
    assert_eq!(both.flow().incarnation, 1);
}

#[test]
fn our_own_packets_go_their_way() {
    let mut both = Both::new().open();
    let c = both.c + 1;
    let spec = |space| {
        segment(c, SeqNumber(5001))
            .timestamps(12, 900)
            .payload(b"x")
            .mark(MARK + space)
    };
    both.gate();
    // Server space: untouched, through any gate.
    let out = both.client(spec(south_model::MARK_SERVER_SPACE));
    assert_eq!((out.verdict, out.packet.mark), (Next, 0));
    // Client space: only for a flow that is spliced.
    let out = both.client(spec(south_model::MARK_CLIENT_SPACE));
    assert_eq!((out.verdict, out.packet.mark), (DROP, 0));
    // To the client: the mark has no meaning here, and a foreign mark stays.
    let out = both.client(spec(south_model::MARK_TO_CLIENT));
    assert_eq!((out.verdict, out.packet.mark), (DROP, 0));
    let foreign = south_model::MARK_QUEUED + 1;
    let out = both.client(spec(foreign));
    assert_eq!((out.verdict, out.packet.mark), (DROP, MARK + foreign));
    both.key = other_key(false, 9);
    assert_eq!(
        both.client(spec(south_model::MARK_CLIENT_SPACE)).verdict,
        DROP,
        "no flow"
    );
}

#[test]
fn padding_of_the_link_is_no_payload() {
    let mut both = Both::new().open();
    let spec = segment(both.c + 1, both.s + 1).payload(b"abc");
    let mut packet = spec.packet(both.key.client(), both.key.server());
    packet.bytes.extend([0xee; 9]);
    both.frames();
    assert_eq!(both.ingress(packet).verdict, Next);
    assert_eq!(both.flow().client.nxt, both.c + 4);
    let [frame] = &both.frames()[..] else {
        panic!("one frame")
    };
    assert_eq!(frame.packet.len(), 43);
    assert_eq!(
        spec.packet(both.key.client(), both.key.server()).checksum,
        ChecksumMode::Full
    );
}

#[test]
fn ip_options_are_skipped() {
    let mut both = Both::new().open();
    let mut packet = segment(both.c + 1, both.s + 1)
        .payload(b"abc")
        .packet(both.key.client(), both.key.server());
    packet.bytes.splice(20..20, [1, 1, 1, 1]);
    packet.bytes[0] = 0x46;
    packet.bytes[3] += 4;
    assert_eq!(both.ingress(packet).verdict, Next);
    assert_eq!(both.flow().client.nxt, both.c + 4);
}
