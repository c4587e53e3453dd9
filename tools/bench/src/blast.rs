//! Bulk transfers: packets at their final positions beside packets that are copied ([`placement`]), `outlive send`
//! beside other programs ([`programs`]), and users beside a transfer ([`neighbours`]).

mod neighbours;
mod placement;
mod programs;
mod rivals;

use std::fs::{self, File};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Host, Output, Process};
use serde_json::Value;

use super::Bench;
use super::figure::Figure;
use super::traffic::IPERF_REST;

/// The port of `outlive receive`.
const RECEIVER_PORT: u16 = 7601;
const IPERF_PORT: u16 = 5201;
/// Longest time of a transfer.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(180);

pub(super) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = placement::measure(bench)?;
    figures.extend(programs::measure(bench)?);
    figures.extend(neighbours::measure(bench)?);
    Ok(figures)
}

/// `outlive receive` on a host, and the key of its senders.
struct Receiver {
    address: SocketAddr,
    directory: PathBuf,
    keys: PathBuf,
    process: Process,
}

impl Receiver {
    /// `niceness`: 19 for a host that would have processors of its own.
    fn start(bench: &Bench, host: &Host, niceness: &str) -> Result<Self> {
        let stage = &bench.stage;
        let outlive = &stage.testbed.programs.outlive;
        let key = Command::new(outlive).arg("key").output()?;
        let keys = stage.file("bulk-keys");
        fs::write(&keys, key.stdout)?;
        fs::set_permissions(&keys, fs::Permissions::from_mode(0o600))?;
        let directory = stage.file("received");
        fs::create_dir_all(&directory)?;
        let address = SocketAddr::new(host.address().ipv4().into(), RECEIVER_PORT);
        let mut command = host.command("nice");
        command.args(["-n", niceness]).arg(outlive);
        command.arg("receive").arg(&directory);
        command.args(["--listen", &address.to_string(), "--key-file"]);
        command.arg(&keys);
        let log = stage.file("receive.log");
        let process = host.spawn(&mut command, &Output::File(log.clone()))?;
        stage
            .testbed
            .await_listener(host, RECEIVER_PORT, &process, &log)?;
        Ok(Self {
            address,
            directory,
            keys,
            process,
        })
    }

    /// The command that sends a file from a host.
    fn sender(&self, bench: &Bench, host: &Host, file: &Path, more: &[&str]) -> Command {
        let outlive = &bench.stage.testbed.programs.outlive;
        let mut command = host.command(&outlive.to_string_lossy());
        command.arg("send").arg(file).arg(self.address.to_string());
        command.arg("--key-file").arg(&self.keys).args(more);
        command
    }

    /// Checks that a file has arrived, and makes room for the next.
    fn forget(&self, name: &str, size: u64) -> Result<()> {
        let path = self.directory.join(name);
        let len = fs::metadata(&path)
            .context("the file has not arrived")?
            .len();
        ensure!(len == size, "{len} bytes have arrived of {size}");
        fs::remove_file(path)?;
        Ok(())
    }

    /// Bytes of unfinished files.
    fn arrived_bytes(&self) -> Result<u64> {
        let mut sum = 0;
        for part in self.parts() {
            sum += part?.metadata()?.blocks() * 512;
        }
        Ok(sum)
    }

    /// Removes unfinished files. A receiver that still writes one writes into nothing.
    fn forget_parts(&self) -> Result<()> {
        for part in self.parts() {
            fs::remove_file(part?.path())?;
        }
        Ok(())
    }

    fn parts(&self) -> impl Iterator<Item = std::io::Result<fs::DirEntry>> {
        let parts = fs::read_dir(self.directory.join(".outlive-partial"));
        parts.into_iter().flatten()
    }

    fn stop(self) -> Result<()> {
        self.process.kill(lab::Signal::TERM)?;
        self.process.wait_with_timeout(TRANSFER_TIMEOUT)?;
        Ok(())
    }
}

/// A file without holes, in memory.
fn file_of(bench: &Bench, name: &str, size: u64) -> Result<PathBuf> {
    let path = bench.stage.file(name);
    let mut file = File::create(&path)?;
    let piece: Vec<u8> = (0..1_u32 << 18).flat_map(u32::to_le_bytes).collect();
    for _ in 0..size >> 20 {
        file.write_all(&piece)?;
    }
    Ok(path)
}

/// iperf3 on the server's host.
fn start_iperf(bench: &Bench) -> Result<Process> {
    let stage = &bench.stage;
    let mut iperf = stage.server.command("iperf3");
    iperf.args(["-s", "-p", &IPERF_PORT.to_string()]);
    let log = stage.file("iperf.log");
    let server = stage.server.spawn(&mut iperf, &Output::File(log.clone()))?;
    stage
        .testbed
        .await_listener(&stage.server, IPERF_PORT, &server, &log)?;
    Ok(server)
}

/// Bits in a second of iperf3 with this congestion control, as its receiver counts.
fn tcp(bench: &Bench, control: &str, amount: [&str; 2]) -> Result<f64> {
    let stage = &bench.stage;
    thread::sleep(IPERF_REST);
    let (to, port) = (
        stage.server.address().ipv4().to_string(),
        IPERF_PORT.to_string(),
    );
    let [how, much] = amount;
    let arguments = ["-c", &to, "-p", &port, "-C", control, how, much, "-J"];
    let said = stage.run("iperf3", &arguments, TRANSFER_TIMEOUT, &bench.interrupt)?;
    let said: Value = serde_json::from_str(&said)?;
    let rate = said["end"]["sum_received"]["bits_per_second"].as_f64();
    rate.context("iperf3 says no rate")
}
