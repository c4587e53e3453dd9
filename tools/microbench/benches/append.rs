//! In-order appends, the hot path of the logger; and the memory of idle connections.

use criterion::{Criterion, Throughput};
use journal::{InstreamSegment, Journal, Limits, ReplayMode, ServerProgress};
use std::hint::black_box;
use wire::{FlowId, SeqNumber};

const CLIENT: SeqNumber = SeqNumber(u32::MAX - 1000);
const SERVER: SeqNumber = SeqNumber(5);
/// Bytes of an upload whose chunks the free list holds, and of an upload that asks the kernel for most pages again.
const UPLOADS: [(&str, usize); 2] = [("recycled", 4 << 20), ("fresh", 64 << 20)];
/// Connections that are open besides the measured connection.
const OTHERS: u64 = 10_000;

fn journal() -> Journal {
    let limits = Limits {
        per_connection: 1 << 30,
        total: 2 << 30,
        connections: 1 << 20,
    };
    let mut journal = Journal::new(limits, ReplayMode::Connection);
    for flow in 0..OTHERS {
        journal.open(FlowId(flow), CLIENT, SERVER).expect("few");
    }
    journal
}

fn upload(journal: &mut Journal, flow: FlowId, length: usize, payload: &[u8]) {
    let step = u32::try_from(payload.len()).expect("a segment");
    let mut seq = CLIENT + 1;
    for _ in 0..length / payload.len() {
        let arrival = InstreamSegment {
            seq,
            payload,
            fin: false,
            client_ack: SERVER + 1,
            heard_all: true,
            heads_known: false,
            doubted: None,
            server: Some(ServerProgress {
                nxt: SERVER + 1,
                ack: seq,
            }),
        };
        journal.instream(flow, &arrival).expect("recorded");
        seq += step;
    }
}

fn append(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("append");
    group.sample_size(10);
    let flow = FlowId(OTHERS / 2);
    for (name, length) in UPLOADS {
        for size in [1448, 65_536] {
            let payload = vec![0x5a; size];
            let bytes = length / size * size;
            group.throughput(Throughput::Bytes(u64::try_from(bytes).expect("small")));
            let mut journal = journal();
            group.bench_function(format!("{size}/{name}"), |bencher| {
                bencher.iter(|| {
                    upload(&mut journal, flow, length, black_box(&payload));
                    journal.open(flow, CLIENT, SERVER).expect("known");
                });
            });
        }
    }
    group.finish();
}

/// Resident bytes of this process.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// Growth of the process for each idle connection with a request of 100 bytes.
fn idle() {
    let before = resident();
    let mut journal = journal();
    for flow in 0..OTHERS {
        let arrival = InstreamSegment {
            seq: CLIENT + 1,
            payload: &[b'x'; 100],
            fin: false,
            client_ack: SERVER + 1,
            heard_all: true,
            heads_known: false,
            doubted: None,
            server: Some(ServerProgress {
                nxt: SERVER + 1,
                ack: CLIENT + 1,
            }),
        };
        journal.instream(FlowId(flow), &arrival).expect("recorded");
    }
    let held = journal.statistics().held / OTHERS;
    match before.zip(resident()) {
        Some((before, after)) => {
            let each = after.saturating_sub(before) / OTHERS;
            println!("idle: {each} resident bytes per connection, {held} of them in the record");
        }
        None => println!("idle: {held} bytes per connection in the record; no /proc to read"),
    }
}

fn main() {
    idle();
    let mut criterion = Criterion::default().configure_from_args();
    append(&mut criterion);
    criterion.final_summary();
}
