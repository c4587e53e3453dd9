//! Servers of a test, and clients that wait.

use std::{
    collections::HashMap,
    fs::File,
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use objects::PoolKey;
use objects::isn::Slot;
use objects::record::{
    HashName, MemberHash, MemberList, Record, StoreKey, StoredOptions, StoredTurn,
};
use rustix::process::{Pid, Signal, kill_process};
use store::{
    Completion, Failure, Operation, Outcome, Report, Settings, Store as _, StoreClient, Ticket,
};
use tempfile::TempDir;
use wire::{FlowKey, SeqNumber};

/// Far more than any answer needs.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

pub(crate) const POOL: PoolKey = PoolKey([1; 16]);

/// A server with a port and a directory of its own; the server ends with the test.
pub(crate) struct Server {
    command: Vec<String>,
    pub(crate) port: u16,
    directory: TempDir,
    child: Child,
}

impl Server {
    pub(crate) fn redis(options: &[&str]) -> Self {
        let directory = TempDir::new().unwrap();
        let port = free_port();
        let fixed = [
            "redis-server",
            "--save",
            "",
            "--bind",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--dir",
        ];
        let mut command: Vec<String> = fixed.map(str::to_owned).to_vec();
        command.push(directory.path().display().to_string());
        Self::start(command, options, port, directory)
    }

    pub(crate) fn memcached(options: &[&str]) -> Self {
        let port = free_port();
        let fixed = [
            "memcached",
            "-U",
            "0",
            "-l",
            "127.0.0.1",
            "-u",
            "nobody",
            "-p",
            &port.to_string(),
        ];
        let command = fixed.map(str::to_owned).to_vec();
        Self::start(command, options, port, TempDir::new().unwrap())
    }

    fn start(mut command: Vec<String>, options: &[&str], port: u16, directory: TempDir) -> Self {
        command.extend(options.iter().map(|option| (*option).to_owned()));
        let child = spawn(&command, log(&directory));
        let mut server = Self {
            command,
            port,
            directory,
            child,
        };
        server.wait_until_ready();
        server
    }

    /// Kills the server, and starts it anew at the same port.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.respawn();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn respawn(&mut self) {
        self.child = spawn(&self.command, log(&self.directory));
        self.wait_until_ready();
    }

    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    fn wait_until_ready(&mut self) {
        let until = Instant::now() + ANSWER_LIMIT;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            let log =
                || std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            let is_running = self.child.try_wait().unwrap().is_none() && Instant::now() < until;
            assert!(is_running, "{:?} does not start: {}", self.command, log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// An independent reader.
    pub(crate) fn reader(&self) -> redis::Connection {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap();
        let until = Instant::now() + ANSWER_LIMIT;
        // The server reads its file first.
        loop {
            let mut connection = client.get_connection().unwrap();
            match redis::cmd("PING").query::<String>(&mut connection) {
                Ok(_) => return connection,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        }
    }

    pub(crate) fn redis_client(&self) -> Client {
        self.client("redis://", "", Duration::from_secs(10))
    }

    pub(crate) fn memcached_client(&self) -> Client {
        self.client("memcached://", "", Duration::from_secs(10))
    }

    pub(crate) fn client(&self, scheme: &str, login: &str, time_limit: Duration) -> Client {
        let url = format!("{scheme}{login}127.0.0.1:{}", self.port);
        let settings = Settings {
            time_limit,
            connect_limit: Duration::from_secs(10),
            ..Settings::default()
        };
        Client::new(StoreClient::open(&url.parse().unwrap(), settings).unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn log(directory: &TempDir) -> PathBuf {
    directory.path().join("log")
}

fn spawn(command: &[String], log: PathBuf) -> Child {
    let log = File::options().create(true).append(true).open(log).unwrap();
    // If the test is killed, then the server ends, too.
    let mut child = Command::new("setpriv");
    child.args(["--pdeathsig", "KILL"]).args(command);
    child
        .stdin(Stdio::null())
        .stderr(log.try_clone().unwrap())
        .stdout(log);
    child.spawn().unwrap()
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

/// A client that waits for outcomes.
pub(crate) struct Client {
    pub(crate) store: StoreClient,
    results: HashMap<Ticket, Result<Outcome, Failure>>,
    pub(crate) changes: Vec<Report>,
}

impl Client {
    pub(crate) fn new(store: StoreClient) -> Self {
        Self {
            store,
            results: HashMap::new(),
            changes: Vec::new(),
        }
    }

    pub(crate) fn submit(&mut self, operation: Operation) -> Ticket {
        self.store.submit(operation).unwrap()
    }

    pub(crate) fn wait(&mut self, ticket: Ticket) -> Result<Outcome, Failure> {
        loop {
            if let Some(result) = self.results.remove(&ticket) {
                return result;
            }
            self.wait_for_report();
        }
    }

    /// The outcome, unless the test has it.
    pub(crate) fn wait_unless_taken(
        &mut self,
        ticket: Ticket,
        is_taken: bool,
    ) -> Option<Result<Outcome, Failure>> {
        (!is_taken).then(|| self.wait(ticket))
    }

    /// Connections that the store has accepted.
    pub(crate) fn store_connections(&self) -> u64 {
        self.store.statistics().connections
    }

    pub(crate) fn perform(&mut self, operation: Operation) -> Result<Outcome, Failure> {
        let ticket = self.submit(operation);
        self.wait(ticket)
    }

    /// The next connection after the changes so far.
    pub(crate) fn wait_until_connected(&mut self) -> bool {
        loop {
            let is_connected = |report: &Report| match report {
                Report::Connected { is_other_instance } => Some(*is_other_instance),
                _ => None,
            };
            if let Some(is_other_instance) = self.changes.iter().find_map(is_connected) {
                self.changes.clear();
                return is_other_instance;
            }
            self.wait_for_report();
        }
    }

    pub(crate) fn wait_until_lost(&mut self) -> Failure {
        loop {
            let failure = |report: &Report| match report {
                Report::Lost(failure) => Some(failure.clone()),
                _ => None,
            };
            if let Some(failure) = self.changes.iter().find_map(failure) {
                self.changes.clear();
                return failure;
            }
            self.wait_for_report();
        }
    }

    fn wait_for_report(&mut self) {
        self.store
            .wait(Instant::now() + ANSWER_LIMIT)
            .expect("a report");
        let mut reports = Vec::new();
        self.store.poll(&mut reports);
        for report in reports {
            match report {
                Report::Completed(Completion { ticket, result }) => {
                    drop(self.results.insert(ticket, result))
                }
                change => self.changes.push(change),
            }
        }
    }
}

pub(crate) fn flow(port: u16) -> FlowKey {
    FlowKey::new(([10, 0, 0, 1], port).into(), ([10, 0, 0, 10], 80).into())
}

pub(crate) fn hash(member: &str) -> HashName {
    HashName::new(flow(0).server(), MemberHash::of(member, &POOL))
}

pub(crate) fn key(member: &str, port: u16) -> StoreKey {
    StoreKey::new(hash(member), flow(port))
}

pub(crate) fn put(member: &str, port: u16, value: &[u8]) -> Operation {
    Operation::Put {
        key: key(member, port),
        value: value.to_vec(),
    }
}

pub(crate) fn get(members: &[&str], port: u16) -> Operation {
    Operation::Get {
        hashes: members.iter().map(|member| hash(member)).collect(),
        flow: flow(port),
    }
}

/// The values of a look-up.
pub(crate) fn values(outcome: Result<Outcome, Failure>) -> Vec<Vec<u8>> {
    match outcome {
        Ok(Outcome::Found(values)) => values.into_iter().map(|value| value.value).collect(),
        other => panic!("no look-up: {other:?}"),
    }
}

pub(crate) fn record(generation: u32) -> Record {
    Record {
        generation,
        owner: 1,
        client_isn: SeqNumber(1),
        server_isn: SeqNumber(2),
        slot: Slot::new(3),
        options: StoredOptions {
            window_scale: Some(7),
            segment_size: 1460,
            has_sack: true,
            has_timestamps: false,
        },
        turns: vec![StoredTurn {
            number: 0,
            request_start: SeqNumber(2),
            request: b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
            has_range: false,
            answer: None,
        }],
        inputs: None,
        chunks: None,
    }
}

/// The lists of members of two hours each, of which the second is now.
pub(crate) fn lists() -> [MemberList; 3] {
    let now = Duration::from_secs(1_800_000_000);
    MemberList::at(([10, 0, 0, 10], 80).into(), &POOL, now).around()
}

/// Members are in one list, in two lists, twice in a list, or in a list of which nobody asks.
pub(crate) fn check_lists(client: &mut Client) {
    let [before, now, behind] = lists();
    let read = |client: &mut Client| {
        client.perform(Operation::Members {
            lists: vec![before, now],
        })
    };
    assert_eq!(read(client), Ok(Outcome::Members(Vec::new())));
    let [web1, web2, web3] = ["web1", "web2", "web3"].map(|name| MemberHash::of(name, &POOL));
    for (list, member) in [
        (now, web1),
        (before, web2),
        (before, web1),
        (now, web1),
        (behind, web3),
    ] {
        let added = client.perform(Operation::AddMember { list, member });
        assert_eq!(added, Ok(Outcome::Stored));
    }
    let mut members = vec![web1, web2];
    members.sort_unstable();
    assert_eq!(read(client), Ok(Outcome::Members(members)));
}
