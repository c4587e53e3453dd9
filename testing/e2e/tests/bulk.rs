//! `outlive send` and `outlive receive` between hosts that fail.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Output as Printed;
use std::time::Duration;

use e2e::arrange::wait_until;
use e2e::{EVENT_TIMEOUT, binaries, pattern};
use lab::{Host, Impairment, Lab, Output, Process, Signal};

const RECEIVER_PORT: u16 = 7601;
const FILE_BYTES: usize = 24 << 20;
/// The slow line of the tests: a transfer takes some seconds.
const BITS_PER_SECOND: u64 = 100_000_000;

/// A sender's host, and receivers' hosts.
struct Scene {
    lab: Lab,
    sender: Host,
    receivers: Vec<Receiver>,
}

struct Receiver {
    host: Host,
    directory: PathBuf,
    process: Option<Process>,
}

impl Scene {
    fn new(label: &str, receivers: u8) -> Self {
        let lab = Lab::new(label).expect("a lab");
        let sender = lab.add_host("sender").expect("a host");
        let keys = binaries::outlive();
        let keys = std::process::Command::new(keys).arg("key").output();
        fs::write(lab.directory().join("keys"), keys.expect("a key").stdout).expect("space");
        let file = lab.directory().join("image");
        fs::write(file, pattern(FILE_BYTES)).expect("space");
        let mut this = Self {
            lab,
            sender,
            receivers: Vec::new(),
        };
        set_private(&this.path("keys"));
        for number in 0..receivers {
            let name = format!("receiver{number}");
            let host = this.lab.add_host(&name).expect("a host");
            let directory = this.path(&name);
            fs::create_dir(&directory).expect("a directory");
            this.receivers.push(Receiver {
                host,
                directory,
                process: None,
            });
            this.start(usize::from(number), &[]);
        }
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.lab.directory().join(name)
    }

    /// Starts `outlive receive`, and waits until it listens.
    fn start(&mut self, number: usize, more: &[&str]) {
        let keys = self.path("keys");
        let said = self.path(&format!("said{number}"));
        let receiver = &mut self.receivers[number];
        let listen = SocketAddr::from((receiver.host.address().ipv4(), RECEIVER_PORT)).to_string();
        let mut command = receiver
            .host
            .command(&binaries::outlive().to_string_lossy());
        command.arg("receive").arg(&receiver.directory);
        command
            .args(["--json", "--listen", &listen, "--key-file"])
            .arg(keys)
            .args(more);
        let _ = fs::remove_file(&said);
        let process = receiver
            .host
            .spawn(&mut command, &Output::File(said.clone()));
        receiver.process = Some(process.expect("the program starts"));
        wait_until("the receiver listens", || {
            fs::read_to_string(&said).is_ok_and(|said| said.contains("\"listening\""))
        });
    }

    fn kill(&mut self, number: usize) {
        let process = self.receivers[number].process.take().expect("it runs");
        process.kill(Signal::KILL).expect("a signal");
        process.wait_with_timeout(EVENT_TIMEOUT).expect("a status");
    }

    /// `outlive send` in the background.
    fn send(&self, more: &[&str]) -> std::process::Child {
        self.send_named("image", more)
    }

    fn send_named(&self, name: &str, more: &[&str]) -> std::process::Child {
        let mut command = self.sender.command(&binaries::outlive().to_string_lossy());
        command.arg("send").arg(self.path(name));
        for receiver in &self.receivers {
            command
                .arg(SocketAddr::from((receiver.host.address().ipv4(), RECEIVER_PORT)).to_string());
        }
        command
            .arg("--json")
            .arg("--key-file")
            .arg(self.path("keys"))
            .args(more);
        command.stderr(std::process::Stdio::piped());
        command.spawn().expect("the program starts")
    }

    /// Bytes on the receiver's disk of the unfinished file.
    fn arrived(&self, number: usize) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let staging = self.receivers[number].directory.join(".outlive-partial");
        let entries = fs::read_dir(staging).into_iter().flatten().flatten();
        entries
            .filter_map(|it| it.metadata().ok())
            .map(|it| it.blocks() * 512)
            .sum()
    }

    fn assert_stored(&self, number: usize) {
        let directory = &self.receivers[number].directory;
        let there = fs::read(directory.join("image")).expect("the file");
        assert!(there == pattern(FILE_BYTES), "other bytes");
        let names = fs::read_dir(directory).expect("a directory").count();
        assert_eq!(names, 1, "nothing else is left");
    }
}

fn set_private(path: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("a file");
}

fn end_of(child: std::process::Child) -> Printed {
    child.wait_with_output().expect("an end")
}

fn assert_done(child: std::process::Child) -> String {
    let ended = end_of(child);
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{}: {said}", ended.status);
    said
}

/// Blocks already there, as the sender hears.
fn present(said: &str) -> Vec<u64> {
    let events = said
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    events
        .filter(|event| event["event"] == "accepted")
        .filter_map(|event| event["present"].as_u64())
        .collect()
}

fn slow(loss: f64) -> Impairment {
    let impairment = Impairment::new().rate(BITS_PER_SECOND);
    impairment
        .loss(loss * 100.0)
        .delay(Duration::from_millis(5))
}

#[test]
fn transfer_resumes_after_each_death_of_the_receiver() {
    let mut scene = Scene::new("bulk-receiver", 1);
    scene.receivers[0].host.impair(&slow(0.01)).expect("a link");
    let child = scene.send(&[]);
    let mut at_least = 0;
    for share in [5, 2] {
        let wanted = u64::try_from(FILE_BYTES / share).expect("a size");
        wait_until("a part has arrived", || scene.arrived(0) >= wanted);
        scene.kill(0);
        at_least = scene.arrived(0);
        scene.start(0, &[]);
    }
    let said = assert_done(child);
    let present = present(&said);
    assert_eq!(present.len(), 3, "{said}");
    // The last blasts were not whole.
    assert!(present[2] * 10 >= at_least * 7, "{present:?} of {at_least}");
    scene.assert_stored(0);
}

/// The sender has not hashed the file when the receiver dies. (A hole takes time to be hashed, and none to be sent.)
#[test]
fn transfer_resumes_after_a_death_before_the_hash_is_known() {
    const SPARSE_BYTES: u64 = 6 << 30;
    let mut scene = Scene::new("bulk-sparse", 1);
    let image = fs::File::options().write(true).open(scene.path("image"));
    image
        .and_then(|it| it.set_len(SPARSE_BYTES))
        .expect("a hole");
    scene.receivers[0].host.impair(&slow(0.0)).expect("a link");
    for carrier in ["udp", "tcp"] {
        let child = scene.send(&["--carrier", carrier]);
        wait_until("a part has arrived", || scene.arrived(0) >= 2 << 20);
        scene.kill(0);
        scene.start(0, &[]);
        let said = assert_done(child);
        assert!(said.contains("\"retry\""), "{said}");
        let stored = scene.receivers[0].directory.join("image");
        let metadata = fs::metadata(&stored).expect("the file");
        assert_eq!(metadata.len(), SPARSE_BYTES);
        let mut start = vec![0; FILE_BYTES];
        let file = fs::File::open(&stored).expect("the file");
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut start, 0).expect("bytes");
        assert!(start == pattern(FILE_BYTES), "other bytes");
        fs::remove_file(stored).expect("removed");
    }
}

#[test]
fn transfer_resumes_after_the_death_of_the_sender() {
    let mut scene = Scene::new("bulk-sender", 1);
    scene.receivers[0].host.impair(&slow(0.0)).expect("a link");
    let mut child = scene.send(&[]);
    wait_until("a part has arrived", || scene.arrived(0) >= 8 << 20);
    child.kill().expect("a signal");
    child.wait().expect("an end");
    assert!(!scene.receivers[0].directory.join("image").exists());
    wait_until("the receiver tells of the end", || {
        let said = fs::read_to_string(scene.path("said0")).expect("events");
        said.contains("\"failed\"") && said.contains("image: ")
    });
    let said = assert_done(scene.send(&[]));
    assert!(
        present(&said).iter().any(|present| *present >= 4 << 20),
        "{said}"
    );
    scene.assert_stored(0);
    scene.kill(0);
}

/// Small files, and a large file between them; the receiver is killed in the midst of each.
#[test]
fn tree_arrives_although_the_receiver_is_killed() {
    let mut scene = Scene::new("bulk-tree", 1);
    let tree = scene.path("tree");
    for name in ["a", "c"] {
        fs::create_dir_all(tree.join(name)).expect("directories");
        for number in 0..400_usize {
            let path = tree.join(name).join(format!("{number:03}"));
            fs::write(path, pattern(number * 50)).expect("space");
        }
    }
    fs::rename(scene.path("image"), tree.join("b")).expect("the file");
    scene.receivers[0].host.impair(&slow(0.01)).expect("a link");
    let child = scene.send_named("tree", &[]);
    let there = scene.receivers[0].directory.join("tree");
    let count = |name: &str| fs::read_dir(there.join(name)).map_or(0, Iterator::count);
    wait_until("small files have arrived", || count("a") >= 100);
    scene.kill(0);
    scene.start(0, &[]);
    wait_until("a part of the large file has arrived", || {
        scene.arrived(0) >= 4 << 20
    });
    scene.kill(0);
    scene.start(0, &[]);
    wait_until("the rest arrives", || count("c") >= 100);
    let said = assert_done(child);
    assert!(said.contains(r#""files":801"#), "{said}");
    let difference = std::process::Command::new("diff")
        .arg("-r")
        .args([&tree, &there])
        .output();
    let difference = difference.expect("diff");
    assert!(difference.status.success(), "{difference:?}");
    let names = fs::read_dir(&scene.receivers[0].directory).expect("a directory");
    assert_eq!(names.count(), 1, "nothing else is left");
}

/// The receiver is killed in the midst of it.
#[test]
fn data_travels_by_tcp_where_no_udp_passes() {
    let mut scene = Scene::new("bulk-tcp", 1);
    let rule = "nft add table ip f; nft 'add chain ip f in { type filter hook input priority 0; }'; \
                nft add rule ip f in meta l4proto udp drop";
    e2e::arrange::run_words(&scene.receivers[0].host, &["sh", "-c", rule]);
    scene.receivers[0].host.impair(&slow(0.0)).expect("a link");
    let child = scene.send(&[]);
    wait_until("a part has arrived", || scene.arrived(0) >= 8 << 20);
    let connections = connections_of(&scene.receivers[0].host);
    scene.kill(0);
    scene.start(0, &[]);
    let said = assert_done(child);
    assert!(said.contains("no_datagrams"), "{said}");
    let present = present(&said);
    assert!(
        present.iter().any(|present| *present >= 4 << 20),
        "{present:?}: {said}"
    );
    assert_eq!(connections, 5, "messages, and four for the data");
    scene.assert_stored(0);
}

/// TCP connections of the receiver.
fn connections_of(host: &Host) -> usize {
    let filter = format!("sport = :{RECEIVER_PORT}");
    let mut command = host.command("ss");
    let printed = command
        .args(["-Htn", "state", "established", &filter])
        .output();
    let printed = printed.expect("ss").stdout;
    String::from_utf8_lossy(&printed).lines().count()
}

#[test]
fn three_receivers_get_the_file_and_the_loss_of_one_costs_only_that() {
    let scene = Scene::new("bulk-three", 3);
    for receiver in &scene.receivers {
        receiver.host.impair(&slow(0.005)).expect("a link");
    }
    let child = scene.send(&["--retry", "0", "--peer-timeout", "2s"]);
    wait_until("a part has arrived", || scene.arrived(1) >= 4 << 20);
    scene.receivers[1].host.power_off().expect("off");
    let ended = end_of(child);
    assert_eq!(ended.status.code(), Some(69), "a receiver is missing");
    scene.assert_stored(0);
    scene.assert_stored(2);
    assert!(!scene.receivers[1].directory.join("image").exists());
}

#[test]
fn full_disk_is_an_error_that_says_so() {
    let mut scene = Scene::new("bulk-full", 1);
    scene.kill(0);
    let directory = scene.receivers[0].directory.clone();
    let small = format!("mount -t tmpfs -o size=4m tmpfs {}", directory.display());
    // In the mount namespace of the receiver alone.
    let listen = SocketAddr::from((scene.receivers[0].host.address().ipv4(), RECEIVER_PORT));
    let line = format!(
        "{small} && exec {} receive {} --json --listen {listen} --key-file {}",
        binaries::outlive().display(),
        directory.display(),
        scene.path("keys").display(),
    );
    let mut command = scene.receivers[0].host.command("unshare");
    command.args(["--mount", "sh", "-c", &line]);
    let said = scene.path("said-full");
    let process = scene.receivers[0]
        .host
        .spawn(&mut command, &Output::File(said.clone()));
    scene.receivers[0].process = Some(process.expect("the program starts"));
    wait_until("the receiver listens", || {
        fs::read_to_string(&said).is_ok_and(|said| said.contains("\"listening\""))
    });
    let ended = end_of(scene.send(&[]));
    let words = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(75), "{words}");
    assert!(
        words.contains("lacks space") && words.contains("are free"),
        "{words}"
    );
}
