//! Power-off of the server's host, and the reboot.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use e2e::arrange::wait_until;
use e2e::clients::Http;
use e2e::exchange::{Exchange, assert_untouched, echoes, talks};
use e2e::loggers::{Logger, SHORT_LOGGER_TIMEOUT, key_file};
use e2e::servers::{BIG_FILE_BYTES, SERVER_PORT, Server, nginx_at, test_server_at};
use e2e::{Protected, Scene, Seed, assert_same_bytes, pattern};

use crate::{protect, status, with_logger};

/// The addresses of the service. The host has them only while the host serves.
fn addresses() -> [SocketAddr; 2] {
    ["10.0.0.110:8080", "[fd00::110]:8080"].map(|text| {
        let address: SocketAddr = text.parse().expect("an address");
        assert_eq!(address.port(), SERVER_PORT);
        address
    })
}

const ADDRESS_DEVICE_FLAGS: [&str; 2] = ["--address-device", "eth0"];

/// For a client in the middle of an exchange at the power loss, the last answer may not have reached the logger, and
/// cannot be compared then: on a busy machine that takes a while.
const NOT_COMPARED: [&str; 2] = ["--verify", "off"];

/// Clients at work, and a moment in the middle of the work.
const ONE_KILL: Exchange = Exchange {
    kills: 1,
    ..Exchange::SOME
};

/// Off and on.
fn restart(protected: &mut Protected, server: &Server, logger: &Logger) {
    protected.lose_power();
    begin_anew(protected, server, logger);
}

/// Starts `serve` as the system does.
fn begin_anew(protected: &mut Protected, server: &Server, logger: &Logger) {
    begin_with(protected, server, logger, &[]);
}

fn begin_with(protected: &mut Protected, server: &Server, logger: &Logger, more: &[&str]) {
    let flags = logger.flags();
    let flags = flags.iter().map(String::as_str).chain(ADDRESS_DEVICE_FLAGS);
    let flags: Vec<&str> = flags.chain(more.iter().copied()).collect();
    protected.begin_anew(server, &flags);
}

#[test]
fn clients_survive_host_reboot() {
    let mut seed = Seed::choose("link-power");
    let (scene, logger) = with_logger("link-power");
    let server = test_server_at(&scene, addresses().to_vec(), &[]);
    let flags = [ADDRESS_DEVICE_FLAGS, NOT_COMPARED].concat();
    let mut protected = protect(&scene, &server, &logger, &flags);
    for address in addresses() {
        let recording = scene.record(SERVER_PORT);
        let idle = scene.connect_to(address);
        talks(&idle, "before");
        let echo = scene.connect_to(address);
        e2e::clients::write(&echo, b"echo\n");
        echoes(&echo, b"hello");
        let connect = || scene.connect_to(address);
        ONE_KILL.disturbed(&mut seed, connect, |_| {
            protected.lose_power();
            begin_with(&mut protected, &server, &logger, &NOT_COMPARED);
            let restored = protected.wait_for("restored", 1);
            assert_eq!(restored["lost"], 0, "{restored}");
            protected.wait_serving(1);
        });
        talks(&idle, "afterwards");
        echoes(&echo, b"afterwards");
        protected.assert_none_of("connection_reset");
        assert_eq!(status(&protected)["unprotected"], 0);
        e2e::exchange::end(&idle);
        e2e::exchange::end(&echo);
        assert_untouched(recording, 5);
    }
    protected.stop();
}

/// A single logger grants leases; several loggers do not.
#[test]
fn serve_without_possible_standby_warns() {
    let (scene, logger) = with_logger("link-alone");
    let here = scene.ipv4(SERVER_PORT);
    let at = logger.address().to_string();
    for (address, more, word) in [
        (addresses()[0], &["--logger", &at][..], "one --logger"),
        (here, &[], "ip address del"),
    ] {
        let server = test_server_at(&scene, vec![address], &[]);
        let flags = [&ADDRESS_DEVICE_FLAGS[..], more].concat();
        let protected = protect(&scene, &server, &logger, &flags);
        let trouble = protected.wait_for("warning", 1);
        assert_eq!(trouble["code"], "no_takeover", "{trouble}");
        let message = trouble["message"].as_str().unwrap_or_default();
        assert!(message.contains(word), "{trouble}");
        protected.stop();
    }
}

#[test]
fn nginx_download_survives_two_host_reboots() {
    let (scene, logger) = with_logger("link-power-nginx");
    let server = nginx_at(&scene, addresses().to_vec());
    let mut protected = protect(&scene, &server, &logger, &ADDRESS_DEVICE_FLAGS);
    let mut http = Http::new(scene.connect_to(addresses()[0]));
    http.ask("/big.bin");
    let mut cuts = [BIG_FILE_BYTES / 4, BIG_FILE_BYTES / 2]
        .into_iter()
        .peekable();
    let got = http.response(|progress| {
        if cuts.next_if(|at| progress > *at).is_some() {
            restart(&mut protected, &server, &logger);
            protected.wait_serving(1);
        }
    });
    assert_same_bytes("download", &pattern(BIG_FILE_BYTES), &got.body);
    // The connection continues with the next request, and the next death is an ordinary death.
    http.ask("/small/3");
    assert_same_bytes(
        "the next",
        &pattern(500 + 3 * 700),
        &http.response(|_| ()).body,
    );
    protected.kill_main(lab::Signal::KILL);
    protected.wait_serving(2);
    http.ask("/small/4");
    assert_same_bytes(
        "the last",
        &pattern(500 + 4 * 700),
        &http.response(|_| ()).body,
    );
    protected.assert_none_of("connection_reset");
    protected.stop();
}

/// FT-TCP VI.C: the log is on the disk of the server's own host.
#[test]
fn local_log_survives_host_reboot() {
    let scene = Scene::new("link-power-disk");
    let keys = key_file(&scene, "keys");
    let log = scene.directory().join("log");
    let log = log.to_string_lossy();
    let mut logger = Logger::start(&scene, &scene.server, &keys, &["--dir", &log]);
    let server = test_server_at(&scene, addresses().to_vec(), &[]);
    let mut protected = protect(
        &scene,
        &server,
        &logger,
        &[ADDRESS_DEVICE_FLAGS, NOT_COMPARED].concat(),
    );
    let echo = scene.connect_to(addresses()[0]);
    e2e::clients::write(&echo, b"echo\n");
    echoes(&echo, b"hello");
    let connect = || scene.connect_to(addresses()[0]);
    ONE_KILL.disturbed(&mut Seed::choose("link-power-disk"), connect, |_| {
        protected.lose_power();
        logger.replace_dead(&scene);
        begin_with(&mut protected, &server, &logger, &NOT_COMPARED);
        protected.wait_serving(1);
    });
    echoes(&echo, b"afterwards");
    protected.assert_none_of("connection_reset");
    protected.stop();
}

/// The host reboots before the logger with its records; the second logger is equal otherwise.
#[test]
fn rebooted_host_waits_for_its_logger() {
    let scene = Scene::new("link-power-late");
    let host = scene.lab.add_host_at("logger", 20).expect("a host");
    let keys = key_file(&scene, "keys");
    let log = scene.directory().join("log");
    let log = log.to_string_lossy();
    let mut logger = Logger::start(&scene, &host, &keys, &["--dir", &log]);
    let server = test_server_at(&scene, addresses().to_vec(), &[]);
    // The disk need not have the server's latest answers yet.
    let flags = [ADDRESS_DEVICE_FLAGS, NOT_COMPARED].concat();
    let mut protected = protect(&scene, &server, &logger, &flags);
    let echo = scene.connect_to(addresses()[0]);
    e2e::clients::write(&echo, b"echo\n");
    echoes(&echo, b"hello");
    logger.kill();
    protected.lose_power();
    begin_with(&mut protected, &server, &logger, &NOT_COMPARED);
    protected.wait_for("waiting_for_logger", 1);
    logger.replace_dead(&scene);
    protected.wait_serving(1);
    echoes(&echo, b"afterwards");
    protected.assert_none_of("connection_reset");
    protected.stop();
}

/// The first of two loggers has older records: the second logger has the truth.
#[test]
fn newest_records_are_used() {
    let (scene, first) = with_logger("link-power-two");
    let host = scene.lab.add_host_at("second", 21).expect("a host");
    let second = Logger::start(&scene, &host, &scene.directory().join("keys"), &[]);
    let at = second.address().to_string();
    let more = ["--logger", &at, "--replay", "request", SHORT_LOGGER_TIMEOUT];
    let flags = [&ADDRESS_DEVICE_FLAGS[..], &more].concat();
    let server = test_server_at(&scene, addresses().to_vec(), &[]);
    let mut protected = protect(&scene, &server, &first, &flags);
    let talk = scene.connect_to(addresses()[0]);
    talks(&talk, "one");
    first.host().cut().expect("cut");
    let back = protected.wait_for("logger_back", 1);
    assert_eq!(back["logger"], at.as_str(), "{back}");
    talks(&talk, "two");
    talks(&talk, "three");
    first.host().heal().expect("heal");
    protected.lose_power();
    let all = first.flags();
    let all: Vec<&str> = all.iter().map(String::as_str).chain(flags).collect();
    protected.begin_anew(&server, &all);
    protected.wait_serving(1);
    talks(&talk, "four");
    protected.assert_none_of("connection_reset");
    assert!(second.log().contains("a new instance has the records of"));
    protected.stop();
}

/// `serve` is killed at a random moment of its new instance, and the next instance finds all records.
#[test]
fn interrupted_instance_leaves_records_to_next() {
    let (scene, logger) = with_logger("link-power-short");
    let server = test_server_at(&scene, addresses().to_vec(), &[]);
    let mut protected = protect(&scene, &server, &logger, &ADDRESS_DEVICE_FLAGS);
    let idle = scene.connect_to(addresses()[0]);
    talks(&idle, "before");
    let echo = scene.connect_to(addresses()[0]);
    e2e::clients::write(&echo, b"echo\n");
    echoes(&echo, b"hello");
    restart(&mut protected, &server, &logger);
    let mut seed = Seed::choose("link-power-short");
    for _ in 0..8 {
        let pause = u64::try_from(seed.between(100, 1600)).expect("short");
        thread::sleep(Duration::from_millis(pause));
        protected.kill_serve_itself();
        begin_anew(&mut protected, &server, &logger);
    }
    talks(&idle, "afterwards");
    echoes(&echo, b"afterwards");
    // The server may have answered without the latest `serve`; the test can stop only a running `serve`.
    wait_until("the latest life serves", || {
        let said = protected.outlive("status", &["--json", protected.name()]);
        said.json().iter().any(|said| said["stage"] == "serving")
    });
    protected.stop();
}

/// A stopped service leaves no record to inherit.
#[test]
fn graceful_stop_leaves_no_records() {
    let (scene, logger) = with_logger("link-power-end");
    let server = test_server_at(&scene, addresses().to_vec(), &[]);
    let mut protected = protect(&scene, &server, &logger, &ADDRESS_DEVICE_FLAGS);
    let talk = scene.connect_to(addresses()[0]);
    talks(&talk, "before");
    protected.kill_serve(lab::Signal::TERM);
    assert!(
        protected.ended(e2e::EVENT_TIMEOUT).is_some(),
        "{}",
        protected.log()
    );
    let shown = scene
        .server
        .command("ip")
        .args(["-brief", "address"])
        .output();
    let shown = String::from_utf8(shown.expect("ip").stdout).expect("text");
    assert!(!shown.contains("10.0.0.110"), "{shown}");
    begin_anew(&mut protected, &server, &logger);
    protected.wait_for("protecting", 1);
    protected.assert_none_of("restored");
    protected.stop();
}
