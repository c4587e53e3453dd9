//! Proxies on the balancer's host, in front of the same servers without protection.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::nginx;
use harness::pool::PoolHosts;
use lab::{Host, Output, Process, Signal};

use super::MEMBER_COUNT;
use crate::Bench;
use crate::haproxy::proxied::{HEALTH_CHECK_TIME, configuration, start_haproxy};
use crate::stage::PORT;

const STEP_TIMEOUT: Duration = Duration::from_secs(20);
/// Otherwise a client would wait for `timeout server`, a minute, until the end of its connection.
const END_OF_DEAD: &str = "on-marked-down shutdown-sessions";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proxy {
    Haproxy,
    Nginx,
}

impl Proxy {
    /// The set-up, in words.
    pub(super) fn how(self) -> &'static str {
        match self {
            Self::Haproxy => {
                "HAProxy with mode http, option redispatch 1, retries 5, retry-on all-retryable-errors, checks every \
                 100 ms with fall 1, and on-marked-down shutdown-sessions"
            }
            Self::Nginx => {
                "nginx as a proxy with proxy_next_upstream error timeout invalid_header http_500 http_502 http_503 \
                 http_504, proxy_read_timeout 1s and proxy_buffering on (a response that the proxy has as a whole \
                 before the power-off would not break)"
            }
        }
    }

    /// Starts the proxy, and returns when the proxy serves.
    fn start(self, bench: &Bench, hosts: &PoolHosts) -> Result<Process> {
        let balancer = hosts.balancer();
        match self {
            Self::Haproxy => {
                let members: Vec<Host> = (0..MEMBER_COUNT).map(|m| hosts.host(m).clone()).collect();
                let path = bench.stage.file("rival-haproxy.cfg");
                fs::write(&path, configuration(at(balancer), &members, END_OF_DEAD))?;
                let process = start_haproxy(bench, balancer, &path)?;
                thread::sleep(HEALTH_CHECK_TIME);
                Ok(process)
            }
            Self::Nginx => {
                let members: Vec<SocketAddr> = (0..MEMBER_COUNT).map(|m| hosts.plain(m)).collect();
                let directory = bench.stage.file("rival-nginx");
                fs::create_dir_all(&directory)?;
                let path = directory.join("nginx.conf");
                fs::write(&path, nginx::proxy(&directory, at(balancer), &members))?;
                let mut command = balancer.command("nginx");
                command.args(["-g", "daemon off;", "-c"]).arg(path);
                let log = directory.join("output");
                let process = balancer.spawn(&mut command, &Output::File(log.clone()))?;
                let testbed = &bench.stage.testbed;
                testbed.await_listener(balancer, PORT, &process, &log)?;
                Ok(process)
            }
        }
    }
}

/// A running proxy with servers.
pub(super) struct Proxied<'a> {
    hosts: &'a PoolHosts,
    servers: Vec<Process>,
    proxy: Process,
}

impl<'a> Proxied<'a> {
    pub(super) fn start(bench: &Bench, hosts: &'a PoolHosts, proxy: Proxy) -> Result<Self> {
        let servers =
            (0..MEMBER_COUNT).map(|member| hosts.start_plain(member, hosts.plain(member)));
        let servers = servers.collect::<Result<_>>()?;
        let proxy = proxy.start(bench, hosts)?;
        Ok(Self {
            hosts,
            servers,
            proxy,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        at(self.hosts.balancer())
    }

    /// Ends everything. All hosts have power afterwards.
    pub(super) fn stop(self) -> Result<()> {
        self.proxy.kill(Signal::TERM)?;
        let ended = self.proxy.wait_with_timeout(STEP_TIMEOUT)?;
        ensure!(ended.is_some(), "the proxy does not end");
        for (member, server) in self.servers.iter().enumerate() {
            self.hosts.stop_plain(member, server)?;
        }
        Ok(())
    }
}

fn at(host: &Host) -> SocketAddr {
    SocketAddr::new(host.address().ipv4().into(), PORT)
}
