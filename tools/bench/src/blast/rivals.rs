//! Other programs that copy a file from the client's host to the server's.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::task::Interrupt;
use lab::{Host, Output, Process};

use super::TRANSFER_TIMEOUT;
use crate::Bench;

const NETCAT_PORT: u16 = 7700;
const MBUFFER_PORT: u16 = 7710;
const SSH_PORT: u16 = 7722;
/// Directory of uftp's receiver, on the stage.
const UFTP_DIRECTORY: &str = "uftp";

/// A program, and how many times as fast `outlive send` is to be.
pub(super) struct Rival {
    pub(super) name: &'static str,
    pub(super) aim: Option<f64>,
    /// Copies a file to `copied` on the stage. Returns the seconds.
    pub(super) copy: fn(&Bench, &Path) -> Result<f64>,
}

/// The programs of this machine, with their servers.
pub(super) struct Rivals {
    pub(super) all: Vec<Rival>,
    _servers: Vec<Process>,
}

impl Rivals {
    pub(super) fn start(bench: &Bench) -> Result<Self> {
        let mut all = vec![Rival {
            name: "nc",
            aim: Some(1.5),
            copy: netcat,
        }];
        let mut servers = Vec::new();
        if is_there(bench, "/usr/sbin/sshd") {
            servers.push(start_sshd(bench)?);
            all.push(Rival {
                name: "scp",
                aim: Some(3.0),
                copy: scp,
            });
        }
        if bench.quick {
            return Ok(Self {
                all,
                _servers: servers,
            });
        }
        if is_there(bench, "/usr/bin/mbuffer") {
            all.push(Rival {
                name: "mbuffer",
                aim: None,
                copy: mbuffer,
            });
        }
        if is_there(bench, "/usr/bin/uftpd") {
            servers.push(start_uftpd(bench)?);
            all.push(Rival {
                name: "uftp",
                aim: None,
                copy: uftp,
            });
        }
        Ok(Self {
            all,
            _servers: servers,
        })
    }
}

fn is_there(bench: &Bench, program: &str) -> bool {
    let there = Path::new(program).exists();
    if !there {
        bench.say(format_args!("no {program} here: it is not measured"));
    }
    there
}

/// Seconds until a command of a host has ended with success.
pub(super) fn timed(bench: &Bench, host: &Host, command: &mut Command) -> Result<f64> {
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

/// A listener on the server's host that writes `copied`, and a sender on the client's: both by the shell.
fn piped(bench: &Bench, port: u16, [listen, send]: [String; 2]) -> Result<f64> {
    let stage = &bench.stage;
    let shell = |host: &Host, line: String| {
        let mut command = host.command("sh");
        command.args(["-c", &line]);
        command
    };
    let log = stage.file("listener.log");
    let listener = stage.server.spawn(
        &mut shell(&stage.server, listen),
        &Output::File(log.clone()),
    )?;
    stage
        .testbed
        .await_listener(&stage.server, port, &listener, &log)?;
    let begun = Instant::now();
    timed(bench, &stage.client, &mut shell(&stage.client, send))?;
    finished(&listener, &bench.interrupt, &log)?;
    Ok(begun.elapsed().as_secs_f64())
}

/// netcat at both ends.
fn netcat(bench: &Bench, file: &Path) -> Result<f64> {
    let (copied, to) = (
        bench.stage.file("copied"),
        bench.stage.server.address().ipv4(),
    );
    let listen = format!("exec nc -l -N {NETCAT_PORT} > {}", copied.display());
    let send = format!("exec nc -N {to} {NETCAT_PORT} < {}", file.display());
    piped(bench, NETCAT_PORT, [listen, send])
}

/// mbuffer at both ends: a thread reads, and a thread writes.
fn mbuffer(bench: &Bench, file: &Path) -> Result<f64> {
    let (copied, to) = (
        bench.stage.file("copied"),
        bench.stage.server.address().ipv4(),
    );
    let (copied, file) = (copied.display(), file.display());
    let listen = format!("exec mbuffer -q -I {MBUFFER_PORT} -o {copied}");
    let send = format!("exec mbuffer -q -i {file} -O {to}:{MBUFFER_PORT}");
    piped(bench, MBUFFER_PORT, [listen, send])
}

fn start_uftpd(bench: &Bench) -> Result<Process> {
    let stage = &bench.stage;
    let directory = stage.file(UFTP_DIRECTORY);
    fs::create_dir_all(&directory)?;
    let link = stage.server.links()[0].interface().to_owned();
    let mut command = stage.server.command("uftpd");
    command
        .args(["-d", "-I", &link, "-D"])
        .arg(&directory)
        .arg("-P")
        .arg(stage.file("uftpd.pid"));
    let log = stage.file("uftpd.log");
    Ok(stage.server.spawn(&mut command, &Output::File(log))?)
}

/// uftp to one receiver, without encryption, as fast as the link takes.
fn uftp(bench: &Bench, file: &Path) -> Result<f64> {
    let stage = &bench.stage;
    let link = stage.client.links()[0].interface().to_owned();
    let to = stage.server.address().ipv4().to_string();
    let mut command = stage.client.command("uftp");
    command.args(["-q", "-R", "-1", "-I", &link, "-M", &to]);
    command.arg(file);
    let seconds = timed(bench, &stage.client, &mut command)?;
    let stored = stage
        .file(UFTP_DIRECTORY)
        .join(file.file_name().unwrap_or_default());
    fs::rename(stored, stage.file("copied"))?;
    Ok(seconds)
}

/// A server of SSH on the server's host, with keys of its own.
fn start_sshd(bench: &Bench) -> Result<Process> {
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
    let mut command = stage.server.command("/usr/sbin/sshd");
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
    Ok(server)
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
