//! The paper's three machines and Ethernets.
//!
//! An Ethernet of 1999 is a single medium: all hosts together send at most at the medium's rate, and acknowledgements
//! compete with the data. So each of the paper's Ethernets is a shared medium of the lab here, and each interface
//! sends at most at that rate. The lab has no collisions, and so the lab's Ethernets carry more than real Ethernets
//! did.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Address, Direction, Host, Output, Process, Signal};
use rustix::process::kill_process;

use super::experiment::{Layout, Strategy};
use harness::events::Events;
use harness::task::{Interrupt, Programs};
use harness::testbed::Testbed;

/// The transfer of the paper: 1 MB.
pub(super) const UPLOAD_BYTES: u32 = 1 << 20;
/// The service.
pub(super) const PORT: u16 = 80;
const SERVICE: &str = "paper";
/// Longest time of a step that is not measured.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);

/// The lab.
pub(super) struct Stage {
    pub(super) client: Host,
    server: Host,
    logger: Host,
    pub(super) interrupt: Interrupt,
    testbed: Testbed,
}

impl Stage {
    pub(super) fn build(layout: Layout, programs: Programs, interrupt: Interrupt) -> Result<Self> {
        let place = std::env::temp_dir();
        let testbed = Testbed::build("paper", SERVICE, &place, programs, interrupt.clone())?;
        let lab = &testbed.lab;
        let rates = layout.rates();
        for (subnet, rate) in rates {
            lab.share(*subnet, *rate)?;
        }
        let [client, server, logger] = [1, 2, 3].map(|number| {
            let subnet = if number == 3 { layout.log_subnet() } else { 0 };
            Address::new(subnet, number)
        });
        let client = lab.add_host_in("client", client?)?;
        let server = lab.add_host_in("server", server?)?;
        let logger = lab.add_host_in("logger", logger?)?;
        if layout.log_subnet() != 0 {
            lab.add_link(&server, "eth1", Address::new(layout.log_subnet(), 2)?)?;
        }
        for host in [&client, &server, &logger] {
            // A run must not use the path metrics of the run before.
            host.sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
            // The paper's congestion control, near enough, and on every machine the same.
            host.sysctl("net.ipv4.tcp_congestion_control", "reno")?;
            for link in host.links() {
                let subnet = link.address().subnet();
                let rate = rates.iter().find(|(of, _)| *of == subnet);
                let rate = rate.context("a network without a rate")?.1;
                link.adjust(&Direction::BOTH, |link| link.rate(rate))?;
            }
        }
        Ok(Self {
            client,
            server,
            logger,
            interrupt,
            testbed,
        })
    }

    /// The service's address.
    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.server.address().ipv4().into(), PORT)
    }

    /// Starts a logger on the logger's host; with `each_frame` the logger acknowledges every frame.
    pub(super) fn start_logger(&self, each_frame: bool) -> Result<Process> {
        let more: &[&str] = if each_frame {
            &["--ack-each-frame"]
        } else {
            &[]
        };
        self.testbed.start_logger(&self.logger, more)
    }

    /// Starts the server that discards all input, protected by the strategy.
    pub(super) fn start_server(&self, strategy: Strategy, with: &Protection) -> Result<Server> {
        let address = self.address().to_string();
        let Programs {
            outlive,
            reference_server,
        } = &self.testbed.programs;
        let server = reference_server.to_string_lossy().into_owned();
        let mut sink = vec![server, "sink".to_owned(), address.clone()];
        if let Some(bytes) = strategy.receive_buffer() {
            sink.extend(["--receive-buffer".to_owned(), bytes.to_string()]);
        }
        let mut command = match with {
            Protection::None => self.server.command(&sink.remove(0)),
            protection => {
                let mut command = self.server.command(&outlive.to_string_lossy());
                command.args(["serve", "--json", "--name", SERVICE, "--address", &address]);
                command.arg("--run-dir").arg(self.testbed.directory());
                if let (Protection::Logger, Some(ack)) = (protection, strategy.ack()) {
                    command.args(self.testbed.logger_arguments(&self.logger));
                    command.args(["--ack", ack]);
                }
                command.arg("--");
                command
            }
        };
        let log = self.testbed.file("serve.log");
        let mut events = Events::in_file(log.clone())?;
        let output = Output::File(log.clone());
        let process = self.server.spawn(command.args(&sink), &output)?;
        self.testbed
            .await_listener(&self.server, PORT, &process, &log)?;
        if *with != Protection::None {
            events.wait_for("protecting", STEP_TIMEOUT, &self.interrupt)?;
        }
        Ok(Server { process, events })
    }

    /// Connects the client. `limit` is the timeout of each call.
    pub(super) fn connect(&self, limit: Duration) -> Result<TcpStream> {
        let address = self.address();
        let stream = self
            .client
            .enter(|| TcpStream::connect_timeout(&address, limit))??;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(stream)
    }

    /// Waits until all data of the client is sent and acknowledged.
    pub(super) fn await_acknowledged(&self, stream: &TcpStream, limit: Duration) -> Result<()> {
        let port = stream.local_addr()?.port();
        let deadline = Instant::now() + limit;
        loop {
            match self.client.enter(|| unacknowledged(port))? {
                Some(0) | None => return Ok(()),
                Some(bytes) => ensure!(
                    Instant::now() < deadline,
                    "{bytes} bytes are not acknowledged"
                ),
            }
            self.interrupt.check()?;
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Removes hosts, processes and files.
    pub(super) fn remove(self) -> Result<()> {
        self.testbed.remove()
    }
}

/// Sends the paper's upload at full speed.
pub(super) fn send(stream: &mut TcpStream) -> Result<()> {
    let chunk = [b'x'; 8192];
    for _ in 0..UPLOAD_BYTES as usize / chunk.len() {
        stream.write_all(&chunk)?;
    }
    Ok(())
}

/// Ends the upload, and reads the server's count of bytes.
pub(super) fn finish(mut stream: &TcpStream) -> Result<()> {
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(
        answer == UPLOAD_BYTES.to_string(),
        "the server got {answer:?} bytes"
    );
    Ok(())
}

/// Bytes in the send queue of the socket at that port, on the calling thread's host. `None` when the socket is gone,
/// as happens after the acknowledgement of the last byte.
fn unacknowledged(port: u16) -> Option<u64> {
    let table = fs::read_to_string("/proc/thread-self/net/tcp").ok()?;
    let local = format!(":{port:04X}");
    let line = table.lines().find(|line| {
        let address = line.split_ascii_whitespace().nth(1);
        address.is_some_and(|address| address.ends_with(&local))
    })?;
    let queues = line.split_ascii_whitespace().nth(4)?;
    u64::from_str_radix(queues.split(':').next()?, 16).ok()
}

/// Who keeps the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protection {
    None,
    /// A logger on the server's host, as without `--logger`.
    Local,
    /// The logger's host.
    Logger,
}

/// A running server, or `serve`.
pub(super) struct Server {
    process: Process,
    events: Events,
}

impl Server {
    /// Kills the server and waits until the server serves again.
    pub(super) fn kill(&mut self, interrupt: &Interrupt) -> Result<serde_json::Value> {
        kill_process(self.events.server_pid()?, Signal::KILL)?;
        self.events.wait_for("serving", STEP_TIMEOUT, interrupt)
    }

    /// Stops the server in any state.
    pub(super) fn stop(self) -> Result<()> {
        self.process.kill(Signal::TERM)?;
        let ended = self.process.wait_with_timeout(STEP_TIMEOUT)?;
        ensure!(ended.is_some(), "the server does not end on SIGTERM");
        Ok(())
    }
}
