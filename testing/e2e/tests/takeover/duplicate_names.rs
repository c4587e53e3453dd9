//! An address with two service names: leases belong to names, and the logger knows the addresses, too.

use std::net::IpAddr;

use e2e::arrange::run;
use e2e::exchange::{end, talks};
use e2e::loggers::{protect, with_logger};
use e2e::pair::{Pair, addresses};
use e2e::servers::{SERVER_PORT, Server, test_server, test_server_at};
use e2e::{Answer, EVENT_TIMEOUT, Protected, Scene, binaries};
use lab::Host;

/// Runs this verb for the server on a host, as the service `website`: the output, and the exit status.
fn website(scene: &Scene, host: &Host, verb: &str, server: &Server, flags: &[&str]) -> Answer {
    let mut command = host.command("timeout");
    let limit = EVENT_TIMEOUT.as_secs().to_string();
    command.args(["-k", "1", &limit]).arg(binaries::outlive());
    command.args([verb, "--name", "website", "--run-dir"]);
    command.arg(scene.directory().join("run-website"));
    for address in &server.addresses {
        command.args(["--address", &address.to_string()]);
    }
    command.args(flags).arg("--").args(&server.command);
    let output = command.output().expect("it starts");
    Answer {
        status: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Asserts that the message names the owner and the host of the address.
#[track_caller]
fn assert_refused(answer: &Answer, address: IpAddr, service: &str, host: IpAddr) {
    assert_eq!(answer.status, Some(75), "{answer:?}");
    let whose = format!(
        "{address}:{SERVER_PORT} is the address of the service {service} on the host {host};"
    );
    assert!(answer.stderr.contains(&whose), "{answer:?}");
}

/// The host has the address by the system's configuration: the logger alone knows both names.
#[test]
fn second_name_for_address_is_refused() {
    let (scene, logger) = with_logger("two-names");
    let server = test_server(&scene);
    let first = protect(&scene, &server, &logger, &[]);
    let talk = scene.connect_to(scene.ipv4(SERVER_PORT));
    talks(&talk, "before");
    let other = scene.lab.add_host_at("other", 30).expect("a host");
    let theirs = [scene.ipv4(SERVER_PORT).ip(), scene.ipv6(SERVER_PORT).ip()];
    for ip in theirs {
        run(&other, &format!("ip address add {ip} dev lo nodad"));
    }
    let flags = logger.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let refused = website(&scene, &other, "serve", &server, &flags);
    let host = scene.server.address().ipv4().into();
    assert_refused(&refused, theirs[0], first.name(), host);
    let told = format!(
        "website is not served there: {}:{SERVER_PORT} is the address",
        theirs[0]
    );
    assert!(logger.log().contains(&told), "{}", logger.log());
    talks(&talk, "afterwards");
    end(&talk);
    // On the same host this is the same service, with another name; the port in use is another error.
    let same = website(&scene, &scene.server, "serve", &server, &flags);
    assert!(!same.stderr.contains("is the address of"), "{same:?}");
    // NAT may be between the hosts.
    let shared = [&flags[..], &["--shared-address"]].concat();
    let name = format!("{}-site", first.name());
    let second = Protected::elsewhere(&scene, (&other, &name), &server, &shared);
    second.wait_for("protecting", 1);
    second.stop();
    // Who ends in good order leaves the address at once.
    first.stop();
    let name = format!("{name}-again"); // or the former one's events are seen
    let second = Protected::elsewhere(&scene, (&other, &name), &server, &flags);
    second.wait_for("protecting", 1);
    second.stop();
    drop(logger);
}

/// The addresses come with the service, and the owner has moved to another host.
#[test]
fn other_name_neither_serves_nor_stands_by() {
    let mut pair = Pair::with_test_server("two-names-of-a-pair");
    let third = pair.scene.lab.add_host_at("third", 40).expect("a host");
    let server = test_server_at(&pair.scene, addresses().to_vec(), &[]);
    let talk = pair.scene.connect_to(addresses()[0]);
    talks(&talk, "before");
    let flags = pair.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let serves = [&flags[..], &["--take-address"]].concat();
    let name = pair.first.name().to_owned();
    for taken_over in [false, true] {
        let host = if taken_over {
            pair.first.power_off();
            pair.second.wait_serving(1);
            talks(&talk, "afterwards");
            pair.second.host()
        } else {
            pair.first.host()
        };
        let host: IpAddr = host.address().ipv4().into();
        for (verb, flags) in [("serve", &serves), ("standby", &flags)] {
            let refused = website(&pair.scene, &third, verb, &server, flags);
            assert_refused(&refused, addresses()[0].ip(), &name, host);
        }
    }
    end(&talk);
    pair.change_places();
    pair.stop();
}
