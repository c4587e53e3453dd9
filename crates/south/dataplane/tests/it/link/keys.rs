//! Whose word counts.

use super::*;

#[test]
fn who_has_no_key_is_not_heard() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.says(1, b"hello");
    linked.server_acks(6);
    let word = linked.word(6, &[]);
    let forged = word.encode(&LinkKey([1; 16]));
    let out = linked.both.ingress(datagram(&linked.link, false, &forged));
    assert_eq!(out.verdict, Verdict::Drop);
    assert_eq!(linked.both.counted("link_forged"), 1);
    let mut damaged = word.encode(&DOWN);
    damaged[60] ^= 1;
    let out = linked.both.ingress(datagram(&linked.link, false, &damaged));
    assert_eq!(out.verdict, Verdict::Drop);
    assert_eq!(linked.both.flow().log.stable, linked.both.c + 1);
    assert_eq!(linked.hear(&word).verdict, Verdict::Redirect);
}

#[test]
fn a_slot_that_was_never_used_has_no_key() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.says(1, b"hello");
    linked.server_acks(6);
    let word = Ack {
        slot: KeySlot::Zero,
        ..linked.word(6, &[])
    };
    let forged = word.encode(&LinkKey([0; 16]));
    let out = linked.both.ingress(datagram(&linked.link, false, &forged));
    assert_eq!(out.verdict, Verdict::Drop);
    assert_eq!(linked.both.counted("link_forged"), 1);
    assert_eq!(linked.both.flow().log.stable, linked.both.c + 1);
}

#[test]
fn what_is_played_again_is_not_heard() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    for at in [1, 101, 201] {
        linked.says(at, &[b'x'; 100]);
    }
    linked.server_acks(301);
    let gap = linked.word(101, &[(201, 301)]);
    assert_eq!(linked.hear(&gap).verdict, Verdict::Redirect);
    assert_eq!(linked.hear(&gap).verdict, Verdict::Drop);
    let (old, new) = (linked.word(101, &[(201, 301)]), linked.word(301, &[]));
    assert_eq!(linked.hear(&new).verdict, Verdict::Redirect);
    assert_eq!(linked.hear(&old).verdict, Verdict::Drop, "overtaken");
    linked.both.link_up(true); // another logger: it counts anew
    linked.says(301, b"x");
    linked.server_acks(302);
    linked.counter = 0;
    assert_eq!(linked.logged(302, &[]).verdict, Verdict::Redirect);
}

#[test]
fn old_keys_are_valid_until_their_slot_is_used_again() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    let new = LinkKeys {
        version: protocol::link::VERSION,
        slot: KeySlot::Zero,
        up: LinkKey([1; 16]),
        down: LinkKey([2; 16]),
    };
    linked.both.set_link(LinkSettings {
        keys: new,
        ..linked.link
    });
    linked.says(1, b"hello");
    linked.server_acks(6);
    let copies = linked.both.copies();
    let payload = linked.payload(&copies[0]);
    let view = SegmentView::parse(&payload).unwrap();
    let mut up = KeySet::EMPTY;
    up.put(KeySlot::Zero, new.up);
    assert!(view.verify(&up, FlowId(1)), "made with the new key");
    let out = linked.logged(3, &[]);
    assert_eq!(told(&out).0, 3, "the old one is still good");
    let word = Ack {
        slot: KeySlot::Zero,
        ..linked.word(6, &[])
    };
    let word = datagram(&linked.link, false, &word.encode(&new.down));
    assert_eq!(linked.both.ingress(word).verdict, Verdict::Redirect);
}

#[test]
fn the_answer_to_a_probe_is_for_the_socket() {
    let mut linked = Linked::new(AckStrategy::Eager);
    let probed = Probe {
        version: protocol::link::VERSION,
        kind: ProbeKind::Probed,
        slot: KeySlot::One,
        counter: 1,
    };
    let packet = datagram(&linked.link, false, &probed.encode(&DOWN));
    let out = linked.both.ingress(packet.clone());
    assert_eq!((out.verdict, out.packet), (Verdict::Next, packet));
    let strange = datagram(&linked.link, false, b"who are you?");
    assert_eq!(linked.both.ingress(strange).verdict, Verdict::Next);
}
