//! Slow and failed starts of a server.

use std::fs;

use e2e::clients::{read_exactly, write};
use e2e::servers::{self, SERVER_PORT};
use e2e::{Scene, assert_same_bytes};
use lab::Signal;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};

use crate::{echoes, echoing, is_reset, lost_only, needy, talks};

#[test]
fn slow_start() {
    let scene = Scene::new("not-started");
    let (server, file) = needy(&scene);
    let protected = scene.protect(&server);
    let stream = echoing(&scene);
    let recording = scene.record(SERVER_PORT);
    fs::remove_file(&file).expect("remove the needed file");
    protected.kill_main(Signal::KILL);
    // The server dies by itself at each start; the back-off grows.
    protected.wait_for("died", 4);
    let starts: Vec<f64> = protected
        .events_of("restarted")
        .iter()
        .filter_map(|event| event["time_unix_us"].as_f64().map(|us| us / 1e6))
        .collect();
    let pauses: Vec<f64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // A pause can take longer than planned, never shorter: 0, 100, 200 ms.
    for (pause, least) in pauses.iter().zip([0.1, 0.2]) {
        assert!(*pause >= least - 0.02, "no back-off: {pauses:?}");
    }
    // Sent while no server runs.
    write(&stream, b"meanwhile");
    fs::write(&file, "").expect("restore the needed file");
    assert_same_bytes("echo", b"meanwhile", &read_exactly(&stream, 9));
    let serving = protected.wait_serving(1);
    assert_eq!(serving["recovered"], 1, "{serving}");
    echoes(&stream, b"afterwards");
    let endings = recording.finish();
    assert!(endings.iter().all(|e| !e.rst && !e.fin), "{endings:?}");
    protected.stop();
}

#[test]
fn start_after_recovery_timeout() {
    let scene = Scene::new("given-up");
    let (server, file) = needy(&scene);
    let protected = scene.protect_with(&server, &["--recovery-timeout", "2s"]);
    let stream = echoing(&scene);
    fs::remove_file(&file).expect("remove the needed file");
    protected.kill_main(Signal::KILL);
    lost_only(&protected, &stream, "did not come back in time");
    is_reset(&stream);
    // After the return the server serves new clients.
    fs::write(&file, "").expect("restore the needed file");
    protected.wait_serving(1);
    talks(&scene.connect(SERVER_PORT), "again");
    protected.stop();
}

/// A server with another address than the service, and a server without a listener.
#[test]
fn wrong_or_missing_listener() {
    let scene = Scene::new("elsewhere");
    let elsewhere = "127.0.0.1:8999".parse().expect("an address");
    let mut server = servers::test_server_at(&scene, vec![elsewhere], &[]);
    server.addresses = vec![scene.ipv4(SERVER_PORT)];
    let protected = scene.try_to_protect(&server, &[]);
    let told = protected.wait_for("not_listening", 1);
    let here = scene.ipv4(SERVER_PORT).to_string();
    let message = format!(
        "the server does not listen on {here}, but on 127.0.0.1:8999. \
         Change --address or the server's configuration."
    );
    assert_eq!(told["message"], message, "{told}");
    assert_eq!(told["addresses"][0], here, "{told}");
    assert_eq!(told["elsewhere"][0], "127.0.0.1:8999", "{told}");
    protected.stop();

    server.command = vec!["sleep".to_owned(), "1000".to_owned()];
    let protected = scene.try_to_protect(&server, &[]);
    let told = protected.wait_for("not_listening", 1);
    let message = told["message"].as_str().expect("words");
    assert!(message.contains("nor on another address"), "{told}");
    protected.stop();
}

/// A server that listens on one of two addresses: clients of the other address are refused.
#[test]
fn listener_on_one_of_two_addresses() {
    let scene = Scene::new("one-of-two");
    let mut server = servers::test_server_at(&scene, vec![scene.ipv4(SERVER_PORT)], &[]);
    server.addresses.push(scene.ipv6(SERVER_PORT));
    let protected = scene.try_to_protect(&server, &[]);
    let told = protected.wait_for("not_listening", 1);
    assert_eq!(told["addresses"].as_array().map(Vec::len), Some(1));
    assert_eq!(told["addresses"][0], scene.ipv6(SERVER_PORT).to_string());
    assert_eq!(told["elsewhere"][0], scene.ipv4(SERVER_PORT).to_string());
    echoes(&echoing(&scene), b"served");
    protected.stop();
}

/// An incarnation that listens elsewhere after a change of the configuration.
#[test]
fn restarted_server_without_listener() {
    let scene = Scene::new("later-nowhere");
    let (mut server, file) = needy(&scene);
    let command = server.command.join(" ");
    let script = format!(
        "test -e {} && exec {command}; exec sleep 1000",
        file.display()
    );
    server.command = ["sh", "-c", &script].map(str::to_owned).to_vec();
    let protected = scene.protect_with(&server, &["--recovery-timeout", "1h"]);
    let stream = echoing(&scene);
    fs::remove_file(&file).expect("remove the needed file");
    protected.kill_main(Signal::KILL);
    protected.wait_for("not_listening", 1);
    fs::write(&file, "").expect("restore the needed file");
    protected.kill_main(Signal::KILL);
    let serving = protected.wait_serving(1);
    assert_eq!(serving["recovered"], 1, "{serving}");
    echoes(&stream, b"afterwards");
    protected.stop();
}

/// The soft limit of open files of a process.
fn open_files(process: Pid) -> String {
    let path = format!("/proc/{}/limits", process.as_raw_nonzero());
    let limits = fs::read_to_string(path).expect("the process lives");
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().nth(3));
    soft.expect("a limit").to_owned()
}

/// `serve` opens a file for each connection during a recovery.
#[test]
fn serve_raises_descriptor_limit_for_itself_only() {
    let all = getrlimit(Resource::Nofile);
    let maximum = all.maximum.or(Some(4096));
    let current = Some(1000);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("a limit");
    let scene = Scene::new("open-files");
    let server = scene.protect(&servers::test_server(&scene));
    let most = maximum.expect("a limit").to_string();
    assert_eq!(open_files(server.serve_pid()), most);
    assert_eq!(open_files(server.main_pid()), "1000");
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
    assert_eq!(open_files(server.main_pid()), "1000");
    server.stop();
}
