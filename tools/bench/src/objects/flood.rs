//! Forged acknowledgements: the cost of a flood for the clients of a member, beside a plain server in the same flood.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use harness::pool::PoolHosts;
use lab::Host;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RawProtocol, SendFlags, SocketFlags, SocketType, sendto, socket_with,
};
use wire::{ChecksumMode, Flags, OptionsBuffer, SegmentSpec, SeqNumber, TcpOption};

use super::{SMALL, compare};
use crate::Bench;
use crate::figure::{Aim, Figure, column};
use crate::traffic::wrk;

/// Forged segments a second.
const RATE_PER_SECOND: u32 = 200_000;
/// The sender makes this number at once, and pauses.
const BURST_COUNT: u32 = 400;
/// Number of the attacker's host, and the first of the hosts whose addresses the segments claim.
const ATTACKER_NUMBER: u8 = 201;
const FIRST_SPOOFED: u8 = 120;
const SPOOFED_COUNT: u8 = 80;
/// IPPROTO_RAW: the IP header is ours (raw(7)).
const PROTOCOL_RAW: u32 = 255;

const FLOOD_BOUND: &str = "each forged segment is parsed, looked for in the tables of connections, and its timestamp compared \
     with a keyed hash; the sender, the balancer and the servers share two cores";

pub(super) fn measure(bench: &Bench, hosts: &PoolHosts) -> Result<Vec<Figure>> {
    let attacker = bench
        .stage
        .testbed
        .lab
        .add_host_at("attacker", ATTACKER_NUMBER)?;
    bench.say(format_args!(
        "wrk with 16 connections under {RATE_PER_SECOND} forged acknowledgements a second: a plain server, a member, a pool of one"
    ));
    let seconds: u8 = bench.size(2, 1);
    let duration = format!("-d{seconds}s");
    let runs = compare(bench, hosts, &[], |address| {
        let url = format!("http://{address}/{SMALL}");
        let run = || wrk(bench, &["-t1", "-c16", &duration, &url]);
        let quiet = run()?;
        let (flooded, sent) = under(&attacker, address, run)?;
        Ok([quiet, flooded, sent / f64::from(seconds)])
    })?;
    let [plain, _, pool] = &runs;
    let cost = |runs: &[[f64; 3]]| -> Vec<f64> {
        { runs.iter() }
            .map(|[quiet, flooded, _]| flooded / quiet)
            .collect()
    };
    let sent = column(pool, 2);
    let how = format!(
        "wrk -t1 -c16 {duration} of an object of one byte, connections that stay, while a host of the lab sends forged \
         acknowledgements with random numbers and echoes from {SPOOFED_COUNT} addresses, up to {RATE_PER_SECOND} a second"
    );
    let ratio = |name: &str, values: &[f64], words: &str| {
        Figure::of(
            format!("objects.flood.{name}"),
            "",
            values,
            format!("{how}: {words}"),
        )
    };
    let (plain, pool) = (cost(plain), cost(pool));
    let beside: Vec<f64> = plain.iter().zip(&pool).map(|(a, b)| b / a).collect();
    let words = "requests a second of a pool of one under the flood, divided by requests a second without, and by the same ratio of a \
                 plain server";
    let rate = Figure::of(
        "objects.flood.rate",
        "1/s",
        &sent,
        format!("{how}: forged segments a second to the pool"),
    );
    Ok(vec![
        ratio("ratio", &beside, words).aim(Aim::AtLeast(0.9), FLOOD_BOUND),
        ratio(
            "plain",
            &plain,
            "the plain server under the flood, divided by without",
        ),
        ratio(
            "pool",
            &pool,
            "the pool under the flood, divided by without",
        ),
        rate,
    ])
}

/// The result under a flood, and the number of forged segments.
fn under(
    attacker: &Host,
    address: SocketAddr,
    run: impl FnOnce() -> Result<f64>,
) -> Result<(f64, f64)> {
    let SocketAddr::V4(target) = address else {
        return Err(anyhow!("an IPv6 address"));
    };
    let raw = RawProtocol::new(PROTOCOL_RAW).map(rustix::net::Protocol::from_raw);
    let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
    let socket = attacker.enter(|| socket_with(AddressFamily::INET, kind, flags, raw))??;
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let sender = scope.spawn(|| flood(&socket, target, &ends));
        let result = run();
        ends.store(true, Ordering::Relaxed);
        let sent = sender
            .join()
            .map_err(|_| anyhow!("the sender panicked"))??;
        ensure!(sent > 0, "nothing was sent");
        Ok((result?, f64::from(sent)))
    })
}

/// Sends bursts at the rate, until the end. Returns the number of segments.
fn flood(socket: &OwnedFd, target: SocketAddrV4, ends: &AtomicBool) -> Result<u32> {
    let start = Instant::now();
    let mut sent: u32 = 0;
    while !ends.load(Ordering::Relaxed) {
        for _ in 0..BURST_COUNT {
            sent = sent.wrapping_add(1);
            let packet = forged(sent, target)?;
            match sendto(socket, &packet, SendFlags::empty(), &SocketAddr::V4(target)) {
                Ok(_) | Err(Errno::NOBUFS) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let due = Duration::from_secs(1) * sent / RATE_PER_SECOND;
        thread::sleep(due.saturating_sub(start.elapsed()));
    }
    Ok(sent)
}

/// Numbers without a pattern that a filter could know.
fn scrambled(number: u32) -> u32 {
    let mixed = number.wrapping_mul(0x9e37_79b1).rotate_left(13) ^ 0x5bd1_e995;
    mixed.wrapping_mul(0x85eb_ca6b)
}

/// An acknowledgement of a connection that there is not, with a random echo.
fn forged(number: u32, target: SocketAddrV4) -> Result<Vec<u8>> {
    let [_, host, port @ ..] = scrambled(number).to_be_bytes();
    let host = Ipv4Addr::new(10, 0, 0, FIRST_SPOOFED + host % SPOOFED_COUNT);
    let port = u16::from_be_bytes(port) | 1024;
    let mut options = OptionsBuffer::new();
    for option in [
        TcpOption::NoOperation,
        TcpOption::NoOperation,
        TcpOption::Timestamps {
            value: scrambled(number ^ 7),
            echo: scrambled(number ^ 99),
        },
    ] {
        options.push(&option)?;
    }
    let mut packet = Vec::new();
    SegmentSpec {
        source: SocketAddrV4::new(host, port).into(),
        destination: target.into(),
        seq: SeqNumber(scrambled(number ^ 1)),
        ack: SeqNumber(scrambled(number ^ 2)),
        flags: Flags::ACK,
        window: 502,
        options: options.as_slice(),
        payload: &[],
    }
    .emit(&mut packet, ChecksumMode::Full)?;
    Ok(packet)
}
