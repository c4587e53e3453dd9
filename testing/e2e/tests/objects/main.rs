//! The mode objects: downloads go on at another member of a pool.

mod balancers;
mod check;
mod chunks;
mod dynamic;
mod load;
mod matrix;
mod moments;
mod no_timestamps;
mod operator;
mod pipelined;
mod pool_changes;
mod programs;
mod requests;
mod routed;
mod servers;
mod store;
mod xdp;

use std::net::SocketAddr;
use std::path::Path;

use e2e::arrange::wait_until;
use e2e::clients::{Http, read_some};
use e2e::pool::{Pool, pool_addresses};
use e2e::servers::BIG_FILE_BYTES;
use e2e::{Recording, pattern};
use lab::Signal;

/// Bytes that a client reads before the death of its member.
const FIRST_PART: usize = 3 << 20;

/// A client that has read a part of the large file.
struct Download {
    http: std::net::TcpStream,
    bytes: Vec<u8>,
}

impl Download {
    fn begin(pool: &Pool, address: SocketAddr) -> Self {
        Self::begin_with(pool, address, "")
    }

    /// With more header fields in the request.
    fn begin_with(pool: &Pool, address: SocketAddr, fields: &str) -> Self {
        let http = pool.connect(address);
        let text = format!(
            "GET /big.bin HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{fields}\r\n"
        );
        e2e::clients::write(&http, text.as_bytes());
        let mut this = Self {
            http,
            bytes: Vec::new(),
        };
        this.read_up_to(FIRST_PART);
        this
    }

    fn read_up_to(&mut self, count: usize) {
        let mut buffer = vec![0; 1 << 16];
        while self.bytes.len() < count {
            let len = read_some(&mut &self.http, &mut buffer).expect("more of the file");
            assert_ne!(len, 0, "the end after {} bytes", self.bytes.len());
            self.bytes.extend_from_slice(&buffer[..len]);
        }
    }

    /// Reads the rest, and compares the body.
    fn finish(self) {
        self.finish_with(&pattern(BIG_FILE_BYTES));
    }

    fn finish_with(mut self, expected: &[u8]) {
        self.bytes.extend(e2e::clients::read_to_end(&self.http));
        let end = self.bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let body = &self.bytes[end.expect("a head") + 4..];
        assert_eq!(body.len(), expected.len());
        assert!(body == expected, "other bytes");
    }

    fn client(&self) -> SocketAddr {
        self.http.local_addr().expect("an address")
    }
}

/// The host of a member with some of the downloads loses power.
fn survive_their_member(pool: &Pool, downloads: Vec<Download>) {
    let dies = pool.server_of(downloads[0].client());
    let on_it = { downloads.iter() }
        .filter(|download| pool.server_of(download.client()) == dies)
        .count();
    pool.members[dies].program.host.power_off().expect("off");
    downloads.into_iter().for_each(Download::finish);
    pool.await_revived(on_it);
    pool.assert_none_refused();
}

#[test]
fn download_survives_power_off_of_its_member() {
    for address in pool_addresses() {
        let pool = Pool::of("objects-power", 2);
        let recording = Recording::start(&pool.scene.client, address.port());
        let download = Download::begin(&pool, address);
        let dies = pool.server_of(download.client());
        pool.members[dies].program.host.power_off().expect("off");
        download.finish();
        let revived = pool.revived();
        assert_eq!(revived.len(), 1, "{revived:?}");
        assert_eq!(revived[0]["object"], "/big.bin");
        pool.assert_none_refused();
        let endings = recording.finish();
        assert!(endings.iter().all(|ending| !ending.rst), "{endings:?}");
        pool.stop();
    }
}

#[test]
fn download_survives_death_of_its_server() {
    let pool = Pool::of("objects-kill", 2);
    let download = Download::begin(&pool, pool_addresses()[0]);
    let member = &pool.members[pool.server_of(download.client())];
    let pids = member.server_pids();
    e2e::servers::signal_all(&pids, Signal::KILL);
    download.finish();
    let died = member.program.wait_for("died", 1);
    let words = |pid: &lab::Pid| format!("process {} killed by SIGKILL", pid.as_raw_nonzero());
    assert!(
        pids.iter().any(|pid| died["exit"] == words(pid)),
        "{died} of {pids:?}"
    );
    member.program.wait_for("revived", 1);
    pool.assert_none_refused();
    pool.stop();
}

/// A server like Apache does not start while the process of its PidFile exists, also as a zombie.
#[test]
fn dead_server_leaves_no_zombie() {
    let pool = Pool::of("objects-zombie", 1);
    let member = &pool.members[0];
    let pids = member.server_pids();
    assert!(!pids.is_empty());
    e2e::servers::signal_all(&pids, Signal::KILL);
    member.program.wait_for("died", 1);
    member.program.wait_for("serving", 2);
    let exists = |pid: &lab::Pid| Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists();
    wait_until("the dead processes are reaped", || !pids.iter().any(exists));
    pool.stop();
}

#[test]
fn download_survives_host_after_host() {
    let mut pool = Pool::of("objects-hosts", 2);
    let mut download = Download::begin(&pool, pool_addresses()[0]);
    for round in 1..=3 {
        let dies = pool.server_of(download.client());
        pool.members[dies].program.host.power_off().expect("off");
        pool.await_members(1);
        // A member asks for nothing while the client's window is shut.
        download.read_up_to(download.bytes.len() + (1 << 20));
        e2e::arrange::wait_until("the download is revived", || pool.revived().len() == round);
        pool.members[dies].program.host.power_on().expect("on");
        pool.restart_member(dies, 2);
    }
    download.finish();
    pool.assert_none_refused();
    pool.stop();
}

#[test]
fn member_that_joins_moves_no_download() {
    let mut pool = Pool::of("objects-join", 1);
    let downloads: Vec<Download> = (0..8)
        .map(|_| Download::begin(&pool, pool_addresses()[0]))
        .collect();
    pool.add_member(&[]);
    pool.add_member(&[]);
    for download in downloads {
        download.finish();
    }
    assert_eq!(pool.revived(), Vec::<serde_json::Value>::new());
    pool.assert_none_refused();
    pool.stop();
}

#[test]
fn idle_connection_is_served_by_another_member() {
    let pool = Pool::of("objects-idle", 2);
    let stream = pool.scene.connect_to(pool_addresses()[0]);
    let client = stream.local_addr().expect("an address");
    let mut http = Http::new(stream);
    let first = http.get("/small/3").body;
    let dies = pool.server_of(client);
    pool.members[dies].program.host.power_off().expect("off");
    pool.await_members(1);
    assert_eq!(http.get("/small/3").body, first);
    assert_ne!(http.get("/small/4").body, first);
    pool.await_revived(1);
    pool.assert_none_refused();
    pool.stop();
}

#[test]
fn changed_object_is_reset_and_never_mixed() {
    let pool = Pool::of("objects-version", 2);
    let download = Download::begin(&pool, pool_addresses()[0]);
    let changed: Vec<u8> = pattern(BIG_FILE_BYTES).iter().map(|byte| !byte).collect();
    let dies = pool.server_of(download.client());
    // A file of its own: the server that dies goes on with the file that it has opened.
    let new = pool.scene.write("www/new.bin", changed);
    std::fs::rename(&new, new.with_file_name("big.bin")).expect("another file");
    pool.members[dies].program.host.power_off().expect("off");
    let original = pattern(BIG_FILE_BYTES);
    let mut rest = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    let error = loop {
        match read_some(&mut &download.http, &mut buffer) {
            Ok(0) => panic!("a proper end"),
            Ok(len) => rest.extend_from_slice(&buffer[..len]),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let all = [download.bytes, rest].concat();
    let end = all
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .expect("a head")
        + 4;
    assert!(
        original.starts_with(&all[end..]),
        "bytes of another version"
    );
    let refused = pool.members[1 - dies].program.wait_for("refused", 1);
    let reason = refused["reason"].as_str().expect("a reason");
    assert!(
        reason.contains("version") || reason.contains("modified"),
        "{reason}"
    );
    pool.stop();
}

#[test]
fn remains_of_a_killed_member_are_removed_by_clean() {
    let mut pool = Pool::of("objects-clean", 2);
    pool.members[1].program.kill();
    let alive = &pool.members[0].program;
    e2e::arrange::wait_until("the pool is smaller", || {
        let tables = alive.events_of("pool_changed");
        tables.last().is_some_and(|table| table["members"] == 1)
    });
    let killed = &pool.members[1];
    let addresses = || e2e::arrange::run(&killed.program.host, "ip -o addr");
    let refused = killed.program.outlive(&["clean", &killed.name]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("outlive clean --kill"), "{words}");
    assert!(addresses().contains(&pool_addresses()[0].ip().to_string()));
    let arguments = ["clean", "--kill", "--json", &killed.name];
    let cleaned = killed.program.outlive(&arguments);
    let cleaned: serde_json::Value = serde_json::from_slice(&cleaned.stdout).expect("JSON");
    assert_eq!(cleaned["member"], killed.name);
    assert_eq!(cleaned["programs"], true);
    assert_eq!(cleaned["addresses"], 2);
    assert!(!addresses().contains(&pool_addresses()[0].ip().to_string()));
    let nothing = killed.program.outlive(&["clean"]);
    let words = String::from_utf8_lossy(&nothing.stdout).into_owned();
    assert!(words.starts_with("nothing to clean"), "{words}");
    pool.stop();
}
