//! Output of `status`, `events`, `check` and `clean`.

use std::{
    fs,
    io::Read as _,
    mem::MaybeUninit,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use e2e::arrange::{run, wait_until};
use e2e::servers::{self, SERVER_PORT};
use e2e::{EVENT_TIMEOUT, Protected, Scene, binaries};
use lab::{Output, Process, Signal};
use rustix::fs::inotify;

use crate::{echoes, echoing, talks};

#[test]
fn status_and_events() {
    let scene = Scene::new("verbs");
    let protected = scene.protect(&servers::test_server(&scene));
    let (stream, silent) = (echoing(&scene), scene.connect(SERVER_PORT));
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
        words
            .stdout
            .contains("2 open, all protected; 2 carried over a crash"),
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
    assert!(words.stdout.contains("was killed by SIGKILL"), "{words:?}");

    let unknown = protected.outlive("status", &["nobody"]);
    assert_eq!(unknown.status, Some(64), "{unknown:?}");
    assert!(
        unknown
            .stderr
            .starts_with("outlive: no service is called nobody"),
        "{unknown:?}"
    );
    let unknown = protected.outlive("status", &["--json", "nobody"]);
    let error: serde_json::Value = serde_json::from_str(&unknown.stderr).expect("JSON");
    assert!(
        error["error"]
            .to_string()
            .contains("no service is called nobody"),
        "{error}"
    );
    assert_eq!(error["code"], "no_service", "{error}");
    drop(silent);
    protected.stop();
}

/// A server that becomes a daemon leaves the first process: the daemon is the server then, and gets the request to
/// end.
#[test]
fn status_shows_daemonized_server() {
    let scene = Scene::new("daemon");
    let server = servers::nginx(&scene);
    let path = scene.directory().join("nginx.conf");
    let config = fs::read_to_string(&path).expect("its configuration");
    fs::write(&path, config.replace("daemon off;", "")).expect("written");
    let protected = scene.protect(&server);
    wait_until("the daemon is the server", || {
        let pid = fs::read_to_string(scene.directory().join("nginx.pid"));
        let status = protected.outlive("status", &["--json"]);
        let known = status.json()[0]["server_pid"].to_string();
        pid.is_ok_and(|pid| pid.trim() == known)
    });
    protected.stop();
    // nginx removes the file at an orderly end.
    assert!(!scene.directory().join("nginx.pid").exists());
}

/// How much of a record there is, and how much there may be.
#[test]
fn status_shows_record_size() {
    const PIECE_BYTES: usize = 64 << 10;
    let scene = Scene::new("limits");
    let limits = ["--limit-total", "4MiB", "--limit-per-connection", "1MiB"];
    let protected = scene.protect_with(&servers::test_server(&scene), &limits);
    let stream = echoing(&scene);
    let half = || (0..8).for_each(|_| echoes(&stream, &[b'x'; PIECE_BYTES]));
    half();
    // The logger reads the mirrored segments with a delay.
    let least = Some(8 * PIECE_BYTES as u64);
    wait_until("all is recorded", || {
        status(&protected)["list"][0]["recorded_bytes"].as_u64() >= least
    });
    let shown = status(&protected);
    assert_eq!(shown["limit_bytes"], 4 << 20, "{shown}");
    assert_eq!(shown["connection_limit_bytes"], 1 << 20, "{shown}");
    assert!(shown["held_bytes"].as_u64() >= least, "{shown}");
    let words = protected.outlive("status", &["--connections"]).stdout;
    for part in [
        " % of 4.0 MiB used (--limit-total)",
        "1.0 MiB for a connection (--limit-per-connection)",
        "512.0 KiB recorded (51 %), protected",
    ] {
        assert!(words.contains(part), "{part} in {words}");
    }
    half();
    protected.wait_for("unprotected", 1);
    let full = status(&protected);
    assert!(full["list"][0]["recorded_bytes"].is_null(), "{full}");
    protected.stop();
}

fn status(protected: &Protected) -> serde_json::Value {
    let status = protected.outlive("status", &["--json", "--connections"]);
    status.json()[0].clone()
}

/// Asserts the message of `check` and `serve` about this service; both print the same message.
#[track_caller]
fn is_in_the_way(scene: &Scene, name: &str, code: &str, said: &str) {
    for verb in ["check", "serve"] {
        let mut command = scene.server.command(&binaries::outlive().to_string_lossy());
        command.args([verb, "--json", "--name", name, "--run-dir"]);
        command.arg(scene.run_dir());
        command.args(["--address", &scene.ipv4(SERVER_PORT).to_string()]);
        let output = command.args(["--", "sleep", "1000"]).output();
        let output = output.expect("it starts");
        assert_eq!(output.status.code(), Some(75), "{verb}: {output:?}");
        let all = [output.stdout, output.stderr].concat();
        let all = String::from_utf8_lossy(&all).into_owned();
        let code = format!("\"code\":\"{code}\"");
        assert!(all.contains(&code) && all.contains(said), "{verb}: {all}");
    }
}

/// A starting `serve` holds the lock of the service, and answers no request yet.
#[test]
fn check_detects_starting_serve() {
    let scene = Scene::new("about");
    let directory = scene.run_dir().join("web");
    fs::create_dir_all(&directory).expect("a directory");
    let holds = "import fcntl, sys\nfile = open(sys.argv[1], 'w')\nfcntl.lockf(file, fcntl.LOCK_EX)\nprint(flush=True)\nsys.stdin.read()";
    let mut holder = Command::new("/usr/bin/python3")
        .args(["-c", holds])
        .arg(directory.join("lock"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python");
    let mut has_it = [0];
    let told = holder
        .stdout
        .take()
        .expect("a pipe")
        .read_exact(&mut has_it);
    told.expect("it has the lock");
    is_in_the_way(&scene, "web", "already_served", "runs the service web");
    drop(holder.stdin.take());
    assert!(holder.wait().expect("wait").success());
}

/// A service whose server does not listen yet owns the addresses, under any name.
#[test]
fn check_detects_addresses_of_starting_service() {
    let scene = Scene::new("not-yet");
    let mut server = servers::test_server(&scene);
    server.command = ["sleep", "1000"].map(str::to_owned).to_vec();
    server.addresses = vec![scene.ipv4(SERVER_PORT)];
    let protected = scene.try_to_protect(&server, &[]);
    protected.wait_for("started", 1);
    let said = format!(
        "{} is an address of the service {}, which another outlive serve runs on this host (process {})",
        scene.ipv4(SERVER_PORT),
        protected.name(),
        protected.serve_pid().as_raw_nonzero()
    );
    is_in_the_way(&scene, "other", "address_of_another_service", &said);
    protected.stop();
}

/// Of two concurrent starts with an address, one continues, and the other names the winner.
#[test]
fn concurrent_starts_leave_one_serve() {
    let scene = Scene::new("two-at-once");
    let said = |name: &str| {
        let said = fs::read_to_string(scene.directory().join(name));
        said.unwrap_or_default()
    };
    let begin = |name: &str| {
        let mut command = scene.server.command(&binaries::outlive().to_string_lossy());
        command.args(["serve", "--json", "--name", name, "--run-dir"]);
        command.arg(scene.run_dir());
        command.args([
            "--address",
            &scene.ipv4(SERVER_PORT).to_string(),
            "--",
            "sleep",
            "1000",
        ]);
        let output = Output::File(scene.directory().join(name));
        scene
            .server
            .spawn(&mut command, &output)
            .expect("it starts")
    };
    let status = |serve: &Process| {
        let ended = serve.wait_with_timeout(Duration::ZERO).expect("wait");
        ended.and_then(|ended| ended.code())
    };
    for round in 0..5 {
        let names = ["one", "other"].map(|name| format!("{name}-{round}"));
        let mut both = names.map(|name| {
            let serve = begin(&name);
            (name, serve)
        });
        wait_until("one has begun, or both have ended", || {
            let begun = |name: &str| said(name).contains("\"event\":\"started\"");
            both.iter().any(|(name, _)| begun(name))
                || both.iter().all(|(_, serve)| status(serve).is_some())
        });
        if !said(&both[0].0).contains("\"event\":\"started\"") {
            both.reverse();
        }
        let [(goes_on, first), (refused, second)] = both;
        wait_until("the other one is refused", || status(&second).is_some());
        assert_eq!(
            (status(&first), status(&second)),
            (None, Some(75)),
            "{}",
            said(&goes_on)
        );
        let its = format!("the service {goes_on}");
        let why = said(&refused);
        assert!(
            why.contains("address_of_another_service") && why.contains(&its),
            "{why}"
        );
        first.kill(Signal::TERM).expect("it runs");
        let ended = first.wait_with_timeout(EVENT_TIMEOUT).expect("wait");
        assert_eq!(
            ended.and_then(|ended| ended.code()),
            Some(0),
            "{}",
            said(&goes_on)
        );
    }
}

/// Else of two that begin at the same time each would refuse the other.
#[test]
fn refused_serve_never_owns_address() {
    let scene = Scene::new("never-had");
    let mut server = servers::test_server(&scene);
    server.command = ["sleep", "1000"].map(str::to_owned).to_vec();
    server.addresses = vec![scene.ipv4(SERVER_PORT)];
    let protected = scene.try_to_protect(&server, &[]);
    protected.wait_for("started", 1);
    let directory = scene.run_dir().join("other");
    fs::create_dir_all(&directory).expect("a directory");
    let seen = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK);
    let seen = seen.expect("inotify");
    let kinds = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
    inotify::add_watch(&seen, &directory, kinds).expect("it is there");
    let said = format!("the service {}", protected.name());
    is_in_the_way(&scene, "other", "address_of_another_service", &said);
    let mut room = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(&seen, &mut room);
    let mut files = Vec::new();
    while let Ok(event) = events.next() {
        let name = event
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        files.extend(name);
    }
    assert!(files.contains(&"lock".to_owned()), "{files:?}");
    assert!(!files.contains(&"options.json".to_owned()), "{files:?}");
    protected.stop();
}

#[test]
fn check_reports_missing_requirements() {
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

    let taken = scene.ipv4(SERVER_PORT).to_string();
    let named = ["--json", "--name", "other", "--replay", "request"];
    let more = ["--address", &taken, "--", "no-such-program"];
    let bad = protected.outlive("check", &[&named[..], &more].concat());
    assert_eq!(bad.status, Some(78), "{bad:?}");
    let wrong: Vec<_> = bad
        .json()
        .into_iter()
        .filter(|f| f["ok"] == false)
        .collect();
    let questions: Vec<_> = wrong
        .iter()
        .filter_map(|f| f["question"].as_str())
        .collect();
    assert_eq!(questions, ["command", "addresses"], "{bad:?}");

    let words = protected.outlive("check", &["--address", "192.0.2.1:80"]);
    assert_eq!(words.status, Some(69), "{words:?}");
    assert!(words.stdout.contains("FAIL addresses"), "{words:?}");

    // May hosts take over from each other?
    let keys = e2e::loggers::key_file(&scene, "keys");
    let host = scene.lab.add_host_at("logger", 20).expect("a host");
    let logger = e2e::loggers::Logger::start(&scene, &host, &keys, &[]);
    let at = logger.address().to_string();
    let keys = keys.to_string_lossy();
    let pair = |address: &str, device: &str, loggers: &[&str], more: &[&str]| {
        let mut arguments = vec!["--json", "--address", address, "--address-device", device];
        arguments.extend(["--key-file", &keys]);
        arguments.extend(loggers.iter().flat_map(|logger| ["--logger", logger]));
        arguments.extend(more);
        let checked = protected.outlive("check", &arguments);
        let findings = checked.json();
        let mut found = findings.into_iter();
        let found = found.find(|found| found["question"] == "another host can take over");
        let found = found.unwrap_or_else(|| panic!("it is not asked: {checked:?}"));
        (checked.status, found)
    };
    let one = [at.as_str()];
    let two = [at.as_str(); 2];
    let (status, found) = pair("10.0.0.110:80", "eth0", &one, &[]);
    assert_eq!((status, &found["ok"]), (Some(0), &true.into()), "{found}");
    // `serve` starts with a warning; a standby would wait in vain. (`serve` refuses the options with two loggers.)
    let (alone, either) = (&[0][..], &[0, 78][..]);
    for (address, device, loggers, word, statuses) in [
        (free.as_str(), "eth0", &one[..], "ip address del", either),
        ("10.0.0.110:80", "lo", &one, "network card", either),
        ("10.0.0.110:80", "eth0", &two, "one --logger", alone),
    ] {
        for &status in statuses {
            let more = if status == 0 { &[][..] } else { &["--standby"] };
            let (ended, found) = pair(address, device, loggers, more);
            let why = found["answer"].as_str().unwrap_or_default();
            assert!(found["ok"] == false && why.contains(word), "{found}");
            assert_eq!(found["warning"] == true, status == 0, "{found}");
            assert_eq!(ended, Some(status), "{found}");
        }
    }
    protected.stop();
}

#[test]
fn clean_after_killed_serve() {
    let scene = Scene::new("clean");
    let server = servers::test_server(&scene);
    let loopback = || run(&scene.server, "cat /proc/sys/net/ipv4/conf/lo/accept_local");
    let before = loopback();
    let mut protected = scene.protect(&server);
    let stream = echoing(&scene);
    let name = protected.name().to_owned();
    assert_ne!(loopback(), before);

    // A running service is left alone.
    let running = protected.outlive("clean", &[&name]);
    assert_ne!(running.status, Some(0), "{running:?}");
    echoes(&stream, b"one");

    protected.kill_serve(Signal::KILL);
    assert!(protected.ended(EVENT_TIMEOUT).is_some());
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
    assert_eq!(said["settings"], 2); // of the loopback, and tcp_min_rtt_wlen
    assert_eq!(loopback(), before);
    protected.assert_nothing_left();

    // The name and the addresses are free again.
    let again = scene.protect(&server);
    echoing(&scene);
    again.stop();
}

#[test]
fn clean_without_leftovers() {
    let scene = Scene::new("clean-nothing");
    let protected = scene.protect(&servers::test_server(&scene));
    // `clean` leaves a running service alone, and other services need no cleaning.
    let all = protected.outlive("clean", &[]);
    assert_eq!(all.status, Some(0), "{all:?}");
    let nobody = protected.outlive("clean", &["nobody"]);
    assert_eq!(nobody.status, Some(64), "{nobody:?}");
    let name = protected.name();
    for word in ["no service is called nobody", name] {
        assert!(nobody.stderr.contains(word), "{nobody:?}");
    }
    talks(&scene.connect(SERVER_PORT), "on");
    protected.stop();
}

/// A stopped `serve` may never answer.
#[test]
fn stopped_serve_is_not_awaited() {
    let scene = Scene::new("stopped");
    let protected = scene.protect(&servers::test_server(&scene));
    protected.kill_serve(Signal::STOP);
    thread::scope(|scope| {
        for verb in ["status", "events", "restart"] {
            let protected = &protected;
            scope.spawn(move || {
                let answer = protected.outlive(verb, &[protected.name()]);
                assert_eq!(answer.status, Some(1), "{answer:?}");
                assert!(answer.stderr.contains("has not answered"), "{answer:?}");
            });
        }
    });
    protected.kill_serve(Signal::CONT);
    let status = protected.outlive("status", &[protected.name()]);
    assert_eq!(status.status, Some(0), "{status:?}");
    protected.stop();
}
