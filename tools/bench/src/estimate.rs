//! The effect of a recovery on the client's TCP: on the estimate of the round trip, on the window, and on the time
//! until the speed is as before. The FT-TCP paper leaves this open (section VII).
//!
//! An upload fills a line of 100 Mbit/s, with the logger on another host, and the server is killed. Every 10 ms the
//! kernel's state of the client's socket is sampled.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Direction, Link, Signal};
use rustix::process::kill_process;

use super::figure::Figure;
use super::stage::PORT;
use super::subject::{Mode, Server, Subject};
use super::tcp_info::Asker;
use super::{Bench, Measured};
use harness::plot::{Axes, Corner, Series, plot};
use harness::quantile::quantile;

const LINK_RATE: u64 = 100_000_000;
/// Time between two looks at the client's socket.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);
/// Time from the start of the upload to the kill.
const TIME_BEFORE_KILL: Duration = Duration::from_millis(2500);
/// Time from the kill to the end.
const TIME_AFTER_KILL: Duration = Duration::from_millis(3500);
/// Time before the kill over which the earlier speed is taken.
const BASELINE_SECONDS: f64 = 1.0;
/// Time over which a later speed is taken.
const WINDOW_SECONDS: f64 = 0.1;
/// Number of windows in a row that must have the speed.
const WINDOW_COUNT: u8 = 3;
/// Part of the earlier speed that counts as the same speed.
const FULL_SPEED_RATIO: f64 = 0.95;
const ESTIMATES: &str = "round-trip.svg";
const STEP_TIMEOUT: Duration = Duration::from_secs(20);

/// The kernel's state of the socket at a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    /// Since the kill, in seconds.
    at: f64,
    acknowledged: f64,
    /// As the [`QUANTITIES`]: milliseconds, and segments.
    known: [f64; 4],
}

/// Name and unit, and whether the least rather than the most of the later values is reported.
const QUANTITIES: [(&str, &str, bool); 4] = [
    ("srtt", "ms", false),
    ("rttvar", "ms", false),
    ("rto", "ms", false),
    ("cwnd", "segments", true),
];

pub(super) fn measure(bench: &Bench) -> Result<Measured> {
    let mut figures = Vec::new();
    let mut examples = Vec::new();
    for (name, delay) in [
        ("none", Duration::ZERO),
        ("10ms", Duration::from_millis(10)),
    ] {
        let runs = bench.size(3, 1);
        bench.say(format_args!("{runs} kills in an upload, delay {name}"));
        let link = &bench.stage.client.links()[0];
        link.adjust(&Direction::BOTH, |link| link.rate(LINK_RATE).delay(delay))?;
        let measured = (0..runs).map(|_| upload(bench)).collect::<Result<Vec<_>>>();
        clear(link)?;
        let mut measured = measured?;
        let courses = measured.iter().map(|samples| Course::of(samples));
        let courses = courses.collect::<Result<Vec<_>>>()?;
        figures.extend(figures_of(name, delay, &courses));
        examples.push((delay, measured.swap_remove(0)));
    }
    let plots = draw(&examples);
    Ok(Measured {
        figures,
        plots,
        ..Measured::default()
    })
}

fn clear(link: &Link) -> Result<()> {
    let nothing = |link: lab::Impairment| link.unlimited().delay(Duration::ZERO);
    Ok(link.adjust(&Direction::BOTH, nothing)?)
}

/// An upload with a kill in the middle.
fn upload(bench: &Bench) -> Result<Vec<Sample>> {
    let server = Server::own(bench, "sink");
    let mut subject = Subject::start(bench, &server, Mode::Linked(None))?;
    let address = bench.stage.address(PORT);
    let client = &bench.stage.client;
    let (stream, asker) = client.enter(|| anyhow::Ok((connect(address)?, Asker::open()?)))??;
    let ends = [stream.local_addr()?, stream.peer_addr()?];
    let over = AtomicBool::new(false);
    let killed = thread::scope(|scope| {
        let sender = scope.spawn(|| send(&stream, &over));
        let watch = || {
            let began = Instant::now();
            let mut samples = watch(bench, &asker, ends, began, began + TIME_BEFORE_KILL)?;
            let kill = Instant::now();
            kill_process(subject.server_pid()?, Signal::KILL)?;
            samples.extend(watch(bench, &asker, ends, began, kill + TIME_AFTER_KILL)?);
            anyhow::Ok((samples, kill.duration_since(began).as_secs_f64()))
        };
        let watched = watch();
        over.store(true, Ordering::Relaxed);
        let sent = sender.join().expect("it does not panic");
        sent.context("the upload failed")?;
        watched
    });
    let (mut samples, kill) = killed?;
    subject.wait_for("serving", STEP_TIMEOUT)?;
    drop(stream);
    subject.stop()?;
    for sample in &mut samples {
        sample.at -= kill;
    }
    Ok(samples)
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_write_timeout(Some(STEP_TIMEOUT))?;
    // The close then discards unsent data without a wait.
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    Ok(stream)
}

fn send(mut stream: &TcpStream, over: &AtomicBool) -> Result<()> {
    let block = [0x5a; 16 << 10];
    while !over.load(Ordering::Relaxed) {
        stream.write_all(&block)?;
    }
    Ok(())
}

/// Looks at a socket until then.
fn watch(
    bench: &Bench,
    asker: &Asker,
    ends: [SocketAddr; 2],
    began: Instant,
    until: Instant,
) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    let mut next = Instant::now();
    while next < until {
        bench.interrupt.check()?;
        thread::sleep(next.saturating_duration_since(Instant::now()));
        let info = asker.ask(ends)?;
        let milliseconds = |microseconds: u32| f64::from(microseconds) / 1e3;
        samples.push(Sample {
            at: began.elapsed().as_secs_f64(),
            acknowledged: bytes(info.bytes_acked),
            known: [
                milliseconds(info.rtt),
                milliseconds(info.rttvar),
                milliseconds(info.rto),
                f64::from(info.snd_cwnd),
            ],
        });
        next += SAMPLE_INTERVAL;
    }
    Ok(samples)
}

/// Some hundred megabytes at most.
fn bytes(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// The course of a run.
struct Course {
    /// Bytes a second before the kill.
    speed: f64,
    /// From the kill to the first acknowledgement of the recovered server, and from there to the speed before the
    /// kill; in milliseconds.
    pause: f64,
    full: f64,
    /// The final deficit against an upload without a kill, in milliseconds of the speed before.
    lost: f64,
    /// Of each quantity: before the kill, when the client hears again, and the extreme from then on.
    known: [[f64; 3]; 4],
}

impl Course {
    fn of(samples: &[Sample]) -> Result<Self> {
        let kill = samples.partition_point(|sample| sample.at < 0.0);
        let lately = samples.partition_point(|sample| sample.at < -BASELINE_SECONDS);
        let before = &samples[lately..kill];
        let (first, last) = before.first().zip(before.last()).context("no samples")?;
        let speed = (last.acknowledged - first.acknowledged) / (last.at - first.at);
        let heard = recovered_at(samples, kill).context("no acknowledgement after the kill")?;
        let after = &samples[heard..];
        // A single window may be full of retransmissions that were acknowledged at once.
        let is_full = |sample: &&Sample| {
            let mut windows =
                (0..WINDOW_COUNT).map(|number| sample.at + WINDOW_SECONDS * f64::from(number));
            windows.all(|from| {
                speed_from(after, from).is_some_and(|now| now >= FULL_SPEED_RATIO * speed)
            })
        };
        // Never full: the end of the samples is a lower bound.
        let full = after.iter().find(is_full).or(after.last());
        let full = full.context("no samples after the kill")?;
        let mut known = [[0.0; 3]; 4];
        for (index, [before_it, first, extreme]) in known.iter_mut().enumerate() {
            let mut sorted: Vec<f64> = before.iter().map(|sample| sample.known[index]).collect();
            sorted.sort_by(f64::total_cmp);
            *before_it = quantile(&sorted, 0.5);
            *first = after[0].known[index];
            let later = after.iter().map(|sample| sample.known[index]);
            *extreme = if QUANTITIES[index].2 {
                later.fold(f64::INFINITY, f64::min)
            } else {
                later.fold(0.0, f64::max)
            };
        }
        ensure!(speed > 0.0, "nothing was sent before the kill");
        let end = samples.last().context("no samples")?;
        let lost = end.at - last.at - (end.acknowledged - last.acknowledged) / speed;
        Ok(Self {
            speed,
            pause: after[0].at * 1e3,
            full: (full.at - after[0].at) * 1e3,
            lost: lost * 1e3,
            known,
        })
    }
}

/// Bytes a second in the window that begins then.
fn speed_from(samples: &[Sample], from: f64) -> Option<f64> {
    let at = |time: f64| samples.iter().find(|sample| sample.at >= time - 1e-9);
    let (first, last) = at(from).zip(at(from + WINDOW_SECONDS))?;
    Some((last.acknowledged - first.acknowledged) / (last.at - first.at))
}

/// The first sample after the longest time without an acknowledgement: just after the kill some
/// are still under way.
fn recovered_at(samples: &[Sample], kill: usize) -> Option<usize> {
    let mut longest = None;
    let mut last = kill.checked_sub(1)?;
    for index in kill..samples.len() {
        if samples[index].acknowledged > samples[last].acknowledged {
            let silent = samples[index].at - samples[last].at;
            if longest.is_none_or(|(most, _)| silent > most) {
                longest = Some((silent, index));
            }
            last = index;
        }
    }
    longest.map(|(_, index)| index)
}

fn figures_of(name: &str, delay: Duration, courses: &[Course]) -> Vec<Figure> {
    let how = format!(
        "an upload over a client's link of 100 Mbit/s with {} ms delay each way, with a logger on another host; \
         SIGKILL of the server after 2.5 s; the client's socket is looked at every 10 ms",
        delay.as_millis()
    );
    let figure = |what: &str, unit, how: &str, of: &dyn Fn(&Course) -> f64| {
        let values: Vec<f64> = courses.iter().map(of).collect();
        Figure::of(format!("estimate.{name}.{what}"), unit, &values, how)
    };
    let mut figures = vec![
        figure(
            "speed",
            "Mbit/s",
            &format!("{how}: acknowledged in the last second before"),
            &|c| c.speed * 8e-6,
        ),
        figure(
            "pause",
            "ms",
            &format!("{how}: from the kill to the first acknowledgement after it"),
            &|c| c.pause,
        ),
        figure(
            "full_speed",
            "ms",
            &format!(
                "{how}: from that acknowledgement until 95 % of the speed before is acknowledged in each of three times 100 ms; where it is never, the 3.5 s that were watched"
            ),
            &|c| c.full,
        ),
        figure(
            "lost",
            "ms",
            &format!(
                "{how}: how much the upload is behind one without a kill 3.5 s after it, at the speed before"
            ),
            &|c| c.lost,
        ),
    ];
    for (index, (quantity, unit, least)) in QUANTITIES.into_iter().enumerate() {
        let extreme = if least { "least" } else { "most" };
        let moments = [
            ("before", "the median of the second before"),
            ("first", "with the first acknowledgement after it"),
            (extreme, "from then on until the end, 3.5 s after the kill"),
        ];
        for (which, (moment, words)) in moments.into_iter().enumerate() {
            let what = format!("{quantity}.{moment}");
            let how = format!("{how}: {words}");
            figures.push(figure(&what, unit, &how, &|course| {
                course.known[index][which]
            }));
        }
    }
    figures
}

/// The first run of each delay.
fn draw(examples: &[(Duration, Vec<Sample>)]) -> Vec<(String, String)> {
    let from = -0.5;
    let shown = |samples: &[Sample], of: &dyn Fn(usize) -> Option<f64>| -> Vec<(f64, f64)> {
        let indexes = (0..samples.len()).filter(|index| samples[*index].at >= from);
        indexes
            .filter_map(|index| Some((samples[index].at - from, of(index)?)))
            .collect()
    };
    let (mut estimates, mut speeds) = (Vec::new(), Vec::new());
    for (delay, samples) in examples {
        let trip = 2 * delay.as_millis();
        for (quantity, name) in [(0, "round trip"), (2, "RTO")] {
            let points = shown(samples, &|index| Some(samples[index].known[quantity]));
            estimates.push((format!("{name}, {trip} ms"), points));
        }
        // Over 50 ms, as a line of 100 Mbit/s has few segments in 10.
        let points = shown(samples, &|index| {
            let (now, earlier) = (samples[index], *samples.get(index.checked_sub(5)?)?);
            Some((now.acknowledged - earlier.acknowledged) / (now.at - earlier.at) * 8e-6)
        });
        speeds.push((format!("delay {trip} ms"), points));
    }
    let drawn = |name: &str, title: &str, up: &str, lines: &[(String, Vec<(f64, f64)>)]| {
        let series: Vec<_> = lines
            .iter()
            .map(|(name, points)| Series { name, points })
            .collect();
        let axes = Axes {
            title,
            across: "time; the server is killed at 0.5 s",
            up,
            unit: 1.0,
            seconds: 3.0,
            legend: if name == ESTIMATES {
                Corner::Upper
            } else {
                Corner::Lower
            },
        };
        (name.to_owned(), plot(&axes, &series))
    };
    vec![
        drawn(
            ESTIMATES,
            "The client's estimates around a recovery",
            "ms",
            &estimates,
        ),
        drawn(
            "speed.svg",
            "An upload's speed around a recovery",
            "acknowledged in 50 ms (Mbit/s)",
            &speeds,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1000 bytes every 10 ms, then no bytes from 20 ms after the kill on, then 400 bytes every 10 ms for 100 ms, then
    /// 1000 again.
    fn samples() -> Vec<Sample> {
        let mut acknowledged = 0.0;
        (-110..=150)
            .map(|step| {
                acknowledged += match step {
                    ..=2 | 40.. => 1000.0,
                    30..40 => 400.0,
                    _ => 0.0,
                };
                let slow = if step == 35 { 70.0 } else { 7.0 };
                Sample {
                    at: f64::from(step) / 100.0,
                    acknowledged,
                    known: [slow, 1.0, 200.0, 100.0 - slow],
                }
            })
            .collect()
    }

    #[test]
    fn course_is_read_from_samples() -> Result<()> {
        let course = Course::of(&samples())?;
        let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
        assert!(close(course.speed, 100_000.0), "{}", course.speed);
        assert!(close(course.pause, 300.0), "{}", course.pause);
        assert!(close(course.full, 90.0), "{}", course.full);
        // Of 300 ms there was something in the first 20; then 60 % of 100 ms was missing.
        assert!(close(course.lost, 330.0), "{}", course.lost);
        assert_eq!(course.known[0], [7.0, 7.0, 70.0]);
        assert_eq!(course.known[3], [93.0, 93.0, 30.0]);
        Ok(())
    }

    #[test]
    fn silent_upload_is_an_error() {
        let mut silent = samples();
        silent.truncate(130);
        for sample in &mut silent[110..] {
            sample.acknowledged = 0.0;
        }
        assert!(Course::of(&silent).is_err());
    }
}
