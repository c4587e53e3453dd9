use super::{Budget, FULL_CHUNK, Pool};
use crate::error::Unprotected;
use crate::len64;

const FULL_CHUNK_BYTES: u64 = len64(FULL_CHUNK);

fn budget<'a>(pool: &'a mut Pool, held: &'a mut u64) -> Budget<'a> {
    Budget {
        pool,
        held,
        limit: u64::MAX,
    }
}

#[test]
fn full_chunk_is_reused_empty() {
    let (mut pool, mut held) = (Pool::new(u64::MAX), 0);
    let mut budget = budget(&mut pool, &mut held);
    let mut chunk = budget.chunk(FULL_CHUNK).expect("no limit");
    chunk.extend_from_slice(b"somebody's");
    let address = chunk.as_ptr();
    budget.give_back(chunk);
    assert_eq!((*budget.held, budget.pool.idle()), (0, FULL_CHUNK_BYTES));

    let again = budget.chunk(FULL_CHUNK).expect("no limit");
    assert_eq!((again.as_ptr(), again.len()), (address, 0));
    assert_eq!((*budget.held, budget.pool.idle()), (FULL_CHUNK_BYTES, 0));
}

#[test]
fn idle_chunks_yield_to_demand() {
    let (mut pool, mut held) = (Pool::new(2 * FULL_CHUNK_BYTES), 0);
    let mut budget = budget(&mut pool, &mut held);
    let chunks = [budget.chunk(FULL_CHUNK), budget.chunk(FULL_CHUNK)];
    for chunk in chunks {
        budget.give_back(chunk.expect("fits"));
    }
    assert_eq!(budget.pool.idle(), 2 * FULL_CHUNK_BYTES);
    budget.chunk(256).expect("fits, for what waits is freed");
    assert_eq!(
        (budget.pool.in_use(), budget.pool.idle()),
        (256, FULL_CHUNK_BYTES)
    );
}

#[test]
fn idle_chunks_are_freed_by_halves() {
    let (mut pool, mut held) = (Pool::new(u64::MAX), 0);
    let mut budget = budget(&mut pool, &mut held);
    let chunks: Vec<_> = (0..8)
        .map(|_| budget.chunk(FULL_CHUNK).expect("no limit"))
        .collect();
    for chunk in chunks {
        budget.give_back(chunk);
    }
    // The chunks were needed a moment ago.
    budget.pool.trim();
    assert_eq!(
        (*budget.held, budget.pool.idle()),
        (0, 8 * FULL_CHUNK_BYTES)
    );
    // Of eight, three were needed meanwhile, and five were not.
    let needed = [(); 3].map(|()| budget.chunk(FULL_CHUNK).expect("no limit"));
    for chunk in needed {
        budget.give_back(chunk);
    }
    budget.pool.trim();
    assert_eq!(budget.pool.idle(), 5 * FULL_CHUNK_BYTES);
    for left in [2, 1, 0, 0] {
        budget.pool.trim();
        assert_eq!(budget.pool.idle(), left * FULL_CHUNK_BYTES);
    }
}

#[test]
fn refusal_charges_no_bytes() {
    let (mut pool, mut held) = (Pool::new(1000), 0);
    let mut budget = Budget {
        pool: &mut pool,
        held: &mut held,
        limit: 600,
    };
    let mut table: Vec<u64> = Vec::new();
    budget.reserve(&mut table, 75).expect("exactly the limit");
    assert_eq!(table.capacity(), 75);
    assert_eq!(budget.chunk(1), Err(Unprotected::ConnectionLimit));
    budget.limit = 2000;
    assert_eq!(budget.chunk(401), Err(Unprotected::TotalLimit));
    assert_eq!((*budget.held, budget.pool.in_use()), (600, 600));
    budget.free(table);
    assert_eq!((*budget.held, budget.pool.in_use()), (0, 0));
}
