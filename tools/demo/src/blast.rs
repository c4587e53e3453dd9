//! The scene `blast`: a sparse disk travels over a slow link that loses packets, and its receiver is killed; beside it
//! a copy by TCP. Then three hosts get the disk at the same time.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harness::task::Interrupt;
use lab::{Host, Impairment, Lab, Output, Process, Signal};
use rand::{RngCore as _, SeedableRng as _, rngs::SmallRng};

use crate::timeline::say;

/// Size of the disk, and of its parts with data, one after each `PART_DISTANCE`.
const DISK_BYTES: u64 = 4 << 30;
const PART_BYTES: usize = 1 << 20;
const PART_COUNT: u64 = 48;
const PART_DISTANCE: u64 = DISK_BYTES / PART_COUNT;
/// The path: 100 Mbit/s, 50 ms for a round trip, one packet of a hundred lost each way.
const LINK_BITS: u64 = 100_000_000;
const LINK_DELAY: Duration = Duration::from_millis(25);
const LINK_LOSS: f64 = 1.0;
/// Share of the data after which the receiver is killed, percent.
const KILLED_AT: u64 = 40;
const RECEIVER_COUNT: usize = 3;
const RECEIVER_PORT: u16 = 7601;
const PLAIN_PORT: u16 = 7700;
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Shows the scene. `true` if all hosts have the disk.
pub(crate) fn show(outlive: &Path, interrupt: &Interrupt, seed: u64) -> Result<bool> {
    let data = PART_COUNT * PART_BYTES as u64;
    say(&format!(
        "A disk of {} with {} of data, the rest holes, over {} Mbit/s and 50 ms that lose 1 % of the packets each way (seed {seed}).",
        size(DISK_BYTES),
        size(data),
        LINK_BITS / 1_000_000
    ));
    let scene = Scene::build(outlive, interrupt, seed)?;
    let result = scene.show();
    scene
        .lab
        .remove()
        .context("not everything could be removed")?;
    result
}

struct Scene {
    outlive: PathBuf,
    interrupt: Interrupt,
    sender: Host,
    receivers: Vec<Host>,
    disk: PathBuf,
    lab: Lab,
}

impl Scene {
    fn build(outlive: &Path, interrupt: &Interrupt, seed: u64) -> Result<Self> {
        let lab = Lab::new("demo-blast")?;
        let sender = lab.add_host("sender")?;
        // The default of Linux.
        sender.sysctl("net.ipv4.tcp_congestion_control", "cubic")?;
        let mut receivers = Vec::new();
        for number in 1..=RECEIVER_COUNT {
            let host = lab.add_host(&format!("host{number}"))?;
            let link = Impairment::with_seed(seed + number as u64);
            host.impair(&link.rate(LINK_BITS).delay(LINK_DELAY).loss(LINK_LOSS))?;
            fs::create_dir(lab.directory().join(host.name()))?;
            receivers.push(host);
        }
        let disk = lab.directory().join("disk.raw");
        write_disk(&disk, seed)?;
        let keys = Command::new(outlive).arg("key").output()?;
        fs::write(lab.directory().join("keys"), keys.stdout)?;
        fs::set_permissions(lab.directory().join("keys"), Permissions::from_mode(0o600))?;
        Ok(Self {
            outlive: outlive.to_owned(),
            interrupt: interrupt.clone(),
            sender,
            receivers,
            disk,
            lab,
        })
    }

    fn show(&self) -> Result<bool> {
        let first = &self.receivers[0];
        let data = PART_COUNT * PART_BYTES as u64;
        say("");
        let mut receiver = self.receive(first)?;
        let begun = Instant::now();
        let sending = self.send(&self.receivers[..1])?;
        self.wait(|| Ok(self.arrived(first)? >= data * KILLED_AT / 100))?;
        receiver.kill(Signal::KILL)?;
        receiver.wait_with_timeout(STEP_TIMEOUT)?;
        let there = self.arrived(first)?;
        say(&format!(
            "  {:>5.1} s  the receiver is killed; {} of the data are there",
            begun.elapsed().as_secs_f64(),
            size(there)
        ));
        receiver = self.receive(first)?;
        say(&format!(
            "  {:>5.1} s  the receiver is back",
            begun.elapsed().as_secs_f64()
        ));
        self.end(&sending)?;
        let took = begun.elapsed();
        let is_equal = self.is_stored(first)?;
        say(&format!(
            "  {:>5.1} s  the disk is there: {}, {} on the receiver's disk",
            took.as_secs_f64(),
            if is_equal {
                "every byte equal"
            } else {
                "DIFFERENT BYTES"
            },
            size(blocks(&self.place(first, "disk.raw"))?)
        ));
        stop(&receiver)?;
        fs::remove_file(self.place(first, "disk.raw"))?;

        let copied = self.copy_plainly(first, took)?;
        say(&format!(
            "  in the same time, without a failure, a copy by TCP (nc, CUBIC) has moved {} of the {}",
            size(copied),
            size(DISK_BYTES)
        ));
        say("");
        Ok(is_equal & self.show_several()?)
    }

    /// The disk to all hosts at the same time.
    fn show_several(&self) -> Result<bool> {
        let mut receivers = Vec::new();
        for host in &self.receivers {
            receivers.push(self.receive(host)?);
        }
        let begun = Instant::now();
        let sending = self.send(&self.receivers)?;
        self.end(&sending)?;
        let took = begun.elapsed().as_secs_f64();
        let mut equal = 0;
        for (host, receiver) in self.receivers.iter().zip(&receivers) {
            equal += usize::from(self.is_stored(host)?);
            stop(receiver)?;
        }
        say(&format!(
            "To {RECEIVER_COUNT} hosts at the same time: {equal} have it after {took:.1} s, every byte equal."
        ));
        Ok(equal == RECEIVER_COUNT)
    }

    /// Starts a receiver, and waits until it listens.
    fn receive(&self, host: &Host) -> Result<Process> {
        let log = self.lab.directory().join(format!("{}.log", host.name()));
        let _ = fs::remove_file(&log);
        let mut command = host.command(&self.outlive.to_string_lossy());
        command
            .arg("receive")
            .arg(self.place(host, ""))
            .arg("--listen")
            .arg(format!("{}:{RECEIVER_PORT}", host.address().ipv4()))
            .arg("--key-file")
            .arg(self.lab.directory().join("keys"));
        let process = host.spawn(&mut command, &Output::File(log.clone()))?;
        self.wait(|| Ok(fs::read_to_string(&log)?.contains("senders connect to")))?;
        Ok(process)
    }

    fn send(&self, receivers: &[Host]) -> Result<Process> {
        let log = self.lab.directory().join("send.log");
        let mut command = self.sender.command(&self.outlive.to_string_lossy());
        command.arg("send").arg(&self.disk);
        for host in receivers {
            command.arg(format!("{}:{RECEIVER_PORT}", host.address().ipv4()));
        }
        command
            .arg("--key-file")
            .arg(self.lab.directory().join("keys"));
        Ok(self.sender.spawn(&mut command, &Output::File(log))?)
    }

    /// Waits for the end of a sender.
    fn end(&self, sending: &Process) -> Result<()> {
        let mut status = None;
        self.wait(|| {
            status = sending.wait_with_timeout(Duration::from_millis(20))?;
            Ok(status.is_some())
        })?;
        let said = fs::read_to_string(self.lab.directory().join("send.log"))?;
        ensure!(status.is_some_and(|it| it.success()), "{said}");
        Ok(())
    }

    /// Bytes that a copy of the disk by TCP moves in that time.
    fn copy_plainly(&self, host: &Host, time: Duration) -> Result<u64> {
        let copy = self.place(host, "copy");
        let shell = |host: &Host, line: String| {
            let mut command = host.command("sh");
            command.args(["-c", &line]);
            command
        };
        let listen = format!("exec nc -l {PLAIN_PORT} > {}", copy.display());
        let send = format!(
            "exec nc -N {} {PLAIN_PORT} < {}",
            host.address().ipv4(),
            self.disk.display()
        );
        let log = self.lab.directory().join("nc.log");
        let listener = host.spawn(&mut shell(host, listen), &Output::File(log.clone()))?;
        self.wait(|| {
            let mut sockets = host.command("ss");
            let listening = sockets.args(["-Htln"]).output()?;
            Ok(String::from_utf8_lossy(&listening.stdout).contains(&PLAIN_PORT.to_string()))
        })?;
        let sending = self
            .sender
            .spawn(&mut shell(&self.sender, send), &Output::File(log))?;
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.interrupt.check()?;
            std::thread::sleep(Duration::from_millis(20));
        }
        let copied = fs::metadata(&copy)?.len();
        stop(&sending)?;
        stop(&listener)?;
        fs::remove_file(copy)?;
        Ok(copied)
    }

    /// Bytes of the unfinished file.
    fn arrived(&self, host: &Host) -> Result<u64> {
        let Ok(entries) = fs::read_dir(self.place(host, ".outlive-partial")) else {
            return Ok(0); // nothing yet
        };
        let mut bytes = 0;
        for entry in entries {
            bytes += entry?.metadata()?.blocks() * 512;
        }
        Ok(bytes)
    }

    fn is_stored(&self, host: &Host) -> Result<bool> {
        let mut compare = Command::new("cmp");
        let compared = compare
            .args([&self.disk, &self.place(host, "disk.raw")])
            .output()?;
        Ok(compared.status.success())
    }

    /// A name in the directory of a receiver.
    fn place(&self, host: &Host, name: &str) -> PathBuf {
        self.lab.directory().join(host.name()).join(name)
    }

    fn wait(&self, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
        let begun = Instant::now();
        while !is_so()? {
            self.interrupt.check()?;
            ensure!(begun.elapsed() < STEP_TIMEOUT, "the scene stands still");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// Parts with random bytes, and holes between.
fn write_disk(path: &Path, seed: u64) -> Result<()> {
    let file = File::create_new(path)?;
    file.set_len(DISK_BYTES)?;
    let mut random = SmallRng::seed_from_u64(seed);
    let mut part = vec![0; PART_BYTES];
    for number in 0..PART_COUNT {
        random.fill_bytes(&mut part);
        file.write_all_at(&part, number * PART_DISTANCE)?;
    }
    Ok(())
}

fn stop(process: &Process) -> Result<()> {
    process.kill(Signal::TERM)?;
    process.wait_with_timeout(STEP_TIMEOUT)?;
    Ok(())
}

/// Bytes on the disk.
fn blocks(path: &Path) -> Result<u64> {
    Ok(fs::metadata(path)?.blocks() * 512)
}

fn size(bytes: u64) -> String {
    match bytes {
        1_000_000_000.. => format!("{:.1} GB", bytes as f64 / 1e9),
        _ => format!("{:.0} MB", bytes as f64 / 1e6),
    }
}
