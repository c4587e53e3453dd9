//! A pool of ordinary web servers behind `outlive balance`: the members' control streams are the test's.

mod member;

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output as Finished, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use e2e::arrange::run;
use e2e::loggers::key_file;
use e2e::{EVENT_TIMEOUT, Scene, binaries, pattern};
use lab::{Host, Output, Process, Signal};
use member::Member;
use serde_json::Value;

/// The address of the service; the balancer's own addresses end with 10.
const SERVICE_V4: &str = "10.0.0.50";
const SERVICE_V6: &str = "fd00::50";
const BALANCER_PORT: u16 = 7700;
/// Connections by which a spread over two members is seen.
const CONNECTION_COUNT: usize = 60;
/// A second at the rate of the client.
const DOWNLOAD_BYTES: usize = 6 << 20;

/// A web server with the service's address on its loopback.
struct WebServer {
    host: Host,
    _nginx: Process,
}

fn finished(command: &mut Command) -> Finished {
    command.stdin(Stdio::null()).output().expect("it runs")
}

impl WebServer {
    fn start(scene: &Scene, name: &str, number: u8) -> Self {
        let host = scene.lab.add_host_at(name, number).expect("a host");
        for interface in ["all", "lo", "eth0"] {
            for (key, value) in [("arp_ignore", "1"), ("arp_announce", "2")] {
                let key = format!("net.ipv4.conf.{interface}.{key}");
                host.sysctl(&key, value).expect("a kernel parameter");
            }
        }
        run(&host, &format!("ip address add {SERVICE_V4}/32 dev lo"));
        run(
            &host,
            &format!("ip address add {SERVICE_V6}/128 dev lo nodad"),
        );
        scene.write(&format!("{name}/site/file"), pattern(DOWNLOAD_BYTES));
        let directory = scene.directory().join(name);
        let at = directory.display();
        let config = format!(
            "user root;\npid {at}/nginx.pid;\nerror_log {at}/nginx.log;\ndaemon off;\nmaster_process off;\n\
             events {{ worker_connections 256; }}\nhttp {{\naccess_log off;\n\
             client_body_temp_path {at}/1;\nproxy_temp_path {at}/2;\nfastcgi_temp_path {at}/3;\n\
             uwsgi_temp_path {at}/4;\nscgi_temp_path {at}/5;\n\
             server {{\nlisten 80;\nlisten [::]:80;\nroot {at}/site;\n\
             location = /name {{ return 200 \"{name}\\n\"; }}\n}}\n}}\n"
        );
        let config = scene.write(&format!("{name}/nginx.conf"), config);
        let mut command = host.command("nginx");
        let early = directory.join("early.log");
        command.arg("-e").arg(early).arg("-c").arg(config);
        let output = Output::File(directory.join("nginx.said"));
        let nginx = host.spawn(&mut command, &output).expect("nginx starts");
        let connect = || std::net::TcpStream::connect((SERVICE_V4, 80));
        await_that("nginx listens", || {
            host.enter(connect).expect("it is on").is_ok()
        });
        Self {
            host,
            _nginx: nginx,
        }
    }
}

fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + EVENT_TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "not so in time: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A running `outlive balance` on the server's host of the scene.
struct Balancer<'a> {
    scene: &'a Scene,
    process: Option<Process>,
    keys: PathBuf,
    flags: Vec<String>,
    starts: usize,
}

impl<'a> Balancer<'a> {
    fn start(scene: &'a Scene, flags: &[&str]) -> Self {
        let mut balancer = Self {
            scene,
            process: None,
            keys: key_file(scene, "pool-keys"),
            flags: flags.iter().map(ToString::to_string).collect(),
            starts: 0,
        };
        balancer.start_process();
        balancer
    }

    fn members_connect_to(&self) -> SocketAddr {
        self.scene.ipv4(BALANCER_PORT)
    }

    fn start_process(&mut self) {
        self.starts += 1;
        let mut command = self.outlive();
        command.args(["balance", "--json", "--address-device", "eth0"]);
        command.args(["--address", &format!("{SERVICE_V4}:80")]);
        let listen = self.members_connect_to().to_string();
        command.args(["--listen", &listen]).arg("--key-file");
        command.arg(&self.keys).args(&self.flags);
        let output = Output::File(self.log_path());
        let process = self.scene.server.spawn(&mut command, &output);
        self.process = Some(process.expect("the balancer starts"));
        self.await_event("listening", |_| true);
    }

    fn outlive(&self) -> Command {
        let mut command = self
            .scene
            .server
            .command(&binaries::outlive().to_string_lossy());
        command.env("OUTLIVE_RUN_DIR", self.scene.run_dir());
        command
    }

    fn log_path(&self) -> PathBuf {
        let directory = self.scene.directory();
        directory.join(format!("balance-{}.said", self.starts))
    }

    fn events(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.log_path()).unwrap_or_default();
        let lines = text.lines();
        lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    fn await_event(&self, kind: &str, is_it: impl Fn(&Value) -> bool) {
        let found = || {
            let mut events = self.events().into_iter();
            events.any(|event| event["event"] == kind && is_it(&event))
        };
        let deadline = Instant::now() + EVENT_TIMEOUT;
        while !found() {
            let log = || fs::read_to_string(self.log_path()).unwrap_or_default();
            assert!(Instant::now() < deadline, "no {kind}: {}", log());
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn await_members(&self, names: &[&str]) {
        await_that("the table has the members", || {
            let status = self.status();
            let members = status["members"].as_array().cloned().unwrap_or_default();
            let mut found: Vec<String> = members
                .iter()
                .filter(|member| member["in_table"] == true)
                .filter_map(|member| Some(member["name"].as_str()?.to_owned()))
                .collect();
            found.sort();
            found == names
        });
    }

    fn status(&self) -> Value {
        let output = finished(self.outlive().args(["balance", "status", "--json"]));
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn kill(&mut self) {
        let process = self.process.take().expect("it runs");
        process.kill(Signal::KILL).expect("a signal");
    }
}

impl Drop for Balancer<'_> {
    fn drop(&mut self) {
        self.process = None;
        let output = finished(self.outlive().arg("clean"));
        assert!(output.status.success() || thread::panicking(), "{output:?}");
    }
}

/// The names of the members that answer so many connections.
fn names(scene: &Scene, url: &str, count: usize) -> Vec<String> {
    let urls = vec![url; count];
    let flags = ["-sS", "-H", "Connection: close", "--max-time", "100"];
    let output = scene.on_client("curl", &[&flags[..], &urls].concat());
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(str::to_owned).collect()
}

fn count(names: &[String], name: &str) -> usize {
    names.iter().filter(|found| *found == name).count()
}

/// A pause of this machine must not cost a member its lease.
const LONGEST_LEASE: [&str; 2] = ["--lease", "2s"];

fn spreads_and_declares_dead(label: &str, flags: &[&str], urls: &[&str], is_v6: bool) {
    let scene = Scene::new(label);
    let servers =
        [("web1", 21), ("web2", 22)].map(|(name, number)| WebServer::start(&scene, name, number));
    let balancer = Balancer::start(&scene, &[&LONGEST_LEASE, flags].concat());
    let at = balancer.members_connect_to();
    let members = servers
        .each_ref()
        .map(|server| Member::start(&server.host, &balancer.keys, at, is_v6));
    balancer.await_members(&["web1", "web2"]);
    for url in urls {
        let answers = names(&scene, url, CONNECTION_COUNT);
        assert_eq!(answers.len(), CONNECTION_COUNT);
        let shares = ["web1", "web2"].map(|name| count(&answers, name));
        let least = CONNECTION_COUNT / 10;
        assert!(shares.iter().all(|share| *share > least), "{shares:?}");
    }
    members[0].fall_silent();
    balancer.await_event("declared_dead", |event| event["member"] == "web1");
    balancer.await_members(&["web2"]);
    for url in urls {
        let answers = names(&scene, url, CONNECTION_COUNT);
        assert_eq!(count(&answers, "web2"), CONNECTION_COUNT);
    }
    await_that("the survivor has the table", || {
        let table = members[1].messages_so_far().table.expect("a table");
        table.members.len() == 1
    });
    members[1].leave();
    balancer.await_event("left", |event| event["member"] == "web2");
    balancer.await_members(&[]);
}

#[test]
fn silent_member_gets_no_more_connections() {
    let url = format!("http://{SERVICE_V4}/name");
    spreads_and_declares_dead("balance", &[], &[&url], false);
}

/// Members with IPv6 addresses serve an IPv4 address, too.
#[test]
fn silent_member_of_both_families_gets_no_more_connections() {
    let urls = [
        format!("http://[{SERVICE_V6}]/name"),
        format!("http://{SERVICE_V4}/name"),
    ];
    let address = format!("[{SERVICE_V6}]:80");
    let flags = ["--address", &address, "--hash", "mod"];
    let urls = urls.each_ref().map(String::as_str);
    spreads_and_declares_dead("balance-both", &flags, &urls, true);
}

#[test]
fn download_outlives_the_balancer() {
    let scene = Scene::new("balance-again");
    let server = WebServer::start(&scene, "web1", 21);
    let mut balancer = Balancer::start(&scene, &LONGEST_LEASE);
    let at = balancer.members_connect_to();
    let member = Member::start(&server.host, &balancer.keys, at, false);
    balancer.await_members(&["web1"]);
    let epoch = balancer.status()["epoch"].clone();
    let file = scene.directory().join("downloaded");
    let mut curl = scene.client.command("curl");
    curl.args(["-sS", "--limit-rate", "6M", "-o"]).arg(&file);
    curl.arg(format!("http://{SERVICE_V4}/file"));
    let curl = curl.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut curl = curl.expect("curl starts");
    await_that("the download has begun", || {
        fs::metadata(&file).is_ok_and(|file| file.len() > 0)
    });
    balancer.kill();
    balancer.start_process();
    assert!(curl.wait().expect("curl ends").success());
    assert!(fs::read(&file).expect("a file") == pattern(DOWNLOAD_BYTES));
    balancer.await_members(&["web1"]);
    assert_eq!(balancer.status()["epoch"], epoch, "the table is the same");
    assert_eq!(member.messages_so_far().refused, []);
}
