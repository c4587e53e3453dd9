//! The kill matrix: servers times scenarios, each killed at a random place.
//!
//! Each row runs twice with the same random choices: first with the server unprotected and
//! left alone, then under `outlive serve` with the crash. What the clients got must be
//! equal byte for byte, and no connection may see a RST or FIN that it does not see without
//! the crash.

use std::fmt::Write as _;
use std::net::{Shutdown, TcpStream};
use std::thread;

use e2e::clients::{Http, finish, read_exactly, read_to_end, write};
use e2e::servers::{self, BIG, Crash, PORT, Server, signal_all};
use e2e::{Checksum, Scene, Seed, assert_same_bytes, assert_same_endings, pattern};
use lab::{Pid, Signal};

/// The server of a run, and the crash if there is to be one.
struct Run<'a> {
    scene: &'a Scene,
    seed: Seed,
    /// The server's processes that accept connections.
    acceptors: &'a dyn Fn() -> Vec<Pid>,
    crash: &'a (dyn Fn() + Sync),
}

/// What each client got, in the order of their connections.
type Outcome = Vec<Vec<u8>>;

/// A client's deeds.
type Scenario = fn(&mut Run<'_>) -> Outcome;

/// One row of the matrix.
fn row(name: &str, server: fn(&Scene) -> Server, scenario: Scenario, crash: Crash) {
    let seed = Seed::choose(name);
    let scene = Scene::new(name);
    let (expected, endings) = {
        let server = server(&scene);
        let plain = scene.plain(&server);
        let recording = scene.record(PORT);
        let outcome = scenario(&mut Run {
            scene: &scene,
            seed: seed.clone(),
            acceptors: &|| family(plain.main_pid()),
            // Those that a scenario stopped go on here, and die there.
            crash: &|| signal_all(&family(plain.main_pid()), Signal::CONT),
        });
        drop(plain);
        (outcome, recording.finish())
    };
    let server = server(&scene);
    let protected = scene.protect(&server);
    let recording = scene.record(PORT);
    let outcome = scenario(&mut Run {
        scene: &scene,
        seed,
        acceptors: &|| family(protected.main_pid()),
        crash: &|| server.crash(&protected, crash),
    });
    let serving = protected.wait_serving(1);
    assert_eq!(serving["lost"], 0, "{serving}");
    assert_eq!(protected.events_of("died").len(), 1, "{}", protected.said());
    assert_eq!(expected.len(), outcome.len(), "clients");
    for (number, (expected, got)) in expected.iter().zip(&outcome).enumerate() {
        assert_same_bytes(&format!("client {number}"), expected, got);
    }
    let lost = protected.events_of("lost");
    assert!(lost.is_empty(), "{lost:?}");
    // Every client has finished and was answered: what comes now is too much.
    protected.stop();
    assert_same_endings(&endings, &recording.finish());
}

/// A process and its children.
fn family(main: Pid) -> Vec<Pid> {
    let children = std::fs::read_to_string(format!("/proc/{main}/task/{main}/children"));
    let children = children.expect("the server runs");
    let pids = children.split_whitespace();
    let pids = pids.filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
    pids.chain([main]).collect()
}

/// What can be compared of a response: all but its `Date`.
fn response(http: &mut Http, progress: impl FnMut(usize)) -> Vec<u8> {
    let response = http.response(progress);
    [response.head.join("\n").into_bytes(), response.body].concat()
}

/// Calls the crash when `progress` reaches a place.
fn at<'a>(place: usize, crash: &'a (dyn Fn() + Sync)) -> impl FnMut(usize) + 'a {
    let mut done = false;
    move |progress| {
        if progress >= place && !std::mem::replace(&mut done, true) {
            crash();
        }
    }
}

/// Reads so many bytes, telling how many have come.
fn read_watched(stream: &TcpStream, length: usize, mut progress: impl FnMut(usize)) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        progress(bytes.len());
        let step = 8192.min(length - bytes.len());
        bytes.extend(read_exactly(stream, step));
    }
    progress(length);
    bytes
}

/// Writes in pieces, telling how many bytes are out.
fn write_watched(stream: &TcpStream, bytes: &[u8], mut progress: impl FnMut(usize)) {
    for (number, piece) in bytes.chunks(8192).enumerate() {
        progress(number * 8192);
        write(stream, piece);
    }
    progress(bytes.len());
}

/// A large file by GET.
fn http_download(run: &mut Run<'_>) -> Outcome {
    let place = run.seed.between(0, BIG);
    let mut http = Http::new(run.scene.connect(PORT));
    http.ask("/big.bin");
    let got = response(&mut http, at(place, run.crash));
    finish(http.stream());
    vec![got]
}

/// A large file by PUT, and what the server stored.
fn http_upload(run: &mut Run<'_>) -> Outcome {
    let content = pattern(4 << 20);
    // Before the last byte: a server that had stored the whole file may truly answer
    // otherwise the second time.
    let place = run.seed.between(0, content.len() - 8192);
    let mut http = Http::new(run.scene.connect(PORT));
    let length = content.len();
    let head = format!("PUT /up/file HTTP/1.1\r\nHost: server\r\nContent-Length: {length}\r\n\r\n");
    write(http.stream(), head.as_bytes());
    write_watched(http.stream(), &content, at(place, run.crash));
    let answer = response(&mut http, |_| ());
    finish(http.stream());
    let stored = std::fs::read(run.scene.directory().join("www/up/file"));
    vec![answer, stored.expect("the server stored the file")]
}

/// Small files over one connection, one after another.
fn http_keep_alive(run: &mut Run<'_>) -> Outcome {
    let requests = 60;
    let place = run.seed.between(1, requests - 1);
    // Between two requests, or between a request and its answer.
    let asked = run.seed.between(0, 1) == 1;
    let mut http = Http::new(run.scene.connect(PORT));
    let mut got = Vec::new();
    for number in 0..requests {
        if number == place && !asked {
            (run.crash)();
        }
        http.ask(&format!("/small/{}", run.seed.between(0, 9)));
        if number == place && asked {
            (run.crash)();
        }
        got.extend(response(&mut http, |_| ()));
    }
    finish(http.stream());
    vec![got]
}

/// Connections that say nothing until after the crash, and one that had said something.
fn http_idle(run: &mut Run<'_>) -> Outcome {
    let open = || Http::new(run.scene.connect(PORT));
    let mut clients: Vec<Http> = (0..6).map(|_| open()).collect();
    let used = run.seed.between(0, 5);
    let before = clients[used].get("/small/3").body;
    (run.crash)();
    let after = clients.iter_mut().enumerate().map(|(number, http)| {
        http.ask(&format!("/small/{number}"));
        let got = response(http, |_| ());
        finish(http.stream());
        got
    });
    after.chain([before]).collect()
}

/// A connection that is established and has sent its request, but was never accepted.
fn http_accept_queue(run: &mut Run<'_>) -> Outcome {
    let path = format!("/small/{}", run.seed.between(0, 9));
    let acceptors = (run.acceptors)();
    signal_all(&acceptors, Signal::STOP);
    let mut silent = Http::new(run.scene.connect(PORT));
    let mut http = Http::new(run.scene.connect(PORT));
    http.ask(&path);
    (run.crash)();
    silent.ask(&path);
    let get = |http: &mut Http| {
        let got = response(http, |_| ());
        finish(http.stream());
        got
    };
    vec![get(&mut http), get(&mut silent)]
}

/// A client that asks for much and reads nothing until after the crash.
fn http_window_closed(run: &mut Run<'_>) -> Outcome {
    let mut http = Http::new(run.scene.connect(PORT));
    http.ask("/big.bin");
    await_full_window(http.stream());
    (run.crash)();
    let got = response(&mut http, |_| ());
    finish(http.stream());
    vec![got]
}

/// Waits until no more arrives: the socket holds what its window allows. Peeking consumes
/// nothing.
fn await_full_window(stream: &TcpStream) {
    let mut buffer = vec![0; 32 << 20];
    let mut last = 0;
    loop {
        thread::sleep(std::time::Duration::from_millis(100));
        let now = stream.peek(&mut buffer).expect("there is something");
        if now == last {
            return;
        }
        last = now;
    }
}

/// Both directions at once, so that at the crash both have unacknowledged bytes.
fn echo_both_ways(run: &mut Run<'_>, hello: &[u8]) -> Outcome {
    let content = pattern(3 << 20);
    // Something has come back: whoever echoes is there.
    let place = run.seed.between(1, content.len());
    let stream = run.scene.connect(PORT);
    write(&stream, hello);
    let got = thread::scope(|scope| {
        scope.spawn(|| write(&stream, &content));
        read_watched(&stream, content.len(), at(place, run.crash))
    });
    finish(&stream);
    assert_same_bytes("echo", &content, &got);
    vec![got]
}

fn socat_echo(run: &mut Run<'_>) -> Outcome {
    echo_both_ways(run, b"")
}

fn our_echo(run: &mut Run<'_>) -> Outcome {
    echo_both_ways(run, b"echo\n")
}

/// Small exchanges on a connection that is idle in between, and one that says nothing
/// before the crash.
fn echo_idle(run: &mut Run<'_>, hello: &[u8]) -> Outcome {
    let (used, silent) = (run.scene.connect(PORT), run.scene.connect(PORT));
    write(&used, hello);
    let rounds = 20;
    let place = run.seed.between(0, rounds - 1);
    let mut got = Vec::new();
    for round in 0..rounds {
        let word = format!("round {round}\n");
        write(&used, word.as_bytes());
        got.extend(read_exactly(&used, word.len()));
        if round == place {
            (run.crash)();
        }
    }
    write(&silent, hello);
    write(&silent, b"at last\n");
    let last = read_exactly(&silent, 8);
    finish(&used);
    finish(&silent);
    vec![got, last]
}

fn socat_idle(run: &mut Run<'_>) -> Outcome {
    echo_idle(run, b"")
}

fn our_idle(run: &mut Run<'_>) -> Outcome {
    echo_idle(run, b"echo\n")
}

/// Echo where nobody had accepted the connection yet.
fn echo_accept_queue(run: &mut Run<'_>, hello: &[u8]) -> Outcome {
    let length = run.seed.between(1, 60_000);
    let acceptors = (run.acceptors)();
    signal_all(&acceptors, Signal::STOP);
    let stream = run.scene.connect(PORT);
    write(&stream, hello);
    write(&stream, &pattern(length));
    (run.crash)();
    let got = read_exactly(&stream, length);
    finish(&stream);
    vec![got]
}

fn socat_accept_queue(run: &mut Run<'_>) -> Outcome {
    echo_accept_queue(run, b"")
}

fn our_accept_queue(run: &mut Run<'_>) -> Outcome {
    echo_accept_queue(run, b"echo\n")
}

/// Echo to a client that does not read until after the crash: its window is closed. With
/// much to echo the server cannot write, stops reading, and has unread data: its window is
/// closed too.
fn echo_window_closed(run: &mut Run<'_>, hello: &[u8], length: usize) -> Outcome {
    let content = pattern(length);
    let stream = run.scene.connect(PORT);
    write(&stream, hello);
    let got = thread::scope(|scope| {
        scope.spawn(|| write(&stream, &content));
        await_full_window(&stream);
        (run.crash)();
        read_exactly(&stream, length)
    });
    finish(&stream);
    vec![got]
}

fn socat_window_closed(run: &mut Run<'_>) -> Outcome {
    echo_window_closed(run, b"", 1 << 20)
}

fn our_window_closed(run: &mut Run<'_>) -> Outcome {
    echo_window_closed(run, b"echo\n", 24 << 20)
}

/// The pattern on demand.
fn our_download(run: &mut Run<'_>) -> Outcome {
    let length = 8 << 20;
    let place = run.seed.between(0, length);
    let stream = run.scene.connect(PORT);
    write(&stream, format!("pattern {length}\n").as_bytes());
    let got = read_watched(&stream, length, at(place, run.crash));
    assert_same_bytes("download", &pattern(length), &got);
    finish(&stream);
    vec![got]
}

/// Much to read, and a checksum as the answer.
fn our_upload(run: &mut Run<'_>) -> Outcome {
    let content = pattern(8 << 20);
    let place = run.seed.between(0, content.len());
    let stream = run.scene.connect(PORT);
    write(&stream, format!("sink {}\n", content.len()).as_bytes());
    write_watched(&stream, &content, at(place, run.crash));
    let mut expected = String::new();
    writeln!(
        expected,
        "{} {:016x}",
        content.len(),
        Checksum::of(&content)
    )
    .expect("a string");
    let got = read_exactly(&stream, expected.len());
    assert_same_bytes("checksum", expected.as_bytes(), &got);
    finish(&stream);
    vec![got]
}

/// Requests one after another, of lengths that differ, on one connection.
fn our_keep_alive(run: &mut Run<'_>) -> Outcome {
    let requests = 100;
    let place = run.seed.between(0, requests - 1);
    let asked = run.seed.between(0, 1) == 1;
    let stream = run.scene.connect(PORT);
    let mut got = Vec::new();
    for number in 0..requests {
        let length = run.seed.between(0, 20_000);
        if number == place && !asked {
            (run.crash)();
        }
        write(&stream, format!("pattern {length}\n").as_bytes());
        if number == place && asked {
            (run.crash)();
        }
        got.extend(read_exactly(&stream, length));
    }
    finish(&stream);
    vec![got]
}

/// The server has received bytes that it has not read when it dies.
fn our_unread(run: &mut Run<'_>) -> Outcome {
    let length = run.seed.between(1, 60_000);
    let gate = run.scene.directory().join("read-on");
    let _ = std::fs::remove_file(&gate);
    let stream = run.scene.connect(PORT);
    write(&stream, b"say hello\n");
    let mut got = read_exactly(&stream, 6);
    write(
        &stream,
        format!("wait {}\necho\n", gate.display()).as_bytes(),
    );
    write(&stream, &pattern(length));
    (run.crash)();
    std::fs::write(&gate, "").expect("open the gate");
    got.extend(read_exactly(&stream, length));
    finish(&stream);
    vec![got]
}

/// The client had finished before the crash, and waits for the rest.
fn our_half_closed_client(run: &mut Run<'_>) -> Outcome {
    let length = run.seed.between(1, 500_000);
    let gate = run.scene.directory().join("read-on");
    let _ = std::fs::remove_file(&gate);
    let stream = run.scene.connect(PORT);
    write(&stream, b"say hello\n");
    let mut got = read_exactly(&stream, 6);
    let rest = format!("wait {}\npattern {length}\n", gate.display());
    write(&stream, rest.as_bytes());
    stream.shutdown(Shutdown::Write).expect("a FIN");
    (run.crash)();
    std::fs::write(&gate, "").expect("open the gate");
    got.extend(read_to_end(&stream));
    vec![got]
}

/// Thirty connections of three kinds at once; all see the same crash.
fn our_crowd(run: &mut Run<'_>) -> Outcome {
    let streams: Vec<TcpStream> = (0..30).map(|_| run.scene.connect(PORT)).collect();
    let place = run.seed.between(0, 200_000);
    let content = pattern(200_000);
    let nothing = || ();
    thread::scope(|scope| {
        let clients = streams.iter().enumerate().map(|(number, stream)| {
            let content = &content;
            let crash = if number == 0 { run.crash } else { &nothing };
            scope.spawn(move || match number % 3 {
                0 => {
                    write(stream, b"pattern 200000\n");
                    read_watched(stream, 200_000, at(place, crash))
                }
                1 => {
                    write(stream, b"sink 200000\n");
                    write(stream, content);
                    read_exactly(stream, 24)
                }
                _ => {
                    write(stream, b"say one\n");
                    let one = read_exactly(stream, 4);
                    write(stream, b"say two\n");
                    [one, read_exactly(stream, 4)].concat()
                }
            })
        });
        let clients: Vec<_> = clients.collect();
        let results = clients
            .into_iter()
            .map(|client| client.join().expect("a client"));
        let results = results.collect();
        streams.iter().for_each(finish);
        results
    })
}

/// A test for each row, so that a failure names it.
macro_rules! matrix {
    ($($name:ident: $server:ident, $scenario:ident, $crash:ident;)*) => {
        $(#[test]
        fn $name() {
            row(stringify!($name), servers::$server, $scenario, Crash::$crash);
        })*
    };
}

matrix! {
    nginx_download: nginx, http_download, Kill;
    nginx_download_worker_killed: nginx, http_download, KillWorker;
    nginx_upload: nginx, http_upload, Kill;
    nginx_keep_alive: nginx, http_keep_alive, Kill;
    nginx_idle: nginx, http_idle, Kill;
    nginx_accept_queue: nginx, http_accept_queue, Kill;
    nginx_window_closed: nginx, http_window_closed, Kill;

    lighttpd_download: lighttpd, http_download, Kill;
    lighttpd_download_segv: lighttpd, http_download, Segv;
    lighttpd_keep_alive: lighttpd, http_keep_alive, Kill;
    lighttpd_idle: lighttpd, http_idle, Kill;
    lighttpd_accept_queue: lighttpd, http_accept_queue, Kill;
    lighttpd_window_closed: lighttpd, http_window_closed, Kill;

    forking_echo: socat, socat_echo, Kill;
    forking_echo_child_killed: socat, socat_echo, KillWorker;
    forking_idle: socat, socat_idle, Kill;
    forking_accept_queue: socat, socat_accept_queue, Kill;
    forking_window_closed: socat, socat_window_closed, Kill;

    threaded_download: python, http_download, Kill;
    threaded_upload: python, http_upload, Kill;
    threaded_keep_alive: python, http_keep_alive, Kill;
    threaded_idle: python, http_idle, Kill;
    threaded_accept_queue: python, http_accept_queue, Kill;
    threaded_window_closed: python, http_window_closed, Kill;

    killed_accept_queue: test_server, our_accept_queue, Kill;
    killed_unread: test_server, our_unread, Kill;
    killed_window_closed: test_server, our_window_closed, Kill;
    killed_half_closed_client: test_server, our_half_closed_client, Kill;
    killed_crowd: test_server, our_crowd, Kill;

    status_1_download: test_server, our_download, Exit1;
    status_1_upload: test_server, our_upload, Exit1;
    status_1_echo: test_server, our_echo, Exit1;
    status_1_keep_alive: test_server, our_keep_alive, Exit1;
    status_1_idle: test_server, our_idle, Exit1;
    status_1_unread: test_server, our_unread, Exit1;
    status_1_half_closed_client: test_server, our_half_closed_client, Exit1;

    panic_in_main_download: test_server, our_download, PanicMain;
    panic_in_main_echo: test_server, our_echo, PanicMain;
    panic_in_main_unread: test_server, our_unread, PanicMain;
    panic_in_main_crowd: test_server, our_crowd, PanicMain;
    panic_that_aborts_upload: test_server, our_upload, PanicAbort;
    panic_that_aborts_window_closed: test_server, our_window_closed, PanicAbort;
    abort_echo: test_server, our_echo, Abort;
    abort_crowd: test_server, our_crowd, Abort;
}
