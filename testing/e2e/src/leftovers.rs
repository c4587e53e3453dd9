//! Leftovers of a service on a host, compared with the state before.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use lab::Host;

use crate::EVENT_TIMEOUT;

/// The host before the service was started.
#[derive(Debug)]
pub(crate) struct Before {
    name: String,
    run_dir: PathBuf,
    interfaces: BTreeSet<String>,
}

impl Before {
    pub(crate) fn look(host: &Host, name: &str, run_dir: &Path) -> Self {
        Self {
            name: name.to_owned(),
            run_dir: run_dir.to_owned(),
            interfaces: interfaces(host),
        }
    }

    /// Leftovers of the service, after a wait of at most [`EVENT_TIMEOUT`].
    pub(crate) fn left(&self, host: &Host) -> Vec<String> {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        loop {
            let left = self.scan(host);
            if left.is_empty() || Instant::now() > deadline {
                return left;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn scan(&self, host: &Host) -> Vec<String> {
        let mut left = self.processes();
        let mounts = fs::read_to_string("/proc/self/mounts").expect("the list of mounts");
        for mount in mounts.lines() {
            let mut fields = mount.split(' ').skip(1);
            let (Some(path), Some(kind)) = (fields.next(), fields.next()) else {
                continue;
            };
            let path = Path::new(path);
            if path.starts_with(self.run_dir.join(&self.name)) {
                left.push(format!("mount {}", path.display()));
            }
            let owned = match kind {
                "cgroup2" => entries(&path.join("outlive")),
                // A directory for each version of the layout.
                "bpf" => {
                    let versions = entries(&path.join("outlive"));
                    versions.iter().flat_map(|path| entries(path)).collect()
                }
                _ => Vec::new(),
            };
            let ours = owned.iter().filter(|path| self.is_ours(path));
            left.extend(ours.map(|path| format!("{kind} {}", path.display())));
        }
        if self.run_dir.join(&self.name).exists() {
            left.push(format!("{}/{}", self.run_dir.display(), self.name));
        }
        let new = &interfaces(host) - &self.interfaces;
        left.extend(
            new.into_iter()
                .map(|interface| format!("interface {interface}")),
        );
        left
    }

    /// Whether a directory belongs to the service: the name may have a suffix for the run directory.
    fn is_ours(&self, path: &Path) -> bool {
        let name = path.file_name().map(|name| name.to_string_lossy());
        name.is_some_and(|name| name.starts_with(&self.name))
    }

    /// Processes of `serve`, with the service's name in the command line, and processes in the server's cgroup.
    fn processes(&self) -> Vec<String> {
        let cgroup = format!("/outlive/{}", self.name);
        let entries = fs::read_dir("/proc").expect("the list of processes");
        let of_service = |process: &PathBuf| {
            let command = fs::read(process.join("cmdline")).unwrap_or_default();
            let groups = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
            let named = String::from_utf8_lossy(&command).contains(&self.name);
            // A zombie has no command line; its guard reaps the zombie.
            !command.is_empty() && (named || groups.contains(&cgroup))
        };
        entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(of_service)
            .map(|process| format!("process {}", process.display()))
            .collect()
    }
}

/// Entries of a directory; none if the directory does not exist.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(directory).into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}

/// The host's interfaces, and the clsact queueing disciplines on them.
fn interfaces(host: &Host) -> BTreeSet<String> {
    let read = |program: &str, arguments: &[&str]| {
        let output = host.command(program).args(arguments).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let links = read("ip", &["-brief", "link"]);
    let disciplines = read("tc", &["qdisc", "show"]);
    let links = links
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let disciplines = disciplines.lines().filter(|line| line.contains("clsact"));
    links.chain(disciplines).map(str::to_owned).collect()
}
