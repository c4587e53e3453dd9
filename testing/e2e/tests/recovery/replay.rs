//! Extent of replay, verification and record.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use e2e::clients::{Http, curl, read_exactly, write};
use e2e::servers::{self, SERVER_PORT};
use e2e::{EVENT_TIMEOUT, Protected, Scene, assert_same_bytes, pattern};
use lab::Signal;

use crate::{echoes, echoing, is_reset, lost_only, talks};

#[test]
fn replay_by_request() {
    let scene = Scene::new("turns");
    let protected = scene.protect_with(&servers::nginx(&scene), &["--replay", "request"]);
    let mut http = Http::new(scene.connect(SERVER_PORT));
    let mut clients: Vec<Http> = (0..5)
        .map(|_| Http::new(scene.connect(SERVER_PORT)))
        .collect();
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
    assert_eq!(serving["recovered"], 6, "{serving}");
    protected.kill_main(Signal::KILL);
    protected.wait_serving(2);
    ask(&mut http, 9);
    clients.iter_mut().for_each(|http| ask(http, 1));
    protected.stop();
}

/// As with a long poll: the polling client waits once more, and all other clients are served.
#[test]
fn slow_earlier_response() {
    let scene = Scene::new("long-poll");
    let protected = scene.protect(&servers::test_server(&scene));
    let door = scene.write("door", "");
    let [slow, other] = [(); 2].map(|()| scene.connect(SERVER_PORT));
    talks(&other, "here");
    talks(&slow, "one");
    write(&slow, format!("wait {}\n", door.display()).as_bytes());
    talks(&slow, "two");
    talks(&slow, "three");
    fs::remove_file(&door).expect("the door is there");
    protected.kill_main(Signal::KILL);
    let serving = protected.wait_serving(1);
    assert_eq!(
        (&serving["recovered"], &serving["comparing"]),
        (&1.into(), &1.into())
    );
    talks(&other, "goes-on");
    let restarted = protected.outlive("restart", &["--json"]);
    assert_eq!(restarted.status, Some(0), "{restarted:?}");
    talks(&other, "and-on");
    fs::write(&door, "").expect("the door is open");
    talks(&slow, "four");
    protected.wait_for("connections_recovered", 1);
    protected.assert_none_of("connection_reset");
    protected.stop();
}

/// `Expect: 100-continue` makes a single HTTP request of two turns: curl sends the header, waits for the answer
/// `100`, and then sends the content.
fn upload_that_expects(replay: &str) {
    let scene = Scene::new("expect");
    let protected = scene.protect_with(&servers::nginx(&scene), &["--replay", replay]);
    let content = pattern(4 << 20);
    let file = scene.write("upload", &content);
    let url = format!("http://{}/up/file", scene.ipv4(SERVER_PORT));
    let small = format!("http://{}/small/1", scene.ipv4(SERVER_PORT));
    let file = file.to_string_lossy();
    let limit = EVENT_TIMEOUT.as_secs().to_string();
    thread::scope(|scope| {
        // Slow enough for a kill in the middle; the small file uses the same connection.
        let arguments = [
            "-o",
            "/dev/null",
            "-w",
            "%{http_code} ",
            &small,
            "--next",
            "-sS",
            "--max-time",
            &limit,
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
        let deadline = Instant::now() + EVENT_TIMEOUT;
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
        assert!(output.status.success(), "{output:?}\n{}", protected.log());
        assert_eq!(said, "200 201 0", "one connection for both");
    });
    let stored = fs::read(scene.directory().join("www/up/file")).expect("the stored file");
    assert_same_bytes("upload", &content, &stored);
    protected.wait_serving(1);
    protected.assert_none_of("connection_reset");
    protected.stop();
}

#[test]
fn expect_continue_upload_by_request() {
    upload_that_expects("request");
}

#[test]
fn expect_continue_upload_by_connection() {
    upload_that_expects("connection");
}

/// The server sends its process number, which differs after the restart.
#[test]
fn differing_response() {
    let scene = Scene::new("divergence");
    let protected = scene.protect(&servers::test_server(&scene));
    let honest = echoing(&scene);
    let stream = scene.connect(SERVER_PORT);
    talks(&stream, "hello");
    write(&stream, b"pid\n");
    let pid = String::from_utf8(read_exactly(&stream, 11)).expect("digits");
    protected.kill_main(Signal::KILL);
    lost_only(
        &protected,
        &stream,
        "output of the restarted server differs",
    );
    is_reset(&stream);
    echoes(&honest, b"still here");
    let new = format!("{:010}\n", protected.main_pid());
    let differs = pid
        .bytes()
        .zip(new.bytes())
        .position(|(old, new)| old != new);
    // After `hello\n`.
    let place = 6 + differs.expect("another process has another number");
    let lost = protected.wait_for("connection_reset", 1);
    assert!(
        lost["reason"]
            .to_string()
            .contains(&format!("differs at byte {place}\"")),
        "{lost}"
    );
    protected.stop();
}

/// A difference far beyond the head of a turn.
fn late_difference(verify: &str) -> (Scene, Protected, TcpStream) {
    let scene = Scene::new("verify");
    let server = servers::test_server(&scene);
    let protected = scene.protect_with(&server, &["--verify", verify]);
    let stream = scene.connect(SERVER_PORT);
    // A single turn: the answers come without further input of the client.
    write(&stream, b"pattern 50000\npid\nsay end\n");
    let _ = read_exactly(&stream, 50_000 + 11 + 4);
    protected.kill_main(Signal::KILL);
    (scene, protected, stream)
}

#[test]
fn verify_full_detects_late_difference() {
    let (_scene, protected, stream) = late_difference("full");
    lost_only(&protected, &stream, "differs at byte 500");
    is_reset(&stream);
    protected.stop();
}

#[test]
fn verify_hash_detects_late_difference() {
    let (_scene, protected, stream) = late_difference("hash");
    lost_only(&protected, &stream, "differs before byte 500");
    is_reset(&stream);
    protected.stop();
}

#[test]
fn verify_head_and_off_miss_late_difference() {
    for verify in ["head", "off"] {
        let (_scene, protected, stream) = late_difference(verify);
        protected.wait_serving(1);
        talks(&stream, "on");
        protected.assert_none_of("connection_reset");
        // The event reports that most bytes were not compared.
        let verified = protected.wait_for("verified", 1);
        let compared = if verify == "head" { 4096 } else { 0 };
        assert_eq!(verified["compared"], compared, "{verified}");
        assert_eq!(verified["unverified"], 50_015 - compared, "{verified}");
        protected.stop();
    }
}

/// A long, slow response whose length differs in each incarnation: by default no byte of the later response reaches
/// the client.
#[test]
fn differing_response_is_not_forwarded() {
    let scene = Scene::new("other-answer");
    let protected = scene.protect(&servers::diverging(&scene));
    let mut stream = scene.connect(SERVER_PORT);
    let mut got = read_exactly(&stream, 2_000_000);
    protected.kill_main(Signal::KILL);
    let (mut more, mut ending) = (vec![0; 65_536], None);
    while ending.is_none() {
        match stream.read(&mut more) {
            Ok(0) => panic!("a proper end, not a reset"),
            Ok(len) => got.extend(&more[..len]),
            Err(error) => ending = Some(error.kind()),
        }
    }
    assert_eq!(ending, Some(ErrorKind::ConnectionReset));
    let begins = got
        .iter()
        .position(|byte| *byte == b'<')
        .expect("it is there");
    let counted = got[begins + 5..].chunks(8).enumerate();
    for (number, said) in counted {
        let wanted = format!("{number:08}").into_bytes();
        assert_eq!(said, &wanted[..said.len()], "{number}");
    }
    lost_only(&protected, &stream, "differs before byte ");
    protected.stop();
}

#[test]
fn verify_full_and_hash_compare_all_output() {
    for verify in ["full", "hash"] {
        let scene = Scene::new("verify-all");
        let server = servers::test_server(&scene);
        let protected = scene.protect_with(&server, &["--verify", verify]);
        let stream = scene.connect(SERVER_PORT);
        write(&stream, b"pattern 300000\n");
        let got = read_exactly(&stream, 300_000);
        assert_same_bytes("before", &pattern(300_000), &got);
        protected.kill_main(Signal::KILL);
        let verified = protected.wait_for("verified", 1);
        assert_eq!(verified["compared"], 300_000, "{verified}");
        assert_eq!(verified["sampled"], 0, "{verified}");
        assert_eq!(verified["unverified"], 0, "{verified}");
        talks(&stream, "on");
        protected.stop();
    }
}

/// HTTP's `Date` may differ by default, and is counted.
#[test]
fn ignored_date_header_differs() {
    let scene = Scene::new("date");
    let protected = scene.protect(&servers::nginx(&scene));
    let mut http = Http::new(scene.connect(SERVER_PORT));
    assert_eq!(http.get("/small/2").status, 200);
    // Until the date differs; a date counts seconds.
    thread::sleep(Duration::from_millis(1100));
    protected.kill_main(Signal::KILL);
    let verified = protected.wait_for("verified", 1);
    assert_eq!(verified["tolerated"], 1, "{verified}");
    assert_eq!(http.get("/small/2").status, 200);
    protected.stop();
}

#[test]
fn connection_over_record_limit() {
    let scene = Scene::new("limit");
    let server = servers::test_server(&scene);
    let protected = scene.protect_with(&server, &["--limit-per-connection", "1MiB"]);
    let small = echoing(&scene);
    let big = scene.connect(SERVER_PORT);
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
    // The connection continues without a trace.
    let expected = format!("{} {:016x}\n", content.len(), e2e::Checksum::of(&content));
    assert_same_bytes(
        "sum",
        expected.as_bytes(),
        &read_exactly(&big, expected.len()),
    );
    talks(&big, "on");
    let recording = scene.record(SERVER_PORT);
    protected.kill_main(Signal::KILL);
    lost_only(&protected, &big, "unprotected");
    is_reset(&big);
    echoes(&small, b"still here");
    let endings = recording.finish();
    assert_eq!(endings.iter().filter(|e| e.rst).count(), 1, "{endings:?}");
    protected.stop();
}
