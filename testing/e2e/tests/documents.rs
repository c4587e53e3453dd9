//! The commands of the README, run as printed: the lab's server has the address of the README.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use e2e::arrange::{run_words, wait_until};
use e2e::{EVENT_TIMEOUT, binaries};
use lab::{Host, Lab, Output, Pid, Process, Signal};
use serde_json::Value;

/// The address of the service in all documents.
const SERVICE_ADDRESS: [u8; 4] = [10, 0, 0, 10];

/// A line of the README's consoles: the prompt names the host.
#[derive(Debug, Clone)]
struct Line {
    prompt: String,
    command: String,
}

/// The lines below this heading. Spaces that align columns are no difference.
///
/// # Panics
/// When no console follows the heading.
fn console_below(heading: &str) -> Vec<Line> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = fs::read_to_string(path).expect("the README");
    let mut lines = text.lines().skip_while(|line| *line != heading).skip(1);
    lines.find(|line| *line == "```console").expect("a console");
    let console = lines.take_while(|line| *line != "```");
    let prompted = console.filter_map(|line| line.split_once("# "));
    prompted
        .map(|(prompt, command)| Line {
            prompt: prompt.to_owned(),
            command: command.split_whitespace().collect::<Vec<_>>().join(" "),
        })
        .collect()
}

/// The first line with this text.
fn line_with(lines: &[Line], text: &str) -> Line {
    let found = lines.iter().find(|line| line.command.contains(text));
    found
        .unwrap_or_else(|| panic!("no {text:?} in {lines:?}"))
        .clone()
}

/// A lab with a client and more hosts. Commands run in the lab's directory.
struct Stage {
    client: Host,
    lab: Lab,
}

impl Stage {
    fn new(label: &str) -> Self {
        let lab = Lab::new(label).expect("a lab needs root and iproute2");
        let client = lab.add_host_at("client", 1).expect("a client");
        Self { client, lab }
    }

    fn host(&self, name: &str, number: u8) -> Host {
        self.lab.add_host_at(name, number).expect("a host")
    }

    /// Runs a command that ends.
    fn run(&self, host: &Host, line: &Line) {
        let within = format!(
            "cd {} && {}",
            self.lab.directory().display(),
            found(&line.command)
        );
        run_words(host, &["sh", "-c", &within]);
    }

    /// Begins a command that goes on. On a machine that is busy with other tests a second is short: a slow logger is
    /// not lost.
    fn begin(&self, host: &Host, line: &Line) -> Service {
        let run_dir = self.lab.directory().join(format!("run-{}", host.name()));
        let said = run_dir.with_extension("said");
        let patient = line
            .command
            .replacen(" --logger ", " --logger-timeout 20s --logger ", 1)
            .replacen(" --listen ", " --lease 2s --listen ", 1);
        let script = format!("exec {}", found(&patient));
        let mut command = host.command("sh");
        command
            .args(["-c", &script])
            .current_dir(self.lab.directory());
        command.env("OUTLIVE_RUN_DIR", &run_dir);
        let output = Output::File(said.clone());
        let process = host.spawn(&mut command, &output).expect("a shell");
        Service {
            host: host.clone(),
            process,
            run_dir,
            said,
        }
    }

    /// A connection to the service. Reads end after [`EVENT_TIMEOUT`].
    fn connect(&self, port: u16) -> TcpStream {
        let address = SocketAddr::from((SERVICE_ADDRESS, port));
        let connect = || TcpStream::connect_timeout(&address, EVENT_TIMEOUT);
        let stream = self.client.enter(connect).expect("the client is on");
        let stream = stream.unwrap_or_else(|error| panic!("connect to {address}: {error}"));
        stream
            .set_read_timeout(Some(EVENT_TIMEOUT))
            .expect("a timeout");
        stream
    }
}

/// `outlive` is not in the path of this machine.
fn found(command: &str) -> String {
    let outlive = binaries::outlive();
    let directory = outlive.parent().expect("a directory");
    command.replacen("outlive ", &format!("{}/outlive ", directory.display()), 1)
}

/// A long-running command on a host.
struct Service {
    host: Host,
    process: Process,
    run_dir: PathBuf,
    said: PathBuf,
}

impl Service {
    fn log(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    #[track_caller]
    fn await_message(&self, text: &str) {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        while !self.log().contains(text) {
            assert!(
                Instant::now() < deadline,
                "never {text:?} of:\n{}",
                self.log()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn status(&self) -> Value {
        let mut command = self.host.command(&binaries::outlive().to_string_lossy());
        command
            .args(["status", "--json"])
            .env("OUTLIVE_RUN_DIR", &self.run_dir);
        let output = command.output().expect("outlive status");
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    fn kill_server(&self) {
        let pid = self.status()["server_pid"]
            .as_i64()
            .and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.and_then(Pid::from_raw).expect("a server");
        lab::signal(pid, Signal::KILL).expect("the server lived");
    }

    /// Hosts of a lab share a kernel: removes programs and files that the loss of power would have taken.
    fn remove_after_power_off(&self) {
        self.host.power_on().expect("power on");
        let outlive = binaries::outlive();
        let mut command = self.host.command(&outlive.to_string_lossy());
        command.args(["clean", "--kill", "10.0.0.10-80"]);
        let status = command.env("OUTLIVE_RUN_DIR", &self.run_dir).status();
        assert!(status.expect("outlive clean").success());
    }

    /// Stops the command as an operator does.
    fn stop(self) {
        self.process.kill(Signal::TERM).expect("the command lived");
        let status = self
            .process
            .wait_with_timeout(EVENT_TIMEOUT)
            .expect("a wait");
        assert!(
            status.is_some_and(|status| status.success()),
            "{status:?}: {}",
            self.log()
        );
    }
}

/// Asks for the first page on a connection that stays open, and returns the page.
fn page(connection: &mut BufReader<TcpStream>) -> Vec<u8> {
    let request = b"GET /index.nginx-debian.html HTTP/1.1\r\nHost: 10.0.0.10\r\n\r\n";
    connection
        .get_mut()
        .write_all(request)
        .expect("a request leaves");
    let (mut length, mut header) = (0, String::new());
    loop {
        header.clear();
        let taken = connection.read_line(&mut header).expect("a header");
        assert_ne!(taken, 0, "the connection has ended");
        if let Some(number) = header.strip_prefix("Content-Length: ") {
            length = number.trim().parse().expect("a length");
        }
        if header == "\r\n" {
            break;
        }
    }
    assert_ne!(length, 0, "the page is empty");
    let mut body = vec![0; length];
    connection.read_exact(&mut body).expect("the page");
    body
}

fn ask_redis(connection: &mut BufReader<TcpStream>, command: &str) -> String {
    writeln!(connection.get_mut(), "{command}\r").expect("a command leaves");
    let mut answer = String::new();
    connection.read_line(&mut answer).expect("an answer");
    answer.trim_end().to_owned()
}

/// Asserts that a connection gets the same page before and after a death.
fn page_outlives(stage: &Stage, death: impl FnOnce(), lives_again: impl FnOnce()) {
    let mut connection = BufReader::new(stage.connect(80));
    let before = page(&mut connection);
    death();
    lives_again();
    assert_eq!(page(&mut connection), before);
}

#[test]
fn readme_first_command_masks_kill() {
    let stage = Stage::new("readme");
    let server = stage.host("server", 10);
    let line = line_with(&console_below("# outlive"), "outlive serve");
    let serve = stage.begin(&server, &line);
    serve.await_message("protecting connections to 10.0.0.10:80");
    page_outlives(
        &stage,
        || serve.kill_server(),
        || serve.await_message(": 1 connection recovered, 0 reset"),
    );
    serve.stop();
}

#[test]
fn readme_logger_commands_mask_kill() {
    let stage = Stage::new("readmelog");
    let (machine, server) = (stage.host("logger", 9), stage.host("server", 10));
    let lines = console_below("### With a logger");
    stage.run(&machine, &line_with(&lines, "outlive key"));
    let logger = stage.begin(&machine, &line_with(&lines, "outlive logger"));
    let serve = stage.begin(&server, &line_with(&lines, "outlive serve"));
    serve.await_message("protecting connections to 10.0.0.10:80");
    wait_until("the logger is in use", || {
        serve.status()["logger_up"] == Value::Bool(true)
    });
    page_outlives(
        &stage,
        || serve.kill_server(),
        || serve.await_message(": 1 connection recovered, 0 reset"),
    );
    serve.stop();
    logger.stop();
}

#[test]
fn readme_two_host_commands_mask_power_off() {
    let stage = Stage::new("readmetwo");
    let machine = stage.host("logger", 9);
    let (a, b) = (stage.host("a", 11), stage.host("b", 12));
    let keys = line_with(&console_below("### With a logger"), "outlive key");
    stage.run(&machine, &keys);
    let logger = line_with(&console_below("### With a logger"), "outlive logger");
    let logger = stage.begin(&machine, &logger);
    let lines = console_below("### On two hosts");
    let of = |prompt: &str| {
        lines
            .iter()
            .find(|line| line.prompt == prompt)
            .expect("a line")
    };
    let serve = stage.begin(&a, of("a"));
    serve.await_message("protecting connections to 10.0.0.10:80");
    let standby = stage.begin(&b, of("b"));
    wait_until("the standby is present", || {
        serve.status()["standby_present"] == Value::Bool(true)
    });
    let off = || a.power_off().expect("power off");
    page_outlives(&stage, off, || {
        standby.await_message(": 1 connection recovered, 0 reset")
    });
    standby.stop();
    logger.stop();
    serve.remove_after_power_off();
}

#[test]
fn readme_redis_command_keeps_count_over_kill() {
    let stage = Stage::new("readmeredis");
    let server = stage.host("server", 10);
    let line = line_with(&console_below("### A server with state"), "redis-server");
    let serve = stage.begin(&server, &line);
    serve.await_message("protecting connections to 10.0.0.10:6379");
    wait_until("redis listens", || serve.log().contains("Ready to accept"));
    let mut connection = BufReader::new(stage.connect(6379));
    assert_eq!(ask_redis(&mut connection, "INCR visits"), ":1");
    serve.kill_server();
    assert_eq!(ask_redis(&mut connection, "INCR visits"), ":2");
    serve.stop();
}
