//! Keys of services and loggers.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

use e2e::arrange::wait_until;
use e2e::exchange::Exchange;
use e2e::loggers::{key_file, new_key, write_keys};
use e2e::servers::{SERVER_PORT, test_server};
use e2e::{Answer, EVENT_TIMEOUT, Scene, Seed, binaries};
use lab::Signal;

use crate::{echoes, echoing, protect, status, with_logger};

/// `outlive serve` that is expected to refuse.
fn serve(scene: &Scene, flags: &[&str]) -> Answer {
    let mut command = scene.server.command("timeout");
    let limit = EVENT_TIMEOUT.as_secs().to_string();
    command.args(["-k", "1", &limit]).arg(binaries::outlive());
    command.args([
        "serve",
        "--address",
        &scene.ipv4(SERVER_PORT).to_string(),
        "--run-dir",
    ]);
    command
        .arg(scene.run_dir())
        .args(flags)
        .args(["--", "sleep", "1000"]);
    let output = command.output().expect("it starts");
    Answer {
        status: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[track_caller]
fn refused(answer: &Answer, code: i32, says: &[&str]) {
    assert_eq!(answer.status, Some(code), "{answer:?}");
    for word in says {
        assert!(
            answer.stderr.contains(word),
            "not {word:?}: {}",
            answer.stderr
        );
    }
}

#[test]
fn wrong_key_is_refused_with_advice() {
    let (scene, logger) = with_logger("link-wrong-key");
    let at = logger.address().to_string();
    let strange = key_file(&scene, "strange").to_string_lossy().into_owned();
    let answer = serve(&scene, &["--logger", &at, "--key-file", &strange]);
    refused(&answer, 77, &[&at, "no key of this name", "outlive key"]);

    // The right name, another secret.
    let keys = scene.directory().join("keys");
    let right = fs::read_to_string(&keys).expect("the keys");
    let (name, _) = right.split_once(':').expect("a key");
    let other = new_key(&scene);
    let (_, secret) = other.split_once(':').expect("a key");
    write_keys(strange.as_ref(), &[&format!("{name}:{secret}")]);
    let answer = serve(&scene, &["--logger", &at, "--key-file", &strange]);
    refused(&answer, 77, &["another key of this name"]);

    fs::set_permissions(&keys, Permissions::from_mode(0o644)).expect("chmod");
    let answer = serve(
        &scene,
        &["--logger", &at, "--key-file", &keys.to_string_lossy()],
    );
    refused(&answer, 78, &["chmod 600"]);
    refused(&serve(&scene, &["--logger", &at]), 64, &["--key-file"]);
}

#[test]
fn check_reports_logger_usability() {
    let (scene, logger) = with_logger("link-check");
    let check = |keys: &str, at: &str| {
        let mut command = scene.server.command(&binaries::outlive().to_string_lossy());
        command.args(["check", "--logger", at, "--key-file", keys]);
        let output = command.output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), said)
    };
    let keys = scene
        .directory()
        .join("keys")
        .to_string_lossy()
        .into_owned();
    let at = logger.address().to_string();
    let (code, good) = check(&keys, &at);
    assert_eq!(code, Some(0), "{good}");
    assert!(good.contains(&format!("ok   logger {at}")), "{good}");
    assert!(good.contains("packets of 1500 bytes"), "{good}");
    // The check leaves no record.
    wait_until("the check's session is gone", || {
        logger.log().contains("records dropped")
    });
    let strange = key_file(&scene, "strange");
    let (code, bad) = check(&strange.to_string_lossy(), &at);
    assert_eq!(code, Some(77), "{bad}");
    assert!(bad.contains(&format!("FAIL logger {at}")), "{bad}");
    let (code, nobody) = check(&keys, &at.replace(":7600", ":7601"));
    assert_eq!(code, Some(69), "{nobody}");
    assert!(nobody.contains("no process listens there"), "{nobody}");
}

#[test]
fn service_without_logger_runs_unprotected_with_warning() {
    let (scene, logger) = with_logger("link-nobody");
    logger.kill();
    let flags = logger.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let protected = scene.protect_with(&test_server(&scene), &flags);
    let lost = protected.wait_for("logger_lost", 1);
    assert_eq!(lost["connections"], 0, "{lost}");
    let trouble = protected.wait_for("warning", 1);
    assert!(
        trouble["message"]
            .to_string()
            .contains("no process listens there"),
        "{trouble}"
    );
    echoes(&echoing(&scene), b"served");
    protected.stop();
}

#[test]
fn link_keys_are_replaced_under_load() {
    let (scene, logger) = with_logger("link-rekey");
    let protected = protect(&scene, &test_server(&scene), &logger, &[]);
    thread::scope(|scope| {
        let load = scope.spawn(|| Exchange::default().undisturbed(|| scene.connect(SERVER_PORT)));
        // Each slot several times.
        while !load.is_finished() {
            protected.kill_serve(Signal::HUP);
            thread::sleep(Duration::from_millis(50));
        }
        load.join().expect("the load");
    });
    let stream = echoing(&scene);
    protected.kill_main(Signal::KILL);
    protected.wait_serving(1);
    echoes(&stream, b"afterwards");
    for bad in ["connection_reset", "logger_lost", "unprotected", "warning"] {
        protected.assert_none_of(bad);
    }
    let forged = &status(&protected)["counters"]["link_forged"];
    assert_eq!(forged, &0, "frames with a key that was not known");
    protected.stop();
}

#[test]
fn key_file_is_replaced_under_load() {
    let (scene, logger) = with_logger("link-rotation");
    let protected = protect(&scene, &test_server(&scene), &logger, &[]);
    // A single file on both hosts: both know the new key before the service uses the key.
    let keys = scene.directory().join("keys");
    let old = fs::read_to_string(&keys)
        .expect("the keys")
        .trim()
        .to_owned();
    let new = new_key(&scene);
    let (name, _) = new.split_once(':').expect("a key has a name");
    let mut seed = Seed::choose("link-rotation");
    let exchange = Exchange {
        kills: 3,
        pace: Duration::from_millis(25),
        ..Exchange::default()
    };
    exchange.run(
        &protected,
        &mut seed,
        || scene.connect(SERVER_PORT),
        |kill| {
            let keys_now: &[&str] = match kill {
                0 => &[&old, &new],
                1 => &[&new, &old],
                _ => &[&new],
            };
            write_keys(&keys, keys_now);
            wait_until("the logger has read the keys", || {
                logger.log().matches("key file has changed").count() > kill
            });
            wait_until("the service uses its first key", || {
                kill != 1 || logger.log().contains(&format!("with key {name}"))
            });
        },
    );
    protected.assert_none_of("connection_reset");
    protected.assert_none_of("logger_lost");
    protected.assert_none_of("warning");
    protected.stop();
}
