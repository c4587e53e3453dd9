//! What idle connections cost in memory and time, and a kill with very many of them.
//!
//! Counted are the anonymous memory of `serve` and of its logger, and the BPF maps of the
//! service as the kernel accounts for them. The ring to the logger is such a map: what of it
//! the logger has mapped must not be counted again, so resident memory would be wrong. As a
//! check, what the kernel has allocated for all the system is compared with a plain run.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use lab::Pid;

use super::Bench;
use super::clients::Crowd;
use super::figure::{Aim, Figure};
use super::recovery::{Times, kill, survivors};
use super::subject::{Mode, Server, Subject};

/// So many connections.
pub(super) const CONNECTIONS: usize = 10_000;
/// The logger has read what there was, and sockets have shrunk their buffers.
const REST: Duration = Duration::from_millis(1050);

/// Long enough to count ticks of 10 ms.
const IDLE: Duration = Duration::from_secs(4);

const IDLE_BOUND: &str = "serve tells the programs once a second that it lives, and the logger looks into the ring \
     every 50 ms";
const BOUND: &str = "a connection takes an entry in the map of flows and a record in the logger; the record keeps \
     the requests and 4 KiB of the last answer's beginning (--verify turn, --replay connection). \
     --replay turn or --verify off keep less";

pub(super) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let connections = CONNECTIONS;
    let server = Server::nginx(bench);
    bench.say(format_args!("{connections} connections, plain"));
    let plain = {
        let subject = Subject::start(bench, &server, Mode::Plain)?;
        let before = kernel()?;
        let crowd = Crowd::gather(bench, connections)?;
        thread::sleep(REST);
        let taken = kernel()? - before;
        drop(crowd);
        subject.stop()?;
        taken
    };
    bench.say(format_args!("{connections} connections, protected"));
    let mut subject = Subject::start(bench, &server, Mode::Protected("connection"))?;
    let (before, empty) = (kernel()?, Used::by(subject.pid())?);
    let mut crowd = Crowd::gather(bench, connections)?;
    thread::sleep(REST);
    let full = Used::by(subject.pid())?;
    let taken = kernel()? - before;
    let idle = idle_percent(subject.pid())?;
    bench.say(format_args!("killed with {connections} connections"));
    let times = Times::of(&kill(&mut subject)?)?;
    let (alive, why) = crowd.alive(bench)?;
    thread::sleep(REST);
    let after = Used::by(subject.pid())?;
    if let Some(why) = why {
        bench.say(format_args!(
            "{alive} of {connections} connections answer: {why}"
        ));
        bench.say(format_args!(
            "serve says: {}",
            subject.complaints()?.join("; ")
        ));
        subject.end()?;
    } else {
        drop(crowd);
        subject.stop()?;
    }

    let each = |bytes: f64| bytes / f64::from(u32::try_from(connections).unwrap_or(1));
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let one = |name: &str, unit, value: f64, how: &str| Figure::of(name, unit, &[value], how);
    let how = format!(
        "with {connections} idle connections, each with one answered request, less the same without any: "
    );
    Ok(vec![
        one(
            "memory.connection",
            "bytes",
            each(full.total() - empty.total()),
            &format!("{how}anonymous memory of serve and logger, and BPF maps"),
        )
        .aim(Aim::AtMost(2048.0), BOUND),
        one(
            "memory.connection.processes",
            "bytes",
            each(full.anonymous - empty.anonymous),
            &format!("{how}anonymous memory of serve and logger"),
        ),
        one(
            "memory.connection.maps",
            "bytes",
            each(full.maps - empty.maps),
            &format!("{how}BPF maps"),
        ),
        one(
            "memory.connection.kernel",
            "bytes",
            each(taken - plain),
            &format!(
                "{how}what the kernel allocates (SUnreclaim, Percpu of /proc/meminfo), protected less plain: a check of the maps, as coarse as other programs make it"
            ),
        ),
        one(
            "memory.connection.recovered",
            "bytes",
            each(after.total() - empty.total()),
            &format!("{how}the same sum after a kill and one more request each"),
        ),
        one(
            "idle.cpu",
            "%",
            idle,
            &format!("of one CPU, serve and logger together, with {connections} idle connections"),
        )
        .aim(Aim::AtMost(2.0), IDLE_BOUND),
        one(
            "memory.fixed",
            "MiB",
            mib(empty.total()),
            "serve, logger and BPF maps (the ring to the logger is 32 MiB of it) without connections",
        ),
        one(
            &format!("recovery.{connections}.first_spliced_since_death"),
            "ms",
            times.first_spliced(),
            "a single kill with all connections open; serve's own timings",
        ),
        one(
            &format!("recovery.{connections}.live"),
            "ms",
            times.live(),
            "a single kill with all connections open; serve's own timings",
        ),
        survivors(
            &format!("recovery.{connections}.alive"),
            connections,
            &[f64::from(u32::try_from(alive)?)],
        ),
    ])
}

/// What a service uses, in bytes.
#[derive(Debug, Clone, Copy)]
struct Used {
    anonymous: f64,
    maps: f64,
}

impl Used {
    /// By a `serve` and its logger.
    fn by(serve: Pid) -> Result<Self> {
        let of_each = processes(serve)?.into_iter().map(anonymous);
        Ok(Self {
            anonymous: of_each.sum::<Result<f64>>()?,
            maps: maps(serve.as_raw_pid())?,
        })
    }

    fn total(self) -> f64 {
        self.anonymous + self.maps
    }
}

/// A `serve` and its logger.
fn processes(serve: Pid) -> Result<Vec<i32>> {
    let mut all = children(serve.as_raw_pid())?;
    all.retain(|child| command_line(*child).contains("logger-process"));
    all.push(serve.as_raw_pid());
    Ok(all)
}

/// The part of one CPU that they take while nothing happens, in per cent.
fn idle_percent(serve: Pid) -> Result<f64> {
    let taken = || -> Result<f64> {
        let of_each = processes(serve)?.into_iter().map(cpu_seconds);
        of_each.sum()
    };
    let before = taken()?;
    thread::sleep(IDLE);
    Ok((taken()? - before) / IDLE.as_secs_f64() * 100.0)
}

/// What a process has used of a CPU, user and system, in seconds (proc(5), stat: fields 14 and 15,
/// in ticks of 10 ms).
fn cpu_seconds(pid: i32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = text.rsplit_once(')').context("no name in stat")?;
    let ticks: u32 = fields
        .split_ascii_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<u32>().ok())
        .sum();
    Ok(f64::from(ticks) / 100.0)
}

fn children(pid: i32) -> Result<Vec<i32>> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    Ok(text
        .split_ascii_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect())
}

fn command_line(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

fn anonymous(pid: i32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    kib(&text, "Anonymous:").with_context(|| format!("no Anonymous of process {pid}"))
}

/// What the kernel has allocated for itself and cannot give back at will, in bytes.
fn kernel() -> Result<f64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let sum = ["SUnreclaim:", "Percpu:"].map(|key| kib(&text, key));
    sum.into_iter()
        .sum::<Option<f64>>()
        .context("no SUnreclaim or Percpu in /proc/meminfo")
}

/// The bytes of a line such as `Anonymous:  12 kB`.
fn kib(text: &str, key: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let number: u32 = line.trim().split(' ').next()?.parse().ok()?;
    Some(f64::from(number) * 1024.0)
}

/// The BPF maps that a process has open, as the kernel accounts for them.
fn maps(pid: i32) -> Result<f64> {
    let mut sizes = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // A descriptor may be closed while we look.
        let text = fs::read_to_string(entry?.path()).unwrap_or_default();
        if let (Some(id), Some(size)) = (field(&text, "map_id:"), field(&text, "memlock:")) {
            sizes.insert(id, size);
        }
    }
    Ok(sizes.values().copied().map(f64::from).sum())
}

fn field(text: &str, key: &str) -> Option<u32> {
    text.lines()
        .find_map(|line| line.strip_prefix(key))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_understood() {
        assert_eq!(
            kib("Rss:  7 kB\nAnonymous:      12 kB\n", "Anonymous:"),
            Some(12288.0)
        );
        assert_eq!(kib("Rss:  7 kB\n", "Anonymous:"), None);
        assert_eq!(
            field("map_type:\t1\nmap_id:\t42\nmemlock:\t4096\n", "memlock:"),
            Some(4096)
        );
    }

    #[test]
    fn our_own_process_has_memory_and_no_logger() -> Result<()> {
        let own = rustix::process::getpid();
        let used = Used::by(own)?;
        assert!(used.anonymous > 0.0);
        Ok(())
    }
}
