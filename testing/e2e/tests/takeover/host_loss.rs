//! Loss of the serving host, and takeover by another host.

use std::sync::Arc;

use e2e::arrange::wait_until;
use e2e::clients::Http;
use e2e::exchange::{Exchange, assert_untouched, echoes, end, talks};
use e2e::loggers::{await_recorded, protect, status, with_logger};
use e2e::pair::{FailOver, Pair, addresses, stop_all};
use e2e::servers::{BIG_FILE_BYTES, SERVER_PORT, nginx_at, test_server_at};
use e2e::{EVENT_TIMEOUT, Seed, assert_same_bytes, pattern};
use lab::Signal;

#[test]
fn standby_takes_over_after_power_off() {
    // In the middle of an exchange the logger may not have the beginning of the last answer, which could not be
    // compared.
    let mut pair = Pair::with("takeover-power", &[], &["--verify", "off"], |scene| {
        test_server_at(scene, addresses().to_vec(), &[])
    });
    let once = Exchange {
        kills: 1,
        ..Exchange::SOME
    };
    let mut seed = Seed::choose("takeover-power");
    for address in addresses() {
        let recording = pair.scene.record(SERVER_PORT);
        let idle = pair.scene.connect_to(address);
        talks(&idle, "before");
        let echo = pair.scene.connect_to(address);
        e2e::clients::write(&echo, b"echo\n");
        echoes(&echo, b"hello");
        let connect = || pair.scene.connect_to(address);
        once.disturbed(&mut seed, connect, |_| {
            pair.first.power_off();
            let restored = pair.second.wait_for("restored", 1);
            assert_eq!(restored["lost"], 0, "{restored}");
            pair.second.wait_serving(1);
        });
        talks(&idle, "afterwards");
        echoes(&echo, b"afterwards");
        pair.second.assert_none_of("connection_reset");
        assert_eq!(status(&pair.second)["unprotected"], 0);
        end(&idle);
        end(&echo);
        assert_untouched(recording, 5);
        // And back, for the other address.
        pair.change_places();
    }
    pair.stop();
}

#[test]
fn download_survives_two_hosts() {
    let mut pair = Pair::new("takeover-nginx", |scene| {
        nginx_at(scene, addresses().to_vec())
    });
    let mut http = Http::new(pair.scene.connect_to(addresses()[0]));
    http.ask("/big.bin");
    let mut cuts = [BIG_FILE_BYTES / 4, BIG_FILE_BYTES / 2]
        .into_iter()
        .peekable();
    let got = http.response(|progress| {
        if cuts.next_if(|at| progress > *at).is_some() {
            pair.first.power_off();
            pair.second.wait_serving(1);
            pair.change_places();
        }
    });
    assert_same_bytes("download", &pattern(BIG_FILE_BYTES), &got.body);
    http.ask("/small/3");
    assert_same_bytes("next", &pattern(500 + 3 * 700), &http.response(|_| ()).body);
    pair.first.kill_main(Signal::KILL);
    pair.first.wait_serving(2);
    http.ask("/small/4");
    assert_same_bytes("last", &pattern(500 + 4 * 700), &http.response(|_| ()).body);
    pair.stop();
}

/// A restart of a standby is refused at once.
#[test]
fn standby_is_not_restarted() {
    let pair = Pair::with_test_server("takeover-restart");
    let answer = pair.second.outlive("restart", &[]);
    assert_eq!(answer.status, Some(75), "{answer:?}");
    assert!(
        answer.stderr.contains("try again when it serves"),
        "{answer:?}"
    );
    pair.stop();
}

/// The programs are silent when the lease is over, also without a running process; later `serve` learns of the
/// takeover.
#[test]
fn stopped_or_cut_off_host_falls_silent() {
    for stopped in [true, false] {
        let mut pair = Pair::with_test_server("takeover-silent");
        let echo = pair.scene.connect_to(addresses()[0]);
        e2e::clients::write(&echo, b"echo\n");
        echoes(&echo, b"hello");
        await_recorded(&pair.first);
        let serve = pair.first.serve_pid();
        if stopped {
            lab::signal(serve, Signal::STOP).expect("it runs");
        } else {
            pair.scene.server.cut().expect("cut");
        }
        pair.second.wait_serving(1);
        echoes(&echo, b"there");
        if stopped {
            lab::signal(serve, Signal::CONT).expect("it runs");
        } else {
            pair.scene.server.heal().expect("heal");
        }
        pair.first.wait_for("superseded", 1);
        pair.first.wait_for("standby_started", 1);
        echoes(&echo, b"still there");
        std::mem::swap(&mut pair.first, &mut pair.second);
        pair.first.wait_for("lease_required", 1);
        // The former host is as good as a new standby.
        pair.fail_over(FailOver::Switchover);
        echoes(&echo, b"back again");
        pair.stop();
    }
}

#[test]
fn switchover_back_and_forth() {
    let mut pair = Pair::with_test_server("takeover-move");
    let recording = pair.scene.record(SERVER_PORT);
    let idle = pair.scene.connect_to(addresses()[1]);
    talks(&idle, "before");
    let exchange = Exchange {
        kills: 4,
        ..Exchange::SOME
    };
    let scene = Arc::clone(&pair.scene);
    let connect = || scene.connect_to(addresses()[0]);
    exchange.disturbed(&mut Seed::choose("takeover-move"), connect, |before| {
        let turn = before + 1;
        pair.hand_over();
        pair.second.wait_serving(turn.div_ceil(2));
        std::mem::swap(&mut pair.first, &mut pair.second);
        pair.first.wait_for("lease_required", turn / 2 + 1);
    });
    drop(scene);
    talks(&idle, "afterwards");
    for one in [&pair.first, &pair.second] {
        one.assert_none_of("connection_reset");
    }
    end(&idle);
    assert_untouched(recording, 4);
    let refused = pair.second.outlive("switchover", &[]);
    assert_eq!(refused.status, Some(1), "{refused:?}");
    pair.stop();
}

/// A stopping host with a standby hands over; a host that returns too late stands by.
#[test]
fn stopping_serve_hands_over() {
    let mut pair = Pair::with_test_server("takeover-end");
    let echo = pair.scene.connect_to(addresses()[0]);
    e2e::clients::write(&echo, b"echo\n");
    echoes(&echo, b"hello");
    pair.first.kill_serve(Signal::TERM);
    assert!(pair.first.ended(EVENT_TIMEOUT).is_some());
    pair.second.wait_serving(1);
    echoes(&echo, b"afterwards");
    std::mem::swap(&mut pair.first, &mut pair.second);
    let flags = pair.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    // The verb `serve` vouches that no host serves, and is wrong.
    pair.second.begin_as("serve", &pair.server, &flags);
    pair.await_standby();
    // After SIGKILL to `serve` the server lives, and is silent when the lease has expired.
    pair.first.kill_serve_itself();
    pair.second.wait_serving(1);
    echoes(&echo, b"there");
    pair.first.begin_as("serve", &pair.server, &flags);
    pair.first.wait_for("superseded", 1);
    pair.first.wait_for("standby_started", 1);
    echoes(&echo, b"still there");
    std::mem::swap(&mut pair.first, &mut pair.second);
    pair.stop();
}

/// A switchover is neither reported nor counted as a death; and the first incarnation of a service has the number 1.
#[test]
fn switchover_is_no_death() {
    let mut pair = Pair::with_test_server("takeover-no-death");
    let echo = pair.scene.connect_to(addresses()[0]);
    e2e::clients::write(&echo, b"echo\n");
    echoes(&echo, b"hello");
    assert_eq!(status(&pair.first)["incarnation"], 1);
    assert_pair_status(&pair);
    pair.hand_over();
    let serving = pair.second.wait_serving(1);
    assert_eq!(serving["recovered"], 1, "{serving}");
    echoes(&echo, b"moved");
    let restored = pair.second.wait_for("restored", 1);
    assert_eq!(restored["former"], "handed_over", "{restored}");
    pair.second.assert_none_of("died");
    let deaths = &status(&pair.second)["totals"]["deaths"];
    assert_eq!(
        deaths.as_object().map(serde_json::Map::len),
        Some(0),
        "{deaths}"
    );
    // The other way round by a death.
    std::mem::swap(&mut pair.first, &mut pair.second);
    pair.first.wait_for("lease_required", 1);
    pair.first.power_off();
    let restored = pair.second.wait_for("restored", 1);
    assert_eq!(restored["former"], "silent", "{restored}");
    pair.second.wait_for("died", 1);
    echoes(&echo, b"taken over");
    pair.change_places();
    pair.stop();
}

/// The host that serves reports whether there is a standby, and the standby reports no unprotected connection.
#[track_caller]
fn assert_pair_status(pair: &Pair) {
    // Now and then the logger misses the standby for a moment.
    wait_until("the standby is known", || {
        status(&pair.first)["standby_present"] == true
    });
    let standby = status(&pair.second);
    assert_eq!(standby["standby_present"], serde_json::Value::Null);
    assert_eq!(standby["stage"], "standby");
    let words = pair.second.outlive("status", &[]).stdout;
    assert!(!words.contains("unprotected"), "{words}");
    assert!(
        words.contains("keeps the record of the host that serves"),
        "{words}"
    );
    wait_until("that is told in words", || {
        let words = pair.first.outlive("status", &[]).stdout;
        words.contains("standby      present")
    });
}

#[test]
fn missing_standby_is_reported() {
    let mut pair = Pair::with_test_server("takeover-alone");
    pair.second.kill_serve(Signal::TERM);
    assert!(pair.second.ended(EVENT_TIMEOUT).is_some());
    wait_until("it is known to be alone", || {
        status(&pair.first)["standby_present"] == false
    });
    let words = pair.first.outlive("status", &[]).stdout;
    assert!(words.contains("standby      none"), "{words}");
    pair.second.begin_as(
        "standby",
        &pair.server,
        &pair.flags().iter().map(String::as_str).collect::<Vec<_>>(),
    );
    wait_until("it has one again", || {
        status(&pair.first)["standby_present"] == true
    });
    pair.stop();
}

/// A host without a standby is gone for good: after the operator's release another host continues with the
/// connections, and not while the first host is there.
#[test]
fn dead_host_is_released() {
    let (scene, logger) = with_logger("takeover-release");
    let server = test_server_at(&scene, addresses().to_vec(), &[]);
    let other = scene.lab.add_host_at("other", 30).expect("a host");
    let device = ["--address-device", "eth0"];
    let first = protect(&scene, &server, &logger, &device);
    let echo = scene.connect_to(addresses()[0]);
    e2e::clients::write(&echo, b"echo\n");
    echoes(&echo, b"hello");
    wait_until("it needs no lease", || {
        status(&first)["lease"]
            .to_string()
            .contains("without an end")
    });
    await_recorded(&first);
    let at = logger.address().to_string();
    let keys = scene
        .directory()
        .join("keys")
        .to_string_lossy()
        .into_owned();
    let release = |service: &str| {
        let program = e2e::binaries::outlive();
        let mut command = logger.host().command(&program.to_string_lossy());
        command.args([
            "logger",
            "release",
            service,
            "--logger",
            &at,
            "--key-file",
            &keys,
        ]);
        let output = command.output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let (code, said) = release(first.name());
    assert_eq!(code, Some(75), "{said}");
    assert!(said.contains("it is there"), "{said}");
    let (code, said) = release("nobody");
    assert_eq!(code, Some(64), "{said}");
    // The logger does not refuse an answered request.
    assert!(
        !logger.log().contains("has closed the connection"),
        "{}",
        logger.log()
    );
    first.power_off();
    let flags = logger.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(device).collect();
    let second = first.standby(&scene, &other, &server, &flags);
    let waits = second.wait_for("warning", 1);
    assert!(
        waits["message"]
            .to_string()
            .contains("may not take over yet"),
        "{waits}"
    );
    wait_until("the host was silent for long enough", || {
        release(first.name()).0 == Some(0)
    });
    let serving = second.wait_serving(1);
    assert_eq!(serving["recovered"], 1, "{serving}");
    echoes(&echo, b"taken over");
    // The host comes back, with a `serve` that vouches that no host serves: `serve` stands by.
    let mut first = first;
    first.power_on();
    first.begin_as("serve", &server, &flags);
    first.wait_for("standby_started", 1);
    echoes(&echo, b"still there");
    stop_all([first, second]);
}
