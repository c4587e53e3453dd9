//! Repeated kills of a server while clients work without a pause, for a chosen time.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use e2e::arrange::test_server_at;
use e2e::clients::{curl, read_exactly, write};
use e2e::exchange::{assert_all_recovered, assert_same, end};
use e2e::servers::{SERVER_PORT, Server};
use e2e::{Protected, Scene, Seed, pattern};
use lab::Signal;

/// For how long, in seconds; without that, two kills are enough.
const SECONDS_VARIABLE: &str = "OUTLIVE_LOAD_SECONDS";
/// How the programs are bound: `tcx` or `clsact`, else as `serve` likes.
const ATTACH_VARIABLE: &str = "OUTLIVE_LOAD_ATTACH";
/// Bytes of an echo, and of a download.
const ECHO_BYTES: usize = 256 << 10;
const DOWNLOAD_BYTES: usize = 1 << 20;
const PIECE_BYTES: usize = 16 << 10;

/// Clients at a time.
const CLIENT_COUNT: usize = 4;

/// The work of clients until the end, and its totals.
#[derive(Debug, Default)]
struct Work {
    over: AtomicBool,
    connections: AtomicU64,
    /// Bytes that each client has compared.
    bytes: [AtomicU64; CLIENT_COUNT],
}

impl Work {
    fn is_running(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    fn did(&self, client: usize, bytes: usize) {
        let bytes = u64::try_from(bytes).expect("a number of bytes");
        self.bytes[client].fetch_add(bytes, Ordering::Relaxed);
    }

    fn done(&self) -> [u64; CLIENT_COUNT] {
        self.bytes
            .each_ref()
            .map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// Waits until each client has progressed, and all of them by `all` bytes. A client whose SYN came while the
    /// server was down retransmits after ever longer times, and would never meet a server that is killed too early.
    fn await_progress(&self, all: usize) {
        let (before, all) = (self.done(), u64::try_from(all).expect("a number of bytes"));
        while self.is_running() {
            let now = self.done();
            let each = before.iter().zip(&now).all(|(before, now)| now > before);
            if each && now.iter().sum::<u64>() >= before.iter().sum::<u64>() + all {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Consecutive connections, each with `task`.
    fn repeat_connections(&self, connect: impl Fn() -> TcpStream, task: impl Fn(&TcpStream)) {
        // A failure ends the work of all clients.
        let _over = Over(&self.over);
        while self.is_running() {
            let stream = connect();
            self.connections.fetch_add(1, Ordering::Relaxed);
            task(&stream);
            end(&stream);
        }
    }

    fn echo(&self, client: usize, stream: &TcpStream) {
        let bytes = pattern(ECHO_BYTES);
        write(stream, b"echo\n");
        for (number, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
            write(stream, piece);
            let got = read_exactly(stream, piece.len());
            assert_same(&got, piece, number * PIECE_BYTES, "echo");
            self.did(client, 2 * piece.len());
        }
    }

    fn download(&self, client: usize, stream: &TcpStream) {
        write(stream, format!("pattern {DOWNLOAD_BYTES}\n").as_bytes());
        for (number, piece) in pattern(DOWNLOAD_BYTES).chunks(PIECE_BYTES).enumerate() {
            let got = read_exactly(stream, piece.len());
            assert_same(&got, piece, number * PIECE_BYTES, "download");
            self.did(client, piece.len());
        }
    }
}

/// Says that the work is over, also by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Kills the server at random moments until the time is up. Returns how often.
fn kill_repeatedly(server: &Protected, work: &Work, seed: &mut Seed) -> usize {
    let seconds = std::env::var(SECONDS_VARIABLE).ok();
    let seconds = seconds.map(|text| text.parse().expect("a number of seconds"));
    let (limit, least) = seconds.map_or((Duration::ZERO, 2), |seconds| {
        (Duration::from_secs(seconds), 1)
    });
    let start = Instant::now();
    let mut kills = 0;
    while work.is_running() && (kills < least || start.elapsed() < limit) {
        work.await_progress(seed.between(PIECE_BYTES, DOWNLOAD_BYTES));
        server.kill_main(Signal::KILL);
        kills += 1;
        server.wait_serving(kills);
    }
    kills
}

/// Two connections echo and two download at any time.
#[test]
fn servers_killed_under_load() {
    let scene = Scene::new("load");
    let address = scene.ipv4(SERVER_PORT);
    let attach = std::env::var(ATTACH_VARIABLE).unwrap_or_else(|_| "auto".to_owned());
    let server = test_server_at(&scene, &[address]);
    let server = scene.protect_with(&server, &["--attach", &attach]);
    let work = Work::default();
    let connect = || scene.connect_to(address);
    let kills = thread::scope(|scope| {
        for client in 0..CLIENT_COUNT {
            let work = &work;
            let task = move |stream: &TcpStream| match client % 2 {
                0 => work.echo(client, stream),
                _ => work.download(client, stream),
            };
            scope.spawn(move || work.repeat_connections(connect, task));
        }
        let _over = Over(&work.over);
        let kills = kill_repeatedly(&server, &work, &mut Seed::choose("load"));
        work.over.store(true, Ordering::Relaxed);
        kills
    });
    assert_all_recovered(&server);
    print_summary("test-server", &attach, kills, &work);
    server.stop();
}

/// busybox' httpd, with a process for each connection: a third-party server that every test kernel has.
#[test]
fn web_server_killed_under_load() {
    if !std::path::Path::new("/usr/bin/busybox").exists()
        && !std::path::Path::new("/bin/busybox").exists()
    {
        eprintln!("not tested: there is no busybox");
        return;
    }
    let scene = Scene::new("load-web");
    let address = scene.ipv4(SERVER_PORT);
    let content = pattern(DOWNLOAD_BYTES);
    let file = scene.write("www/file.bin", &content);
    let root = file.parent().expect("its directory").to_string_lossy();
    let mut server: Server = test_server_at(&scene, &[address]);
    let listen = address.to_string();
    let command = ["busybox", "httpd", "-f", "-p", &listen, "-h", &root];
    server.command = command.map(str::to_owned).to_vec();
    let server = scene.protect(&server);
    let work = Work::default();
    let fetch = |client| {
        let _over = Over(&work.over);
        while work.is_running() {
            work.connections.fetch_add(1, Ordering::Relaxed);
            let got = curl(&scene, &[&format!("http://{address}/file.bin")]);
            let said = String::from_utf8_lossy(&got.stderr);
            assert!(got.status.success(), "curl: {said}");
            assert_same(&got.stdout, &content, 0, "file");
            work.did(client, got.stdout.len());
        }
    };
    let kills = thread::scope(|scope| {
        for client in 0..CLIENT_COUNT {
            scope.spawn(move || fetch(client));
        }
        let _over = Over(&work.over);
        let kills = kill_repeatedly(&server, &work, &mut Seed::choose("load-web"));
        work.over.store(true, Ordering::Relaxed);
        kills
    });
    assert_all_recovered(&server);
    print_summary("busybox httpd", "auto", kills, &work);
    server.stop();
}

fn print_summary(server: &str, attach: &str, kills: usize, work: &Work) {
    let connections = work.connections.load(Ordering::Relaxed);
    let bytes: u64 = work.done().iter().sum();
    println!(
        "load: {server} ({attach}): {kills} kills, {connections} connections, {bytes} bytes compared"
    );
}
