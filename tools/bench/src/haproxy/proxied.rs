//! HAProxy with two nginx.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lab::{Host, Output, Process};

use super::kill_nginx;
use crate::Bench;
use crate::stage::PORT;
use crate::subject::nginx_command;
use harness::nginx;

/// Time after which HAProxy has found both servers well.
pub(crate) const HEALTH_CHECK_TIME: Duration = Duration::from_millis(500);

/// The hosts: HAProxy's and two of nginx.
pub(super) fn hosts(bench: &Bench) -> Result<[Host; 3]> {
    let lab = &bench.stage.testbed.lab;
    Ok([
        lab.add_host_at("proxy", 20)?,
        lab.add_host_at("web1", 31)?,
        lab.add_host_at("web2", 32)?,
    ])
}

/// The running three.
pub(super) struct Proxied<'a> {
    bench: &'a Bench,
    hosts: &'a [Host; 3],
    webs: [Option<Process>; 2],
    _proxy: Process,
}

impl<'a> Proxied<'a> {
    pub(super) fn start(bench: &'a Bench, hosts: &'a [Host; 3]) -> Result<Self> {
        let testbed = &bench.stage.testbed;
        let [proxy, webs @ ..] = hosts;
        prepare(bench, webs)?;
        let started = [start_nginx(bench, &webs[0])?, start_nginx(bench, &webs[1])?];
        let path = testbed.file("haproxy.cfg");
        fs::write(&path, configuration(address(proxy), webs, ""))?;
        let process = start_haproxy(bench, proxy, &path)?;
        std::thread::sleep(HEALTH_CHECK_TIME);
        Ok(Self {
            bench,
            hosts,
            webs: started.map(Some),
            _proxy: process,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        address(&self.hosts[0])
    }

    /// Kills an nginx and restarts nginx on that host at once.
    pub(super) fn kill(&mut self, which: usize) -> Result<Instant> {
        let host = &self.hosts[1 + which];
        let at = Instant::now();
        kill_nginx(host)?;
        // The next nginx takes the name.
        drop(self.webs[which].take());
        self.webs[which] = Some(start_nginx(self.bench, host)?);
        Ok(at)
    }
}

/// Starts HAProxy, and returns when HAProxy listens.
pub(crate) fn start_haproxy(bench: &Bench, host: &Host, configuration: &Path) -> Result<Process> {
    let testbed = &bench.stage.testbed;
    let mut command = host.command("haproxy");
    command.args(["-db", "-f"]).arg(configuration);
    let log = testbed.file(&format!("{}-haproxy.log", host.name()));
    let process = host
        .spawn(&mut command, &Output::File(log.clone()))
        .context("is haproxy there? `make setup` installs it")?;
    testbed.await_listener(host, PORT, &process, &log)?;
    Ok(process)
}

/// Writes the configuration of each nginx.
pub(crate) fn prepare(bench: &Bench, webs: &[Host]) -> Result<()> {
    let testbed = &bench.stage.testbed;
    for web in webs {
        let directory = testbed.file(web.name());
        if !directory.exists() {
            fs::create_dir(&directory)?;
            symlink(testbed.file("www"), directory.join("www"))?;
            let text = nginx::configuration(&directory, &[address(web)]);
            fs::write(directory.join("nginx.conf"), text)?;
        }
    }
    Ok(())
}

/// Starts nginx, and returns when nginx listens.
pub(crate) fn start_nginx(bench: &Bench, host: &Host) -> Result<Process> {
    let testbed = &bench.stage.testbed;
    let directory = testbed.file(host.name());
    let [program, arguments @ ..] = &nginx_command(&directory)[..] else {
        unreachable!("it has a name");
    };
    let mut command = host.command(&program.to_string_lossy());
    command.args(arguments);
    let log = directory.join("output");
    let process = host.spawn(&mut command, &Output::File(log.clone()))?;
    testbed.await_listener(host, PORT, &process, &log)?;
    Ok(process)
}

fn address(host: &Host) -> SocketAddr {
    SocketAddr::new(host.address().ipv4().into(), PORT)
}

/// As quick to notice, and as ready to retry, as possible (configuration.txt of HAProxy 2.6: `retry-on`, `observe`,
/// `on-error`, `fastinter`). A second try at the same server waits as long as `timeout connect`. `more` are
/// options of all servers.
pub(crate) fn configuration(listen: SocketAddr, webs: &[Host], more: &str) -> String {
    let mut text = format!(
        "global
    nbthread 2
    maxconn 4000
defaults
    mode http
    timeout connect 100ms
    timeout client 60s
    timeout server 60s
    timeout check 200ms
    option redispatch 1
    retries 5
    retry-on all-retryable-errors
    option splice-auto
    http-reuse always
frontend clients
    bind {listen}
    default_backend webs
backend webs
    balance leastconn
    option httpchk GET /small
    default-server check inter 100ms fastinter 20ms downinter 20ms fall 1 rise 1 observe layer4 error-limit 1 on-error mark-down {more}
"
    );
    for web in webs {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    server {} {}", web.name(), address(web));
    }
    text
}
