//! Death of `serve`, and adoption of the service by the next `serve`.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use e2e::binaries::outlive;
use e2e::clients::{read_exactly, write};
use e2e::exchange::Exchange;
use e2e::manager::Manager;
use e2e::servers::{self, SERVER_PORT, nginx};
use e2e::{Scene, Seed, assert_same_bytes};
use lab::{Output, Signal};

use crate::layouts::{logger_of, pins};
use crate::{echoes, echoing, needy, talks};

/// Clients are at work. `serve` is killed, a `serve` of the program `next` adopts, and then the server dies.
pub(crate) fn is_adopted_under_load(label: &str, flags: &[&str], next: PathBuf) {
    let scene = Scene::new(label);
    let server = servers::test_server(&scene);
    let mut protected = scene.protect_with(&server, flags);
    let pid = protected.main_pid();
    let recording = scene.record(SERVER_PORT);
    let exchange = Exchange {
        kills: 3,
        ..Exchange::default()
    };
    let early = echoing(&scene);
    let connect = || scene.connect(SERVER_PORT);
    let mut seed = Seed::choose(label);
    exchange.disturbed(&mut seed, connect, |moment| match moment {
        0 => protected.kill_serve_itself(),
        1 => {
            protected.set_binary(next.clone());
            let adopted = protected.succeed(&scene, &server, flags);
            assert_eq!(adopted["pid"], pid.as_raw_pid(), "{adopted}");
        }
        _ => {
            protected.kill_main(Signal::KILL);
            let serving = protected.wait_serving(1);
            assert_eq!(serving["reset"], 0, "{serving}");
        }
    });
    echoes(&early, b"afterwards");
    drop(early);
    let endings = recording.finish();
    assert!(endings.iter().all(|ending| !ending.rst), "{endings:?}");
    assert!(pins(&scene, protected.name(), "staged-v").is_empty());
    protected.stop();
}

#[test]
fn adopted_connections_survive_next_crash() {
    is_adopted_under_load("adopt-load", &[], outlive());
}

#[test]
fn server_death_without_serve_is_recovered() {
    let scene = Scene::new("adopt-dead");
    let server = servers::test_server(&scene);
    let mut protected = scene.protect(&server);
    let stream = echoing(&scene);
    let recording = scene.record(SERVER_PORT);
    let pid = protected.main_pid();
    protected.kill_serve_itself();
    servers::signal_all(&[pid], Signal::KILL);
    write(&stream, b"into the void");
    let adopted = protected.succeed(&scene, &server, &[]);
    assert!(adopted["pid"].is_null(), "{adopted}");
    let died = protected.wait_for("died", 1);
    assert_eq!(died["cause"]["signal"], 9, "{died}");
    let serving = protected.wait_serving(1);
    assert_eq!(
        (&serving["recovered"], &serving["reset"]),
        (&1.into(), &0.into()),
        "{serving}"
    );
    assert_same_bytes("echo", b"into the void", &read_exactly(&stream, 13));
    let endings = recording.finish();
    assert!(
        endings.iter().all(|ending| !ending.rst && !ending.fin),
        "{endings:?}"
    );
    protected.stop();
}

#[test]
fn interrupted_recovery_is_restarted() {
    let scene = Scene::new("adopt-recovering");
    let (server, file) = needy(&scene);
    let mut protected = scene.protect(&server);
    let stream = echoing(&scene);
    fs::remove_file(&file).expect("remove the needed file");
    protected.kill_main(Signal::KILL);
    protected.wait_for("died", 2);
    protected.kill_serve_itself();
    fs::write(&file, "").expect("restore the needed file");
    protected.succeed(&scene, &server, &[]);
    let serving = protected.wait_serving(1);
    assert_eq!(serving["recovered"], 1, "{serving}");
    echoes(&stream, b"afterwards");
    protected.stop();
}

#[test]
fn nginx_with_workers_is_adopted_twice_and_stops() {
    let scene = Scene::new("adopt-nginx");
    let server = nginx(&scene);
    let mut protected = scene.protect(&server);
    for _ in 0..2 {
        protected.kill_serve_itself();
        let adopted = protected.succeed(&scene, &server, &[]);
        assert!(adopted["pid"].is_number(), "{adopted}");
    }
    protected.kill_worker(Signal::KILL);
    protected.wait_serving(1);
    protected.stop();
}

#[test]
fn clsact_programs_are_replaced() {
    let scene = Scene::new("adopt-clsact");
    let server = servers::test_server(&scene);
    let flags = ["--attach", "clsact"];
    let mut protected = scene.protect_with(&server, &flags);
    let stream = echoing(&scene);
    protected.kill_serve_itself();
    protected.succeed(&scene, &server, &flags);
    protected.kill_main(Signal::KILL);
    let serving = protected.wait_serving(1);
    assert_eq!(serving["recovered"], 1, "{serving}");
    echoes(&stream, b"afterwards");
    protected.stop();
}

#[test]
fn service_of_other_layout_is_refused() {
    let scene = Scene::new("adopt-layout");
    let server = servers::test_server(&scene);
    let mut protected = scene.protect(&server);
    let stream = echoing(&scene);
    protected.kill_serve_itself();
    // As if the maps were from another version.
    let name = protected.name().to_owned();
    let pins = pins_of(&scene, &name);
    let layouts = pins.parent().and_then(Path::parent).expect("a layout");
    let other = layouts.join("replay-v999");
    fs::create_dir_all(&other).expect("make a directory");
    let moved = other.join(pins.file_name().expect("a name"));
    fs::rename(&pins, &moved).expect("move the pins");
    let address = scene.ipv4(SERVER_PORT).to_string();
    let flags = [
        "--name",
        &name,
        "--address",
        &address,
        "--",
        "sleep",
        "1000",
    ];
    let refused = protected.outlive("serve", &flags);
    assert_eq!(refused.status, Some(78), "{refused:?}");
    assert!(refused.stderr.contains("layout 999"), "{refused:?}");
    echoes(&stream, b"still");
    fs::create_dir_all(pins.parent().expect("a layout")).expect("make a directory");
    fs::rename(&moved, &pins).expect("move the pins back");
    fs::remove_dir(&other).expect("remove a directory");
    protected.succeed(&scene, &server, &[]);
    protected.kill_main(Signal::KILL);
    protected.wait_serving(1);
    echoes(&stream, b"afterwards");
    protected.stop();
}

/// The directory of the service's pinned maps: on the host's BPF file system, or on a mount of the service.
fn pins_of(scene: &Scene, name: &str) -> PathBuf {
    let own = scene.run_dir().join(name).join("bpf");
    let entries = |path: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let places = [PathBuf::from("/sys/fs/bpf"), own];
    let layouts = places
        .iter()
        .flat_map(|place| entries(&place.join("outlive")));
    let services: Vec<PathBuf> = layouts.flat_map(|layout| entries(&layout)).collect();
    let ours = |path: &&PathBuf| {
        let file = path.file_name().map(|file| file.to_string_lossy());
        file.is_some_and(|file| file.starts_with(name))
    };
    services.iter().find(ours).expect("its pins").clone()
}

#[test]
fn serve_notifies_service_manager() {
    let scene = Scene::new("notify");
    let manager = Manager::new(&scene);
    let mut command = manager.command(&scene.server);
    command
        .arg(e2e::binaries::outlive())
        .args(["serve", "--run-dir"]);
    command
        .arg(scene.run_dir())
        .args(["--address", &scene.ipv4(SERVER_PORT).to_string(), "--"]);
    command.args(&servers::test_server(&scene).command);
    let said = Output::File(scene.directory().join("notify.said"));
    let process = scene.server.spawn(&mut command, &said).expect("it starts");
    manager.await_message("READY=1");
    let here = format!("STATUS=serving: {}", scene.ipv4(SERVER_PORT));
    manager.await_message(&here);
    manager.await_message("WATCHDOG=1");
    manager.await_message("WATCHDOG=1");
    talks(&scene.connect(SERVER_PORT), "ready");
    process.kill(Signal::TERM).expect("a signal");
    manager.await_message("STOPPING=1");
    let ended = process.wait_with_timeout(e2e::EVENT_TIMEOUT).expect("wait");
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}

#[test]
fn incomplete_records_are_not_trusted() {
    let scene = Scene::new("adopt-late");
    let server = servers::test_server(&scene);
    let mut protected = scene.protect(&server);
    let stream = scene.connect(SERVER_PORT);
    talks(&stream, "before");
    protected.kill_serve_itself();
    // The programs go on recording for ten seconds.
    thread::sleep(Duration::from_secs(11));
    talks(&stream, "unseen");
    protected.succeed(&scene, &server, &[]);
    talks(&stream, "afterwards");
    let said = protected.outlive("status", &["--json", protected.name()]);
    assert_eq!(said.json()[0]["unprotected"], 1, "{said:?}");
    protected.stop();
}

#[test]
fn changed_options_are_refused() {
    let scene = Scene::new("adopt-options");
    let server = servers::test_server(&scene);
    let mut protected = scene.protect(&server);
    let stream = echoing(&scene);
    protected.kill_serve_itself();
    let name = protected.name().to_owned();
    let address = scene.ipv4(SERVER_PORT).to_string();
    let refused = protected.outlive(
        "serve",
        &[
            "--name",
            &name,
            "--address",
            &address,
            "--replay",
            "request",
            "--",
            "sleep",
            "1000",
        ],
    );
    assert_eq!(refused.status, Some(78), "{refused:?}");
    assert!(refused.stderr.contains("another --address"), "{refused:?}");
    echoes(&stream, b"still");
    protected.succeed(&scene, &server, &[]);
    protected.kill_main(Signal::KILL);
    protected.wait_serving(1);
    echoes(&stream, b"afterwards");
    protected.stop();
}

/// A logger process that does not answer still maps the ring: two readers would share the frames.
#[test]
fn stopped_logger_is_ended_before_next_reads_ring() {
    let scene = Scene::new("adopt-stopped-logger");
    let server = servers::test_server(&scene);
    let mut protected = scene.protect(&server);
    let stream = echoing(&scene);
    // A logger on another machine reads no ring.
    let Some(former) = logger_of(&protected) else {
        return;
    };
    protected.kill_serve_itself();
    lab::signal(former, Signal::STOP).expect("it runs");
    protected.succeed(&scene, &server, &[]);
    let restarted = protected.wait_for("logger_restarted", 1);
    assert_eq!(restarted["connections"], 1, "{restarted}");
    assert_ne!(logger_of(&protected), Some(former));
    // The dead `serve` has no successor that collects the status of the process.
    let stat = fs::read_to_string(format!("/proc/{former}/stat")).unwrap_or_default();
    let has_ended = stat.is_empty() || stat.contains(") Z ");
    assert!(has_ended, "two loggers read the ring: {stat}");
    echoes(&stream, b"unprotected");
    let recorded = echoing(&scene);
    protected.kill_main(Signal::KILL);
    let serving = protected.wait_serving(1);
    let counts = (&serving["recovered"], &serving["reset"]);
    assert_eq!(counts, (&1.into(), &1.into()), "{serving}");
    echoes(&recorded, b"afterwards");
    protected.stop();
}

/// An upgrade renames the new binary over the old binary. Until a restart of `serve`, the logger process has the old
/// version.
#[test]
fn logger_restarts_after_binary_was_replaced() {
    let scene = Scene::new("adopt-binary");
    let server = servers::test_server(&scene);
    let [installed, new] = ["installed", "new"].map(|name| scene.directory().join(name));
    fs::copy(outlive(), &installed).expect("copy the binary");
    let mut protected = scene.protect(&server);
    protected.kill_serve_itself();
    protected.set_binary(installed.clone());
    protected.succeed(&scene, &server, &[]);
    fs::write(&new, "the next version").expect("write a file");
    fs::rename(&new, &installed).expect("replace the binary");
    protected.set_binary(outlive()); // which asks for the status
    if let Some(former) = logger_of(&protected) {
        lab::signal(former, Signal::KILL).expect("it runs");
        protected.wait_for("logger_restarted", 1);
    }
    let stream = echoing(&scene);
    protected.kill_main(Signal::KILL);
    let serving = protected.wait_serving(1);
    assert_eq!(serving["recovered"], 1, "{serving}");
    echoes(&stream, b"afterwards");
    protected.stop();
}
