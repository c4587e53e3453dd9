//! The durable log, and repeated kills of the logger.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, thread};

use e2e::arrange::wait_until;
use e2e::clients::{Http, finish};
use e2e::exchange::Exchange;
use e2e::loggers::{Logger, SHORT_LOGGER_TIMEOUT, await_recorded, key_file};
use e2e::servers::{self, SERVER_PORT, test_server};
use e2e::{EVENT_TIMEOUT, Scene, Seed, binaries};
use lab::{Host, Signal};

use crate::{echoes, echoing, protect, status, talks};

/// Deaths of the logger in a single exchange, unless `OUTLIVE_KILLS` is set.
const DEFAULT_KILLS: usize = 12;
/// Bytes of each of a download, an echo and an upload for each death.
const BYTES_PER_KILL: usize = 128 << 10;
/// After each death whose number is a multiple of this, another death follows soon.
const SECOND_KILL_SHARE: usize = 3;
/// Longest times, in ms: between a death and the next logger process; of a logger process that the test does not
/// await; of a logger process after the service has found the logger. The logger must run most of the time: while no
/// logger answers, a client doubles the retransmission timeout.
const DOWNTIME_MS: usize = 100;
const SHORT_LIFE: usize = 150;
const UPTIME_MS: usize = 1000;

#[test]
fn durable_logger_killed_again_and_again_loses_nothing() {
    let kills = std::env::var("OUTLIVE_KILLS").map_or(Ok(DEFAULT_KILLS), |kills| kills.parse());
    let kills = kills.expect("a number");
    let mut seed = Seed::choose("link-durable");
    let scene = Scene::new("link-durable");
    let host = scene.lab.add_host_at("logger", 20).expect("a host");
    let keys = key_file(&scene, "keys");
    let log = scene.directory().join("log");
    let log = log.to_string_lossy();
    let mut logger = Logger::start(&scene, &host, &keys, &["--dir", &log]);
    // The service looks for the logger again in a quarter of that time.
    let hold = ["--on-logger-loss", "hold", "--logger-timeout", "400ms"];
    let protected = protect(&scene, &test_server(&scene), &logger, &hold);
    let talk = scene.connect(SERVER_PORT);
    talks(&talk, "before");
    let echo = echoing(&scene);

    let exchange = Exchange {
        download: kills * BYTES_PER_KILL,
        echo: kills * BYTES_PER_KILL,
        upload: kills * BYTES_PER_KILL,
        kills,
        ..Exchange::default()
    };
    let mut moments = seed.clone();
    exchange.disturbed(
        &mut moments,
        || scene.connect(SERVER_PORT),
        |number| {
            die(&mut logger, &scene, &mut seed);
            if number % SECOND_KILL_SHARE == 0 {
                pause(&mut seed, SHORT_LIFE); // perhaps before anybody has found it
                die(&mut logger, &scene, &mut seed);
            }
            await_found(&logger);
            pause(&mut seed, UPTIME_MS);
        },
    );
    assert_eq!(status(&protected)["unprotected"], 0);

    // The records of before, between and after are whole: the server can die.
    echoes(&echo, b"between");
    protected.kill_main(Signal::KILL);
    protected.wait_serving(1);
    echoes(&echo, b"afterwards");
    talks(&talk, "afterwards");
    protected.assert_none_of("connection_reset");
    protected.assert_none_of("unprotected");
    protected.stop();
}

/// SIGKILL, and a new logger some time later.
fn die(logger: &mut Logger, scene: &Scene, seed: &mut Seed) {
    logger.kill();
    pause(seed, DOWNTIME_MS);
    logger.replace_dead(scene);
}

/// Waits until the service has found the records on the newest logger.
fn await_found(logger: &Logger) {
    let deadline = Instant::now() + EVENT_TIMEOUT;
    loop {
        let said = logger.log();
        let newest = said.rsplit("listens on").next();
        if newest.is_some_and(|said| said.contains("with its earlier records")) {
            return;
        }
        assert!(Instant::now() < deadline, "{said}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn pause(seed: &mut Seed, longest: usize) {
    let pause = u64::try_from(seed.between(0, longest)).expect("short");
    thread::sleep(Duration::from_millis(pause));
}

/// A logger that is killed after this time has probably written the end of a connection.
const RECORDED_AFTER: Duration = Duration::from_millis(300);

#[test]
fn record_of_connection_ended_during_outage_is_removed() {
    let scene = Scene::new("link-ended");
    let host = scene.lab.add_host_at("logger", 20).expect("a host");
    let keys = key_file(&scene, "keys");
    let log = scene.directory().join("log");
    let log = log.to_string_lossy();
    let mut logger = Logger::start(&scene, &host, &keys, &["--dir", &log]);
    // Under `hold`, waiting clients are all that is left of the logger's knowledge.
    let hold = ["--on-logger-loss", "hold", SHORT_LOGGER_TIMEOUT];
    let protected = protect(&scene, &test_server(&scene), &logger, &hold);
    let (ends, stays) = (echoing(&scene), echoing(&scene));
    logger.kill();
    protected.wait_for("logger_lost", 1);
    finish(&ends);
    logger.replace_dead(&scene);
    protected.wait_for("logger_back", 1);
    assert!(logger.log().contains("2 connections"), "{}", logger.log());
    let deadline = Instant::now() + EVENT_TIMEOUT;
    while !logger.log().contains(", 1 connection") {
        assert!(Instant::now() < deadline, "{}", logger.log());
        thread::sleep(RECORDED_AFTER); // more often in vain on a busy machine
        logger.kill();
        logger.replace_dead(&scene);
        await_found(&logger);
    }
    echoes(&stays, b"afterwards");
    protected.stop();
}

/// More than a record holds here, and than a client can send before all of that is acknowledged.
const OVER_LIMIT_BYTES: usize = 256 << 10;

/// A logger abandons a record while no `serve` runs, and dies before the next `serve` starts: the client must not wait
/// for a record that no process keeps.
#[test]
fn record_abandoned_during_outage_is_not_awaited() {
    let scene = Scene::new("link-unheard");
    let host = scene.lab.add_host_at("logger", 20).expect("a host");
    let keys = key_file(&scene, "keys");
    let log = scene.directory().join("log");
    let log = log.to_string_lossy();
    let mut logger = Logger::start(&scene, &host, &keys, &["--dir", &log]);
    let server = test_server(&scene);
    let limit = ["--limit-per-connection=64KiB"];
    let mut protected = protect(&scene, &server, &logger, &limit);
    let stream = echoing(&scene);
    protected.kill_serve_itself();
    thread::scope(|scope| {
        let echo = scope.spawn(|| echoes(&stream, &[b'x'; OVER_LIMIT_BYTES]));
        // After too short a pause the connection exceeds the limit only later, when a `serve` runs and learns of
        // that.
        thread::sleep(RECORDED_AFTER);
        logger.kill();
        logger.replace_dead(&scene);
        let flags = logger.flags();
        let flags = flags.iter().map(String::as_str).chain(limit);
        protected.succeed(&scene, &server, &flags.collect::<Vec<_>>());
        echo.join().expect("an echo");
    });
    protected.wait_for("unprotected", 1);
    echoes(&stream, b"afterwards");
    protected.stop();
}

/// Written by a logger of version 6 while two clients talked.
const LOG_OF_VERSION_6: &[u8] =
    include_bytes!("../../../../crates/service/logger/tests/it/durable/version-6.segment");

/// The next version reads the log, also with later segments of the next version. Then this version refuses the log,
/// and changes no file.
#[test]
fn log_is_read_by_next_version_and_refused_by_version_before() {
    let scene = Scene::new("link-former");
    let host = scene.lab.add_host_at("logger", 20).expect("a host");
    let keys = key_file(&scene, "keys");
    let log = scene.directory().join("log");
    fs::create_dir(&log).expect("a directory");
    fs::write(log.join("0000000000000000.segment"), LOG_OF_VERSION_6).expect("written");
    let told = log.to_string_lossy();
    let mut logger = Logger::start(&scene, &host, &keys, &["--dir", &told]);
    for life in 1..=3 {
        let found = "found records of 1 service, 2 connections";
        wait_until("it has found the records", || {
            logger.log().matches(found).count() == life
        });
        logger.kill();
        if life < 3 {
            logger.replace_dead_by(&binaries::next_outlive(), &scene);
        }
    }
    let before = files(&log);
    let said = refused(&host, &keys, &log, 78);
    assert!(
        said.contains("segment 0x2 of the log has version 7, and this program reads 6"),
        "{said}"
    );
    assert_eq!(files(&log), before);
}

fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let all = fs::read_dir(directory).expect("a directory");
    let file = |path: PathBuf| (path.clone(), fs::read(path).expect("a file"));
    all.map(|entry| file(entry.expect("an entry").path()))
        .collect()
}

/// The message of a logger that refuses to start on this directory.
fn refused(host: &Host, keys: &Path, log: &Path, status: i32) -> String {
    let mut command = host.command(&binaries::outlive().to_string_lossy());
    command.args(["logger", "--listen", "10.0.0.20:7601", "--key-file"]);
    command.arg(keys).arg("--dir").arg(log);
    let ended = command.output().expect("an end");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(status), "{said}");
    said
}

/// The logger dies with a response head in the socket, unrecorded. `serve` repeats the head to the next logger
/// process: in a replay the date of this response may differ.
#[test]
fn response_prefixes_are_recorded_after_logger_restart() {
    let scene = Scene::new("link-heads");
    let host = scene.lab.add_host_at("logger", 20).expect("a host");
    let keys = key_file(&scene, "keys");
    let log = scene.directory().join("log");
    let log = log.to_string_lossy();
    let mut logger = Logger::start(&scene, &host, &keys, &["--dir", &log]);
    let hold = ["--on-logger-loss", "hold"];
    let protected = protect(&scene, &servers::nginx(&scene), &logger, &hold);
    let mut http = Http::new(scene.connect(SERVER_PORT));
    assert_eq!(http.get("/small/1").status, 200);
    logger.host().pause().expect("it is on");
    assert_eq!(http.get("/small/2").status, 200);
    await_recorded(&protected);
    logger.kill();
    logger.replace_dead(&scene);
    await_found(&logger);
    assert_eq!(http.get("/small/3").status, 200);
    // A `Date` counts seconds: the replay must send a different date.
    thread::sleep(Duration::from_millis(1100));
    protected.kill_main(Signal::KILL);
    let serving = protected.wait_serving(1);
    assert_eq!(serving["reset"], 0, "{serving}");
    let verified = protected.wait_for("verified", 1);
    // A date counts once in each chunk of 512 bytes, and once more in a retransmitted segment.
    assert!(verified["tolerated"].as_u64() >= Some(3), "{verified}");
    assert_eq!(http.get("/small/2").status, 200);
    protected.stop();
}

#[test]
fn second_logger_on_directory_is_refused() {
    let scene = Scene::new("link-taken");
    let host = scene.lab.add_host_at("logger", 20).expect("a host");
    let keys = key_file(&scene, "keys");
    let log = scene.directory().join("log");
    let _logger = Logger::start(&scene, &host, &keys, &["--dir", &log.to_string_lossy()]);
    let said = refused(&host, &keys, &log, 75);
    assert!(said.contains("another logger uses "), "{said}");
}
