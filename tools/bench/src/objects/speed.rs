//! The speed of one download: from near, from afar, with loss, and before and after a revival.

use std::io::Read as _;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use harness::pool::PoolHosts;
use lab::{Direction, Impairment};

use super::{LARGE, REQUESTS_BOUND, ask_for_large, compare, of_member, start};
use crate::Bench;
use crate::figure::{Aim, Figure, column, ratios};
use crate::traffic::curl;

/// Delay of the client's link in each direction, for a download from afar.
const ONE_WAY_DELAY: Duration = Duration::from_millis(25);
/// Share of frames that are lost, in percent.
const LOSS_PERCENT: f64 = 0.1;
/// Time over which a rate is taken, before a power-off and after the revival.
const RATE_TIME: Duration = Duration::from_secs(1);
/// Time from the first byte, and from the first byte after the revival, to the measurement: a slow start is over.
const SETTLE_TIME: Duration = Duration::from_millis(500);

const REVIVED_BOUND: &str = "the server of the new member begins with a slow start of its own, and each segment is translated";

/// A way to the client, the length of a download on this way, and the aim.
struct LinkQuality {
    name: &'static str,
    delay: Duration,
    loss_percent: f64,
    mib: [u64; 2],
    aim: f64,
}

const WAYS: [LinkQuality; 3] = [
    LinkQuality {
        name: "near",
        delay: Duration::ZERO,
        loss_percent: 0.0,
        mib: [2048, 256],
        aim: 0.95,
    },
    LinkQuality {
        name: "far",
        delay: ONE_WAY_DELAY,
        loss_percent: 0.0,
        mib: [256, 64],
        aim: 0.98,
    },
    LinkQuality {
        name: "far.lossy",
        delay: ONE_WAY_DELAY,
        loss_percent: LOSS_PERCENT,
        mib: [64, 16],
        aim: 0.95,
    },
];

pub(super) fn measure(bench: &Bench, hosts: &PoolHosts) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for way in &WAYS {
        figures.extend(way.download(bench, hosts)?);
    }
    Ok(figures)
}

impl LinkQuality {
    fn download(&self, bench: &Bench, hosts: &PoolHosts) -> Result<Vec<Figure>> {
        let mib: u64 = bench.size(self.mib[0], self.mib[1]);
        bench.stage.sparse(&format!("www/{LARGE}"), mib << 20)?;
        let (delay, loss) = (self.delay, self.loss_percent);
        let how = format!(
            "curl of a sparse file of {mib} MiB in memory, {} ms of delay each way{}",
            delay.as_millis(),
            if loss > 0.0 {
                format!(", {loss} % of the frames lost each way")
            } else {
                String::new()
            }
        );
        bench.say(&how);
        let link = &bench.stage.client.links()[0];
        link.adjust(&Direction::BOTH, |link| link.delay(delay).loss(loss))?;
        let runs = compare(bench, hosts, &[], |address| {
            let url = format!("http://{address}/{LARGE}");
            if delay.is_zero() {
                // The first download fills the page cache.
                curl(bench, &[&url])?;
            }
            Ok([curl(bench, &[&url])?])
        });
        link.adjust(&Direction::BOTH, |link| {
            link.delay(Duration::ZERO).loss(0.0)
        })?;
        let runs = runs?;
        let all = [0, 1, 2].map(|which| column(&runs[which], 0));
        let name = format!("download.{}", self.name);
        Ok(of_member(
            &name,
            "Gbit/s",
            &all,
            &how,
            self.aim,
            REQUESTS_BOUND,
        ))
    }
}

/// Bytes a second after a revival, beside before. Without a store, the first 3 GiB alone would be protected.
pub(super) fn revived(bench: &Bench, hosts: &PoolHosts, store: &str) -> Result<Figure> {
    let rounds = bench.size(5, 1);
    bench.say(format_args!(
        "{rounds} power-offs in a download at full speed"
    ));
    // With zeros in memory, and long enough for all seconds at any speed of a lab.
    bench.stage.sparse(&format!("www/{LARGE}"), 200 << 30)?;
    let link = &bench.stage.client.links()[0];
    link.adjust(&Direction::BOTH, Impairment::unlimited)?;
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        bench.interrupt.check()?;
        let pool = start(hosts, 2, &["--store", store])?;
        let rates = rates(bench, hosts, &pool);
        pool.stop()?;
        let [first, second] = rates?;
        before.push(first);
        after.push(second);
    }
    let how = format!(
        "bytes of a download in {} s, from {} ms after the first byte of another server on, divided by bytes in {} s \
         before the power-off of its host; no delay, no limit, Redis on another host",
        RATE_TIME.as_secs(),
        SETTLE_TIME.as_millis(),
        RATE_TIME.as_secs()
    );
    let figure = Figure::of("objects.revived.rate", "", &ratios(&before, &after), how);
    Ok(figure.aim(Aim::AtLeast(0.9), REVIVED_BOUND))
}

/// Bytes a second before a power-off and after the revival.
fn rates(bench: &Bench, hosts: &PoolHosts, pool: &harness::pool::Pool<'_>) -> Result<[f64; 2]> {
    let mut stream = ask_for_large(bench, hosts)?;
    let member = pool.server_of(stream.local_addr()?)?;
    read_for(&mut stream, SETTLE_TIME)?;
    let before = read_for(&mut stream, RATE_TIME)?;
    // The client goes on reading: its window would be shut, and nothing would be under way.
    let reader = thread::spawn(move || {
        let silence_at_most = Duration::from_millis(10);
        let mut buffer = vec![0; 1 << 20];
        loop {
            let asked = Instant::now();
            ensure!(stream.read(&mut buffer)? > 0, "the download has ended");
            if asked.elapsed() > silence_at_most {
                break;
            }
        }
        read_for(&mut stream, SETTLE_TIME)?;
        read_for(&mut stream, RATE_TIME)
    });
    pool.power_off(member)?;
    let after = reader.join().map_err(|_| anyhow!("a client panicked"))??;
    Ok([before, after])
}

/// Bytes a second over this time.
fn read_for(stream: &mut TcpStream, time: Duration) -> Result<f64> {
    let mut buffer = vec![0; 1 << 20];
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < time {
        let read = stream.read(&mut buffer)?;
        ensure!(read > 0, "the download has ended");
        bytes += read;
    }
    let bytes = u32::try_from(bytes >> 10)?;
    Ok(f64::from(bytes) * 1024.0 / start.elapsed().as_secs_f64())
}
