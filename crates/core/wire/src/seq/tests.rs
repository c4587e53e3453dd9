use super::*;
use proptest::prelude::*;
use std::string::ToString;

#[test]
fn order_holds_across_wrap() {
    let last = SeqNumber(u32::MAX);
    let zero = last + 1;
    assert_eq!(zero, SeqNumber(0));
    assert!(zero.after(last) && last.before(zero));
    assert_eq!(zero.distance_from(last), Some(1));
    assert_eq!(last.distance_from(zero), None);
    assert_eq!(last.max_seq(zero), zero);
    assert_eq!(last.min_seq(zero), last);
    assert_eq!(zero - 1, last);
    assert_eq!(last.to_string(), "4294967295");
}

#[test]
fn order_is_irreflexive() {
    let a = SeqNumber(0);
    assert!(!a.before(a) && !a.after(a));
    assert!(a.at_or_before(a) && a.at_or_after(a));
    assert_eq!(a.distance_from(a), Some(0));
}

#[test]
fn half_space_apart_is_unordered() {
    let a = SeqNumber(5);
    let b = a + HALF_SPACE;
    assert!(!a.before(b) && !a.after(b) && !a.at_or_before(b) && !a.at_or_after(b));
    assert_eq!(a.distance_from(b), None);
    assert_eq!(b.distance_from(a), None);
    assert_eq!((a.max_seq(b), a.min_seq(b)), (a, a));
}

#[test]
fn order_is_not_transitive() {
    let (a, b, c) = (SeqNumber(0), SeqNumber(1 << 30), SeqNumber(3 << 30));
    assert!(a.before(b));
    assert!(b.before(c - 1));
    assert!((c - 1).before(a), "the circle closes");
}

#[test]
fn ranges_across_wrap_and_empty_ranges() {
    let start = SeqNumber(u32::MAX - 1);
    assert!(SeqNumber(0).within(start, 3));
    assert!(!SeqNumber(1).within(start, 3));
    assert!(!start.within(start, 0));
    assert!((start - 2).within(start, u32::MAX));
}

proptest! {
    #[test]
    fn comparisons_agree_with_distance(start: u32, distance in 0..HALF_SPACE) {
        let earlier = SeqNumber(start);
        let mut later = earlier;
        later += distance;
        prop_assert_eq!(later.distance_from(earlier), Some(distance));
        prop_assert!(later.at_or_after(earlier) && earlier.at_or_before(later));
        prop_assert_eq!(later.after(earlier), distance != 0);
        prop_assert_eq!(earlier.before(later), distance != 0);
        prop_assert!(!later.before(earlier) && !earlier.after(later));
        prop_assert_eq!(earlier.max_seq(later), later);
        prop_assert_eq!(later.max_seq(earlier), later);
        prop_assert_eq!(earlier.min_seq(later), earlier);
        prop_assert_eq!(later.min_seq(earlier), earlier);
        prop_assert_eq!(later - distance, earlier);
    }

    #[test]
    fn within_counts_from_start(start: u32, offset: u32, len: u32) {
        let start = SeqNumber(start);
        prop_assert_eq!((start + offset).within(start, len), offset < len);
    }
}
