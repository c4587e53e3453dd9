//! Clients that count in redis: the unmodified redis-benchmark, repeated until the last kill.

use std::io::Read as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::clients::{COUNTING_CLIENTS, Scene, Served};
use crate::program::Program;
use crate::raised;
use crate::server::Server;

/// INCR commands of one run: some seconds.
const COMMANDS_PER_RUN: u64 = 20_000;
/// Key of the counter.
const KEY: &str = "counted";

/// Runs redis-benchmark until the last kill and once more, and compares the counter with the number of INCR commands.
pub(crate) fn run(scene: &Scene<'_>) -> Result<Served> {
    let (mut runs, mut pause) = (0, Duration::ZERO);
    loop {
        let last = raised(scene.kills_over);
        pause = pause.max(benchmark(scene)?);
        runs += 1;
        let counted = COMMANDS_PER_RUN * u64::try_from(runs)?;
        let found = print(scene, "redis-cli", &["GET", KEY])?;
        ensure!(
            found.trim() == counted.to_string(),
            "redis has counted {} of {counted} INCR",
            found.trim()
        );
        if last {
            return Ok(Served {
                connections: runs * COUNTING_CLIENTS,
                count: counted,
                bytes: 0,
                pause: Some(pause),
            });
        }
    }
}

/// Runs redis-benchmark once, and returns the time of the slowest command. redis-benchmark ends at the first broken
/// connection or error.
fn benchmark(scene: &Scene<'_>) -> Result<Duration> {
    let (clients, commands) = (COUNTING_CLIENTS.to_string(), COMMANDS_PER_RUN.to_string());
    let load = ["-c", &clients, "-P", "1", "-n", &commands, "--csv"];
    let said = print(
        scene,
        "redis-benchmark",
        &[&load[..], &["INCR", KEY]].concat(),
    )?;
    slowest(&said).with_context(|| format!("redis-benchmark said: {said}"))
}

/// Output of a redis program with these arguments.
fn print(scene: &Scene<'_>, program: &str, words: &[&str]) -> Result<String> {
    let [address, _] = scene.stage.addresses(Server::Redis);
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let arguments = [&["-h", &ip, "-p", &port][..], words].concat();
    let mut program = Program::start(scene, program, &arguments)?;
    let mut said = String::new();
    program.output()?.read_to_string(&mut said)?;
    program.finish()?;
    Ok(said)
}

/// The last field of the line below the headings, milliseconds.
fn slowest(csv: &str) -> Option<Duration> {
    let line = csv.lines().find(|line| line.starts_with("\"INCR"))?;
    let last = line.rsplit(',').next()?.trim_matches('"');
    Duration::try_from_secs_f64(last.parse::<f64>().ok()? / 1e3).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_command_is_found() {
        let said = "\"test\",\"rps\",\"max_latency_ms\"\n\"INCR counted\",\"30121.99\",\"17.5\"\n";
        assert_eq!(slowest(said), Some(Duration::from_micros(17_500)));
        assert_eq!(slowest("\"test\",\"rps\",\"max_latency_ms\"\n"), None);
        assert_eq!(slowest("Error: Connection reset by peer\n"), None);
    }
}
