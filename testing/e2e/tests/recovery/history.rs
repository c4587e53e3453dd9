//! The history of events, after the end of `serve`.

use std::{
    fs::OpenOptions,
    io::Write as _,
    time::{SystemTime, UNIX_EPOCH},
};

use e2e::{EVENT_TIMEOUT, Protected, Scene, arrange::wait_until, servers};
use lab::Signal;
use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::Value;

use crate::{echoes, echoing};

/// The history of a service, with `cut_off` incomplete lines.
#[track_caller]
fn history(protected: &Protected, directory: &str, more: &[&str], cut_off: usize) -> Vec<Value> {
    let arguments = ["--json", "--history", directory, protected.name()];
    let answer = protected.outlive("history", &[&arguments, more].concat());
    assert_eq!(answer.status, Some(0), "{answer:?}");
    assert_eq!(answer.stderr.lines().count(), cut_off.min(1), "{answer:?}");
    answer.json()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let kinds = events.iter().filter_map(|event| event["event"].as_str());
    kinds.collect()
}

/// Waits until the history has `number` events of this kind: a thread writes the history.
#[track_caller]
fn await_kind(protected: &Protected, directory: &str, kind: &str, number: usize) {
    wait_until("it is in the history", || {
        let events = history(protected, directory, &[], 0);
        kinds(&events).iter().filter(|one| **one == kind).count() == number
    });
}

/// The numbers of the runs that have told these, in order.
fn runs(events: &[Value]) -> Vec<u64> {
    let mut runs: Vec<u64> = events
        .iter()
        .map(|event| event["run_unix_us"].as_u64().expect("a number"))
        .collect();
    runs.dedup();
    runs
}

/// A reader of the history, or a client of a `serve` that may be a new process, knows the `serve` of each event. The
/// start time precedes the first event: `serve` first reads the file, which the test writes only now.
#[test]
fn events_carry_start_time_of_serve() {
    let scene = Scene::new("begun");
    let server = servers::test_server(&scene);
    let file = scene.directory().join("web.toml");
    let made = mkfifoat(CWD, &file, Mode::RUSR | Mode::WUSR);
    made.expect("a named pipe");
    let flags = ["--config", &file.to_string_lossy()];
    let protected = scene.try_to_protect(&server, &flags);
    let mut writes = OpenOptions::new()
        .write(true)
        .open(&file)
        .expect("serve reads");
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    writes
        .write_all(b"verify = \"head\"\n")
        .expect("serve reads");
    drop(writes);
    let told = protected.wait_for("protecting", 1);
    let began = told["run_unix_us"].as_u64().expect("a number");
    assert!(u128::from(began) <= since.as_micros(), "{told}");
    protected.stop();
}

#[test]
fn events_of_consecutive_serves_are_distinguished() {
    let scene = Scene::new("runs");
    let directory = scene.directory().join("history");
    let directory = directory.to_string_lossy();
    let server = servers::test_server(&scene);
    let flags = ["--history", &directory];
    let mut first = scene.protect_with(&server, &flags);
    // Another thread writes the history: an event just before a kill may be missing.
    await_kind(&first, &directory, "protecting", 1);
    first.kill_serve_itself();
    first.succeed(&scene, &server, &flags);
    first.kill_serve(Signal::TERM);
    assert!(first.ended(EVENT_TIMEOUT).is_some());
    first.begin_anew(&server, &flags);
    let second = first;
    second.wait_for("protecting", 1);
    await_kind(&second, &directory, "protecting", 2);
    let events = history(&second, &directory, &[], 0);
    let all = runs(&events);
    assert_eq!(all.len(), 3, "{events:?}");
    assert!(all.is_sorted_by(|one, next| one < next), "{all:?}");
    let asked = second.outlive("events", &["--json"]);
    assert_eq!(runs(&asked.json()), all[2..], "{asked:?}");
    second.stop();
}

#[test]
fn events_survive_serve() {
    let scene = Scene::new("history");
    let directory = scene.directory().join("history");
    let directory = directory.to_string_lossy();
    let server = servers::test_server(&scene);
    let flags = ["--history", &directory];
    let mut protected = scene.protect_with(&server, &flags);
    let stream = echoing(&scene);
    protected.kill_main(Signal::KILL);
    protected.wait_serving(1);
    echoes(&stream, b"on");
    let restarted = protected.outlive("restart", &[]);
    assert_eq!(restarted.status, Some(0), "{restarted:?}");
    await_kind(&protected, &directory, "serving", 2);
    protected.kill_serve_itself();
    protected.succeed(&scene, &server, &flags);
    await_kind(&protected, &directory, "adopted", 1);

    let events = history(&protected, &directory, &[], 0);
    let mut told: Vec<&str> = kinds(&events);
    told.retain(|kind| *kind != "logger_in_use"); // one on another machine is told first
    assert_eq!(told[..2], ["started", "protecting"], "{told:?}");
    for event in &events {
        assert_eq!(event["version"], 1, "{event}");
        assert!(event["time_unix_us"].is_u64(), "{event}");
    }
    let of = |kind| events.iter().find(|event| event["event"] == kind);
    let died = of("died").expect("told")["message"].to_string();
    assert!(died.contains("test-server (pid "), "{died}");
    let asked = of("operator_request").expect("told");
    assert_eq!(asked["request"], "restart");
    assert_eq!(asked["by"]["uid"], 0);
    let command = asked["by"]["command"].to_string();
    assert!(command.contains("outlive restart"), "{command}");
    assert!(history(&protected, &directory, &["--since", "2100-01-01"], 0).is_empty());
    let words = protected.outlive("history", &["--history", &directory, "--since", "1h"]);
    assert!(
        words.stdout.contains(" restart requested by root"),
        "{words:?}"
    );

    // A crash in the middle of a line: only that line is lost.
    protected.kill_serve_itself();
    let file = scene.directory().join("history").join(protected.name());
    let mut file = OpenOptions::new()
        .append(true)
        .open(file.join("events.jsonl"));
    let cut = b"{\"version\":1,\"time_unix";
    file.as_mut()
        .expect("a history")
        .write_all(cut)
        .expect("written");
    let before = events.len();
    let cleaned = protected.outlive("clean", &["--kill", "--history", &directory]);
    assert_eq!(cleaned.status, Some(0), "{cleaned:?}");
    let events = history(&protected, &directory, &[], 1);
    assert_eq!(events.len(), before + 1);
    let last = &events[before];
    assert_eq!(last["event"], "cleaned", "{last}");
    assert!(
        last["by"]["command"].to_string().contains("clean --kill"),
        "{last}"
    );
    protected.assert_nothing_left();
}

/// The service goes on, and says so once.
#[test]
fn unwritable_history_is_no_failure() {
    let scene = Scene::new("no-history");
    let server = servers::test_server(&scene);
    let protected = scene.protect_with(&server, &["--history", "/dev/full"]);
    let stream = echoing(&scene);
    let trouble = protected.wait_for("warning", 1);
    assert_eq!(trouble["code"], "history_not_written", "{trouble}");
    for recovery in [1, 2] {
        protected.kill_main(Signal::KILL);
        protected.wait_serving(recovery);
        echoes(&stream, b"on");
    }
    assert_eq!(protected.events_of("warning").len(), 1);
    protected.stop();
}
