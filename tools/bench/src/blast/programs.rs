//! `outlive send` beside programs that copy files, and beside TCP on a path that loses packets.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::task::Interrupt;
use lab::{Host, Output, Process};

use super::{Receiver, TRANSFER_TIMEOUT, file_of, start_iperf, tcp};
use crate::Bench;
use crate::figure::{Aim, Figure, ratios};

const NETCAT_PORT: u16 = 7700;
const SSH_PORT: u16 = 7722;
/// The path of the wide area: bits in a second, one way, and lost packets.
const WIDE_RATE: u64 = 100_000_000;
const WIDE_DELAY: Duration = Duration::from_millis(25);
const WIDE_LOSS: f64 = 1.0;
const FILE_BOUND: &str = "four threads share two processors: each end reads or writes, encrypts or decrypts, and \
     hashes; the other programs do none of these but the first";
const WIDE_BOUND: &str =
    "the start finds the rate by doubling, and the last blasts wait for repetitions";

pub(super) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = files(bench)?;
    figures.extend(wide_area(bench)?);
    Ok(figures)
}

/// A program that copies a file from the client's host to the server's.
struct Rival {
    name: &'static str,
    aim: f64,
    copy: fn(&Bench, &Path) -> Result<f64>,
}

/// A file between two hosts, cached at both ends.
fn files(bench: &Bench) -> Result<Vec<Figure>> {
    let size = bench.size(2 << 30, 256 << 20);
    bench.say(format_args!(
        "a file of {} MiB, by several programs",
        size >> 20
    ));
    let stage = &bench.stage;
    let file = file_of(bench, "image", size)?;
    let receiver = Receiver::start(bench, &stage.server, "0")?;
    let mut rivals = vec![Rival {
        name: "nc",
        aim: 1.5,
        copy: netcat,
    }];
    let ssh = Ssh::start(bench)?;
    if ssh.is_some() {
        rivals.push(Rival {
            name: "scp",
            aim: 3.0,
            copy: scp,
        });
    }
    let mut seconds = Vec::new();
    let mut theirs: Vec<Vec<f64>> = rivals.iter().map(|_| Vec::new()).collect();
    for _ in 0..bench.rounds.min(5) {
        bench.interrupt.check()?;
        let mut command = receiver.sender(bench, &stage.client, &file, &[]);
        seconds.push(timed(bench, &stage.client, &mut command)?);
        receiver.forget("image", size)?;
        for (rival, seconds) in rivals.iter().zip(&mut theirs) {
            seconds.push((rival.copy)(bench, &file)?);
            let copied = fs::metadata(stage.file("copied")).context("a copy")?.len();
            ensure!(copied == size, "{} has copied {copied} bytes", rival.name);
            fs::remove_file(stage.file("copied"))?;
        }
    }
    drop(ssh);
    receiver.stop()?;
    fs::remove_file(&file)?;
    let about = format!(
        "a file of {} MiB, in memory at both ends, 1500-byte frames",
        size >> 20
    );
    let speeds: Vec<f64> = seconds.iter().map(|it| size as f64 / it / 1e9).collect();
    let how = format!("{about}: encrypted, and hashed at both ends");
    let mut figures = vec![Figure::of("blast.send", "GB/s", &speeds, how)];
    for (rival, theirs) in rivals.iter().zip(&theirs) {
        let Rival { name, aim, .. } = rival;
        let how = format!("{about}: time of {name} by time of outlive send, in turn");
        let over = Figure::of(
            format!("blast.send.over_{name}"),
            "",
            &ratios(&seconds, theirs),
            how,
        );
        figures.push(over.aim(Aim::AtLeast(*aim), FILE_BOUND));
    }
    Ok(figures)
}

/// Seconds until a command of a host has ended with success.
fn timed(bench: &Bench, host: &Host, command: &mut Command) -> Result<f64> {
    let log = bench.stage.file("copy.log");
    let begun = Instant::now();
    let process = host.spawn(command, &Output::File(log.clone()))?;
    finished(&process, &bench.interrupt, &log)?;
    Ok(begun.elapsed().as_secs_f64())
}

fn finished(process: &Process, interrupt: &Interrupt, log: &Path) -> Result<()> {
    let begun = Instant::now();
    loop {
        interrupt.check()?;
        if let Some(status) = process.wait_with_timeout(Duration::from_millis(2))? {
            let said = || fs::read_to_string(log).unwrap_or_default();
            ensure!(status.success(), "{status}: {}", said());
            return Ok(());
        }
        ensure!(
            begun.elapsed() < TRANSFER_TIMEOUT,
            "the transfer takes too long"
        );
    }
}

/// netcat at both ends.
fn netcat(bench: &Bench, file: &Path) -> Result<f64> {
    let stage = &bench.stage;
    let copied = stage.file("copied");
    let shell = |host: &Host, line: String| {
        let mut command = host.command("sh");
        command.args(["-c", &line]);
        command
    };
    let log = stage.file("nc.log");
    let line = format!("exec nc -l -N {NETCAT_PORT} > {}", copied.display());
    let listener = stage
        .server
        .spawn(&mut shell(&stage.server, line), &Output::File(log.clone()))?;
    stage
        .testbed
        .await_listener(&stage.server, NETCAT_PORT, &listener, &log)?;
    let to = stage.server.address().ipv4();
    let line = format!("exec nc -N {to} {NETCAT_PORT} < {}", file.display());
    let begun = Instant::now();
    timed(bench, &stage.client, &mut shell(&stage.client, line))?;
    finished(&listener, &bench.interrupt, &log)?;
    Ok(begun.elapsed().as_secs_f64())
}

/// A server of SSH on the server's host, with keys of its own.
struct Ssh {
    _server: Process,
}

impl Ssh {
    /// `None`: this machine has no sshd.
    fn start(bench: &Bench) -> Result<Option<Self>> {
        let sshd = Path::new("/usr/sbin/sshd");
        if !sshd.exists() {
            bench.say("no sshd here: scp is not measured");
            return Ok(None);
        }
        let stage = &bench.stage;
        // sshd insists on this directory (privilege separation); Debian's service makes it.
        fs::create_dir_all("/run/sshd")?;
        for name in ["ssh-host", "ssh-user"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(stage.file(name))
                .status()?;
            ensure!(made.success(), "ssh-keygen failed");
        }
        let mut command = stage.server.command(&sshd.to_string_lossy());
        command.args(["-D", "-e", "-f", "/dev/null"]);
        let host_key = format!("HostKey={}", stage.file("ssh-host").display());
        let users = format!(
            "AuthorizedKeysFile={}",
            stage.file("ssh-user.pub").display()
        );
        let port = format!("Port={SSH_PORT}");
        let pid = format!("PidFile={}", stage.file("sshd.pid").display());
        let root = "PermitRootLogin=yes".to_owned();
        let sftp = "Subsystem=sftp internal-sftp".to_owned();
        for option in [
            host_key,
            users,
            port,
            pid,
            root,
            sftp,
            "StrictModes=no".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        let log = stage.file("sshd.log");
        let server = stage
            .server
            .spawn(&mut command, &Output::File(log.clone()))?;
        stage
            .testbed
            .await_listener(&stage.server, SSH_PORT, &server, &log)?;
        Ok(Some(Self { _server: server }))
    }
}

fn scp(bench: &Bench, file: &Path) -> Result<f64> {
    let stage = &bench.stage;
    let mut command = stage.client.command("scp");
    command.args(["-q", "-P", &SSH_PORT.to_string(), "-F", "/dev/null", "-i"]);
    command.arg(stage.file("ssh-user"));
    for option in [
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
        "BatchMode=yes",
    ] {
        command.args(["-o", option]);
    }
    command.arg(file);
    let to = stage.server.address().ipv4();
    command.arg(format!("root@{to}:{}", stage.file("copied").display()));
    timed(bench, &stage.client, &mut command)
}

/// 100 Mbit/s, 50 ms for a round trip, one packet of a hundred lost: beside TCP with CUBIC and with BBR.
fn wide_area(bench: &Bench) -> Result<Vec<Figure>> {
    bench.say("a path of 100 Mbit/s and 50 ms that loses 1 %");
    let stage = &bench.stage;
    let size: u64 = bench.size(32 << 20, 8 << 20);
    let file = file_of(bench, "wide", size)?;
    let receiver = Receiver::start(bench, &stage.server, "0")?;
    let server = start_iperf(bench)?;
    for host in [&stage.client, &stage.server] {
        host.links()[0].adjust(&lab::Direction::BOTH, |link| {
            link.rate(WIDE_RATE)
                .delay(WIDE_DELAY / 2)
                .loss(WIDE_LOSS / 2.0)
        })?;
    }
    let (mut ours, mut cubic, mut bbr) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.size(3, 1) {
        bench.interrupt.check()?;
        let mut command = receiver.sender(bench, &stage.client, &file, &[]);
        let seconds = timed(bench, &stage.client, &mut command)?;
        receiver.forget("wide", size)?;
        ours.push(size as f64 / seconds / 1e6);
        // By CUBIC fewer bytes: the rate is the same from the second second on.
        let fewer = (size / bench.size(8, 16)).to_string();
        cubic.push(tcp(bench, "cubic", ["-n", &fewer])? / 8e6);
        bbr.push(tcp(bench, "bbr", ["-n", &size.to_string()])? / 8e6);
    }
    for host in [&stage.client, &stage.server] {
        host.clear_impairment()?;
    }
    drop(server);
    receiver.stop()?;
    fs::remove_file(file)?;
    let about = format!(
        "{} MiB over 100 Mbit/s, 50 ms for a round trip, 1 % of the packets lost each way",
        size >> 20
    );
    let versus = |name: &str, theirs: &[f64], aim: f64| {
        let how = format!("{about}: outlive send by iperf3 -C {name}, in turn");
        Figure::of(
            format!("blast.wide.over_{name}"),
            "",
            &ratios(theirs, &ours),
            how,
        )
        .aim(Aim::AtLeast(aim), WIDE_BOUND)
    };
    let how = format!("{about}: outlive send, connection and hash with it");
    Ok(vec![
        Figure::of("blast.wide", "MB/s", &ours, how),
        versus("cubic", &cubic, 5.0),
        versus("bbr", &bbr, 0.9),
    ])
}
