use super::{Chunks, FIRST_CHUNK, Location};
use crate::error::Unprotected;
use crate::pool::{Budget, FULL_CHUNK, Pool};
use crate::{index, len64};

/// Writes at positions of chunks with base 1, without limits. Answers the bytes held.
fn written(writes: &[(u64, &[u8])]) -> (Chunks, u64) {
    let (mut pool, mut held) = (Pool::new(u64::MAX), 0);
    let mut chunks = Chunks::new(1);
    for (position, bytes) in writes {
        let mut budget = Budget {
            pool: &mut pool,
            held: &mut held,
            limit: u64::MAX,
        };
        chunks
            .write(*position, bytes, &mut budget)
            .expect("no limit");
    }
    assert_eq!(held, len64(chunks.really_held()));
    assert_eq!(pool.in_use(), held);
    (chunks, held)
}

#[test]
fn chunks_are_contiguous() {
    let mut last = Location::of(0);
    assert_eq!((last.number, last.size, last.within), (0, FIRST_CHUNK, 0));
    for offset in 1..5 * len64(FULL_CHUNK) {
        let next = Location::of(offset);
        if last.within + 1 < last.size {
            let within = last.within + 1;
            assert_eq!(next, Location { within, ..last }, "at {offset}");
        } else {
            let number = last.number + 1;
            let size = FULL_CHUNK.min(index(offset));
            let within = 0;
            let expected = Location {
                number,
                size,
                within,
            };
            assert_eq!(next, expected, "at {offset}");
        }
        last = next;
    }
    assert_eq!(last.number, 12);
}

#[test]
fn short_request_costs_one_chunk() {
    let (_, held) = written(&[(1, &[7; 100])]);
    assert!(held <= 300, "{held} bytes");
}

#[test]
fn write_order_is_irrelevant() {
    let bytes: Vec<u8> = (0..200_000u32).map(|i| i.to_le_bytes()[0] ^ 0x5a).collect();
    let (mut forwards, mut backwards) = (Vec::new(), Vec::new());
    let mut position = 1;
    for part in bytes.chunks(997) {
        forwards.push((position, part));
        backwards.insert(0, (position, part));
        position += len64(part.len());
    }
    for writes in [forwards, backwards] {
        let (chunks, _) = written(&writes);
        let read: Vec<u8> = chunks.slices(1, bytes.len()).flatten().copied().collect();
        assert!(read == bytes);
        assert_eq!(chunks.differing(1, &bytes), 0);
    }
}

#[test]
fn differences_are_counted_across_chunks() {
    let (chunks, _) = written(&[(1, &[1; 1000])]);
    let mut other = [1; 1000];
    for at in [0, 255, 256, 511, 999] {
        other[at] = 2;
    }
    assert_eq!(chunks.differing(1, &other), 5);
    assert_eq!(chunks.differing(257, &other[256..]), 3);
}

#[test]
fn distant_write_costs_one_chunk() {
    let (_, held) = written(&[(1 << 30, b"x")]);
    assert!(held <= len64(FULL_CHUNK) + 64, "{held} bytes");
}

#[test]
fn limit_stops_write_midway() {
    let (mut pool, mut held) = (Pool::new(u64::MAX), 0);
    let mut budget = Budget {
        pool: &mut pool,
        held: &mut held,
        limit: 3000,
    };
    let mut chunks = Chunks::new(1);
    assert_eq!(
        chunks.write(1, &[0; 5000], &mut budget),
        Err(Unprotected::ConnectionLimit)
    );
    chunks.restart(5, &mut budget);
    assert_eq!((*budget.held, budget.pool.in_use()), (0, 0));
    assert_eq!(chunks.base(), 5);
}
