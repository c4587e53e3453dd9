//! Adoption of a service whose maps, and mirror frames, are of the version before: by the program that is built with
//! the feature `next-version`.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use e2e::arrange::wait_until;
use e2e::binaries::{next_outlive, outlive};
use e2e::clients::{read_exactly, write};
use e2e::exchange::{Exchange, assert_all_recovered};
use e2e::servers::{self, SERVER_PORT, nginx};
use e2e::{EVENT_TIMEOUT, Protected, Scene, Seed, assert_same_bytes};
use lab::{Pid, Signal};

use crate::adoption::is_adopted_under_load;
use crate::{echoes, echoing};

/// Directories of the service's pins whose name begins with `prefix`.
pub(crate) fn pins(scene: &Scene, name: &str, prefix: &str) -> Vec<PathBuf> {
    let entries = |path: &PathBuf, prefix: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        let named = |path: &PathBuf| {
            let file = path.file_name().map(|file| file.to_string_lossy());
            file.is_some_and(|file| file.starts_with(prefix))
        };
        entries.map(|entry| entry.path()).filter(named).collect()
    };
    let places = [
        PathBuf::from("/sys/fs/bpf/outlive"),
        scene.run_dir().join(name).join("bpf/outlive"),
    ];
    let layouts = places.iter().flat_map(|place| entries(place, prefix));
    layouts.flat_map(|layout| entries(&layout, name)).collect()
}

fn staged(scene: &Scene, protected: &Protected) -> Vec<PathBuf> {
    pins(scene, protected.name(), "staged-v")
}

/// Waits until the next `serve` is about to hold segments back, or has adopted.
fn await_migration(scene: &Scene, protected: &Protected) {
    let deadline = Instant::now() + EVENT_TIMEOUT;
    while staged(scene, protected).is_empty() && protected.events_of("adopted").is_empty() {
        assert!(Instant::now() < deadline, "{}", protected.log());
        thread::yield_now();
    }
}

#[test]
fn connections_survive_upgrade_to_next_layout_and_next_crash() {
    for flags in [&[][..], &["--attach", "clsact"]] {
        is_adopted_under_load("layout-load", flags, next_outlive());
    }
}

#[test]
fn server_death_during_upgrade_is_recovered() {
    let scene = Scene::new("layout-death");
    let server = servers::test_server(&scene);
    let mut seed = Seed::choose("layout-death");
    for _ in 0..3 {
        let mut protected = scene.protect(&server);
        let stream = echoing(&scene);
        let recording = scene.record(SERVER_PORT);
        let pid = protected.main_pid();
        protected.kill_serve_itself();
        protected.set_binary(next_outlive());
        protected.begin_succession(&scene, &server, &[]);
        await_migration(&scene, &protected);
        thread::sleep(Duration::from_micros(seed.between(0, 60_000) as u64));
        servers::signal_all(&[pid], Signal::KILL);
        write(&stream, b"into the void");
        protected.wait_for("died", 1);
        let serving = protected.wait_serving(1);
        let counts = (&serving["recovered"], &serving["reset"]);
        assert_eq!(counts, (&1.into(), &0.into()), "{serving}");
        assert_same_bytes("echo", b"into the void", &read_exactly(&stream, 13));
        let endings = recording.finish();
        let is_open = endings.iter().all(|ending| !ending.rst && !ending.fin);
        assert!(is_open, "{endings:?}");
        drop(stream);
        protected.stop();
    }
}

/// The process on this host that keeps the records, if no other host does.
pub(crate) fn logger_of(protected: &Protected) -> Option<Pid> {
    let status = protected.outlive("status", &["--json"]);
    let pid = status.json()[0]["logger_pid"].as_i64();
    let pid = pid.and_then(|pid| i32::try_from(pid).ok());
    pid.and_then(Pid::from_raw)
}

/// Programs of the next version write frames for the logger of this version, then for a logger of their own version:
/// without a connection, no record is lost.
#[test]
fn logger_of_version_before_is_adopted_and_succeeded() {
    let scene = Scene::new("layout-logger");
    let server = servers::test_server(&scene);
    let mut protected = scene.protect(&server);
    let logger = logger_of(&protected);
    let recording = scene.record(SERVER_PORT);
    let early = echoing(&scene);
    let exchange = Exchange {
        kills: 3,
        ..Exchange::default()
    };
    let connect = || scene.connect(SERVER_PORT);
    let mut seed = Seed::choose("layout-logger");
    exchange.disturbed(&mut seed, connect, |moment| match moment {
        0 => {
            protected.kill_serve_itself();
            protected.set_binary(next_outlive());
            protected.succeed(&scene, &server, &[]);
        }
        _ => {
            protected.kill_main(Signal::KILL);
            let serving = protected.wait_serving(moment);
            assert_eq!(serving["reset"], 0, "{serving}");
        }
    });
    echoes(&early, b"afterwards");
    assert_eq!(logger_of(&protected), logger, "the same process");
    drop(early);
    assert_all_recovered(&protected);
    if let Some(former) = logger {
        wait_until("a logger of the next version reads the ring", || {
            logger_of(&protected) != Some(former)
        });
        protected.assert_none_of("logger_restarted");
        let stream = echoing(&scene);
        let recoveries = protected.events_of("serving").len();
        protected.kill_main(Signal::KILL);
        let serving = protected.wait_serving(recoveries + 1);
        assert_eq!(serving["recovered"], 1, "{serving}");
        echoes(&stream, b"afterwards");
    }
    if let Some(logger) = logger_of(&protected) {
        lab::signal(logger, Signal::KILL).expect("it runs");
        protected.wait_for("logger_restarted", 1);
        assert_ne!(logger_of(&protected), Some(logger));
    }
    exchange.run(&protected, &mut seed, connect, |_| {});
    protected.assert_none_of("connection_reset");
    let endings = recording.finish();
    assert!(endings.iter().all(|ending| !ending.rst), "{endings:?}");
    protected.stop();
}

#[test]
fn killed_upgrade_is_taken_up() {
    killed_upgrade(&[]);
}

#[test]
fn killed_upgrade_with_clsact_is_taken_up() {
    killed_upgrade(&["--attach", "clsact"]);
}

fn killed_upgrade(flags: &[&str]) {
    let scene = Scene::new("layout-killed");
    let server = servers::test_server(&scene);
    let mut seed = Seed::choose("layout-killed");
    let mut protected = scene.protect_with(&server, flags);
    let stream = echoing(&scene);
    protected.kill_serve_itself();
    for longest in [0, 5_000, 40_000, 200_000] {
        protected.set_binary(next_outlive());
        protected.begin_succession(&scene, &server, flags);
        await_migration(&scene, &protected);
        thread::sleep(Duration::from_micros(seed.between(0, longest + 1) as u64));
        protected.kill_serve_itself();
        echoes(&stream, b"between");
        let is_before_commit = longest <= 5_000; // a grace period of the kernel is longer
        if is_before_commit && pins(&scene, protected.name(), "replay-v16").is_empty() {
            // The version before can still go on, too.
            protected.set_binary(outlive());
            protected.succeed(&scene, &server, flags);
            echoes(&stream, b"as before");
            protected.kill_serve_itself();
        }
    }
    protected.set_binary(next_outlive());
    protected.succeed(&scene, &server, flags);
    echoes(&stream, b"adopted");
    protected.kill_main(Signal::KILL);
    let serving = protected.wait_serving(1);
    assert_eq!(serving["recovered"], 1, "{serving}");
    echoes(&stream, b"afterwards");
    protected.stop();
}

#[test]
fn nginx_is_adopted_by_next_layout_and_downgrade_is_refused() {
    let scene = Scene::new("layout-nginx");
    let server = nginx(&scene);
    let mut protected = scene.protect(&server);
    protected.kill_serve_itself();
    protected.set_binary(next_outlive());
    let adopted = protected.succeed(&scene, &server, &[]);
    assert!(adopted["pid"].is_number(), "{adopted}");
    protected.kill_serve_itself();
    protected.set_binary(outlive());
    let name = protected.name().to_owned();
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
    assert!(refused.stderr.contains("layout 16"), "{refused:?}");
    protected.set_binary(next_outlive());
    protected.succeed(&scene, &server, &[]);
    protected.kill_worker(Signal::KILL);
    protected.wait_serving(1);
    protected.stop();
}

/// A close in the moment of the copy is noted in both sets of maps: no connection stays known.
#[test]
fn short_connections_during_upgrade_are_served_and_forgotten() {
    let scene = Scene::new("layout-short");
    let server = servers::test_server(&scene);
    let mut protected = scene.protect(&server);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    drop(echoing(&scene));
                }
            });
        }
        protected.kill_serve_itself();
        protected.set_binary(next_outlive());
        protected.succeed(&scene, &server, &[]);
        thread::sleep(Duration::from_millis(100));
        is_over.store(true, Ordering::Relaxed);
    });
    let name = protected.name().to_owned();
    let connections = || {
        let answer = protected.outlive("status", &["--json", &name]);
        answer.json()[0]["connections"].clone()
    };
    let deadline = Instant::now() + EVENT_TIMEOUT;
    while connections() != 0 {
        assert!(Instant::now() < deadline, "{}", connections());
        thread::sleep(Duration::from_millis(50));
    }
    protected.stop();
}
