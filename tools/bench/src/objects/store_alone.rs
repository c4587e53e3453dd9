//! What a store alone takes of the processors: the bound of a response that waits for its record.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use harness::pool::PoolHosts;
use objects::PoolKey;
use objects::record::{HashName, MemberHash, StoreKey};
use store::{Operation, Report, Settings, Store as _, StoreClient};
use wire::FlowKey;

use crate::Bench;
use crate::figure::Figure;

/// Bytes of the record of a usual response.
const RECORD_BYTES: usize = 600;
/// As many as the clients of the other measurement have connections.
const IN_FLIGHT_COUNT: usize = 16;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Of the record of a later response on a connection that stays, and of a connection: written, and deleted.
const KEPT_OPERATIONS: f64 = 1.0;
const CONNECTION_OPERATIONS: f64 = 2.0;

/// Records a second that Redis stores for one member, and with these the bounds of `deferred`: requests of a plain
/// server and operations of the store share the same processors.
pub(super) fn bounds(
    bench: &Bench,
    hosts: &PoolHosts,
    url: &str,
    deferred: &[Figure],
) -> Result<Vec<Figure>> {
    bench.say(format_args!(
        "records for Redis alone, {IN_FLIGHT_COUNT} at a time"
    ));
    let mut rates = Vec::new();
    for _ in 0..bench.rounds {
        bench.interrupt.check()?;
        rates.push(puts_per_second(bench, hosts, url)?);
    }
    let how = format!(
        "records of {RECORD_BYTES} bytes that the store client of a member writes to Redis on another host, {IN_FLIGHT_COUNT} \
         at a time, with nothing else on the processors"
    );
    let alone = Figure::of("objects.store.puts", "1/s", &rates, how);
    let mut figures = Vec::new();
    for (name, operations) in [
        ("requests", KEPT_OPERATIONS),
        ("connections", CONNECTION_OPERATIONS),
        ("connections.16k", CONNECTION_OPERATIONS),
    ] {
        let plain = format!("objects.deferred.{name}.plain");
        let plain = deferred.iter().find(|figure| figure.name == plain);
        let plain = plain.context("no plain server was measured")?.value;
        let bound = 1.0 / (1.0 + operations * plain / alone.value);
        let how = format!(
            "objects.deferred.{name}.ratio if nothing but the plain requests and {operations} operations of the store for each \
             took time: 1 / (1 + {operations} × plain / objects.store.puts)"
        );
        figures.push(Figure::of(
            format!("objects.deferred.{name}.bound"),
            "",
            &[bound],
            how,
        ));
    }
    figures.push(alone);
    Ok(figures)
}

fn puts_per_second(bench: &Bench, hosts: &PoolHosts, url: &str) -> Result<f64> {
    let url = url.parse()?;
    // The thread of the store stays in the network namespace in which it was started.
    let mut store = { hosts.host(0) }.enter(|| StoreClient::open(&url, Settings::default()))??;
    let mut reports = Vec::new();
    let connected_by = Instant::now() + ANSWER_TIMEOUT;
    while !{ reports.drain(..) }.any(|report| matches!(report, Report::Connected { .. })) {
        store.wait(connected_by)?;
        store.poll(&mut reports);
    }
    let key = PoolKey([7; 16]);
    let hash = HashName::new(hosts.service(), MemberHash::of("bench", &key));
    let of_port = |port: u16| {
        let client = SocketAddr::from(([10, 0, 0, 3], port));
        StoreKey::new(hash, FlowKey::new(client, hosts.service()))
    };
    let count: u16 = bench.size(40_000, 10_000);
    let (mut sent, mut stored, mut in_flight) = (0, 0, 0);
    let start = Instant::now();
    while stored < count {
        while in_flight < IN_FLIGHT_COUNT && sent < count {
            let key = of_port(sent);
            let value = vec![b'x'; RECORD_BYTES];
            let submitted = store.submit(Operation::Put { key, value });
            submitted.map_err(|_| anyhow!("the queue of the store is full"))?;
            (sent, in_flight) = (sent + 1, in_flight + 1);
        }
        store.wait(Instant::now() + ANSWER_TIMEOUT)?;
        store.poll(&mut reports);
        for report in reports.drain(..) {
            if let Report::Completed(completion) = report {
                completion.result?;
                (stored, in_flight) = (stored + 1, in_flight - 1);
            }
        }
    }
    let rate = f64::from(count) / start.elapsed().as_secs_f64();
    Ok(rate)
}
