//! A server is killed again and again while clients work without a pause, for as long as is asked for.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use e2e::arrange::test_server_at;
use e2e::clients::{curl, read_exactly, write};
use e2e::exchange::{assert_all_kept, assert_same, end};
use e2e::servers::{PORT, Server};
use e2e::{Protected, Scene, Seed, pattern};
use lab::Signal;

/// For how long, in seconds; without that, two kills are enough.
const VARIABLE: &str = "OUTLIVE_LOAD_SECONDS";
/// How the programs are bound: `tcx` or `clsact`, else as `serve` likes.
const ATTACH: &str = "OUTLIVE_LOAD_ATTACH";
/// Bytes of one echo, and of one download.
const ECHO: usize = 256 << 10;
const DOWNLOAD: usize = 1 << 20;
const PIECE: usize = 16 << 10;

/// Clients at a time.
const CLIENTS: usize = 4;

/// What clients do until the end, and what came of that.
#[derive(Debug, Default)]
struct Work {
    over: AtomicBool,
    connections: AtomicU64,
    /// Bytes that each client has compared.
    bytes: [AtomicU64; CLIENTS],
}

impl Work {
    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    fn did(&self, client: usize, bytes: usize) {
        let bytes = u64::try_from(bytes).expect("a number of bytes");
        self.bytes[client].fetch_add(bytes, Ordering::Relaxed);
    }

    fn done(&self) -> [u64; CLIENTS] {
        self.bytes
            .each_ref()
            .map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// Waits until each client has got on, and all of them by so much. One whose SYN came while the server was down
    /// says it again after ever longer times, and would never meet a server that is killed too early.
    fn await_progress(&self, all: usize) {
        let (before, all) = (self.done(), u64::try_from(all).expect("a number of bytes"));
        while self.goes_on() {
            let now = self.done();
            let each = before.iter().zip(&now).all(|(before, now)| now > before);
            if each && now.iter().sum::<u64>() >= before.iter().sum::<u64>() + all {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Connections one after another, each with `task`.
    fn again_and_again(&self, connect: impl Fn() -> TcpStream, task: impl Fn(&TcpStream)) {
        // A failure ends the work of all.
        let _over = Over(&self.over);
        while self.goes_on() {
            let stream = connect();
            self.connections.fetch_add(1, Ordering::Relaxed);
            task(&stream);
            end(&stream);
        }
    }

    fn echo(&self, client: usize, stream: &TcpStream) {
        let bytes = pattern(ECHO);
        write(stream, b"echo\n");
        for (number, piece) in bytes.chunks(PIECE).enumerate() {
            write(stream, piece);
            let got = read_exactly(stream, piece.len());
            assert_same(&got, piece, number * PIECE, "echo");
            self.did(client, 2 * piece.len());
        }
    }

    fn download(&self, client: usize, stream: &TcpStream) {
        write(stream, format!("pattern {DOWNLOAD}\n").as_bytes());
        for (number, piece) in pattern(DOWNLOAD).chunks(PIECE).enumerate() {
            let got = read_exactly(stream, piece.len());
            assert_same(&got, piece, number * PIECE, "download");
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
fn kill_again_and_again(server: &Protected, work: &Work, seed: &mut Seed) -> usize {
    let seconds = std::env::var(VARIABLE).ok();
    let seconds = seconds.map(|text| text.parse().expect("a number of seconds"));
    let (limit, least) = seconds.map_or((Duration::ZERO, 2), |seconds| {
        (Duration::from_secs(seconds), 1)
    });
    let start = Instant::now();
    let mut kills = 0;
    while work.goes_on() && (kills < least || start.elapsed() < limit) {
        work.await_progress(seed.between(PIECE, DOWNLOAD));
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
    let address = scene.ipv4(PORT);
    let attach = std::env::var(ATTACH).unwrap_or_else(|_| "auto".to_owned());
    let server = test_server_at(&scene, &[address]);
    let server = scene.protect_with(&server, &["--attach", &attach]);
    let work = Work::default();
    let connect = || scene.connect_to(address);
    let kills = thread::scope(|scope| {
        for client in 0..CLIENTS {
            let work = &work;
            let task = move |stream: &TcpStream| match client % 2 {
                0 => work.echo(client, stream),
                _ => work.download(client, stream),
            };
            scope.spawn(move || work.again_and_again(connect, task));
        }
        let _over = Over(&work.over);
        let kills = kill_again_and_again(&server, &work, &mut Seed::choose("load"));
        work.over.store(true, Ordering::Relaxed);
        kills
    });
    assert_all_kept(&server);
    told("test-server", &attach, kills, &work);
    server.stop();
}

/// busybox' httpd, with a process for each connection: a server of others that is there wherever kernels are booted.
#[test]
fn web_server_killed_under_load() {
    if !std::path::Path::new("/usr/bin/busybox").exists()
        && !std::path::Path::new("/bin/busybox").exists()
    {
        eprintln!("not tested: there is no busybox");
        return;
    }
    let scene = Scene::new("load-web");
    let address = scene.ipv4(PORT);
    let content = pattern(DOWNLOAD);
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
        while work.goes_on() {
            work.connections.fetch_add(1, Ordering::Relaxed);
            let got = curl(&scene, &[&format!("http://{address}/file.bin")]);
            let said = String::from_utf8_lossy(&got.stderr);
            assert!(got.status.success(), "curl: {said}");
            assert_same(&got.stdout, &content, 0, "file");
            work.did(client, got.stdout.len());
        }
    };
    let kills = thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || fetch(client));
        }
        let _over = Over(&work.over);
        let kills = kill_again_and_again(&server, &work, &mut Seed::choose("load-web"));
        work.over.store(true, Ordering::Relaxed);
        kills
    });
    assert_all_kept(&server);
    told("busybox httpd", "auto", kills, &work);
    server.stop();
}

fn told(server: &str, attach: &str, kills: usize, work: &Work) {
    let connections = work.connections.load(Ordering::Relaxed);
    let bytes: u64 = work.done().iter().sum();
    println!(
        "load: {server} ({attach}): {kills} kills, {connections} connections, {bytes} bytes compared"
    );
}
