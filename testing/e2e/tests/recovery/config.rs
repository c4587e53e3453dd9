//! A service with a configuration file and no other options.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use e2e::arrange::{run, run_words};
use e2e::servers::{SERVER_PORT, test_server};
use e2e::{Answer, EVENT_TIMEOUT, Scene, binaries};
use lab::{Output, Signal};

use crate::{echoes, talks};

#[test]
fn service_runs_by_config_file_alone() {
    let scene = Scene::new("config");
    let server = test_server(&scene);
    let run_dir = scene.run_dir();
    let text = format!(
        "name = \"by-file-{}\"\naddress = {:?}\nrun-dir = {run_dir:?}\njson = true\ncommand = {:?}\n",
        std::process::id(),
        server
            .addresses
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        server.command,
    );
    let path = scene.write("web.toml", &text);
    let outlive = binaries::outlive().to_string_lossy().into_owned();
    let checked = check(&scene, &path, &[]);
    assert_eq!(checked.status, Some(0), "{checked:?}");
    let said = scene.directory().join("said");
    let mut command = scene.server.command(&outlive);
    command.args(["serve", "--config"]).arg(&path);
    let serve = scene
        .server
        .spawn(&mut command, &Output::File(said.clone()))
        .expect("it starts");
    let await_event = |event: &str, times: usize| {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        let event = format!("\"event\":\"{event}\"");
        loop {
            let said = std::fs::read_to_string(&said).unwrap_or_default();
            if said.matches(&event).count() >= times {
                return;
            }
            assert!(Instant::now() < deadline, "no {event}:\n{said}");
            thread::sleep(Duration::from_millis(5));
        }
    };
    await_event("protecting", 1);
    let stream = scene.connect(SERVER_PORT);
    talks(&stream, "before");
    let runs = check(&scene, &path, &["--json"]);
    assert_eq!(runs.status, Some(75), "{runs:?}");
    assert!(
        runs.stdout.contains("another outlive serve runs"),
        "{runs:?}"
    );
    let run_dir = run_dir.to_string_lossy();
    let status = run_words(
        &scene.server,
        &[&outlive, "status", "--json", "--run-dir", &run_dir],
    );
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let pid = &status["server_pid"];
    run(&scene.server, &format!("kill -KILL {pid}"));
    await_event("serving", 1);
    talks(&stream, "afterwards");
    let echo = crate::echoing(&scene);
    echoes(&echo, b"on");
    serve.kill(Signal::TERM).expect("it runs");
    let ended = serve.wait_with_timeout(EVENT_TIMEOUT).expect("wait");
    assert_eq!(ended.and_then(|ended| ended.code()), Some(0));
}

/// Runs `outlive check` with the file as configuration.
fn check(scene: &Scene, file: &Path, flags: &[&str]) -> Answer {
    let mut command = scene.server.command(&binaries::outlive().to_string_lossy());
    command.args(["check", "--config"]).arg(file).args(flags);
    let output = command.output().expect("it starts");
    Answer {
        status: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[test]
fn check_reads_config_file_as_serve() {
    let scene = Scene::new("config-check");
    let run_dir = scene.run_dir();
    for (text, status, says) in [
        ("adress = \"10.0.0.10:80\"", 78, "adress"),
        (
            "address = \"10.0.0.10:80\"\nring-size = 5",
            78,
            "--ring-size",
        ),
        ("address = \"10.0.0.10:80\"\nname = \"a/b\"", 78, "a/b"),
        ("address = \"10.0.0.77:80\"", 69, "10.0.0.77"),
        (
            "address = \"10.0.0.10:80\"\nmetrics = \"10.0.0.78:1\"",
            69,
            "10.0.0.78",
        ),
    ] {
        let text = format!("{text}\nrun-dir = {run_dir:?}\ncommand = [\"sleep\", \"1\"]\n");
        let answer = check(&scene, &scene.write("bad.toml", text), &[]);
        assert_eq!(answer.status, Some(status), "{answer:?}");
        let said = format!("{}{}", answer.stdout, answer.stderr);
        assert!(said.contains(says), "{answer:?}");
    }
}
