use protocol::link::{KeySlot, LinkKey};

use super::*;

const INTERVAL: Duration = Duration::from_millis(100);

fn keys(slot: KeySlot, byte: u8) -> LinkKeys {
    LinkKeys {
        version: protocol::link::VERSION,
        slot,
        up: LinkKey([byte; 16]),
        down: LinkKey([byte + 1; 16]),
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn prober() -> Prober {
    Prober::new(keys(KeySlot::Zero, 1), 7, false, 9000, INTERVAL, ms(0))
}

/// A logger behind a path that carries IP packets of at most `path` bytes.
fn answer(prober: &mut Prober, keys: &LinkKeys, path: usize, now: Duration) -> Vec<usize> {
    let mut accepted = KeySet::EMPTY;
    accepted.put(keys.slot, keys.up);
    let mut arrived = Vec::new();
    for datagram in prober.due(now) {
        let size = datagram.len() + 28;
        if size > path {
            continue;
        }
        arrived.push(size);
        let probe = Probe::decode(ProbeKind::Probe, &datagram, &accepted).unwrap();
        let kind = ProbeKind::Probed;
        prober.on_datagram(&Probe { kind, ..probe }.encode(&keys.down), now + ms(1));
    }
    arrived
}

#[test]
fn the_whole_mtu_is_found_in_one_round_trip() {
    let mut prober = prober();
    let arrived = answer(&mut prober, &keys(KeySlot::Zero, 1), 9000, ms(0));
    assert!(arrived.contains(&9000), "{arrived:?}");
    assert_eq!(prober.mtu(), Some(9000));
    assert_eq!(prober.round_trip(), Some(ms(1)));
}

#[test]
fn a_smaller_path_is_known_when_the_larger_had_their_time() {
    let mut prober = prober();
    for now in (0..).step_by(100).map(ms).take_while(|now| *now < SEARCH) {
        answer(&mut prober, &keys(KeySlot::Zero, 1), 1450, now);
        assert_eq!(prober.mtu(), None);
    }
    answer(&mut prober, &keys(KeySlot::Zero, 1), 1450, SEARCH);
    assert_eq!(prober.mtu(), Some(1420));
}

#[test]
fn a_path_that_shrinks_is_noticed_and_searched_again() {
    let mut prober = prober();
    let keys = keys(KeySlot::Zero, 1);
    answer(&mut prober, &keys, 9000, ms(0));
    let mut now = ms(0);
    while !prober.has_shrunk(now) {
        now += INTERVAL;
        assert!(now < Duration::from_secs(20), "not noticed");
        answer(&mut prober, &keys, 1500, now);
    }
    prober.search(9000, now);
    for _ in 0..6 {
        answer(&mut prober, &keys, 1500, now);
        now += INTERVAL;
    }
    assert_eq!(prober.mtu(), Some(1500));
}

#[test]
fn silence_is_counted_from_the_first_question_that_is_not_answered() {
    let mut prober = prober();
    answer(&mut prober, &keys(KeySlot::Zero, 1), 9000, ms(0));
    assert_eq!(prober.silence(ms(900)), ms(0), "nobody has asked");
    assert!(!prober.due(ms(1000)).is_empty());
    assert!(!prober.due(ms(1100)).is_empty());
    assert_eq!(prober.silence(ms(1500)), ms(500));
    prober.on_activity(ms(1600));
    assert_eq!(prober.silence(ms(1700)), ms(0));
    assert!(prober.answered_since(ms(1599)) && !prober.answered_since(ms(1600)));
}

#[test]
fn answers_of_strangers_and_old_answers_are_none() {
    let mut prober = prober();
    let datagram = prober.due(ms(0)).swap_remove(0);
    let stranger = Probe {
        version: protocol::link::VERSION,
        kind: ProbeKind::Probed,
        slot: KeySlot::Zero,
        counter: 8,
    };
    prober.on_datagram(&stranger.encode(&LinkKey([9; 16])), ms(500));
    assert_eq!(prober.silence(ms(500)), ms(500), "the wrong key");
    prober.on_datagram(&datagram, ms(500));
    assert_eq!(prober.silence(ms(500)), ms(500), "our own question");
    let good = stranger.encode(&LinkKey([2; 16]));
    prober.on_datagram(&good, ms(500));
    assert_eq!(prober.silence(ms(500)), ms(0));
    assert!(!prober.due(ms(600)).is_empty());
    prober.on_datagram(&good, ms(900));
    assert_eq!(prober.silence(ms(900)), ms(300), "a repetition");
}

#[test]
fn new_keys_are_used_and_answers_with_the_old_ones_count() {
    let mut prober = prober();
    let (old, new) = (keys(KeySlot::Zero, 1), keys(KeySlot::One, 5));
    let asked = prober.due(ms(0));
    prober.rekey(new);
    let mut accepted = KeySet::EMPTY;
    accepted.put(old.slot, old.up);
    let probe = Probe::decode(ProbeKind::Probe, &asked[0], &accepted).unwrap();
    let kind = ProbeKind::Probed;
    prober.on_datagram(&Probe { kind, ..probe }.encode(&old.down), ms(50));
    assert_eq!(prober.silence(ms(50)), ms(0));
    assert!(!answer(&mut prober, &new, 9000, ms(100)).is_empty());
}

#[test]
fn what_is_not_answered_is_not_kept_for_ever() {
    let mut prober = prober();
    for now in (0..100_000).step_by(100).map(ms) {
        prober.due(now);
    }
    assert!(
        prober.outstanding.len() < 1000,
        "{}",
        prober.outstanding.len()
    );
}
