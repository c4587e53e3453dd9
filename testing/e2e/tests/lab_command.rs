//! `outlive lab`: hosts, and faults by hand.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use e2e::arrange::wait_until;
use e2e::binaries::outlive;

/// A lab made by commands, in a directory of its own, taken down at the end.
struct ByHand {
    labs: tempfile::TempDir,
}

impl ByHand {
    fn up(arguments: &[&str]) -> Self {
        let labs = tempfile::Builder::new().prefix("olv-labs-").tempdir();
        let by_hand = Self {
            labs: labs.expect("a temporary directory"),
        };
        by_hand.done("up", arguments);
        by_hand
    }

    fn run(&self, verb: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(outlive());
        command
            .args(["lab", verb, "--lab-dir"])
            .arg(self.labs.path());
        command.args(arguments).output().expect("outlive runs")
    }

    /// Runs a verb that must succeed, and returns the output.
    fn done(&self, verb: &str, arguments: &[&str]) -> String {
        let output = self.run(verb, arguments);
        assert!(output.status.success(), "{verb} {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// The exit status of a command on a host.
    fn exec(&self, host: &str, command: &[&str]) -> Option<i32> {
        let arguments = [&[host, "--"], command].concat();
        self.run("exec", &arguments).status.code()
    }

    /// Whether the client gets an answer from the server's port 80.
    fn answers(&self) -> bool {
        let curl = ["curl", "-s", "--max-time", "1", "http://10.0.0.1/"];
        self.exec("client", &curl) == Some(0)
    }

    /// Starts a command on the server that stays when the shell is gone.
    fn start(&self, command: &str) {
        let shell = format!("cd / && {command} >/dev/null 2>&1 &");
        assert_eq!(self.exec("server", &["sh", "-c", &shell]), Some(0));
    }

    fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.done("status", &["--json"])).expect("JSON")
    }

    /// The names of the lab's namespaces, with the switch's namespace.
    fn namespaces(&self) -> Vec<PathBuf> {
        let status = self.status();
        let hosts = status["hosts"].as_array().expect("hosts").iter();
        let names = hosts.map(|host| host["namespace"].as_str().expect("a name").to_owned());
        let mut names: Vec<_> = names.collect();
        let prefix = names[0].rsplit_once('-').expect("a prefix").0;
        names.push(format!("{prefix}-switch"));
        names
            .iter()
            .map(|name| Path::new("/run/netns").join(name))
            .collect()
    }

    fn directory(&self) -> PathBuf {
        self.labs.path().join("lab")
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        // The lab may be down already.
        self.run("down", &[]);
    }
}

// By the full path: launchers of version managers would be other programs, and slow.
const WEB_SERVER_COMMAND: &str = "/usr/bin/python3 -m http.server 80";

#[test]
fn hosts_are_broken_and_healed() {
    let lab = ByHand::up(&[]);
    lab.start(WEB_SERVER_COMMAND);
    wait_until("the server answers", || lab.answers());

    lab.done("cut", &["client", "--one-way", "to-host"]);
    assert!(!lab.answers());
    lab.done("heal", &["client"]);
    wait_until("the client hears again", || lab.answers());
    lab.done("cut", &["server"]);
    assert!(!lab.answers());
    lab.done("heal", &["server"]);
    wait_until("the server is reached again", || lab.answers());

    lab.done("loss", &["client", "100", "--seed", "7"]);
    assert!(!lab.answers());
    lab.done("rate", &["client", "10Mbit"]);
    lab.done("delay", &["client", "3ms", "--one-way", "from-host"]);
    lab.done("loss", &["client", "0"]);
    let link = &lab.status()["hosts"][2]["links"][0];
    assert_eq!(link["to_host"]["rate"], 10_000_000);
    assert_eq!(link["from_host"]["delay_microseconds"], 3000);
    assert_eq!(link["to_host"]["delay_microseconds"], 0);
    wait_until("nothing is lost any more", || lab.answers());
    lab.done("rate", &["client", "none"]);
    lab.done("delay", &["client", "0"]);

    let killed = lab.done("kill", &["server", "python3", "--json"]);
    let killed: Vec<i32> = serde_json::from_str(&killed).expect("JSON");
    assert_eq!(killed.len(), 1);
    wait_until("it is dead", || !lab.answers());
    let none = lab.run("kill", &["server", "python3", "--signal", "TERM"]);
    assert_eq!(none.status.code(), Some(64), "{none:?}");

    lab.start(WEB_SERVER_COMMAND);
    wait_until("the second server answers", || lab.answers());
    lab.done("power-off", &["server"]);
    assert!(!lab.answers());
    assert_eq!(lab.exec("server", &["true"]), Some(125), "it is off");
    lab.done("power-on", &["server"]);
    assert!(!lab.answers(), "it starts empty");
    lab.start(WEB_SERVER_COMMAND);
    wait_until("the third server answers", || lab.answers());
}

#[test]
fn command_keeps_exit_status() {
    let lab = ByHand::up(&["--hosts", "one,two"]);
    assert_eq!(lab.exec("one", &["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(lab.exec("two", &["no-such-command"]), Some(127));
    assert_eq!(lab.exec("two", &["/etc"]), Some(126));
    assert_eq!(lab.exec("three", &["true"]), Some(125));
    let run_dir = lab.done("exec", &["two", "--", "sh", "-c", "echo $OUTLIVE_RUN_DIR"]);
    assert_eq!(
        Path::new(run_dir.trim_end()),
        lab.directory().join("hosts/two")
    );
    // No lab of that name is the same for each verb, but exec.
    assert_eq!(
        lab.run("status", &["--name", "other"]).status.code(),
        Some(64)
    );
    let exec = lab.run("exec", &["one", "--name", "other", "--", "true"]);
    assert_eq!(exec.status.code(), Some(125));
    let absent = lab.run("kill", &["three", "1", "--json"]);
    assert_eq!(absent.status.code(), Some(64), "{absent:?}");
    let error: serde_json::Value = serde_json::from_slice(&absent.stderr).expect("JSON");
    assert_eq!(error["code"], "lab_refuses", "{error}");
    let again = lab.run("up", &[]);
    assert_eq!(again.status.code(), Some(64), "there is one already");
    assert_eq!(lab.exec("one", &["true"]), Some(0), "and it is unharmed");
}

#[test]
fn layouts_differ() {
    let addresses = |lab: &ByHand| {
        let status = lab.status();
        let hosts = status["hosts"].as_array().expect("hosts").clone();
        let of = |host: &serde_json::Value| host["links"].as_array().expect("links").clone();
        let links = hosts.iter().flat_map(of);
        let shown = links.map(|link| link["ipv4"].as_str().expect("an address").to_owned());
        shown.collect::<Vec<_>>().join(" ")
    };
    let lab = ByHand::up(&["--layout", "separate", "--rate", "100Mbit"]);
    assert_eq!(addresses(&lab), "10.0.0.1 10.0.1.1 10.0.1.2 10.0.0.3");
    assert_eq!(
        lab.status()["hosts"][0]["links"][1]["to_host"]["rate"],
        100_000_000
    );
    let reaches = |to: &str| {
        let script = format!("import socket; socket.create_connection(('{to}', 9), 1)");
        let output = lab.run("exec", &["client", "--", "/usr/bin/python3", "-c", &script]);
        // Who is there refuses; who is not there cannot be asked.
        String::from_utf8_lossy(&output.stderr).contains("ConnectionRefused")
    };
    wait_until("the client reaches the server", || reaches("10.0.0.1"));
    assert!(
        !reaches("10.0.1.2"),
        "clients do not see the loggers' switch"
    );
    drop(lab);
    let lab = ByHand::up(&[
        "--layout",
        "shared",
        "--rate",
        "8Mbit",
        "--hosts",
        "server,client",
    ]);
    lab.start(WEB_SERVER_COMMAND);
    wait_until("the server answers", || lab.answers());
    let file = lab.directory().join("half-a-megabyte");
    fs::write(&file, vec![0; 500_000]).expect("a file");
    let url = format!("http://10.0.0.1{}", file.display());
    let began = Instant::now();
    assert_eq!(
        lab.exec("client", &["curl", "-s", "-o", "/dev/null", &url]),
        Some(0)
    );
    // Half a second for the bytes alone.
    assert!(began.elapsed() > Duration::from_millis(500));
}

#[test]
fn down_leaves_nothing() {
    let lab = ByHand::up(&[]);
    lab.start("sleep 1000");
    let (namespaces, directory) = (lab.namespaces(), lab.directory());
    assert!(
        namespaces.iter().all(|path| path.exists()),
        "{namespaces:?}"
    );
    lab.done("down", &[]);
    assert!(!namespaces.iter().any(|path| path.exists()));
    assert!(!directory.exists());
    assert_eq!(
        lab.run("down", &[]).status.code(),
        Some(64),
        "there is none"
    );
}

#[test]
fn killed_holder_leaves_nothing() {
    let lab = ByHand::up(&["--hosts", "server,client", "--rate", "10Mbit"]);
    lab.done("loss", &["client", "1"]);
    lab.start("sleep 1000");
    let (namespaces, directory) = (lab.namespaces(), lab.directory());
    let holder = lab.status()["pid"].to_string();
    let killed = Command::new("kill").args(["-9", &holder]).status();
    assert!(killed.expect("kill runs").success());
    wait_until("the janitor is done", || !directory.exists());
    assert!(!namespaces.iter().any(|path| path.exists()));
    // The name is free again.
    lab.done("up", &[]);
}

/// A protected service on a lab host survives its server's death, and ends with the lab without leftovers.
#[test]
fn protected_service_ends_with_lab() {
    let name = format!("by-hand-{}", std::process::id());
    let outlive = outlive();
    let lab = ByHand::up(&["--hosts", "server,client"]);
    let serve = format!(
        "{} serve --address 10.0.0.1:80 --name {name} -- {WEB_SERVER_COMMAND}",
        outlive.display()
    );
    lab.start(&serve);
    wait_until("the server answers", || lab.answers());
    lab.done("kill", &["server", "python3"]);
    wait_until("it answers again", || lab.answers());
    let program = outlive.to_str().expect("text");
    let status = lab.done("exec", &["server", "--", program, "status"]);
    assert!(status.contains(&name), "{status}");
    assert!(!traces(&name).is_empty(), "it has a cgroup and mounts");
    lab.done("down", &[]);
    assert_eq!(traces(&name), [""; 0]);
}

/// Mounts, control groups and pins with this in their names.
fn traces(name: &str) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("the list of mounts");
    let mounts = mounts.lines().filter(|line| line.contains(name));
    let mut traces: Vec<_> = mounts.map(str::to_owned).collect();
    let groups = Command::new("find")
        .args(["/sys/fs/cgroup", "/sys/fs/bpf", "-name"])
        .arg(format!("{name}*"))
        .output()
        .expect("find runs");
    let groups = String::from_utf8(groups.stdout).expect("text");
    traces.extend(groups.lines().map(str::to_owned));
    traces
}
