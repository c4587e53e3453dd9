//! Failures beyond the single clean kill, and what `outlive`'s own verbs say of them.

use std::fs;
use std::io::{ErrorKind, Read};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use e2e::clients::{Http, curl, read_exactly, read_to_end, write};
use e2e::servers::{self, Crash, PORT};
use e2e::{PATIENCE, Protected, Scene, Seed, assert_same_bytes, assert_same_endings, pattern};
use lab::Signal;

/// One line there and back.
#[track_caller]
fn talks(stream: &TcpStream, word: &str) {
    write(stream, format!("say {word}\n").as_bytes());
    let got = read_exactly(stream, word.len() + 1);
    assert_same_bytes("answer", format!("{word}\n").as_bytes(), &got);
}

/// A connection that echoes, after a first exchange.
#[track_caller]
fn echoing(scene: &Scene) -> TcpStream {
    let stream = scene.connect(PORT);
    write(&stream, b"echo\n");
    echoes(&stream, b"hello");
    stream
}

#[track_caller]
fn echoes(stream: &TcpStream, bytes: &[u8]) {
    write(stream, bytes);
    assert_same_bytes("echo", bytes, &read_exactly(stream, bytes.len()));
}

/// The next thing on this connection is a RST.
#[track_caller]
fn is_reset(mut stream: &TcpStream) {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => panic!("a proper end, not a reset"),
            // What was on its way before.
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
                return;
            }
        }
    }
}

/// The only `lost` event, and that it is of this connection and for this reason.
#[track_caller]
fn lost_only(protected: &Protected, stream: &TcpStream, reason: &str) {
    let lost = protected.wait_for("lost", 1);
    let client = stream.local_addr().expect("an address").to_string();
    assert!(lost["connection"].to_string().contains(&client), "{lost}");
    assert!(lost["reason"].to_string().contains(reason), "{lost}");
    assert_eq!(protected.events_of("lost").len(), 1, "{}", protected.said());
}

/// Bytes that come without a gap from before the first kill to after the last.
fn download_through(kills: impl FnOnce(&Protected) + Send) {
    let scene = Scene::new("kills");
    let protected = scene.protect(&servers::nginx(&scene));
    let mut http = Http::new(scene.connect(PORT));
    let recording = scene.record(PORT);
    http.ask("/big.bin");
    let idle = Http::new(scene.connect(PORT));
    let mut idle = idle;
    assert_eq!(idle.get("/small/1").status, 200);
    kills(&protected);
    let got = http.response(|_| ());
    assert_same_bytes("download", &pattern(servers::BIG), &got.body);
    assert_same_bytes("idle", &pattern(3300), &idle.get("/small/4").body);
    assert!(
        protected.events_of("lost").is_empty(),
        "{}",
        protected.said()
    );
    let endings = recording.finish();
    assert!(endings.iter().all(|e| !e.rst && !e.fin), "{endings:?}");
    protected.stop();
}

#[test]
fn several_kills_in_a_row() {
    let mut seed = Seed::choose("several_kills_in_a_row");
    download_through(|protected| {
        for kill in 1..=5 {
            let pause = u64::try_from(seed.between(0, 250)).expect("small");
            thread::sleep(Duration::from_millis(pause));
            protected.kill_main(Signal::KILL);
            protected.wait_serving(kill);
        }
    });
}

/// The number of deaths that were told, which is reached when they were.
#[track_caller]
fn kill_again_at(event: &str) {
    download_through(|protected| {
        protected.kill_main(Signal::KILL);
        for again in 1..=2 {
            protected.wait_for(event, again);
            protected.kill_main(Signal::KILL);
            protected.wait_for("died", again + 1);
        }
        protected.wait_for("serving", 1);
    });
}

#[test]
fn killed_again_when_just_restarted() {
    kill_again_at("restarted");
}

#[test]
fn killed_again_when_just_listening() {
    kill_again_at("listening");
}

#[test]
fn killed_again_when_just_spliced() {
    kill_again_at("spliced");
}

/// A server that needs a file to start, the file, and the directory for both.
fn needy(scene: &Scene) -> (servers::Server, PathBuf) {
    let file = scene.write("needed", "");
    let server = servers::test_server_with(scene, &["--need", &file.to_string_lossy()]);
    (server, file)
}

#[test]
fn a_server_that_does_not_start_for_a_while() {
    let scene = Scene::new("not-started");
    let (server, file) = needy(&scene);
    let protected = scene.protect(&server);
    let stream = echoing(&scene);
    let recording = scene.record(PORT);
    fs::remove_file(&file).expect("remove the needed file");
    protected.kill_main(Signal::KILL);
    // It dies of its own at each start; starts are further and further apart.
    protected.wait_for("died", 4);
    let starts: Vec<f64> = protected
        .events_of("restarted")
        .iter()
        .filter_map(|event| event["time"].as_f64())
        .collect();
    let pauses: Vec<f64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // A pause can take longer than it should, never less: 0, 100, 200 ms.
    for (pause, least) in pauses.iter().zip([0.1, 0.2]) {
        assert!(*pause >= least - 0.02, "no back-off: {pauses:?}");
    }
    // Sent while nobody is there.
    write(&stream, b"meanwhile");
    fs::write(&file, "").expect("restore the needed file");
    assert_same_bytes("echo", b"meanwhile", &read_exactly(&stream, 9));
    let serving = protected.wait_serving(1);
    assert_eq!(serving["kept"], 1, "{serving}");
    echoes(&stream, b"afterwards");
    let endings = recording.finish();
    assert!(endings.iter().all(|e| !e.rst && !e.fin), "{endings:?}");
    protected.stop();
}

#[test]
fn a_server_that_does_not_start_in_time() {
    let scene = Scene::new("given-up");
    let (server, file) = needy(&scene);
    let protected = scene.protect_with(&server, &["--give-up-after", "2s"]);
    let stream = echoing(&scene);
    fs::remove_file(&file).expect("remove the needed file");
    protected.kill_main(Signal::KILL);
    lost_only(&protected, &stream, "did not come back in time");
    is_reset(&stream);
    // New clients are served when it is back.
    fs::write(&file, "").expect("restore the needed file");
    protected.wait_serving(1);
    talks(&scene.connect(PORT), "again");
    protected.stop();
}

#[test]
fn a_request_that_kills_the_server_again_and_again() {
    let scene = Scene::new("poison");
    let protected = scene.protect(&servers::test_server(&scene));
    let good = echoing(&scene);
    let content = pattern(100_000);
    write(&good, &content[..50_000]);
    let poison = scene.connect(PORT);
    talks(&poison, "before");
    write(&poison, b"abort\n");
    lost_only(&protected, &poison, "died 3 times");
    is_reset(&poison);
    assert_eq!(protected.events_of("died").len(), 4, "{}", protected.said());
    write(&good, &content[50_000..]);
    assert_same_bytes("the other", &content, &read_exactly(&good, content.len()));
    protected.stop();
}

#[test]
fn two_poisonous_requests_among_good_ones() {
    let scene = Scene::new("poisons");
    let protected = scene.protect(&servers::test_server(&scene));
    let good: Vec<TcpStream> = (0..5).map(|_| echoing(&scene)).collect();
    let poison: Vec<TcpStream> = (0..2).map(|_| scene.connect(PORT)).collect();
    write(&poison[0], b"abort\n");
    write(&poison[1], b"exit 1\n");
    for number in 1..=2 {
        let lost = protected.wait_for("lost", number);
        assert!(
            lost["reason"].to_string().contains("while replaying"),
            "{lost}"
        );
    }
    poison.iter().for_each(is_reset);
    good.iter().for_each(|stream| echoes(stream, b"still here"));
    assert_eq!(protected.events_of("lost").len(), 2, "{}", protected.said());
    protected.stop();
}

/// What the client sees of a server that ends the connection by itself, with and without
/// protection.
fn ends_by_itself(words: &str, end: fn(&TcpStream)) {
    let scene = Scene::new("own-end");
    let server = servers::test_server(&scene);
    let run = || {
        let recording = scene.record(PORT);
        let stream = scene.connect(PORT);
        talks(&stream, "hello");
        write(&stream, words.as_bytes());
        end(&stream);
        // While the client still has its end: nothing more may come.
        let endings = recording.finish();
        drop(stream);
        endings
    };
    let plain = {
        let _running = scene.plain(&server);
        run()
    };
    let protected = scene.protect(&server);
    assert_eq!(plain, run());
    assert!(
        protected.events_of("died").is_empty(),
        "{}",
        protected.said()
    );
    protected.stop();
}

#[test]
fn a_server_that_closes() {
    ends_by_itself("close\n", |stream| {
        assert!(read_to_end(stream).is_empty());
    });
}

#[test]
fn a_server_that_half_closes() {
    ends_by_itself("half-close\nsink 1000\n", |stream| {
        assert!(read_to_end(stream).is_empty());
        write(stream, &pattern(1000));
    });
}

#[test]
fn a_server_that_resets() {
    ends_by_itself("reset\n", is_reset);
}

/// A panic that ends one thread closes that thread's connection like any return from a
/// function: the server lives, this is its voluntary close.
#[test]
fn a_thread_that_panics_and_unwinds() {
    ends_by_itself("panic\n", |stream| {
        assert!(read_to_end(stream).is_empty());
    });
}

/// A connection that the living server had closed is not brought back by a later crash.
#[test]
fn closed_before_the_crash() {
    let scene = Scene::new("closed-before");
    let server = servers::test_server(&scene);
    let protected = scene.protect(&server);
    let (closed, half, open) = (scene.connect(PORT), scene.connect(PORT), echoing(&scene));
    write(&closed, b"close\n");
    assert!(read_to_end(&closed).is_empty());
    write(&half, b"pattern 1000\nhalf-close\n");
    assert_same_bytes("half", &pattern(1000), &read_to_end(&half));
    server.crash(&protected, Crash::Exit1);
    protected.wait_serving(1);
    echoes(&open, b"still here");
    assert!(
        protected.events_of("lost").is_empty(),
        "{}",
        protected.said()
    );
    protected.stop();
}

#[test]
fn a_server_that_ends_by_itself_ends_serve() {
    let scene = Scene::new("ended");
    let mut protected = scene.protect(&servers::test_server(&scene));
    let stream = scene.connect(PORT);
    write(&stream, b"exit 0\n");
    assert!(read_to_end(&stream).is_empty());
    let ended = protected.ended(PATIENCE);
    assert_eq!(
        ended.and_then(|status| status.code()),
        Some(0),
        "{}",
        protected.said()
    );
    assert_eq!(
        protected.events_of("ended").len(),
        1,
        "{}",
        protected.said()
    );
    protected.assert_nothing_left();
}

#[test]
fn sigterm_with_open_connections() {
    let scene = Scene::new("sigterm");
    let protected = scene.protect(&servers::nginx(&scene));
    let mut used = Http::new(scene.connect(PORT));
    assert_eq!(used.get("/small/2").status, 200);
    let silent = Http::new(scene.connect(PORT));
    protected.stop();
    // nginx closes idle connections properly when it is stopped.
    assert!(used.rest().is_empty());
    assert!(silent.rest().is_empty());
}

#[test]
fn sigterm_with_a_spliced_connection() {
    let scene = Scene::new("sigterm-spliced");
    let protected = scene.protect(&servers::nginx(&scene));
    let mut http = Http::new(scene.connect(PORT));
    assert_eq!(http.get("/small/2").status, 200);
    protected.kill_main(Signal::KILL);
    protected.wait_serving(1);
    assert_same_bytes("spliced", &pattern(2600), &http.get("/small/3").body);
    let recording = scene.record(PORT);
    protected.stop();
    assert!(http.rest().is_empty(), "a proper end and nothing else");
    let endings = recording.finish();
    assert!(endings.iter().all(|e| e.fin && !e.rst), "{endings:?}");
}

#[test]
fn sigterm_while_the_server_is_down() {
    let scene = Scene::new("sigterm-down");
    let (server, file) = needy(&scene);
    let protected = scene.protect(&server);
    let stream = echoing(&scene);
    fs::remove_file(&file).expect("remove the needed file");
    protected.kill_main(Signal::KILL);
    protected.wait_for("died", 2);
    protected.stop();
    is_reset(&stream);
}

#[test]
fn replay_by_turns() {
    let scene = Scene::new("turns");
    let protected = scene.protect_with(&servers::nginx(&scene), &["--replay", "turn"]);
    let mut http = Http::new(scene.connect(PORT));
    let mut clients: Vec<Http> = (0..5).map(|_| Http::new(scene.connect(PORT))).collect();
    let ask = |http: &mut Http, number: u16| {
        let number = usize::from(number % 10);
        let got = http.get(&format!("/small/{number}"));
        assert_same_bytes("turn", &pattern(500 + number * 700), &got.body);
    };
    for number in 0..100 {
        ask(&mut http, number);
    }
    clients.iter_mut().for_each(|http| ask(http, 7));
    protected.kill_main(Signal::KILL);
    let serving = protected.wait_serving(1);
    ask(&mut http, 5);
    clients.iter_mut().for_each(|http| ask(http, 8));
    // Answered turns are dropped: much less than a hundred requests is replayed.
    let replayed = serving["replayed_bytes"].as_u64().expect("a number");
    assert!(replayed < 1000, "{serving}");
    assert_eq!(serving["kept"], 6, "{serving}");
    protected.kill_main(Signal::KILL);
    protected.wait_serving(2);
    ask(&mut http, 9);
    clients.iter_mut().for_each(|http| ask(http, 1));
    protected.stop();
}

/// `Expect: 100-continue` makes one request of two turns: curl sends the header, waits for
/// the answer `100`, and then sends the content.
fn upload_that_expects(replay: &str) {
    let scene = Scene::new("expect");
    let protected = scene.protect_with(&servers::nginx(&scene), &["--replay", replay]);
    let content = pattern(4 << 20);
    let file = scene.write("upload", &content);
    let url = format!("http://{}/up/file", scene.ipv4(PORT));
    let small = format!("http://{}/small/1", scene.ipv4(PORT));
    let file = file.to_string_lossy();
    thread::scope(|scope| {
        // Slow enough to be killed on its way; the small file goes over the same connection.
        let arguments = [
            "-o",
            "/dev/null",
            "-w",
            "%{http_code} ",
            &small,
            "--next",
            "-sS",
            "--max-time",
            "60",
            "--limit-rate",
            "3M",
            "-H",
            "Expect: 100-continue",
            "-T",
            &file,
            "-o",
            "/dev/null",
            "-w",
            "%{http_code} %{num_connects}",
            &url,
        ];
        let scene = &scene;
        let client = scope.spawn(move || curl(scene, &arguments));
        let temporary = scene.directory().join("nginx-body");
        let deadline = Instant::now() + PATIENCE;
        let under_way = || {
            let files = fs::read_dir(&temporary).into_iter().flatten().flatten();
            let sizes = files.filter_map(|file| Some(file.metadata().ok()?.len()));
            sizes.max().unwrap_or(0) > 500_000
        };
        while !under_way() {
            assert!(Instant::now() < deadline, "curl sends nothing");
            thread::sleep(Duration::from_millis(5));
        }
        protected.kill_main(Signal::KILL);
        let output = client.join().expect("curl's thread");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}\n{}", protected.said());
        assert_eq!(said, "200 201 0", "one connection for both");
    });
    let stored = fs::read(scene.directory().join("www/up/file")).expect("the stored file");
    assert_same_bytes("upload", &content, &stored);
    protected.wait_serving(1);
    assert!(
        protected.events_of("lost").is_empty(),
        "{}",
        protected.said()
    );
    protected.stop();
}

#[test]
fn an_upload_that_expects_by_turns() {
    upload_that_expects("turn");
}

#[test]
fn an_upload_that_expects_by_connections() {
    upload_that_expects("connection");
}

/// The server says its process number: another one after the restart.
#[test]
fn an_answer_that_differs() {
    let scene = Scene::new("divergence");
    let protected = scene.protect(&servers::test_server(&scene));
    let honest = echoing(&scene);
    let stream = scene.connect(PORT);
    talks(&stream, "hello");
    write(&stream, b"pid\n");
    let pid = String::from_utf8(read_exactly(&stream, 11)).expect("digits");
    protected.kill_main(Signal::KILL);
    lost_only(&protected, &stream, "said something else");
    is_reset(&stream);
    echoes(&honest, b"still here");
    let new = format!("{:010}\n", protected.main_pid());
    let differs = pid
        .bytes()
        .zip(new.bytes())
        .position(|(old, new)| old != new);
    // After `hello\n`.
    let place = 6 + differs.expect("another process has another number");
    let lost = protected.wait_for("lost", 1);
    assert!(
        lost["reason"]
            .to_string()
            .contains(&format!("at byte {place} ")),
        "{lost}"
    );
    protected.stop();
}

/// A difference far beyond the head of a turn: seen only with `--verify full`.
fn late_difference(verify: &str) -> (Scene, Protected, TcpStream) {
    let scene = Scene::new("verify");
    let server = servers::test_server(&scene);
    let protected = scene.protect_with(&server, &["--verify", verify]);
    let stream = scene.connect(PORT);
    // One turn: the answers come without another word of the client.
    write(&stream, b"pattern 50000\npid\nsay end\n");
    let _ = read_exactly(&stream, 50_000 + 11 + 4);
    protected.kill_main(Signal::KILL);
    (scene, protected, stream)
}

#[test]
fn verify_full_sees_a_late_difference() {
    let (_scene, protected, stream) = late_difference("full");
    lost_only(&protected, &stream, "said something else at byte 500");
    is_reset(&stream);
    protected.stop();
}

#[test]
fn verify_off_sees_nothing() {
    let (_scene, protected, stream) = late_difference("off");
    protected.wait_serving(1);
    talks(&stream, "on");
    assert!(
        protected.events_of("lost").is_empty(),
        "{}",
        protected.said()
    );
    protected.stop();
}

#[test]
fn verify_full_compares_everything() {
    let scene = Scene::new("verify-all");
    let server = servers::test_server(&scene);
    let protected = scene.protect_with(&server, &["--verify", "full"]);
    let stream = scene.connect(PORT);
    write(&stream, b"pattern 300000\n");
    let got = read_exactly(&stream, 300_000);
    assert_same_bytes("before", &pattern(300_000), &got);
    protected.kill_main(Signal::KILL);
    let verified = protected.wait_for("verified", 1);
    assert_eq!(verified["compared"], 300_000, "{verified}");
    assert_eq!(verified["unverified"], 0, "{verified}");
    talks(&stream, "on");
    protected.stop();
}

/// HTTP's `Date` may differ by default, and is counted.
#[test]
fn a_date_is_tolerated() {
    let scene = Scene::new("date");
    let protected = scene.protect(&servers::nginx(&scene));
    let mut http = Http::new(scene.connect(PORT));
    assert_eq!(http.get("/small/2").status, 200);
    // Until the date is another one; it counts seconds.
    thread::sleep(Duration::from_millis(1100));
    protected.kill_main(Signal::KILL);
    let verified = protected.wait_for("verified", 1);
    assert_eq!(verified["tolerated"], 1, "{verified}");
    assert_eq!(http.get("/small/2").status, 200);
    protected.stop();
}

/// A child that leaves with a status other than 0 is its own affair, by default.
fn child_failure(flags: &[&str]) -> (Scene, Protected, TcpStream) {
    let scene = Scene::new("child");
    let mut server = servers::socat(&scene);
    let listen = server.command[1].clone();
    // Echoes one line and fails.
    let child = "EXEC:\"sh -c \\'read line; echo $line; read more; exit 3\\'\",nofork";
    server.command = ["socat", &listen, child].map(str::to_owned).to_vec();
    let protected = scene.protect_with(&server, flags);
    let stream = scene.connect(PORT);
    write(&stream, b"one\n");
    assert_same_bytes("first", b"one\n", &read_exactly(&stream, 4));
    (scene, protected, stream)
}

#[test]
fn a_child_that_fails_is_no_crash() {
    let (_scene, protected, stream) = child_failure(&[]);
    write(&stream, b"two\n");
    assert!(read_to_end(&stream).is_empty());
    assert!(
        protected.events_of("died").is_empty(),
        "{}",
        protected.said()
    );
    protected.stop();
}

#[test]
fn a_child_that_fails_is_a_crash_on_any_failure() {
    let (_scene, protected, stream) = child_failure(&["--crash-on", "any-failure"]);
    write(&stream, b"two\n");
    let died = protected.wait_for("died", 1);
    assert_eq!(died["cause"]["status"], 3, "{died}");
    // It fails again in replay each time.
    lost_only(&protected, &stream, "died 3 times");
    is_reset(&stream);
    protected.stop();
}

#[test]
fn a_connection_beyond_its_limit() {
    let scene = Scene::new("limit");
    let server = servers::test_server(&scene);
    let protected = scene.protect_with(&server, &["--limit-per-connection", "1MiB"]);
    let small = echoing(&scene);
    let big = scene.connect(PORT);
    let content = pattern(3 << 20);
    write(&big, format!("sink {}\n", content.len()).as_bytes());
    write(&big, &content);
    let unprotected = protected.wait_for("unprotected", 1);
    let client = big.local_addr().expect("an address").to_string();
    assert!(
        unprotected["connection"].to_string().contains(&client),
        "{unprotected}"
    );
    assert!(
        unprotected["reason"].to_string().contains("limit"),
        "{unprotected}"
    );
    // It goes on as if nothing were.
    let expected = format!("{} {:016x}\n", content.len(), e2e::Checksum::of(&content));
    assert_same_bytes(
        "sum",
        expected.as_bytes(),
        &read_exactly(&big, expected.len()),
    );
    talks(&big, "on");
    let recording = scene.record(PORT);
    protected.kill_main(Signal::KILL);
    lost_only(&protected, &big, "unprotected");
    is_reset(&big);
    echoes(&small, b"still here");
    let endings = recording.finish();
    assert_eq!(endings.iter().filter(|e| e.rst).count(), 1, "{endings:?}");
    protected.stop();
}

#[test]
fn status_and_events() {
    let scene = Scene::new("verbs");
    let protected = scene.protect(&servers::test_server(&scene));
    let (stream, silent) = (echoing(&scene), scene.connect(PORT));
    protected.kill_main(Signal::KILL);
    protected.wait_serving(1);
    // The last event of a recovery.
    protected.wait_for("verified", 1);
    echoes(&stream, b"on");

    let status = protected.outlive("status", &["--json", "--connections"]);
    assert_eq!(status.status, Some(0), "{status:?}");
    let status = &status.json()[0];
    assert_eq!(status["service"], protected.name());
    assert_eq!(status["stage"], "serving");
    assert_eq!(
        status["server_pid"],
        protected.main_pid().as_raw_nonzero().get()
    );
    assert_eq!(
        status["serve_pid"],
        protected.serve_pid().as_raw_nonzero().get()
    );
    assert_eq!(status["incarnation"], 2);
    assert_eq!(status["replay"], "connection");
    assert_eq!(status["connections"], 2);
    assert_eq!(status["spliced"], 2);
    assert_eq!(status["unprotected"], 0);
    let list = status["list"].as_array().expect("a list");
    let client = stream.local_addr().expect("an address").to_string();
    let ours = list
        .iter()
        .find(|c| c["connection"].to_string().contains(&client));
    assert_eq!(
        ours.expect("our connection")["instream_bytes"],
        12,
        "{list:?}"
    );

    let words = protected.outlive("status", &[protected.name()]);
    assert_eq!(words.status, Some(0), "{words:?}");
    assert!(
        words.stdout.contains("2 open: 0 unprotected, 2 carried"),
        "{words:?}"
    );

    let events = protected.outlive("events", &["--json"]);
    assert_eq!(events.status, Some(0), "{events:?}");
    assert_eq!(events.json(), protected.events());
    let words = protected.outlive("events", &[]);
    assert_eq!(
        words.stdout.lines().count(),
        protected.events().len(),
        "{words:?}"
    );
    assert!(words.stdout.contains("was killed by signal 9"), "{words:?}");

    let unknown = protected.outlive("status", &["nobody"]);
    assert_eq!(unknown.status, Some(1), "{unknown:?}");
    assert!(unknown.stderr.contains("nobody"), "{unknown:?}");
    drop(silent);
    protected.stop();
}

#[test]
fn check_says_what_is_missing() {
    let scene = Scene::new("check");
    let server = servers::test_server(&scene);
    let free = scene.ipv4(9).to_string();
    let protected = scene.protect(&server);

    let good = protected.outlive("check", &["--json", "--address", &free, "--", "true"]);
    assert_eq!(good.status, Some(0), "{good:?}");
    assert!(
        good.json().iter().all(|finding| finding["ok"] == true),
        "{good:?}"
    );

    let taken = scene.ipv4(PORT).to_string();
    let bad = protected.outlive(
        "check",
        &["--json", "--address", &taken, "--", "no-such-program"],
    );
    assert_eq!(bad.status, Some(3), "{bad:?}");
    let wrong: Vec<_> = bad
        .json()
        .into_iter()
        .filter(|f| f["ok"] == false)
        .collect();
    let questions: Vec<_> = wrong
        .iter()
        .filter_map(|f| f["question"].as_str())
        .collect();
    assert_eq!(questions, ["addresses", "command"], "{bad:?}");

    let words = protected.outlive("check", &["--address", "192.0.2.1:80"]);
    assert_eq!(words.status, Some(3), "{words:?}");
    assert!(words.stdout.contains("FAIL addresses"), "{words:?}");
    protected.stop();
}

#[test]
fn clean_after_serve_was_killed() {
    let scene = Scene::new("clean");
    let server = servers::test_server(&scene);
    let mut protected = scene.protect(&server);
    let stream = echoing(&scene);
    let name = protected.name().to_owned();

    // One that runs is left alone.
    let running = protected.outlive("clean", &[&name]);
    assert_ne!(running.status, Some(0), "{running:?}");
    echoes(&stream, b"one");

    protected.kill_serve(Signal::KILL);
    assert!(protected.ended(PATIENCE).is_some());
    let status = protected.outlive("status", &[&name]);
    assert_eq!(status.status, Some(1), "{status:?}");
    assert!(status.stderr.contains("outlive clean"), "{status:?}");

    // The server lives on, and is not killed unless that is said.
    echoes(&stream, b"two");
    let refused = protected.outlive("clean", &[&name]);
    assert_ne!(refused.status, Some(0), "{refused:?}");
    echoes(&stream, b"three");

    let cleaned = protected.outlive("clean", &["--json", "--kill", &name]);
    assert_eq!(cleaned.status, Some(0), "{cleaned:?}");
    let said = &cleaned.json()[0];
    assert_eq!(said["service"], name.as_str());
    assert_eq!(said["killed"], 1);
    assert_eq!(said["programs"], true);
    protected.assert_nothing_left();

    // The name and the addresses are free again.
    let again = scene.protect(&server);
    echoing(&scene);
    again.stop();
}

#[test]
fn clean_where_nothing_is() {
    let scene = Scene::new("clean-nothing");
    let protected = scene.protect(&servers::test_server(&scene));
    // Not in the way of a service that runs, and nothing to do for others.
    let all = protected.outlive("clean", &[]);
    assert_eq!(all.status, Some(0), "{all:?}");
    let nobody = protected.outlive("clean", &["--json", "nobody"]);
    assert_eq!(nobody.status, Some(0), "{nobody:?}");
    assert_eq!(nobody.json()[0]["programs"], false, "{nobody:?}");
    talks(&scene.connect(PORT), "on");
    protected.stop();
}

/// The crash-free run is not changed by being protected: the same segments end it.
#[test]
fn protection_alone_changes_nothing() {
    let scene = Scene::new("alone");
    let server = servers::nginx(&scene);
    let run = || {
        let recording = scene.record(PORT);
        let url = format!("http://{}/big.bin", scene.ipv4(PORT));
        let output = curl(&scene, &[&url]);
        assert!(output.status.success(), "{:?}", output.status);
        assert_same_bytes("curl", &pattern(servers::BIG), &output.stdout);
        let mut http = Http::new(scene.connect_to(scene.ipv6(PORT)));
        http.get("/small/1");
        http.stream().shutdown(Shutdown::Write).expect("a FIN");
        assert!(http.rest().is_empty());
        recording.finish()
    };
    let plain = {
        let _running = scene.plain(&server);
        run()
    };
    let protected = scene.protect(&server);
    assert_same_endings(&plain, &run());
    protected.stop();
}
