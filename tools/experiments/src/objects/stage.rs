//! The paper's machines: a client, a server, and a store.
//!
//! The client's packets reach the server directly, as in the paper: the balancer starts the member, and is not on the
//! way. The links have no rate: with the paper's 1 Gbit/s, all servers of today would be as fast with 16 KB.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::pool::{Pool, PoolHosts, WebServer};
use harness::redis::Redis;
use harness::task::{Interrupt, Programs};
use harness::testbed::Testbed;
use lab::{Host, Signal};

const SERVICE: &str = "paper-objects";
const STEP_TIMEOUT: Duration = Duration::from_secs(20);
/// Sizes of the objects, bytes. The name of an object is its size.
pub(super) const SIZES: [usize; 6] = [1, 1024, 2048, 4096, 8192, 16_384];
/// Clients of the paper, and how long they fetch in a run.
const CLIENTS: &str = "-c25";
const DURATION: &str = "-d1s";

/// How the state of responses is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// The server alone.
    Plain,
    /// In timestamps.
    Timestamps,
    /// In timestamps, and of long responses in Redis.
    Lazy,
    /// In Redis, before the response leaves: the client has no timestamps.
    Held,
}

impl Mode {
    pub(super) const ALL: [Self; 4] = [Self::Plain, Self::Timestamps, Self::Lazy, Self::Held];

    /// Ours, and in brackets the paper's.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Timestamps => "timestamps (TRODS-TS)",
            Self::Lazy => "lazy store",
            Self::Held => "deferred (TRODS-KV)",
        }
    }
}

/// The unmodified server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Server {
    /// lighttpd, one process: the paper's, figure 4.
    Lighttpd,
    /// nginx, two processes: as many as there are processors, as in figure 5.
    Nginx,
}

impl Server {
    pub(super) const ALL: [Self; 2] = [Self::Lighttpd, Self::Nginx];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Lighttpd => "lighttpd, one process (figure 4)",
            Self::Nginx => "nginx, two processes (figure 5)",
        }
    }
}

/// The lab.
pub(super) struct Stage {
    pub(super) client: Host,
    /// By the number of the server.
    hosts: [PoolHosts; 2],
    redis: Redis,
    _testbed: Testbed,
}

impl Stage {
    pub(super) fn build(programs: Programs, interrupt: Interrupt) -> Result<Self> {
        let place = std::env::temp_dir();
        let testbed = Testbed::build(
            "objects-paper",
            SERVICE,
            &place,
            programs,
            interrupt.clone(),
        )?;
        let root = testbed.file("www");
        fs::create_dir(&root)?;
        for size in SIZES {
            fs::write(root.join(size.to_string()), vec![b'1'; size])?;
        }
        let lab = &testbed.lab;
        let client = lab.add_host_at("client", 1)?;
        PoolHosts::forget_closed_connections(&client)?;
        let balancer = lab.add_host_at("balancer", 2)?;
        let store = lab.add_host_at("kv", 9)?;
        let hosts = |host, server| {
            let outlive = &testbed.programs.outlive;
            let members = vec![(host, server)];
            let directory = testbed.directory();
            PoolHosts::new(
                outlive,
                directory,
                interrupt.clone(),
                balancer.clone(),
                members,
            )
        };
        let hosts = [
            hosts(lab.add_host_at("lighttpd", 10)?, WebServer::Lighttpd)?,
            hosts(lab.add_host_at("nginx", 11)?, WebServer::Nginx)?,
        ];
        let redis = Redis::start(store, testbed.file("redis.log"), &interrupt)?;
        Ok(Self {
            client,
            hosts,
            redis,
            _testbed: testbed,
        })
    }

    /// Runs a client while the server runs in this mode.
    pub(super) fn with<T>(
        &self,
        server: Server,
        mode: Mode,
        run: impl FnOnce(SocketAddr) -> Result<T>,
    ) -> Result<T> {
        let hosts = &self.hosts[server as usize];
        if mode == Mode::Plain {
            let plain = hosts.start_plain(0, hosts.plain(0))?;
            let outcome = run(hosts.plain(0));
            plain.kill(Signal::TERM)?;
            ensure!(
                plain.wait_with_timeout(STEP_TIMEOUT)?.is_some(),
                "the server does not end"
            );
            return outcome;
        }
        let url = self.redis.url();
        let store = ["--store", &url];
        let has_store = matches!(mode, Mode::Lazy | Mode::Held);
        let pool = Pool::start(hosts, 1, if has_store { &store } else { &[] })?;
        if has_store {
            pool.await_each("store_connected")?;
        }
        let timestamps = |on: bool| {
            self.client
                .sysctl("net.ipv4.tcp_timestamps", if on { "1" } else { "0" })
        };
        timestamps(mode != Mode::Held)?;
        hosts.bypass_balancer(&self.client, Some(0))?;
        let outcome = run(hosts.service());
        hosts.bypass_balancer(&self.client, None)?;
        timestamps(true)?;
        pool.stop()?;
        outcome
    }

    /// Fetches of many clients, a connection each.
    pub(super) fn requests_per_second(&self, address: SocketAddr, size: usize) -> Result<f64> {
        let url = format!("http://{address}/{size}");
        let words = ["-t1", CLIENTS, DURATION, "-H", "Connection: close", &url];
        let output = self.client.command("wrk").args(words).output()?;
        ensure!(output.status.success(), "wrk: {output:?}");
        harness::wrk::requests_per_second(&String::from_utf8_lossy(&output.stdout))
    }

    pub(super) fn stop(self) -> Result<()> {
        self.redis.stop()
    }
}
