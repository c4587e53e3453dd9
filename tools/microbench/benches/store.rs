//! Puts and look-ups per second at a store on this host, and their times, by operations in flight. Needs redis-server
//! and memcached.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use store::{Completion, Operation, Report, Store as _, StoreClient, Ticket};

#[expect(dead_code, reason = "tests use the rest")]
#[path = "../../../crates/service/store/tests/it/server.rs"]
mod server;

use server::{Server, get, put};

/// Bytes of a record of a usual download.
const RECORD_LEN: usize = 600;
const OPERATION_COUNT: u16 = 20_000;

struct Figures {
    per_second: f64,
    times: Vec<Duration>,
}

/// Keeps as many operations in flight.
fn measure(
    store: &mut StoreClient,
    in_flight: usize,
    operation: impl Fn(u16) -> Operation,
) -> Figures {
    let mut began: HashMap<Ticket, Instant> = HashMap::new();
    let (mut times, mut reports) = (Vec::new(), Vec::new());
    let mut ports = 0..OPERATION_COUNT;
    let start = Instant::now();
    while times.len() < usize::from(OPERATION_COUNT) {
        while began.len() < in_flight {
            let Some(port) = ports.next() else { break };
            let now = Instant::now();
            began.insert(store.submit(operation(port)).expect("a free queue"), now);
        }
        store
            .wait(Instant::now() + Duration::from_secs(10))
            .expect("an answer");
        store.poll(&mut reports);
        let now = Instant::now();
        for report in reports.drain(..) {
            if let Report::Completed(Completion { ticket, result }) = report {
                result.expect("a success");
                times.push(now - began.remove(&ticket).expect("a ticket of ours"));
            }
        }
    }
    let per_second = f64::from(OPERATION_COUNT) / start.elapsed().as_secs_f64();
    times.sort_unstable();
    Figures { per_second, times }
}

fn main() {
    let redis = Server::redis(&[]);
    let memcached = Server::memcached(&["-M"]);
    println!("{RECORD_LEN} bytes, {OPERATION_COUNT} operations");
    for (name, mut client) in [
        ("redis", redis.redis_client()),
        ("memcached", memcached.memcached_client()),
    ] {
        client.wait_until_connected();
        for in_flight in [1, 16, 256] {
            let value = [7; RECORD_LEN];
            let figures = [
                (
                    "put",
                    measure(&mut client.store, in_flight, |port| {
                        put("web1", port, &value)
                    }),
                ),
                (
                    "get of 4",
                    measure(&mut client.store, in_flight, |port| {
                        get(&["web1", "web2", "web3", "web4"], port)
                    }),
                ),
            ];
            for (operation, Figures { per_second, times }) in figures {
                let percentile =
                    |of_hundred: usize| times[times.len() * of_hundred / 100].as_micros();
                println!(
                    "{name:9} {operation:8} {in_flight:3} in flight: {per_second:6.0} per second, p50 {} µs, p99 {} µs",
                    percentile(50),
                    percentile(99)
                );
            }
        }
    }
}
