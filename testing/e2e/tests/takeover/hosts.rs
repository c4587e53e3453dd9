//! Further duties of a host that takes over.

use std::net::SocketAddr;
use std::time::Instant;

use e2e::EVENT_TIMEOUT;
use e2e::arrange::{StartGate, run, wait_until};
use e2e::exchange::{assert_untouched, end, talks};
use e2e::loggers::{protect, status};
use e2e::pair::{ADDRESS_DEVICE_FLAGS, FailOver, Pair, addresses, stop_all};
use e2e::servers::{SERVER_PORT, test_server_at};
use lab::Host;
use serde_json::Value;

/// Each host of a pair names the other host.
#[test]
fn pair_hosts_are_named() {
    let mut pair = Pair::with_test_server("takeover-named");
    let is_at = |words: &Value, host: &Host| {
        let address = format!("({})", host.address().ipv4());
        let words = words.as_str().unwrap_or_default();
        assert!(words.contains(&address), "{words}, and not {address}");
    };
    let (first, second) = (pair.first.host().clone(), pair.second.host().clone());
    let stands_by = pair.second.wait_for("standby_started", 1);
    is_at(&stands_by["host"], &first);
    is_at(&stands_by["message"], &first);
    let leased = pair.first.wait_for("lease_required", 1);
    is_at(&leased["host"], &second);
    is_at(&leased["message"], &second);
    is_at(&status(&pair.first)["other_host"], &second);
    is_at(&status(&pair.second)["other_host"], &first);
    for (server, other) in [(&pair.first, &second), (&pair.second, &first)] {
        is_at(&Value::from(server.outlive("status", &[]).stdout), other);
    }
    // Only with a connection to recover there is a former host to name.
    let stream = pair.scene.connect_to(addresses()[0]);
    talks(&stream, "before");
    pair.fail_over(FailOver::PowerOff);
    let restored = pair.first.wait_for("restored", 1);
    is_at(&restored["host"], &first);
    is_at(&restored["message"], &first);
    pair.fail_over(FailOver::Switchover);
    is_at(&pair.first.wait_for("restored", 1)["host"], &second);
    talks(&stream, "afterwards");
    end(&stream);
    pair.stop();
}

/// A host, a logger, two services: the host dies.
#[test]
fn all_services_of_host_are_taken_over() {
    let mut pair = Pair::with_test_server("takeover-several");
    let theirs: [SocketAddr; 2] =
        ["10.0.0.111:8080", "[fd00::111]:8080"].map(|text| text.parse().expect("an address"));
    let server = test_server_at(&pair.scene, theirs.to_vec(), &[]);
    let mut serves = protect(&pair.scene, &server, &pair.logger, &ADDRESS_DEVICE_FLAGS);
    let flags = pair.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let stands_by = serves.standby(&pair.scene, pair.second.host(), &server, &flags);
    stands_by.wait_for("standby_started", 1);
    serves.wait_for("lease_required", 1);
    let recording = pair.scene.record(SERVER_PORT);
    let all = [addresses(), theirs].concat();
    let clients: Vec<_> = all
        .into_iter()
        .map(|to| pair.scene.connect_to(to))
        .collect();
    for stream in &clients {
        talks(stream, "before");
    }
    pair.first.power_off();
    assert!(
        serves.ended(EVENT_TIMEOUT).is_some(),
        "it survived its host"
    );
    pair.second.wait_serving(1);
    stands_by.wait_serving(1);
    for stream in &clients {
        talks(stream, "afterwards");
    }
    // A service goes back, and the other service stays.
    pair.change_places();
    serves.power_on();
    serves.begin_as("standby", &server, &flags);
    serves.wait_for("standby_started", 1);
    stands_by.wait_for("lease_required", 1);
    pair.fail_over(FailOver::Switchover);
    for stream in &clients {
        talks(stream, "at last");
        end(stream);
    }
    stands_by.assert_none_of("superseded");
    assert_untouched(recording, 4);
    let Pair {
        first,
        second,
        logger,
        scene,
        ..
    } = pair;
    stop_all([serves, second, stands_by, first]);
    drop((logger, scene));
}

/// No connection has to be restored, and the server starts slowly: new clients wait.
#[test]
fn starting_host_refuses_no_client() {
    let mut gate = None;
    let mut pair = Pair::new("takeover-empty", |scene| {
        let server = test_server_at(scene, addresses().to_vec(), &[]);
        let (server, door) = StartGate::before(scene, server);
        gate = Some(door);
        server
    });
    let gate = gate.expect("the door of the server");
    let recording = pair.scene.record(SERVER_PORT);
    gate.shut();
    pair.first.power_off();
    std::thread::scope(|scope| {
        let (client, pair) = (&pair.scene.client, &pair);
        for (waiting, stage) in [(8, "granted"), (16, "listening")] {
            for to in addresses().repeat(4) {
                scope.spawn(move || {
                    let stream = pair.scene.connect_to(to);
                    talks(&stream, "late");
                    end(&stream);
                });
            }
            wait_until("all of them wait", || {
                run(client, "ss -Htn state syn-sent").lines().count() == waiting
            });
            // Half of the clients come before the host serves, and half while the server starts.
            if stage == "granted" {
                pair.second.wait_for(stage, 1);
            } else {
                pair.second.assert_none_of(stage);
            }
        }
        gate.open();
    });
    assert_untouched(recording, 16);
    pair.second.wait_for("protecting", 1);
    pair.change_places();
    pair.stop();
}

/// The state of an IPv6 address, as `ip` prints it; `None`: the host does not have it.
fn state_of(host: &Host, address: &str) -> Option<String> {
    let all = run(host, "ip -6 -o address show dev eth0");
    let line = all
        .lines()
        .find(|line| line.contains(&format!(" {address}/")));
    line.map(str::to_owned)
}

/// Duplicate address detection would cost a second without service.
#[test]
fn ipv6_address_is_usable_at_once() {
    let mut pair = Pair::with_test_server("takeover-dad");
    let host = pair.second.host().clone();
    host.sysctl("net.ipv6.conf.eth0.accept_dad", "1")
        .expect("a setting");
    // By default this host detects duplicate addresses.
    run(&host, "ip address add fd00::99/64 dev eth0");
    let other = state_of(&host, "fd00::99").expect("it is there");
    assert!(other.contains("tentative"), "{other}");
    let [_, ours] = addresses();
    let talk = pair.scene.connect_to(ours);
    talks(&talk, "before");
    let deadline = Instant::now() + EVENT_TIMEOUT;
    pair.first.power_off();
    let first_seen = loop {
        if let Some(state) = state_of(&host, &ours.ip().to_string()) {
            break state;
        }
        assert!(Instant::now() < deadline, "{}", pair.second.log());
    };
    for word in ["tentative", "dadfailed", "optimistic"] {
        assert!(!first_seen.contains(word), "{first_seen}");
    }
    pair.second.wait_serving(1);
    talks(&talk, "afterwards");
    run(&host, "ip address del fd00::99/64 dev eth0");
    pair.change_places();
    pair.stop();
}
