//! The time until a download is as fast as before, when the server was killed and the client is far away, by
//! congestion control; and the bytes that the client misses by then, compared with a download without a kill.

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Direction, Impairment, Signal};
use rustix::net::sockopt::set_tcp_congestion;
use rustix::process::kill_process;

use super::figure::Figure;
use super::stage::PORT;
use super::subject::{Mode, Server, Subject};
use super::{Bench, Measured};

/// Congestion controls that a server can request. The kernel's own list has only the controls for unprivileged
/// processes.
const CONTROLS: [&str; 3] = ["bbr", "cubic", "reno"];
const LINK_RATE: u64 = 100_000_000;
/// Delay of the link in each direction.
const ONE_WAY_DELAY: Duration = Duration::from_millis(25);
/// Time from the first byte to the kill.
const TIME_BEFORE_KILL: Duration = Duration::from_millis(1600);
/// Time from the kill to the end.
const TIME_AFTER_KILL: Duration = Duration::from_millis(2200);
/// Time before the kill over which the earlier rate is taken.
const BASELINE_SECONDS: f64 = 0.8;
/// Time over which a later rate is taken.
const WINDOW_SECONDS: f64 = 0.1;
/// Number of windows in a row that must have the rate.
const WINDOW_COUNT: u8 = 3;
/// Part of the earlier rate that counts as the same rate.
const FULL_RATE_RATIO: f64 = 0.9;
const STEP_TIMEOUT: Duration = Duration::from_secs(20);

/// When (seconds since the kill), and how many bytes the client had by then.
type Samples = Vec<(f64, f64)>;

/// The mode of each run, and whether the server is killed.
const COURSES: [(Mode, bool); 3] = [
    (Mode::Plain, false),
    (Mode::Protected("connection"), false),
    (Mode::Protected("connection"), true),
];

pub(super) fn measure(bench: &Bench) -> Result<Measured> {
    let far = |link: Impairment| link.rate(LINK_RATE).delay(ONE_WAY_DELAY);
    let near = |link: Impairment| link.unlimited().delay(Duration::ZERO);
    let link = &bench.stage.client.links()[0];
    link.adjust(&Direction::BOTH, far)?;
    let mut measured = Measured::default();
    let mut all = || {
        for control in CONTROLS {
            match is_there(bench, control)? {
                Ok(()) => measured.figures.extend(figures(bench, control)?),
                Err(error) => {
                    let note = format!("{control}: not available on this kernel ({error})");
                    bench.say(&note);
                    measured.notes.push(note);
                }
            }
        }
        anyhow::Ok(())
    };
    let outcome = all();
    link.adjust(&Direction::BOTH, near)?;
    outcome.map(|()| measured)
}

/// Whether a server can use this congestion control.
fn is_there(bench: &Bench, control: &str) -> Result<rustix::io::Result<()>> {
    let host = &bench.stage.server;
    host.enter(|| {
        let socket = TcpListener::bind("127.0.0.1:0")?;
        Ok(set_tcp_congestion(&socket, control))
    })?
}

fn figures(bench: &Bench, control: &str) -> Result<Vec<Figure>> {
    let rounds = bench.size(3, 1);
    bench.say(format_args!("{rounds} downloads with {control} and a kill"));
    let server = Server::own_with(bench, "source", &["--congestion", control]);
    let mut runs = Vec::new();
    for _ in 0..rounds {
        let [plain, unkilled, killed] = COURSES.map(|(mode, is_killed)| {
            let samples = download(bench, &server, mode, is_killed);
            samples.with_context(|| format!("{control}, {mode:?}"))
        });
        runs.push(Run::of(&plain?, &unkilled?, &killed?)?);
    }
    let how = format!(
        "a download with {control} over a client's link of {} Mbit/s and {} ms of delay each way",
        LINK_RATE / 1_000_000,
        ONE_WAY_DELAY.as_millis()
    );
    let after = format!(
        "in the {:.1} s after the kill",
        TIME_AFTER_KILL.as_secs_f64()
    );
    let figure = |what: &str, unit, words: &str, of: fn(&Run) -> f64| {
        let values: Vec<f64> = runs.iter().map(of).collect();
        Figure::of(
            format!("full_rate.{control}.{what}"),
            unit,
            &values,
            format!("{how}: {words}"),
        )
    };
    let full = format!(
        "from SIGKILL of the server until {:.0} % of the rate before arrives in each of three times 100 ms; where that is never, the time that was watched",
        100.0 * FULL_RATE_RATIO
    );
    Ok(vec![
        figure(
            "plain",
            "Mbit/s",
            "a plain server that is not killed",
            |run| run.plain,
        ),
        figure(
            "unkilled",
            "Mbit/s",
            "protected, not killed, in the same time",
            |run| run.unkilled,
        ),
        figure("time", "ms", &full, |run| run.full),
        figure(
            "lost",
            "MB",
            &format!(
                "what the client got less {after} than from the plain server in the same time"
            ),
            |run| run.lost,
        ),
        figure(
            "lost.unkilled",
            "MB",
            "the same of a protected server that is not killed",
            |run| run.lost_unkilled,
        ),
    ])
}

/// A download. Without a kill, the moment of the kill divides the samples all the same.
fn download(bench: &Bench, server: &Server, mode: Mode, is_killed: bool) -> Result<Samples> {
    bench.interrupt.check()?;
    let mut subject = Subject::start(bench, server, mode)?;
    let address = bench.stage.address(PORT);
    let stream = bench.stage.client.enter(|| connect(address))??;
    let began = Instant::now();
    let kill = began + TIME_BEFORE_KILL;
    let samples = thread::scope(|scope| {
        let reader = scope.spawn(|| read(&stream, kill, kill + TIME_AFTER_KILL));
        thread::sleep(kill.saturating_duration_since(Instant::now()));
        if is_killed {
            kill_process(subject.server_pid()?, Signal::KILL)?;
        }
        reader.join().expect("it does not panic")
    })?;
    if is_killed {
        subject.wait_for("serving", STEP_TIMEOUT)?;
    }
    drop(stream);
    subject.stop()?;
    Ok(samples)
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(STEP_TIMEOUT))?;
    // The close then discards data under way without a wait.
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    Ok(stream)
}

/// Reads until then.
fn read(mut stream: &TcpStream, kill: Instant, end: Instant) -> Result<Samples> {
    let mut buffer = vec![0; 1 << 20];
    let (mut samples, mut total) = (Samples::new(), 0_u64);
    loop {
        let now = Instant::now();
        if now >= end {
            return Ok(samples);
        }
        let count = stream.read(&mut buffer)?;
        ensure!(count > 0, "the server has ended the download");
        total += u64::try_from(count)?;
        let (now, before) = (
            Instant::now(),
            kill.saturating_duration_since(Instant::now()),
        );
        let at = now.saturating_duration_since(kill).as_secs_f64() - before.as_secs_f64();
        samples.push((at, bytes(total)));
    }
}

/// Some hundred megabytes at most.
fn bytes(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// The result of three downloads in turn.
#[derive(Debug)]
struct Run {
    /// Rate of the plain download after the moment of the kill; Mbit/s.
    plain: f64,
    unkilled: f64,
    /// Milliseconds.
    full: f64,
    /// MB.
    lost: f64,
    lost_unkilled: f64,
}

impl Run {
    fn of(plain: &Samples, unkilled: &Samples, killed: &Samples) -> Result<Self> {
        let end = TIME_AFTER_KILL.as_secs_f64();
        let [all_plain, all_unkilled, all_killed] =
            [plain, unkilled, killed].map(|samples| got(samples, 0.0, end));
        Ok(Self {
            plain: all_plain * 8e-6 / end,
            unkilled: all_unkilled * 8e-6 / end,
            full: full_after(killed)? * 1e3,
            lost: (all_plain - all_killed) * 1e-6,
            lost_unkilled: (all_plain - all_unkilled) * 1e-6,
        })
    }
}

/// Bytes that came between these moments.
fn got(samples: &Samples, from: f64, to: f64) -> f64 {
    let by = |moment: f64| {
        let index = samples.partition_point(|(at, _)| *at <= moment);
        index.checked_sub(1).map_or(0.0, |last| samples[last].1)
    };
    by(to) - by(from)
}

/// Seconds from the kill until the rate is as before.
fn full_after(samples: &Samples) -> Result<f64> {
    let before = got(samples, -BASELINE_SECONDS, 0.0) / BASELINE_SECONDS;
    ensure!(before > 0.0, "nothing came before the kill");
    let heard = recovered_at(samples).context("nothing came after the kill")?;
    let end = samples.last().context("no samples")?.0;
    let is_full = |from: f64| {
        let mut windows = (0..WINDOW_COUNT).map(|number| from + WINDOW_SECONDS * f64::from(number));
        windows.all(|from| {
            from + WINDOW_SECONDS <= end
                && got(samples, from, from + WINDOW_SECONDS)
                    >= FULL_RATE_RATIO * before * WINDOW_SECONDS
        })
    };
    let moments = samples.iter().map(|(at, _)| *at).filter(|at| *at >= heard);
    Ok(moments.into_iter().find(|at| is_full(*at)).unwrap_or(end))
}

/// The end of the longest silence after the kill: data under way still arrives first.
fn recovered_at(samples: &Samples) -> Option<f64> {
    let after = samples.iter().map(|(at, _)| *at).filter(|at| *at > 0.0);
    let pairs = std::iter::once(0.0).chain(after.clone()).zip(after);
    let longest = pairs.max_by(|a, b| f64::total_cmp(&(a.1 - a.0), &(b.1 - b.0)));
    longest.map(|(_, end)| end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1000 bytes every 10 ms. After a kill, data under way still arrives for 30 ms, then no data for 200 ms, then
    /// half for 100 ms, then all.
    fn samples(is_killed: bool) -> Samples {
        let mut total = 0.0;
        let steps = (-100..=220).filter(|step| !is_killed || !(4..24).contains(step));
        let samples = steps.map(|step| {
            let slow = is_killed && (24..34).contains(&step);
            total += if slow { 500.0 } else { 1000.0 };
            (f64::from(step) / 100.0 + 1e-9, total)
        });
        samples.collect()
    }

    #[test]
    fn run_is_read_from_samples() -> Result<()> {
        let run = Run::of(&samples(false), &samples(false), &samples(true))?;
        let close = |a: f64, b: f64| (a - b).abs() < 1e-3;
        assert!(close(run.plain, 0.8) && close(run.unkilled, 0.8), "{run:?}");
        // From then on 90 % come in 100 ms.
        assert!(close(run.full, 310.0), "{run:?}");
        // 20 times all, 10 times half.
        assert!(
            close(run.lost, 0.025) && close(run.lost_unkilled, 0.0),
            "{run:?}"
        );
        Ok(())
    }

    #[test]
    fn unrecovered_rate_reports_the_end() -> Result<()> {
        let mut slow = samples(true);
        for (at, total) in &mut slow {
            if *at > 0.23 {
                *total = total.min(110_000.0);
            }
        }
        assert!(full_after(&slow)? > 2.1);
        Ok(())
    }

    #[test]
    fn silent_download_is_an_error() {
        let mut silent = samples(true);
        silent.retain(|(at, _)| *at < 0.0);
        assert!(full_after(&silent).is_err());
    }
}
