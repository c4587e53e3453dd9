//! Death of the logger, and a partition between logger and service.

use std::net::TcpStream;
use std::sync::mpsc;
use std::thread;

use e2e::arrange::{run, tcp_counter, wait_until};
use e2e::clients::{read_exactly, write};
use e2e::loggers::{Logger, SHORT_LOGGER_TIMEOUT};
use e2e::servers::{SERVER_PORT, test_server};
use e2e::{Checksum, assert_same_bytes, pattern};
use lab::{Host, Signal};

use crate::{echoes, echoing, protect, status, talks, with_logger};

const UPLOAD_BYTES: usize = 8 << 20;

/// An upload: `meanwhile` runs after the first third. The last third follows when `meanwhile` calls the argument.
fn upload(stream: &TcpStream, meanwhile: impl FnOnce(&dyn Fn())) {
    let content = pattern(UPLOAD_BYTES);
    write(stream, format!("sink {UPLOAD_BYTES}\n").as_bytes());
    let (begin, rest) = content.split_at(UPLOAD_BYTES / 3);
    let (middle, end) = rest.split_at(UPLOAD_BYTES / 3);
    write(stream, begin);
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let tell = tell; // also the end of a failed test is told
        scope.spawn(move || {
            write(stream, middle);
            told.recv().expect("the upload goes on");
            write(stream, end);
        });
        meanwhile(&|| tell.send(()).expect("the upload goes on"));
    });
    let expected = format!("{UPLOAD_BYTES} {:016x}\n", Checksum::of(&content));
    let got = read_exactly(stream, expected.len());
    assert_same_bytes("answer to the upload", expected.as_bytes(), &got);
}

#[test]
fn upload_survives_logger_death_unprotected() {
    let (scene, logger) = with_logger("link-unprotect");
    let protected = protect(
        &scene,
        &test_server(&scene),
        &logger,
        &[SHORT_LOGGER_TIMEOUT],
    );
    let stream = scene.connect(SERVER_PORT);
    let echo = echoing(&scene);
    upload(&stream, |go_on| {
        logger.kill();
        go_on();
    });
    let lost = protected.wait_for("logger_lost", 1);
    assert_eq!(lost["connections"], 2, "{lost}");
    echoes(&echo, b"still there");
    let said = status(&protected);
    assert_eq!(said["unprotected"], 2, "{said}");
    assert!(
        said["list"][0]["unprotected"]
            .as_str()
            .is_some_and(|why| why.contains("logger")),
        "{said}"
    );
    // New connections are served, too.
    talks(&scene.connect(SERVER_PORT), "new");
    protected.stop();
}

/// A service that begins while no logger answers does not say that connections are protected.
#[test]
fn connection_opened_without_logger_is_unprotected() {
    let (scene, mut logger) = with_logger("link-begins");
    logger.kill();
    let flags = logger.flags();
    let flags = flags
        .iter()
        .map(String::as_str)
        .chain([SHORT_LOGGER_TIMEOUT]);
    let flags: Vec<&str> = flags.collect();
    let protected = scene.protect_with(&test_server(&scene), &flags);
    let told = protected.wait_for("protecting", 1);
    assert_eq!(told["awaits"], "protection", "{told}");
    let message = told["message"].to_string();
    assert!(
        message.contains("no connection is protected until a logger answers"),
        "{message}"
    );
    talks(&scene.connect(SERVER_PORT), "served");
    logger.replace_dead(&scene);
    protected.wait_for("logger_back", 1);
    protected.stop();
}

#[test]
fn upload_and_echo_wait_for_partitioned_logger() {
    let (scene, logger) = with_logger("link-hold");
    let protected = protect(
        &scene,
        &test_server(&scene),
        &logger,
        &["--on-logger-loss", "hold", SHORT_LOGGER_TIMEOUT],
    );
    let stream = scene.connect(SERVER_PORT);
    let echo = echoing(&scene);
    upload(&stream, |go_on| {
        logger.host().cut().expect("cut the cable");
        go_on();
        let lost = protected.wait_for("logger_lost", 1);
        assert!(lost["connections"].is_null(), "{lost}");
        let said = status(&protected);
        assert!(
            said["logger"]
                .as_str()
                .is_some_and(|l| l.contains("clients wait")),
            "{said}"
        );
        // The client has more data, and the server's host has no room.
        wait_until("the client waits", || waits(&scene.client));
        logger.host().heal().expect("mend the cable");
    });
    protected.wait_for("logger_back", 1);
    assert_eq!(status(&protected)["unprotected"], 0);
    // All bytes were recorded: the server can die.
    protected.kill_main(Signal::KILL);
    protected.wait_serving(1);
    echoes(&echo, b"afterwards");
    protected.assert_none_of("connection_reset");
    protected.stop();
}

#[test]
fn empty_logger_releases_waiting_clients_unprotected() {
    let (scene, mut logger) = with_logger("link-emptied");
    let protected = protect(
        &scene,
        &test_server(&scene),
        &logger,
        &["--on-logger-loss", "hold", SHORT_LOGGER_TIMEOUT],
    );
    let stream = scene.connect(SERVER_PORT);
    upload(&stream, |go_on| {
        logger.kill();
        go_on();
        protected.wait_for("logger_lost", 1);
        logger.replace_dead(&scene);
    });
    let back = protected.wait_for("logger_back", 1);
    assert_eq!(back["unprotected"], 1, "{back}");
    // New connections are protected again.
    let echo = echoing(&scene);
    protected.kill_main(Signal::KILL);
    protected.wait_serving(1);
    echoes(&echo, b"afterwards");
    protected.stop();
}

#[test]
fn second_logger_is_used_after_loss_of_first() {
    let (scene, first) = with_logger("link-two");
    let host = scene.lab.add_host_at("second", 21).expect("a host");
    let keys = scene.directory().join("keys");
    let second = Logger::start(&scene, &host, &keys, &[]);
    let at = second.address().to_string();
    let flags = ["--logger", &at, SHORT_LOGGER_TIMEOUT];
    let protected = protect(&scene, &test_server(&scene), &first, &flags);
    let before = echoing(&scene);
    first.kill();
    let back = protected.wait_for("logger_back", 1);
    assert_eq!(back["logger"], at.as_str(), "{back}");
    let after = echoing(&scene);
    echoes(&before, b"not protected");
    protected.kill_main(Signal::KILL);
    protected.wait_serving(1);
    echoes(&after, b"afterwards");
    protected.stop();
}

#[test]
fn open_connections_are_protected_from_next_request() {
    let (scene, mut logger) = with_logger("link-again");
    let flags = ["--replay", "request", SHORT_LOGGER_TIMEOUT];
    let protected = protect(&scene, &test_server(&scene), &logger, &flags);
    let (talked, idle) = (scene.connect(SERVER_PORT), scene.connect(SERVER_PORT));
    talks(&talked, "one");
    talks(&idle, "one");
    logger.kill();
    protected.wait_for("logger_lost", 1);
    talks(&talked, "two");
    logger.replace_dead(&scene);
    let back = protected.wait_for("logger_back", 1);
    assert_eq!(back["waiting"], 2, "{back}");
    talks(&talked, "three");
    protected.wait_for("protection_resumed", 1);
    talks(&talked, "four");
    let said = status(&protected);
    assert_eq!(
        (&said["unprotected"], &said["waiting_for_request"]),
        (&1.into(), &1.into()),
        "{said}"
    );
    protected.kill_main(Signal::KILL);
    protected.wait_serving(1);
    talks(&talked, "five");
    let lost = protected.events_of("connection_reset");
    assert_eq!(lost.len(), 1, "the idle one: {lost:?}");
    protected.stop();
}

#[test]
fn crash_during_partition_is_recovered_later() {
    let (scene, logger) = with_logger("link-hold-crash");
    let hold = ["--on-logger-loss", "hold", SHORT_LOGGER_TIMEOUT];
    let protected = protect(&scene, &test_server(&scene), &logger, &hold);
    let echo = echoing(&scene);
    let recording = scene.record(SERVER_PORT);
    logger.host().cut().expect("cut the cable");
    protected.wait_for("logger_lost", 1);
    write(&echo, b"meanwhile");
    protected.kill_main(Signal::KILL);
    protected.wait_for("listening", 1);
    // The server is up, but the records to replay are out of reach.
    let before = tcp_counter(&scene.client, "RetransSegs");
    wait_until("the client has asked twice more", || {
        tcp_counter(&scene.client, "RetransSegs") >= before + 2
    });
    protected.assert_none_of("serving");
    logger.host().heal().expect("mend the cable");
    let serving = protected.wait_serving(1);
    assert_eq!(
        (&serving["recovered"], &serving["reset"]),
        (&1.into(), &0.into()),
        "{serving}"
    );
    assert_same_bytes("echo", b"meanwhile", &read_exactly(&echo, 9));
    let endings = recording.finish();
    assert!(endings.iter().all(|e| !e.rst && !e.fin), "{endings:?}");
    protected.stop();
}

#[test]
fn crash_during_logger_loss_resets_recorded_connections() {
    let (scene, logger) = with_logger("link-lost-crash");
    let protected = protect(
        &scene,
        &test_server(&scene),
        &logger,
        &[SHORT_LOGGER_TIMEOUT],
    );
    let echo = echoing(&scene);
    // The server dies first: the recovery waits for the logger, until the logger is lost.
    logger.host().cut().expect("cut the cable");
    protected.kill_main(Signal::KILL);
    let lost = protected.wait_for("connection_reset", 1);
    assert!(
        lost["reason"].to_string().contains("logger did not answer"),
        "{lost}"
    );
    protected.wait_serving(1);
    drop(echo);
    talks(&scene.connect(SERVER_PORT), "new");
    protected.stop();
}

#[test]
fn upload_survives_logger_partition_unprotected() {
    let (scene, logger) = with_logger("link-cut");
    let protected = protect(
        &scene,
        &test_server(&scene),
        &logger,
        &[SHORT_LOGGER_TIMEOUT],
    );
    let stream = scene.connect(SERVER_PORT);
    upload(&stream, |go_on| {
        logger.host().cut().expect("cut the cable");
        go_on();
    });
    protected.wait_for("logger_lost", 1);
    protected.stop();
}

/// Whether the client's only upload is not acknowledged any more.
fn waits(client: &Host) -> bool {
    run(client, "ss -tinoH state established").contains("backoff:")
}
