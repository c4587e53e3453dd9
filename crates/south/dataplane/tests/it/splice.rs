//! The rows of the tables in `egress.h` and `ingress.h` about a connection that is bound to a later
//! server's socket, and all of `verify.h`.

use south_model::{
    DEFAULT_FIELDS, EventKind, MARK_CLIENT_SPACE, MARK_SERVER_SPACE, Mode, expectations,
};
use wire::{Flags, FlowId, SeqNumber};

use crate::harness::*;

const NUMBERS: [(u32, u32, u32); 4] = [
    (1000, 5000, 7000),
    (1000, 5000, 3000),
    (u32::MAX - 3, u32::MAX - 1, 0),
    (0, 2, u32::MAX - 4),
];

/// For both families and numbers that wrap.
fn everywhere(test: impl Fn(Both, SeqNumber)) {
    for v6 in [false, true] {
        for (c, s, s2) in NUMBERS {
            test(Both::numbered(c, s, v6), SeqNumber(s2));
        }
    }
}

#[test]
fn the_syn_ack_becomes_the_third_ack() {
    everywhere(|both, s2| {
        let mut both = both.open();
        both.server(segment(both.s + 1, both.c + 1).timestamps(950, 11));
        let out = both.splice(s2);
        let third = out.segment();
        assert_eq!(out.packet.mark, MARK + MARK_SERVER_SPACE);
        assert_eq!(
            (third.seq(), third.ack(), third.flags()),
            (both.c + 1, s2 + 1, ACK)
        );
        assert_eq!(third.source_port(), both.key.client().port());
        assert_eq!(u32::from(third.window()), 65_536 >> CLIENT_SCALE);
        let stamps = third.timestamps().expect("as the SYN-ACK had them");
        assert_eq!((stamps.value, stamps.echo), (11, 70));
        let splice = both.flow().splice;
        assert_eq!(both.flow().mode, Mode::Spliced);
        assert_eq!(s2 + splice.delta_seq, both.s, "FT-TCP IV.E.4");
        assert_eq!(
            70u32.wrapping_add(splice.ts_delta),
            951,
            "newer than any that the client saw"
        );
        assert_eq!((splice.first_tsval, splice.window_scale), (70, LATER_SCALE));
        // The ACK goes up unchanged.
        assert_eq!(both.ingress(out.packet.clone()).verdict, Next);
        // A retransmission is answered again.
        let again = both.server(both.second_syn_ack(s2));
        assert_eq!(
            (again.verdict, again.segment().ack()),
            (RedirectIngress, s2 + 1)
        );
    });
}

#[test]
fn a_self_ack_offers_room_for_any_segment() {
    for scale in 0..=14 {
        let both = Both::new();
        let syn = both.syn().options(&syn_options(10, 0, scale));
        let mut both = both;
        both.client(syn);
        both.server(both.syn_ack());
        both.client(segment(both.c + 1, both.s + 1).timestamps(11, 900));
        let offered = u32::from(both.splice(SeqNumber(7000)).segment().window()) << scale;
        assert!((65_535..=65_536).contains(&offered), "{scale}: {offered}");
    }
}

#[test]
fn without_options_the_third_ack_is_bare() {
    everywhere(|both, s2| {
        let mut both = both.open_bare();
        both.revive(both.s + 1);
        let out = both.server(both.second_syn_ack(s2).options(&[]));
        assert_eq!(
            (out.verdict, out.segment().header_len()),
            (RedirectIngress, 20)
        );
        assert_eq!(out.segment().window(), 65_535);
        let splice = both.flow().splice;
        assert_eq!((splice.ts_delta, splice.window_scale), (0, 0));
    });
}

#[test]
fn while_the_syn_ack_is_awaited_nothing_else_passes() {
    everywhere(|both, s2| {
        let mut both = both.open();
        both.revive(both.s + 1);
        let c = both.c;
        for spec in [
            segment(s2, c + 1).flags(RST),
            segment(s2, c + 1).payload(b"x"),
            Spec {
                ack: c + 2,
                ..both.second_syn_ack(s2)
            }, // answers another SYN
        ] {
            assert_eq!(both.server(spec).verdict, DROP);
            assert_eq!(both.flow().mode, Mode::Splicing);
        }
        let out = both.client(
            segment(c + 1, both.s + 1)
                .timestamps(20, 900)
                .payload(b"waits"),
        );
        assert_eq!((out.verdict, both.flow().client.nxt), (DROP, c + 6));
    });
}

#[test]
fn outward_everything_is_in_the_clients_numbers() {
    everywhere(|both, s2| {
        let mut both = both.open();
        let (c, s) = (both.c + 1, both.s + 1);
        both.splice(s2);
        let out = both.server(
            segment(s2 + 1, c + 9)
                .timestamps(80, 11)
                .window(100)
                .payload(b"hello"),
        );
        let seen = out.segment();
        assert_eq!((out.verdict, seen.seq(), seen.ack()), (Next, s, c + 9));
        assert_eq!(
            seen.window(),
            100 >> (SERVER_SCALE - LATER_SCALE),
            "the right edge counts"
        );
        assert_eq!(seen.timestamps().unwrap().value, 80 - 70 + 901);
        assert_eq!(
            (both.flow().server.nxt, both.flow().splice.nxt),
            (s + 5, s2 + 6)
        );
        // An ACK is never taken back: a pure ACK is dropped; with data, the number is raised.
        assert_eq!(
            both.server(segment(s2 + 6, c + 8).timestamps(80, 11))
                .verdict,
            WITHHELD
        );
        let out = both.server(
            segment(s2 + 6, c + 8)
                .timestamps(80, 11)
                .window(100)
                .payload(b"x"),
        );
        assert_eq!((out.verdict, out.segment().ack()), (Next, c + 9));
        // Without an ACK flag the numbers are left alone.
        let out = both.server(
            segment(s2 + 7, c + 8)
                .flags(Flags::PSH)
                .window(5)
                .payload(b"y"),
        );
        assert_eq!((out.segment().ack(), out.segment().window()), (c + 8, 5));
        // A window of more than 16 bits, a zero window, and a window larger than the client can
        // read.
        let out = both.server(segment(s2 + 8, c + 9).window(65_535));
        assert_eq!(out.segment().window(), 65_535 >> 2);
        let out = both.server(segment(s2 + 8, c + 9).window(0));
        assert_eq!(out.segment().window(), 0);
        // A FIN and a RST are translated too.
        let out = both.server(segment(s2 + 8, c + 9).flags(FIN_ACK));
        assert_eq!((out.verdict, out.segment().seq()), (Next, s + 7));
        let out = both.server(segment(s2 + 9, c + 9).flags(RST));
        assert_eq!((out.verdict, out.segment().seq()), (Next, s + 8));
    });
}

#[test]
fn a_window_too_large_for_the_field_is_the_largest() {
    let mut both = Both::new().open_bare();
    both.revive(both.s + 1);
    let s2 = SeqNumber(9000);
    both.server(both.second_syn_ack(s2)); // the new server scales, the client cannot know
    let out = both.server(segment(s2 + 1, both.c + 1).window(60_000));
    assert_eq!(out.segment().window(), 65_535);
}

#[test]
fn inward_everything_is_in_the_servers_numbers() {
    everywhere(|both, s2| {
        let mut both = both.open();
        let (c, s) = (both.c + 1, both.s + 1);
        both.splice(s2);
        both.server(segment(s2 + 1, c).timestamps(80, 11).payload(&[7; 500]));
        let sack = |edges: &[u32]| {
            let len = u8::try_from(2 + 4 * edges.len()).unwrap();
            let blocks: Vec<u8> = edges
                .iter()
                .flat_map(|edge| (s + *edge).0.to_be_bytes())
                .collect();
            [&timestamps(20, 905)[..], &[1, 1, 5, len], &blocks].concat()
        };
        for edges in [&[100, 200][..], &[100, 200, 300, 400, 450, 500]] {
            let out = both.client(segment(c, s + 50).options(&sack(edges)).payload(b"data"));
            assert_eq!(
                (out.verdict, out.segment().seq(), out.segment().ack()),
                (Next, c, s2 + 51)
            );
            let stamps = out.segment().timestamps().unwrap();
            assert_eq!((stamps.value, stamps.echo), (20, 905 - 901 + 70));
            let at = 16;
            for (i, edge) in edges.iter().enumerate() {
                let place = at + 4 * i..at + 4 * i + 4;
                let seen =
                    u32::from_be_bytes(out.segment().option_bytes()[place].try_into().unwrap());
                assert_eq!(SeqNumber(seen), s2 + 1 + *edge);
            }
        }
        // An echo from before the splice would be a round trip of the whole outage.
        let out = both.client(segment(c + 4, s + 50).timestamps(21, 899));
        assert_eq!(out.segment().timestamps().unwrap().echo, 70);
        // An acknowledgement of unsent output: the server has to refuse this segment.
        let out = both.client(segment(c + 4, s + 501).timestamps(21, 905));
        assert_eq!(out.segment().ack(), s2 + 502);
        // Without ACK, only the checksum could change.
        let out = both.client(segment(c + 4, s + 7).flags(RST).timestamps(21, 905));
        assert_eq!(
            (
                out.segment().ack(),
                out.segment().timestamps().unwrap().echo
            ),
            (s + 7, 905)
        );
    });
}

#[test]
fn a_client_that_has_more_than_the_new_server_said_acknowledges_what_it_said() {
    everywhere(|both, s2| {
        let mut both = both.open();
        let (c, s) = (both.c + 1, both.s + 1);
        both.server(segment(s, c).timestamps(901, 11).payload(&[7; 100]));
        both.client(segment(c, s + 100).timestamps(12, 901));
        both.splice(s2);
        let out = both.client(segment(c, s + 100).timestamps(13, 901));
        assert_eq!((out.verdict, out.segment().ack()), (Next, s2 + 1));
        // A replayed segment takes the same way, and is not recorded.
        both.frames();
        let replayed = segment(c, s + 100).timestamps(13, 901).payload(b"again");
        let turned = both.server(replayed.clone().mark(MARK + MARK_CLIENT_SPACE));
        assert_eq!(turned.verdict, RedirectIngress);
        let out = both.client(replayed.mark(MARK + MARK_CLIENT_SPACE));
        assert_eq!(
            (out.verdict, out.segment().ack(), out.packet.mark),
            (Next, s2 + 1, 0)
        );
        assert!(both.frames().is_empty());
    });
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nDate: Mon\r\nContent-Length: 600\r\n\r\n";

/// The earlier server had acknowledged `told` bytes; the new server has acknowledged none, and has
/// a window of 50,000 bytes.
fn behind(both: Both, s2: SeqNumber, told: u32) -> Both {
    let mut both = both.open();
    let acknowledged = segment(both.s + 1, both.c + 1 + told);
    both.server(acknowledged.window(1_000).timestamps(901, 11));
    both.splice(s2);
    assert_eq!(both.flow().splice.rcv_wnd_edge, both.c + 50_001);
    both
}

#[test]
fn acknowledgement_beyond_window_of_new_server_is_numbered_at_its_edge() {
    everywhere(|both, s2| {
        for (told, numbered) in [(40_000, 40_000), (50_000, 50_000), (60_000, 50_000)] {
            let mut both = behind(
                Both::numbered(both.c.0, both.s.0, both.key.client().is_ipv6()),
                s2,
                told,
            );
            let (seq, numbered) = (both.c + 1 + told, both.c + 1 + numbered);
            let out = both.client(segment(seq, both.s + 1).timestamps(20, 901));
            assert_eq!((out.verdict, out.segment().seq()), (Next, numbered));
            let reset = both.client(segment(seq, both.s + 1).flags(RST));
            assert_eq!(reset.segment().seq(), seq);
        }
    });
}

#[test]
fn payload_beyond_window_of_new_server_is_dropped() {
    everywhere(|both, s2| {
        let mut both = behind(both, s2, 40_000);
        let (told, edge) = (both.c + 40_001, both.c + 50_001);
        let four = |both: &Both, seq: SeqNumber| {
            let spec = segment(seq, both.s + 1).timestamps(20, 901);
            spec.payload(b"four")
        };
        for (seq, verdict) in [
            (edge + 1, DROP),
            (edge, DROP),
            (edge - 3, DROP),
            (edge - 4, Next),
            (told, Next),
        ] {
            let spec = four(&both, seq);
            assert_eq!(both.client(spec).verdict, verdict, "in the replay, {seq:?}");
        }
        // The new server has received all that the earlier server acknowledged, and has no more room.
        both.server(segment(s2 + 1, told).window(0).timestamps(80, 11));
        assert_eq!(
            (both.flow().splice.rcv_wnd_edge, both.flow().server.ack),
            (edge, told)
        );
        for (seq, verdict) in [(edge + 1, DROP), (edge, Next), (edge - 3, Next)] {
            let spec = four(&both, seq);
            assert_eq!(
                both.client(spec).verdict,
                verdict,
                "after the replay, {seq:?}"
            );
        }
    });
}

/// The server's TCP would accept such a segment, and store the timestamp, which the replay does not
/// have.
#[test]
fn segment_before_acknowledged_number_is_dropped_in_replay() {
    everywhere(|both, s2| {
        let mut both = behind(both, s2, 40_000);
        let told = both.c + 40_001;
        let tsval = both.flow().client.tsval;
        for (seq, verdict) in [(told - 5, DROP), (told - 4, Next)] {
            let spec = segment(seq, both.s + 1).timestamps(tsval + 9, 901);
            assert_eq!(both.client(spec.payload(b"four")).verdict, verdict);
            let is_believed = both.flow().client.tsval == tsval + 9;
            assert_eq!(
                is_believed,
                verdict == Next,
                "a replay has the timestamp of what passes"
            );
        }
        let probe = segment(told - 1, both.s + 1).timestamps(tsval + 10, 901);
        assert_eq!(both.client(probe).verdict, DROP);
        let reset = segment(told - 1, both.s + 1).flags(RST);
        assert_eq!(both.client(reset).verdict, Next);
        // After the replay the server's TCP answers.
        both.server(segment(s2 + 1, told).timestamps(80, 11));
        let probe = segment(told - 1, both.s + 1).timestamps(tsval + 10, 901);
        assert_eq!(both.client(probe).verdict, Next);
    });
}

fn answer() -> Vec<u8> {
    let mut answer = ANSWER.to_vec();
    answer.resize(ANSWER.len() + 600, b'b');
    answer
}

/// The client has acknowledged `heard` bytes of the whole response; the new server is spliced and
/// has sent no output yet.
fn replaying(both: Both, s2: SeqNumber, heard: u32, recorded: &[u8]) -> Both {
    let mut both = both.open();
    let (c, s) = (both.c + 1, both.s + 1);
    both.server(segment(s, c).timestamps(901, 11).payload(&answer()));
    both.client(segment(c, s + heard).timestamps(12, 901));
    let chunks = expectations(&[(s, recorded.to_vec())], &[], DEFAULT_FIELDS);
    both.expect(FlowId(1), chunks.into_iter().collect());
    both.revive(s + length(&answer()));
    assert_eq!(
        both.server(both.second_syn_ack(s2)).verdict,
        RedirectIngress
    );
    both
}

/// A client ignores an acknowledgement with a number below the window, and would wait for ever.
#[test]
fn acknowledgement_in_replay_has_number_that_client_takes() {
    everywhere(|both, s2| {
        let heard = length(&answer());
        let mut both = replaying(both, s2, heard, &answer());
        let (c, s) = (both.c + 1, both.s + 1);
        let out = both.server(segment(s2 + 1, c + 5).timestamps(80, 12));
        assert_eq!(out.verdict, Next);
        assert_eq!(
            (out.segment().seq(), out.segment().ack()),
            (s + heard, c + 5)
        );
        assert_eq!(both.flow().server.nxt, s + heard);
        let probe = both.server(segment(s2, c + 5).timestamps(81, 12));
        assert_eq!(probe.segment().seq(), s - 1, "the client answers");
    });
}

#[test]
fn what_the_client_has_is_compared_and_acknowledged_for_it() {
    everywhere(|both, s2| {
        let all = answer();
        let len = length(&all);
        let mut both = replaying(both, s2, 100, &all);
        let c = both.c + 1;
        let out = both.server(segment(s2 + 1, c).timestamps(90, 12).payload(&all[..100]));
        let seen = out.segment();
        assert_eq!(
            (out.verdict, seen.ack(), seen.seq()),
            (RedirectIngress, s2 + 101, c)
        );
        assert!(seen.payload().is_empty());
        assert_eq!(seen.timestamps().unwrap().echo, 90);
        assert_eq!(
            (both.flow().verify.compared, both.counted("self_acks")),
            (100, 1)
        );
        // From here on the output reaches the client.
        let out = both.server(segment(s2 + 101, c).timestamps(91, 12).payload(&all[100..]));
        assert_eq!((out.verdict, out.segment().seq()), (Next, both.s + 101));
        let verify = both.flow().verify;
        assert_eq!(
            (verify.compared, verify.tolerated, verify.unverified),
            (len, 0, 0)
        );
        // Beyond the record no output is compared.
        let out = both.server(segment(s2 + 1 + len, c).timestamps(91, 12).payload(b"new"));
        assert_eq!((out.verdict, both.flow().verify.compared), (Next, len));
    });
}

#[test]
fn a_date_may_differ_and_is_counted() {
    everywhere(|both, s2| {
        let all = answer();
        let mut both = replaying(both, s2, 100, &all);
        let mut other = all.clone();
        other[23..26].copy_from_slice(b"Tue");
        let c = both.c + 1;
        let out = both.server(segment(s2 + 1, c).timestamps(90, 12).payload(&other[..100]));
        assert_eq!(
            (out.verdict, both.flow().verify.tolerated),
            (RedirectIngress, 1)
        );
    });
}

#[test]
fn any_other_difference_ends_the_flow_where_it_is() {
    everywhere(|both, s2| {
        let (c, s) = (both.c + 1, both.s + 1);
        let all = answer();
        for at in [0usize, 9, 99, 100, 500, all.len() - 1] {
            let mut both = replaying(
                Both::numbered(both.c.0, both.s.0, both.key.client().is_ipv6()),
                s2,
                100,
                &all,
            );
            let mut other = all.clone();
            other[at] ^= 1;
            both.events();
            let out = both.server(segment(s2 + 1, c).timestamps(90, 12).payload(&other));
            assert_eq!((out.verdict, both.flow().mode), (DROP, Mode::Diverged));
            // Otherwise the server would get more input.
            assert_eq!(both.flow().splice.nxt, s2 + 1, "it does not count as said");
            let place = s + length(&all[..at]);
            let events = both.events();
            assert!(
                matches!(events[..], [EventKind::Diverged { at, .. }] if at == place),
                "{events:?}"
            );
            // No segment leaves any more, and no segment enters.
            assert_eq!(both.server(segment(s2 + 1, c).flags(RST)).verdict, DROP);
            assert_eq!(both.client(segment(c, s)).verdict, DROP);
        }
    });
}

#[test]
fn where_there_is_no_record_nothing_is_verified() {
    everywhere(|both, s2| {
        let all = answer();
        let mut both = replaying(both, s2, 100, &[]);
        let mut other = all.clone();
        other[300] ^= 1;
        let c = both.c + 1;
        let out = both.server(segment(s2 + 1, c).timestamps(90, 12).payload(&other));
        assert_eq!(
            (out.verdict, both.flow().verify.unverified),
            (Next, length(&all))
        );
        both.forget_expected(FlowId(1), &[0]);
    });
}

#[test]
fn a_fin_before_the_end_is_a_difference_too() {
    everywhere(|both, s2| {
        let all = answer();
        let (c, s) = (both.c + 1, both.s + 1);
        let mut both = replaying(both, s2, 100, &all);
        both.events();
        let out = both.server(
            segment(s2 + 1, c)
                .flags(FIN_ACK)
                .timestamps(90, 12)
                .payload(&all[..300]),
        );
        assert_eq!(
            (out.verdict, both.flow().verify.diverged_at),
            (DROP, s + 300)
        );
        assert!(matches!(both.events()[..], [EventKind::Diverged { .. }]));
    });
    everywhere(|both, s2| {
        let all = answer();
        let c = both.c + 1;
        let mut both = replaying(both, s2, 100, &all);
        let out = both.server(
            segment(s2 + 1, c)
                .flags(FIN_ACK)
                .timestamps(90, 12)
                .payload(&all),
        );
        assert_eq!(
            (out.verdict, both.flow().mode),
            (Next, Mode::Spliced),
            "at the end it is right"
        );
    });
}

/// Beyond 2 GiB the end of the comparison seemed to be ahead: a server that closed at the end of
/// the outstream was taken for a server that closes too early.
#[test]
fn a_fin_far_behind_what_was_compared_is_at_the_end() {
    everywhere(|both, s2| {
        let all = answer();
        let (c, s) = (both.c + 1, both.s + 1);
        for half_gibibytes in [1, 6, 11] {
            let v6 = both.key.client().is_ipv6();
            let one = Both::numbered(both.c.0, both.s.0, v6);
            let mut both = replaying(one, s2, 100, &all);
            let says = |at: SeqNumber| segment(at, c).timestamps(90, 12);
            both.server(says(s2 + 1).payload(&all));
            let mut end = s2 + 1 + length(&all);
            for _ in 0..half_gibibytes {
                end += 1 << 29;
                both.server(says(end - 5).payload(b"bytes"));
                let again = end - (1 << 28);
                let heard = s + again.0.wrapping_sub((s2 + 1).0);
                both.client(segment(c, heard).timestamps(13, 901));
                let out = both.server(says(again).payload(b"again"));
                assert_eq!(out.verdict, Next);
            }
            let verify = both.flow().verify;
            let seen = (verify.compared, verify.unverified);
            assert_eq!(seen, (length(&all), 0), "nothing is compared any more");
            let fin = both.server(says(end).flags(FIN_ACK));
            assert_eq!((fin.verdict, both.flow().mode), (Next, Mode::Spliced));
        }
    });
}

/// Input of a client that has more output than the new server has sent is recorded and held back:
/// the replay delivers the input.
#[test]
fn payload_of_a_client_that_has_heard_more_than_was_said_again_is_held_back() {
    everywhere(|both, s2| {
        let mut both = both.open();
        let (c, s) = (both.c + 1, both.s + 1);
        both.client(segment(c, s).timestamps(12, 900).payload(b"asks"));
        both.server(segment(s, c + 4).timestamps(901, 12).payload(&[7; 500]));
        both.client(segment(c + 4, s + 500).timestamps(13, 901));
        both.splice(s2);
        both.frames();
        let more = |at| segment(c + 4, s + 500).timestamps(at, 901).payload(b"more");
        let held = both.counted("gated_in");
        assert_eq!(both.client(more(14)).verdict, DROP);
        assert_eq!(both.counted("gated_in"), held + 1);
        assert_eq!(both.frames().len(), 1, "it is recorded");
        let says = |at| segment(s2 + 1 + at, c + 4).timestamps(90, 12);
        both.server(says(0).payload(&[7; 499]));
        assert_eq!(both.client(more(14)).verdict, DROP);
        // Input that the server has already, a segment without data, and a RST.
        let again = segment(c, s + 500).timestamps(15, 901).payload(b"asks");
        assert_eq!(both.client(again).verdict, Next);
        let silent = segment(c + 4, s + 500).timestamps(16, 901);
        assert_eq!(both.client(silent).verdict, Next);
        // Input after no more output than the new server has sent.
        let early = segment(c + 4, s + 499).timestamps(17, 901).payload(b"more");
        assert_eq!(both.client(early).verdict, Next);
        // No supervisor is there to replay the input.
        both.fall_silent();
        assert_eq!(both.client(more(18)).verdict, Next);
        both.heartbeat();
        assert_eq!(both.client(more(18)).verdict, DROP);
        both.server(says(499).payload(&[7; 1]));
        assert_eq!(both.client(more(18)).verdict, Next, "all is said again");
    });
}

/// Both sides had ended, and the first server died before acknowledging the client's FIN. The next server's FIN, which
/// the client has, is the last segment that can acknowledge that FIN.
#[test]
fn a_fin_that_the_client_has_brings_the_acknowledgement_of_its_own() {
    everywhere(|both, s2| {
        let mut both = both.open();
        let (c, s) = (both.c + 1, both.s + 1);
        both.server(segment(s, c).timestamps(901, 11).flags(FIN_ACK));
        both.client(segment(c, s + 1).timestamps(12, 901));
        both.splice(s2);
        let fin = |ack| segment(s2 + 1, ack).timestamps(90, 12).flags(FIN_ACK);
        let silent = both.server(fin(c));
        assert_eq!(silent.verdict, RedirectIngress, "the client has that");
        both.client(segment(c, s + 1).timestamps(13, 901).flags(FIN_ACK));
        let out = both.server(fin(c + 1));
        let seen = out.segment();
        assert_eq!((out.verdict, seen.seq(), seen.ack()), (Next, s, c + 1));
        assert!(seen.flags().contains(Flags::FIN));
    });
}

#[test]
fn a_reset_in_the_middle_of_a_replay_is_heard() {
    everywhere(|both, s2| {
        let (c, s) = (both.c + 1, both.s + 1);
        let mut both = replaying(both, s2, 100, &answer());
        let out = both.server(segment(s2 + 20, c).flags(RST));
        assert_eq!(
            (out.verdict, out.segment().seq()),
            (Next, s + 100),
            "RFC 5961 3.2"
        );
    });
}

/// An MPTCP client that fell back to TCP never reads on behind a segment of which the client has a
/// part.
#[test]
fn an_mptcp_client_is_not_sent_what_it_has_in_part() {
    for multipath in [false, true] {
        everywhere(|mut both, s2| {
            let (c, s) = (both.c + 1, both.s + 1);
            let option: &[u8] = if multipath { &[30, 4, 0, 0x81] } else { &[] };
            let options = [&syn_options(10, 0, CLIENT_SCALE)[..], option].concat();
            both.client(both.syn().options(&options));
            both.server(both.syn_ack());
            both.client(segment(c, s).timestamps(11, 900));
            both.server(segment(s, c).timestamps(901, 11).payload(&[7; 100]));
            both.client(segment(c, s + 40).timestamps(12, 901));
            both.splice(s2);
            let again = segment(s2 + 1, c).timestamps(80, 12).payload(&[7; 100]);
            let out = both.server(again.clone());
            if multipath {
                let seen = (out.verdict, out.segment().ack());
                assert_eq!(seen, (RedirectIngress, s2 + 41));
                assert_eq!(both.server(again.flags(RST)).verdict, Next);
            } else {
                assert_eq!((out.verdict, out.segment().seq()), (Next, s));
            }
        });
    }
}

#[test]
fn a_second_death_gates_a_spliced_flow() {
    everywhere(|both, s2| {
        let mut both = both.open();
        let (c, s) = (both.c + 1, both.s + 1);
        both.splice(s2);
        both.gate();
        assert_eq!(both.server(segment(s2 + 1, c).flags(FIN_ACK)).verdict, DROP);
        assert_eq!(both.client(segment(c, s).timestamps(12, 900)).verdict, DROP);
        let ours = segment(c, s).mark(MARK + MARK_CLIENT_SPACE);
        assert_eq!(both.client(ours).verdict, DROP);
        both.splice(s2 + 1000);
        assert_eq!(both.flow().incarnation, 3);
        let out = both.server(segment(s2 + 1001, c).timestamps(80, 11).payload(b"x"));
        assert_eq!((out.verdict, out.segment().seq()), (Next, s));
    });
}

#[test]
fn the_end_of_the_instream_waits_for_what_the_client_had_heard_before_it() {
    let mut both = Both::new().open();
    let (c, s) = (both.c + 1, both.s + 1);
    both.client(segment(c, s).timestamps(12, 900).payload(b"GET"));
    both.server(segment(s, c + 3).timestamps(901, 12).payload(b"0123456789"));
    let s2 = both.s + 70_000;
    both.splice(s2);
    both.server(segment(s2 + 1, c + 3).timestamps(80, 12).payload(b"01234"));
    both.frames();
    let fin = |ack| segment(c + 3, ack).timestamps(13, 901).flags(FIN_ACK);
    // The FIN is recorded; the client retransmits the FIN in time.
    assert_eq!(both.client(fin(s + 10)).verdict, DROP);
    assert_eq!(both.frames().len(), 1);
    // The acknowledgement alone, and a FIN from before that, need not wait.
    let ack = segment(c + 3, s + 10).timestamps(13, 901);
    assert_eq!(both.client(ack).verdict, Verdict::Next);
    assert_eq!(both.client(fin(s + 5)).verdict, Verdict::Next);
    both.server(segment(s2 + 6, c + 3).timestamps(80, 12).payload(b"56789"));
    assert_eq!(both.client(fin(s + 10)).verdict, Verdict::Next);
}

/// A grafted socket (the server has replayed determinants): no number is translated, and the
/// client's acknowledgement never goes back.
#[test]
fn a_graft_goes_on_with_the_numbers_that_the_client_knows() {
    for v6 in [false, true] {
        for (c, s, _) in NUMBERS {
            let mut both = Both::numbered(c, s, v6).open();
            both.client(segment(both.c + 1, both.s + 1).payload(b"0123456789"));
            both.server(segment(both.s + 1, both.c + 11).payload(b"abcdef"));
            both.client(segment(both.c + 11, both.s + 4));
            both.gate();
            both.new_incarnation();
            // The server had read four bytes of ten, and the client has three of six.
            let point = dataplane::SplicePoint {
                instream: both.c + 4,
                outstream: both.s + 4,
                verify_end: both.s + 4,
            };
            assert!(both.graft_at(both.key, point, 30_000));
            let flow = both.flow();
            assert_eq!(flow.mode, Mode::Spliced);
            assert_eq!(
                (flow.splice.ack, flow.splice.rcv_wnd_edge),
                (both.c + 5, both.c + 30_005)
            );
            assert_eq!((flow.splice.delta_seq, flow.splice.ts_delta), (0, 0));
            // Repeated output goes out with the server's own numbers, and with the client's newest
            // acknowledgement.
            let out = both.server(segment(both.s + 4, both.c + 5).payload(b"def"));
            assert_eq!(out.verdict, Next);
            assert_eq!(
                (out.segment().seq(), out.segment().ack()),
                (both.s + 4, both.c + 11)
            );
            // An acknowledgement that takes some back is not sent.
            assert_eq!(
                both.server(segment(both.s + 7, both.c + 5)).verdict,
                WITHHELD
            );
            // The client's segment goes in unchanged.
            let client = both.client(segment(both.c + 11, both.s + 7).payload(b"x"));
            assert_eq!(
                (client.segment().seq(), client.segment().ack()),
                (both.c + 11, both.s + 7)
            );
        }
    }
}
