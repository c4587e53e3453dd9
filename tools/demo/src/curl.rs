//! The curl clients: unmodified, each with a single connection.

use std::fs::{self, File};
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::clients::{Scene, Served};
use crate::compare::{Pauses, same};
use crate::program::Program;
use crate::server::Server;
use crate::stage::{SMALL_FILES, small};

/// Speed of the large transfers, so that they go on during all kills.
const LARGE_RATE: &str = "10M";
/// A slow client reads this many bytes at a time, and then sleeps: 80 KiB/s. (curl's own limit does not hold for such
/// small files.)
const SLOW_READ: usize = 16 << 10;
const SLOW_SLEEP: Duration = Duration::from_millis(200);
/// Speed of the small requests.
const REQUEST_RATE: &str = "10/s";
/// Time between two looks at the progress of the upload.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Format of curl's line for each transfer, on standard error.
const SAY: &str = "%{stderr}%{num_connects} %{response_code} %{time_total}\n";

/// Downloads the large file.
pub(crate) fn download(scene: &Scene<'_>) -> Result<Served> {
    let url = format!("http://{}/large", scene.stage.addresses(Server::Nginx)[0]);
    let mut curl = curl(scene, &["--no-buffer", "--limit-rate", LARGE_RATE, &url])?;
    let mut pauses = Pauses::default();
    let expected = BufReader::new(File::open(scene.stage.file("large"))?);
    let bytes = same(curl.output()?, expected, || pauses.progress())?;
    one_connection(&finish(curl)?, 1, &[200])?;
    Ok(Served::on_one(bytes, Some(pauses.longest())))
}

/// Downloads the medium file into a slow reader.
pub(crate) fn slow(scene: &Scene<'_>) -> Result<Served> {
    let url = format!("http://{}/medium", scene.stage.addresses(Server::Nginx)[0]);
    let mut curl = curl(scene, &["--no-buffer", &url])?;
    let expected = BufReader::new(File::open(scene.stage.file("medium"))?);
    let bytes = same(Slowly(curl.output()?), expected, || {})?;
    one_connection(&finish(curl)?, 1, &[200])?;
    Ok(Served::on_one(bytes, None))
}

/// Fetches all small files, one after the other, over one connection.
pub(crate) fn keep_alive(scene: &Scene<'_>) -> Result<Served> {
    let (mut urls, mut expected) = (String::new(), Vec::new());
    for number in 0..SMALL_FILES {
        let name = small(number);
        urls += &format!(
            "url = http://{}/{name}\n",
            scene.stage.addresses(Server::Nginx)[0]
        );
        expected.extend(fs::read(scene.stage.file(&name))?);
    }
    let list = scene.stage.scratch("urls");
    fs::write(&list, urls)?;
    let list = list.to_string_lossy();
    let mut curl = curl(scene, &["--rate", REQUEST_RATE, "--config", &list])?;
    let bytes = same(curl.output()?, Cursor::new(expected), || {})?;
    let transfers = finish(curl)?;
    one_connection(&transfers, SMALL_FILES, &[200])?;
    let pause = transfers.iter().map(|transfer| transfer.time).max();
    Ok(Served::on_one(bytes, pause))
}

/// Uploads the large file, and compares the file of nginx.
pub(crate) fn upload(scene: &Scene<'_>) -> Result<Served> {
    let url = format!(
        "http://{}/uploaded",
        scene.stage.addresses(Server::Nginx)[1]
    );
    let source = scene.stage.file("large");
    let path = source.to_string_lossy();
    let mut curl = curl(
        scene,
        &["--limit-rate", LARGE_RATE, "--upload-file", &path, &url],
    )?;
    let pauses = watch_reading(&mut curl, &source)?;
    // 204 means that the file existed: nginx was killed after the creation and before the response.
    one_connection(&finish(curl)?, 1, &[201, 204])?;
    let uploaded = BufReader::new(File::open(scene.stage.file("uploaded"))?);
    let bytes = same(uploaded, BufReader::new(File::open(source)?), || {})?;
    Ok(Served::on_one(bytes, Some(pauses.longest())))
}

/// Reads a little, then sleeps.
struct Slowly<R>(R);

impl<R: Read> Read for Slowly<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        thread::sleep(SLOW_SLEEP);
        let most = buffer.len().min(SLOW_READ);
        self.0.read(&mut buffer[..most])
    }
}

/// A curl command with our line for each transfer.
fn curl(scene: &Scene<'_>, arguments: &[&str]) -> Result<Program> {
    // Without the user's configuration.
    let ours = ["--disable", "--noproxy", "*", "--globoff"];
    let more = ["--silent", "--show-error", "--write-out", SAY];
    Program::start(scene, "curl", &[&ours[..], &more, arguments].concat())
}

/// Waits for the end of the curl, and notes each progress in `file`.
fn watch_reading(curl: &mut Program, file: &Path) -> Result<Pauses> {
    let mut pauses = Pauses::default();
    let (mut info, mut before) = (None, None);
    while !curl.has_ended()? {
        if info.is_none() {
            info = descriptor(curl.pid(), file);
        }
        let position = info.as_deref().and_then(position);
        if position > before {
            before = position;
            pauses.progress();
        }
        thread::sleep(POLL_INTERVAL);
    }
    // The answer.
    pauses.progress();
    Ok(pauses)
}

/// Waits for the end of the curl, and returns its lines.
fn finish(curl: Program) -> Result<Vec<Transfer>> {
    curl.finish()?.lines().map(Transfer::parse).collect()
}

/// The file in which the kernel shows the read position of a process.
fn descriptor(pid: u32, file: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let entry = entries
        .flatten()
        .find(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == file))?;
    Some(Path::new(&format!("/proc/{pid}/fdinfo")).join(entry.file_name()))
}

fn position(info: &Path) -> Option<u64> {
    let text = fs::read_to_string(info).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("pos:")?.trim().parse().ok())
}

/// The line of a transfer.
#[derive(Debug, PartialEq)]
struct Transfer {
    /// New connections of the transfer.
    connects: usize,
    /// Status of the response.
    status: u16,
    /// Duration.
    time: Duration,
}

impl Transfer {
    fn parse(line: &str) -> Result<Self> {
        let parsed = || {
            let mut words = line.split(' ');
            let connects = words.next()?.parse().ok()?;
            let status = words.next()?.parse().ok()?;
            let time = Duration::try_from_secs_f64(words.next()?.parse().ok()?).ok()?;
            words.next().is_none().then_some(Self {
                connects,
                status,
                time,
            })
        };
        parsed().with_context(|| format!("curl said: {line}"))
    }
}

/// Checks for a run without a crash: `count` transfers, one connection, the right statuses.
fn one_connection(transfers: &[Transfer], count: usize, statuses: &[u16]) -> Result<()> {
    ensure!(
        transfers.len() == count,
        "{} transfers instead of {count}",
        transfers.len()
    );
    let connects: usize = transfers.iter().map(|transfer| transfer.connects).sum();
    ensure!(
        connects == 1,
        "curl has made {connects} connections instead of 1"
    );
    match transfers
        .iter()
        .find(|transfer| !statuses.contains(&transfer.status))
    {
        Some(transfer) => bail!("status {} instead of {statuses:?}", transfer.status),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curl_output_is_parsed() {
        let transfer = Transfer::parse("1 200 0.250000").unwrap();
        let time = Duration::from_millis(250);
        assert_eq!(
            transfer,
            Transfer {
                connects: 1,
                status: 200,
                time
            }
        );
        for line in [
            "",
            "1 200",
            "1 200 0.1 x",
            "curl: (56) Recv failure",
            "1 200 -1",
        ] {
            assert!(Transfer::parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn second_connection_is_noticed() {
        let said = |text: &str| {
            text.lines()
                .map(|line| Transfer::parse(line).unwrap())
                .collect::<Vec<_>>()
        };
        assert!(one_connection(&said("1 200 0.1\n0 200 0.1"), 2, &[200]).is_ok());
        assert!(one_connection(&said("1 200 0.1\n1 200 0.1"), 2, &[200]).is_err());
        assert!(one_connection(&said("1 200 0.1"), 2, &[200]).is_err());
        assert!(one_connection(&said("1 200 0.1\n0 500 0.1"), 2, &[200]).is_err());
    }
}
