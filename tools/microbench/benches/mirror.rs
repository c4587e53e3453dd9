//! Time for a recorded segment of a client: while the reader of the ring is awake, and while many bytes wait in the
//! ring. Needs root.

use std::{
    cell::Cell,
    hint::black_box,
    time::{Duration, Instant},
};

use criterion::Criterion;
use dataplane::{Ring, Settings};
use wire::{FlowKey, SeqNumber};

#[expect(dead_code, unused_imports, reason = "tests use the rest")]
#[path = "../../../crates/south/dataplane/tests/it/harness/mod.rs"]
mod harness;

use harness::*;

const RING: u32 = 16 << 20;
/// Bytes in the ring at which the reader is woken.
const WAKE: usize = 256 << 10;
const C: SeqNumber = SeqNumber(1000);
const S: SeqNumber = SeqNumber(5000);

fn segments(criterion: &mut Criterion) {
    let settings = Settings {
        mirror_bytes: RING,
        ..settings()
    };
    let place = Pinned::nowhere_else();
    let kernel = Kernel::pinned(&settings, &place);
    let waits = Cell::new(0_usize);
    let taken = |record: &[u8]| waits.set(waits.get().saturating_sub(record.len()));
    let ring = Ring::mirror(&place.pins, taken).expect("the ring");
    let segment = open(&kernel);
    let program = kernel.plane().program_fd("ingress").expect("it is loaded");
    let room = protocol::mirror::HEADER_LEN + 2048;
    for (name, from, to) in [
        ("reader at hand", 0, WAKE / 2),
        ("much waits", 2 * WAKE, RING as usize / 2),
    ] {
        let says = || {
            let mut frame = Frame::of(&segment);
            let since = Instant::now();
            let verdict = frame.run(program).expect("it is run");
            let took = since.elapsed();
            assert_eq!(verdict, Next);
            waits.set(waits.get() + room);
            took
        };
        criterion.bench_function(name, |bencher| {
            bencher.iter_custom(|times| {
                let mut took = Duration::ZERO;
                for _ in 0..times {
                    if waits.get() >= to {
                        ring.consume().expect("it is read");
                    }
                    while waits.get() < from {
                        says();
                    }
                    took += black_box(says());
                }
                took
            });
        });
    }
}

/// A connection with the first segment of the client.
fn open(kernel: &Kernel) -> south_model::Packet {
    let key = FlowKey::new(client_end(false, 0), server_end(false));
    let from_client = |spec: Spec| spec.packet(key.client(), key.server());
    let mut syn = from_client(segment(C, SeqNumber(0)).flags(SYN));
    assert_eq!(kernel.ingress(&mut syn), Next);
    let answer = segment(S, C + 1).flags(SYN_ACK).window(60_000);
    let mut answer = answer.packet(key.server(), key.client());
    assert_eq!(kernel.egress(&mut answer), Next);
    let mut third = from_client(segment(C + 1, S + 1));
    assert_eq!(kernel.ingress(&mut third), Next);
    from_client(segment(C + 1, S + 1).payload(&[7; 1448]))
}

fn main() {
    let mut criterion = Criterion::default().sample_size(20).configure_from_args();
    segments(&mut criterion);
    criterion.final_summary();
}
