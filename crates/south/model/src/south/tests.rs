use super::*;
use crate::testing::*;

#[test]
fn marks_are_numbers_in_a_row_also_at_the_end_of_the_space() {
    assert_eq!(our_mark(MARK + 2, MARK), Some(MARK_TO_CLIENT));
    assert_eq!(
        (our_mark(MARK + MARKS, MARK), our_mark(MARK - 1, MARK)),
        (None, None)
    );
    assert_eq!(our_mark(0, u32::MAX), Some(MARK_SERVER_SPACE));
}

#[test]
fn an_address_is_protected_in_each_of_its_forms() {
    let lab = Lab::new();
    assert!(
        lab.south
            .shared
            .is_endpoint("[::ffff:10.0.0.10]:80".parse().unwrap())
    );
    assert!(
        !lab.south
            .shared
            .is_endpoint("10.0.0.10:81".parse().unwrap())
    );
}

#[test]
fn protection_is_lost_once() {
    let mut lab = Lab::new();
    let mut flow = Flow::default();
    let (key, now) = (lab.key, lab.now);
    for reason in [UnprotectedReason::MirrorLost, UnprotectedReason::TotalLimit] {
        lab.south
            .shared
            .lose_protection(key, &mut flow, reason, now);
    }
    assert_eq!(flow.unprotected, Some(UnprotectedReason::MirrorLost));
    assert_eq!(lab.events().len(), 1);
}

#[test]
fn events_without_room_are_counted() {
    let mut lab = Lab::new();
    let fits = (EVENT_RING - 1) / (EVENT_RECORD + 8);
    for _ in 0..=fits {
        lab.south.shared.emit(EventKind::Listening, 0);
    }
    assert_eq!(
        (lab.south.counters().events_lost, lab.events().len()),
        (1, fits)
    );
}
