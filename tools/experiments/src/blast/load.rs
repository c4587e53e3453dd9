//! Tables 4 to 6: workstations that compile, with their files at a file server. Each host has one socket for all, as a
//! host of the paper had one ring of buffers, and counts the blasts that other packets interrupt.
//!
//! Time runs ten times as fast as in the paper: the links have 75 Mbit/s, so that a blast of 8 KB takes a tenth of the
//! paper's 9.7 ms, and the pauses are a tenth. A workstation's compilation has the paper's proportions: for 10 written
//! blasts 48 read blasts and 30 other questions (Table 5). The blasts of a file follow each other. Other processes of a
//! workstation ask both servers questions at any time.

mod counts;
mod hosts;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use harness::task::Interrupt;
use lab::{Direction, Lab};

pub(super) use self::counts::Counts;
use self::hosts::{Pace, file_server, second_server, workstation};

/// How many times as fast as in the paper time runs.
pub(super) const TIME_FACTOR: f64 = 10.0;
const LINK_BITS: u64 = 75_000_000;
/// Workstations of Table 5, at most.
const WORKSTATIONS_MAX: usize = 5;
/// Pauses of a compilation, of the paper's time: 48 blasts at 2.2 in a second (Table 5), less the time of the blasts.
const HIGH_LOAD: Pace = Pace {
    compilation: Duration::from_secs(22),
    question: Duration::from_millis(1400),
    broadcast: Duration::from_secs(3),
};
/// Table 4: a workstation receives 0.3 blasts in a second.
const NORMAL_LOAD: Pace = Pace {
    compilation: Duration::from_secs(200),
    question: Duration::from_millis(1400),
    broadcast: Duration::from_secs(3),
};
const NORMAL_WORKSTATIONS: usize = 2;

/// Counts at a load.
pub(super) struct Load {
    pub(super) name: String,
    pub(super) seconds: f64,
    /// Of all workstations together.
    pub(super) workstations: Counts,
    pub(super) workstation_count: usize,
    pub(super) server: Counts,
}

/// Counts at normal load, and with 1 to 5 workstations that compile, for so long each.
pub(super) fn measure(interrupt: &Interrupt, time: Duration) -> Result<Vec<Load>> {
    let mut loads = vec![run(
        interrupt,
        "normal",
        NORMAL_WORKSTATIONS,
        NORMAL_LOAD,
        time,
    )?];
    for count in 1..=WORKSTATIONS_MAX {
        let name = format!("{count} compile");
        loads.push(run(interrupt, &name, count, HIGH_LOAD, time)?);
    }
    Ok(loads)
}

fn run(
    interrupt: &Interrupt,
    name: &str,
    count: usize,
    pace: Pace,
    time: Duration,
) -> Result<Load> {
    println!("load: {name}");
    let lab = Lab::new("paper-load")?;
    let server = lab.add_host("server")?;
    let other = lab.add_host("server2")?;
    let mut all = vec![server.clone(), other.clone()];
    let mut clients = Vec::new();
    for number in 0..count {
        let host = lab.add_host(&format!("ws{number}"))?;
        all.push(host.clone());
        clients.push(host);
    }
    for host in &all {
        host.links()[0].adjust(&Direction::BOTH, |link| link.rate(LINK_BITS))?;
    }
    let pace = pace.faster(TIME_FACTOR);
    let stop = AtomicBool::new(false);
    let begun = Instant::now();
    let (workstations, server_counts, seconds) = thread::scope(|scope| -> Result<_> {
        let (stop, server, other) = (&stop, &server, &other);
        let serving = scope.spawn(|| file_server(server, stop));
        let disturbing = scope.spawn(|| second_server(other, pace, stop));
        let running: Vec<_> = clients
            .iter()
            .zip(0..)
            .map(|(host, seed)| {
                scope.spawn(move || workstation(host, [server, other], pace, seed, stop))
            })
            .collect();
        while begun.elapsed() < time && interrupt.check().is_ok() {
            thread::sleep(Duration::from_millis(50));
        }
        stop.store(true, Ordering::Relaxed);
        let seconds = begun.elapsed().as_secs_f64();
        let mut sum = Counts::default();
        for host in running {
            sum += joined(host)?;
        }
        joined(disturbing)?;
        Ok((sum, joined(serving)?, seconds))
    })?;
    interrupt.check()?;
    lab.remove()?;
    Ok(Load {
        name: name.to_owned(),
        seconds,
        workstations,
        workstation_count: count,
        server: server_counts,
    })
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
