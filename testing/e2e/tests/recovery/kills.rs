//! Consecutive kills, fatal requests, and failing children.

use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use e2e::arrange::StartGate;
use e2e::clients::{Http, read_exactly, read_to_end, write};
use e2e::servers::{self, Crash, SERVER_PORT, signal_all};
use e2e::{EVENT_TIMEOUT, Protected, Scene, Seed, assert_same_bytes, children_of, pattern};
use lab::Signal;

use crate::{echoes, echoing, is_reset, lost_only, talks};

/// In a container the kernel knows a process by another number than `serve` does.
#[test]
fn error_exit_in_pid_namespace_is_recovered() {
    const UNSHARE_COMMAND: &[&str] = &[
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--",
    ];
    let scene = Scene::new("pidns");
    let server = servers::test_server(&scene);
    let mut protected = scene.protect_within(UNSHARE_COMMAND, &server, &[]);
    let stream = echoing(&scene);
    server.crash(&protected, Crash::Exit1);
    let died = protected.wait_for("died", 1);
    assert_eq!(died["cause"]["status"], 1, "{died}");
    let pid = protected.events_of("started")[0]["pid"].clone();
    assert_eq!(died["cause"]["pid"], pid, "{died}");
    let serving = protected.wait_serving(1);
    assert_eq!(serving["recovered"], 1, "{serving}");
    echoes(&stream, b"afterwards");
    protected.kill_serve_group(Signal::TERM);
    let status = protected.ended(EVENT_TIMEOUT).expect("serve ends");
    assert!(status.success(), "{status}: {}", protected.log());
    protected.assert_nothing_left();
}

/// Bytes that come without a gap from before the first kill to after the last.
fn download_through(kills: impl FnOnce(&Protected) + Send) {
    let scene = Scene::new("kills");
    let protected = scene.protect(&servers::nginx(&scene));
    let mut http = Http::new(scene.connect(SERVER_PORT));
    let recording = scene.record(SERVER_PORT);
    http.ask("/big.bin");
    let idle = Http::new(scene.connect(SERVER_PORT));
    let mut idle = idle;
    assert_eq!(idle.get("/small/1").status, 200);
    kills(&protected);
    let got = http.response(|_| ());
    assert_same_bytes("download", &pattern(servers::BIG_FILE_BYTES), &got.body);
    assert_same_bytes("idle", &pattern(3300), &idle.get("/small/4").body);
    protected.assert_none_of("connection_reset");
    let endings = recording.finish();
    assert!(endings.iter().all(|e| !e.rst && !e.fin), "{endings:?}");
    protected.stop();
}

/// Also kills in such quick succession that a request seems to be the cause. Then each connection waits for the
/// connection before, but only until the server has proved to live.
#[test]
fn consecutive_kills() {
    let mut seed = Seed::choose("consecutive_kills");
    let most = [5, 250][seed.between(0, 1)];
    download_through(|protected| {
        for kill in 1..=5 {
            let pause = u64::try_from(seed.between(0, most)).expect("small");
            thread::sleep(Duration::from_millis(pause));
            protected.kill_main(Signal::KILL);
            protected.wait_serving(kill);
        }
    });
}

/// Kills the server again at the first and at the second `event`; each death is reported before the next step.
#[track_caller]
fn second_kill_at(event: &str) {
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
fn second_kill_after_restart() {
    second_kill_at("restarted");
}

#[test]
fn second_kill_after_listen() {
    second_kill_at("listening");
}

#[test]
fn second_kill_after_splice() {
    second_kill_at("spliced");
}

#[test]
fn fatal_request_is_quarantined() {
    let scene = Scene::new("poison");
    let protected = scene.protect(&servers::test_server(&scene));
    let good = echoing(&scene);
    let content = pattern(100_000);
    write(&good, &content[..50_000]);
    let poison = scene.connect(SERVER_PORT);
    talks(&poison, "before");
    write(&poison, b"abort\n");
    lost_only(&protected, &poison, "died 3 times");
    is_reset(&poison);
    // On a busy machine a life may serve for a while before reading the request again: such a death does not count.
    assert!(
        protected.events_of("died").len() >= 4,
        "{}",
        protected.log()
    );
    write(&good, &content[50_000..]);
    assert_same_bytes("the other", &content, &read_exactly(&good, content.len()));
    protected.stop();
}

#[test]
fn two_fatal_requests_among_good_ones() {
    let scene = Scene::new("poisons");
    let protected = scene.protect(&servers::test_server(&scene));
    let good: Vec<TcpStream> = (0..5).map(|_| echoing(&scene)).collect();
    let poison: Vec<TcpStream> = (0..2).map(|_| scene.connect(SERVER_PORT)).collect();
    write(&poison[0], b"abort\n");
    write(&poison[1], b"exit 1\n");
    for number in 1..=2 {
        let lost = protected.wait_for("connection_reset", number);
        assert!(
            lost["reason"]
                .to_string()
                .contains("in the replay of this connection"),
            "{lost}"
        );
    }
    poison.iter().for_each(is_reset);
    good.iter().for_each(|stream| echoes(stream, b"still here"));
    assert_eq!(
        protected.events_of("connection_reset").len(),
        2,
        "{}",
        protected.log()
    );
    protected.stop();
}

/// By default a child that exits with a status other than 0 is no crash.
fn child_failure(flags: &[&str]) -> (Scene, Protected, TcpStream) {
    let scene = Scene::new("child");
    let mut server = servers::socat(&scene);
    let listen = server.command[1].clone();
    // Echoes a single line and fails.
    let child = "EXEC:\"sh -c \\'read line; echo $line; read more; exit 3\\'\",nofork";
    server.command = ["socat", &listen, child].map(str::to_owned).to_vec();
    let protected = scene.protect_with(&server, flags);
    let stream = scene.connect(SERVER_PORT);
    write(&stream, b"one\n");
    assert_same_bytes("first", b"one\n", &read_exactly(&stream, 4));
    (scene, protected, stream)
}

#[test]
fn failing_child_is_no_crash() {
    let (_scene, protected, stream) = child_failure(&[]);
    write(&stream, b"two\n");
    assert!(read_to_end(&stream).is_empty());
    protected.assert_none_of("died");
    protected.stop();
}

#[test]
fn failing_child_is_crash_on_any_failure() {
    let (_scene, protected, stream) = child_failure(&["--crash-on", "any-failure"]);
    write(&stream, b"two\n");
    let died = protected.wait_for("died", 1);
    assert_eq!(died["cause"]["status"], 3, "{died}");
    // The child fails again in each replay.
    lost_only(&protected, &stream, "died 3 times");
    is_reset(&stream);
    protected.stop();
}

/// A server with a process for each session: with `--crash-on main` the parent handles the death of a session. The
/// client sees the same end as without protection, and the other sessions notice no death.
#[test]
fn session_death_is_left_to_parent() {
    let scene = Scene::new("session");
    let server = servers::socat(&scene);
    let run = |kill: &dyn Fn()| {
        let recording = scene.record(SERVER_PORT);
        let (ended, other) = (scene.connect(SERVER_PORT), scene.connect(SERVER_PORT));
        echoes(&ended, b"one");
        echoes(&other, b"other");
        kill();
        let after = read_to_end(&ended);
        assert!(after.is_empty(), "{after:?}");
        echoes(&other, b"still here");
        drop(other);
        recording.await_ended(2);
        recording.finish()
    };
    let plain = {
        let plain = scene.plain(&server);
        let pid = plain.main_pid();
        run(&|| signal_all(&children_of(pid)[..1], Signal::KILL))
    };
    let protected = scene.protect_with(&server, &["--crash-on", "main"]);
    let endings = run(&|| protected.kill_worker(Signal::KILL));
    assert_eq!(plain, endings);
    protected.assert_none_of("died");
    // The main process is still watched.
    let stream = scene.connect(SERVER_PORT);
    echoes(&stream, b"before");
    protected.kill_main(Signal::KILL);
    let serving = protected.wait_serving(1);
    assert_eq!(serving["recovered"], 1, "{serving}");
    echoes(&stream, b"afterwards");
    protected.stop();
}

/// After the exit no process is left whose death would be a crash: a warning says that.
#[test]
fn exit_of_main_process_before_daemon_is_reported() {
    let scene = Scene::new("daemon");
    let mut server = servers::socat(&scene);
    let command = server.command.join(" ");
    let script =
        format!("{command} & while ! ss -Hltn | grep -q :{SERVER_PORT}; do sleep 0.01; done");
    server.command = ["sh", "-c", &script].map(str::to_owned).to_vec();
    let protected = scene.protect_with(&server, &["--crash-on", "main"]);
    let told = protected.wait_for("warning", 1);
    let message = told["message"].as_str().expect("words");
    assert!(message.contains("--crash-on=main"), "{told}");
    let stream = scene.connect(SERVER_PORT);
    echoes(&stream, b"served");
    protected.stop();
}

/// The new version does not start: the operator learns of the failure with the clients, and `serve` tries on.
#[test]
fn failed_operator_restart() {
    let scene = Scene::new("restart-no");
    let (server, gate) = StartGate::before(&scene, servers::test_server(&scene));
    let protected = scene.protect_with(&server, &["--recovery-timeout", "1s"]);
    let stream = echoing(&scene);
    gate.shut();
    let answer = protected.outlive("restart", &[]);
    assert_eq!(answer.status, Some(1), "{answer:?}");
    let words = "its server has not come up within 1 s, and its connections were reset";
    assert!(answer.stderr.contains(words), "{answer:?}");
    lost_only(&protected, &stream, "did not come back in time");
    gate.open();
    protected.wait_serving(1);
    echoes(&echoing(&scene), b"afterwards");
    protected.stop();
}

/// Another configuration, or another version: `serve` replaces the server, and clients see a pause. No event reports
/// a death.
#[test]
fn operator_restart() {
    let scene = Scene::new("restart");
    for (server, flags) in [
        (servers::test_server(&scene), &[][..]),
        (servers::nginx(&scene), &["--crash-on", "main"]),
    ] {
        let protected = scene.protect_with(&server, flags);
        let recording = scene.record(SERVER_PORT);
        let mut http = None;
        let mut stream = None;
        match server.name {
            "nginx" => {
                let mut one = Http::new(scene.connect(SERVER_PORT));
                one.ask("/small/1");
                assert_same_bytes("first", &pattern(500 + 700), &one.response(|_| ()).body);
                http = Some(one);
            }
            _ => stream = Some(echoing(&scene)),
        }
        let before = protected.main_pid();
        let answer = protected.outlive("restart", &["--json"]);
        assert_eq!(answer.status, Some(0), "{answer:?}");
        let answer = &answer.json()[0];
        assert_eq!(
            (&answer["recovered"], &answer["reset"]),
            (&1.into(), &0.into())
        );
        assert_ne!(protected.main_pid(), before);
        if let Some(http) = &mut http {
            http.ask("/small/2");
            assert_same_bytes("next", &pattern(500 + 2 * 700), &http.response(|_| ()).body);
        }
        if let Some(stream) = &stream {
            echoes(stream, b"afterwards");
        }
        protected.assert_none_of("died");
        protected.wait_for("restarting", 1);
        let endings = recording.finish();
        assert!(endings.iter().all(|e| !e.rst && !e.fin), "{endings:?}");
        protected.stop();
    }
}
