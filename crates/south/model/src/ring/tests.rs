use super::*;

#[test]
fn a_ring_is_full_one_byte_early_and_has_room_again_when_it_is_read() {
    let mut ring = Ring::new(64);
    assert!(ring.push(20, 'a')); // 28, rounded up to 32
    assert!(!ring.push(24, 'b'), "64 of 64 bytes is too much");
    assert!(ring.push(16, 'c')); // 24
    assert_eq!(
        (ring.pop(), ring.pop(), ring.pop()),
        (Some('a'), Some('c'), None)
    );
    assert!(ring.push(48, 'd'));
}

#[test]
fn the_least_recently_used_entry_makes_room() {
    let mut map = LruMap::new(2);
    map.insert(1, 'a');
    map.insert(2, 'b');
    assert!(map.get_mut(&1).is_some());
    map.insert(3, 'c');
    assert_eq!(map.get_mut(&2), None);
    assert_eq!(
        (map.get_mut(&1).copied(), map.get_mut(&3).copied()),
        (Some('a'), Some('c'))
    );
}

#[test]
fn an_entry_that_is_replaced_takes_no_second_place() {
    let mut map = LruMap::new(2);
    map.insert(1, 'a');
    map.insert(2, 'b');
    map.insert(2, 'c');
    assert_eq!((map.len(), map.get_mut(&1).copied()), (2, Some('a')));
    assert_eq!(
        (map.remove(&2), map.len(), map.by_use.len()),
        (Some('c'), 1, 1)
    );
}

#[test]
fn a_map_without_room_holds_nothing() {
    let mut map = LruMap::new(0);
    map.insert(1, 'a');
    assert_eq!((map.len(), map.by_use.len()), (0, 0));
}
