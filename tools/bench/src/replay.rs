//! How fast a long record is replayed.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Bench;
use super::figure::Figure;
use super::recovery::{Times, kill};
use super::stage::PORT;
use super::subject::{Mode, Server, Subject};

const REPLAY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for the last bytes to be acknowledged, and for serve to forget the death.
const SETTLE_TIME: Duration = Duration::from_millis(1050);

pub(super) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let mib: usize = bench.size(300, 100);
    let runs = bench.size(5, 2);
    bench.say(format_args!(
        "{runs} uploads of {mib} MiB, killed at the end"
    ));
    let server = Server::own(bench, "sink");
    let mut subject = Subject::start(bench, &server, Mode::Protected("connection"))?;
    let speeds: Vec<f64> = (0..runs)
        .map(|_| one(bench, &mut subject, mib))
        .collect::<Result<_>>()?;
    subject.stop()?;
    let how = format!(
        "an upload of {mib} MiB to a server that reads and discards, which is killed when all is sent; \
         bytes replayed by the time from the first splice until live; the server counts them at the end"
    );
    Ok(vec![Figure::of("replay.speed", "MB/s", &speeds, how)])
}

/// Uploads, kills, and returns the speed of the replay in MB/s.
fn one(bench: &Bench, subject: &mut Subject<'_>, mib: usize) -> Result<f64> {
    let address = bench.stage.address(PORT);
    let mut stream = bench.stage.client.enter(|| TcpStream::connect(address))??;
    stream.set_read_timeout(Some(REPLAY_TIMEOUT))?;
    stream.set_write_timeout(Some(REPLAY_TIMEOUT))?;
    let block = vec![0x5a; 1 << 20];
    for _ in 0..mib {
        bench.interrupt.check()?;
        stream.write_all(&block)?;
    }
    thread::sleep(SETTLE_TIME);
    let event = kill(subject)?;
    let times = Times::of(&event)?;
    let replayed = event["replayed_bytes"]
        .as_u64()
        .context("no replayed_bytes")?;
    let sent = u64::try_from(mib)? << 20;
    ensure!(
        replayed == sent,
        "{replayed} bytes were replayed, not {sent}"
    );
    // The new server must have got every byte.
    stream.shutdown(Shutdown::Write)?;
    let mut count = String::new();
    stream.read_to_string(&mut count)?;
    ensure!(
        count == sent.to_string(),
        "the server counted `{count}` bytes, not {sent}"
    );
    let megabytes = f64::from(u32::try_from(sent / 1000)?) / 1e3;
    Ok(megabytes / ((times.live() - times.first_spliced()) / 1e3))
}
